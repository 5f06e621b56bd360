"""The whole report: what it says, that it repeats, and that nothing in a store stops it."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_helpers import DRAWN, constant, contents, quick, summary
from synthetic_runs import write_curve

from threespo_bench.contracts.report import Fragment, ReportData, ReportSection
from threespo_bench.errors import DataError, StorageError, UsageError
from threespo_reports.comparison import ReportPaths, write_report
from threespo_reports.sections import BUILT_IN
from threespo_reports.sections.regenerate import seed_range


def test_files(report: ReportPaths) -> None:
    per_env = (
        "curves_{}_env_steps",
        "curves_{}_seconds",
        "curves_{}_tokens",
        "curves_{}_updates",
        "behaviour_{}",
        "differences_{}",
        "efficiency_{}",
        "samples_{}",
    )
    drawn = ["aggregate", "improvement", "profiles", *(name.format(number) for name in per_env for number in (1, 2))]
    tables = (
        "aggregate aggregate_curves behaviour cost curves differences efficiency improvement learning manifests methods option_differences profiles runs "
        "splits summary task_types"
    )
    pages = ["data.parquet", "report.html", "report.json", "report.md"]
    figures = [f"figures/{name}.{form}" for name in drawn for form in ("png", "svg")]
    assert sorted(contents(report)) == sorted([*pages, *figures, *(f"tables/{name}.csv" for name in tables.split())])


def test_numbers_of_the_worked_paired_example(tmp_path: Path) -> None:
    constant(tmp_path / "e", "grpo", [0.50, 0.50, 0.50])
    constant(tmp_path / "e", "threespo", [0.75, 0.60, 0.72])
    paths = quick([tmp_path / "e"], tmp_path / "out")
    row = summary(paths)["threespo"]
    assert (100 * row["diff_mean"], 100 * row["diff_std"]) == pytest.approx((19.00, 7.94), abs=0.005)
    assert (row["diff_p"], row["diff_seeds"], row["diff_too_few"]) == (0.25, "0 1 2", True)
    assert row["gain_mean"] == pytest.approx(0.39)
    assert row["area_mean"] == pytest.approx((0.3 + 0.69) / 2)
    assert "3SPO ends 19.0 points above GRPO over the common seeds 0, 1 and 2 (95% interval +10.0 to +25.0)" in paths.markdown.read_text()
    assert "too few seeds to reject chance (with 3 seeds p cannot go below 0.25)" in paths.html.read_text()


def test_six_seeds_allow_a_verdict(tmp_path: Path) -> None:
    constant(tmp_path / "e", "grpo", [0.4 + seed / 100 for seed in range(6)])
    constant(tmp_path / "e", "threespo", [0.6 + seed / 50 for seed in range(6)])
    text = quick([tmp_path / "e"], tmp_path / "out").markdown.read_text()
    assert "sign-flip p = 0.0312: chance alone is an unlikely explanation." in text


def test_interval_spans_seeds_far_apart(tmp_path: Path) -> None:
    """Public report R11, through the whole report: five seeds far apart, each the mean of 200 close episodes."""
    rng = np.random.default_rng(1)
    finals = [float((rng.random(200) < level).mean()) for level in (0.1, 0.3, 0.5, 0.7, 0.9)]
    constant(tmp_path / "e", "grpo", finals)
    first, second = (write_report([tmp_path / "e"], tmp_path / name) for name in ("one", "two"))
    row = summary(first)["grpo"]
    assert row["final_high"] - row["final_low"] > 0.3
    assert contents(first) == contents(second)


def test_equal_inputs_give_equal_bytes_wherever_they_lie(store: Path, report: ReportPaths, tmp_path: Path) -> None:
    moved = shutil.copytree(store, tmp_path / "elsewhere" / store.name)
    again = write_report(sorted(moved.iterdir(), reverse=True), tmp_path / "out")
    assert contents(again) == contents(report)
    assert str(tmp_path) not in again.html.read_text() + again.json.read_text() + again.markdown.read_text()


GOLDEN = [
    "report.md",
    "report.html",
    *(f"tables/{name}.csv" for name in ("aggregate", "efficiency", "improvement", "learning", "option_differences", "summary", "task_types")),
]


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_report(report: ReportPaths, name: str) -> None:
    """The report of the golden store, word for word (of the page: what can be read); ``UPDATE_GOLDEN=1 pytest`` accepts a change."""
    golden, text = Path(__file__).parent / "golden" / Path(name).name, (report.folder / name).read_text()
    if name.endswith(".html"):
        golden, text = golden.with_suffix(".txt"), page_text(text)
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


def test_golden_store_problems_are_all_told(report: ReportPaths) -> None:
    text = report.markdown.read_text()
    for expected in (
        "**gigpo-household-s1** not counted: failed (EngineError: the loss is not finite at iteration 14)",
        "**household, grpo** no run for seed 2",
        "**household, mirror** no run for seed 1, 2",
        "**alfworld** rollout.max_turns differs between runs: not a matched comparison",
        "**threespo-household-s2** metrics.jsonl: the last line is torn and was skipped",
        "**gigpo-household-s0** metrics.jsonl: 3 rows were measured again after a resume; the later ones count",
        "**gigpo-alfworld-s0** not counted: incomplete, its last evaluation is at 8986 of 20000 environment steps",
        "**gigpo-alfworld-s1** config.yaml is missing",
        "**gigpo-alfworld-s1** not counted: its config.yaml cannot be read, so nobody can tell with which options it ran",
        "**grpo-alfworld-s0** success at 20000 environment steps is read off between its evaluations at 16690 and 21271",
        "**grpo-household-s0** judged at its last evaluation, at 39516 of 40000 environment steps",
    ):
        assert expected in text


def test_golden_store_numbers(report: ReportPaths) -> None:
    rows = summary(report)
    assert {name: (row["seeds"], row["seed_list"], row["not_counted"]) for name, row in rows.items()} == {
        "threespo": (3, "0 1 2", 0),
        "gigpo": (2, "0 2", 1),
        "grpo": (2, "0 1", 0),
        "mirror": (1, "0", 0),
    }
    assert rows["threespo"]["diff_seeds"] == "0 1"
    assert rows["gigpo"]["diff_seeds"] == "0"
    assert rows["mirror"]["final_low"] is None  # one seed has no interval
    assert rows["threespo"]["final_mean"] > rows["gigpo"]["final_mean"] > rows["grpo"]["final_mean"]


def test_curves_csv_has_both_axes_and_blank_bands_for_one_seed(report: ReportPaths) -> None:
    with (report.folder / "tables" / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["axis"] for row in rows} == {"env_steps", "tokens", "updates", "seconds"}
    assert all(row["low"] == "" for row in rows if row["algorithm"] == "mirror")
    assert all(float(row["low"]) <= float(row["mean"]) <= float(row["high"]) for row in rows if row["algorithm"] == "threespo" and row["low"])


def page_text(page: str) -> str:
    """The words of a page, a line for each piece between tags; without style sheet and drawings."""
    body = re.sub(r"<(style|svg)\b.*?</\1>", "", page, flags=re.DOTALL)
    pieces = (unescape(piece).strip() for piece in re.split(r"<[^>]*>", body))
    return "\n".join(piece for piece in pieces if piece) + "\n"


class _Page(HTMLParser):
    """Collects what a browser would load, and checks that elements nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.references: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"meta", "link", "img", "br"}:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in {"href", "src"} and value and value.startswith("#"):
                self.references.add(value[1:])
            elif name in {"href", "src", "xlink:href"}:
                self.loads.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in {"meta", "link", "img", "br"}:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_self_contained_and_well_formed(report: ReportPaths) -> None:
    text = report.html.read_text()
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == []
    assert len(page.ids) == len(set(page.ids))
    clips = set(re.findall(r"url\(#([^)]+)\)", text))
    assert page.references | clips <= set(page.ids)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"|http-equiv', "", text)


