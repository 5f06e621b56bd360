"""What goes wrong around a comparison costs what it hits and nothing else: the others finish, the report comes, and it says what is missing."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import threespo_plugins
import threespo_reports
from tests.experiment import fault_bench
from tests.runner.conftest import Watcher
from threespo_bench.errors import DataError, PartialFailure
from threespo_bench.experiment import Comparison, execute, plan
from threespo_bench.host import PluginHost
from threespo_bench.rows import RowFile
from threespo_bench.store import read_status
from threespo_reports.comparison import write_report
from threespo_reports.sections import BUILT_IN

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "engine": "table",
    "model": "nothing",
    "tracker": "none",
    "budget.env_steps": None,
    "evaluation.every_env_steps": 150,
    "evaluation.episodes": 6,
    "checkpoint.every_iterations": 2,
}
DRAWN = {"curves", "differences", "aggregate", "profiles", "improvement", "efficiency", "behaviour"}
MB = 1 << 20
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a process in which the toys are an installed plugin."""
    folder = tmp_path_factory.mktemp("site")
    metadata = folder / "fault_bench-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: fault-bench\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[threespo_bench]\nfault_bench = tests.experiment.fault_bench\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path), str(ROOT)]), "OMP_NUM_THREADS": "1"}


def write_experiment(folder: Path, overrides: dict[str, Any], seeds: list[int]) -> Path:
    """Two variants of one algorithm, ``calm`` and ``heavy``; the latter with ``overrides``. Returns the file."""
    variants = [{"name": "counting", "label": "calm"}, {"name": "counting", "label": "heavy", "overrides": {"algorithm.group_size": 4, **overrides}}]
    content = {"name": "test", "algorithms": variants, "environments": ["corridor"], "seeds": seeds, "budget": {"iterations": 6}, "overrides": SETTINGS}
    path = folder / "experiment.yaml"
    path.write_text(yaml.safe_dump({**content, "out": str(folder / "runs"), "jobs": 2}))
    return path


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Starts the program in a process of its own, which does not outlive the test; its workers end with it."""
    started: list[subprocess.Popen[str]] = []

    def program(*arguments: object, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "threespo_bench", *map(str, arguments)]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before)
        started.append(process)
        return process

    yield program
    for process in started:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], code: int) -> str:
    """What the process printed, in all; it must end with ``code``."""
    printed = "\n".join(process.communicate())
    assert process.returncode == code, printed
    assert "Traceback" not in printed
    return printed


def report_of(folder: Path) -> dict[str, Any]:
    """``report.json`` with its runs by name, and a line for each problem; they are all in the Markdown, too."""
    content = json.loads((folder / "report.json").read_text())
    text = (folder / "report.md").read_text()
    for problem in content["problems"]:
        assert f"* **{problem['where']}**" in text, problem
    problems = [f"{problem['where']}: {problem['message']}" for problem in content["problems"]]
    return {"runs": {row["run"]: row for row in content["runs"]}, "problems": problems, "summary": {row["algorithm"]: row for row in content["summary"]}}


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """The first true value of ``condition`` while the process lives."""
    while process.poll() is None:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("\n".join(process.communicate()))


@pytest.mark.smoke
@pytest.mark.slow
def test_a_killed_worker_costs_its_own_run_until_the_next_call(tmp_path: Path, start: Start) -> None:
    file = write_experiment(tmp_path, {"engine.slow_save": 0.5, "checkpoint.every_iterations": 1}, [0])
    run = tmp_path / "runs" / "test" / "heavy-corridor-seed0"
    process = start("compare", file)
    wait_for(lambda: list(run.glob("checkpoints/iteration*")), process)
    measured = RowFile(run / "metrics.jsonl").read()
    os.kill(read_status(run)["pid"], signal.SIGKILL)
    printed = ended(process, PartialFailure.exit_code)
    assert "1 of 2 runs failed, first heavy-corridor-seed0: the run's process was ended by SIGKILL" in " ".join(printed.split())
    report = report_of(tmp_path / "runs" / "test" / "report")
    assert {name: (row["state"], row["counted"]) for name, row in report["runs"].items()} == {
        "calm-corridor-seed0": ("finished", True),
        "heavy-corridor-seed0": ("failed", False),
    }
    assert "heavy-corridor-seed0: not counted: failed (the run's process was ended by SIGKILL)" in report["problems"]
    assert RowFile(run / "metrics.jsonl").read()[: len(measured)] == measured

    printed = ended(start("compare", file), 0)
    assert "heavy-corridor-seed0: goes on from heavy-corridor-seed0" in printed
    report = report_of(tmp_path / "runs" / "test" / "report")
    assert all(row["counted"] for row in report["runs"].values())
    assert report["runs"]["heavy-corridor-seed0"]["iteration"] == 6


@pytest.mark.slow
def test_a_full_disk_stops_the_run_that_meets_it_and_loses_no_row(tmp_path: Path, start: Start) -> None:
    """No process may write a file of more than 3 MB, and the checkpoints of one variant are larger."""
    file = write_experiment(tmp_path, {"engine.ballast": 4 * MB}, [0])
    process = start("compare", file, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MB, 3 * MB)))
    printed = " ".join(ended(process, PartialFailure.exit_code).split())
    assert "1 of 2 runs failed, first heavy-corridor-seed0: cannot write the checkpoint of iteration 2: the disk is full (File too large)" in printed
    assert "make room on the disk" in printed
    run = tmp_path / "runs" / "test" / "heavy-corridor-seed0"
    rows = RowFile(run / "metrics.jsonl").read()
    assert [row["iteration"] for row in rows if row["kind"] == "train"] == [1, 2]
    assert (run / "metrics.jsonl").read_bytes().endswith(b"}\n")
    report = report_of(tmp_path / "runs" / "test" / "report")
    assert report["runs"]["calm-corridor-seed0"]["counted"]
    assert report["runs"]["heavy-corridor-seed0"]["state"] == "failed"
    assert [line for line in report["problems"] if line.startswith("heavy-corridor-seed0: not counted: failed (cannot write the checkpoint")]

    ended(start("compare", file), 0)
    report = report_of(tmp_path / "runs" / "test" / "report")
    assert all(row["counted"] for row in report["runs"].values())
    assert RowFile(run / "metrics.jsonl").read()[: len(rows)] == rows


@pytest.fixture(scope="module")
def host() -> PluginHost:
    """The toys with the built-in report, trackers and launchers."""
    return PluginHost.from_plugins([fault_bench, threespo_plugins, threespo_reports])


def compared(host: PluginHost, out: Path, progress: Callable[[str], Any] = lambda name: Watcher(), **settings: Any) -> tuple[Comparison, list[str]]:
    """A small comparison in this process, and what it said."""
    lines: list[str] = []
    chosen = {**SETTINGS, "budget.iterations": 6, **settings}
    overrides = [f"{key}={'null' if value is None else value}" for key, value in chosen.items()]
    runs = plan(["counting"], ["corridor"], [0, 1, 2], host, overrides=overrides, out=str(out), experiment="test")
    return execute(runs, host, progress=progress, say=lines.append), lines


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison in which all went well, without figures and report, which take most of the time."""
    out = tmp_path_factory.mktemp("whole")
    assert compared(PluginHost.from_plugins([fault_bench, threespo_plugins]), out)[0].error() is None
    return out / "test"


