"""How fast rollouts generate: tokens per CPU-second of rollout=hf and rollout=vllm in turn, the use of shared prefixes, what publishing weights costs, and
what is left of a training iteration beside generation and learning.

    python benchmarks/rollout_speed.py [--python VLLM_ENVIRONMENT/bin/python] [--parts generation prefixes publication iteration]
                                       [--batches 1 16 64 256] [--repeat N] [--iterations N] [--model FOLDER]

vLLM works in this process if it is installed here, and as a server if --python names an environment that has it; both are measured if both are there.
CPU time is that of this process and of the server's processes together, so other work on the machine changes it little; wall time is shown beside it.
Requests go the way that those of a run go: through the engine, with a seed and log-probabilities each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.contracts.engine import Engine, Sampling
from threespo_bench.contracts.rollout import OwnSampling, Rollout
from threespo_plugins.embedded.config import EmbeddedConfig
from threespo_plugins.embedded.engine import EmbeddedEngine
from threespo_plugins.embedded.scheduler import BatchScheduler
from threespo_plugins.models.household_tiny import path as household_tiny
from threespo_plugins.vllm_rollout.config import VllmConfig
from threespo_plugins.vllm_rollout.rollout import VllmRollout

PARTS = ("generation", "prefixes", "publication", "iteration")
TOKENS, PREFIX, CHILDREN = 64, 256, 32
EPISODES = ["algorithm.tasks_per_iteration=8", "algorithm.group_size=8"]
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """CPU-seconds and seconds of one measurement, and the tokens that it generated."""

    cpu: float
    wall: float
    tokens: int = 0

    @property
    def rate(self) -> float:
        """Tokens per CPU-second."""
        return self.tokens / self.cpu


class Candidate:
    """An engine with one rollout, and the server's processes that belong to it."""

    def __init__(self, name: str, rollout: Rollout, model: str) -> None:
        self.name, self.engine = name, EmbeddedEngine(EmbeddedConfig(), model, 0, rollout)

    def measure(self, work: Callable[[], Any]) -> Cost:
        """What ``work`` costs; the number of tokens is what it returns."""
        cpu, wall = self._cpu(), time.perf_counter()
        tokens = work()
        return Cost(self._cpu() - cpu, time.perf_counter() - wall, tokens)

    def generate(self, prompts: Sequence[str], seed: int, new_tokens: int = TOKENS) -> int:
        """Generated tokens of a response to each prompt, all asked at once."""

        async def ask() -> int:
            sampling = Sampling(1.0, new_tokens)
            chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
            return sum(
                len(answer.token_ids)
                for answer in await asyncio.gather(*(self.engine.rollout.generate(chat, seed + i, sampling) for i, chat in enumerate(chats)))
            )

        return asyncio.run(ask())

    def _cpu(self) -> float:
        return time.process_time() + server_cpu(self.engine)


def candidates(python: str | None) -> dict[str, list[str]]:
    """The rollouts that can be measured, by name, and what chooses them in a run."""
    found = {"hf": ["rollout=hf"]}
    if find_spec("vllm") is not None:
        found["vllm"] = ["rollout=vllm"]
    if python is not None:
        found["server"] = ["rollout=vllm", f"rollout.python={python}"]
    if len(found) == 1:
        raise SystemExit("vLLM is not installed here: give --python, or use an interpreter that has it (scripts/vllm_env.sh DIR inprocess)")
    return found


def rollout(name: str, python: str | None) -> Rollout:
    """The rollout of a candidate."""
    if name == "hf":
        return Rollout("hf", OwnSampling.Config(), OwnSampling)
    return Rollout("vllm", VllmConfig(python=python if name == "server" else None), VllmRollout)


def prompts(number: int, length: int, seed: int, shared: int = 0) -> list[str]:
    """Texts of ``length`` words, the first ``shared`` of which are the same in all."""
    rng = np.random.default_rng(seed)
    words = np.array(["go", "to", "the", "desk", "shelf", "drawer", "open", "close", "take", "mug", "plate", "lamp", "look", "at", "in", "on", "1", "2", "3"])
    first = rng.choice(words, shared).tolist()
    return [" ".join([*first, *rng.choice(words, length - shared)]) for _ in range(number)]


