"""``eval``: a recorded run's policy is the one that was evaluated, and what may be named and set."""

from __future__ import annotations

import csv
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runner import toy_bench


@pytest.fixture
def run(made_store: Path) -> Path:
    return made_store / "toys" / "larger-corridor-seed1"


def results(out: str) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads(out)["results"]}


def last_evaluation(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == "eval"][-1]


def test_the_run_s_own_seed_gives_the_run_s_own_evaluation(call, run: Path) -> None:
    code, out, err = call("eval", str(run), "--seeds", "1", "--format", "json")
    assert code == 0, err
    found, recorded = results(out), last_evaluation(run)
    for name in ("success", "success/kind0", "success/kind1", "turns", "truncated", "return"):
        assert found[name]["mean"] == pytest.approx(recorded[name]), name
    assert found["invalid_actions"]["mean"] == pytest.approx(1 - recorded["valid_actions"])
    assert found["success"]["episodes"] == 4 and found["success"]["std"] is None


def test_a_score_is_shown_where_there_is_one(call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = toy_bench.Corridor.step
    monkeypatch.setattr(toy_bench.Corridor, "step", lambda self, command: replace(step(self, command), score=0.75))
    assert results(call("eval", str(run), "--format", "json")[1])["score"]["mean"] == pytest.approx(0.75)
    assert "\nscore,4,0.75,0.75,0.75,0.75,0.0\n" in call("eval", str(run), "--format", "csv")[1]
    assert any("score" in line and "75.0%" in line for line in call("eval", str(run))[1].splitlines())
    monkeypatch.undo()
    assert "score" not in call("eval", str(run))[1]


def test_several_seeds(call, run: Path) -> None:
    code, out, err = call("eval", str(run), "--format", "json", "--episodes", "6")
    assert code == 0, err
    about, found = json.loads(out), results(out)
    assert about["seeds"] == [123, 456, 789]
    assert (about["kind"], about["iteration"], about["algorithm"], about["env"], about["temperature"]) == ("run", 3, "counting", "corridor", 0.4)
    for row in found.values():
        assert row["mean"] == pytest.approx(statistics.fmean(row["values"]))
        assert row["std"] == pytest.approx(statistics.stdev(row["values"]))
    for seed in range(3):  # the whole is the mean of its parts, by episodes
        parts = [found[name] for name in found if name.startswith("success/")]
        assert sum(part["episodes"] * part["values"][seed] for part in parts) / 6 == pytest.approx(found["success"]["values"][seed])
    assert len({tuple(row["values"]) for row in found.values()}) > 1
    assert len(set(found["turns"]["values"])) > 1, "the seeds drew the same noise"


def test_a_checkpoint_of_the_run(call, run: Path) -> None:
    first, newest = sorted((run / "checkpoints").glob("iteration-*"))
    for folder, iteration in ((first, 2), (newest, 3)):
        code, out, err = call("eval", str(folder), "--seeds", "1", "--format", "json")
        assert code == 0, err
        assert json.loads(out)["iteration"] == iteration
    assert results(out)["success"]["mean"] == pytest.approx(last_evaluation(run)["success"])


def test_a_damaged_checkpoint(call, store: Path) -> None:
    run = store / "toys" / "larger-corridor-seed1"
    newest = run / "checkpoints" / "iteration-000003"
    (newest / "learner" / "logits.npy").write_bytes(b"torn")
    code, _, err = call("eval", str(newest))
    assert code == 6 and "is not what was written" in err
    code, out, err = call("eval", str(run), "--format", "json")
    assert code == 0 and "iteration-000003 is skipped" in err
    assert json.loads(out)["iteration"] == 2


def test_files_and_tables(call, run: Path, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "results.csv"
    code, out, err = call("eval", str(run), "--seeds", "0,1", "--out", str(file))
    assert code == 0 and not out and f"written to {file}" in err
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert list(rows[0]) == ["name", "episodes", "seed_0", "seed_1", "mean", "std"]
    assert float(rows[0]["mean"]) == pytest.approx((float(rows[0]["seed_0"]) + float(rows[0]["seed_1"])) / 2)
    assert [path.name for path in file.parent.iterdir()] == ["results.csv"]
    code, out, _ = call("eval", str(run), "--seeds", "0,1")
    assert code == 0
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert lines["success"][:2] == ["4", f"{100 * float(rows[0]['seed_0']):.1f}%"]
    assert len(lines["turns"]) == 5
    assert "\x1b[" not in out


def test_split_names_of_the_literature(call, run: Path) -> None:
    one, other = (call("eval", str(run), "--seeds", "0", "--format", "json", "--split", split)[1] for split in ("valid_unseen", "eval_out_of_distribution"))
    assert results(one) == results(other)
    code, _, err = call("eval", str(run), "--split", "eval_in_distribution")
    assert code == 2 and "no split valid_seen" in err
    code, _, err = call("eval", str(run), "--split", "empty")
    assert code == 4 and "no tasks in the split empty" in err


def test_options_come_on_top_of_the_run_s(call, run: Path) -> None:
    def about(*more: str) -> dict[str, Any]:
        code, out, err = call("eval", str(run), "--seeds", "0", "--format", "json", *more)
        assert code == 0, err
        return json.loads(out)

    assert about("rollout.max_turns=3", "--temperature", "0")["max_turns"] == 3
    assert about("--temperature", "0")["temperature"] == 0
    assert about("env.length=3")["environment_digest"] == "corridor-3"
    assert about("evaluation.temperature=0.7")["temperature"] == 0.7


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["algorithm.group_size=2"], 2, "nothing is trained"),
        (["model.path=x"], 2, "the policy is the one that was named"),
        (["env.lenght=3"], 2, "did you mean env.length"),
        (["env.length=long"], 2, "env.length=long"),
        (["engine=embedded"], 2, "the engine of a run cannot be changed here"),
        (["--seeds", "1,1"], 2, "a seed comes twice"),
        (["--env", "nowhere"], 2, "nowhere"),
    ],
)
def test_refused(call, run: Path, arguments: list[str], code: int, message: str) -> None:
    found, _, err = call("eval", str(run), *arguments)
    assert (found, message in err) == (code, True), err


def test_what_is_no_policy(call, made_store: Path, tmp_path: Path) -> None:
    code, _, err = call("eval", "household-tinny")
    assert code == 4 and "household-tiny" in err
    code, _, err = call("eval", str(tmp_path))
    assert code == 4 and "holds no policy" in err
    code, _, err = call("eval", str(made_store / "toys" / "faulty-corridor-seed0"))
    assert code == 6 and "no checkpoint yet" in err