def middle(path: Path) -> int:
    """A place in the middle of a line in the middle of a file."""
    content = path.read_bytes()
    return content.index(b"\n", len(content) // 2) + 20


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: middle(path)])


def garble(path: Path) -> None:
    content, place = path.read_bytes(), middle(path)
    path.write_bytes(content[:place] + b"\xff\xfe\x9c\n\x00\x80" + content[place:])


def zero(path: Path) -> None:
    content, place = path.read_bytes(), middle(path)
    path.write_bytes(content[:place] + b"\0" * 40 + content[place + 40 :])


def double(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, *lines[1:4]]))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def spoil(path: Path) -> None:
    path.write_text("this is { no JSON: [")


REASONS = {
    "incomplete": "not counted: incomplete, its last evaluation is at",
    "nothing": "not counted: no evaluation was recorded",
    "options": "not counted: its config.yaml cannot be read, so nobody can tell with which options it ran",
}


@pytest.mark.parametrize(
    ("file", "damage", "told", "reason"),
    [
        ("metrics.jsonl", cut, "metrics.jsonl: the last line is torn and was skipped", REASONS["incomplete"]),
        ("metrics.jsonl", garble, "metrics.jsonl: 2 damaged lines skipped", ""),
        ("metrics.jsonl", zero, "metrics.jsonl: 1 damaged line skipped", ""),
        ("metrics.jsonl", double, "metrics.jsonl: 3 rows repeat an earlier one exactly and are left out", ""),
        ("metrics.jsonl", empty, "", REASONS["nothing"]),
        ("metrics.jsonl", Path.unlink, "metrics.jsonl is missing", REASONS["nothing"]),
        ("manifest.json", Path.unlink, "manifest.json is missing", ""),
        ("manifest.json", spoil, "manifest.json is damaged", ""),
        ("status.json", spoil, "status.json is damaged", ""),
        ("config.yaml", Path.unlink, "config.yaml is missing", REASONS["options"]),
        ("config.yaml", spoil, "config.yaml is damaged", REASONS["options"]),
    ],
)
def test_damage_to_a_file_is_told_and_hits_its_run_only(whole: Path, tmp_path: Path, file: str, damage: Callable[[Path], None], told: str, reason: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "test")
    hit = "1count-corridor-seed1"
    damage(folder / hit / file)
    write_report([folder], tmp_path / "out", sections=[section() for section in BUILT_IN if section.name not in DRAWN])
    report = report_of(tmp_path / "out")
    lines = [line.removeprefix(f"{hit}: ") for line in report["problems"] if line.startswith(hit)]
    for expected in filter(None, (told, reason)):
        assert [line for line in lines if line.startswith(expected)], report["problems"]
    assert {name: row["counted"] for name, row in report["runs"].items() if name != hit} == dict.fromkeys(set(report["runs"]) - {hit}, True)
    assert report["runs"][hit]["counted"] is not bool(reason)
    assert report["summary"]["counting"]["seeds"] == (2 if reason else 3)
    assert report["summary"]["counting"]["not_counted"] == bool(reason)


