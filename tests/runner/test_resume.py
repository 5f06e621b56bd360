"""Ten iterations are k iterations, a resume and the rest: bit for bit, however the run was stopped."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.runner import toy_bench
from tests.runner.conftest import Watcher, fingerprint
from threespo_bench.errors import DataError, StorageError, UsageError
from threespo_bench.runner import resume, run
from threespo_bench.store import read_status, run_state

ROOT = Path(__file__).parents[2]


def test_equal_runs_give_equal_bytes(tmp_path, host, reference):
    again = run(toy_bench.configuration(tmp_path, "save_turns=true"), host)
    assert fingerprint(again.run) == fingerprint(reference)
    assert [path.name for path in sorted((again.run / "turns").iterdir())] == [path.name for path in sorted((reference / "turns").iterdir())]
    for path in (reference / "turns").iterdir():
        assert (again.run / "turns" / path.name).read_bytes() == path.read_bytes()


def test_another_seed_is_another_run(tmp_path, host, reference):
    other = run(toy_bench.configuration(tmp_path, seed=1), host)
    assert fingerprint(other.run)["metrics"] != fingerprint(reference)["metrics"]


@pytest.mark.parametrize("k", [0, 1, 4, 9])
def test_interrupted_after_k_iterations(tmp_path, host, reference, k):
    first = run(toy_bench.configuration(tmp_path, "save_turns=true"), host, progress=Watcher(stop_at=k))
    assert (first.state, first.exit_code) == ("interrupted", 130)
    assert read_status(first.run)["state"] == "interrupted"
    second = resume(first.run, host)
    assert (second.state, second.exit_code, second.nothing_to_do) == ("finished", 0, False)
    assert fingerprint(second.run) == fingerprint(reference)
    assert {p.name: p.read_bytes() for p in (second.run / "turns").iterdir()} == {p.name: p.read_bytes() for p in (reference / "turns").iterdir()}


@pytest.mark.parametrize("k", [1, 4, 9])
def test_a_larger_budget_continues_a_finished_run(tmp_path, host, reference, k):
    first = run(toy_bench.configuration(tmp_path, f"budget.iterations={k}"), host)
    assert first.state == "finished"
    second = resume(first.run, host, budget={"iterations": 10})
    assert second.state == "finished"
    assert fingerprint(second.run) == fingerprint(reference)
    assert "iterations: 10" in (second.run / "config.yaml").read_text()


def test_many_interruptions(tmp_path, host, reference):
    path = run(toy_bench.configuration(tmp_path), host, progress=Watcher(stop_at=0)).run
    for k in (1, 2, 5, 6, 10):
        resume(path, host, progress=Watcher(stop_at=k))
    assert fingerprint(path) == fingerprint(reference)
    assert resume(path, host).nothing_to_do


def test_a_second_interrupt_stops_at_once_and_goes_back_to_the_checkpoint(tmp_path, host, reference):
    watcher = Watcher(stop_at=5, presses=2)
    first = run(toy_bench.configuration(tmp_path), host, progress=watcher)
    assert (first.state, first.exit_code) == ("interrupted", 130)
    assert any("end of this iteration" in message for message in watcher.messages)
    assert read_status(first.run)["checkpoint"] == 3
    resume(first.run, host)
    assert fingerprint(first.run) == fingerprint(reference)
    discarded = (first.run / "metrics.discarded").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in discarded] == [4, 5]


def test_finished_means_nothing_to_do(host, reference):
    before = fingerprint(reference)
    outcome = resume(reference, host)
    assert outcome.nothing_to_do
    assert (outcome.state, outcome.exit_code, outcome.env_steps) == ("finished", 0, read_status(reference)["env_steps"])
    assert fingerprint(reference) == before


def test_an_unknown_or_spent_limit_is_refused(tmp_path, host):
    first = run(toy_bench.configuration(tmp_path), host, progress=Watcher(stop_at=4))
    with pytest.raises(UsageError, match=r"budget\.iteration is no limit") as caught:
        resume(first.run, host, budget={"iteration": 3})
    assert "iterations" in caught.value.fix
    with pytest.raises(UsageError, match="iterations=4 of 3"):
        resume(first.run, host, budget={"iterations": 3})


def test_a_run_moves(tmp_path, host, reference):
    first = run(toy_bench.configuration(tmp_path / "here"), host, progress=Watcher(stop_at=4))
    moved = tmp_path / "there" / "elsewhere" / "renamed"
    moved.parent.mkdir(parents=True)
    shutil.move(first.run, moved)
    assert resume(moved, host).run == moved
    assert fingerprint(moved) == fingerprint(reference)
    assert not list((tmp_path / "here" / "test").iterdir())
    for name in ("status.json", "metrics.jsonl", "timings.jsonl"):
        assert str(tmp_path) not in (moved / name).read_text()


def _damage_weights(folder: Path) -> None:
    weights = np.load(folder / "learner" / "logits.npy")
    weights[0, 0] += 1
    np.save(folder / "learner" / "logits.npy", weights)


def _damage_by_cutting(folder: Path) -> None:
    path = folder / "algorithm.json"
    path.write_bytes(path.read_bytes()[:-3])


DAMAGES = {
    "weights": _damage_weights,
    "cut": _damage_by_cutting,
    "missing": lambda folder: (folder / "loop.json").unlink(),
    "list missing": lambda folder: (folder / "complete.json").unlink(),
    "list empty": lambda folder: (folder / "complete.json").write_text(""),
    "list odd": lambda folder: (folder / "complete.json").write_text("[1]"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(tmp_path, host, reference, kind):
    first = run(toy_bench.configuration(tmp_path), host, progress=Watcher(stop_at=7))
    DAMAGES[kind](first.run / "checkpoints" / "iteration-000007")
    watcher = Watcher()
    assert resume(first.run, host, progress=watcher).state == "finished"
    assert any("iteration-000007 is skipped" in message for message in watcher.messages)
    assert watcher.rows[0]["iteration"] == 7
    assert fingerprint(first.run) == fingerprint(reference)


def test_no_usable_checkpoint_at_all(tmp_path, host):
    first = run(toy_bench.configuration(tmp_path), host, progress=Watcher(stop_at=7))
    metrics = (first.run / "metrics.jsonl").read_bytes()
    for folder in (first.run / "checkpoints").iterdir():
        _damage_weights(folder)
    with pytest.raises(StorageError, match="no usable checkpoint"):
        resume(first.run, host)
    assert (first.run / "metrics.jsonl").read_bytes() == metrics


def test_what_it_was_started_with_must_still_be_there(tmp_path, host, monkeypatch):
    first = run(toy_bench.configuration(tmp_path), host, progress=Watcher(stop_at=4))
    monkeypatch.setattr(toy_bench.Corridor, "digest", lambda self: "new data")
    with pytest.raises(DataError, match="environment's data"):
        resume(first.run, host)


def test_changed_code_is_said(tmp_path, host):
    first = run(toy_bench.configuration(tmp_path), host, progress=Watcher(stop_at=4))
    manifest = json.loads((first.run / "manifest.json").read_text())
    manifest["algorithm"]["digest"] = "another"
    manifest["versions"]["torch"] = "1.0"
    (first.run / "manifest.json").write_text(json.dumps(manifest))
    watcher = Watcher()
    resume(first.run, host, progress=watcher)
    assert any("the code of the algorithm changed" in message for message in watcher.messages)
    assert any("torch was 1.0" in message for message in watcher.messages)
    assert len(json.loads((first.run / "manifest.json").read_text())["incidental"]["continued"]) == 1


def test_not_a_run_folder(tmp_path, host):
    with pytest.raises(StorageError, match="not a run folder"):
        resume(tmp_path, host)


CHILD = """
import sys
from pathlib import Path
from tests.runner import toy_bench
from threespo_bench.runner import resume, run
out, options, existing = Path(sys.argv[1]), sys.argv[2].split(), sys.argv[3:]
print("ready", flush=True)
outcome = resume(Path(existing[0]), toy_bench.host()) if existing else run(toy_bench.configuration(out, *options), toy_bench.host())
print(outcome.state)
"""


def start(out: Path, options: str, *existing: Path) -> subprocess.Popen:
    """Run or resume in a process of its own."""
    paths = [str(ROOT), *(str(ROOT / name) for name in ("envs", "plugins", "algorithms", "reports"))]
    command = [sys.executable, "-c", CHILD, str(out), options, *map(str, existing)]
    return subprocess.Popen(command, cwd=ROOT, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(paths)}, stdout=subprocess.PIPE, text=True)


def kill_when(process: subprocess.Popen, due: Callable[[], object]) -> None:
    """Kill a process once ``due`` is true, or let it end."""
    while process.poll() is None and not due():
        time.sleep(0.005)
    process.kill()
    process.wait()


def only_run(out: Path) -> Path:
    return next((out / "test").glob("*/config.yaml")).parent


@pytest.mark.parametrize("iteration", [2, 4])
def test_kill_9_during_a_checkpoint(tmp_path, host, iteration):
    options = "engine.slow_save=0.5 checkpoint.every_iterations=2 budget.iterations=5"
    whole = run(toy_bench.configuration(tmp_path / "whole", *options.replace("0.5", "0").split()), host)
    out = tmp_path / "killed"
    kill_when(start(out, options), lambda: list(out.glob(f"test/*/checkpoints/.writing-iteration-00000{iteration}/learner/logits.npy")))
    path = only_run(out)
    assert list((path / "checkpoints").glob(".writing*"))
    assert (read_status(path)["state"], run_state(path)) == ("running", "interrupted")
    assert resume(path, host).state == "finished"
    assert fingerprint(path)["metrics"] == fingerprint(whole.run)["metrics"]
    assert not list((path / "checkpoints").glob(".writing*"))


@pytest.mark.slow
def test_kill_9_at_random_times(tmp_path, host):
    options = "engine.slow_save=0.05 checkpoint.every_iterations=1 save_turns=true"
    whole = run(toy_bench.configuration(tmp_path / "whole", *options.split()), host)
    random = np.random.default_rng(0)
    for trial in range(5):
        out = tmp_path / f"trial{trial}"
        for _ in range(4):
            started = [path.parent for path in out.glob("test/*/config.yaml")]
            process = start(out, options, *started)
            process.stdout.readline()
            end = time.monotonic() + random.uniform(0.2, 1.5)
            kill_when(process, lambda end=end: time.monotonic() > end)
        if not list(out.glob("test/*/config.yaml")):
            continue  # killed before there was a run
        path = only_run(out)
        assert resume(path, host).state == "finished"
        assert fingerprint(path) == fingerprint(whole.run)


def test_sigterm_stops_with_a_checkpoint(tmp_path, host):
    options = "engine.slow_save=0.2 checkpoint.every_iterations=1"
    process = start(tmp_path, options)
    process.stdout.readline()
    while not list(tmp_path.glob("test/*/checkpoints/iteration*")):
        time.sleep(0.05)
    process.terminate()
    assert process.communicate()[0].strip() == "interrupted"
    assert resume(only_run(tmp_path), host).state == "finished"


def test_two_seeds_in_parallel_equal_two_alone(tmp_path, host, reference):
    processes = [start(tmp_path, "seed=0"), start(tmp_path, "seed=1"), start(tmp_path, "seed=0")]
    assert [process.communicate()[0].split()[-1] for process in processes] == ["finished"] * 3
    names = sorted(path.name for path in (tmp_path / "test").iterdir())
    assert names == ["1count-corridor-seed0", "1count-corridor-seed0-2", "1count-corridor-seed1"]
    alone = run(toy_bench.configuration(tmp_path / "alone", seed=1), host)
    assert fingerprint(tmp_path / "test" / names[0]) == fingerprint(tmp_path / "test" / names[1]) == fingerprint(reference)
    assert fingerprint(tmp_path / "test" / names[2]) == fingerprint(alone.run)
