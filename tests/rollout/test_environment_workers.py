"""Episodes in other processes: the same experience as in this one, whatever happens to the processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rollout.slow_worlds import (
    ForgetfulWorld,
    Gathering,
    Hopeless,
    OddError,
    ReplayedSlowWorld,
    SlowConfig,
    SlowWorld,
    Unpicklable,
)
from tests.rollout.worker_plays import SAMPLERS, alive, collected, gone, iteration, play_grouped, told, workers_of
from threespo_bench.contracts.engine import Sampling
from threespo_bench.contracts.rollout import RolloutOptions
from threespo_bench.errors import DataError, UsageError
from threespo_bench.rollout.environment_workers import start_workers
from threespo_bench.rollout.episode import Episode
from threespo_bench.rollout.evaluation import evaluate
from threespo_bench.rollout.playing import begin, play, play_turn
from threespo_bench.seeding import Streams


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
