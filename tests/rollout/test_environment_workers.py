"""Episodes in other processes: the same experience as in this one, whatever happens to the processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rollout.slow_worlds import (
    ForgetfulWorld,
    Gathering,
    Hopeless,
    Hurrying,
    MeetingWorld,
    OddError,
    QuarrellingWorld,
    ReplayedSlowWorld,
    SlowConfig,
    SlowWorld,
    Unpicklable,
)
from tests.rollout.test_adaptive_tree import Told
from tests.rollout.test_monte_carlo import Asking
from tests.rollout.test_single_stream import Noting
from threespo_bench.budget import Budget, Limits
from threespo_bench.contracts.engine import Sampling
from threespo_bench.contracts.environment import Environment
from threespo_bench.contracts.rollout import RolloutOptions
from threespo_bench.contracts.sampler import RolloutContext
from threespo_bench.errors import DataError, UsageError
from threespo_bench.rollout.environment_workers import EnvironmentWorkers, in_step, start_workers
from threespo_bench.rollout.episode import Episode
from threespo_bench.rollout.evaluation import evaluate
from threespo_bench.rollout.greedy_baseline import GreedyBaselineSampler
from threespo_bench.rollout.grouped import GroupedSampler
from threespo_bench.rollout.monte_carlo import MonteCarloSampler
from threespo_bench.rollout.playing import begin, play, play_turn
from threespo_bench.rollout.segment_tree import SegmentTreeSampler
from threespo_bench.seeding import Streams
from threespo_bench.turns import TurnBatch


@contextmanager
def workers_of(environment: Environment, count: int, timeout: float = 60.0) -> Iterator[EnvironmentWorkers | None]:
    workers = start_workers(environment, RolloutOptions(environment_workers=count, environment_timeout=timeout))
    try:
        yield workers
    finally:
        if workers is not None:
            processes = workers.processes
            workers.close()
            assert gone(processes, 0.5)


class Ledger(Budget):
    """Writes down what is charged, in its order."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.charges: list[dict[str, int]] = []

    def charge(self, **amounts: int) -> None:
        super().charge(**amounts)
        self.charges.append(amounts)


def iteration(
    environment: Environment, workers: EnvironmentWorkers | None, tasks: int = 4, engine: Gathering | None = None, env_steps: int = 100_000
) -> RolloutContext:
    budget, everything = Ledger(Limits(env_steps=env_steps)), environment.tasks("train")
    engine = in_step(workers, engine or Gathering())
    return RolloutContext(environment, engine, everything[:tasks], 0, Streams(0), budget, Sampling(), 6, "obs", pool=everything, workers=workers)


def collected(batches: AsyncIterator[TurnBatch]) -> list[TurnBatch]:
    """All batches of an iteration, at the end or the failure of which nothing is left running, and the event loop has nothing to complain of."""
    complaints: list[dict[str, Any]] = []

    async def collect() -> list[TurnBatch]:
        asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
        try:
            return [turns async for turns in batches]
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}, "something is still running"

    try:
        return asyncio.run(collect())
    finally:
        assert complaints == []


def play_grouped(environment: Environment, workers: EnvironmentWorkers | None, group_size: int = 3) -> TurnBatch:
    return collected(GroupedSampler(group_size).collect(iteration(environment, workers), None))[0]


def told(turns: TurnBatch) -> list[tuple[Any, ...]]:
    extras = turns.extras
    columns = [turns.group_id, turns.traj_id, turns.step_id, turns.step_reward, turns.anchor_obs, *(extras[name] for name in sorted(extras))]
    return list(zip(*(np.asarray(column).tolist() for column in columns), strict=True))


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(processes: list[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, processes))


class Varying(Told):
    """Asks for none to four samples, whatever the state is."""

    def samples(self, task_key: str, key: str, root: bool) -> int:
        return 4 if root else int(key.split()[2]) % 5


