"""A server process lives exactly as long as who started it wants, and never longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from threespo_bench.errors import EngineError
from threespo_plugins.serving.process import ServerProcess, free_port

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks for processes in /proc")

FAMILY = """
    import subprocess, sys, time
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"])
    time.sleep(600)
"""
"""A server with a child in a session of its own and one that ignores SIGTERM."""


def server(tmp_path: Path, code: str) -> ServerProcess:
    return ServerProcess("the server", [sys.executable, "-c", textwrap.dedent(code)], tmp_path / "log")


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(processes: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, processes))


def started(tmp_path: Path) -> ServerProcess:
    process = server(tmp_path, FAMILY)
    process.start()
    process.wait(lambda: "up" in process.log.read_text(), 20)
    return process


def test_close_ends_what_the_server_started_whatever_it_does_against_it(tmp_path: Path) -> None:
    process = started(tmp_path)
    family = process.ids
    assert len(family) == 3 and process.alive
    process.close()
    process.close()
    assert gone(family, 2) and not process.alive


def test_a_server_that_was_killed_takes_its_children_along(tmp_path: Path) -> None:
    process = started(tmp_path)
    family = process.ids
    guard = process._guard.pid
    os.kill(family[0], signal.SIGKILL)
    assert gone([*family, guard], 20)
    assert not process.alive
    process.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_server_dies_with_who_started_it(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
        import signal, sys, time
        from pathlib import Path
        from threespo_plugins.serving.process import ServerProcess
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it, and it is inherited
        process = ServerProcess("the server", [sys.executable, "-c", {textwrap.dedent(FAMILY)!r}], Path({str(tmp_path / "log")!r}))
        process.start()
        process.wait(lambda: "up" in process.log.read_text(), 20)
        print(*process.ids, flush=True)
        time.sleep(600)
    """
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    family = [int(word) for word in driver.stdout.readline().split()]
    assert len(family) == 3 and all(map(alive, family))
    driver.send_signal(number)
    driver.wait()
    assert gone(family, 20)


def test_the_server_dies_with_its_guard(tmp_path: Path) -> None:
    process = server(tmp_path, "import time; print('up', flush=True); time.sleep(600)")
    process.start()
    process.wait(lambda: "up" in process.log.read_text(), 20)
    main = process.ids[0]
    os.kill(process._guard.pid, signal.SIGKILL)
    assert gone([main], 5)
    process.close()


def test_a_server_that_does_not_come_up_is_an_error_that_quotes_its_log(tmp_path: Path) -> None:
    process = server(tmp_path, "raise ValueError('no such model')")
    process.start()
    with pytest.raises(EngineError, match="ended while it started: ValueError: no such model") as caught:
        process.wait(lambda: False, 20)
    assert str(tmp_path / "log") in caught.value.fix
    process.close()


def test_a_server_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    process = server(tmp_path, "import time; time.sleep(600)")
    process.start()
    with pytest.raises(EngineError, match=r"not ready after 0.3 s: no output"):
        process.wait(lambda: False, 0.3)
    process.close()
    assert not process.alive


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    process = ServerProcess("the server", [str(tmp_path / "nothing")], tmp_path / "log")
    process.start()
    with pytest.raises(EngineError, match="No such file"):
        process.wait(lambda: False, 20)
    process.close()


def test_variables_can_be_set_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOVED", "1")
    code = "import os; print(os.environ.get('SET'), os.environ.get('REMOVED'))"
    process = ServerProcess("the server", [sys.executable, "-c", code], tmp_path / "log", {"SET": "2", "REMOVED": None})
    process.start()
    with pytest.raises(EngineError, match="2 None"):
        process.wait(lambda: False, 20)
    process.close()


def test_ports_are_free_and_differ() -> None:
    assert len({free_port() for _ in range(4)}) > 1