def test_two_environments_are_kept_apart(tmp_path: Path) -> None:
    constant(tmp_path / "e" / "house", "grpo", [0.5, 0.6])
    constant(tmp_path / "e" / "alf", "grpo", [0.1, 0.2], env="alfworld")
    paths = write_report([tmp_path / "e"], tmp_path / "out")
    assert summary(paths, "alfworld")["grpo"]["final_mean"] == pytest.approx(0.15)
    assert summary(paths, "household")["grpo"]["final_mean"] == pytest.approx(0.55)
    assert {"curves_1_env_steps.png", "curves_2_env_steps.svg", "aggregate.png", "efficiency_2.png"} <= {path.name for path in paths.figures}


def test_differing_digests_are_flagged_and_not_averaged_away(tmp_path: Path) -> None:
    constant(tmp_path / "e", "grpo", [0.5, 0.5])
    write_curve(tmp_path / "e" / "t0", "threespo", 0, [0.3, 0.5, 0.7])
    write_curve(tmp_path / "e" / "t1", "threespo", 1, [0.3, 0.5, 0.9], manifest={"starting_weights_digest": "0000other"})
    paths = quick([tmp_path / "e"], tmp_path / "out")
    row = summary(paths)["threespo"]
    assert (row["diff_seeds"], row["diff_mean"], row["unmatched_seeds"]) == ("0", pytest.approx(0.2), "1")
    assert "**household, seed 1** starting weights differs between the algorithms: not a matched comparison" in paths.markdown.read_text()
    assert '<td class="bad">0000othe: 3SPO; 5e1f00c4: GRPO</td>' in paths.html.read_text()


