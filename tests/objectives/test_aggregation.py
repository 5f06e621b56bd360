"""Aggregation of token losses: worked numbers, weights per token, and masks."""

import pytest
import torch

from threespo_bench.contracts.objective import AGGREGATIONS
from threespo_bench.errors import UsageError
from threespo_bench.objectives.aggregation import aggregate, token_weights, weighted_sum

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 99.0, 99.0]], dtype=torch.float64)
MASK = torch.tensor([[True, True, True], [True, False, False]])


@pytest.mark.parametrize(
    ("mode", "expected"), [("token-mean", 2.5), ("seq-mean-token-sum", 5.0), ("seq-mean-token-mean", 3.0), ("seq-mean-token-sum-norm", 10 / 3)]
)
def test_worked_numbers(mode, expected):
    assert aggregate(LOSSES, MASK, mode, scale_tokens=3).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("mode", "short", "long"),
    [("token-mean", 0.1, 0.1), ("seq-mean-token-mean", 0.5, 1 / 18), ("seq-mean-token-sum", 0.5, 0.5), ("seq-mean-token-sum-norm", 1 / 9, 1 / 9)],
)
def test_gradient_weight_of_a_token_in_a_short_and_a_long_response(mode, short, long):
    losses = torch.zeros(2, 9, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 1:] = False
    aggregate(losses, mask, mode, scale_tokens=9).backward()
    assert losses.grad[0, 0].item() == pytest.approx(short)
    assert losses.grad[1].tolist() == pytest.approx([long] * 9)
    assert losses.grad[0, 1:].abs().sum() == 0


TRAJECTORIES = torch.tensor([7, 3, 7])  # the first and the last response are turns of one trajectory; codes may have gaps
THREE = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])


@pytest.mark.parametrize(
    ("mode", "unit", "weights"),
    [
        ("token-mean", "turn", [1 / 6] * 3),
        ("token-mean", "trajectory", [1 / 6] * 3),
        ("token-mean", "token", [1 / 6] * 3),
        ("seq-mean-token-mean", "turn", [1 / 9, 1 / 3, 1 / 6]),
        ("seq-mean-token-mean", "trajectory", [1 / 10, 1 / 2, 1 / 10]),
        ("seq-mean-token-mean", "token", [1 / 6] * 3),
        ("seq-mean-token-sum", "turn", [1 / 3] * 3),
        ("seq-mean-token-sum", "trajectory", [1 / 2] * 3),
        ("seq-mean-token-sum", "token", [1 / 6] * 3),
        ("seq-mean-token-sum-norm", "turn", [1 / 4] * 3),
        ("seq-mean-token-sum-norm", "trajectory", [1 / 4] * 3),
        ("seq-mean-token-sum-norm", "token", [1 / 4] * 3),
    ],
)
def test_the_unit_is_what_counts_as_a_sequence(mode, unit, weights):
    found = token_weights(THREE, mode, 4, unit, TRAJECTORIES)
    assert found.tolist() == [pytest.approx([weight if real else 0.0 for real in row]) for weight, row in zip(weights, THREE.tolist(), strict=True)]


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_trajectories_without_tokens_are_none(mode):
    mask = torch.tensor([[True, True], [False, False], [True, False]])
    with_empty = token_weights(mask, mode, 4, "trajectory", torch.tensor([0, 1, 2]))
    without = token_weights(mask[[0, 2]], mode, 4, "trajectory", torch.tensor([0, 1]))
    assert torch.equal(with_empty[[0, 2]], without)
    assert token_weights(torch.zeros(2, 2, dtype=torch.bool), mode, 4, "trajectory", torch.tensor([0, 1])).sum() == 0


def test_a_unit_without_its_input_and_an_unknown_unit_are_errors():
    with pytest.raises(ValueError, match="trajectories"):
        token_weights(MASK, "seq-mean-token-mean", unit="trajectory")
    with pytest.raises(UsageError, match="unit=episode"):
        token_weights(MASK, "seq-mean-token-mean", unit="episode")


@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("mask", [[[True, True], [False, False]], [[False, False], [False, False]]])
def test_one_mask_feeds_numerator_and_denominator(mode, mask):
    losses = torch.full((2, 2), 3.0, requires_grad=True)
    mask = torch.tensor(mask)
    loss = aggregate(losses, mask, mode, scale_tokens=2)
    loss.backward()
    expected = 0.0 if not mask.any() else {"seq-mean-token-sum": 6.0, "seq-mean-token-sum-norm": 3.0}.get(mode, 3.0)
    assert loss.item() == pytest.approx(expected)
    assert torch.isfinite(losses.grad).all()
    assert losses.grad[~mask].abs().sum() == 0


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_parts_add_up_to_the_whole(mode):
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(7, 5, generator=generator) < 0.6
    losses = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    weights = token_weights(mask, mode, 4)
    parts = sum(weighted_sum(losses[rows], weights[rows], mask[rows]) for rows in ([0], [5, 1, 2], [3, 4, 6]))
    assert parts.item() == pytest.approx(aggregate(losses, mask, mode, 4).item(), abs=1e-12)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30])
def test_values_under_a_false_mask_change_nothing(garbage):
    losses = torch.where(MASK, LOSSES, torch.tensor(garbage, dtype=torch.float64)).requires_grad_()
    loss = aggregate(losses, MASK, "token-mean")
    loss.backward()
    assert loss.item() == 2.5
    assert losses.grad.tolist() == [[0.25, 0.25, 0.25], [0.25, 0, 0]]


def test_a_float_mask_is_refused():
    with pytest.raises(TypeError, match="boolean"):
        token_weights(torch.tensor([[1.0, 0.5]]), "token-mean")


def test_an_unknown_mode_is_named():
    with pytest.raises(UsageError, match="token-men"):
        token_weights(MASK, "token-men")
