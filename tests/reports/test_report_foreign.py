"""Results of others from a CSV file: a published table typed in, curves, and files that are not as they should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_runs import write_curve

from threespo_bench.errors import DataError
from threespo_reports.comparison import ReportPaths, write_report
from threespo_reports.sections import BUILT_IN

# ALFWorld, Qwen2.5-1.5B, means of three seeds, as the table of the GiGPO paper (arXiv:2505.10978) is republished.
PUBLISHED = """algorithm,env,seed,step,success,success/pick,success/look,success/clean,success/heat,success/cool,success/pick two
PPO,ALFWorld,,150,0.544,0.648,0.405,0.571,0.606,0.464,0.474
RLOO,ALFWorld,,150,0.697,0.883,0.528,0.710,0.628,0.664,0.569
GRPO,ALFWorld,,150,0.728,0.853,0.537,0.845,0.782,0.597,0.535
GiGPO,ALFWorld,,150,0.867,0.944,0.675,0.948,0.944,0.798,0.764
"""
QUICK = ("verdict", "task_types", "learning", "failures", "matched", "regenerate")


def report(runs: list[Path], out: Path, *files: Path) -> ReportPaths:
    """The report of runs and CSV files, without its figures."""
    return write_report(runs, out, sections=[section() for section in BUILT_IN if section.name in QUICK], csv=files)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_published_table(tmp_path: Path) -> None:
    paths = write_report([], tmp_path / "out", csv=[written(tmp_path / "published.csv", PUBLISHED)])
    content = json.loads(paths.json.read_text())
    rows = {row["algorithm"]: row for row in content["summary"]}
    assert {name: row["final_mean"] for name, row in rows.items()} == {"ppo": 0.544, "rloo": 0.697, "grpo": 0.728, "gigpo": 0.867}
    assert rows["gigpo"]["diff_mean"] == pytest.approx(0.139)
    assert (rows["gigpo"]["seeds"], rows["gigpo"]["final_low"]) == (1, None)
    assert rows["gigpo"]["name"] == "GiGPO"  # and so it has GiGPO's colour
    kinds = {(row["algorithm"], row["kind"]): row["mean"] for row in content["tables"]["task_types"]}
    assert kinds[("gigpo", "pick two")] == 0.764
    text = paths.markdown.read_text()
    assert "4 rows have no seed: each such result counts as one replicate, seed 0" in text
    assert "threespo-bench report --csv published.csv --baseline grpo" in text
    assert not [problem for problem in paths.problems if problem.where.startswith("section")]


def test_curves_of_others_stand_beside_ours_but_are_never_paired_with_them(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_curve(tmp_path / "e" / f"g{seed}", "grpo", seed, [0.3, 0.4, 0.5])
        write_curve(tmp_path / "e" / f"t{seed}", "threespo", seed, [0.3, 0.5, 0.6])
    lines = [f"Theirs,household,{seed},{step},{0.3 + step / 10_000}" for seed in (0, 1) for step in (2000, 0, 1000)]
    file = written(tmp_path / "theirs.csv", "algorithm,env,seed,step,success\n" + "\n".join(lines) + "\n")
    paths = report([tmp_path / "e"], tmp_path / "out", file)
    rows = {row["algorithm"]: row for row in json.loads(paths.json.read_text())["summary"]}
    assert rows["Theirs"]["final_mean"] == pytest.approx(0.5)
    assert rows["Theirs"]["area_mean"] == pytest.approx(0.4)
    assert rows["Theirs"]["diff_mean"] is None
    assert rows["Theirs"]["unmatched_seeds"] == "0 1"
    assert rows["Theirs"]["improvement"] == 0.5  # unpaired
    assert rows["threespo"]["diff_mean"] == pytest.approx(0.1)
    assert "source differs between the algorithms" in paths.markdown.read_text()
    again = report([tmp_path / "e"], tmp_path / "again", file)
    assert {path.name: path.read_bytes() for path in paths.folder.glob("*.*")} == {path.name: path.read_bytes() for path in again.folder.glob("*.*")}


def test_a_blank_success_is_a_failed_run(tmp_path: Path) -> None:
    file = written(tmp_path / "a.csv", "algorithm,env,seed,step,success\nA,x,0,10,0.5\nA,x,1,10,\n")
    paths = report([], tmp_path / "out", file)
    row = json.loads(paths.json.read_text())["summary"][0]
    assert (row["seeds"], row["not_counted"]) == (1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm,env,seed,step\nA,x,0,1\n", "has no column success"),
        ("algorithm,env,seed,step,success\n", "has no row"),
        ("algorithm,env,seed,step,success\nA,x,0,1,72.8\n", "line 2: success is not between 0 and 1"),
        ("algorithm,env,seed,step,success\nA,x,0,1,0.5\nA,x,0,1,72%\n", "line 3: success is no number"),
        ("algorithm,env,seed,step,success\nA,x,0.5,1,0.5\n", "line 2: seed is no number from 0"),
        ("algorithm,env,seed,step,success\n,x,0,1,0.5\n", "line 2: algorithm is blank"),
        ("algorithm,env,seed,step,success\nA,x,0,,0.5\n", "line 2: step is blank"),
        ("", "is no CSV file"),
    ],
)
def test_bad_files_are_refused_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        report([], tmp_path / "out", written(tmp_path / "a.csv", text))
    assert "the columns are" in caught.value.fix
    with pytest.raises(DataError, match="cannot be read"):
        report([], tmp_path / "out", tmp_path / "gone.csv")
