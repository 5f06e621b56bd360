"""Which points of its curves a run in MLflow has already."""

from __future__ import annotations

from collections import Counter
from typing import Any


class Points:
    """The points of a run that is gone on with. A history is read when its metric is first asked for.

    Args:
        client: an MLflow client. run: the run as MLflow has it.
    """

    def __init__(self, client: Any, run: Any) -> None:
        self._client, self._run_id = client, run.info.run_id
        self._unread = set(run.data.metrics)
        self._left: dict[str, Counter[tuple[int, float]]] = {}

    def take(self, key: str, step: int, value: float) -> bool:
        """Whether the run has this point; each point of it answers for one only, because curves may have several at a step."""
        if key in self._unread:
            self._unread.remove(key)
            self._left[key] = Counter((point.step, float(point.value)) for point in self._client.get_metric_history(self._run_id, key))
        left = self._left.get(key)
        if left is None or left[(step, value)] <= 0:
            return False
        left[(step, value)] -= 1
        return True
