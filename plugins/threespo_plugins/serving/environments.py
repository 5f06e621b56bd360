"""What another Python environment has, without importing any of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence

from threespo_bench.errors import UsageError

_ASK = """
import json, sys, importlib.metadata as m
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


_SECONDS = 60
"""Time to answer. Storage that is far away makes an interpreter slow to start."""


def interpreter(python: str | None, fix: str = "") -> str:
    """The program that ``rollout.python`` names, by default this interpreter. Raises UsageError, with this ``fix``, if there is none."""
    if python is None:
        return sys.executable
    path = os.path.expanduser(python)
    program = shutil.which(path)
    if program is None:
        inside = os.path.join(path, "bin", "python")
        if os.path.isdir(path) and shutil.which(inside):
            raise UsageError(f"rollout.python={python} is a folder, not the interpreter in it", fix=f"rollout.python={inside}")
        raise UsageError(f"rollout.python={python} is no program", fix=fix)
    return program


def versions(python: str | None, distributions: Sequence[str], fix: str = "") -> dict[str, str | None]:
    """The version of each distribution in the environment of ``python``, None for those that it lacks. Raises UsageError if there is no such interpreter."""
    program = interpreter(python, fix)
    try:
        answer = _ask(program, distributions)
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"it did not answer within {_SECONDS} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        raise UsageError(f"rollout.python={python} is no Python interpreter that works: {reason}", fix=fix) from error
    try:
        found = json.loads((answer.stdout.splitlines() or [""])[-1])  # a sitecustomize may have said something before
        return {name: found[name] for name in distributions}
    except (ValueError, LookupError, TypeError) as error:
        said = (answer.stderr.strip() or answer.stdout.strip()).splitlines()[-1:]
        reason = f"asked for versions, it said {repr(said[0][:200]) if said else 'nothing'} and ended with {answer.returncode}"
        raise UsageError(f"rollout.python={python} is no Python interpreter that works: {reason}", fix=fix) from error


def _ask(program: str, distributions: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """What ``program`` answers; if it takes too long, or Ctrl-C comes, it is ended with all that it started."""
    command = [program, "-c", _ASK, *distributions]
    # A server is started without PYTHONPATH too: what it names is no part of the other environment.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or program == sys.executable}
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=variables, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=_SECONDS)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