SAMPLERS = {
    "grouped": lambda run: GroupedSampler(3).collect(run, None),
    "greedy_baseline": lambda run: GreedyBaselineSampler(2).collect(run, None),
    "segment_tree": lambda run: SegmentTreeSampler((2, 2, 2), 2).collect(run, None),
    "monte_carlo": lambda run: Asking(MonteCarloSampler(2, 2)).collect(run),
    "adaptive_tree": lambda run: Varying(search_key="place", env_steps_per_tree=20).collect(run),
    "first_completed": lambda run: Noting(collection="first_completed", offline_rollouts=1).collect(run),
}


@pytest.mark.parametrize("kind", [SlowWorld, ReplayedSlowWorld])
@pytest.mark.parametrize("name", SAMPLERS)
def test_processes_give_the_same_experience_ask_for_the_same_batches_and_charge_alike(name: str, kind: type[SlowWorld]) -> None:
    environment, found = kind(SlowConfig(delay=0.001)), []
    for count in (0, 1, 2):
        engine = Gathering()
        with workers_of(environment, count) as workers:
            run = iteration(environment, workers, engine=engine)
            turns = collected(SAMPLERS[name](run))
            found.append(([told(batch) for batch in turns], engine.batches, run.budget.charges))
    assert found[0] == found[1] == found[2]
    assert max(map(len, found[0][1])) > 2


# ---- the children of one state step at the same time


def one_tree(environment: Environment, workers: EnvironmentWorkers | None, **more: Any) -> tuple[RolloutContext, AsyncIterator[TurnBatch]]:
    run = iteration(environment, workers, tasks=1, engine=Hurrying(), **more)
    return run, Told(4, search_key="place", env_steps_per_tree=20).collect(run)


def test_children_of_one_state_step_at_the_same_time(tmp_path: Path) -> None:
    environment = MeetingWorld(SlowConfig(notes=str(tmp_path)))
    with workers_of(environment, 2) as workers:
        _, waves = one_tree(environment, workers)
        assert [len(turns) for turns in collected(waves)] == [4] * 5
        assert {path.name for path in tmp_path.glob("step-*")} == {f"step-{process}" for process in workers.processes}


