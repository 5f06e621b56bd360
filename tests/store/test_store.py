"""The run folder: allocation, lock, status, and disks that are full."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.runner import toy_bench
from tests.runner.conftest import fingerprint
from threespo_bench import atomic
from threespo_bench.errors import StorageError
from threespo_bench.recorder import NoProgress
from threespo_bench.runner import resume, run
from threespo_bench.store import RunStore, find_runs, is_locked, read_config, read_status, run_state, safe_name

ROOT = Path(__file__).parents[2]


def test_names_are_given_once(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: RunStore.create(tmp_path, "exp", "run"), range(8)))
    assert sorted(store.path.name for store in stores) == ["run", *(f"run-{i}" for i in range(2, 9))]
    for store in stores:
        store.close()


@pytest.mark.parametrize(("name", "safe"), [("3spo-x", "3spo-x"), ("a/b", "a-b"), ("../up", "up"), ("a b=c", "a-b-c"), ("..", "run"), ("", "run")])
def test_names_stay_inside(tmp_path, name, safe):
    assert safe_name(name) == safe
    with RunStore.create(tmp_path, name, name) as store:
        assert store.path == tmp_path / safe / safe


def test_a_locked_folder_names_its_owner(tmp_path):
    with RunStore.create(tmp_path, "exp", "run") as store:
        store.write_config({"a": 1})
        store.update_status(state="running", pid=os.getpid())
        assert is_locked(store.path)
        assert run_state(store.path) == "running"
        with pytest.raises(StorageError, match=f"is locked: process {os.getpid()} works on it"):
            RunStore.open(store.path)
    assert not is_locked(store.path)
    assert run_state(store.path) == "interrupted"
    with RunStore.open(store.path) as again:
        assert read_config(again.path) == {"a": 1}


def test_another_process_is_kept_out(tmp_path):
    code = "import sys; from pathlib import Path; from threespo_bench.store import RunStore; RunStore.open(Path(sys.argv[1]))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with RunStore.create(tmp_path, "exp", "run") as store:
        store.write_config({})
        store.update_status(pid=1234)
        result = subprocess.run([sys.executable, "-c", code, str(store.path)], env=environment, capture_output=True, text=True, check=False)
    assert "StorageError" in result.stderr
    assert "process 1234 works on it" in result.stderr


def test_status_keeps_what_is_not_changed(tmp_path):
    with RunStore.create(tmp_path, "exp", "run") as store:
        store.update_status(state="running", pid=1)
        store.update_status(state="finished")
        assert read_status(store.path) == {"state": "finished", "pid": 1}


def test_damaged_files_are_one_clear_line(tmp_path):
    with RunStore.create(tmp_path, "exp", "run") as store:
        store.write_config({})
        path = store.path
    (path / "status.json").write_text("{")
    (path / "config.yaml").write_text("- a")
    for read in (read_status, read_config):
        with pytest.raises(StorageError):
            read(path)


def test_only_run_folders_are_found(tmp_path):
    with RunStore.create(tmp_path, "exp", "b") as one, RunStore.create(tmp_path, "exp", "a") as two:
        one.write_config({})
        two.write_config({})
        (tmp_path / "exp" / "report").mkdir()
        (tmp_path / "exp" / "file").write_text("")
        assert [path.name for path in find_runs(tmp_path / "exp")] == ["a", "b"]
    assert find_runs(tmp_path / "nowhere") == []


def test_a_refused_replacement_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    atomic.write_json(path, {"a": 1})

    def refuse(descriptor):
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match=r"cannot write status\.json: the disk is full"):
        atomic.write_json(path, {"a": 2})
    monkeypatch.undo()
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot create a run folder in"):
        RunStore.create(tmp_path / "file", "exp", "run")


def metric_rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mounting is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=False)


def assert_stopped_by_the_disk(outcome) -> None:
    assert (outcome.state, outcome.exit_code) == ("failed", StorageError.exit_code)
    assert "the disk is full" in outcome.error
    assert "\n" not in outcome.error
    assert "--resume" in outcome.fix


def test_a_full_disk_during_a_checkpoint(small_disk, tmp_path):
    host = toy_bench.host()
    filler = small_disk / "filler"
    filler.write_bytes(bytes(500_000))
    options = ("engine.ballast=250000", "checkpoint.every_iterations=2", "checkpoint.keep=1")
    outcome = run(toy_bench.configuration(small_disk / "runs", *options), host)
    assert_stopped_by_the_disk(outcome)
    assert "cannot write the checkpoint of iteration 4" in outcome.error
    assert [path.name for path in (outcome.run / "checkpoints").iterdir()] == ["iteration-000002"]
    assert [row["iteration"] for row in metric_rows(outcome.run)][-1] == 4
    assert read_status(outcome.run)["state"] == "failed"
    filler.unlink()
    assert resume(outcome.run, host).state == "finished"
    whole = run(toy_bench.configuration(tmp_path / "whole", "checkpoint.every_iterations=2"), host)
    assert fingerprint(outcome.run)["metrics"] == fingerprint(whole.run)["metrics"]


def test_a_disk_that_fills_up_between_two_rows(small_disk, tmp_path):
    host = toy_bench.host()
    filler = small_disk / "filler"

    class Filler(NoProgress):
        def iteration(self, row):
            if row["iteration"] == 4:
                with open(filler, "wb", buffering=0) as file:
                    try:
                        while file.write(bytes(4096)) == 4096:
                            continue
                    except OSError:
                        pass

    outcome = run(toy_bench.configuration(small_disk / "runs", "checkpoint.every_iterations=2"), host, progress=Filler())
    assert_stopped_by_the_disk(outcome)
    whole = run(toy_bench.configuration(tmp_path / "whole", "checkpoint.every_iterations=2"), host)
    expected = (whole.run / "metrics.jsonl").read_bytes()
    assert expected.startswith((outcome.run / "metrics.jsonl").read_bytes())
    filler.unlink()
    assert run_state(outcome.run) in ("failed", "interrupted")
    assert resume(outcome.run, host).state == "finished"
    assert fingerprint(outcome.run) == fingerprint(whole.run)


LIMITED = """
import sys
from pathlib import Path
from tests.runner import toy_bench
from threespo_bench.recorder import NoProgress
from threespo_bench.runner import run
outcome = run(toy_bench.configuration(Path(sys.argv[1]), "engine.ballast=100000", "checkpoint.every_iterations=2"), toy_bench.host())
print(outcome.state, outcome.exit_code, outcome.error)
"""


def test_a_limit_on_file_sizes(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    result = subprocess.run(
        [sys.executable, "-B", "-c", LIMITED, str(tmp_path)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert result.stdout.startswith("failed 6 cannot write the checkpoint of iteration 2: the disk is full (File too large)")
    (path,) = find_runs(tmp_path / "test")
    assert not list((path / "checkpoints").iterdir())
    assert [row["iteration"] for row in metric_rows(path)] == [0, 1, 2]
