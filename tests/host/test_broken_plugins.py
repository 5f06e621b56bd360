"""A broken plugin is named and skipped; everything else goes on (R34)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MakeDistribution
from tests.host.sources import BROKEN, algorithm
from threespo_bench.errors import PluginError, UsageError
from threespo_bench.host import PluginHost


@pytest.fixture
def broken_path(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """All broken distributions at once, on sys.path."""
    folders = [make_distribution(name, source) for name, source in BROKEN.items()]
    for folder in folders:
        monkeypatch.syspath_prepend(str(folder))
    return folders


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_plugin_is_skipped_with_one_line_naming_its_distribution(
    name: str, make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(make_distribution(name, BROKEN[name], version="2.5")))
    host = PluginHost.discover()
    assert {"threespo", "gigpo", "grpo"} <= set(host.algorithms)
    lines = [line for line in host.warnings if name in line]
    assert lines
    assert all(f"{name} 2.5" in line and "\n" not in line for line in lines)
    if name != "wrong-entries":
        assert len(lines) == 1
    with pytest.raises(PluginError, match=name):
        PluginHost.discover(strict=True)


def test_causes_are_named(broken_path: list[Path]) -> None:
    text = "\n".join(PluginHost.discover().warnings)
    causes = ("a_library_that_nobody_has", "no licence file", "SystemExit: go away", "KeyError: 'tables'", "SyntaxError", "registry")
    for cause in (*causes, "'just a name' is not of type AlgorithmEntry", "'3x' is no valid name"):
        assert cause in text


def test_the_good_entries_of_a_plugin_survive_its_bad_ones(broken_path: list[Path]) -> None:
    host = PluginHost.discover()
    assert host.find("algorithms", "ok_one").owner == "wrong-entries"


def test_commands_work_beside_broken_plugins(broken_path: list[Path]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, broken_path))}
    for arguments in (["--help"], ["list"], ["info", "grpo"], ["run", "--algo", "grpo", "--dry-run"]):
        done = subprocess.run([sys.executable, "-m", "threespo_bench", *arguments], capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert {name for name in BROKEN if any(name in line for line in warnings)} == set(BROKEN)
    strict = subprocess.run([sys.executable, "-m", "threespo_bench", "--strict", "list"], capture_output=True, text=True, env=environment, timeout=120)
    assert strict.returncode == PluginError.exit_code
    doctor = subprocess.run([sys.executable, "-m", "threespo_bench", "doctor"], capture_output=True, text=True, env=environment, timeout=120)
    assert doctor.returncode == PluginError.exit_code
    assert "a_library_that_nobody_has" in doctor.stdout
    assert "raise RuntimeError" in doctor.stdout


def test_a_name_of_a_broken_plugin_explains_itself(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import a_library_that_nobody_has\n" + algorithm("vine_two")
    monkeypatch.syspath_prepend(str(make_distribution("bench-vine", source)))
    host = PluginHost.discover()
    with pytest.raises(UsageError, match=r"comes with a plugin that could not be loaded: bench-vine 1.0: .*a_library_that_nobody_has"):
        host.find("algorithms", "vine_two")
    with pytest.raises(UsageError, match="unknown algorithm 'nothing_like_it'") as refused:
        host.find("algorithms", "nothing_like_it")
    assert "bench-vine 1.0" in refused.value.fix


def test_one_hook_that_raises_loses_only_its_own(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    source = algorithm("kept") + "\n@hookimpl\ndef threespo_environments():\n    raise OSError('disk')\n"
    monkeypatch.syspath_prepend(str(make_distribution("half-broken", source)))
    host = PluginHost.discover()
    assert "kept" in host.algorithms
    assert [failure.kind for failure in host.failures] == ["environments"]
    host.find("algorithms", "kept")


def test_an_interrupt_during_import_is_not_swallowed(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(make_distribution("interrupting", "raise KeyboardInterrupt\n")))
    with pytest.raises(KeyboardInterrupt):
        PluginHost.discover()


def test_damaged_metadata_of_others_is_no_concern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "damaged-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_bytes(b"\xff\xfe[threespo_bench\n= = =")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "grpo" in PluginHost.discover().algorithms