def test_deleted_folders_are_missed_by_the_command(whole: Path, tmp_path: Path, start: Start) -> None:
    """All seeds are gone but one, so that nothing but the experiment's record can tell."""
    folder = shutil.copytree(whole, tmp_path / "test")
    runs = sorted(path for path in folder.iterdir() if (path / "config.yaml").is_file())
    for run in runs[1:]:
        shutil.rmtree(run)
    printed = ended(start("report", folder), 0)
    report = report_of(folder / "report")
    for run in runs[1:]:
        assert f"{run.name}: the run directory {run.name} is missing; experiment.json says: finished" in report["problems"]
        assert f"{run.name}: the run directory" in " ".join(printed.split())
    assert report["summary"]["counting"]["seed_list"] == "0"
    shutil.rmtree(runs[0])
    printed = ended(start("report", folder), DataError.exit_code)
    assert "no run found" in printed


@pytest.mark.slow
def test_the_database_of_the_tracker_may_vanish(host: PluginHost, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")

    class Remover(Watcher):
        def iteration(self, row: Any) -> None:
            if row["iteration"] == 3:
                for path in tmp_path.glob("mlflow.db*"):
                    path.unlink()

    comparison, lines = compared(host, tmp_path, lambda name: Remover(), tracker="mlflow")
    assert comparison.error() is None, lines
    report = report_of(tmp_path / "test" / "report")
    assert [row["counted"] for row in report["runs"].values()] == [True] * 3