def test_differing_settings_are_named(tmp_path: Path) -> None:
    constant(tmp_path / "e", "grpo", [0.5])
    constant(tmp_path / "e", "threespo", [0.6], temperature=1.0)
    paths = quick([tmp_path / "e"], tmp_path / "out")
    told = "evaluation.temperature differs between runs: not a matched comparison (0.4: grpo-s0; 1.0: threespo-s0)"
    assert [problem.message for problem in paths.problems] == [told]
    assert summary(paths)["threespo"]["unmatched_seeds"] == "0"


def test_differing_budgets_are_compared_on_the_common_range(tmp_path: Path) -> None:
    write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2, 0.3, 0.4, 0.5])
    write_curve(tmp_path / "e" / "b", "threespo", 0, [0.1, 0.3, 0.5])
    paths = quick([tmp_path / "e"], tmp_path / "out")
    assert summary(paths)["grpo"]["final_mean"] == 0.3
    assert summary(paths)["grpo"]["area_mean"] == pytest.approx(0.2)
    assert "budget differs between the algorithms" in paths.markdown.read_text()


def test_a_last_iteration_may_pass_the_budget_a_little(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2, 0.3], x=[0, 1000, 2040])
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("2040", "2000"))
    row = summary(quick([tmp_path / "e"], tmp_path / "out"))["grpo"]
    assert (row["final_mean"], row["final_at"], row["last_mean"]) == (pytest.approx(0.2 + 0.1 * 1000 / 1040), 2000, 0.3)
    config.write_text(config.read_text().replace("2000", "1500"))
    row = summary(quick([tmp_path / "e"], tmp_path / "out"))["grpo"]
    assert (row["final_mean"], row["final_at"], row["last_mean"]) == (pytest.approx(0.2 + 0.1 * 500 / 1040), 1500, 0.3)


def test_no_run_gains_by_how_far_its_last_iteration_goes(tmp_path: Path) -> None:
    """All learn at the same rate, 0.1 in 1,000 steps, and are evaluated at different places around a budget of 2,000: all end at 0.3."""
    places = {"grpo": [0, 1000, 2000], "gigpo": [0, 900, 2900], "threespo": [0, 1990, 2010, 2600], "mirror": [0, 700, 1400, 2000, 2100]}
    for name, x in places.items():
        run = write_curve(tmp_path / "e" / name, name, 0, [0.1 + step / 10_000 for step in x], x=x)
        config = run / "config.yaml"
        config.write_text(config.read_text().replace(f"env_steps: {x[-1]}", "env_steps: 2000"))
    paths = quick([tmp_path / "e"], tmp_path / "out")
    for row in summary(paths).values():
        assert (row["final_mean"], row["area_mean"], row["final_at"]) == (pytest.approx(0.3), pytest.approx(0.2), 2000)
    content = json.loads(paths.json.read_text())
    assert {row["algorithm"]: row["final_success"] for row in content["runs"]} == pytest.approx(dict.fromkeys(places, 0.3))
    assert {row["algorithm"]: row["last_at"] for row in content["runs"]} == {name: x[-1] for name, x in places.items()}
    assert content["statistics"]["final_success"].startswith("at the budget, linear between")
    assert "39.0% (at 2,900)" in paths.markdown.read_text()


