"""Labels of published weights."""

from __future__ import annotations

import pytest

from threespo_bench.errors import EngineError
from threespo_plugins.serving.labels import Labels


def test_labels() -> None:
    mine, other = Labels(), Labels()
    assert mine.version([mine.of(7), mine.of(7)]) == 7
    for labels in ([], ["default"], [other.of(7)], [mine.of(6), mine.of(7)], [mine.none]):
        with pytest.raises(EngineError, match="stale weights"):
            mine.version(labels)
