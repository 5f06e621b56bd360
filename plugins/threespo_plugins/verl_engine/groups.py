"""The driver's side of the workers: calls on all ranks, with errors as errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from uuid import uuid4

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from tensordict import TensorDict

from threespo_bench.errors import BenchError, EngineError
from threespo_plugins.messages import first_line
from threespo_plugins.verl_engine.cluster import environment, quiet
from threespo_plugins.verl_engine.config import VerlConfig

RESUME = "continue the run with 'threespo-bench run --resume'"


class Workers(Protocol):
    """Some worker processes that hold one model together.

    Attributes:
        ranks: how many there are.
    """

    ranks: int

    def all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method on every rank; the answers in the order of the ranks."""

    def rows(self, method: str, batch: TensorDict) -> TensorDict:
        """Call a method with an equal part of the rows on each rank; the answer for all rows in the same order."""


class RayWorkers:
    """A worker group of verl.

    Args:
        made: the worker class with what its processes are started with. pool: where.
    """

    def __init__(self, made: Any, pool: Any, config: VerlConfig, name: str) -> None:
        from verl.single_controller.ray import RayWorkerGroup

        self.ranks = config.world_size
        self._name = name
        with quiet(), worker_errors(name):
            self.group = RayWorkerGroup(
                resource_pool=pool,
                ray_cls_with_init=made,
                name_prefix=f"{name}_{uuid4().hex[:8]}",
                use_gpu=config.device == "cuda",
                device_name=config.device,
                worker_env=environment(config),
            )

    def start(self, method: str, seconds: float) -> None:
        """The first call, on all ranks: waits until the processes are up. Raises EngineError if that takes too long."""
        with worker_errors(self._name):
            try:
                ray.get(self.group.execute_all_async(method), timeout=seconds)
            except GetTimeoutError as error:
                raise EngineError(f"the workers of the {self._name} did not come up within {seconds:g} s", fix="raise engine.start_seconds") from error

    def all(self, method: str, *arguments: Any) -> list[Any]:
        """See :meth:`Workers.all`."""
        with worker_errors(self._name):
            answers = getattr(self.group, method)(*arguments)
            return ray.get(answers) if answers and isinstance(answers[0], ray.ObjectRef) else answers

    def rows(self, method: str, batch: TensorDict) -> TensorDict:
        """See :meth:`Workers.rows`."""
        with worker_errors(self._name):
            return getattr(self.group, method)(batch)

    def kill(self) -> None:
        """End the processes."""
        for worker in self.group.workers:
            ray.kill(worker)


@contextmanager
def worker_errors(name: str) -> Iterator[None]:
    """Inside, an error of a worker or of Ray is raised as an EngineError of one line; one of ours that a worker raised, as it is."""
    try:
        yield
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, BenchError):
            raise cause from None
        fix = f"the traceback is in the run's events; {RESUME}"
        raise EngineError(f"a worker of the {name} failed: {type(cause).__name__}: {first_line(cause)}", fix=fix) from error
    except RayActorError as error:
        raise EngineError(f"a worker of the {name} is gone: {_reason(error)}", fix=RESUME) from error
    except RayError as error:
        raise EngineError(f"the {name} cannot be reached: {first_line(error)}", fix=RESUME) from error


def _reason(error: RayActorError) -> str:
    text = str(error).strip()
    if "creation task" in text:  # it never was there: what stopped it is at the end
        return text.splitlines()[-1]
    return "it was killed, or ran out of memory" if "exit" in text.lower() or "died" in text.lower() else first_line(error)
