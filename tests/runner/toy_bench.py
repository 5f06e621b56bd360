"""A bench that trains in milliseconds: a corridor to walk, a table of logits that learns to, and an algorithm with persistent state.

The module is itself a plugin, so that tests and the processes they start get the same host from it.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from threespo_bench.config.compose import compose
from threespo_bench.config.schema import RunConfig
from threespo_bench.contracts.algorithm import Algorithm, AlgorithmConfig, Credit
from threespo_bench.contracts.engine import Engine, Generation, Learner, RolloutEngine
from threespo_bench.contracts.entries import AlgorithmEntry, EngineEntry, EnvironmentEntry, LauncherEntry, ModelEntry, ReportEntry, RolloutEntry, TrackerEntry
from threespo_bench.contracts.environment import Action, Environment, Observation, Step, Task
from threespo_bench.contracts.tracker import Tracker
from threespo_bench.errors import UsageError
from threespo_bench.hookspecs import hookimpl
from threespo_bench.host import PluginHost
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.turns import group_codes

WORDS = ("", "left", "right", "stay")
STATES = 16


@dataclass
class CorridorConfig:
    """Attributes:
    length: of the corridor.
    fault: what goes wrong: raise, sleep, nan, text or nothing.
    fault_step: at which step of the process.
    """

    length: int = 5
    fault: str = ""
    fault_step: int = 100


class Corridor(Environment):
    """Walk right until the end."""

    Config = CorridorConfig
    anchors = ("obs", "state")
    can_restore = True
    max_turns = 8
    max_new_tokens = 2
    steps: ClassVar[int] = 0

    def tasks(self, split: str) -> list[Task]:
        count = {"train": 7, "valid_unseen": 6, "empty": 0}.get(split)
        if count is None:
            raise UsageError(f"the corridor has no split {split}")
        return [Task(f"{split}-{i}", f"kind{i % 2}", split, payload=2 + i % (self.config.length - 1)) for i in range(count)]

    def spawn(self) -> Corridor:
        return Corridor(self.config)

    def reset(self, task: Task, seed: int) -> Observation:
        self.goal, self.place = task.payload, 0
        return self._observe()

    def step(self, command: str) -> Step:
        reward: Any = self._fault()
        self.place = max(0, self.place + {"left": -1, "right": 1}.get(command, 0))
        won = self.place >= self.goal
        return Step(self._observe(), reward if reward is not None else 10.0 * won, terminated=won, success=won)

    def anchor(self, kind: str) -> str:
        return f"{self.place}"

    def snapshot(self) -> tuple[int, int]:
        return self.goal, self.place

    def restore(self, snapshot: tuple[int, int]) -> Observation:
        self.goal, self.place = snapshot
        return self._observe()

    def render(self, context: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": context.observation.text}]

    def parse(self, response: str, observation: Observation) -> Action:
        return Action(response, response in WORDS[1:], response in observation.admissible, "" if response else "empty")

    def digest(self) -> str:
        return f"corridor-{self.config.length}"

    def _observe(self) -> Observation:
        return Observation(f"place {self.place} goal {self.goal}", WORDS[1:])

    def _fault(self) -> Any:
        Corridor.steps += 1
        if not self.config.fault or Corridor.steps < self.config.fault_step:
            return None
        if self.config.fault == "raise":
            raise ZeroDivisionError("the scorer divides by zero")
        if self.config.fault == "memory":
            raise MemoryError
        if self.config.fault == "sleep":
            time.sleep(60)
        return {"nan": float("nan"), "text": "ten"}.get(self.config.fault)


@dataclass
class TableConfig:
    """Attributes:
    forget_publish: publish without handing the weights over.
    slow_save: seconds that saving takes.
    ballast: bytes of a file in every checkpoint.
    """

    forget_publish: bool = False
    slow_save: float = 0.0
    ballast: int = 0


class _Table:
    """Logits per state, the momentum of their optimiser, and the version of what was published."""

    def __init__(self, seed: int) -> None:
        self.logits = np.random.default_rng(7).normal(0, 0.3, (STATES, len(WORDS)))
        self.momentum = np.zeros_like(self.logits)
        self.version = 0

    def log_probs(self, logits: np.ndarray, state: int) -> np.ndarray:
        row = logits[state]
        return row - row.max() - np.log(np.exp(row - row.max()).sum())


class _TableRollout(RolloutEngine):
    def __init__(self, table: _Table) -> None:
        self.table, self.logits, self.version = table, table.logits.copy(), 0

    def encode(self, messages: Any, response: str | None = None) -> np.ndarray:
        return np.zeros(1, np.int32)

    async def generate(self, messages: Any, seed: int, sampling: Any, prefix: Any = ()) -> Generation:
        words = messages[-1]["content"].split()
        state = (int(words[1]) * 5 + int(words[3])) % STATES
        log_probs = self.table.log_probs(self.logits, state)
        scaled = log_probs / max(sampling.temperature, 1e-3)
        chances = np.exp(scaled - scaled.max())
        token = int(np.random.default_rng(seed).choice(len(WORDS), p=chances / chances.sum()))
        ids = np.array([state], np.int32)
        return Generation(ids, np.array([token], np.int32), np.array([log_probs[token]], np.float32), WORDS[token], self.version, True)


class _TableLearner(Learner):
    def __init__(self, table: _Table, config: TableConfig) -> None:
        self.table, self.config = table, config

    def score(self, turns: Any, policy: str = "actor") -> np.ndarray:
        raise NotImplementedError

    def update(self, turns: Any, credit: Credit, objective: Any, optimization: Any) -> dict[str, float]:
        gradient = np.zeros_like(self.table.logits)
        for i in range(len(turns)):
            state, token = int(turns.prompt_ids[i][0]), int(turns.response_ids[i, 0])
            gradient[state] += credit.advantages[i, 0] * ((np.arange(len(WORDS)) == token) - np.exp(self.table.log_probs(self.table.logits, state)))
        self.table.momentum = 0.9 * self.table.momentum + gradient / len(turns)
        self.table.logits = self.table.logits + 2.0 * self.table.momentum
        return {"optimizer_steps": 1.0, "loss": float(gradient.sum()), "grad_norm_max": float(np.abs(gradient).max())}

    def save(self, folder: Path) -> None:
        np.save(folder / "logits.npy", self.table.logits)
        time.sleep(self.config.slow_save)
        if self.config.ballast:
            (folder / "ballast.bin").write_bytes(os.urandom(self.config.ballast))
        np.save(folder / "momentum.npy", self.table.momentum)
        (folder / "version.json").write_text(json.dumps(self.table.version))

    def load(self, folder: Path) -> None:
        self.table.logits, self.table.momentum = np.load(folder / "logits.npy"), np.load(folder / "momentum.npy")
        self.table.version = json.loads((folder / "version.json").read_text()) - 1

    def export(self, folder: Path) -> None:
        raise NotImplementedError


class TableEngine(Engine):
    """A softmax table over the states of the corridor."""

    Config = TableConfig
    deterministic = True

    def __init__(self, config: TableConfig, model: str, seed: int, rollout: Any = None) -> None:
        super().__init__(config, model, seed, rollout)
        self.table = _Table(seed)
        self.rollout, self.learner = _TableRollout(self.table), _TableLearner(self.table, config)

    def publish(self) -> int:
        self.table.version += 1
        if not self.config.forget_publish:
            self.rollout.logits, self.rollout.version = self.table.logits.copy(), self.table.version
        return self.table.version

    def digest(self) -> str:
        return self.table.logits.tobytes().hex()[:32]


@dataclass
class CountingConfig(AlgorithmConfig):
    """Attributes:
    group_size: rollouts per task.
    odd: emit diagnostics that are not finite.
    bad_state: hand over a state that cannot be saved.
    need: a capability to ask for.
    """

    tasks_per_iteration: int = 3
    group_size: int = 3
    odd: bool = False
    bad_state: bool = False


class Counting(Algorithm):
    """Group-relative credit, scaled by how often a state was seen: the result depends on the persistent state."""

    Config = CountingConfig
    title = "Counting"
    needs = frozenset({"restore"})

    def __init__(self, config: CountingConfig) -> None:
        super().__init__(config)
        self.sampler = GroupedSampler(config.group_size)
        self.counts: dict[str, int] = {}
        self.trace = np.zeros(3)

    def credit(self, turns: Any) -> Credit:
        returns = turns.episode_return()
        groups = group_codes(turns.group_id)
        means = np.bincount(groups, returns) / np.bincount(groups)
        seen = np.array([self.counts.get(f"{task}|{anchor}", 0) for task, anchor in zip(turns.task_key, turns.anchor_obs, strict=True)])
        advantages = (returns - means[groups]) / 10.0 / np.sqrt(1.0 + seen)
        diagnostics = {"odd/nan": float("nan"), "odd/inf": float("inf"), "odd/minus": float("-inf")} if self.config.odd else {}
        return Credit(np.where(turns.response_mask, advantages[:, None], 0.0), diagnostics={"credit/spread": float(returns.std()), **diagnostics})

    def observe(self, turns: Any, score: Any) -> None:
        for task, anchor in zip(turns.task_key, turns.anchor_obs, strict=True):
            self.counts[f"{task}|{anchor}"] = self.counts.get(f"{task}|{anchor}", 0) + 1
        self.trace = 0.5 * self.trace + turns.step_reward[:3]

    def diagnostics(self) -> dict[str, float]:
        odd = {"odd/nan": float("nan"), "odd/inf": float("inf"), "odd/big": 1e300} if self.config.odd else {}
        return {"states/known": len(self.counts), "states/trace": float(self.trace.sum())} | odd

    def state_dict(self) -> dict[str, Any]:
        return {"counts": self.counts, "trace": self.trace, "nested": [{"a": np.arange(2)}]} | ({"bad": {1, 2}} if self.config.bad_state else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.counts, self.trace = dict(state["counts"]), state["trace"]


@dataclass
class NeedyConfig(CountingConfig):
    """The same options."""


class Needy(Counting):
    """Asks for what the table does not have."""

    Config = NeedyConfig
    needs = frozenset({"critic", "restore"})


@dataclass
class ListTrackerConfig:
    """Attributes:
    fail: the calls that raise.
    required: it may not fail to start.
    """

    fail: list[str] = field(default_factory=list)
    required: bool = False


class ListTracker(Tracker):
    """Remembers what it was told, in the runs folder."""

    Config = ListTrackerConfig

    def start(self, experiment: str, run_name: str, params: Any, tags: Any, parent: str | None, resume: str | None) -> str:
        self.run_name = run_name
        self._write("start", experiment=experiment, run=run_name, params=params, tags=tags, parent=parent, resume=resume)
        return resume or f"id-{run_name}"

    def log(self, metrics: dict[str, float], step: int) -> None:
        self._write("log", metrics=metrics, step=step)

    def artifact(self, path: Path) -> None:
        self._write("artifact", name=path.name)

    def finish(self, status: str) -> None:
        self._write("finish", status=status)

    def describe(self) -> str:
        return "look at it"

    def _write(self, call: str, **values: Any) -> None:
        if call in self.config.fail:
            raise ConnectionError(f"no route to the tracker\n({call})")
        with open(self.runs_folder / f"tracker-{self.run_name}.jsonl", "a") as file:
            file.write(json.dumps({"call": call, **values}) + "\n")


def draw(run: Path, out: Path) -> None:
    """Stands for a figure."""
    out.write_bytes(b"curve of " + run.name.encode())


def compare(runs: list[Path], out: Path, baseline: str | None = None, sections: list | None = None, title: str = "", **more: Any) -> Path:
    """Stands for a report."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "index.html").write_text("\n".join(run.name for run in runs))
    return out / "index.html"


