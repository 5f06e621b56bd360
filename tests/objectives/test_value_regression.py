"""Clipped value regression: worked numbers, and which values have a gradient."""

import pytest
import torch

from threespo_bench.objectives.value_regression import value_losses


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_worked_numbers():
    """Inside the range; outside towards the target (clipping decides); outside away from it (the plain loss is larger); at the target."""
    values, old, targets = tensor(0.3, 1.0, -1.0, 0.5), tensor(0.0, 0.0, 0.0, 0.5), tensor(1.0, 1.0, 1.0, 0.5)
    losses, clipped = value_losses(values, old, targets, 0.5)
    torch.testing.assert_close(losses, tensor(0.245, 0.125, 2.0, 0.0))
    assert clipped.tolist() == [False, True, False, False]


def test_without_clipping_it_is_half_the_square():
    losses, clipped = value_losses(tensor(0.3, 1.0, -1.0), tensor(0.0, 0.0, 0.0), tensor(1.0, 1.0, 1.0), None)
    torch.testing.assert_close(losses, tensor(0.245, 0.0, 2.0))
    assert not clipped.any()


@pytest.mark.parametrize(("value", "slope"), [(0.3, -0.7), (0.9, 0.0), (-1.0, -2.0), (0.0, -1.0), (0.5, -0.5)])
def test_gradient(value, slope):
    """v - R inside the range and on its edge, 0 where the value has left it towards its target."""
    values = tensor(value).requires_grad_()
    losses, _ = value_losses(values, tensor(0.0), tensor(1.0), 0.5)
    losses.sum().backward()
    assert values.grad.item() == pytest.approx(slope)