# ---- requests and publications


def generation(candidates: Sequence[Candidate], batches: Sequence[int], repeat: int) -> None:
    """Tokens per CPU-second of batches of several sizes."""
    print(f"generated tokens per CPU-second (and per second), prompts of 16 words, at most {TOKENS} new tokens, median of {repeat}")
    for batch in batches:
        costs: dict[str, list[Cost]] = defaultdict(list)
        for each in candidates:
            each.generate(prompts(batch, 16, 0), 0)
        for number in range(repeat):  # in turn, so that a busy machine is busy for all
            for each in candidates:
                texts = prompts(batch, 16, number + 1)
                costs[each.name].append(each.measure(lambda each=each, texts=texts, number=number: each.generate(texts, 1000 * number)))
        _line(f"batch {batch}", costs, lambda cost: cost.rate, lambda cost: cost.tokens / cost.wall)


def prefixes(candidates: Sequence[Candidate], repeat: int) -> None:
    """Prompts that begin alike, as those of the children of one state do."""
    print(f"CPU-seconds (and seconds) of {CHILDREN} responses of at most 16 tokens to prompts of {PREFIX + 8} words, median of {repeat}")
    for name, shared in (("no shared prefix", 0), (f"{PREFIX} words shared", PREFIX)):
        costs: dict[str, list[Cost]] = defaultdict(list)
        for number in range(repeat):
            for each in candidates:
                first, *texts = prompts(CHILDREN + 1, PREFIX + 8, 100 + number + shared, shared)
                each.generate([first], 0, 1)  # the state that the children come from was seen before
                costs[each.name].append(each.measure(lambda each=each, texts=texts: each.generate(texts, 1, 16)))
        _line(name, costs, lambda cost: cost.cpu, lambda cost: cost.wall)


def publication(candidates: Sequence[Candidate], repeat: int) -> None:
    """The way of new weights to whoever samples."""
    size = sum(parameter.numel() for parameter in candidates[0].engine._policy.model.parameters())
    print(f"CPU-seconds (and seconds) of a publication of {size:,} weights, median of {repeat}")
    costs: dict[str, list[Cost]] = defaultdict(list)
    for _ in range(repeat):
        for each in candidates:
            costs[each.name].append(each.measure(each.engine.publish))
    _line("publication", costs, lambda cost: cost.cpu, lambda cost: cost.wall, ratio=False)


def _line(name: str, costs: Mapping[str, Sequence[Cost]], value: Callable[[Cost], float], beside: Callable[[Cost], float], ratio: bool = True) -> None:
    middle = {who: (statistics.median(map(value, of)), statistics.median(map(beside, of))) for who, of in costs.items()}
    ratios = [f"{who}/hf {one / middle['hf'][0]:.2f}" for who, (one, _) in middle.items() if ratio and who != "hf"]
    print(f"{name:18s}" + "  ".join([*(f"{who} {one:10.4g} ({two:.4g})" for who, (one, two) in middle.items()), *ratios]), flush=True)


# ---- iterations of a run, each rollout's in a process of its own


