"""Advantages against the estimators of verl, on responses to prompts and on episodes of several turns.

A preset ``reference`` is compared turn by turn: that is what verl-agent gives to these functions. The defaults are compared trajectory by trajectory.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.parity.layouts import MULTI, SINGLE, SINGLETON, algorithm, by_trajectory, by_turn, random_turns
from threespo_algorithms.group_statistics import invalid, trajectory_sum
from threespo_bench.turns import TurnBatch, object_column

SEEDS = range(4)
SHAPES = [*SINGLE, *MULTI]
GROUP_ESTIMATORS = {
    "grpo": "grpo_outcome", "rloo": "rloo_outcome", "opo": "opo_outcome", "reinforce_pp_baseline": "reinforce_plus_plus_baseline_outcome",
}  # fmt: skip


def charged(turns: TurnBatch) -> np.ndarray:
    """(N,) the return of the episode, less the penalty of the turn's own action."""
    return turns.episode_return() - np.where(invalid(turns), 0.1, 0.0)


def of_one_turn(rewards: list[float], groups: str) -> TurnBatch:
    """Trajectories of one turn of two tokens."""
    number = len(rewards)
    return TurnBatch(
        group_id=object_column(list(groups)), traj_id=object_column([f"t{i}" for i in range(number)]), step_id=np.zeros(number, int),
        step_reward=np.array(rewards), response_mask=np.arange(6) < np.full((number, 1), 2),
    )  # fmt: skip


# ---- baselines of a group


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_reference_presets_turn_by_turn(core_algos, agree, name, seed):
    theirs = getattr(core_algos, f"compute_{GROUP_ESTIMATORS[name]}_advantage")
    for shape in [*SHAPES, SINGLETON]:
        for wins in (False, True):
            turns = random_turns(seed, shape, wins)
            rows = by_turn(turns, charged(turns))
            found, _ = theirs(rows.reward, rows.mask, index=rows.index)
            agree(algorithm(name, preset="reference").credit(turns).advantages, rows.back(found, turns), f"{name} {shape} wins={wins}")


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_in_float32_as_verl_is_used(core_algos, agree, name):
    turns = random_turns(0, SINGLE[0])
    rows = by_turn(turns, charged(turns))
    found, _ = getattr(core_algos, f"compute_{GROUP_ESTIMATORS[name]}_advantage")(rows.reward.float(), rows.mask, index=rows.index)
    agree(algorithm(name, preset="reference").credit(turns).advantages, rows.back(found, turns), name)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_defaults_trajectory_by_trajectory(core_algos, agree, name, seed):
    theirs = getattr(core_algos, f"compute_{GROUP_ESTIMATORS[name]}_advantage")
    for shape in SHAPES:
        for wins in (False, True):
            turns = random_turns(seed, shape, wins)
            rows = by_trajectory(turns, turns.step_reward)
            found, _ = theirs(rows.reward, rows.mask, index=rows.index)
            # The penalty of an invalid action comes after.
            expected = np.where(turns.response_mask, rows.back(found, turns) - np.where(invalid(turns), 0.1, 0.0)[:, None], 0.0)
            agree(algorithm(name).credit(turns).advantages, expected, f"{name} {shape} wins={wins}")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_penalties_that_trajectories_are_charged_with(core_algos, agree, name, seed):
    turns = random_turns(seed, [*MULTI[0], *SINGLETON])
    rows = by_trajectory(turns, turns.step_reward - np.where(invalid(turns), 0.1, 0.0))
    found, _ = getattr(core_algos, f"compute_{GROUP_ESTIMATORS[name]}_advantage")(rows.reward, rows.mask, index=rows.index)
    ours = algorithm(name, "penalty_mode=trajectory_sum", "singleton=raw").credit(turns).advantages
    agree(ours, rows.back(found, turns), name)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dr_grpo(core_algos, agree, shape, seed):
    turns = random_turns(seed, shape)
    rows = by_turn(turns, charged(turns))
    found, _ = core_algos.compute_grpo_outcome_advantage(rows.reward, rows.mask, rows.index, norm_adv_by_std_in_grpo=False)
    agree(algorithm("grpo", "normalise_by_std=false", preset="reference").credit(turns).advantages, rows.back(found, turns))
    rows = by_trajectory(turns, turns.step_reward)
    found, _ = core_algos.compute_grpo_outcome_advantage(rows.reward, rows.mask, rows.index, norm_adv_by_std_in_grpo=False)
    agree(algorithm("grpo", "invalid_action_penalty=0", preset="dr_grpo").credit(turns).advantages, rows.back(found, turns))


