"""The ways in which ``run`` and ``compare`` take overrides: ``key=value`` after the options, ``--set key=value``, ``--budget env_steps=N``."""

from __future__ import annotations

from collections.abc import Sequence

from threespo_bench.errors import UsageError


def budget_overrides(budgets: Sequence[str]) -> list[str]:
    """What is said as ``env_steps=100`` after ``--budget``, as the override ``budget.env_steps=100``."""
    for budget in budgets:
        if "=" not in budget:
            raise UsageError(f"--budget {budget}: has no '='", fix=f"write --budget env_steps={budget}" if budget.isdigit() else "write --budget env_steps=N")
    return [budget if budget.startswith("budget.") else f"budget.{budget}" for budget in budgets]


def algorithm_and_preset(text: str) -> tuple[str, list[str]]:
    """``3spo@paper`` is the algorithm 3spo with the override that chooses its preset."""
    name, at, preset = text.partition("@")
    if at and not preset:
        raise UsageError(f"--algo {text}: no preset after '@'", fix=f"write --algo {name}, or {name}@PRESET; threespo-bench info {name} shows the presets")
    return name, [f"algorithm.preset={preset}"] if preset else []


def scoped(texts: Sequence[str], algorithms: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Separate overrides for all runs from those for one algorithm (``grpo:algorithm.group_size=4``).

    Raises:
        UsageError: the algorithm before the colon is not among ``algorithms``.
    """
    common: list[str] = []
    own: dict[str, list[str]] = {}
    for text in texts:
        scope, colon, rest = text.partition("=")[0].partition(":")
        if not colon:
            common.append(text)
        elif scope not in algorithms:
            raise UsageError(f"{text}: {scope!r} is not one of the compared algorithms", fix=f"write one of {', '.join(algorithms)} before the colon")
        else:
            own.setdefault(scope, []).append(rest + text[len(scope) + 1 + len(rest) :])
    return common, own


def seeds(text: str) -> list[int]:
    """``0..4`` is 0 to 4 inclusive, ``0,3,5`` those three; both can be mixed.

    Raises:
        UsageError: it is neither, or a seed comes twice.
    """
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        first, dots, last = part.partition("..")
        if not first.isdigit() or (dots and not last.isdigit()) or (dots and int(last) < int(first)):
            raise UsageError(f"--seeds {text}: {part!r} is neither a seed nor a range", fix="write --seeds 0..4 or --seeds 0,3,5")
        found += range(int(first), int(last) + 1) if dots else [int(first)]
    if len(set(found)) != len(found):
        raise UsageError(f"--seeds {text}: a seed comes twice")
    return found
