"""Losses on preferences: worked numbers and gradients."""

import pytest
import torch

from threespo_bench.contracts.objective import Preference
from threespo_bench.errors import UsageError
from threespo_bench.objectives.preference import kto_losses, kto_reference_point, preference_losses


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


CHOSEN, REJECTED = -10.0 + 11.0, -12.0 + 11.5  # log-probabilities less the reference's: h = 1.5


@pytest.mark.parametrize(("options", "expected"), [({}, 0.620957), ({"label_smoothing": 0.1}, 0.635957), ({"loss": "ipo"}, 12.25), ({"beta": 1000.0}, 0.0)])
def test_worked_numbers_of_a_pair(options, expected):
    found = preference_losses(Preference(**options), tensor(CHOSEN), tensor(REJECTED))
    assert found.losses.tolist() == [pytest.approx(expected, abs=1e-6)]
    assert found.margins.tolist() == [pytest.approx(1.5)]


def test_the_gradient_weight_of_dpo():
    chosen, rejected = tensor(CHOSEN), tensor(REJECTED)
    preference_losses(Preference(), chosen, rejected).losses.sum().backward()
    assert chosen.grad.item() == pytest.approx(-0.1 * 0.462570, abs=1e-7)
    assert rejected.grad.item() == pytest.approx(0.1 * 0.462570, abs=1e-7)


def test_worked_numbers_of_kto():
    found = kto_losses(Preference(loss="kto"), tensor(1.0, -0.5), tensor(0.3, -0.8), torch.tensor(0.2, dtype=torch.float64))
    assert found.losses.tolist() == pytest.approx([0.480011, 0.517493, 0.502500, 0.475021], abs=1e-6)
    assert found.losses.mean().item() == pytest.approx(0.493756, abs=1e-6)
    assert found.margins.tolist() == pytest.approx([0.8, -0.7, -0.1, 1.0])


@pytest.mark.parametrize(("rejected", "z0"), [((0.3, 0.8), 0.4), ((-3.0, -0.8), 0.0)])
def test_the_reference_point_of_kto_is_a_constant_and_never_negative(rejected, z0):
    chosen, rejected = tensor(1.0, -0.5), tensor(*rejected)
    point = kto_reference_point(chosen, rejected)
    assert point.item() == pytest.approx(z0)
    assert not point.requires_grad
    objective = Preference(loss="kto", desirable_weight=2.0, undesirable_weight=0.5)
    found = preference_losses(objective, chosen, rejected)
    assert found.losses[0].item() == pytest.approx(2.0 * (1 - torch.sigmoid(torch.tensor(0.1 * (1.0 - z0))).item()), abs=1e-6)
    found.losses.sum().backward()
    slope = torch.sigmoid(0.1 * (chosen - point)) * torch.sigmoid(-0.1 * (chosen - point))
    torch.testing.assert_close(chosen.grad, -2.0 * 0.1 * slope.detach())


def test_kto_takes_one_side_alone():
    assert preference_losses(Preference(loss="kto"), tensor(1.0), tensor()).losses.shape == (1,)


def test_worked_numbers_of_weighted_turns():
    """DMPO (arXiv:2406.14868) with gamma 0.7: phi(t, n) = gamma^t (1 - gamma^(n - t)) / (1 - gamma^n)."""
    winner, loser = tensor(1.0, 0.5, 0.2), tensor(-0.5, -1.0)
    for weights, margin, loss in (
        ((tensor(1.0, 0.543379, 0.223744), tensor(1.0, 0.411765)), 0.222820, 0.587930),
        ((tensor(1.0, 1.0, 1.0), tensor(1.0, 1.0)), 0.32, 0.545893),
    ):
        found = preference_losses(Preference(), (weights[0] * winner).sum()[None], (weights[1] * loser).sum()[None])
        assert 0.1 * found.margins.item() == pytest.approx(margin, abs=1e-6)
        assert found.losses.item() == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("h", [-1e4, 1e4])
def test_large_margins_stay_finite(h):
    for loss in ("dpo", "ipo", "kto"):
        chosen, rejected = tensor(h), tensor(0.0)
        value = preference_losses(Preference(loss=loss), chosen, rejected).losses.mean()
        value.backward()
        assert torch.isfinite(value)
        assert torch.isfinite(chosen.grad).all()
        assert torch.isfinite(rejected.grad).all()


def test_an_unknown_loss_is_named():
    with pytest.raises(UsageError, match="loss=orpo"):
        preference_losses(Preference(loss="orpo"), tensor(1.0), tensor(0.0))
