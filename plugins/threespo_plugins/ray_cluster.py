"""Whether a Ray cluster can be joined. A process of its own tries it: Ray tells only by joining, goes on for long, and logs to the terminal meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache

from threespo_bench.errors import EngineError
from threespo_plugins.ray_address import check_ray_address

_SECONDS = 12
"""A head that is there answers in one or two."""
_IMPORT_SECONDS = 60
_JOIN = """
import signal, sys, ray
signal.alarm(int(sys.argv[2]))  # ends this process even within Ray's own code
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
except Exception as error:
    print(" ".join(str(error).split()) or type(error).__name__)
    sys.exit(1)
"""
_ONE_TRY = {"RAY_NUM_REDIS_GET_RETRIES": "1"}  # of 20, a second each and with a line each
_TOKEN_FIX = "set RAY_AUTH_MODE=token, with the cluster's token in RAY_AUTH_TOKEN or ~/.ray/auth_token"
_VERSION_FIX = "the same versions of Ray and of Python here as in the cluster"


def check_ray_cluster(address: str, fix: str) -> None:
    """Raises EngineError, with this ``fix`` or a better one, if this process could not join the cluster (``HOST:PORT`` or ``auto``).

    What was found to work is not tried again for the same address.
    """
    check_ray_address(address, fix)
    _try(address, os.environ.get("RAY_ADDRESS"), fix)


@cache
def _try(address: str, named: str | None, fix: str) -> None:
    where = f"cannot join the Ray cluster {address}" + (f", which is RAY_ADDRESS={named}" if named and address == "auto" else "")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _JOIN, address, str(_SECONDS)],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_SECONDS + _IMPORT_SECONDS, env=os.environ | _ONE_TRY,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"{where}: Ray could not be imported within {_IMPORT_SECONDS} s", fix="try again on a machine that has less to do") from error
    if done.returncode == 0:
        return
    if done.returncode == -signal.SIGALRM:
        raise EngineError(f"{where}: no head of a cluster answered within {_SECONDS} s", fix=fix)
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines() or [f"exit code {done.returncode}"]
    if "AuthToken" in done.stdout + done.stderr:
        raise EngineError(f"{where}: it wants a token", fix=_TOKEN_FIX)
    if "version mismatch" in lines[-1].lower():
        raise EngineError(f"{where}: {lines[-1]}", fix=_VERSION_FIX)
    raise EngineError(f"{where}: {lines[-1]}", fix=fix)
