"""The sampler ``pair_file``: nothing is played; each iteration takes the next pairs of a file.

Two kinds of files are read. JSONL with one pair a line, of single turns or of trajectories:

    {"task": "optional", "prompt": [messages] or "text", "chosen": "text", "rejected": "text"}
    {"task": "optional", "chosen": [{"prompt": ..., "response": "text"}, ...], "rejected": [...]}

where ``score_chosen`` and ``score_rejected``, if both are there, must differ for the line to be a pair. Or recorded turns as Parquet, a file or
a folder of files as a run with ``save_turns=true`` writes them, which the algorithm makes pairs of; each file is a batch of its own.

What is fed is charged to the budget: a turn is an environment step and its response tokens are generated tokens, though somebody else paid for
them. So the axes of a learning curve say how much experience the policy has seen, whoever made it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.contracts.algorithm import Algorithm, Item, Preferences
from threespo_bench.contracts.engine import RolloutEngine
from threespo_bench.contracts.environment import Message
from threespo_bench.contracts.sampler import RolloutContext, Sampler
from threespo_bench.errors import DataError, UsageError
from threespo_bench.turns import TurnBatch, object_column, pad_tokens

MakePairs = Callable[[TurnBatch], Preferences]
_FORMS = '{"prompt": ..., "chosen": text, "rejected": text}, or with lists of {"prompt": ..., "response": text} as chosen and rejected'
_WORDS = {
    "tie": "whose chosen answer has no better score",
    "empty": "with an empty answer",
    "identical": "with identical answers",
    "unpaired": "of recorded turns (groups without a difference)",
}


@dataclass(frozen=True, slots=True)
class FedTurn:
    """One turn of a pair, as texts or as tokens."""

    prompt: list[Message] | np.ndarray
    response: str | np.ndarray

    def tokens(self, engine: RolloutEngine) -> tuple[np.ndarray, np.ndarray]:
        """(P,) and (T,) int32, prompt and response."""
        if isinstance(self.prompt, np.ndarray):
            return self.prompt, np.asarray(self.response, np.int32)
        return engine.encode(self.prompt), engine.encode(self.prompt, str(self.response))


@dataclass(frozen=True, slots=True)
class FedPair:
    """A pair: the turns of what is chosen and of what is rejected, at least one each."""

    task: str
    chosen: list[FedTurn]
    rejected: list[FedTurn]


@dataclass(frozen=True)
class PairFile:
    """What a file holds: its pairs, how many were left out by reason, and a digest of its content."""

    pairs: list[FedPair]
    left_out: Counter[str]
    digest: str


class PairFileSampler(Sampler):
    """Feeds the pairs of a file, epoch after epoch, each in an order of its own.

    The batch has the turns of all pairs, with the columns ``pair`` (a number in the batch) and ``preferred``; it has no rewards and no
    log-probabilities.

    Args:
        path: JSONL, Parquet or a folder of Parquet files. It is read when it is first needed.
        pairs_per_iteration: pairs in a batch.
        make_pairs: the pairs of a batch of recorded turns.

    Attributes:
        digest: of the file's content; empty until it is known. A file with another one is refused.
    """

    def __init__(self, path: str, pairs_per_iteration: int, make_pairs: MakePairs) -> None:
        self.path, self.pairs_per_iteration, self.digest = path, pairs_per_iteration, ""
        self._make_pairs = make_pairs
        self._file: PairFile | None = None

    async def collect(self, context: RolloutContext, algorithm: Algorithm) -> AsyncIterator[TurnBatch]:
        """One batch. Which pairs it has depends on the number of the iteration and the run's seed only."""
        pairs, count = self.read().pairs, self.pairs_per_iteration
        orders: dict[int, np.ndarray] = {}
        taken = []
        for place in range(context.iteration * count, (context.iteration + 1) * count):
            epoch, at = divmod(place, len(pairs))
            if epoch not in orders:
                orders[epoch] = context.streams.generator("pairs", epoch).permutation(len(pairs))
            taken.append(pairs[orders[epoch][at]])
        turns = _make_batch(taken, context)
        context.budget.charge(env_steps=len(turns), tokens=int(turns.response_mask.sum()))
        context.tick()
        yield turns

    def most_env_steps(self, tasks: int, max_turns: int) -> int:
        """A batch of longest pairs: no episode is played, but the turns of pairs are charged as if they were. Raises as :meth:`read`."""
        return self.pairs_per_iteration * max(len(pair.chosen) + len(pair.rejected) for pair in self.read().pairs)

    def read(self) -> PairFile:
        """The file's content.

        Raises:
            UsageError: no file was named.
            DataError: there is no such file, a line cannot be read, no pair is left, or it is not the file that the run began with.
        """
        if self._file is None:
            if not self.path:
                raise UsageError("algorithm.pairs is empty: there is nothing to learn from", fix=f"set algorithm.pairs=FILE, JSONL with lines {_FORMS}")
            file = read_pairs(Path(self.path).expanduser(), self._make_pairs)
            if self.digest and self.digest != file.digest:
                raise DataError(f"algorithm.pairs={self.path} is not what it was when the run began", fix="put the file back, or start a new run")
            self._file, self.digest = file, file.digest
        return self._file

    def warnings(self) -> list[str]:
        """One line on what was left out, if anything was. Raises as :meth:`read`."""
        file = self.read()
        if not file.left_out:
            return []
        return [f"{self.path}: {len(file.pairs)} pairs are used; left out: {_left_out(file.left_out)}"]


