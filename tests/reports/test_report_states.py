"""The case study of states in the report: figure, tables, text; without it, and with a damaged one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from synthetic_runs import write_curve

from threespo_reports.comparison import ReportPaths, write_report
from threespo_reports.sections import BUILT_IN


def report(store: Path, out: Path) -> ReportPaths:
    return write_report([store], out, sections=[section() for section in BUILT_IN if section.name in ("verdict", "states", "failures")])


def state(name: str = "clean middle nothing", visits: tuple[int, ...] = (1, 2, 5, 10)) -> dict[str, Any]:
    """A state whose score falls from visit to visit."""
    actions = [
        {"command": "go to <sink>", "reward": 0.25, "valid": True, "success": False},
        {"command": "go to <sink>", "reward": 0.25, "valid": True, "success": False},
        {"command": "dance", "reward": -0.1, "valid": False, "success": False},
        {"command": "put it", "reward": 0.5, "valid": True, "success": True},
    ]
    rows = [{"visit": n, "clock": 10 * n, "total": n - 1, "won": (n - 1) / 2, "score": 1 / n, "samples": 9 - min(n, 8)} for n in visits]
    for row in rows:
        if row["visit"] in (1, 5, 10):
            row["actions"] = actions
    return {"state": name, "task": "household/train/00001", "observation": "You are in\nthe middle.", "count": visits[-1], "visits": rows}


def test_same_state_at_its_first_fifth_and_tenth_visit(tmp_path: Path) -> None:
    for seed in (0, 1):
        run = write_curve(tmp_path / "e" / f"3spo-s{seed}", "threespo", seed, [0.3, 0.8])
        (run / "states.json").write_text(json.dumps([state(f"seed {seed}"), state("another", (1, 2))]))
    paths = report(tmp_path / "e", tmp_path / "out")
    text, page = paths.markdown.read_text(), paths.html.read_text()
    assert "States that were visited again" in text and "3SPO, run 3spo-s0" in text and "seed 1" not in text
    assert "State A: seed 0; 10 visits. First seen in household/train/00001: “You are in the middle.”" in text
    start = text.index("| visit |")
    lines = text[start:].splitlines()[2:11]
    assert [line.split("|")[1].strip() for line in lines] == ["1", "", "", "5", "", "", "10", "", ""]
    assert lines[3] == "| 5 | 4 | 0.50 | 0.200 | 4 | put it | +0.500 | the task is solved |"
    assert lines[1] == "|  |  |  |  |  | go to &lt;sink> (2 times) | +0.250 |  |" and lines[2].endswith("| dance | -0.100 | invalid |")
    assert "go to &lt;sink&gt; (2 times)" in page and "state score S(s)" in page
    assert {"states_1_1.png", "states_1_1.svg"} <= {figure.name for figure in paths.figures}
    visits = pd.read_csv(paths.folder / "tables" / "state_visits.csv")
    assert visits[visits["label"] == "A"]["score"].tolist() == [1.0, 0.5, 0.2, 0.1]
    actions = pd.read_csv(paths.folder / "tables" / "state_actions.csv")
    assert actions[(actions["label"] == "A") & (actions["visit"] == 1)]["times"].tolist() == [1, 2, 1]
    assert not paths.problems or all("states" not in problem.message for problem in paths.problems)


def test_no_section_where_no_algorithm_tells_of_states_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "e" / "3spo-s0", "threespo", 0, [0.3, 0.8])
    assert "visited again" not in report(tmp_path / "e", tmp_path / "out").markdown.read_text()
    for content in ("[", '{"state": 1}', '[{"state": "x", "visits": []}]', '[{"state": "x", "visits": [{"visit": 1}]}]'):
        (run / "states.json").write_text(content)
        paths = report(tmp_path / "e", tmp_path / "out")
        assert "visited again" not in paths.markdown.read_text()
        assert any("states.json is damaged" in problem.message for problem in paths.problems)
