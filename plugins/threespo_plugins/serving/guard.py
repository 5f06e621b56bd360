"""Runs a command, and ends it with everything it started once the process that asked for it is gone. A script by itself: the standard library only.

    python guard.py PARENT FOLDERS COMMAND ...

PARENT is the process id of who asked; FOLDERS, separated by colons, are removed at the end. Standard input is a pipe from there that nothing is ever
written to: when it closes, or the parent changes, the command gets SIGTERM and, a few seconds later, SIGKILL. Where the kernel can (Linux), processes that
left the group are found too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_LOOK = 0.25  # seconds between two looks at the command
_DEATH_SIGNAL, _CHILD_SUBREAPER = 1, 36  # linux/prctl.h: PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER


def descendants(process: int) -> list[int]:
    """Ids of all processes below ``process``, by /proc; empty where there is none."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):  # gone in the meantime
                continue
            children.setdefault(parent, []).append(int(name))
    found, left = [], [process]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def main(arguments: list[str]) -> int:
    """Returns the exit code of the command."""
    parent, folders, command = int(arguments[0]), arguments[1].split(os.pathsep), arguments[2:]
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C is for who asked: what the pipe says counts
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
    _prctl(_CHILD_SUBREAPER)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_in_child)
        while child.poll() is None and not stopping and os.getppid() == parent:
            if select.select([sys.stdin], [], [], _LOOK)[0] and not os.read(sys.stdin.fileno(), 1):
                break
        _end(child)
    finally:
        for folder in filter(None, folders):
            shutil.rmtree(folder, ignore_errors=True)
    return child.returncode


def _in_child() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _prctl(_DEATH_SIGNAL, signal.SIGKILL)  # should the guard itself be killed


def _prctl(option: int, value: int = 1) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end(child: subprocess.Popen) -> None:
    """SIGTERM, a little time, SIGKILL, for the command and all below it. The guard is the leader of the group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(os.getpgid(0), signal.SIGTERM)
    if not _gone(child, GRACE):
        _kill([process for process in _others() if not _tidies(process)])
        if not _gone(child, GRACE / 2):
            _kill(_others())
        if child.poll() is None:
            child.kill()
    child.wait()


def _gone(child: subprocess.Popen, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while child.poll() is None or _others():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _kill(processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _tidies(process: int) -> bool:
    """It is Python's tracker of shared memory, which removes what the others left once they are gone, and then goes itself."""
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return b"multiprocessing.resource_tracker" in file.read()
    except OSError:
        return False


def _others() -> list[int]:
    """What is alive below the guard; processes that have ended and wait to be collected are not."""
    alive = []
    for process in descendants(os.getpid()):
        try:
            with open(f"/proc/{process}/stat") as file:
                ended = file.read().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if not ended:
            alive.append(process)
    return alive


if __name__ == "__main__":
    sys.exit(max(main(sys.argv[1:]), 0))