def read_pairs(path: Path, make_pairs: MakePairs) -> PairFile:
    """Read a file of pairs or of recorded turns.

    Raises:
        DataError: it is missing, a line cannot be read, or no pair is left.
    """
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} has no Parquet files", fix="a run with save_turns=true has its recorded turns in the folder turns/")
    pairs: list[FedPair] = []
    left_out: Counter[str] = Counter()
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise DataError(f"algorithm.pairs={path} cannot be read: {error.strerror}", fix=f"it should be JSONL with lines {_FORMS}") from error
        digest.update(data)
        found = _of_turns(file, make_pairs) if data.startswith(b"PAR1") else _of_lines(file, data)
        for pair in found:
            if isinstance(pair, FedPair):
                pairs.append(pair)
            else:
                left_out[pair] += 1
    if not pairs:
        reasons = _left_out(left_out) if left_out else "it is empty"
        raise DataError(f"{path} has no pair to learn from: {reasons}", fix=f"it should be JSONL with lines {_FORMS}")
    return PairFile(pairs, left_out, digest.hexdigest())


def _left_out(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[reason]} {words}" for reason, words in _WORDS.items() if counts[reason])


def _of_lines(path: Path, data: bytes) -> Iterator[FedPair | str]:
    """The pairs of a JSONL file; for a line that is none, the reason."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is neither Parquet nor text in UTF-8 (byte {error.start})") from error
    for number, line in enumerate(text.split("\n"), 1):  # not splitlines: U+2028 may stand inside a JSON text
        if not line.strip():
            continue
        try:
            yield _of_line(json.loads(line))
        except RecursionError as error:
            raise DataError(f"{path}, line {number}: nested too deep") from error
        except ValueError as error:  # json.JSONDecodeError is one
            raise DataError(f"{path}, line {number}: {error}", fix=f"a line should be {_FORMS}") from error


def _of_line(value: Any) -> FedPair | str:
    """The pair, or the reason why there is none. Raises ValueError if the line cannot be read."""
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    task = value.get("task", "")
    if not isinstance(task, str):
        raise ValueError("task is not a text")
    chosen, rejected = (_turns(value, side) for side in ("chosen", "rejected"))
    scores: list[Any] = [value.get(name) for name in ("score_chosen", "score_rejected")]
    if None not in scores:
        if not all(isinstance(score, (int, float)) for score in scores):
            raise ValueError("score_chosen and score_rejected are not numbers")
        if not scores[0] > scores[1]:
            return "tie"
    if not chosen or not rejected:
        return "empty"
    if [turn.response for turn in chosen] == [turn.response for turn in rejected]:
        return "identical"
    return FedPair(task, chosen, rejected)


def _turns(value: dict[str, Any], side: str) -> list[FedTurn]:
    """The turns of one side that have an answer."""
    answer = value.get(side)
    if isinstance(answer, str):
        found = [(value.get("prompt"), answer)]
    elif isinstance(answer, list) and all(isinstance(turn, dict) for turn in answer):
        found = [(turn.get("prompt"), turn.get("response")) for turn in answer]
    else:
        raise ValueError(f"{side} is neither a text nor a list of turns" if side in value else f"there is no {side}")
    turns = []
    for prompt, response in found:
        if not isinstance(response, str):
            raise ValueError(f"a turn of {side} has no response that is a text")
        messages = _messages(prompt, side)
        if response.strip():
            turns.append(FedTurn(messages, response))
    return turns


def _messages(prompt: Any, side: str) -> list[Message]:
    """A chat prompt; a text is what the user says."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    good = isinstance(prompt, list) and prompt and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in prompt)
    if not good or not all(isinstance(m.get("content"), str) for m in prompt):
        raise ValueError(f"the prompt of {side} is neither a text nor a list of messages with role and content")
    return [{"role": message["role"], "content": message["content"]} for message in prompt]


