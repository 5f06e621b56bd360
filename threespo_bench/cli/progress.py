"""What a user sees while a run is going on: one line that is redrawn on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from threespo_bench.training import TrainingRun

REDRAW_SECONDS = 0.25
LINE_SECONDS = 15.0
_UNITS = {"env_steps": "env steps", "tokens": "tokens", "updates": "updates", "iterations": "iterations"}


def make_progress(*, quiet: bool = False, label: str = "", stream: TextIO | None = None) -> Lines:
    """The display that fits: messages only if ``quiet``, a live line on a terminal, plain lines elsewhere."""
    stream = stream or sys.stderr
    if quiet:
        return Lines(stream, label=label, quiet=True)
    return LiveProgress(stream, label=label) if stream.isatty() else Lines(stream, label=label)


class Lines:
    """Plain lines: each evaluation, an iteration now and then, every message.

    Args:
        stream: where to. label: put before every line, to tell runs that go on at the same time apart.
        quiet: messages only.
        every: seconds between two lines about iterations.
    """

    def __init__(self, stream: TextIO, label: str = "", quiet: bool = False, every: float = LINE_SECONDS) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._label, self._quiet, self._every = f"{label}: " if label else "", quiet, every
        self._run: TrainingRun | None = None
        self._began = self._shown = time.monotonic()
        self._first: tuple[int, int, float] = (0, 0, 0.0)
        self._train: float | None = None
        self._evaluated: float | None = None

    def start(self, run: TrainingRun, path: Path) -> None:
        """The loop begins, or goes on after a resume."""
        self._run, self._began = run, time.monotonic()
        self._shown = self._began
        spent = run.budget.spent
        self._first = (spent.env_steps, spent.tokens, run.budget.fraction())
        if not self._quiet:
            verb = "resumed" if run.iteration else "started"
            self._write(f"{verb}: {run.config.algorithm.name} on {run.config.env.name}, seed {run.config.seed}, in {path}")

    def tick(self) -> None:
        """One environment step of training; called very often, so it does next to nothing."""

    def iteration(self, row: Mapping[str, Any]) -> None:
        """A row of training metrics."""
        self._train = _number(row.get("train/success"))
        now = time.monotonic()
        if now - self._shown >= self._every:
            self._shown = now
            self._show()

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """A row of evaluation metrics."""
        self._evaluated = _number(row.get("success"))
        if not self._quiet:
            self._write(f"evaluation at {row.get('env_steps', 0):,} env steps: success {_percent(self._evaluated)}")

    def message(self, text: str) -> None:
        """Something a user should know."""
        self._write(text, "yellow")

    def stop(self) -> None:
        """The loop ended."""
        if self._run is not None and not self._quiet:
            self._write(self.line())
        self._run = None

    def line(self) -> str:
        """Iteration, budget, success, speed and the time left, as one line."""
        if self._run is None:
            return ""
        budget = self._run.budget
        parts = [f"iteration {self._run.iteration}", *self._budget()]
        parts.append(f"success {_percent(self._train)} in training, {_percent(self._evaluated)} held out")
        seconds = time.monotonic() - self._began
        if seconds > 0.5:
            steps, tokens, fraction = self._first
            parts.append(f"{(budget.spent.env_steps - steps) / seconds:,.0f} env steps/s")
            parts.append(f"{(budget.spent.tokens - tokens) / seconds:,.0f} tokens/s")
            done = budget.fraction() - fraction
            if done > 0 and budget.fraction() < 1:
                parts.append(f"{duration(seconds * (1 - budget.fraction()) / done)} left")
            else:
                parts.append(duration(seconds))
        return " · ".join(parts)

    def _budget(self) -> list[str]:
        limits, spent = self._run.budget.limits, self._run.budget.spent  # type: ignore[union-attr]
        set_limits = {name: getattr(limits, name) for name in _UNITS if getattr(limits, name) is not None}
        return [f"{getattr(spent, name):,}/{limit:,} {_UNITS[name]}" for name, limit in set_limits.items()]

    def _show(self) -> None:
        if not self._quiet:
            self._write(self.line())

    def _write(self, text: str, style: str = "") -> None:
        self._console.print(Text(self._label + text, style=style), soft_wrap=True)


class LiveProgress(Lines):
    """One line that is redrawn a few times a second; evaluations and messages scroll above it."""

    def __init__(self, stream: TextIO, label: str = "") -> None:
        super().__init__(stream, label=label, every=0.0)
        self._live: Live | None = None
        self._drawn = 0.0

    def start(self, run: TrainingRun, path: Path) -> None:
        """See :meth:`Lines.start`."""
        super().start(run, path)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def tick(self) -> None:
        """Redraw, if the last time is long enough ago."""
        now = time.monotonic()
        if now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._show()

    def stop(self) -> None:
        """Take the line away and leave a last plain one."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        super().stop()

    def _show(self) -> None:
        if self._live is not None:
            self._live.update(Text(self._label + self.line(), overflow="ellipsis", no_wrap=True), refresh=True)


def duration(seconds: float) -> str:
    """``42 s``, ``3 min 12 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and value == value else None


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
