"""Our estimators and losses against the public functions that others use: verl (its versions of most of them) and TRL (losses on preferences).

Neither is a dependency; without it its tests are skipped. To run them, in an environment without the file of constraints (verl needs an older transformers):

    pip install -e '.[dev,verl,parity]'
    pytest tests/parity --junitxml=parity.xml

Every comparison is a property ``largest difference`` of its test in that file. References compute in float32, ours in float64: they agree to 1e-5.
Where a reference is known to answer otherwise, a test shows that it does, and why.
"""

from __future__ import annotations

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
    from trl.experimental.kto import KTOTrainer

    return KTOTrainer


@pytest.fixture
def agree(record_property: Callable[[str, object], None]) -> Agree:
    """Asserts that our numbers are those of a reference, and records by how much they differ."""

    def check(ours: Any, theirs: Any, what: str = "") -> None:
        one, other = (np.asarray(value.detach() if isinstance(value, torch.Tensor) else value, float) for value in (ours, theirs))
        assert one.shape == other.shape, f"{what}: {one.shape} and {other.shape}"
        record_property(f"largest difference {what}".strip(), float(np.abs(one - other).max(initial=0.0)))
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, err_msg=what)

    return check


def _require(package: str, extra: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install -e '.[{extra}]'")
