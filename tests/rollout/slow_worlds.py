"""Worlds that take their time over a step, and break in every way, for tests of environment workers; and a policy that makes batches."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from threespo_bench.contracts.engine import Generation, RolloutEngine, Sampling
from threespo_bench.contracts.environment import Action, Environment, Observation, PromptContext, Step, Task
from threespo_plugins.embedded.scheduler import BatchScheduler

COMMANDS = ("a", "b", "c")


@dataclass
class SlowConfig:
    """Attributes:
    delay: seconds of a step; half of the states take none.
    fault: what happens, a key of FAULTS. fault_command: at which command, if the episode has made ``fault_step`` steps.
    times: how often it happens in all processes together. notes: a folder in which that is counted, and closed copies are noted.
    """

    delay: float = 0.0
    fault: str = ""
    fault_command: str = "b"
    fault_step: int = 2
    times: int = 1
    notes: str = ""


class OddError(Exception):
    """Its constructor cannot be called with its arguments."""

    def __init__(self, task: str, step: int) -> None:
        super().__init__(f"odd at step {step} of {task}")
        self.step = step


def _raise(error: Callable[[], BaseException]) -> Callable[[], None]:
    def fault() -> None:
        raise error()

    return fault


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS: dict[str, Callable[[], Any]] = {
    "exit": lambda: os._exit(7),
    "kill": _kill,
    "hang": lambda: time.sleep(60),
    "raise": _raise(lambda: ZeroDivisionError("the scorer divides by zero")),
    "odd": _raise(lambda: OddError("a task", 3)),
    "local": _raise(lambda: type("Local", (Exception,), {})("of no module")),
}


class SlowWorld(Environment):
    """A number that every command changes."""

    Config = SlowConfig
    anchors = ("obs", "process")
    can_restore = True
    max_turns = 6

    def __init__(self, config: SlowConfig) -> None:
        super().__init__(config)
        self.task, self.place, self.steps = "", 0, 0

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"slow-{i:02d}", "slow", split) for i in range(12)]

    def spawn(self) -> SlowWorld:
        return type(self)(self.config)

    def reset(self, task: Task, seed: int) -> Observation:
        self.task, self.place, self.steps = task.key, int(task.key[-2:]), 0
        return self._seen()

    def step(self, command: str) -> Step:
        config = self.config
        if config.fault and command == config.fault_command and self.steps == config.fault_step and self._happens():
            FAULTS[config.fault]()
        time.sleep(config.delay * (self.place % 2))
        self.place, self.steps = (self.place * 5 + ord(command or " ")) % 997, self.steps + 1
        over = self.place % 11 == 0
        return Step(self._seen(), self.place / 7, over, over and self.place % 2 == 0, score=0.5 if over else None)

    def anchor(self, kind: str) -> str:
        return str(os.getpid()) if kind == "process" else self._seen().text

    def snapshot(self) -> tuple[str, int, int]:
        return self.task, self.place, self.steps

    def restore(self, snapshot: tuple[str, int, int]) -> Observation:
        assert self.task == snapshot[0], "a snapshot can be restored where its task was started, and nowhere else"
        _, self.place, self.steps = snapshot
        return self._seen()

    def render(self, context: PromptContext) -> list[dict[str, str]]:
        return [{"role": "user", "content": context.observation.text}]

    def parse(self, response: str, observation: Observation) -> Action:
        return Action(response, True, response in observation.admissible)

    def close(self) -> None:
        if self.config.notes:
            (Path(self.config.notes) / f"closed-{os.getpid()}-{id(self)}").touch()

    def _seen(self) -> Observation:
        return Observation(f"{self.task} at {self.place} after {self.steps}", COMMANDS)

    def _happens(self) -> bool:
        for number in range(self.config.times):
            try:
                (Path(self.config.notes) / f"fault-{number}").touch(exist_ok=False)
                return True
            except FileExistsError:
                continue
        return False


class ReplayedSlowWorld(SlowWorld):
    """The same without a way back but playing again."""

    can_restore = False

    def snapshot(self) -> Any:
        raise AssertionError("nobody may ask for a snapshot")


class ForgetfulWorld(ReplayedSlowWorld):
    """It begins otherwise in every process."""

    def reset(self, task: Task, seed: int) -> Observation:
        super().reset(task, seed)
        self.place = os.getpid() % 900
        return self._seen()


class MeetingWorld(SlowWorld):
    """No step ends before one in another process is under way too."""

    def step(self, command: str) -> Step:
        notes, until = Path(self.config.notes), time.monotonic() + 20
        (notes / f"step-{os.getpid()}").touch()
        while len(list(notes.glob("step-*"))) < 2:
            if time.monotonic() > until:
                raise TimeoutError("nobody else came")
            time.sleep(0.005)
        return super().step(command)


class QuarrellingWorld(SlowWorld):
    """From the second state on every step fails; the command a takes longest over it."""

    def step(self, command: str) -> Step:
        if self.steps < 1:
            return super().step(command)
        time.sleep(0.4 * (command == "a"))
        raise ValueError(f"{command} fails {self._seen().text}")


class Unpicklable(SlowWorld):
    """It cannot be pickled, but be made anew."""

    def __init__(self, config: SlowConfig) -> None:
        super().__init__(config)
        self.handle = lambda: None


class Hopeless(Unpicklable):
    """It cannot even be made anew."""

    def __init__(self, config: SlowConfig, secret: Callable[[], None]) -> None:
        super().__init__(config)

    def spawn(self) -> Hopeless:
        return Hopeless(self.config, self.handle)


class Gathering(RolloutEngine):
    """Draws commands of one to three tokens; one batch of everything that waits. ``batches`` are the prompts and seeds of each, in the order of asking."""

    version = 0
    gathers = True

    def __init__(self) -> None:
        self.batches: list[list[tuple[str, int]]] = []
        self._scheduler: BatchScheduler[tuple[str, int], Generation] = BatchScheduler(self._answer)

    async def generate(self, messages: list[dict[str, str]], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        return await self._scheduler.submit((messages[-1]["content"], seed))

    def encode(self, messages: list[dict[str, str]], response: str | None = None) -> np.ndarray:
        return np.zeros(1, np.int32)

    def _answer(self, requests: Sequence[tuple[str, int]]) -> list[Generation]:
        self.batches.append(list(requests))
        return [self._drawn(seed) for _, seed in requests]

    def _drawn(self, seed: int) -> Generation:
        tokens = np.ones(1 + seed // 24 % 3, np.int32)
        return Generation(np.ones(1, np.int32), tokens, -np.ones(len(tokens), np.float32), COMMANDS[seed // 8 % 3], self.version, finished=True)


class Hurrying(Gathering):
    """Answers as soon as it is asked, like a server: what waits for environments is not waited for."""

    gathers = False

    async def generate(self, messages: list[dict[str, str]], seed: int, sampling: Sampling, prefix: Sequence[int] = ()) -> Generation:
        await asyncio.sleep(0)
        return self._drawn(seed)
