"""The sampler ``monte_carlo``: continuations begin in the state they shall value, equal states are valued once, and what it all costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.rollout.players import Drawing, context, household
from tests.rollout.trails import Bits, ReplayedTrail, Trail, binary, bits, iteration
from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.errors import UsageError
from threespo_bench.rollout.episode import PlayedTurn
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.rollout.monte_carlo import Cut, MonteCarloAlgorithm, MonteCarloConfig, MonteCarloSampler, fill_backwards, mean_return
from threespo_bench.turns import TurnBatch


class Asking(MonteCarloAlgorithm):
    """Asks for values at given places; by default at every turn."""

    def __init__(self, sampler: MonteCarloSampler, cuts: Callable[[Sequence[PlayedTurn]], list[Cut]] | None = None) -> None:
        super().__init__(MonteCarloConfig())
        self.sampler = sampler
        self._cuts = cuts or (lambda turns: [(turn, 0) for turn in range(len(turns))])

    def cuts(self, turns: Sequence[PlayedTurn]) -> list[Cut]:
        return self._cuts(turns)

    def credit(self, turns: TurnBatch) -> Credit:
        raise NotImplementedError


def collect(run: RolloutContext, algorithm: MonteCarloAlgorithm) -> TurnBatch:
    async def gather() -> list[TurnBatch]:
        return [turns async for turns in algorithm.collect(run)]

    (batch,) = asyncio.run(gather())
    return batch


@pytest.mark.parametrize("world", [Trail, ReplayedTrail])
def test_a_value_is_the_mean_return_from_the_restored_state(world: type[Trail]) -> None:
    run = iteration(world(**binary(4)), Bits(), number=5)
    turns = collect(run, Asking(MonteCarloSampler(episodes_per_task=1, continuations=3)))
    assert len(turns) == 4
    for row in range(4):
        begun = turns.anchor_obs[row][2:]
        returns = []
        for k in range(3):
            drawn = [bits(run.streams.integer("continuation", f"5/0/0/{row}/0", k, turn))[0] for turn in range(4 - row)]
            returns.append(int(begun + "".join(map(str, drawn)), 2))
        assert turns.values[row] == pytest.approx(np.mean(returns))
    assert turns.extras["next_value"].tolist() == [*turns.values[1:], 0.0]
    assert turns.extras["estimated"].all()


def test_a_value_after_some_tokens_goes_on_from_them() -> None:
    engine = Bits(width=2)
    run = iteration(Trail(**binary(4)), engine)
    sampler = MonteCarloSampler(episodes_per_task=1, continuations=4, token_values=True)
    turns = collect(run, Asking(sampler, lambda turns: [(0, 1), (1, 0), (1, 1)]))
    first, second = (row.tolist() for row in turns.response_ids)
    forks = [(prompt, prefix) for prompt, _, prefix in engine.requests if prefix]
    assert sorted(forks) == sorted([("0:", (first[0],))] * 4 + [("0:" + "".join(map(str, first)), (second[0],))] * 4)
    assert np.isnan(turns.values[0, 0]) and np.isfinite(turns.values[[0, 1, 1], [1, 0, 1]]).all()
    assert turns.extras["estimated"].tolist() == [True, True]
    drawn = [bits(run.streams.integer("continuation", "0/0/0/1/1", k, 0), 2)[1] for k in range(4)]
    known = "".join(map(str, [*first, second[0]]))
    assert turns.values[1, 1] == np.mean([int(f"{known}{last}", 2) for last in drawn])
    later = [bits(run.streams.integer("continuation", "0/0/0/0/1", k, turn), 2)[1 - turn :] for k in range(4) for turn in range(2)]
    spelled = [f"{first[0]}" + "".join(map(str, later[i] + later[i + 1])) for i in range(0, 8, 2)]
    assert turns.values[0, 1] == np.mean([int(text, 2) for text in spelled])


def test_equal_states_are_valued_once_and_only_within_their_task() -> None:
    run = iteration(Trail(**binary(3)), Bits(), tasks=3)
    algorithm = Asking(MonteCarloSampler(episodes_per_task=6, continuations=2))
    turns = collect(run, algorithm)
    value_of = {}
    for row, state in enumerate(turns.anchor_obs):
        assert value_of.setdefault(state, turns.values[row]) == turns.values[row], "the anchor holds task and commands"
    steps = sum(2 * (3 - (len(state) - 2)) for state in value_of)
    assert run.budget.spent.env_steps == len(turns) + steps
    assert run.budget.spent.episodes == 18 + 2 * len(value_of)
    told = algorithm.sampler.diagnostics()
    assert told["monte_carlo/states"] == len(value_of) < len(turns) == 54
    assert told["monte_carlo/shared_share"] == pytest.approx(1 - len(value_of) / 54)
    assert told["monte_carlo/env_steps"] == steps


def test_states_reached_by_other_commands_are_not_equal() -> None:
    def forget(turns: Sequence[PlayedTurn]) -> list[Cut]:
        return [(1, 0)]

    class Closed(Trail):
        """Shows nothing of what was done."""

        def step(self, command: str):
            step = super().step(command)
            return type(step)(type(step.observation)("closed"), step.reward, step.terminated, step.success)

    algorithm = Asking(MonteCarloSampler(episodes_per_task=8, continuations=1), forget)
    turns = collect(iteration(Closed(**binary(2)), Bits()), algorithm)
    assert algorithm.sampler.diagnostics()["monte_carlo/states"] == len(set(turns.extras["command"][turns.step_id == 0])) == 2


def test_the_end_is_no_place_to_continue_from_and_a_step_limit_ends_a_continuation() -> None:
    engine = Bits()
    run = iteration(Trail(pays=lambda trail: 1.0, ends=lambda trail: False), engine, max_turns=3)
    turns = collect(run, Asking(MonteCarloSampler(episodes_per_task=1, continuations=2)))
    assert turns.values.tolist() == [3.0, 2.0, 1.0]  # turns already played count against the limit
    assert turns.extras["next_value"].tolist() == [2.0, 1.0, 0.0]
    assert turns.truncated.tolist() == [False, False, True]
    assert max(len(prompt) - 2 for prompt, _, _ in engine.requests) == 2, "nobody asks in a state after three commands"


def test_a_failure_at_the_step_limit_is_worth_nothing() -> None:
    turns = collect(iteration(Trail(**binary(9)), Bits(), max_turns=2), Asking(MonteCarloSampler(2, 2)))
    assert (turns.values == 0).all() and not turns.success.any()


def test_states_without_continuations_are_filled_backwards() -> None:
    algorithm = Asking(MonteCarloSampler(episodes_per_task=3, continuations=2), lambda turns: [(0, 0), (2, 0)])
    turns = collect(iteration(Trail(pays=lambda trail: float(trail[-1]), ends=lambda trail: len(trail) == 4), Bits()), algorithm)
    at = {step: turns.step_id == step for step in range(4)}
    assert turns.extras["estimated"].tolist() == [True, False, True, False] * 3
    np.testing.assert_array_equal(turns.values[at[3]], turns.step_reward[at[3]])
    np.testing.assert_array_equal(turns.values[at[1]], turns.step_reward[at[1]] + turns.values[at[2]])
    gain = turns.step_reward + turns.extras["next_value"] - turns.values
    assert (gain[~turns.extras["estimated"]] == 0).all()


def test_no_return_is_no_value() -> None:
    assert mean_return([]) == 0.0
    assert mean_return([1.0, 0.0, 0.5]) == 0.5


def test_filling() -> None:
    np.testing.assert_allclose(fill_backwards(np.array([0.0, 0.0, 1.0]), {0: 0.4}), [0.4, 1.0, 1.0])
    np.testing.assert_allclose(fill_backwards(np.array([0.0, 2.0, 1.0]), {}), [3.0, 3.0, 1.0])


def test_all_continuations_wait_for_the_engine_together() -> None:
    engine = Bits()
    algorithm = Asking(MonteCarloSampler(episodes_per_task=2, continuations=5))
    collect(iteration(Trail(**binary(3)), engine, tasks=2), algorithm)
    assert engine.most_waiting == 5 * algorithm.sampler.diagnostics()["monte_carlo/states"]


def test_episodes_are_those_of_the_grouped_sampler_whatever_is_valued() -> None:
    environment = household()

    def play(algorithm: object, sampler: object) -> TurnBatch:
        async def gather() -> TurnBatch:
            run = context(environment, Drawing(), environment.tasks("train")[:2])
            (batch,) = [turns async for turns in sampler.collect(run, algorithm)]
            return batch

        return asyncio.run(gather())

    sampler = MonteCarloSampler(episodes_per_task=2, continuations=2)
    valued, plain, again = play(Asking(sampler), sampler), play(None, GroupedSampler(2)), play(Asking(sampler), sampler)
    for name in ("group_id", "traj_id", "step_id", "response_ids", "anchor_obs", "step_reward"):
        assert np.array_equal(getattr(valued, name), getattr(plain, name)), name
    assert np.array_equal(valued.values, again.values)


def test_a_batch_with_token_values_can_be_saved(tmp_path) -> None:
    turns = collect(iteration(Trail(**binary(4)), Bits(width=2)), Asking(MonteCarloSampler(2, 1, token_values=True), lambda turns: [(0, 1)]))
    turns.save(tmp_path / "turns.parquet")
    loaded = TurnBatch.load(tmp_path / "turns.parquet")
    assert np.array_equal(loaded.values, turns.values, equal_nan=True)


@pytest.mark.parametrize("option", ["episodes_per_task", "continuations"])
def test_bad_options(option: str) -> None:
    with pytest.raises(UsageError, match=f"algorithm.{option}=0"):
        MonteCarloConfig(**{option: 0}).validate()
