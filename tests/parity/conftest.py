"""Our estimators and losses against the public functions that others use: verl (its versions of most of them) and TRL (losses on preferences).

Neither is a dependency; without it its tests are skipped. To run them, in an environment without the file of constraints (verl needs an older transformers):

    pip install -e '.[dev,verl,parity]'
    pytest tests/parity -rP

The option prints the largest difference of every comparison. References are given float64, so that a difference is one of formulas and not of rounding; all
agree to 1e-5, which is what their usual float32 could show. Where a reference is known to answer otherwise, a test shows that it does, and why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

TOLERANCE = 1e-5
Agree = Callable[..., None]


@pytest.fixture(scope="session")
def core_algos() -> ModuleType:
    """The advantage estimators and policy losses of verl."""
    _require("verl", "verl")
    from verl.trainer.ppo import core_algos

    return core_algos


@pytest.fixture(scope="session")
def dpo_trainer() -> type:
    """The trainer of TRL whose method computes DPO and its relatives."""
    _require("trl", "parity")
    from trl import DPOTrainer

    return DPOTrainer


@pytest.fixture(scope="session")
def kto_trainer() -> type:
    """The trainer of TRL whose method computes KTO."""
    _require("trl", "parity")
    with warnings.catch_warnings(action="ignore"):  # TRL calls it experimental
        from trl.experimental.kto import KTOTrainer

    return KTOTrainer


@pytest.fixture
def agree() -> Agree:
    """Asserts that our numbers are those of a reference, and prints by how much they differ."""

    def check(ours: Any, theirs: Any, what: str = "", tolerance: float = TOLERANCE) -> None:
        one, other = (np.asarray(value.detach() if isinstance(value, torch.Tensor) else value, float) for value in (ours, theirs))
        assert one.shape == other.shape, f"{what}: {one.shape} and {other.shape}"
        print(f"largest difference {np.abs(one - other).max(initial=0.0):.1e} {what}")
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=what)

    return check


def _require(package: str, extra: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[{extra}]'")
