"""The comparison's own run in the tracker, under which its runs are nested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from threespo_bench.config.plain import flatten, to_plain
from threespo_bench.contracts.tracker import RUN_TAG
from threespo_bench.errors import StorageError
from threespo_bench.experiment_plan import PlannedRun
from threespo_bench.host import PluginHost
from threespo_bench.tracking import SafeTracker
from threespo_bench.tracking_record import Copy, TrackingRecord, comparison_content, key_of

REPORT = "report"
_VARIED = ("algorithm", "env", "seed")


class Parent:
    """That run while the comparison is carried out.

    Args:
        known: the tracker's id, if the comparison was carried out before.

    Attributes:
        reported: the tracker was given a report of all runs.
    """

    def __init__(self, planned: Sequence[PlannedRun], host: PluginHost, folder: Path, known: str | None, say: Callable[[str], None]) -> None:
        config = planned[0].config
        contribution = host.find("trackers", config.tracker.name)
        self.folder, self.reported = folder, False
        self.tracker = SafeTracker(lambda: contribution.load()(config.tracker.options, folder.parent.resolve()), say)
        self._record, self._key = TrackingRecord(folder), key_of(config.tracker.name, self.tracker.target())
        copy = self._record.copy(self._key)
        before = copy.run if copy else None if self._record.known() else known
        params = params_of([flatten(to_plain(run.config)) for run in planned])
        tags = tags_of(self._record)
        self.run_id = self.tracker.start(config.experiment, name_of(config.experiment), params, tags, None, before or ("" if copy else None))
        if self.run_id != "":
            self._record.write(self._key, Copy(self.run_id or before))

    def finish(self, status: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
        """Close it, and note whether the tracker got everything."""
        self.tracker.finish(status)
        if self.tracker.complete and self.tracker.run_id and self.reported:
            try:
                self._record.write(self._key, Copy(self.tracker.run_id, comparison_content(self.folder / REPORT, rows), complete=True))
            except (StorageError, OSError):
                return  # sync sends it again


def name_of(experiment: str) -> str:
    """What the run is called."""
    return f"comparison {experiment}"


def tags_of(record: TrackingRecord) -> dict[str, str]:
    """Its tags."""
    return {"kind": "comparison", RUN_TAG: record.id}


def params_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Its parameters, from the flat configurations of its runs: what they have in common, and all their algorithms, environments and seeds."""
    if not runs:
        return {}
    shared = {key: value for key, value in runs[0].items() if all(key in other and other[key] == value for other in runs[1:])}
    return shared | {key: ", ".join(dict.fromkeys(str(run.get(key)) for run in runs)) for key in _VARIED}
