"""The order in which training tasks come: the same for every algorithm that runs with the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from threespo_bench.contracts.environment import Task
from threespo_bench.seeding import Streams


class TaskStream:
    """An endless sequence of tasks: epoch after epoch, each a fresh permutation of all tasks drawn from the stream ``tasks``.

    Attributes:
        tasks: all of them.
        position: how many places of the sequence are behind.
        held: indices of tasks that came a second time within one call and wait for the next.
    """

    def __init__(self, tasks: Sequence[Task], streams: Streams) -> None:
        self.tasks, self._streams = tasks, streams
        self._epoch = -1
        self._order: list[int] = []
        self.position = 0
        self.held: list[int] = []

    def take(self, count: int) -> list[Task]:
        """The next ``count`` tasks. Within one call no task comes twice as long as there are enough tasks; one that would is put off, not lost."""
        taken: list[int] = []
        held: list[int] = []
        while len(taken) < count:
            index = self.held.pop(0) if self.held else self._next()
            repeats_allowed = len(taken) >= len(self.tasks)
            (taken if repeats_allowed or index not in taken else held).append(index)
        self.held = held + self.held
        return [self.tasks[index] for index in taken]

    def state_dict(self) -> dict[str, Any]:
        """Where the sequence stands, as plain data."""
        return {"position": self.position, "held": list(self.held)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.position, self.held = int(state["position"]), [int(index) for index in state["held"]]

    def _next(self) -> int:
        epoch, place = divmod(self.position, len(self.tasks))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = self._streams.generator("tasks", epoch).permutation(len(self.tasks)).tolist()
        self.position += 1
        return self._order[place]
