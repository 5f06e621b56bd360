"""Figures: fixed looks, labels that do not touch, equal bytes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from synthetic_runs import write_curve

from threespo_algorithms import threespo_algorithms
from threespo_reports.comparison import ReportPaths
from threespo_reports.figures import single_run_curve, spread_labels
from threespo_reports.styles import _KNOWN, find_label, known_name, printed_name, styles, usual_baseline
from threespo_reports.svg import inline


def test_an_algorithm_looks_the_same_in_every_company() -> None:
    alone, together = styles(["threespo"]), styles(["grpo", "threespo", "mine", "ppo"])
    assert alone["threespo"] == together["threespo"]
    assert styles(["mine"])["mine"] == styles(["mine", "yours"])["mine"]


def test_looks_of_many_algorithms_are_distinct() -> None:
    looks = styles([*(f"algorithm{n}" for n in range(25)), "grpo", "gigpo", "threespo"])
    assert len(set(looks.values())) == 28
    assert len(set(styles(f"algorithm{n}" for n in range(48)).values())) == 48
    assert len(styles(f"algorithm{n}" for n in range(200))) == 200  # never at a loss, though looks repeat


def test_known_names_have_looks_of_their_own_and_usual_companies_differ_in_colour() -> None:
    assert len(set(styles(_KNOWN).values())) == len(_KNOWN) >= 30
    assert all(styles(_KNOWN)[name] == styles([name])[name] for name in _KNOWN)
    few = styles(["threespo", "gigpo", "grpo", "hgpo", "rloo", "ppo", "reinforce_pp", "spo_stream"])
    assert len({look.colour for look in few.values()}) == 8
    unknown = styles([*_KNOWN, "mine"])["mine"]
    assert unknown == styles(["mine"])["mine"]
    assert unknown not in styles(_KNOWN).values()


def test_every_built_in_algorithm_is_known() -> None:
    names = {entry.name for entry in threespo_algorithms()}
    assert names <= set(_KNOWN)


def test_variants_of_an_algorithm_share_its_colour() -> None:
    one, two = styles(["threespo (alpha=1)", "threespo (alpha=2)"]).values()
    assert (one.colour, one == two) == (two.colour, False)
    assert one == styles(["threespo"])["threespo"]


def test_names() -> None:
    assert [printed_name(name) for name in ("threespo", "threespo (preset=paper)", "mine")] == ["3SPO", "3SPO (preset=paper)", "mine"]
    assert find_label("3spo", ["grpo", "threespo"]) == "threespo"
    assert find_label("nope", ["grpo"]) is None
    assert [known_name(name) for name in ("GRPO", " spo++ ", "Somebody's")] == ["grpo", "spopp", "Somebody's"]
    assert [usual_baseline(names) for names in (["ppo", "grpo"], ["ppo", "x"], ["grpo"], ["x", "y"])] == ["grpo", "ppo", None, None]


def test_labels_keep_their_distance_and_order() -> None:
    wanted = {"a": 0.50, "b": 0.51, "c": 0.52, "d": 0.9, "e": 0.1}
    placed = spread_labels(wanted, 0.06)
    heights = [placed[name] for name in "eabcd"]
    assert all(high - low >= 0.06 - 1e-12 for low, high in pairwise(heights))
    assert placed["d"] == 0.9
    assert placed["b"] == pytest.approx(0.51)


def test_inline_svg_takes_the_colours_of_the_page(report: ReportPaths) -> None:
    document = (report.folder / "figures" / "curves_1_env_steps.svg").read_text()
    svg = inline(document, "x", 'a "title"')
    assert svg.startswith('<svg viewBox="')
    assert "var(--c0072b2)" in svg
    assert "var(--ink)" in svg
    assert "#22262b" not in svg
    assert 'aria-label="a &quot;title&quot;"' in svg
    for forbidden in ("<metadata", "<style", "<?xml", "DejaVu", "xlink:href"):
        assert forbidden not in svg


def test_files_carry_no_date_or_version(report: ReportPaths) -> None:
    assert "Matplotlib" not in (report.folder / "figures" / "curves_1_env_steps.svg").read_text()
    assert b"Software" not in (report.folder / "figures" / "curves_1_env_steps.png").read_bytes()


def test_single_run_curve(store: Path, tmp_path: Path) -> None:
    run = store / "threespo-household-s0"
    first, second = (single_run_curve(run, tmp_path / name / "curve.png").read_bytes() for name in ("one", "two"))
    assert first == second
    assert first.startswith(b"\x89PNG")


def test_single_run_curve_of_a_run_that_has_only_begun(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "a", "grpo", 0, [0.1, 0.2])
    (run / "metrics.jsonl").unlink()
    assert single_run_curve(run, tmp_path / "curve.png").exists()
    assert single_run_curve(tmp_path / "gone", tmp_path / "gone.png").exists()
