"""The display of a run."""

from __future__ import annotations

import io
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from threespo_bench.budget import Budget, Limits
from threespo_bench.cli import progress as module
from threespo_bench.cli.progress import Lines, LiveProgress, duration, make_progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def run() -> SimpleNamespace:
    """As much of a run as a display looks at."""
    config = SimpleNamespace(algorithm=SimpleNamespace(name="grpo"), env=SimpleNamespace(name="household"), seed=3)
    return SimpleNamespace(config=config, budget=Budget(Limits(env_steps=1000)), iteration=0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test sets."""
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now)
    return made


def test_plain_lines(run: SimpleNamespace, clock: SimpleNamespace) -> None:
    stream = io.StringIO()
    shown = make_progress(stream=stream)
    assert type(shown) is Lines
    shown.start(run, Path("runs/x"))
    shown.evaluation({"env_steps": 0, "success": 0.25})
    clock.now += 1
    run.iteration = 1
    shown.iteration({"train/success": 0.5})  # too early for a line
    clock.now += 19
    run.iteration = 2
    run.budget.charge(env_steps=250, tokens=1000)
    shown.iteration({"train/success": 0.5})
    shown.message("something to know")
    shown.stop()
    lines = stream.getvalue().splitlines()
    assert lines[0] == "started: grpo on household, seed 3, in runs/x"
    assert lines[1] == "evaluation at 0 env steps: success 25%"
    assert lines[2] == "iteration 2 · 250/1,000 env steps · success 50% in training, 25% held out · 12 env steps/s · 50 tokens/s · 1 min 0 s left"
    assert lines[3] == "something to know"
    assert len(lines) == 5


def test_the_time_left_counts_from_where_a_resumed_run_began(run: SimpleNamespace, clock: SimpleNamespace) -> None:
    run.iteration = 7
    run.budget.charge(env_steps=500)
    stream = io.StringIO()
    shown = Lines(stream)
    shown.start(run, Path("r"))
    clock.now += 10
    run.budget.charge(env_steps=100)
    assert stream.getvalue().startswith("resumed: ")
    assert "10 env steps/s" in shown.line()
    assert "40 s left" in shown.line()


def test_quiet_shows_messages_only(run: SimpleNamespace) -> None:
    stream = io.StringIO()
    shown = make_progress(quiet=True, stream=stream, label="grpo-0")
    shown.start(run, Path("r"))
    shown.tick()
    shown.iteration({"train/success": 1.0})
    shown.evaluation({"success": 1.0})
    shown.message("watch out")
    shown.stop()
    assert stream.getvalue() == "grpo-0: watch out\n"


def test_unknown_success_is_a_dash(run: SimpleNamespace) -> None:
    shown = Lines(io.StringIO())
    shown.start(run, Path("r"))
    shown.iteration({"train/success": float("nan")})
    shown.evaluation({"success": None})
    assert "success - in training, - held out" in shown.line()


def test_ticks_are_throttled(run: SimpleNamespace) -> None:
    stream = Terminal()
    shown = make_progress(stream=stream)
    assert isinstance(shown, LiveProgress)
    shown.start(run, Path("r"))
    shown.tick()
    drawn, once = len(stream.getvalue()), 2000  # characters of one frame at the most
    start = time.perf_counter()
    for _ in range(1000):
        shown.tick()
    frames = (time.perf_counter() - start) // module.REDRAW_SECONDS + 1
    assert len(stream.getvalue()) - drawn <= frames * once
    shown.stop()
    shown.stop()
    assert "iteration 0" in stream.getvalue()


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0, 59.4, 60, 3599, 7500)] == ["0 s", "59 s", "1 min 0 s", "59 min 59 s", "2 h 5 min"]
