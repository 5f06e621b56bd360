"""Small things that several sections need."""

from __future__ import annotations

from typing import Any

import pandas as pd

from threespo_bench.contracts.report import ReportData
from threespo_reports.blocks import Blocks, Cell
from threespo_reports.frames import ByRun
from threespo_reports.styles import styles


def of_env(frame: pd.DataFrame, env: str) -> pd.DataFrame:
    """The rows of one environment."""
    return frame[frame["env"] == env]


def head(blocks: Blocks, data: ReportData, env: str) -> None:
    """The name of an environment, where the report has several."""
    if len(data.environments) > 1:
        blocks.heading(env)


def file_name(data: ReportData, name: str, env: str) -> str:
    """The name of the figure of one environment: with its number, where the report has several."""
    return name if len(data.environments) == 1 else f"{name}_{data.environments.index(env) + 1}"


def name_cell(data: ReportData, label: str) -> Cell:
    """An algorithm with the key of its curves."""
    return Cell(data.names.get(label, label), "baseline" if label == data.baseline else "", key=styles(data.algorithms).get(label))


def keys(blocks: Blocks, data: ReportData, labels: list[str]) -> None:
    """The legend of the page."""
    looks = styles(data.algorithms)
    blocks.keys([(data.names[label], looks[label]) for label in labels])


def ranked(data: ReportData, env: str) -> list[str]:
    """The algorithms that have results in an environment, best first."""
    rows = of_env(data.summary, env)
    return rows[rows["seeds"] > 0]["algorithm"].tolist() if len(rows) else []


def seed_runs(data: ReportData, env: str, label: str) -> dict[int, str]:
    """Seed -> the run that counts."""
    rows = data.runs[data.runs["counted"] & (data.runs["env"] == env) & (data.runs["algorithm"] == label)]
    return {int(seed): str(run) for seed, run in zip(rows["seed"], rows["run"], strict=True)}


def evaluations(data: ReportData) -> ByRun:
    """The evaluations run by run."""
    return ByRun(data.evaluations)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as mappings."""
    return frame.to_dict("records")
