"""The row of a run in the table of runs: state, budget, totals, time, digests."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from threespo_reports.learning_metrics import area, composite10, end_reward
from threespo_reports.reading import RunFiles
from threespo_reports.rows import Columns
from threespo_reports.variants import as_text, flat

ERROR_LENGTH = 200
SHARED_SETTINGS = ("evaluation", "rollout", "train_split", "engine.name")  # of the configuration; the algorithm's own options differ by design


def describe(run: RunFiles, totals: tuple[str, ...], phases: tuple[str, ...]) -> dict[str, Any]:
    """The columns of the table of runs, without the run's name, environment and algorithm."""
    budget = run.config.get("budget")
    budget = budget if isinstance(budget, Mapping) else {}
    settings = shared_settings(run.config)
    return {
        "seed": _seed(run),
        "configured": bool(run.config),
        "state": str(run.status.get("state", "unknown")),
        "error": one_line(run.status.get("error")),
        **{f"budget_{key}": budget.get(key) for key in ("env_steps", "tokens", "updates", "iterations")},
        **{key: _largest([columns[key] for columns in run.metrics.kinds.values() if key in columns]) for key in totals},
        "evaluations": run.metrics.length("eval"),
        "trained_tokens": _trained_tokens(run.metrics.of("train")),
        **_training_metrics(run.metrics.of("train")),
        **_time(run, phases),
        **_digests(run.manifest),
        "settings_digest": short_digest(settings) if settings else None,
        "split": _text_at(run.config, "evaluation", "split"),
        "train_split": run.config.get("train_split") if isinstance(run.config.get("train_split"), str) else None,
        "owner": _owner(run.manifest),
    }


def shared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options that all runs of a comparison should have in common."""
    return {key: value for key, value in flat(config).items() if any(key == name or key.startswith(f"{name}.") for name in SHARED_SETTINGS)}


def _seed(run: RunFiles) -> int:
    seed = run.config.get("seed", run.manifest.get("seed"))
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else -1


def one_line(error: Any) -> str:
    """An error message cut to one line; of a traceback, its last line."""
    lines = [line.strip() for line in str(error or "").splitlines() if line.strip()]
    if not lines:
        return ""
    line = lines[-1] if lines[0].startswith("Traceback") else lines[0]
    return line if len(line) <= ERROR_LENGTH else line[: ERROR_LENGTH - 3] + "..."


def _text_at(config: Mapping[str, Any], section: str, key: str) -> str | None:
    value = config.get(section)
    found = value.get(key) if isinstance(value, Mapping) else None
    return found if isinstance(found, str) else None


def _largest(columns: list[np.ndarray]) -> float | None:
    values = np.concatenate(columns) if columns else np.array([])
    values = values[np.isfinite(values)]
    return float(values.max()) if values.size else None


def _trained_tokens(columns: Columns) -> float:
    """Tokens that entered updates; NaN where an iteration does not say."""
    tokens = columns.get("update/tokens")
    if tokens is None or not np.isfinite(tokens).all():
        return math.nan
    return math.fsum(tokens)


def _training_metrics(columns: Columns) -> dict[str, float]:
    """Area, end reward and C10 of the success of training episodes, a point an iteration."""
    values = columns.get("train/success", np.array([]))
    values = values[np.isfinite(values)]
    if not values.size:
        return {"train_area": math.nan, "train_end": math.nan, "train_c10": math.nan}
    return {"train_area": area(values), "train_end": end_reward(values), "train_c10": composite10(values)}


def _time(run: RunFiles, phases: tuple[str, ...]) -> dict[str, float]:
    """Wall-clock seconds in all and by phase, and the peak of memory; NaN where nothing was recorded."""
    kinds = list(run.timings.kinds.values())

    def column(name: str) -> np.ndarray:
        values = np.concatenate([columns[name] for columns in kinds if name in columns] or [np.array([])])
        return values[np.isfinite(values)]

    found = {"seconds": float(column("seconds").max(initial=-math.inf))}
    for phase in phases:
        values = column(f"seconds/{phase}")
        found[f"seconds/{phase}"] = math.fsum(values) if values.size else math.nan
    found["peak_memory_mb"] = float(column("peak_memory_mb").max(initial=-math.inf))
    return {name: value if math.isfinite(value) else math.nan for name, value in found.items()}


def _digests(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Every ``*_digest`` of the manifest, and one of the recorded versions: what must be equal for a matched comparison."""
    found = {key: str(value) for key, value in sorted(manifest.items()) if key.endswith("_digest") and value is not None}
    if isinstance(manifest.get("versions"), Mapping):
        found["versions_digest"] = short_digest(manifest["versions"])
    return found


def short_digest(value: Any) -> str:
    """Sixteen hexadecimal digits that equal values share."""
    return hashlib.sha256(as_text(value).encode()).hexdigest()[:16]


def _owner(manifest: Mapping[str, Any]) -> str:
    """The distribution that brought the algorithm, with its version, as far as the manifest says."""
    algorithm = manifest.get("algorithm")
    owner = algorithm.get("owner", algorithm.get("distribution", "")) if isinstance(algorithm, Mapping) else ""
    if isinstance(owner, Mapping):
        return " ".join(str(owner[key]) for key in ("name", "version") if key in owner)
    return str(owner or "")
