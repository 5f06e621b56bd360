"""What another Python environment has, without importing any of it."""

from __future__ import annotations

import json
import os
import shutil
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


def interpreter(python: str | None, fix: str = "") -> str:
    """The program that ``rollout.python`` names, by default this interpreter. Raises UsageError, with this ``fix``, if there is none."""
    program = sys.executable if python is None else shutil.which(os.path.expanduser(python))
    if program is None:
        raise UsageError(f"rollout.python={python} is no program", fix=fix)
    return program


def versions(python: str | None, distributions: Sequence[str], fix: str = "") -> dict[str, str | None]:
    """The version of each distribution in the environment of ``python``, None for those that it lacks. Raises UsageError if there is no such interpreter."""
    program = interpreter(python, fix)
    try:
        answer = subprocess.run([program, "-c", _ASK, *distributions], capture_output=True, text=True, timeout=60, check=True)
        found = json.loads(answer.stdout)
        return {name: found[name] for name in distributions}
    except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError) as error:
        raise UsageError(f"rollout.python={python} is no Python interpreter that works: {error}") from error
