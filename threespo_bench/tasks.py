"""The order in which training tasks come: the same for every algorithm that runs with the same seed."""

from __future__ import annotations

from collections.abc import Sequence

from threespo_bench.contracts.environment import Task
from threespo_bench.seeding import Streams


class TaskStream:
    """An endless sequence of tasks: epoch after epoch, each a fresh permutation of all tasks drawn from the stream ``tasks``.

    Attributes:
        position: how many tasks were taken; the whole state.
    """

    def __init__(self, tasks: Sequence[Task], streams: Streams) -> None:
        self._tasks, self._streams = tasks, streams
        self._epoch, self._order = -1, []  # type: ignore[var-annotated]
        self.position = 0

    def take(self, count: int) -> list[Task]:
        """The next ``count`` tasks. Within one call no task comes twice as long as there are enough tasks."""
        taken: list[Task] = []
        while len(taken) < count:
            task = self._at(self.position)
            self.position += 1
            if task not in taken or len(taken) >= len(self._tasks):
                taken.append(task)
        return taken

    def _at(self, position: int) -> Task:
        epoch, place = divmod(position, len(self._tasks))
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = self._streams.generator("tasks", epoch).permutation(len(self._tasks)).tolist()
        return self._tasks[self._order[place]]