def model_folder() -> str:
    """The table is no file."""
    return "table"


_HERE = "tests.runner.toy_bench"


@hookimpl
def threespo_algorithms() -> list[AlgorithmEntry]:
    return [AlgorithmEntry("counting", f"{_HERE}:Counting", "", aliases=("1count",)), AlgorithmEntry("needy", f"{_HERE}:Needy", "")]


@hookimpl
def threespo_environments() -> list[EnvironmentEntry]:
    return [EnvironmentEntry("corridor", f"{_HERE}:Corridor", "")]


@hookimpl
def threespo_engines() -> list[EngineEntry]:
    return [EngineEntry("table", f"{_HERE}:TableEngine", "")]


@hookimpl
def threespo_rollouts() -> list[RolloutEntry]:
    return [RolloutEntry("hf", "threespo_bench.contracts.rollout:OwnSampling", "")]


@hookimpl
def threespo_models() -> list[ModelEntry]:
    return [ModelEntry("nothing", f"{_HERE}:model_folder", "")]


@hookimpl
def threespo_trackers() -> list[TrackerEntry]:
    mlflow = TrackerEntry("mlflow", "threespo_plugins.mlflow_tracker:MlflowTracker", "")
    return [TrackerEntry("list", f"{_HERE}:ListTracker", ""), TrackerEntry("none", "threespo_plugins.no_tracker:NoTracker", ""), mlflow]


@hookimpl
def threespo_launchers() -> list[LauncherEntry]:
    return [LauncherEntry("local", "threespo_plugins.launchers.local:LocalLauncher", "")]


@hookimpl
def threespo_report_sections() -> list[ReportEntry]:
    return [ReportEntry("curve", f"{_HERE}:draw", ""), ReportEntry("comparison", f"{_HERE}:compare", "")]


def host() -> PluginHost:
    """A host of this module and nothing else."""
    import tests.runner.toy_bench as module

    return PluginHost.from_plugins([module], strict=True)


def configuration(out: Path, *overrides: str, seed: int = 0, algorithm: str = "counting", tracker: str = "none") -> RunConfig:
    """A run of ten small iterations."""
    defaults = ["engine=table", "model=nothing", f"tracker={tracker}", "budget.env_steps=null", "budget.iterations=10"]
    defaults += ["evaluation.every_env_steps=150", "evaluation.episodes=6", "checkpoint.every_iterations=3"]
    return compose(algorithm, "corridor", [*defaults, *overrides], host(), seed=seed, out=str(out), experiment="test")
