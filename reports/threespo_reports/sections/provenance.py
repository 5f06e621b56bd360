"""Where the runs come from: the manifests, one line for what all runs share and one for each value where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pandas as pd

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_reports.blocks import Blocks, Cell, Table
from threespo_reports.variants import flat

SHOWN = {  # key of the flattened manifest: what to print
    "versions.threespo-bench": "threespo-bench",
    "run.code_digest": "code",
    "incidental.git.commit": "git commit",
    "incidental.git.changed": "uncommitted changes",
    "versions.python": "python",
    "versions.torch": "torch",
    "versions.transformers": "transformers",
    "versions.numpy": "numpy",
    "model.name": "model",
    "engine.owner": "engine from",
    "deterministic": "deterministic",
    "incidental.platform": "platform",
    "incidental.processor": "processor",
    "incidental.torch.device": "device",
}
SHORT = 16
COLUMNS = ["what", "value", "runs", "of"]


class Provenance(ReportSection):
    """The table of manifests and of the algorithms' code."""

    name: ClassVar[str] = "provenance"
    title: ClassVar[str] = "Manifests"
    order: ClassVar[int] = 65

    def render(self, data: ReportData) -> Fragment | None:
        """Nothing where no run has a manifest."""
        manifests = {run: flat(manifest) for run, manifest in data.manifests.items() if manifest}
        if not manifests:
            return None
        blocks, frame = Blocks(), manifest_rows(manifests)
        if len(frame):
            blocks.table(_table(frame))
        blocks.table(_algorithms(data, manifests))
        blocks.text("manifest.json of each run has all versions, digests and plugins, config.yaml all options.", mark="muted")
        blocks.file("manifests", frame)
        return blocks.fragment()


def manifest_rows(manifests: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """A row per thing and value: how many runs have it, of how many that record it."""
    rows = []
    for key, what in SHOWN.items():
        held: dict[str, int] = {}
        for manifest in manifests.values():
            if manifest.get(key) is not None:
                value = str(manifest[key])
                held[value] = held.get(value, 0) + 1
        rows += [(what, value, number, sum(held.values())) for value, number in sorted(held.items())]
    return pd.DataFrame(rows, columns=COLUMNS)


def _table(frame: pd.DataFrame) -> Table:
    body: list[list[Cell | str]] = []
    for what, rows in frame.groupby("what", sort=False):
        alone = len(rows) == 1
        values = "; ".join(_short(row["value"]) + ("" if alone else f" ({row['runs']} runs)") for row in rows.to_dict("records"))
        body.append([str(what), Cell(values, mark="" if alone else "bad"), "all runs" if alone else "differs"])
    return Table(["what", "value", "in"], body, words=frozenset({1, 2}))


def _algorithms(data: ReportData, manifests: Mapping[str, Mapping[str, Any]]) -> Table:
    body: list[list[Cell | str]] = []
    for label in data.algorithms:
        own = [manifests[run] for run in data.runs[data.runs["algorithm"] == label]["run"] if run in manifests]
        found = [sorted({str(manifest[f"algorithm.{key}"]) for manifest in own if f"algorithm.{key}" in manifest}) for key in ("owner", "target", "digest")]
        body.append([data.names[label], *(Cell(", ".join(map(_short, values)), mark="bad" if len(values) > 1 else "") for values in found)])
    return Table(["algorithm", "from", "class", "code"], body, words=frozenset({1, 2, 3}))


def _short(value: str) -> str:
    """Long digests by their beginning."""
    return value[:SHORT] if len(value) > 30 and value.isalnum() else value
