"""``watch``: how a comparison goes on, until its runs have ended."""

from __future__ import annotations

import json
import os
import socket
import threading
import time

from threespo_bench.inspection.watching import Watch
from threespo_bench.store import RunStore

RUN = "1count-corridor-seed0"


def go_on(store, run=RUN):
    """A run that looks as if a process worked on it; close what is returned to end it."""
    path = store / "toys" / run
    status = json.loads((path / "status.json").read_text())
    (path / "status.json").write_text(json.dumps(status | {"state": "running"}))
    return RunStore.open(path)


def test_one_picture(toys, store) -> None:
    with go_on(store):
        done = toys("watch", str(store), "--once")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    line = next(line for line in lines if line.startswith(RUN))
    assert "running" in line and "100%" in line
    assert lines[-1] == "1 running, 3 finished, 2 failed"
    assert any(line.startswith("faulty-corridor-seed0: algorithm counting cannot be checkpointed") for line in lines)


def test_runs_that_are_still_to_come(store) -> None:
    record = store / "toys" / "experiment.json"
    data = json.loads(record.read_text())
    row = {"name": "next", "algorithm": "counting", "env": "corridor", "seed": 7, "state": "planned", "run": None}
    here = {"pid": os.getpid(), "host_name": socket.gethostname()}
    data["runs"] += [row | {"process": here}, row | {"name": "never", "process": here | {"pid": 2**22 + 1}}]
    record.write_text(json.dumps(data))
    states = {run.name: run.state for run in Watch(store / "toys").look()}
    assert (states["next"], states["never"], states[RUN]) == ("waiting", "not started", "finished")
    assert Watch(store).look()  # something is going on


def test_it_ends_when_the_runs_have_ended(call, store) -> None:
    held = go_on(store)

    def end() -> None:
        time.sleep(0.5)
        held.update_status(state="finished")
        held.close()

    thread = threading.Thread(target=end)
    thread.start()
    code, out, _ = call("watch", str(store), "--every", "0.1")
    thread.join()
    assert code == 0
    assert out.splitlines()[-1] == "4 finished, 2 failed"


def test_nothing_is_going_on(call, made_store, tmp_path) -> None:
    code, out, err = call("watch", str(made_store))
    assert (code, out) == (0, "")
    assert "nothing is going on" in err
    assert "4 finished" in call("watch", str(made_store / "toys"))[1]
    assert call("watch", str(tmp_path / "nowhere"))[0] == 6
    assert call("watch", str(made_store / "toys" / RUN))[0] == 6
