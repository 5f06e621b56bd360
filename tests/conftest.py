"""What all tests share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
for _name in ("THREESPO_BENCH_STRICT", "THREESPO_BENCH_REPLACE", "THREESPO_BENCH_DEBUG", "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"):
    os.environ.pop(_name, None)  # what the developer has set must not decide whether a test passes

MakeDistribution = Callable[..., Path]


@pytest.fixture
def make_distribution(tmp_path: Path) -> Iterator[MakeDistribution]:
    """Write an installed distribution (module and metadata) into a folder of its own and return the folder, for sys.path or PYTHONPATH."""

    modules = set()

    def make(name: str, source: str, *, entry: str | None = None, version: str = "1.0", folder: str | None = None, value: str | None = None) -> Path:
        root = tmp_path / (folder or f"site-{name}")
        module = name.replace("-", "_")
        modules.add(module)
        root.mkdir(exist_ok=True)
        (root / f"{module}.py").write_text(source, encoding="utf-8")
        info = root / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[threespo_bench]\n{entry or module} = {value or module}\n", encoding="utf-8")
        return root

    yield make
    for module in modules:
        sys.modules.pop(module, None)
