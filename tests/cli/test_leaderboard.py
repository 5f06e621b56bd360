"""``leaderboard``: finished runs, ranked by the mean over seeds."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser

import pytest

from threespo_bench.inspection.leaderboard import boards
from threespo_bench.inspection.summary import runs_in, summarise


def test_the_table_is_the_mean_over_seeds(call, made_store) -> None:
    (board,) = json.loads(call("leaderboard", str(made_store), "--json")[1])
    assert board["environment"] == "corridor"
    rows = {row["label"]: row for row in board["standings"]}
    assert set(rows) == {"counting (group_size=3)", "counting (group_size=4)"}  # failed runs do not count
    for label, name in (("counting (group_size=3)", "1count"), ("counting (group_size=4)", "larger")):
        finals = [json.loads((made_store / "toys" / f"{name}-corridor-seed{seed}" / "status.json").read_text())["final_success"] for seed in (0, 1)]
        assert rows[label]["success"] == pytest.approx(sum(finals) / 2)
        assert rows[label]["seeds"] == [0, 1]
        low, high = rows[label]["interval"]
        assert min(finals) <= low <= sum(finals) / 2 <= high <= max(finals)
    successes = [row["success"] for row in board["standings"]]
    assert successes == sorted(successes, reverse=True)


def test_the_page_is_self_contained(call, made_store, tmp_path) -> None:
    page = tmp_path / "deep" / "board.html"
    code, out, err = call("leaderboard", str(made_store), "--html", str(page))
    assert code == 0, err
    assert "0 1" in out and "3 iterations" in out
    text = page.read_text()
    HTMLParser().feed(text)
    assert "counting (group_size=4)" in text
    assert "src=" not in text and "href=" not in text and "http" not in text.replace("http-equiv", "")


def test_of_several_runs_of_a_seed_the_newest_counts(store) -> None:
    folder = store / "toys"
    again = shutil.copytree(folder / "1count-corridor-seed0", folder / "1count-corridor-seed0-2")
    status = json.loads((again / "status.json").read_text())
    (again / "status.json").write_text(json.dumps(status | {"ended": "2999-01-01T00:00:00+0000"}))
    rows = (again / "metrics.jsonl").read_text().splitlines()
    last = json.loads(rows[-1]) | {"success": 1.0}
    (again / "metrics.jsonl").write_text("\n".join([*rows[:-1], json.dumps(last)]) + "\n")
    (board,) = boards([summarise(path) for path in runs_in(store) if "1count" in path.name], lambda values: None)
    (row,) = board.standings
    other = json.loads((folder / "1count-corridor-seed1" / "status.json").read_text())["final_success"]
    assert (row.label, row.older, row.success) == ("counting", 1, (1.0 + other) / 2)


def test_differently_evaluated_runs_stand_in_different_tables(store) -> None:
    config = store / "toys" / "larger-corridor-seed0" / "config.yaml"
    config.write_text(config.read_text().replace("episodes: 4", "episodes: 5"))
    assert [board.environment for board in boards(map(summarise, runs_in(store)), lambda values: None)] == [
        "corridor (evaluation.episodes=4)",
        "corridor (evaluation.episodes=5)",
    ]


def test_nothing_finished(call, tmp_path) -> None:
    assert call("leaderboard", str(tmp_path)) == (0, "", f"no finished run in {tmp_path}\n")
    assert call("leaderboard", str(tmp_path / "nowhere"))[0] == 6
