"""The case study of 3SPO: which states it follows, what it keeps of their visits, and that a checkpoint keeps it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.algorithms.test_threespo import group_example, no_score, search
from threespo_algorithms import case_study
from threespo_algorithms.threespo import ThreeSPO
from threespo_bench.turns import TurnBatch


def visit(algorithm: ThreeSPO, turns: TurnBatch) -> None:
    """The wave once more, with what is known now."""
    turns.extras.setdefault("command", np.array(["go", "look", "look", "take"], object))
    turns.extras["path"] = np.array([(), (), (), ("s1", "s9")], object)
    algorithm.annotate(turns)
    algorithm.observe(turns, no_score)


def test_score_counts_and_actions_of_the_first_fifth_and_tenth_visit():
    algorithm, turns = group_example()
    for _ in range(11):
        visit(algorithm, turns)
    (state,) = algorithm.case_study()
    assert (state["state"], state["task"], state["observation"], state["count"]) == ("s1", "t", "s1", 11)
    assert [seen["visit"] for seen in state["visits"]] == list(range(1, 11)), "the eleventh is not kept"
    assert [seen["visit"] for seen in state["visits"] if "actions" in seen] == [1, 5, 10]
    first, fifth = state["visits"][0], state["visits"][4]
    assert (first["total"], first["won"], first["samples"], first["clock"]) == (10, 4, 4, 20)
    assert first["score"] == pytest.approx(0.301709, abs=1e-6)
    assert [action["command"] for action in first["actions"]] == ["go", "look", "look", "take"]
    np.testing.assert_allclose([action["reward"] for action in first["actions"]], [0.183940, 0.250527, 0.0, 0.463238], atol=1e-6)
    assert [action["success"] for action in first["actions"]] == [False, False, False, True]
    assert fifth["total"] == 14 and fifth["clock"] == 24, "the outcomes of four waves later"
    json.dumps(algorithm.case_study())


def test_a_state_that_several_trees_expand_is_visited_once_in_a_wave_and_padding_never():
    algorithm, turns = group_example()
    turns.group_id[:] = ["g", "g", "h", "h"]
    turns.padding = np.array([False, True, False, False])
    visit(algorithm, turns)
    visit(algorithm, turns)
    (state,) = algorithm.case_study()
    assert state["count"] == 2 and state["visits"][0]["samples"] == 1


def test_states_of_one_visit_are_not_told_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    algorithm, _, _ = search()
    assert algorithm.case_study() == []
    assert len(algorithm.state_dict()["cases"]["keys"]) == 5
    monkeypatch.setattr(case_study, "MOST_FOLLOWED", 2)
    bounded, _, _ = search()
    assert len(bounded.state_dict()["cases"]["keys"]) == 2


def test_the_told_states_go_from_the_one_that_changed_most_to_the_one_that_changed_least():
    study = case_study.CaseStudy()
    for place, (count, last) in enumerate([(10, 0.9), (10, 0.2), (10, 0.7), (10, 0.5), (10, 0.6), (10, 0.3), (10, 0.8), (9, 0.0), (1, 0.0)]):
        visits = [{"visit": 1, "score": 1.0}, {"visit": count, "score": last}]
        study._followed[str(place)] = {"state": str(last), "count": count, "visits": visits[: 2 if count > 1 else 1]}
    assert [state["state"] for state in study.told()] == ["0.2", "0.5", "0.7", "0.9"]
    for place in "2345":
        study._followed[place]["count"] = 9
    assert [state["state"] for state in study.told()] == ["0.2", "0.8", "0.9", "0.0"], "where few had ten visits, others follow"


def test_it_survives_the_checkpoint():
    algorithm, turns = group_example()
    visit(algorithm, turns)
    copy = ThreeSPO(algorithm.config)
    copy.load_state_dict(json.loads(json.dumps(algorithm.state_dict(), default=lambda value: value.tolist())))
    for one in (algorithm, copy):
        visit(one, turns)
    assert copy.case_study() == algorithm.case_study() != []
