"""The tables of the report: data frames for the CSV files, and their readable form."""

from __future__ import annotations

from typing import Any

import pandas as pd

from threespo_bench.contracts.report import ReportData
from threespo_reports.blocks import Cell, Table
from threespo_reports.formatting import count, duration, fraction, listing, memory, p_value, percent, percent_range, points, points_range, task_kind
from threespo_reports.loading import PHASES
from threespo_reports.selection import spoken
from threespo_reports.styles import styles

KIND = "success/"
SHORT = 8  # characters of a digest


def of_env(frame: pd.DataFrame, env: str) -> pd.DataFrame:
    """The rows of one environment."""
    return frame[frame["env"] == env]


def _name(data: ReportData, row: dict[str, Any]) -> Cell:
    label = row["algorithm"]
    return Cell(data.names.get(label, label), "baseline" if label == data.baseline else "", key=styles(data.algorithms).get(label))


def verdict(data: ReportData, rows: pd.DataFrame) -> Table:
    """Final success, gain, area and the paired difference, best first."""
    against = [f"against {data.names[data.baseline]}, points", "p"] if data.baseline is not None else []
    columns = ["algorithm", "final success", *against, "gain, points", "area", "IQM", "start", "seeds", "not counted"]
    body: list[list[Cell | str]] = []
    for row in rows.to_dict("records"):
        missing = row["not_counted"]
        body.append(
            [
                _name(data, row),
                Cell(percent(row["final_mean"]), percent_range(row["final_low"], row["final_high"])),
                *(_difference(row) if against else []),
                Cell(points(row["gain_mean"]), points_range(row["gain_low"], row["gain_high"])),
                fraction(row["area_mean"]),
                percent(row["final_iqm"]),
                percent(row["start_mean"]),
                Cell(str(row["seeds"]), row["seed_list"]),
                Cell(str(missing) if missing else "", mark="bad" if missing else ""),
            ]
        )
    return Table(columns, body)


def _difference(row: dict[str, Any]) -> list[Cell]:
    few = "too few seeds" if row.get("diff_too_few") is True else ""
    return [Cell(points(row.get("diff_mean")), points_range(row.get("diff_low"), row.get("diff_high"))), Cell(p_value(row.get("diff_p")), few)]


def final_rows(data: ReportData) -> pd.DataFrame:
    """The evaluation that counts as final, one row per counted run."""
    final_at = data.runs.set_index("run")["final_at"]
    points_of = data.evaluations[data.evaluations["counted"]]
    chosen = [group[group[data.horizons[str(env)].axis] == group["run"].map(final_at)] for env, group in points_of.groupby("env")]
    return pd.concat(chosen).drop_duplicates("run", keep="last") if chosen else points_of


def task_types(data: ReportData) -> pd.DataFrame:
    """Final success by environment, algorithm and type of task: mean, lowest and highest seed, number of seeds."""
    final = final_rows(data)
    kinds = [column for column in final.columns if column.startswith(KIND)]
    long = final.melt(["env", "algorithm", "seed"], kinds, var_name="kind", value_name="rate").dropna(subset="rate")
    columns = ["env", "algorithm", "kind", "mean", "low", "high", "seeds"]
    if long.empty:
        return pd.DataFrame(columns=columns)
    long["kind"], long["rate"] = long["kind"].str.removeprefix(KIND), long["rate"].astype(float)
    grouped = long.groupby(["env", "algorithm", "kind"])["rate"]
    return grouped.agg(mean="mean", low="min", high="max", seeds="count").reset_index()[columns]


def task_type_table(data: ReportData, rows: pd.DataFrame) -> Table:
    """Algorithms down, types across."""
    kinds = sorted(set(rows["kind"]))
    cells = {(row["algorithm"], row["kind"]): row for row in rows.to_dict("records")}
    order = [label for label in of_env(data.summary, rows["env"].iloc[0])["algorithm"] if label in set(rows["algorithm"])]
    body: list[list[Cell | str]] = []
    for label in order:
        line: list[Cell | str] = [_name(data, {"algorithm": label})]
        for kind in kinds:
            row = cells.get((label, kind))
            spread = percent_range(row["low"], row["high"]) if row and row["seeds"] > 1 else ""
            line.append(Cell(percent(row["mean"]), spread) if row else Cell(""))
        body.append(line)
    return Table(["algorithm", *map(task_kind, kinds)], body)


def digest_rows(data: ReportData) -> Table:
    """What was compared: a line for all seeds where the algorithms agree, and a line per seed that says who had which where they do not."""
    several = len(data.environments) > 1
    body: list[list[Cell | str]] = []
    for (env, digest, agree), group in data.digests.groupby(["env", "digest", "agree"], sort=True):
        where = [env] if several else []
        if agree == "differs":
            body += [
                [*where, spoken(digest), str(row["seed"]), Cell("differs", mark="bad"), Cell(_who(data, row), mark="bad")] for row in group.to_dict("records")
            ]
            continue
        recorded = {value for values in group["values"] for value in values.values() if value}
        missing = {name for values in group["values"] for name, value in values.items() if not value}
        note = "same" if agree == "same" else "not recorded" if not recorded else "not recorded by " + ", ".join(sorted(data.names[name] for name in missing))
        body.append([*where, spoken(digest), " ".join(map(str, group["seed"])), note, " ".join(sorted(_short(value, digest) for value in recorded))])
    columns = [*(["environment"] if several else []), "what", "seeds", "among algorithms", "value"]
    return Table(columns, body, words=frozenset(range(len(columns))))


def _who(data: ReportData, row: dict[str, Any]) -> str:
    holders: dict[str, list[str]] = {}
    for name, value in row["values"].items():
        holders.setdefault(_short(value, row["digest"]) or "not recorded", []).append(data.names[name])
    return "; ".join(f"{value}: {listing(sorted(names))}" for value, names in sorted(holders.items()))


def _short(value: str, name: str) -> str:
    return value if name == "budget" or len(value) <= SHORT else value[:SHORT]


def cost(data: ReportData, rows: pd.DataFrame) -> Table:
    """Work, time and memory per run."""
    columns = ["algorithm", "env steps", "tokens", "updates", "episodes", "iterations", "time", *(f"of it {phase}" for phase in PHASES), "peak memory"]
    body: list[list[Cell | str]] = []
    for row in rows.to_dict("records"):
        if not row["seeds"]:
            continue
        work = [count(row[key]) for key in ("env_steps", "tokens", "updates", "episodes", "iteration")]
        time = [duration(row["seconds"]), *(duration(row[f"seconds/{phase}"]) for phase in PHASES)]
        body.append([_name(data, row), *work, *time, memory(row["peak_memory_mb"])])
    return Table(columns, body)


def all_runs(data: ReportData) -> Table:
    """Every run with its state."""
    body: list[list[Cell | str]] = []
    for row in data.runs.to_dict("records"):
        state = Cell(row["state"], "" if row["counted"] else row["reason"] if row["reason"] != row["state"] else "not counted", "" if row["counted"] else "bad")
        seed = "" if row["seed"] == -1 else str(row["seed"])
        numbers = [count(row["env_steps"]), count(row["evaluations"]), percent(row["final_success"]), duration(row["seconds"])]
        body.append([row["run"], data.names.get(row["algorithm"], row["algorithm"]), row["env"], seed, state, *numbers, Cell(row["error"], mark="muted")])
    columns = ["run", "algorithm", "environment", "seed", "state", "env steps", "evaluations", "final success", "time", "error"]
    return Table(columns, body, words=frozenset({1, 2, 4, 9}))
