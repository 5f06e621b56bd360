"""``show``: one run in full."""

from __future__ import annotations

import json


def test_a_finished_run(call, made_store) -> None:
    run = made_store / "toys" / "larger-corridor-seed1"
    code, out, err = call("show", str(run))
    assert code == 0, err
    words = {line.split()[0]: line.split()[1:] for line in out.splitlines() if len(line.split()) > 1}
    assert words["state"] == ["finished"]
    assert words["budget"] == ["3", "of", "3", "iterations"]
    assert words["algorithm.group_size"] == ["4", "3"]  # the value and the default
    assert "algorithm.tasks_per_iteration" not in words
    assert "environment_seeds_digest" in words and "evaluation_noise_digest" in words
    assert words["iteration"] == ["3"]
    assert str(run / "metrics.jsonl") in out
    assert f"longer: threespo-bench run --resume {run} budget.iterations=6" in out


def test_a_failed_run(call, made_store) -> None:
    run = made_store / "toys" / "faulty-corridor-seed0"
    code, out, _ = call("show", str(run))
    assert code == 0
    assert "cannot be checkpointed" in out
    assert f"resume: threespo-bench run --resume {run}" in out


def test_as_data(call, made_store) -> None:
    data = json.loads(call("show", str(made_store / "toys" / "1count-corridor-seed0"), "--json")[1])
    assert data["state"] == "finished"
    assert data["manifest"]["budget"]["iterations"] == 3
    assert data["last"]["eval"]["iteration"] == 3


def test_no_run(call, made_store) -> None:
    code, _, err = call("show", str(made_store))
    assert code == 6
    assert "is not a run folder" in err and "threespo-bench ls" in err