@pytest.mark.parametrize("seed", SEEDS)
def test_vectorised_forms(core_algos, agree, seed):
    turns = random_turns(seed, [*MULTI[0], [1]])
    rows = by_turn(turns, charged(turns))
    grpo, _ = core_algos.compute_grpo_vectorized_outcome_advantage(rows.reward, rows.mask, rows.index)
    agree(algorithm("grpo", preset="reference").credit(turns).advantages, rows.back(grpo, turns), "grpo_vectorized", tolerance=1e-4)  # always in float32
    rloo, _ = core_algos.compute_rloo_vectorized_outcome_advantage(rows.reward, rows.mask, rows.index)
    # A row that is alone in its group is 0 in this form, and keeps its score in the other.
    agree(algorithm("rloo", "singleton=zero", preset="reference").credit(turns).advantages, rows.back(rloo, turns), "rloo_vectorized")


@pytest.mark.parametrize("by_std", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_pass_at_k(core_algos, agree, seed, by_std):
    for shape in SHAPES:
        for wins in (False, True):  # with ties for the first place, which are worth nothing
            turns = random_turns(seed, shape, wins)
            rows = by_trajectory(turns, turns.step_reward)
            found, _ = core_algos.compute_grpo_passk_outcome_advantage(rows.reward, rows.mask, rows.index, config={"norm_adv_by_std_in_grpo": by_std})
            ours = algorithm("grpo", "pass_at_k=true", "invalid_action_penalty=0", f"normalise_by_std={by_std}").credit(turns)
            agree(ours.advantages, rows.back(found, turns), f"{shape} wins={wins}")


@pytest.mark.parametrize("seed", SEEDS)
def test_gpg_is_dr_grpo_times_the_share_of_scores_that_are_not_zero(core_algos, agree, seed):
    for shape in [*SHAPES, SINGLETON]:
        turns = random_turns(seed, shape, wins=True)
        rows = by_turn(turns, turns.episode_return())
        found, _ = core_algos.compute_gpg_outcome_advantage(rows.reward, rows.mask, rows.index)
        ours = algorithm("grpo", "normalise_by_std=false", "invalid_action_penalty=0", preset="reference").credit(turns).advantages
        factor = len(turns) / max(np.count_nonzero(turns.episode_return()), 1)
        agree(ours * factor, rows.back(found, turns), str(shape))


@pytest.mark.parametrize("seed", SEEDS)
def test_remax(core_algos, agree, seed):
    for shape in SHAPES:
        turns = random_turns(seed, shape)
        rows = by_turn(turns, charged(turns))
        baseline = torch.from_numpy(turns.extras["baseline_return"])
        found, _ = core_algos.compute_remax_outcome_advantage(rows.reward, baseline, rows.mask)
        agree(algorithm("remax").credit(turns).advantages, rows.back(found, turns), str(shape))


# ---- returns of tokens


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_pp(core_algos, agree, seed, gamma):
    for shape in SHAPES:
        turns = random_turns(seed, shape)
        for preset, rows, options in (
            ("reference", by_turn(turns, charged(turns)), []),
            # Tokens between the turns carry the return on and are no time steps.
            (None, by_trajectory(turns, turns.step_reward - np.where(invalid(turns), 0.1, 0.0)), ["penalty_stage=before_norm"]),
        ):
            found, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(rows.reward, rows.mask, config=SimpleNamespace(gamma=gamma))
            ours = algorithm("reinforce_pp", f"gamma={gamma}", *options, preset=preset).credit(turns).advantages
            agree(ours, rows.back(found, turns), f"{shape} {preset}")


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_pp_with_a_kl_penalty_in_the_reward(core_algos, agree, seed):
    turns = random_turns(seed, MULTI[0])
    rows = by_trajectory(turns, turns.step_reward)
    penalty = core_algos.kl_penalty(rows.spread(turns.old_log_probs), rows.spread(turns.ref_log_probs), "kl")
    found, _ = core_algos.compute_reinforce_plus_plus_outcome_advantage(rows.reward - 0.01 * penalty, rows.mask, config=SimpleNamespace(gamma=1.0))
    agree(algorithm("reinforce_pp", "invalid_action_penalty=0", preset="kl_in_reward").credit(turns).advantages, rows.back(found, turns))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.95, 0.9)])
@pytest.mark.parametrize("seed", SEEDS)
def test_generalised_advantages(core_algos, agree, seed, gamma, lam):
    for shape in SHAPES:
        turns = random_turns(seed, shape)
        for name, rows, options in (
            ("ppo_row", by_turn(turns, charged(turns)), ["penalty_stage=before_norm"]),
            ("ppo", by_trajectory(turns, turns.step_reward), ["invalid_action_penalty=0"]),
        ):
            advantage, returns = core_algos.compute_gae_advantage_return(rows.reward, rows.spread(turns.values), rows.mask, gamma, lam)
            ours = algorithm(name, f"gamma={gamma}", f"lam={lam}", *options).credit(turns)
            agree(ours.advantages, rows.back(advantage, turns), f"{name} {shape}")
            agree(ours.returns, rows.back(returns, turns), f"{name} {shape} returns")


# ---- where verl is known to answer otherwise


