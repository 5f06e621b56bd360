"""The proof that the algorithms had equal conditions, or where they had not: digests, and the options that differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pandas as pd

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_reports.blocks import Blocks, Cell, Table
from threespo_reports.formatting import listing
from threespo_reports.sections.shared import records
from threespo_reports.selection import spoken

SHORT = 8  # characters of a digest
OWN = "algorithm."
NOT_COMPARED = ("seed", "out", "experiment", "algorithm.name", "env.name")  # what tells runs apart, and where they lie
COLUMNS = ["env", "option", "value", "algorithms", "flagged"]


class Matched(ReportSection):
    """A row per environment and digest, and per option that differs."""

    name: ClassVar[str] = "matched"
    title: ClassVar[str] = "Were the runs matched?"
    order: ClassVar[int] = 62

    def render(self, data: ReportData) -> Fragment | None:
        """Differences that spoil a comparison in red."""
        frame = option_differences(data)
        if data.digests.empty and frame.empty:
            return None
        blocks = Blocks()
        if not data.digests.empty:
            verdicts = set(data.digests["agree"])
            if "differs" in verdicts:
                blocks.text("Some runs differ in more than the algorithm. Such pairs are left out of the paired differences.", mark="bad")
            elif "unknown" in verdicts:
                blocks.text("No difference was found, but some runs do not record all digests.")
            else:
                blocks.text("For every seed all algorithms had everything below in common.")
            blocks.table(_digest_rows(data))
        _options(blocks, data, frame)
        return blocks.fragment()


def _options(blocks: Blocks, data: ReportData, frame: pd.DataFrame) -> None:
    blocks.heading("Options that differ between algorithms")
    flagged = frame[frame["flagged"]]
    if flagged.empty:
        blocks.text("No option differs outside the algorithms' own section.")
    else:
        names = listing(sorted(set(flagged["option"])))
        blocks.text(f"Options outside the algorithms' own section differ: {names}. A difference in success may come from them.", mark="bad")
    if not frame.empty:
        blocks.table(_option_table(data, frame))
        blocks.text("Of the algorithms' own section, the options that several algorithms have. config.yaml of each run has all.", mark="muted")
    blocks.file("option_differences", frame)


def option_differences(data: ReportData) -> pd.DataFrame:
    """A row per environment, option and value that not all algorithms share; ``flagged`` where the option is not the algorithm's own."""
    rows: list[dict[str, Any]] = []
    for env, group in data.runs[data.runs["counted"]].groupby("env", sort=True):
        values: dict[str, dict[str, set[str]]] = {}
        configured = [(row["algorithm"], data.configs.get(row["run"]) or {}) for row in records(group)]
        configured = [(label, config) for label, config in configured if config]
        for label, config in configured:
            for key, value in config.items():
                if key not in NOT_COMPARED:
                    values.setdefault(key, {}).setdefault(_text(value), set()).add(label)
        everybody = {label for label, _ in configured}
        for key, holders in sorted(values.items()):
            own = key.startswith(OWN)
            absent = everybody - set().union(*holders.values())
            if absent and not own:
                holders["not set"] = absent
            if len(holders) < 2:
                continue
            for value, labels in sorted(holders.items()):
                rows.append({"env": env, "option": key, "value": value, "algorithms": " ".join(sorted(labels)), "flagged": not own})
    return pd.DataFrame(rows, columns=COLUMNS).astype({"flagged": bool})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _option_table(data: ReportData, frame: pd.DataFrame) -> Table:
    several = len(data.environments) > 1
    found: list[tuple[Cell, list[Cell | str]]] = []
    for (env, key, flagged), rows in frame.groupby(["env", "option", "flagged"], sort=True):
        told = "; ".join(f"{row['value']}: {_names(data, row['algorithms'])}" for row in records(rows))
        where = [str(env)] if several else []
        shown = str(key).removeprefix("algorithm.options.")
        whose = "not the algorithm's own" if flagged else "the algorithm's own"
        found.append((Cell(shown, mark="bad" if flagged else ""), [*where, whose, Cell(told, mark="muted")]))
    found.sort(key=lambda row: (row[0].mark != "bad", row[0].text))
    columns = ["option", *(["environment"] if several else []), "whose", "values"]
    return Table(columns, [[option, *rest] for option, rest in found], words=frozenset(range(len(columns))))


def _names(data: ReportData, labels: str) -> str:
    known = [label for label in data.algorithms if f" {label} " in f" {labels} "]
    return ", ".join(data.names[label] for label in known)


def _digest_rows(data: ReportData) -> Table:
    """What was compared: a line for all seeds where the algorithms agree, and a line per seed that says who had which where they do not."""
    several = len(data.environments) > 1
    body: list[list[Cell | str]] = []
    for (env, digest, agree), group in data.digests.groupby(["env", "digest", "agree"], sort=True):
        where = [str(env)] if several else []
        if agree == "differs":
            body += [[spoken(digest), *where, str(row["seed"]), Cell("differs", mark="bad"), Cell(_who(data, row), mark="bad")] for row in records(group)]
            continue
        recorded = {value for values in group["values"] for value in values.values() if value}
        missing = {name for values in group["values"] for name, value in values.items() if not value}
        note = "same" if agree == "same" else "not recorded" if not recorded else "not recorded by " + ", ".join(sorted(data.names[name] for name in missing))
        body.append([spoken(digest), *where, " ".join(map(str, group["seed"])), note, " ".join(sorted(_short(value, digest) for value in recorded))])
    columns = ["what", *(["environment"] if several else []), "seeds", "among algorithms", "value"]
    return Table(columns, body, words=frozenset(range(len(columns))))


def _who(data: ReportData, row: Mapping[str, Any]) -> str:
    holders: dict[str, list[str]] = {}
    for name, value in row["values"].items():
        holders.setdefault(_short(value, row["digest"]) or "not recorded", []).append(data.names[name])
    return "; ".join(f"{value}: {listing(sorted(names))}" for value, names in sorted(holders.items()))


def _short(value: str, name: str) -> str:
    return value if name in ("budget", "source") or len(value) <= SHORT else value[:SHORT]
