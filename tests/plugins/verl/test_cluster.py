"""Joining a Ray cluster that is not there."""

from __future__ import annotations

import pytest

from threespo_bench.errors import EngineError
from threespo_plugins.verl_engine.config import VerlConfig


def test_there_is_none_to_be_found(rank, monkeypatch):
    """``auto`` looks on this machine."""
    from threespo_plugins.verl_engine import cluster

    def fail(**_):
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(cluster.ray, "init", fail)
    with pytest.raises(EngineError, match="cannot join the Ray cluster auto: Could not find any") as found:
        cluster.connect(VerlConfig(ray_address="auto"))
    assert "ray start" in found.value.fix


@pytest.mark.parametrize(
    ("options", "have", "message"),
    [
        (
            {"ranks": 2, "rollout_ranks": 6, "device": "cuda"},
            {"CPU": 64.0, "GPU": 7.0},
            "engine.ranks=2 on engine.nodes=1 and engine.rollout_ranks=6 need 8 GPUs, but the Ray cluster has 7",
        ),
        ({"rollout_ranks": 1}, {"CPU": 3.0}, "engine.ranks=1 on engine.nodes=1 and engine.rollout_ranks=1 need 4 CPUs, but the Ray cluster has 3"),
        ({"ranks": 2, "nodes": 2}, {"CPU": 7.0}, "engine.ranks=2 on engine.nodes=2 needs 8 CPUs, but the Ray cluster has 7"),
    ],
    ids=["GPUs", "CPUs", "without servers of their own"],
)
def test_a_cluster_that_is_too_small_is_refused_and_left(rank, monkeypatch, options, have, message):
    """Workers and servers count together; what just fits is taken."""
    from threespo_plugins.verl_engine import cluster

    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: have)
    before = cluster._engines
    with pytest.raises(EngineError) as found:
        cluster.connect(VerlConfig(**options))
    assert str(found.value) == message and "engine.rollout_ranks" in found.value.fix
    assert cluster._engines == before
    last = max(have, key=lambda kind: kind == "GPU")
    monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: have | {last: have[last] + 1})
    cluster.connect(VerlConfig(**options))
    cluster.disconnect()
