"""All finished runs of a store, ranked for each environment by their mean success over seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from threespo_bench.config.plain import flatten
from threespo_bench.errors import StorageError
from threespo_bench.inspection.summary import RunSummary
from threespo_bench.store import read_config

Interval = Callable[[Sequence[float]], tuple[float, float] | None]
_VARIANT = ("algorithm", "model", "engine")  # sections of which a difference makes another row
_PLACE = ("env", "evaluation", "rollout")  # sections of which a difference makes another table
_NOT_COMPARED = ("rollout.stall_seconds", "evaluation.every_env_steps")


@dataclass(frozen=True)
class Standing:
    """One row.

    Attributes:
        label: the algorithm, with the options that tell it from other rows of that name. budget: in words.
        seeds: those that count. success: mean over them of the last evaluation. start: of the first. interval: of ``success``, or None.
        env_steps: mean. older: runs of a seed that counts already.
    """

    label: str
    budget: str
    seeds: tuple[int, ...]
    success: float
    start: float | None
    interval: tuple[float, float] | None
    env_steps: float
    older: int = 0


@dataclass(frozen=True)
class Board:
    """The ranking in one environment, best first; ``environment`` has the options that tell it from another board of that name."""

    environment: str
    standings: tuple[Standing, ...]


def boards(runs: Iterable[RunSummary], interval: Interval) -> list[Board]:
    """A board for every environment and way of evaluating in it. Only finished runs with an evaluation count; of several of one seed the newest."""
    counted = [(run, options) for run in runs if run.state == "finished" and run.success is not None and (options := _options(run)) is not None]
    places = _labels([(run.env, _section(options, _PLACE)) for run, options in counted])
    by_place: dict[str, list[tuple[RunSummary, dict[str, Any]]]] = defaultdict(list)
    for place, pair in zip(places, counted, strict=True):
        by_place[place].append(pair)
    return [Board(place, _standings(pairs, interval)) for place, pairs in sorted(by_place.items())]


def _standings(pairs: Sequence[tuple[RunSummary, dict[str, Any]]], interval: Interval) -> tuple[Standing, ...]:
    labels = _labels([(run.algorithm, _section(options, _VARIANT)) for run, options in pairs])
    groups: dict[tuple[str, str], list[RunSummary]] = defaultdict(list)
    for label, (run, _) in zip(labels, pairs, strict=True):
        groups[label, budget_text(run.budget)].append(run)
    rows = [_standing(label, budget, group, interval) for (label, budget), group in groups.items()]
    return tuple(sorted(rows, key=lambda row: (-row.success, row.label, row.budget)))


def _standing(label: str, budget: str, group: Sequence[RunSummary], interval: Interval) -> Standing:
    newest: dict[int, RunSummary] = {}
    for run in sorted(group, key=lambda run: (run.changed or 0.0, str(run.path))):
        newest[-1 if run.seed is None else run.seed] = run
    runs = [newest[seed] for seed in sorted(newest)]
    successes, starts = [float(run.success or 0.0) for run in runs], [run.start for run in runs if run.start is not None]
    steps, start = mean(run.env_steps for run in runs), mean(starts) if starts else None
    return Standing(label, budget, tuple(sorted(newest)), mean(successes), start, interval(successes), steps, len(group) - len(runs))


def budget_text(budget: Mapping[str, int]) -> str:
    """``16,000 env_steps``."""
    return ", ".join(f"{limit:,} {name}" for name, limit in budget.items())


def _options(run: RunSummary) -> dict[str, Any] | None:
    try:
        return flatten(read_config(run.path))
    except StorageError:
        return None


def _section(options: Mapping[str, Any], sections: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key.partition(".")[0] in sections and key not in _NOT_COMPARED}


def _labels(named: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A label for each: its name, and where options differ among those of one name, the fewest that tell them apart, the preset first."""
    of_name: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for name, options in named:
        of_name[name].append(options)
    keys = {name: _telling(variants) for name, variants in of_name.items()}
    labels = []
    for name, options in named:
        told = ", ".join(f"{key.removeprefix('algorithm.')}={options[key]}" for key in keys[name] if key in options)
        labels.append(f"{name} ({told})" if told else name)
    return labels


def _telling(variants: Sequence[Mapping[str, Any]]) -> list[str]:
    different = {repr(sorted(options.items())): options for options in variants}
    varying = [
        key for key in dict.fromkeys(key for options in different.values() for key in options) if len({repr(o.get(key)) for o in different.values()}) > 1
    ]
    chosen: list[str] = []
    for key in sorted(varying, key=lambda key: (not key.endswith(".preset"), key)):
        if len({repr([options.get(k) for k in chosen]) for options in different.values()}) == len(different):
            break
        chosen.append(key)
    return chosen