class Clock:
    """Divides the CPU time of each iteration of a run: generation, learning, publication, and all the rest."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []
        self._spent: dict[str, float] = defaultdict(float)

    def start(self, run: Any, path: Path) -> None:
        """Measure the calls of the run's engine. A server works for generation whenever it is not given weights."""
        self._engine = run.engine
        learner = run.engine.learner
        learner.update, learner.score = self._timed("learning", learner.update), self._timed("learning", learner.score)
        run.engine.publish = self._timed("publication", run.engine.publish, server=True)
        BatchScheduler._run = self._timed("generation", BatchScheduler._run)  # type: ignore[method-assign]
        self._begin()

    def iteration(self, row: Mapping[str, Any]) -> None:
        own, server, wall = time.process_time() - self._own, server_cpu(self._engine) - self._server, time.perf_counter() - self._wall
        spent = {name: self._spent[name] for name in ("generation", "learning", "publication")}
        spent["generation"] += server - self._spent["server publication"]
        self.rows.append({"total": own + server, "seconds": wall, "turns": row["train/turns"], **spent, "rest": own + server - sum(spent.values())})
        self._begin()

    def evaluation(self, row: Mapping[str, Any]) -> None:
        self._begin()

    def message(self, text: str) -> None:
        print(text, file=sys.stderr)

    def tick(self) -> None: ...
    def stop(self) -> None: ...

    def _begin(self) -> None:
        self._spent.clear()
        self._own, self._server, self._wall = time.process_time(), server_cpu(self._engine), time.perf_counter()

    def _timed(self, name: str, call: Callable[..., Any], server: bool = False) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            own, theirs = time.process_time(), server_cpu(self._engine) if server else 0.0
            try:
                return call(*arguments)
            finally:
                of_server = server_cpu(self._engine) - theirs if server else 0.0
                self._spent[name] += time.process_time() - own + of_server
                self._spent[f"server {name}"] += of_server

        return timed


def train(overrides: Sequence[str], model: str, iterations: int, out: str) -> list[dict[str, float]]:
    """What the iterations of a run of GRPO cost."""
    from threespo_bench import runner
    from threespo_bench.config.compose import compose
    from threespo_bench.host import PluginHost

    host = PluginHost.discover()
    settings = [
        "budget.env_steps=null",
        f"budget.iterations={iterations}",
        "evaluation.episodes=1",
        "tracker=none",
        f"model.path={model}",
        *EPISODES,
        *overrides,
    ]
    clock = Clock()
    outcome = runner.run(compose("grpo", "household", settings, host, seed=0, out=out, experiment="speed"), host, progress=clock)
    if outcome.state != "finished":
        raise SystemExit(f"the run ended: {outcome.error}")
    return clock.rows


def iteration(arms: Mapping[str, Sequence[str]], model: str, iterations: int) -> None:
    """Who spends the CPU time of an iteration; the first one of a run, in which everything is loaded, is not counted."""
    print(f"CPU-seconds of an iteration of grpo on household, 64 episodes, median of {iterations} after the first")
    for name, overrides in arms.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, "--model", model, "--iterations", str(iterations + 1), "--train", folder, *overrides]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"the run with {name} failed:\n{done.stderr[-2000:]}")
        rows = json.loads(done.stdout.splitlines()[-1])[1:]
        middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        outside = statistics.median(1 - (row["generation"] + row["learning"]) / row["total"] for row in rows)
        parts = "  ".join(f"{key} {middle[key]:.3f}" for key in ("generation", "learning", "publication", "rest"))
        print(f"{name:8s} {parts}  outside generation and learning {outside:.1%}  ({middle['turns']:.0f} turns, {middle['seconds']:.1f} s)", flush=True)


def server_cpu(engine: Engine) -> float:
    """CPU-seconds of the processes of an engine's server so far; 0 without one."""
    served = getattr(engine, "_served", None)
    return sum(map(_cpu_seconds, served._server.processes)) if served is not None else 0.0


def _cpu_seconds(process: int) -> float:
    try:
        with open(f"/proc/{process}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="interpreter of an environment with vLLM, for a server")
    parser.add_argument("--model", default=str(household_tiny()), help="a Hugging Face folder; by default household-tiny")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=3, help="iterations of a run that are counted; one more is made")
    parser.add_argument("--train", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.train:
        print(json.dumps(train(given.train[1:], given.model, given.iterations, given.train[0])))
        return
    arms = candidates(given.python)
    opened: list[Candidate] = []
    try:
        if set(given.parts) - {"iteration"}:
            for name in arms:
                opened.append(Candidate(name, rollout(name, given.python), given.model))
        if "generation" in given.parts:
            generation(opened, given.batches, given.repeat)
        if "prefixes" in given.parts:
            prefixes(opened, given.repeat)
        if "publication" in given.parts:
            publication(opened, given.repeat)
    finally:
        for each in opened:
            each.engine.close()
    if "iteration" in given.parts:
        iteration(arms, given.model, given.iterations)


if __name__ == "__main__":
    main()
