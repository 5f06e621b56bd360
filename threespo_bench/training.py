"""The loop. One for every algorithm, every environment and every engine.

    async for turns in algorithm.collect(context):    # the algorithm's sampler decides when experience is ready
        complete(turns, ...)                          # values and vectors, where the algorithm needs them
        credit = algorithm.credit(turns)              # what each turn is worth
        engine.learner.update(turns, credit, ...)     # optimiser steps
        algorithm.observe(turns, ...)                 # persistent state
        engine.publish()                              # the sampler sees the new policy

Around it: evaluation on fixed held-out tasks, metrics, checkpoints at the end of iterations, and the budget. Methods that learn after
whole trajectories yield once an iteration; 3SPO yields once a wave of expanded states. Nothing else differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from threespo_bench.budget import Budget, Spent
from threespo_bench.completion import VALUE_NEEDS, complete
from threespo_bench.config.schema import RunConfig
from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.contracts.engine import Engine, Sampling
from threespo_bench.contracts.environment import Environment, Task
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.errors import EngineError
from threespo_bench.iteration import IterationMetrics
from threespo_bench.rollout.environment_workers import EnvironmentWorkers, in_step
from threespo_bench.rollout.evaluation import evaluate
from threespo_bench.seeding import Streams
from threespo_bench.tasks import TaskStream
from threespo_bench.turns import TurnBatch

Metrics = dict[str, float]


@dataclass
class TrainingRun:
    """Everything the loop works on. The runner builds it, and restores ``iteration``, the budget and the components on resume.

    Attributes:
        log: called with ("train" | "eval", metrics, seconds by phase) when a row of metrics is complete.
        checkpoint: called at the end of an iteration that shall be resumable.
        should_stop: asked at the end of every iteration; true after the user asked to stop.
        tick: called after every environment step, for the progress display.
        keep_turns: called with (iteration, number in the iteration, turns) if the run records its turns.
        next_evaluation: environment steps at which the next evaluation is due.
        workers: the processes in which episodes live; None for this one.
    """

    config: RunConfig
    algorithm: Algorithm
    environment: Environment
    engine: Engine
    streams: Streams
    budget: Budget
    tasks: TaskStream
    evaluation_tasks: Sequence[Task]
    log: Callable[[str, Metrics, Metrics], None]
    checkpoint: Callable[[], None]
    should_stop: Callable[[], bool] = lambda: False
    tick: Callable[[], None] = lambda: None
    keep_turns: Callable[[int, int, TurnBatch], None] | None = None
    iteration: int = 0
    next_evaluation: int = 0
    workers: EnvironmentWorkers | None = None
    policy_version: int = field(default=0, init=False)

    @property
    def max_turns(self) -> int:
        """The step limit of an episode."""
        return self.config.rollout.options.max_turns or self.environment.max_turns

    @property
    def max_new_tokens(self) -> int:
        """The length limit of a response."""
        return self.config.rollout.options.max_new_tokens or self.environment.max_new_tokens

    def close(self) -> None:
        """End what belongs to the run: the environments' processes, the engine, and what the environment holds."""
        try:
            if self.workers is not None:
                self.workers.close()
        finally:
            self.engine.close()
            self.environment.close()

    def state_dict(self) -> dict[str, Any]:
        """The loop's own state, part of a checkpoint (the algorithm's and the learner's are saved beside it)."""
        return {"iteration": self.iteration, "next_evaluation": self.next_evaluation, "spent": asdict(self.budget.spent), "tasks": self.tasks.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.iteration, self.next_evaluation = int(state["iteration"]), int(state["next_evaluation"])
        self.budget.spent = Spent(**state["spent"])
        self.tasks.load_state_dict(state["tasks"])


async def train(run: TrainingRun) -> bool:
    """Train until the budget is spent. Returns False if it stopped early because the user asked to."""
    run.policy_version = run.engine.rollout.version
    await _evaluate_if_due(run)
    saved_at = run.iteration
    while not run.budget.exhausted():
        if run.should_stop():
            break
        await _iterate(run)
        await _evaluate_if_due(run, last=run.budget.exhausted())
        if run.iteration % run.config.checkpoint.every_iterations == 0:
            run.checkpoint()
            saved_at = run.iteration
    if saved_at != run.iteration:
        run.checkpoint()
    return run.budget.exhausted()


async def _iterate(run: TrainingRun) -> None:
    """One iteration: collect, credit, update, observe, publish, for as many batches as the sampler yields."""
    config = run.algorithm.config
    measured = IterationMetrics()
    context = RolloutContext(
        environment=run.environment,
        engine=in_step(run.workers, run.engine.rollout),
        tasks=run.tasks.take(config.tasks_per_iteration),
        iteration=run.iteration,
        streams=run.streams,
        budget=run.budget,
        sampling=Sampling(temperature=config.temperature, max_new_tokens=run.max_new_tokens),
        max_turns=run.max_turns,
        anchor=config.anchor,
        pool=run.tasks.tasks,
        keep_next_prompt=bool(run.algorithm.needs & VALUE_NEEDS),
        tick=run.tick,
        workers=run.workers,
    )
    waiting = time.perf_counter()
    number = 0
    async for turns in run.algorithm.collect(context):
        measured.seconds["rollout"] += time.perf_counter() - waiting
        started = time.perf_counter()
        _learn(run, turns, measured)
        if run.keep_turns is not None:
            run.keep_turns(run.iteration, number, turns)
        measured.seconds["update"] += time.perf_counter() - started
        waiting = time.perf_counter()
        number += 1
    run.iteration += 1
    if run.algorithm.refreshes_reference(run.iteration):
        run.engine.learner.refresh_reference()
    run.budget.charge(iterations=1)
    run.log("train", _totals(run) | measured.summary() | run.algorithm.diagnostics() | _worker_counts(run), dict(measured.seconds))


def _learn(run: TrainingRun, turns: TurnBatch, measured: IterationMetrics) -> None:
    """Credit, update, observe and publish one batch."""
    if turns.policy_version is not None and (turns.policy_version[turns.real] > run.policy_version).any():
        raise EngineError(f"the rollout engine answered with policy version {turns.policy_version.max()}, but {run.policy_version} is the newest published")
    learner, algorithm, config = run.engine.learner, run.algorithm, run.algorithm.config
    complete(turns, algorithm.needs, learner)
    credit = algorithm.credit(turns)
    metrics = learner.update(turns, credit, config.objective, config.optimization.at(run.budget.fraction()))
    if "critic" in algorithm.needs:
        metrics |= learner.update_critic(turns, credit, config.critic)
    algorithm.observe(turns, learner.score)
    run.policy_version = run.engine.publish()
    if run.engine.rollout.version != run.policy_version:
        raise EngineError(
            f"stale weights: version {run.policy_version} was published, but the rollout engine still generates with version {run.engine.rollout.version}"
        )
    run.budget.charge(updates=int(metrics.get("optimizer_steps", 0)))
    measured.add(turns, credit, metrics)


async def _evaluate_if_due(run: TrainingRun, last: bool = False) -> None:
    """Evaluate at the start, whenever the next mark on the axis of environment steps is passed, and at the end."""
    spent = run.budget.spent.env_steps
    if spent < run.next_evaluation and not last:
        return
    settings = run.config.evaluation
    started = time.perf_counter()
    sampling = Sampling(temperature=settings.temperature, max_new_tokens=run.max_new_tokens)
    metrics = await evaluate(
        run.environment,
        run.engine.rollout,
        run.evaluation_tasks,
        run.streams,
        sampling,
        run.max_turns,
        workers=run.workers,
        verify=run.engine.learner.verify,
    )
    run.next_evaluation = (spent // settings.every_env_steps + 1) * settings.every_env_steps
    run.log("eval", _totals(run) | metrics, {"evaluation": time.perf_counter() - started})


def _worker_counts(run: TrainingRun) -> Metrics:
    """What environment workers have crashed, and which episodes went on elsewhere, since the last row; nothing where there are no workers."""
    return {} if run.workers is None else run.workers.take_counts()


def _totals(run: TrainingRun) -> Metrics:
    return {"iteration": run.iteration, **{name: amount for name, amount in asdict(run.budget.spent).items() if name != "iterations"}}