@pytest.mark.parametrize("env_steps", [1, 5, 9, 100_000])
def test_the_run_s_budget_ends_the_search_after_the_same_wave(env_steps: int) -> None:
    environment, found = SlowWorld(SlowConfig(delay=0.002)), []
    for count in (0, 2):
        with workers_of(environment, count) as workers:
            run, waves = one_tree(environment, workers, env_steps=env_steps)
            found.append(([told(turns) for turns in collected(waves)], run.budget.charges))
    assert found[0] == found[1]
    assert len(found[0][1]) == min(4 * -(-env_steps // 4), 20)


@pytest.mark.parametrize("kind", [SlowWorld, ReplayedSlowWorld])
@pytest.mark.parametrize(("fault", "times"), [("exit", 2), ("hang", 1)])
def test_a_crash_among_the_children_of_a_state_costs_nothing(tmp_path: Path, kind: type[SlowWorld], fault: str, times: int) -> None:
    run, waves = one_tree(kind(SlowConfig()), None)
    found = collected(waves)
    whole, charges = [told(turns) for turns in found], run.budget.charges
    command = found[2].extras["command"][1]  # of the second child of the third state
    environment = kind(SlowConfig(fault=fault, fault_command=command, times=times, notes=str(tmp_path)))
    with workers_of(environment, 2, timeout=5.0 if fault == "hang" else 60.0) as workers:
        run, waves = one_tree(environment, workers)
        assert ([told(turns) for turns in collected(waves)], run.budget.charges) == (whole, charges)
        counts = workers.take_counts()
        assert counts["environment/worker_crashes"] == times
        assert times <= counts["environment/episodes_retried"] <= 2 * times, "at most the copies of the worker"


def test_the_error_of_the_first_sample_is_raised_whichever_fails_first() -> None:
    environment, found = QuarrellingWorld(SlowConfig()), []
    for count in (0, 2):
        with workers_of(environment, count) as workers:
            run, waves = one_tree(environment, workers)
            with pytest.raises(ValueError, match="a fails slow-00") as error:
                collected(waves)
            found.append((str(error.value), run.budget.charges))
    assert found[0] == found[1] and len(found[0][1]) == 4


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_error_ends_all_that_goes_on_at_the_same_time(tmp_path: Path, name: str) -> None:
    environment = SlowWorld(SlowConfig(fault="raise", fault_step=1, notes=str(tmp_path)))
    with pytest.raises(ZeroDivisionError):
        collected(SAMPLERS[name](iteration(environment, None)))


def test_a_search_that_is_over_needs_its_copies_no_more() -> None:
    class OneGivesUp(Told):
        def samples(self, task_key: str, key: str, root: bool) -> int:
            return 4 if root or task_key == "slow-01" else 0

    environment, loads = SlowWorld(SlowConfig()), []
    with workers_of(environment, 2) as workers:
        run = iteration(environment, workers, tasks=2)

        async def collect() -> None:
            async for _ in OneGivesUp(search_key="place", env_steps_per_tree=12).collect(run):
                loads.append([worker.load for worker in workers._workers])

        asyncio.run(collect())
    assert [sum(load) for load in loads] == [8, 4, 4]


def test_evaluation_is_the_same_and_has_the_mean_score() -> None:
    environment, rows = SlowWorld(SlowConfig()), []
    for count in (0, 2):
        with workers_of(environment, count) as workers:
            tasks = environment.tasks("train")
            rows.append(asyncio.run(evaluate(environment, Gathering(), tasks, Streams(0), Sampling(), 5, workers=workers)))
    assert rows[0] == rows[1]
    assert rows[0]["score"] == pytest.approx(0.5 * (1 - rows[0]["truncated"])) and 0 < rows[0]["score"] < 0.5


def test_many_episodes_in_few_processes_which_start_when_they_are_needed() -> None:
    environment = SlowWorld(SlowConfig())
    with workers_of(environment, 2) as workers:
        assert workers.processes == []
        run = replace(iteration(environment, workers, tasks=12), anchor="process")

        async def live() -> list[str]:
            episodes = await asyncio.gather(*(begin(run, task) for task in run.tasks for _ in range(3)))
            return [episode.state.anchor for episode in episodes]

        homes = asyncio.run(live())
        assert sorted(set(homes)) == sorted(map(str, workers.processes)) and len(workers.processes) == 2
        assert [homes.count(home) for home in set(homes)] == [18, 18]
        assert str(os.getpid()) not in homes
        assert {worker.load for worker in workers._workers} == {0}, "nobody needs the episodes any more"


def test_a_key_of_another_kind_comes_with_the_steps_once_it_was_asked_for() -> None:
    environment = SlowWorld(SlowConfig())
    with workers_of(environment, 1) as workers:
        run = iteration(environment, workers)

        async def keys() -> list[str]:
            episode = await begin(run, run.tasks[0])
            first = await episode.key("process")
            await play_turn(run, episode, 0)
            assert set(episode._keys) == {"obs", "process"}
            return [first, await episode.key("process"), await episode.key("obs"), episode.state.anchor]

        first, second, seen, recorded = asyncio.run(keys())
        assert first == second == str(workers.processes[0]) and seen == recorded


@pytest.mark.parametrize("kind", [SlowWorld, ReplayedSlowWorld])
@pytest.mark.parametrize(("fault", "times"), [("exit", 2), ("kill", 1), ("hang", 1)])
def test_a_crash_costs_nothing_that_was_generated(tmp_path: Path, kind: type[SlowWorld], fault: str, times: int) -> None:
    whole = told(play_grouped(kind(SlowConfig()), None))
    environment = kind(SlowConfig(fault=fault, times=times, notes=str(tmp_path)))
    with workers_of(environment, 2, timeout=1.0 if fault == "hang" else 60.0) as workers:
        assert told(play_grouped(environment, workers)) == whole
        counts = workers.take_counts()
        assert counts["environment/worker_crashes"] == times
        assert times <= counts["environment/episodes_retried"] <= 6 * times, "at most those of the worker"
        assert set(workers.take_counts().values()) == {0}


def test_workers_that_are_killed_between_steps(tmp_path: Path) -> None:
    environment = SlowWorld(SlowConfig())
    with workers_of(environment, 2) as workers:
        run = iteration(environment, workers)

        async def interrupted(kill: bool) -> list[Any]:
            episode = await begin(run, run.tasks[1])
            first = await play_turn(run, episode, 11)
            if kill:
                os.kill(workers.processes[0], signal.SIGKILL)
            return [turn.next_observation for turn in [first, *await play(run, episode, lambda turn: 100 + turn)]]

        whole = asyncio.run(interrupted(kill=False))
        assert workers.counts == {}
        assert asyncio.run(interrupted(kill=True)) == whole
        assert workers.take_counts() == {"environment/worker_crashes": 1, "environment/episodes_retried": 1}


def test_the_third_crash_on_one_command_of_one_task_ends_the_run(tmp_path: Path) -> None:
    environment = SlowWorld(SlowConfig(fault="exit", times=100, notes=str(tmp_path)))
    with workers_of(environment, 2) as workers:
        with pytest.raises(DataError, match=r"^SlowWorld has ended its worker 3 times at the command 'b' of slow-\d\d: it ended with code 7$"):
            play_grouped(environment, workers)
        assert workers.counts["worker_crashes"] >= 3


def test_a_step_that_never_ends_is_told_from_a_crash(tmp_path: Path) -> None:
    environment = SlowWorld(SlowConfig(fault="hang", times=100, notes=str(tmp_path)))
    with workers_of(environment, 1, timeout=0.3) as workers, pytest.raises(DataError, match=r"takes longer than rollout.environment_timeout=0.3 seconds"):
        play_grouped(environment, workers, group_size=1)


def test_an_episode_that_cannot_be_made_again_is_an_error() -> None:
    environment = ForgetfulWorld(SlowConfig())
    with workers_of(environment, 1) as workers:
        run = iteration(environment, workers)

        async def interrupted() -> None:
            episode = await begin(run, run.tasks[1])
            os.kill(workers.processes[0], signal.SIGKILL)
            await play_turn(run, episode, 0)

        with pytest.raises(DataError, match="ForgetfulWorld is not deterministic: replaying 0 commands of slow-01"):
            asyncio.run(interrupted())


@pytest.mark.parametrize(("fault", "expected"), [("raise", ZeroDivisionError), ("odd", OddError)])
def test_an_exception_arrives_as_it_was_raised(tmp_path: Path, fault: str, expected: type[Exception]) -> None:
    raised = []
    for count in (0, 1):
        (tmp_path / str(count)).mkdir()
        environment = SlowWorld(SlowConfig(fault=fault, notes=str(tmp_path / str(count))))
        with workers_of(environment, count) as workers, pytest.raises(expected) as error:
            play_grouped(environment, workers)
        raised.append(error.value)
    assert str(raised[0]) == str(raised[1]) and raised[0].args == raised[1].args
    assert "slow_worlds.py" in raised[1].__notes__[0], "the traceback of the worker"
    if fault == "odd":
        assert raised[1].step == raised[0].step == 3


def test_an_exception_that_cannot_travel_is_told(tmp_path: Path) -> None:
    environment = SlowWorld(SlowConfig(fault="local", notes=str(tmp_path)))
    with workers_of(environment, 1) as workers, pytest.raises(RuntimeError, match="Local: of no module"):
        play_grouped(environment, workers)


def test_an_environment_that_does_not_pickle_is_made_from_its_configuration() -> None:
    environment = Unpicklable(SlowConfig())
    with workers_of(environment, 2) as workers:
        assert told(play_grouped(environment, workers)) == told(play_grouped(environment, None))


def test_an_environment_that_cannot_be_sent_is_one_clear_error() -> None:
    environment = Hopeless(SlowConfig(), print)
    with workers_of(environment, 1) as workers, pytest.raises(UsageError, match="Hopeless cannot be sent to another process: it cannot be made") as error:
        play_grouped(environment, workers)
    assert "rollout.environment_workers=0" in error.value.fix

    class Nowhere(SlowWorld):
        pass

    local = Nowhere(SlowConfig())
    with pytest.raises(UsageError, match="Nowhere cannot be sent to another process: neither it nor its configuration can be pickled"):
        start_workers(local, RolloutOptions(environment_workers=1))


def test_a_cancelled_episode_leaves_its_worker_usable() -> None:
    environment = SlowWorld(SlowConfig(delay=0.3))
    with workers_of(environment, 1) as workers:
        run = iteration(environment, workers)

        async def cancelled() -> list[Any]:
            episode = await begin(run, run.tasks[1])
            task = asyncio.create_task(play_turn(run, episode, 0))
            await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return await play(run, await begin(run, run.tasks[2]), lambda turn: turn)

        turns = asyncio.run(cancelled())
        assert turns[-1].terminated or turns[-1].truncated
        assert workers.counts == {}


def test_a_new_event_loop_goes_on_with_the_same_processes() -> None:
    environment = SlowWorld(SlowConfig())
    with workers_of(environment, 2) as workers:
        first = told(play_grouped(environment, workers))
        processes = workers.processes
        assert told(play_grouped(environment, workers)) == first and workers.processes == processes


def test_live_copies_are_closed_and_then_the_family(tmp_path: Path) -> None:
    environment = SlowWorld(SlowConfig(notes=str(tmp_path)))
    play_grouped(environment, None)
    assert len(list(tmp_path.glob("closed-*"))) >= 1, "ids of live copies may come again, their files do not"
    with workers_of(environment, 1) as workers:
        play_grouped(environment, workers)
        process = workers.processes[0]
    assert len(list(tmp_path.glob(f"closed-{process}-*"))) == 13, "12 episodes and the family"


ORPHANS = """
    import asyncio, sys, time
    from tests.rollout.slow_worlds import SlowConfig, SlowWorld
    from threespo_bench.rollout.environment_workers import EnvironmentWorkers
    from threespo_bench.rollout.episode import Episode
    from tests.rollout.test_episode import said

    environment = SlowWorld(SlowConfig(delay=60))
    workers = EnvironmentWorkers(environment, 2, 600)

    async def main():
        episodes = [Episode(environment, 5, "obs", workers) for _ in range(2)]
        await asyncio.gather(*(episode.start(environment.tasks("train")[1], 0) for episode in episodes))
        print(*workers.processes, flush=True)
        await asyncio.gather(*(episode.act(said("a")) for episode in episodes))

    asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_its_driver(number: int) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(ORPHANS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": "."}
    )
    try:
        assert driver.stdout is not None
        processes = [int(word) for word in driver.stdout.readline().split()]
        assert len(processes) == 2 and all(map(alive, processes))
        time.sleep(0.2)  # both are in a step of a minute now
        driver.send_signal(number)
        driver.wait(10)
        assert gone(processes, 2.0)
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()


def test_out_of_range() -> None:
    with pytest.raises(UsageError, match=r"rollout\.environment_workers=-1 is out of range: must be >= 0"):
        RolloutOptions(environment_workers=-1).validate()
    with pytest.raises(UsageError, match=r"rollout\.environment_timeout=0 is out of range: must be > 0"):
        RolloutOptions(environment_timeout=0).validate()


def test_an_episode_begins_where_it_is_told() -> None:
    episode = Episode(SlowWorld(SlowConfig()), 5, "process")
    asyncio.run(episode.start(SlowWorld(SlowConfig()).tasks("train")[0], 0))
    assert episode.state.anchor == str(os.getpid())
