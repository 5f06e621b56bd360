"""``ls``: all runs of a store, with filters."""

from __future__ import annotations

import json

import pytest


def test_a_store(toys, made_store) -> None:
    done = toys("ls", str(made_store))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["experiment", "run", "algorithm", "env", "seed", "state", "env", "steps", "success", "age"]
    assert [line.split()[1] for line in lines[1:]] == [f"{name}-corridor-seed{seed}" for name in ("1count", "faulty", "larger") for seed in (0, 1)]
    assert lines[1].split()[:6] == ["toys", "1count-corridor-seed0", "counting", "corridor", "0", "finished"]
    assert lines[3].split()[5] == "failed"


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["--state", "failed"], 2),
        (["--seeds", "1"], 3),
        (["--algo", "1count", "--state", "finished"], 4),
        (["--algo", "needy"], 0),
        (["--env", "corridor", "--experiment", "to*"], 6),
        (["--experiment", "other"], 0),
    ],
)
def test_filters(call, made_store, filters, count) -> None:
    code, out, _ = call("ls", str(made_store), "--json", *filters)
    assert code == 0
    assert len(json.loads(out)) == count


def test_an_experiment_and_a_run(call, made_store) -> None:
    assert len(json.loads(call("ls", str(made_store / "toys"), "--json")[1])) == 6
    (run,) = json.loads(call("ls", str(made_store / "toys" / "larger-corridor-seed1"), "--json")[1])
    assert (run["seed"], run["state"], run["budget"]) == (1, "finished", {"iterations": 3})
    assert run["spent"]["iterations"] == 3
    assert run["success"] is not None


def test_damage_is_shown_and_stops_nothing(call, store) -> None:
    (store / "toys" / "larger-corridor-seed1" / "status.json").write_text("{")
    code, out, err = call("ls", str(store))
    assert code == 0
    assert "damaged" in out
    assert "toys/larger-corridor-seed1: " in err
    assert len(out.splitlines()) == 7


def test_nothing_there(call, tmp_path) -> None:
    assert call("ls", str(tmp_path))[::2] == (0, f"no run in {tmp_path}\n")
    code, _, err = call("ls", str(tmp_path / "nowhere"))
    assert code == 6
    assert err.startswith("error: there is no folder")
