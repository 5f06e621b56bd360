"""The types that a plugin's author meets are consistent (the settings are in pyproject.toml)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, run


@pytest.mark.slow
@pytest.mark.smoke
def test_the_types_are_consistent(tmp_path: Path) -> None:
    done = run([Path(sys.executable).parent / "mypy", "--cache-dir", str(tmp_path)], cwd=ROOT)
    assert done.returncode == 0, done.stdout