def _of_turns(path: Path, make_pairs: MakePairs) -> Iterator[FedPair | str]:
    """The pairs of recorded turns, and a reason for each group that has none."""
    turns = TurnBatch.load(path)
    turns.require(("prompt_ids", "response_ids"), f"{path}: learning from recorded turns")
    preferences = make_pairs(turns)
    for chosen, rejected in zip(preferences.chosen, preferences.rejected, strict=True):
        task = "" if turns.task_key is None else str(turns.task_key[chosen.rows[0]])
        yield FedPair(task, _recorded(turns, chosen), _recorded(turns, rejected))
    paired = {turns.group_id[item.rows[0]] for item in preferences.chosen}
    for _ in set(turns.group_id[turns.real].tolist()) - paired:
        yield "unpaired"


def _recorded(turns: TurnBatch, item: Item) -> list[FedTurn]:
    assert turns.prompt_ids is not None and turns.response_ids is not None
    return [FedTurn(np.asarray(turns.prompt_ids[row], np.int32), turns.response_ids[row][turns.response_mask[row]]) for row in item.rows.tolist()]


def _make_batch(pairs: Sequence[FedPair], context: RolloutContext) -> TurnBatch:
    """The turns of the pairs, the chosen ones first."""
    rows = [
        (number, pair.task, liked, step, *turn.tokens(context.engine))
        for number, pair in enumerate(pairs)
        for liked in (True, False)
        for step, turn in enumerate(pair.chosen if liked else pair.rejected)
    ]
    number, task, liked, step, prompts, responses = zip(*rows, strict=True)
    lengths = np.array([len(response) for response in responses])
    groups = [f"{context.iteration}/{n}" for n in number]
    return TurnBatch(
        group_id=object_column(groups),
        traj_id=object_column([f"{group}/{'chosen' if one else 'rejected'}" for group, one in zip(groups, liked, strict=True)]),
        step_id=np.array(step),
        step_reward=np.zeros(len(rows)),
        response_mask=np.arange(lengths.max()) < lengths[:, None],
        task_key=object_column(task),
        response_ids=pad_tokens(responses, int(lengths.max()), np.int32),
        prompt_ids=object_column(prompts),
        extras={"pair": np.array(number), "preferred": np.array(liked)},
    )
