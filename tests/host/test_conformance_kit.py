"""The kit for plugin authors accepts the built-in plugins and catches each breach of a contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from threespo_algorithms.gigpo import GiGPO
from threespo_algorithms.grpo import GRPO
from threespo_algorithms.ppo import PPORow
from threespo_algorithms.rloo import RLOO
from threespo_algorithms.threespo import ThreeSPO
from threespo_bench.contracts.algorithm import Credit, Item, Preferences
from threespo_bench.contracts.environment import Action, Message, Observation, PromptContext, Step, Task
from threespo_bench.testing import check_algorithm, check_environment, sample_turns
from threespo_bench.turns import TurnBatch
from threespo_envs.household.environment import HouseholdEnvironment


@pytest.mark.parametrize("algorithm", [GRPO, GiGPO])
def test_the_built_in_algorithms_pass(algorithm: type) -> None:
    check_algorithm(algorithm)


def test_an_algorithm_with_columns_of_its_own_needs_a_batch() -> None:
    with pytest.raises(ValueError, match="pass turns= with them"):
        check_algorithm(ThreeSPO)


def test_the_sample_has_every_kind_of_episode() -> None:
    turns = sample_turns()
    assert turns.success.any()
    assert turns.truncated.any()
    assert (turns.terminated & ~turns.success).any()
    assert not turns.action_valid.all()


class Spoilt(GRPO):
    """GRPO whose credit is spoilt by subclasses."""

    def credit(self, turns: TurnBatch) -> Credit:
        return self.spoil(super().credit(turns), turns)

    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        raise NotImplementedError


class OutsideTheMask(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, advantages=credit.advantages + 1.0)


class NotFinite(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, advantages=np.where(turns.response_mask, np.inf, 0.0))


class WrongShape(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, advantages=credit.advantages[:, 0])


class Random(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, advantages=np.where(turns.response_mask, np.random.default_rng().normal(size=turns.response_mask.shape), 0.0))


class ChangesTheBatch(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        turns.step_reward[0] += 1e-3
        return credit


class ReadsMaskedValues(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        tail = np.nan_to_num(turns.old_log_probs, nan=5.0)[~turns.response_mask].sum()
        return replace(credit, advantages=np.where(turns.response_mask, credit.advantages + tail, 0.0))


class DependsOnOrder(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, advantages=np.where(turns.response_mask, credit.advantages + np.arange(len(turns))[:, None], 0.0))


class CountsPadding(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, advantages=np.where(turns.response_mask, credit.advantages + turns.step_reward.sum(), 0.0))


class CountsPlaces(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, advantages=np.where(turns.response_mask, credit.advantages + np.arange(turns.response_mask.shape[1]), 0.0))


class Overflows(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        with np.errstate(over="ignore"):
            return replace(credit, advantages=np.where(turns.response_mask, np.expm1(turns.episode_return())[:, None], 0.0))


class SelectsMaskedTokens(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, selected_tokens=np.ones(turns.response_mask.shape, bool))


class TargetsWithoutAShape(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, returns=np.zeros(3))


class TargetsThatAreNotFinite(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, action_returns=np.full(len(turns), np.nan))


def item(row: int) -> Item:
    return Item(np.array([row]), np.ones(1))


class HalfAPair(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, preferences=Preferences([item(0)], []))


class PrefersWhatIsNotThere(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, preferences=Preferences([item(0)], [item(len(turns))]))


class PrefersPadding(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, preferences=Preferences([item(0)], [item(len(turns) - 1)]))


class NotANumber(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, diagnostics={"mean": float("nan")})


class SilentAboutColumns(GRPO):
    requires = ("values",)


class ForgetsItsState(GRPO):
    seen = 0

    def observe(self, turns: TurnBatch, score: Any) -> None:
        self.seen += len(turns)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}


class StateThatCannotBeSaved(GRPO):
    def state_dict(self) -> dict[str, Any]:
        return {"seen": {1, 2}}


class Nameless(GRPO):
    title = ""


@pytest.mark.parametrize(
    ("algorithm", "complaint"),
    [
        (OutsideTheMask, "false response mask is not 0"),
        (NotFinite, "not finite"),
        (WrongShape, "shape"),
        (Random, "two calls"),
        (ChangesTheBatch, "changed the batch"),
        (ReadsMaskedValues, "under a false response mask changed"),
        (DependsOnOrder, "order of the rows"),
        (CountsPadding, "padding"),
        (CountsPlaces, "inserted between those of the policy, changed an advantage"),
        (Overflows, r"not finite if rewards are 1e\+09 times as large"),
        (SelectsMaskedTokens, "a token under a false response mask is selected"),
        (TargetsWithoutAShape, r"returns has shape \(3,\)"),
        (TargetsThatAreNotFinite, "a value of action_returns is not finite"),
        (HalfAPair, "1 chosen and 0 rejected items, but are paired"),
        (PrefersWhatIsNotThere, "a row that the batch of"),
        (PrefersPadding, "a padding row is in the preferences"),
        (NotANumber, "diagnostic mean is nan"),
        (SilentAboutColumns, "does without the column values"),
        (ForgetsItsState, "differs after load_state_dict"),
        (StateThatCannotBeSaved, "holds a set"),
        (Nameless, "title is empty"),
    ],
)
def test_a_breach_by_an_algorithm_is_named(algorithm: type, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_algorithm(algorithm)


class NothingIsEqual(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        return replace(credit, advantages=np.where(turns.response_mask & turns.real[:, None], credit.advantages + 1e-9, 0.0))


class PrefersOneOfEquals(Spoilt):
    def spoil(self, credit: Credit, turns: TurnBatch) -> Credit:
        one, other = np.flatnonzero(turns.real)[:2]
        return replace(credit, preferences=Preferences([item(one)], [item(other)]))


@pytest.mark.parametrize(
    ("algorithm", "said", "complaint"),
    [
        (NothingIsEqual, {"relative": True}, "all the same have advantages that are not exactly 0"),
        (PrefersOneOfEquals, {"relative": True}, "one is preferred"),
        (GRPO, {"scale": "scaled"}, "not scaled if all rewards are multiplied by 0.5"),
        (RLOO, {"scale": "unchanged"}, "not unchanged"),
        (PPORow, {"scale": "unchanged"}, "not unchanged"),
    ],
)
def test_what_is_said_about_an_algorithm_must_be_true(algorithm: type, said: dict[str, Any], complaint: str) -> None:
    turns = token_values() if algorithm is PPORow else None
    with pytest.raises(AssertionError, match=complaint):
        check_algorithm(algorithm, turns=turns, **said)


def test_what_is_true_about_an_algorithm_can_be_said() -> None:
    check_algorithm(GRPO, relative=True, scale="unchanged")
    check_algorithm(GiGPO, relative=True, scale="unchanged")
    check_algorithm(RLOO, relative=True, scale="scaled")
    check_algorithm(PPORow, turns=token_values(), scale="unchanged", in_units_of_reward=("values",))
    with pytest.raises(ValueError, match="scale='larger' must be"):
        check_algorithm(GRPO, scale="larger")


def token_values() -> TurnBatch:
    turns = sample_turns()
    return replace(turns, values=np.where(turns.response_mask, np.random.default_rng(0).normal(5, 3, turns.response_mask.shape), 0.0))


def household() -> HouseholdEnvironment:
    return HouseholdEnvironment(HouseholdEnvironment.Config())


def test_the_household_passes() -> None:
    check_environment(household())


class Unsorted(HouseholdEnvironment):
    def tasks(self, split: str) -> Sequence[Task]:
        return list(super().tasks(split))[::-1]


class ForgetsTheAdmissible(HouseholdEnvironment):
    def parse(self, response: str, observation: Observation) -> Action:
        return replace(super().parse(response, observation), admissible=None)


class NoReason(HouseholdEnvironment):
    def parse(self, response: str, observation: Observation) -> Action:
        return replace(super().parse(response, observation), reason="")


class RewardsNothing(HouseholdEnvironment):
    def step(self, command: str) -> Step:
        return replace(super().step(command), reward=float("nan"))


class ToldAnotherStory(HouseholdEnvironment):
    def restore(self, snapshot: Any) -> Observation:
        return replace(super().restore(snapshot), text="nothing")


class OddMessages(HouseholdEnvironment):
    def render(self, context: PromptContext) -> list[Message]:
        return [{"text": "hello"}]


class Moody(HouseholdEnvironment):
    count = 0

    def step(self, command: str) -> Step:
        Moody.count += 1
        step = super().step(command)
        return replace(step, observation=replace(step.observation, text=f"{Moody.count}"))


class ScoresTooHigh(HouseholdEnvironment):
    def step(self, command: str) -> Step:
        return replace(super().step(command), score=1.5)


class RendersItsWorld(HouseholdEnvironment):
    def render(self, context: PromptContext) -> list[Message]:
        return [{"role": "user", "content": "new" if self._live is None else self.anchor("obs")}]


class ParsesByItsWorld(HouseholdEnvironment):
    def parse(self, response: str, observation: Observation) -> Action:
        action = super().parse(response, observation)
        return action if self._live is not None else replace(action, command=action.command + "!")


class ListsNothing(HouseholdEnvironment):
    """It does not list its commands; ``known`` is what it says of one all the same."""

    known: bool | None = False

    def reset(self, task: Task, seed: int) -> Observation:
        return replace(super().reset(task, seed), admissible=())

    def step(self, command: str) -> Step:
        step = super().step(command)
        return replace(step, observation=replace(step.observation, admissible=()), score=0.25)

    def restore(self, snapshot: Any) -> Observation:
        return replace(super().restore(snapshot), admissible=())

    def parse(self, response: str, observation: Observation) -> Action:
        return replace(super().parse(response, observation), admissible=self.known)


class KnowsTooMuch(ListsNothing):
    known = True


def test_a_command_may_be_known_to_be_none_where_none_is_listed() -> None:
    check_environment(ListsNothing(ListsNothing.Config()))


class SharesItsGame(HouseholdEnvironment):
    def spawn(self) -> HouseholdEnvironment:
        return self


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        (Unsorted, "not sorted"),
        (ForgetsTheAdmissible, "says admissible=None"),
        (NoReason, "a reason is given exactly if"),
        (RewardsNothing, "a reward is nan"),
        (ToldAnotherStory, "restore"),
        (OddMessages, "a message has the keys"),
        (Moody, "gave another episode"),
        (SharesItsGame, "changed this one"),
        (ScoresTooHigh, "a score is 1.5"),
        (RendersItsWorld, r"render\(\) depends on the live episode"),
        (ParsesByItsWorld, "depends on the live episode"),
        (KnowsTooMuch, "says admissible=True"),
    ],
)
def test_a_breach_by_an_environment_is_named(environment: type, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_environment(environment(environment.Config()))