def test_equal_scores_are_no_advantage(core_algos):
    """In float32 the mean of eight times 9.025 is not 9.025; GRPO divides the difference by a deviation of the same size."""
    turns = of_one_turn([9.025] * 8, "g" * 8)
    rows = by_turn(turns, turns.step_reward)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(rows.reward.float(), rows.mask, rows.index)
    assert theirs.abs().max() == pytest.approx(0.472, abs=0.05)
    for preset in (None, "reference"):
        assert (algorithm("grpo", preset=preset).credit(turns).advantages == 0).all()


def test_equal_scores_of_every_group_are_not_whitened(core_algos):
    """The same in REINFORCE++-baseline, where the whitening makes differences of a millionth large."""
    turns = of_one_turn([9.025] * 8 + [7.0] * 8, "g" * 8 + "h" * 8)
    rows = by_turn(turns, turns.step_reward)
    theirs, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(rows.reward.float(), rows.mask, rows.index)
    assert theirs.abs().max() > 1e-3
    for preset in (None, "reference"):
        assert (algorithm("reinforce_pp_baseline", preset=preset).credit(turns).advantages == 0).all()


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_a_group_of_one(core_algos, name):
    """verl takes 0 as the mean of a group of one, so it keeps its raw score; with us only the option ``singleton=raw`` does."""
    turns = of_one_turn([7.0, 1.0, 3.0], "ghh")
    rows = by_turn(turns, turns.step_reward)
    theirs, _ = getattr(core_algos, f"compute_{GROUP_ESTIMATORS[name]}_advantage")(rows.reward, rows.mask, index=rows.index)
    raw = algorithm(name, "singleton=raw").credit(turns).advantages
    np.testing.assert_allclose(raw[:, 0], theirs[:, 0], atol=1e-5)
    ours = algorithm(name).credit(turns).advantages
    assert raw[0, 0] > 1.0
    # Exactly 0 before the whitening, which REINFORCE++-baseline does over the batch: there the mean of the others is 0 too.
    assert abs(ours[0, 0]) <= 1e-12


def test_pass_at_k_of_a_group_of_one(core_algos):
    """verl refuses it; with us such a trajectory is not learned from."""
    turns = of_one_turn([7.0, 1.0, 3.0], "ghh")
    rows = by_turn(turns, turns.step_reward)
    with pytest.raises(ValueError, match="at least 2 samples"):
        core_algos.compute_grpo_passk_outcome_advantage(rows.reward, rows.mask, rows.index, config={})
    assert algorithm("grpo", "pass_at_k=true").credit(turns).advantages[:, 0] == pytest.approx([0, 0, 2 / np.sqrt(2)], abs=1e-5)


def test_pass_at_k_of_turns(core_algos):
    """Turn by turn, the best two rows are turns of the same winner: verl finds a tie. We compare trajectories."""
    turns = random_turns(0, [[3, 2, 4]], wins=False)
    rows = by_turn(turns, turns.episode_return())
    theirs, _ = core_algos.compute_grpo_passk_outcome_advantage(rows.reward, rows.mask, rows.index, config={})
    assert theirs.abs().max() == 0
    assert algorithm("grpo", "pass_at_k=true", "invalid_action_penalty=0").credit(turns).advantages.max() > 0.1


def test_whitening_a_single_token(core_algos):
    """verl refuses a batch of one token; with us it has no advantage, since there is nothing to compare it with."""
    turns = of_one_turn([7.0], "g")
    turns.response_mask[:, 1:] = False
    rows = by_turn(turns, turns.step_reward)
    with pytest.raises(ValueError, match="sum of the mask is one"):
        core_algos.compute_reinforce_plus_plus_outcome_advantage(rows.reward, rows.mask, config=SimpleNamespace(gamma=1.0))
    assert (algorithm("reinforce_pp").credit(turns).advantages == 0).all()


def test_rows_of_turns_are_not_trajectories(core_algos):
    """Counted turn by turn, a long trajectory weighs more in the mean of its group, and RLOO's other rows include turns of the same trajectory."""
    turns = random_turns(0, MULTI[1])
    per_row = {name: algorithm(name, "invalid_action_penalty=0", preset="reference").credit(turns).advantages for name in ("grpo", "rloo")}
    for name, advantages in per_row.items():
        rows = by_trajectory(turns, turns.step_reward)
        theirs, _ = getattr(core_algos, f"compute_{GROUP_ESTIMATORS[name]}_advantage")(rows.reward, rows.mask, rows.index)
        assert np.abs(advantages - rows.back(theirs, turns)).max() > 0.05


def test_the_charge_of_a_trajectory(core_algos):
    """``trajectory_sum`` takes the penalties of all its turns, which the rows of verl-agent do not."""
    turns = random_turns(1, MULTI[2])
    total = trajectory_sum(np.where(invalid(turns), 0.1, 0.0), turns)
    rows = by_turn(turns, turns.episode_return() - total)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(rows.reward, rows.mask, rows.index)
    ours = algorithm("grpo", "penalty_mode=trajectory_sum", preset="reference").credit(turns).advantages
    np.testing.assert_allclose(ours, rows.back(theirs, turns), atol=1e-5)
