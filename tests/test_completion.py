"""The columns that the learner adds before credit: exactly those that the needs call for, each in its place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from threespo_bench.completion import VALUE_NEEDS, complete
from threespo_bench.contracts.engine import CAPABILITIES
from threespo_bench.turns import TurnBatch, object_column


class Learner:
    """Answers with numbers that tell what was asked, and writes down the questions."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.prompts: list[list[int]] = []
        self.texts: list[str] = []

    def score(self, turns: TurnBatch, policy: str = "actor") -> np.ndarray:
        self.asked.append(f"score {policy}")
        return np.where(turns.response_mask, -1.0, 0.0)

    def values(self, turns: TurnBatch) -> np.ndarray:
        self.asked.append("values")
        return turns.response_mask * np.arange(1.0, len(turns) + 1)[:, None]

    def prompt_values(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        self.asked.append("prompt_values")
        return self._sums(prompts)

    def value_logits(self, turns: TurnBatch) -> np.ndarray:
        self.asked.append("value_logits")
        return np.stack([np.arange(len(turns)), 10.0 + np.arange(len(turns))], axis=1)

    def prompt_value_logits(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        self.asked.append("prompt_value_logits")
        return -self._sums(prompts)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.asked.append("embed")
        self.texts += texts
        return np.array([[len(text), ord(text[0])] for text in texts], float)

    def embed_prompts(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        self.asked.append("embed_prompts")
        return self._sums(prompts)[:, None]

    def _sums(self, prompts: Sequence[np.ndarray]) -> np.ndarray:
        assert all(prompt.dtype == np.int32 for prompt in prompts)
        self.prompts = [prompt.tolist() for prompt in prompts]
        return np.array([prompt.sum() for prompt in prompts], float)


def batch(kept: bool = True) -> TurnBatch:
    prompts = object_column([np.zeros(0, np.int32), np.array([3, 4], np.int32), np.zeros(0, np.int32)])
    extras = {"observation": object_column(["lamp", "door", "lamp"])} | ({"next_prompt_ids": prompts} if kept else {})
    return TurnBatch(list("ggg"), list("abc"), np.zeros(3), np.zeros(3), np.array([[1, 1], [1, 0], [1, 1]], bool), extras=extras)


def completed(*needs: str, kept: bool = True) -> tuple[TurnBatch, Learner]:
    turns, learner = batch(kept), Learner()
    complete(turns, frozenset(needs), learner)  # type: ignore[arg-type]
    return turns, learner


def test_reference():
    turns, learner = completed("reference")
    assert turns.ref_log_probs.tolist() == [[-1, -1], [-1, 0], [-1, -1]] and learner.asked == ["score reference"]


def test_responses_without_log_probabilities_get_those_of_the_present_policy():
    turns, learner = batch(), Learner()
    turns.response_ids = np.zeros((3, 2), np.int32)
    complete(turns, frozenset(), learner)  # type: ignore[arg-type]
    assert turns.old_log_probs.tolist() == [[-1, -1], [-1, 0], [-1, -1]] and learner.asked == ["score actor"]
    complete(turns, frozenset(), learner)  # type: ignore[arg-type]
    assert learner.asked == ["score actor"], "those that there are stay"


def test_critic():
    turns, learner = completed("critic", "restore")
    assert turns.values.tolist() == [[1, 1], [2, 0], [3, 3]]
    assert turns.extras["next_value"].tolist() == [0, 7, 0]
    assert learner.asked == ["values", "prompt_values"] and learner.prompts == [[], [3, 4], []]


def test_value_tokens():
    turns, learner = completed("value_tokens")
    assert turns.extras["value_logit"].tolist() == [0, 1, 2]
    assert turns.extras["action_value_logit"].tolist() == [10, 11, 12]
    assert turns.extras["next_value_logit"].tolist() == [0, -7, 0]
    assert turns.values is None and learner.asked == ["value_logits", "prompt_value_logits"]


@pytest.mark.parametrize(("need", "column"), [("critic", "next_value"), ("value_tokens", "next_value_logit")])
def test_no_prompt_was_kept(need, column):
    turns, learner = completed(need, kept=False)
    assert turns.extras[column].tolist() == [0, 0, 0] and learner.prompts == [[], [], []]


def test_prompts_that_were_read_from_a_file_are_tuples():
    turns, learner = batch(), Learner()
    turns.extras["next_prompt_ids"] = object_column([(), (3, 4), ()])
    complete(turns, frozenset({"critic"}), learner)  # type: ignore[arg-type]
    assert learner.prompts == [[], [3, 4], []]


def test_embeddings_of_equal_texts_are_computed_once():
    turns, learner = completed("embeddings")
    assert learner.texts == ["door", "lamp"]
    assert [vector.tolist() for vector in turns.extras["embedding"]] == [[4, ord("l")], [4, ord("d")], [4, ord("l")]]


def test_embeddings_of_equal_prompts_are_computed_once():
    turns, learner = batch(), Learner()
    turns.prompt_ids = object_column([np.array([5, 6]), np.array([2]), (5, 6)])
    complete(turns, frozenset({"prompt_embeddings"}), learner)  # type: ignore[arg-type]
    assert learner.asked == ["embed_prompts"] and learner.prompts == [[2], [5, 6]]
    assert [vector.tolist() for vector in turns.extras["prompt_embedding"]] == [[11], [2], [11]]
    assert "embedding" not in turns.extras


def test_columns_survive_a_selection_of_rows():
    turns, _ = completed("critic", "embeddings")
    part = turns.take(np.array([1]))
    assert part.values.tolist() == [[2, 0]] and part.extras["next_value"].tolist() == [7] and part.extras["embedding"][0].tolist() == [4, ord("d")]


@pytest.mark.parametrize("needs", [(), ("restore",), ("prefix", "preference")])
def test_nothing_is_asked_for_other_needs(needs):
    turns, learner = completed(*needs)
    assert learner.asked == [] and turns.values is None and turns.ref_log_probs is None and turns.extras.keys() == {"observation", "next_prompt_ids"}


def test_needs_that_keep_prompts_are_capabilities():
    assert CAPABILITIES.keys() >= VALUE_NEEDS
