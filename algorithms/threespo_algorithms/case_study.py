"""The case study of 3SPO: what became of states that the search came back to, and which actions were tried there."""

from __future__ import annotations

from typing import Any

import numpy as np

from threespo_bench.turns import TurnBatch

ACTIONS_AT = (1, 5, 10)  # the visits of which the actions are kept
COUNTS_AT = frozenset((*range(1, 11), 20, 50, 100, 200, 500, 1000))  # the visits of which score and counts are kept
MOST_FOLLOWED = 400  # states, the first ones that were expanded: a bound of memory and checkpoint
MOST_TOLD = 4  # states in the run folder
LONGEST_TEXT = 400  # characters of a key, an observation or a command


class CaseStudy:
    """Follows the first states that a search expands over their visits.

    A state is visited once in a wave, however many trees expand it there, because all of them meet the same policy and the same counts.
    """

    def __init__(self) -> None:
        self._followed: dict[str, dict[str, Any]] = {}

    def add(self, turns: TurnBatch, keys: list[str], score: np.ndarray, reward: np.ndarray) -> None:
        """Note the states of a wave, before its outcomes are known.

        Args:
            turns: the children of the expanded states. keys: N keys of the states they were sampled in, as the history has them.
            score: (N,) S(s) of those states. reward: (N,) R(s, s') of the children.
        """
        rows = np.flatnonzero(turns.real)
        visited: set[str] = set()
        for row in rows[np.unique(turns.codes("group_id")[rows], return_index=True)[1]]:
            key = keys[row]
            if key in visited or (key not in self._followed and len(self._followed) >= MOST_FOLLOWED):
                continue
            visited.add(key)
            self._visit(turns, key, rows[turns.codes("group_id")[rows] == turns.codes("group_id")[row]], score, reward)

    def _visit(self, turns: TurnBatch, key: str, children: np.ndarray, score: np.ndarray, reward: np.ndarray) -> None:
        first = children[0]
        state = self._followed.get(key)
        if state is None:
            texts = {"state": turns.anchor_obs[first], "task": turns.task_key[first], "observation": turns.extras["observation"][first]}
            state = self._followed[key] = {**{name: str(text)[:LONGEST_TEXT] for name, text in texts.items()}, "count": 0, "visits": []}
        state["count"] += 1
        if state["count"] not in COUNTS_AT:
            return
        extras = turns.extras
        visit = {"visit": state["count"], "clock": int(extras["clock"][first]), "total": float(extras["known_total"][first])}
        visit |= {"won": float(extras["known_won"][first]), "score": float(score[first]), "samples": len(children)}
        if state["count"] in ACTIONS_AT:
            visit["actions"] = [_action(turns, row, reward) for row in children]
        state["visits"].append(visit)

    def told(self) -> list[dict[str, Any]]:
        """States with the most of the visits 1, 5 and 10, evenly from the one whose score changed most to the one where it changed least."""
        ranked = sorted((state for state in self._followed.values() if state["count"] > 1), key=lambda state: (-_reached(state), -_change(state)))
        best = [state for state in ranked if _reached(state) == _reached(ranked[0])]
        if len(best) <= MOST_TOLD:
            return ranked[:MOST_TOLD]
        return [best[round(place * (len(best) - 1) / (MOST_TOLD - 1))] for place in range(MOST_TOLD)]

    def state_dict(self) -> dict[str, Any]:
        """All that is followed, as plain data."""
        return {"keys": list(self._followed), "states": list(self._followed.values())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self._followed = dict(zip(state["keys"], state["states"], strict=True))


def _reached(state: dict[str, Any]) -> int:
    """How many of the visits with actions there were."""
    return sum(state["count"] >= number for number in ACTIONS_AT)


def _change(state: dict[str, Any]) -> float:
    """How far the score moved up to the last visit with actions."""
    scores = [visit["score"] for visit in state["visits"] if visit["visit"] <= ACTIONS_AT[-1]]
    return abs(scores[-1] - scores[0])


def _action(turns: TurnBatch, row: int, reward: np.ndarray) -> dict[str, Any]:
    command = str(turns.extras["command"][row])[:LONGEST_TEXT]
    valid = True if turns.action_valid is None else bool(turns.action_valid[row])
    return {"command": command, "reward": float(reward[row]), "valid": valid, "success": bool(turns.success[row])}
