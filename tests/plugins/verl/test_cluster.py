"""Joining a Ray cluster that is not there."""

from __future__ import annotations

import pytest

from tests.plugins.verl import local_workers
from threespo_bench.errors import EngineError
from threespo_plugins.verl_engine.config import VerlConfig


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_nothing_listens_there(rank, scheme):
    """Ray itself would try for minutes."""
    import ray

    from threespo_plugins.verl_engine import cluster

    address = f"{scheme}127.0.0.1:{local_workers.free_port()}"
    with pytest.raises(EngineError, match=f"cannot join the Ray cluster {address}") as found:
        cluster.connect(VerlConfig(ray_address=address))
    assert "\n" not in str(found.value) and "ray start" in found.value.fix
    assert not ray.is_initialized()
