"""Results of others: a CSV file with the columns algorithm, env, seed, step and success becomes runs of the report.

A row is one evaluation; ``step`` counts environment steps or whatever the source counts, ``success`` is a fraction. Further columns that are
read: ``tokens``, ``updates``, ``seconds``, and ``success/KIND`` for types of task. A blank seed stands for an average that was published
without its seeds: it counts as one replicate. Such runs are paired with one another by seed, and never with runs of this program."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from threespo_bench.contracts.report import Problem
from threespo_bench.errors import DataError
from threespo_reports.loading import Store, measurements
from threespo_reports.rows import Columns
from threespo_reports.styles import known_name

NEEDED = ("algorithm", "env", "seed", "step", "success")
FURTHER = ("tokens", "updates", "seconds")
OURS = "runs of threespo-bench"
ADVICE = "the columns are algorithm, env, seed, step and success (a fraction from 0 to 1)"


def with_foreign(store: Store, files: Sequence[Path]) -> Store:
    """``store`` with the results in ``files`` as further runs. Raises DataError for a file that is not as it should be."""
    if not files:
        return store
    store = replace(store, folder=store.folder or files[0].stem, runs=store.runs.assign(source_digest=OURS))
    for path in files:
        store = _add(store, path)
    return store


def _add(store: Store, path: Path) -> Store:
    table, digest = _read(path)
    records: list[dict[str, Any]] = []
    rows: list[Columns] = []
    problems: list[Problem] = []
    unseeded = int(table["seed"].isna().sum())
    if unseeded:
        problems.append(Problem(path.name, f"{unseeded} rows have no seed: each such result counts as one replicate, seed 0", "note"))
    table["seed"] = table["seed"].fillna(0).astype(int)
    for (env, algorithm, seed), group in table.groupby(["env", "algorithm", "seed"], sort=True):
        ordered = group.sort_values("step", kind="stable")
        columns = {name: ordered[name].to_numpy(float) for name in ordered.columns if name not in ("env", "algorithm", "seed", "step")}
        columns = {"env_steps": ordered["step"].to_numpy(float), "seconds": np.full(len(ordered), np.nan), **columns}
        name = f"{path.name}/{algorithm}-{env}-seed{seed}"
        record = {"run": name, "env": env, "algorithm": known_name(algorithm), "seed": int(seed), "state": "finished", "error": ""}
        records.append(record | {"evaluations": len(ordered), "source_digest": path.name} | _totals(columns))
        rows.append(columns)
    return _joined(store, records, rows, problems, digest)


def _totals(columns: Columns) -> dict[str, float]:
    return {name: float(np.nanmax(columns[name])) for name in ("env_steps", *FURTHER) if name in columns and np.isfinite(columns[name]).any()}


def _joined(store: Store, records: list[dict[str, Any]], rows: list[Columns], problems: list[Problem], digest: str) -> Store:
    blank = [column for column in store.runs.columns if column not in records[0]] if len(store.runs) else list(_blank())
    runs = pd.DataFrame([{**dict.fromkeys(blank), **record} for record in records])
    frames = [frame for frame in (store.runs, runs) if len(frame)]
    joined = pd.concat([frame.astype(object) for frame in frames], ignore_index=True).infer_objects()
    joined["seed"] = joined["seed"].astype(int)
    evaluations = measurements(records, rows, ("success",))
    if len(store.evaluations):
        evaluations = pd.concat([store.evaluations.astype(dict.fromkeys(("run", "env", "algorithm"), object)), evaluations], ignore_index=True)
        evaluations = evaluations.astype(dict.fromkeys(("run", "env", "algorithm"), "category"))
    return replace(
        store,
        runs=joined,
        evaluations=evaluations,
        settings={**store.settings, **{record["run"]: {} for record in records}},
        configs={**store.configs, **{record["run"]: {} for record in records}},
        problems=(*store.problems, *problems),
        inputs=hashlib.sha256(f"{store.inputs}{digest}".encode()).hexdigest(),
    )


def _blank() -> tuple[str, ...]:
    budgets = tuple(f"budget_{axis}" for axis in ("env_steps", "tokens", "updates", "iterations"))
    times = ("seconds", "seconds/rollout", "seconds/update", "seconds/evaluation", "peak_memory_mb")
    totals = ("env_steps", "tokens", "prompt_tokens", "updates", "episodes", "iteration", "trained_tokens")
    return (*budgets, *totals, *times, "train_area", "train_end", "train_c10", "split", "train_split", "owner")


def _read(path: Path) -> tuple[pd.DataFrame, str]:
    """The checked table and the SHA-256 of the file."""
    try:
        content = path.read_bytes()
        table = pd.read_csv(io.BytesIO(content), skipinitialspace=True, dtype={"algorithm": str, "env": str})
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # also every error of the parser
        raise DataError(f"{path} is no CSV file: {str(error).splitlines()[0]}", fix=ADVICE) from error
    missing = [name for name in NEEDED if name not in table]
    if missing:
        raise DataError(f"{path} has no column {', '.join(missing)}", fix=ADVICE)
    if table.empty:
        raise DataError(f"{path} has no row", fix=ADVICE)
    kept = [*NEEDED, *(name for name in table.columns if name in FURTHER or str(name).startswith("success/"))]
    table = table[kept].copy()
    for name in ("algorithm", "env"):
        table[name] = table[name].str.strip()
        _refuse(path, table[name].isna() | (table[name] == ""), f"{name} is blank")
    for name in kept[2:]:
        numbers = pd.to_numeric(table[name], errors="coerce")
        _refuse(path, numbers.isna() & table[name].notna(), f"{name} is no number")
        table[name] = numbers
    _refuse(path, table["step"].isna(), "step is blank")
    _refuse(path, (table["seed"] < 0) | (table["seed"] % 1 > 0), "seed is no number from 0")
    for name in ("success", *(name for name in kept if str(name).startswith("success/"))):
        _refuse(path, (table[name] < 0) | (table[name] > 1), f"{name} is not between 0 and 1 (percentages are to be divided by 100)")
    return table, hashlib.sha256(content).hexdigest()


def _refuse(path: Path, bad: pd.Series, what: str) -> None:
    if bad.any():
        raise DataError(f"{path}, line {int(np.flatnonzero(bad)[0]) + 2}: {what}", fix=ADVICE)