def test_a_run_may_end_a_little_before_the_budget_but_not_much(tmp_path: Path) -> None:
    for name, x in {"grpo": [0, 1000, 2000], "gigpo": [0, 1000, 1900], "threespo": [0, 1000, 1800]}.items():
        run = write_curve(tmp_path / "e" / name, name, 0, [0.1, 0.2, 0.3], x=x)
        config = run / "config.yaml"
        config.write_text(config.read_text().replace(f"env_steps: {x[-1]}", "env_steps: 2000"))
    paths = quick([tmp_path / "e"], tmp_path / "out")
    rows = summary(paths)
    assert {name: (row["final_mean"], row["final_at"], row["not_counted"]) for name, row in rows.items()} == {
        "grpo": (0.3, 2000, 0),
        "gigpo": (0.3, 1900, 0),
        "threespo": (None, None, 1),
    }
    assert rows["gigpo"]["area_mean"] == pytest.approx((0.15 * 1000 + 0.25 * 900) / 1900)
    text = paths.markdown.read_text()
    assert "**gigpo** judged at its last evaluation, at 1900 of 2000 environment steps" in text
    assert "**threespo** not counted: incomplete, its last evaluation is at 1800 of 2000 environment steps" in text


def test_nan_runs_are_listed_as_failed(tmp_path: Path) -> None:
    constant(tmp_path / "e", "grpo", [0.5, 0.6])
    write_curve(tmp_path / "e" / "bad", "grpo", 2, [0.3, float("nan"), 0.9])
    paths = quick([tmp_path / "e"], tmp_path / "out")
    assert summary(paths)["grpo"]["seeds"] == 2
    assert "**bad** not counted: an evaluation is not a finite number" in paths.markdown.read_text()


def test_a_run_that_was_retried_counts_once(tmp_path: Path) -> None:
    write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2], state="failed", error="disk full")
    write_curve(tmp_path / "e" / "b", "grpo", 0, [0.1, 0.4])
    write_curve(tmp_path / "e" / "c", "grpo", 0, [0.1, 0.6])
    paths = quick([tmp_path / "e"], tmp_path / "out")
    row = summary(paths)["grpo"]
    assert (row["seeds"], row["final_mean"], row["not_counted"]) == (1, 0.6, 2)
    assert "**b** not counted: another run of the same algorithm, environment and seed counts" in paths.markdown.read_text()


