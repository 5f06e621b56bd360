"""Labels of weights on a server, which keeps the one that it is given and names it beside the tokens that it generates."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from threespo_bench.errors import EngineError

_FOREIGN = "another program changed the server's weights, or it was started again: give each run a server of its own, and resume the run"


class Labels:
    """``MARK:VERSION``, with a mark of one's own, so that a server that was started again or given other weights does not look up to date."""

    def __init__(self) -> None:
        self._mark = f"threespo-{secrets.token_hex(6)}"

    def of(self, version: int) -> str:
        """The label of published weights."""
        return f"{self._mark}:{version}"

    @property
    def none(self) -> str:
        """The label while weights are exchanged: what is generated under it is of no version."""
        return f"{self._mark}:none"

    def version(self, labels: Iterable[str]) -> int:
        """The version that all ``labels`` name. Raises EngineError if they differ, or are of others."""
        found = sorted(set(labels))
        mark, _, number = found[0].rpartition(":") if len(found) == 1 else ("", "", "")
        if mark != self._mark or not number.isdigit():
            raise EngineError(f"stale weights: tokens came from weights labelled {' and '.join(found) or 'nothing'}, not from published ones", fix=_FOREIGN)
        return int(number)
