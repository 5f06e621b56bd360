"""Weights on their way to servers in other processes: what arrives is what was sent, in its own precision."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

RECEIVERS = 2


@pytest.fixture
def engines(rank):
    """Two workers that train, of which the first one sends, and two that receive; a bucket holds 64 bytes."""
    from threespo_plugins.verl_engine.transfer import GlooTransfer

    return [GlooTransfer(64, is_master=number == 0) for number in range(2 + RECEIVERS)]


def synchronise(engines, weights):
    """All steps that verl makes, every engine in a thread of its own; returns what each receiver got."""
    from threespo_plugins.verl_engine.transfer import GlooTransfer

    actor, rollout = GlooTransfer.build_topology(2, RECEIVERS, [engine.prepare() for engine in engines])
    settings = [{name: values[number] for name, values in part.items()} for part in (actor, rollout) for number in range(2)]

    async def received(engine):
        return [pair async for pair in engine.receive_weights(1)]

    def work(number):
        engines[number].init_process_group(**settings[number])
        if number < 2:
            asyncio.run(engines[number].send_weights(iter(weights), 1))
            return None
        return asyncio.run(received(engines[number]))

    with ThreadPoolExecutor(len(engines)) as pool:
        answers = list(pool.map(work, range(len(engines)), timeout=60))
    for engine in engines:
        engine.finalize()
    return answers[2:]


def test_everything_arrives_as_it_was(engines):
    import torch

    weights = [
        ("small", torch.arange(6.0).reshape(2, 3)),
        ("larger than a bucket", torch.randn(5, 7)),
        ("a view", torch.arange(12.0).reshape(3, 4).T),
        ("half", torch.randn(3).bfloat16()),
        ("number", torch.tensor(7)),
        ("nothing", torch.empty(0, 4)),
    ]
    for _ in range(2):  # a second time, as after every update
        for answer in synchronise(engines, weights):
            assert [name for name, _ in answer] == [name for name, _ in weights]
            for (_, mine), (_, sent) in zip(answer, weights, strict=True):
                assert mine.dtype == sent.dtype and torch.equal(mine, sent)


def test_the_other_workers_go_through_the_weights_too(engines):
    """Gathering a weight needs all workers that train."""
    import torch

    seen = []

    def weights():
        for name in ("a", "b"):
            seen.append(name)
            yield name, torch.zeros(2)

    from threespo_plugins.verl_engine.transfer import GlooTransfer

    actor, _ = GlooTransfer.build_topology(2, RECEIVERS, [None] * 4)
    assert actor["rank"] == [0, -1]
    engines[1].init_process_group(-1, 3, None)
    asyncio.run(engines[1].send_weights(weights()))
    assert seen == ["a", "b"]
