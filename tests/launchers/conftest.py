"""The toys as an installed plugin, so that processes elsewhere find them, and a comparison of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.experiment.test_experiment import ROOT, only_toys
from threespo_bench.contracts.entries import LauncherEntry
from threespo_bench.discovery import Source
from threespo_bench.host import Contribution

FakeTool = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder that, on the path, makes the toys an installed plugin."""
    folder = tmp_path_factory.mktemp("site")
    metadata = folder / "toy_bench-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-bench\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[threespo_bench]\ntoy_bench = tests.runner.toy_bench\n")
    return str(folder)


@pytest.fixture
def host(site, monkeypatch):
    """A host that other processes can rebuild."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(str(ROOT))
    return only_toys()


@pytest.fixture
def borrow(host, monkeypatch):
    """Let the toys' host know a launcher that is not theirs; the processes that it starts need not know it."""
    original = type(host).find

    def lend(name: str, target: str):
        contribution = Contribution("launchers", LauncherEntry(name, target, ""), Source("toy-bench", "1.0", "toy_bench", "tests.runner.toy_bench"))
        mine = ("launchers", name)
        monkeypatch.setattr(type(host), "find", lambda self, *wanted: contribution if wanted == mine else original(self, *wanted))
        return host

    return lend


@pytest.fixture
def fake_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTool:
    """Put a program of this name, with this text as a shell script, first on the PATH."""
    folder = tmp_path / "fake-bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(name: str, script: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    return make
