"""What a tracker is told about a run, read from the run folder: the same while the run goes on and long after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from threespo_bench.contracts.tracker import TaskSet
from threespo_bench.rows import Row, RowFile
from threespo_bench.store import METRICS, TIMINGS

_TOTALS = ("iteration", "env_steps", "tokens", "prompt_tokens", "episodes", "updates")


def metrics_of(row: Row) -> dict[str, float]:
    """A stored row as a tracker gets it: those of evaluations under ``eval/``; NaN for what was not finite."""
    numbers = {name: float("nan") if value is None else value for name, value in row.items() if name != "kind"}
    if row["kind"] == "train":
        return numbers
    return {f"eval/{name}": value for name, value in numbers.items() if name not in _TOTALS}


def step_of(row: Row) -> int:
    """Where a row stands on a tracker's axis: environment steps; iterations for an algorithm that plays nothing, which would have all its points at 0."""
    return int(row["env_steps"] or row["iteration"])


def points(path: Path, manifest: Mapping[str, Any]) -> Iterator[tuple[dict[str, float], int, float | None]]:
    """The rows of the run in ``path``: metrics, step, and when that was (pauses between processes left out) in seconds since the epoch."""
    began, timings = time_of(manifest.get("incidental", {}).get("started")), RowFile(path / TIMINGS).read()
    for place, row in enumerate(RowFile(path / METRICS).read()):
        seconds = timings[place].get("seconds") if place < len(timings) else None
        yield metrics_of(row), step_of(row), None if began is None or seconds is None else began + seconds


def tags_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a run, from its plain configuration."""
    named = {section: str((config.get(section) or {}).get("name", "?")) for section in ("algorithm", "env")}
    preset = str((config.get("algorithm") or {}).get("preset") or "")
    return {"kind": "run", **named, "seed": str(config.get("seed")), **({"preset": preset} if preset else {})}


def task_sets(config: Mapping[str, Any], manifest: Mapping[str, Any]) -> list[TaskSet]:
    """The training and the evaluation tasks of a run, from its plain configuration and its manifest."""
    env = config.get("env") or {}
    common = {"environment": env.get("name"), "options": env.get("options"), "environment_digest": manifest.get("environment_digest")}
    splits = (
        ("training", config.get("train_split", "train"), "task_order_digest"),
        ("evaluation", (config.get("evaluation") or {}).get("split"), "evaluation_tasks_digest"),
    )
    return [
        TaskSet(f"{env.get('name')}/{split}", context, str(manifest[digest]), common | {"split": split, digest: manifest[digest], "seed": config.get("seed")})
        for context, split, digest in splits
        if split and manifest.get(digest)
    ]


def time_of(text: Any) -> float | None:
    """A time as the run folder writes it, in seconds since the epoch."""
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None
