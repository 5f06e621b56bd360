"""The way of a third party: the example plugin keeps its contracts, installs, is listed, and runs; installed twice, it is an error (R35)."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.packaging.conftest import MIRROR, FreshEnvironment
from threespo_bench.errors import DataError, PluginError
from threespo_bench.testing import check_algorithm, check_environment


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the plugin."""
    import importlib

    monkeypatch.syspath_prepend(str(MIRROR))
    return importlib.import_module("threespo_bench_mirror")


def test_it_keeps_its_contracts(mirror: ModuleType) -> None:
    check_environment(mirror.MirrorEnvironment(mirror.MirrorConfig()))
    check_algorithm(mirror.BatchMean)


def test_installed_from_a_wheel(wheel: Path, mirror_wheel: Path, fresh_environment: Callable[[], FreshEnvironment]) -> None:
    fresh = fresh_environment()
    fresh.install(wheel, mirror_wheel)
    assert {"threespo_bench_mirror.py"} <= fresh.added()
    listed = json.loads(fresh.command("list", "--json").stdout)
    entry = next(entry for entry in listed["algorithms"] if entry["name"] == "batch_mean")
    assert (entry["distribution"], entry["version"]) == ("threespo-bench-mirror", "0.1.0")
    assert "mirror" in {entry["name"] for entry in listed["environments"]}
    for name, option in (("mirror", "env.length"), ("batch_mean", "algorithm.rollouts")):
        explained = fresh.command("info", name)
        assert explained.returncode == 0, explained.stderr
        assert option in explained.stdout
        assert "threespo-bench-mirror 0.1.0" in explained.stdout
    assert fresh.command("run", "--algo", "batch_maen", "--env", "mirror").returncode == 2

    other = fresh.site.parent / "other"
    zipfile.ZipFile(mirror_wheel).extractall(other)
    (fresh.site / "second.pth").write_text(str(other))
    twice = fresh.command("list")
    assert twice.returncode == PluginError.exit_code
    assert "threespo-bench-mirror is installed 2 times" in twice.stderr


def test_editable(wheel: Path, fresh_environment: Callable[[], FreshEnvironment]) -> None:
    fresh = fresh_environment()
    fresh.install(wheel)
    fresh.install(MIRROR, editable=True)
    assert "mirror" in fresh.command("list").stdout


@pytest.mark.smoke
@pytest.mark.slow
def test_it_runs(wheel: Path, mirror_wheel: Path, fresh_environment: Callable[[], FreshEnvironment], tmp_path: Path) -> None:
    from threespo_plugins.models.household_tiny import path

    try:
        path()
    except DataError:
        pytest.skip("the packaged model has not been made")
    fresh = fresh_environment()
    fresh.install(wheel, mirror_wheel)
    settings = ["budget.env_steps=200", "evaluation.episodes=4", "algorithm.tasks_per_iteration=4", "tracker=none"]
    done = fresh.command("run", "--algo", "batch_mean", "--env", "mirror", "--out", str(tmp_path / "runs"), *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished" in done.stdout
    assert (tmp_path / "runs" / "default" / "batch_mean-mirror-seed0" / "metrics.jsonl").exists()
