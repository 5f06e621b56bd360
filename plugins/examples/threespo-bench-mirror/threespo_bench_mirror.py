"""An example plugin: an environment, an algorithm and a report section in one file, registered by three hooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from threespo_bench.contracts.algorithm import Algorithm, AlgorithmConfig, Credit
from threespo_bench.contracts.entries import AlgorithmEntry, EnvironmentEntry, ReportEntry
from threespo_bench.contracts.environment import Action, Environment, Message, Observation, PromptContext, Step, Task
from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_bench.errors import UsageError
from threespo_bench.hookspecs import hookimpl
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import TurnBatch, codes

WORDS = ("look", "inventory", "help")


@dataclass
class MirrorConfig:
    """Options of the mirror.

    Attributes:
        length: words to repeat in one episode.
        tasks: tasks of each split.
    """

    length: int = 3
    tasks: int = 32

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        for name in ("length", "tasks"):
            if getattr(self, name) < 1:
                raise UsageError(f"env.{name}={getattr(self, name)} is out of range: must be >= 1")


class MirrorEnvironment(Environment):
    """Shows a word; the agent is to say it. Each right word gives 1; the episode succeeds if all were right."""

    Config = MirrorConfig
    anchors = ("obs", "state")
    can_restore = True
    max_turns = 10
    max_new_tokens = 4

    config: MirrorConfig

    def __init__(self, config: MirrorConfig) -> None:
        super().__init__(config)
        self._words: tuple[str, ...] = ()
        self._place, self._right = 0, 0

    def tasks(self, split: str) -> Sequence[Task]:
        """Word sequences, different ones in each split."""
        if split not in ("train", "valid_unseen"):
            raise UsageError(f"mirror has no split {split!r}", fix="use train or valid_unseen")
        rng = np.random.default_rng(["train", "valid_unseen"].index(split))
        texts = ["-".join(rng.choice(WORDS, self.config.length)) for _ in range(self.config.tasks)]
        return [Task(key=f"{split}/{number:04d}/{text}", kind="repeat", split=split, payload=tuple(text.split("-"))) for number, text in enumerate(texts)]

    def spawn(self) -> MirrorEnvironment:
        """Another mirror."""
        return MirrorEnvironment(self.config)

    def reset(self, task: Task, seed: int) -> Observation:
        """Begin with the first word; the seed plays no part."""
        self._words, self._place, self._right = task.payload, 0, 0
        return self._observation()

    def step(self, command: str) -> Step:
        """Compare the command with the word shown, and show the next."""
        if self._place >= len(self._words):
            return Step(self._observation(), 0.0, terminated=True, success=self._right == len(self._words))
        right = command == self._words[self._place]
        self._place, self._right = self._place + 1, self._right + right
        ended = self._place == len(self._words)
        return Step(self._observation(), float(right), terminated=ended, success=ended and self._right == len(self._words))

    def anchor(self, kind: str) -> str:
        """``obs``: the text; ``state``: the place in the sequence and the number of right words."""
        return self._observation().text if kind == "obs" else f"{self._place}:{self._right}"

    def snapshot(self) -> tuple[tuple[str, ...], int, int]:
        """Everything there is."""
        return self._words, self._place, self._right

    def restore(self, snapshot: tuple[tuple[str, ...], int, int]) -> Observation:
        """Back to a snapshot."""
        self._words, self._place, self._right = snapshot
        return self._observation()

    def render(self, context: PromptContext) -> list[Message]:
        """One message: the task and the word."""
        return [{"role": "user", "content": f"say what you see\n{context.observation.text}"}]

    def parse(self, response: str, observation: Observation) -> Action:
        """The whole response is the command."""
        command = " ".join(response.lower().split())
        return Action(command, well_formed=bool(command), admissible=command in observation.admissible, reason="" if command else "empty_response")

    def digest(self) -> str:
        """Nothing but the words and the version of the prompt can change what is measured."""
        return "mirror-1:" + ",".join(WORDS)

    def _observation(self) -> Observation:
        if self._place >= len(self._words):
            return Observation("nothing", WORDS)
        return Observation(self._words[self._place], WORDS)


@dataclass
class BatchMeanConfig(AlgorithmConfig):
    """Options of batch_mean.

    Attributes:
        rollouts: episodes of each task in one iteration.
    """

    rollouts: int = 4

    def validate(self) -> None:
        """Raises UsageError naming the key for a value out of range."""
        super().validate()
        if self.rollouts < 1:
            raise UsageError(f"algorithm.rollouts={self.rollouts} is out of range: must be >= 1")


class BatchMean(Algorithm):
    """The advantage of a turn is the return of its episode less the mean return of all episodes of the batch."""

    Config: ClassVar[type[AlgorithmConfig]] = BatchMeanConfig
    title = "REINFORCE with a batch-mean baseline"
    source = "Williams 1992, https://doi.org/10.1007/BF00992696"
    notes = "An example: shorter than any method worth using. All episodes share one baseline, so hard tasks are punished for being hard."

    def __init__(self, config: BatchMeanConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.rollouts)

    def credit(self, turns: TurnBatch) -> Credit:
        """R(trajectory) - mean of R over trajectories, on every token of the turn."""
        returns = turns.episode_return()
        first = _first_rows(turns)
        baseline = returns[first].mean() if first.any() else 0.0
        advantage = np.where(turns.real, returns - baseline, 0.0)
        return Credit(np.where(turns.response_mask, advantage[:, None], 0.0), diagnostics={"baseline": float(baseline)})


def _first_rows(turns: TurnBatch) -> np.ndarray:
    """(N,) true on one row of every trajectory."""
    index, seen = codes(turns.traj_id), set()
    return np.array([bool(real) and not (code in seen or seen.add(code)) for code, real in zip(index.tolist(), turns.real.tolist(), strict=True)], bool)


class Baselines(ReportSection):
    """How the baseline of ``batch_mean`` moved: its diagnostic ``baseline``, first and last."""

    name: ClassVar[str] = "mirror_baselines"
    title: ClassVar[str] = "Baselines of batch_mean"
    order: ClassVar[int] = 45

    def render(self, data: ReportData) -> Fragment | None:
        """A row per run; nothing where no run has a baseline."""
        if "baseline" not in data.training:
            return None
        rows = data.training[data.training["counted"] & data.training["baseline"].notna()]
        if rows.empty:
            return None
        table = rows.groupby("run", observed=True)["baseline"].agg(["first", "last"]).reset_index()
        lines = [f"* {row['run']}: {row['first']:.3f} at first, {row['last']:.3f} in the end" for row in table.to_dict("records")]
        return Fragment(html=table.to_html(index=False, float_format="%.3f", border=0), markdown="\n".join(lines), tables={"mirror_baselines": table})


@hookimpl
def threespo_algorithms() -> list[AlgorithmEntry]:
    return [AlgorithmEntry("batch_mean", "threespo_bench_mirror:BatchMean", "example: REINFORCE with the mean return of the batch as baseline")]


@hookimpl
def threespo_environments() -> list[EnvironmentEntry]:
    return [EnvironmentEntry("mirror", "threespo_bench_mirror:MirrorEnvironment", "example: say the word you see")]


@hookimpl
def threespo_report_sections() -> list[ReportEntry]:
    return [ReportEntry("mirror_baselines", "threespo_bench_mirror:Baselines", "example: how the baseline of batch_mean moved")]
