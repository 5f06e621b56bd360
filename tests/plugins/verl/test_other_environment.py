"""Where verl is in an environment of its own, its tests run there: THREESPO_BENCH_VERL_PYTHON names the interpreter."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from threespo_plugins.verl_engine.merging import PYTHON_VARIABLE

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.without_verl, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.skipif(find_spec("verl") is not None, reason="verl is installed here")
@pytest.mark.skipif(not os.environ.get(PYTHON_VARIABLE), reason=f"{PYTHON_VARIABLE} is not set: scripts/verl_env.sh DIR makes such an environment")
def test_the_tests_without_ray_pass_there():
    command = [os.environ[PYTHON_VARIABLE], "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "tests/plugins/verl"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700, check=False)
    assert answer.returncode == 0, answer.stdout[-4000:]
    passed = re.search(r"(\d+) passed", answer.stdout)
    assert passed is not None and int(passed[1]) > 100, f"most tests were skipped: {answer.stdout[-300:]}"
