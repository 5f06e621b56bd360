"""Fixtures of the report tests: the golden store and its report, made once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for synthetic_runs

from synthetic_runs import golden_store

from threespo_reports.comparison import ReportPaths, write_report


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden store; tests that change it work on a copy."""
    return golden_store(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="session")
def report(store: Path, tmp_path_factory: pytest.TempPathFactory) -> ReportPaths:
    """The report of the golden store."""
    return write_report([store], tmp_path_factory.mktemp("report"))
