"""What single sections say and draw, and the files for programs beside the page."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from report_helpers import constant, quick, summary
from synthetic_runs import write_curve, write_lines

from threespo_bench.errors import UsageError
from threespo_reports.comparison import ReportPaths, write_report
from threespo_reports.sections import BUILT_IN


def test_switch_has_a_view_for_each_axis_and_prints_the_first(report: ReportPaths) -> None:
    page = report.html.read_text()
    switch = page[page.index('<fieldset class="switch">') :]
    switch = switch[: switch.index("</fieldset>")]
    labels = re.findall(r'<input type="radio" name="curves_1_env_steps" id="[^"]+"( checked)?/><label for="[^"]+">([^<]+)</label>', switch)
    assert labels == [(" checked", "env steps"), ("", "tokens"), ("", "updates"), ("", "wall clock")]
    assert switch.count('<div class="view">') == 4
    assert "<script" not in page


def test_smoothing_is_stated_and_changes_no_number(store: Path, report: ReportPaths, tmp_path: Path) -> None:
    curves = [section() for section in BUILT_IN if section.name in ("verdict", "curves", "regenerate")]
    paths = write_report([store], tmp_path / "out", sections=curves, smooth=3)
    text = paths.markdown.read_text()
    assert "All curves are trailing means over 3 evaluations; no number of this report is smoothed." in text
    assert "--smooth 3" in text
    assert "No smoothing." in report.markdown.read_text()
    assert summary(paths) == summary(report)
    assert (paths.folder / "tables" / "curves.csv").read_bytes() != (report.folder / "tables" / "curves.csv").read_bytes()
    with pytest.raises(UsageError, match="smooth=0 is out of range"):
        write_report([store], tmp_path / "out", smooth=0)


def test_parquet_has_every_measurement(report: ReportPaths, store: Path) -> None:
    frame = pd.read_parquet(report.folder / "data.parquet")
    rows = sum(len((run / "metrics.jsonl").read_text().splitlines()) for run in store.iterdir())
    assert len(frame) == rows - 2 - 3  # two torn lines, and three rows that a resume repeated
    assert set(frame["kind"]) == {"eval", "train"}
    last = frame[(frame["run"] == "threespo-household-s0") & (frame["kind"] == "eval")].iloc[-1]
    assert last["success"] == pytest.approx(json.loads(report.json.read_text())["runs"][-3]["last_success"])
    assert (last["algorithm"], last["env"], last["seed"]) == ("threespo", "household", 0)
    assert frame.loc[frame["run"] == "gigpo-household-s1", "counted"].eq(False).all()


def test_json_has_the_numbers_of_every_table(report: ReportPaths) -> None:
    content = json.loads(report.json.read_text())
    for path in report.tables:
        rows = content[path.stem] if path.stem in ("summary", "runs") else content["tables"][path.stem]
        assert len(rows) == len(pd.read_csv(path)), path.stem


def test_options_that_differ_are_flagged_unless_they_are_the_algorithms_own(tmp_path: Path) -> None:
    constant(tmp_path / "e", "grpo", [0.5], options={"group_size": 4, "only_mine": 1})
    constant(tmp_path / "e", "threespo", [0.6], rollout={"max_turns": 30})
    paths = quick([tmp_path / "e"], tmp_path / "out")
    frame = pd.read_csv(paths.folder / "tables" / "option_differences.csv")
    told = {(row["option"], row["value"]): (row["algorithms"], row["flagged"]) for row in frame.to_dict("records")}
    assert told[("algorithm.options.group_size", "4")] == ("grpo", False)
    assert told[("rollout.max_turns", "30")] == ("threespo", True)
    assert told[("rollout.max_turns", "not set")] == ("grpo", True)
    assert not any("only_mine" in option for option, _ in told)
    assert "Options outside the algorithms' own section differ: rollout.max_turns." in paths.markdown.read_text()


def test_a_run_that_overshoots_far_is_told(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2, 0.3], x=[0, 1000, 2200])
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("2200", "2000"))
    problems = quick([tmp_path / "e"], tmp_path / "out").problems
    told = "success at 2000 environment steps is read off between its evaluations at 1000 and 2200"
    assert ("a", "note", told) in [(problem.where, problem.severity, problem.message) for problem in problems]


def test_types_of_tasks_are_judged_where_the_run_is(tmp_path: Path) -> None:
    """0.5 at 1,000 steps and 0.9 at 3,000 is 0.7 at the budget of 2,000; a type that an evaluation lacks is left out."""
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2, 0.3], x=[0, 1000, 3000])
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row, look, cool in zip(rows, (0.0, 0.5, 0.9), (0.0, None, 0.9), strict=True):
        row |= {"success/look": look, "success/cool": cool}
    write_lines(run / "metrics.jsonl", rows)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("env_steps: 3000", "env_steps: 2000"))
    frame = pd.read_csv(quick([tmp_path / "e"], tmp_path / "out").folder / "tables" / "task_types.csv")
    assert dict(zip(frame["kind"], frame["mean"], strict=True)) == {"look": pytest.approx(0.7)}


def test_sample_efficiency_and_its_bounds(tmp_path: Path) -> None:
    """GRPO is at 60% after 1,000 steps in both seeds; 3SPO after 500; GiGPO never within 2,000."""
    for seed in (0, 1):
        write_curve(tmp_path / "e" / f"g{seed}", "grpo", seed, [0.4, 0.6, 0.7])
        write_curve(tmp_path / "e" / f"t{seed}", "threespo", seed, [0.4, 0.8, 0.9])
        write_curve(tmp_path / "e" / f"i{seed}", "gigpo", seed, [0.4, 0.5, 0.55])
    paths = write_report([tmp_path / "e"], tmp_path / "out", sections=[section() for section in BUILT_IN if section.name == "efficiency"])
    frame = pd.read_csv(paths.folder / "tables" / "efficiency.csv")
    at = frame[(frame["axis"] == "env_steps") & (frame["threshold"] == 0.6)].set_index("algorithm")
    assert at.loc["threespo", ["median", "reached", "speed_up"]].tolist() == [500, 2, 2.0]
    assert at.loc["gigpo", ["reached", "budget", "speed_up", "bound"]].tolist() == [0, 2000, 0.5, "at most"]
    assert math.isnan(at.loc["gigpo", "median"])
    text = paths.markdown.read_text()
    assert "> 2,000 (0 of 2 seeds)" in text
    assert "&lt; 0.50x" in text


def test_samples_and_diagnostics_are_drawn_for_what_has_them(report: ReportPaths) -> None:
    frame = pd.read_csv(report.folder / "tables" / "behaviour.csv")
    household = frame[frame["env"] == "household"]
    assert set(household[household["metric"] == "state/mean_score"]["algorithm"]) == {"threespo"}
    assert set(household[household["metric"] == "update/kl"]["algorithm"]) == {"threespo", "gigpo", "grpo", "mirror"}
    invalid = household[(household["metric"] == "train/valid_actions") & (household["algorithm"] == "threespo")]["mean"]
    assert (invalid < 0.1).all()  # drawn as invalid actions
