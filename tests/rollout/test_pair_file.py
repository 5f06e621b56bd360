"""The sampler ``pair_file``: what it reads, what it leaves out, and what it feeds in which order."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rollout.players import Player, context, household
from threespo_algorithms.dpo_offline import DPOOffline, DPOOfflineConfig
from threespo_bench.completion import complete
from threespo_bench.errors import DataError, UsageError
from threespo_bench.rollout.pair_file import read_pairs
from threespo_bench.testing import sample_turns
from threespo_bench.turns import TurnBatch

CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what now ?"}]
LONG = {
    "task": "lamp",
    "chosen": [{"prompt": CHAT, "response": "go up"}, {"prompt": "a lamp", "response": "take it now"}],
    "rejected": [{"prompt": CHAT, "response": "wait"}],
}


def pair(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {"prompt": f"question {number}", "chosen": f"good answer {number}", "rejected": "bad"} | changes


def write(folder: Path, *lines: Any) -> str:
    """JSONL of the lines; a text stays as it is."""
    path = folder / "pairs.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return str(path)


def offline(path: str, **options: Any) -> DPOOffline:
    return DPOOffline(DPOOfflineConfig(pairs=path, **options))


class Writer(Player):
    """Reads prompts and responses as the lengths of their words."""

    version = 0


def feed(algorithm: DPOOffline, iteration: int = 0, seed: int = 0) -> TurnBatch:
    return fed_and_spent(algorithm, iteration, seed)[0]


def fed_and_spent(algorithm: DPOOffline, iteration: int = 0, seed: int = 0) -> tuple[TurnBatch, Any]:
    run = context(household(), Writer(), [], iteration=iteration, seed=seed)

    async def gather() -> list[TurnBatch]:
        return [turns async for turns in algorithm.collect(run)]

    (turns,) = asyncio.run(gather())
    return turns, run.budget.spent


def test_pairs_of_turns_and_of_trajectories(tmp_path: Path) -> None:
    turns = feed(offline(write(tmp_path, LONG), pairs_per_iteration=1))
    assert turns.extras["preferred"].tolist() == [True, True, False] and turns.extras["pair"].tolist() == [0, 0, 0]
    assert turns.step_id.tolist() == [0, 1, 0] and turns.task_key.tolist() == ["lamp"] * 3
    assert [prompt.tolist() for prompt in turns.prompt_ids] == [[4, 3, 1], [1, 4], [4, 3, 1]]  # the words of the last message
    assert [ids[mask].tolist() for ids, mask in zip(turns.response_ids, turns.response_mask, strict=True)] == [[2, 2], [4, 2, 3], [4]]
    assert turns.old_log_probs is None and turns.policy_version is None
    credit = offline("").credit(turns)
    assert [item.rows.tolist() for item in (*credit.preferences.chosen, *credit.preferences.rejected)] == [[0, 1], [2]]


def test_what_is_fed_is_charged(tmp_path: Path) -> None:
    turns, spent = fed_and_spent(offline(write(tmp_path, LONG, pair()), pairs_per_iteration=2))
    assert (spent.env_steps, spent.tokens, spent.episodes) == (5, 2 + 3 + 1 + 3 + 1, 0)
    assert turns.group_id.tolist() in (["0/0"] * 3 + ["0/1"] * 2, ["0/0"] * 2 + ["0/1"] * 3)


def test_every_epoch_has_every_pair_in_an_order_of_its_own(tmp_path: Path) -> None:
    algorithm = offline(write(tmp_path, *(pair(i, task=str(i)) for i in range(10))), pairs_per_iteration=4)
    seen = [task for iteration in range(5) for task in feed(algorithm, iteration).task_key[::2]]
    assert sorted(seen[:10]) == sorted(seen[10:]) == [str(i) for i in range(10)]
    assert seen[:10] != seen[10:] != [str(i) for i in range(10)]
    again = offline(algorithm.config.pairs, pairs_per_iteration=4)
    assert feed(again, 3).task_key[::2].tolist() == seen[12:16], "a run that goes on needs no memory"
    assert feed(algorithm, 0, seed=1).task_key[::2].tolist() != seen[:4]


def test_an_iteration_may_be_longer_than_the_file(tmp_path: Path) -> None:
    turns = feed(offline(write(tmp_path, pair(1), pair(2)), pairs_per_iteration=5))
    assert len(turns) == 10 and len(set(turns.traj_id)) == 10
    assert len(offline("").credit(turns).preferences.chosen) == 5


# ---- lines that are no pairs


def test_what_is_left_out_is_told_in_one_line(tmp_path: Path) -> None:
    silent = {"chosen": [{"prompt": "q", "response": " "}], "rejected": LONG["rejected"]}
    lines = [pair(), "", pair(rejected=" "), pair(rejected="good answer 0"), pair(score_chosen=1, score_rejected=1), pair(chosen=""), silent]
    algorithm = offline(write(tmp_path, *lines))
    (line,) = algorithm.warnings()
    assert line.endswith("1 pairs are used; left out: 1 whose chosen answer has no better score, 3 with an empty answer, 1 with identical answers")
    assert offline(write(tmp_path, pair(), pair(score_chosen=2, score_rejected=1.5))).warnings() == []


def test_a_turn_without_a_response_is_left_out_of_its_trajectory(tmp_path: Path) -> None:
    line = {"chosen": [{"prompt": "q", "response": ""}, {"prompt": "r s", "response": "yes"}], "rejected": LONG["rejected"]}
    turns = feed(offline(write(tmp_path, line), pairs_per_iteration=1))
    assert turns.step_id.tolist() == [0, 0] and turns.prompt_ids[0].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": ', "line 2: Expecting value"),
        ("[1]", "line 2: not a JSON object"),
        ({"prompt": "q", "chosen": "a"}, "line 2: there is no rejected"),
        ({"chosen": "a", "rejected": "b"}, "line 2: the prompt of chosen is neither a text nor a list of messages"),
        ({"prompt": [{"role": "user"}], "chosen": "a", "rejected": "b"}, "line 2: the prompt of chosen is neither"),
        (pair(chosen=3), "line 2: chosen is neither a text nor a list of turns"),
        (pair(task=3), "line 2: task is not a text"),
        (pair(score_chosen="good", score_rejected=1), "line 2: score_chosen and score_rejected are not numbers"),
        ({"chosen": [{"prompt": "q"}], "rejected": LONG["rejected"]}, "line 2: a turn of chosen has no response that is a text"),
        ("[" * 100_000, "line 2: nested too deep"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        offline(write(tmp_path, pair(), line)).warnings()


@pytest.mark.parametrize(("lines", "message"), [([], "it is empty"), ([pair(rejected="")], "1 with an empty answer")])
def test_nothing_left_is_an_error(tmp_path: Path, lines: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=f"has no pair to learn from: {message}"):
        offline(write(tmp_path, *lines)).warnings()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"pairs=.*nowhere.jsonl cannot be read: No such file") as caught:
        offline(str(tmp_path / "nowhere.jsonl")).warnings()
    assert '"chosen": text' in caught.value.fix
    with pytest.raises(UsageError, match=r"algorithm\.pairs is empty"):
        offline("").warnings()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="neither Parquet nor text"):
        offline(str(tmp_path / "binary")).warnings()


def test_a_run_does_not_go_on_with_another_file(tmp_path: Path) -> None:
    begun = offline(write(tmp_path, pair()))
    begun.warnings()
    resumed = offline(begun.config.pairs)
    resumed.load_state_dict(begun.state_dict())
    resumed.warnings()
    resumed = offline(write(tmp_path, pair(), pair(1)))
    resumed.load_state_dict(begun.state_dict())
    with pytest.raises(DataError, match="not what it was when the run began"):
        resumed.warnings()


# ---- recorded turns


def test_recorded_turns_are_paired_by_the_rules(tmp_path: Path) -> None:
    batch = sample_turns()
    batch.save(tmp_path / "one.parquet")
    algorithm = offline(str(tmp_path / "one.parquet"), pairing="all_mixed", pairs_per_iteration=4)
    expected = algorithm._make_pairs(batch)
    turns = feed(algorithm)
    assert len(expected.chosen) == 4
    assert len(turns) == sum(len(item.rows) for item in (*expected.chosen, *expected.rejected))
    said = {tuple(batch.response_ids[row][batch.response_mask[row]].tolist()) for item in expected.chosen for row in item.rows}
    liked = turns.extras["preferred"]
    found = {tuple(ids[mask].tolist()) for ids, mask in zip(turns.response_ids[liked], turns.response_mask[liked], strict=True)}
    assert said == found
    assert {prompt.tolist() == [0, 1, 2] for prompt in turns.prompt_ids} == {True}
    assert turns.policy_version is None and turns.old_log_probs is None, "they were another policy's"
    (line,) = algorithm.warnings()
    assert line.endswith("4 pairs are used; left out: 2 of recorded turns (groups without a difference)")


def test_a_folder_of_recorded_turns(tmp_path: Path) -> None:
    for seed in (0, 1):
        sample_turns(seed).save(tmp_path / f"{seed}.parquet")  # the same ids in both: each file is a batch of its own
    algorithm = offline(str(tmp_path))
    single = [len(read_pairs(tmp_path / f"{seed}.parquet", algorithm._make_pairs).pairs) for seed in (0, 1)]
    assert len(algorithm.sampler.read().pairs) == sum(single) > max(single)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no Parquet files"):
        offline(str(tmp_path / "empty")).warnings()


@pytest.mark.parametrize(("column", "pairing"), [("prompt_ids", "best_worst"), ("response_ids", "best_worst"), ("success", "all_mixed")])
def test_recorded_turns_must_have_their_tokens(tmp_path: Path, column: str, pairing: str) -> None:
    batch = sample_turns()
    setattr(batch, column, None)
    batch.save(tmp_path / "one.parquet")
    with pytest.raises(DataError, match=f"needs the column {column}"):
        offline(str(tmp_path / "one.parquet"), pairing=pairing).warnings()


# ---- together with the learner


def test_a_fed_batch_is_scored_by_the_policy_and_the_reference(tmp_path: Path) -> None:
    class Learner:
        def score(self, turns: TurnBatch, policy: str = "actor") -> np.ndarray:
            return np.where(turns.response_mask, {"actor": -1.0, "reference": -2.0}[policy], 0.0)

    algorithm = offline(write(tmp_path, pair()), pairs_per_iteration=1)
    turns = feed(algorithm)
    complete(turns, algorithm.needs, Learner())  # type: ignore[arg-type]
    h = 3 - 1  # three tokens of the chosen answer, one of the rejected one
    np.testing.assert_allclose(algorithm.credit(turns).advantages[:, 0], np.array([1, -1]) * 0.1 / (1 + np.exp(0.1 * h)), atol=1e-12)