@pytest.mark.parametrize("state", ["failed", "running", "interrupted"])
def test_a_report_comes_even_if_no_run_finished(tmp_path: Path, state: str) -> None:
    write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2], state=state)
    write_curve(tmp_path / "e" / "b", "threespo", 0, [0.1, 0.2], state=state)
    paths = write_report([tmp_path / "e"], tmp_path / "out")
    assert "No finished run: nothing can be compared yet." in paths.markdown.read_text()


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "status.json", "metrics.jsonl", "timings.jsonl"])
def test_a_report_comes_without_any_file(store: Path, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(store, tmp_path / "first")
    for run in copy.iterdir():
        (run / name).unlink(missing_ok=True)
    paths = (write_report if name == "metrics.jsonl" else quick)([copy], tmp_path / "out")
    assert sum(f"{name} is missing" in problem.message for problem in paths.problems) == 15
    assert not [problem for problem in paths.problems if problem.where.startswith("section")]
    assert paths.html.exists()


def test_a_deleted_run_is_missed(store: Path, tmp_path: Path) -> None:
    paths = quick([*sorted(store.iterdir()), store / "grpo-household-s2"], tmp_path / "out")
    assert "**grpo-household-s2** the run directory is missing" in paths.markdown.read_text()


def test_odd_text_cannot_break_the_page(tmp_path: Path) -> None:
    error = "<script>alert(1)</script> | **x**"
    write_curve(tmp_path / "e" / "a<b>|c", "<i>x</i>", 0, [0.1, 0.2], state="failed", error=error)
    write_curve(tmp_path / "e" / "b", "<i>x</i>", 1, [0.1, 0.2])
    paths = quick([tmp_path / "e"], tmp_path / "out")
    assert "<script>" not in paths.html.read_text() + paths.markdown.read_text()
    assert "<i>" not in paths.html.read_text()
    assert "\\| \\*\\*x\\*\\*" in paths.markdown.read_text()


def test_baseline_is_found_by_either_name_and_refused_with_advice(store: Path, tmp_path: Path) -> None:
    paths = quick([store], tmp_path / "out", baseline="3spo")
    assert summary(paths)["grpo"]["baseline"] == "threespo"
    with pytest.raises(UsageError, match="baseline gigpoo") as caught:
        quick([store], tmp_path / "out", baseline="gigpoo")
    assert "gigpo" in caught.value.fix


def test_baseline_among_variants_is_found_by_what_its_runs_are_called(tmp_path: Path) -> None:
    """``grpo`` of ``grpo`` and ``grpo-16`` is no label: their labels tell the options apart."""
    for name, size in (("grpo", 8), ("grpo-16", 16)):
        for seed in (0, 1):
            write_curve(tmp_path / "e" / f"{name}-household-seed{seed}", "grpo", seed, [0.3, 0.6], options={"group_size": size})
            write_curve(tmp_path / "f" / f"{name}-s{seed}", "grpo", seed, [0.3, 0.6], options={"group_size": size})
    for wanted, label in (("grpo", "grpo (group_size=8)"), ("GRPO-16", "grpo (group_size=16)"), ("GRPO (group_size=8)", "grpo (group_size=8)")):
        rows = summary(quick([tmp_path / "e"], tmp_path / "out", baseline=wanted))
        assert {row["baseline"] for row in rows.values() if row["baseline"]} == {label}
    with pytest.raises(UsageError, match="baseline grpo") as caught:
        quick([tmp_path / "f"], tmp_path / "out", baseline="grpo")
    assert "several variants" in caught.value.fix and "'grpo (group_size=16)'" in caught.value.fix
    write_curve(tmp_path / "g" / "3spo", "threespo", 0, [0.3, 0.6], options={"preset": "paper"})
    write_curve(tmp_path / "g" / "grpo", "grpo", 0, [0.3, 0.6])
    assert summary(quick([tmp_path / "g"], tmp_path / "out", baseline="3spo"))["grpo"]["baseline"] == "threespo"


def test_nothing_to_report_and_nowhere_to_write(store: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run found"):
        quick([tmp_path / "gone"], tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write the report"):
        quick([store], tmp_path / "file" / "out")


class _Mine(ReportSection):
    name, title, order = "mine", "Mine", 25

    def render(self, data: ReportData) -> Fragment:
        return Fragment(f"<p>{len(data.runs)} runs</p>", "runs", tables={"mine": data.runs[["run", "seed"]]})


class _Broken(ReportSection):
    name, title, order = "broken", "Broken", 65

    def render(self, data: ReportData) -> Fragment:
        raise KeyError("no such column")


def test_third_party_sections_stand_in_their_place_and_break_alone(store: Path, tmp_path: Path) -> None:
    built_in = [section() for section in BUILT_IN if section.name not in DRAWN]
    paths = write_report([store], tmp_path / "out", sections=[_Broken(), *built_in, _Mine()])
    text = paths.markdown.read_text()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE)[:3] == ["Verdict", "Mine", "Success per task type and split"]
    assert (tmp_path / "out" / "tables" / "mine.csv").exists()
    assert text.count("could not be made: KeyError: 'no such column'") == 2  # in its place, and in the list of problems


def test_seed_range() -> None:
    assert [seed_range(seeds) for seeds in ([2, 0, 1], [0, 2], [4], [])] == ["0..2", "0,2", "4", ""]


def test_budgets_in_iterations_and_no_usual_baseline(tmp_path: Path) -> None:
    for name in ("one", "two"):
        constant(tmp_path / "e", name, [0.5])
        config = tmp_path / "e" / f"{name}-s0" / "config.yaml"
        config.write_text(config.read_text().replace("env_steps: 2000", "env_steps: null").replace("iterations: null", "iterations: 1"))
    paths = quick([tmp_path / "e"], tmp_path / "out")
    assert summary(paths)["one"]["final_mean"] == pytest.approx(0.4)
    text = paths.markdown.read_text()
    assert "Every run is judged at 1 iterations (the budget)" in text
    assert "--baseline NAME adds them" in text
