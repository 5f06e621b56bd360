"""What each algorithm is: its source, whether it is a reconstruction, and how the losses of tokens become one number."""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_reports.blocks import Blocks, Cell, Table

OBJECTIVE = "algorithm.options.objective."
COLUMNS = ["algorithm", "source", "reconstruction", "loss", "aggregation", "unit"]
RECONSTRUCTION = "reconstruction"


class Methods(ReportSection):
    """A row per algorithm, and the notes of those whose published description leaves something open."""

    name: ClassVar[str] = "methods"
    title: ClassVar[str] = "The algorithms"
    order: ClassVar[int] = 61

    def render(self, data: ReportData) -> Fragment | None:
        """Nothing where no run has a configuration."""
        rows = [row for label in data.algorithms if (row := _row(data, label))]
        if not rows:
            return None
        blocks = Blocks()
        blocks.table(_table(data, rows))
        blocks.text("Aggregation and unit: how the losses of tokens become one number. Losses on preferences are means over pairs or items and have neither.")
        own = [Cell(data.names[row["algorithm"]], detail=row["notes"]) for row in rows if row["reconstruction"] == "yes"]
        if own:
            blocks.heading("Reconstructions")
            blocks.text("What these algorithms' papers leave open is filled in by us, so their results may differ from the authors'.")
            blocks.items(own)
        blocks.file("methods", pd.DataFrame(rows, columns=[*COLUMNS, "notes"]))
        return blocks.fragment()


def _row(data: ReportData, label: str) -> dict[str, str]:
    """What the runs of an algorithm say of it; several values side by side."""
    runs = data.runs[data.runs["algorithm"] == label]["run"]
    configs = [config for run in runs if (config := data.configs.get(run))]
    if not configs:
        return {}
    methods = [method for run in runs if isinstance(method := (data.manifests.get(run) or {}).get("method"), dict)]
    row = {name: _values([config.get(OBJECTIVE + name) for config in configs]) for name in ("loss", "aggregation", "unit")}
    row |= {name: _values([method.get(name) for method in methods]) for name in ("source", "notes")}
    row["reconstruction"] = "" if not methods else "yes" if RECONSTRUCTION in row["notes"].lower() else "no"
    return {"algorithm": label} | row


def _values(found: list[Any]) -> str:
    return "; ".join(dict.fromkeys(str(value) for value in found if value is not None))


def _table(data: ReportData, rows: list[dict[str, str]]) -> Table:
    body: list[list[Cell | str]] = []
    for row in rows:
        shown = row | {"reconstruction": "yes, see below" if row["reconstruction"] == "yes" else row["reconstruction"]}
        told = [shown[name] or ("not recorded" if name in ("source", "reconstruction") else "none") for name in COLUMNS[1:]]
        body.append([data.names[row["algorithm"]], *(Cell(value, mark="muted" if value in ("not recorded", "none") else "") for value in told)])
    return Table(COLUMNS, body, words=frozenset(range(1, len(COLUMNS))))
