"""``clean``: dry by default, and never a run that is being worked on."""

from __future__ import annotations

import json

from threespo_bench.store import RunStore


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != "report")


def test_dry_by_default_then_done(call, store) -> None:
    before = names(store / "toys")
    code, out, err = call("clean", str(store), "--failed")
    assert code == 0
    assert out.count("the failed run") == 2
    assert "nothing was removed" in err
    assert names(store / "toys") == before
    code, out, _ = call("clean", str(store), "--failed", "--yes")
    assert code == 0
    assert "removed 2 things" in out
    assert names(store / "toys") == [name for name in before if not name.startswith("faulty")]
    assert "nothing to remove" in call("clean", str(store), "--failed")[1]


def test_a_locked_run_is_never_touched(call, store) -> None:
    run = store / "toys" / "faulty-corridor-seed0"
    with RunStore.open(run):
        _, out, _ = call("clean", str(store), "--failed", "--checkpoints", "--keep", "0", "--yes")
    assert run.is_dir()
    assert "faulty-corridor-seed0" not in out
    assert not (store / "toys" / "faulty-corridor-seed1").exists()


def test_checkpoints(call, store) -> None:
    checkpoints = store / "toys" / "1count-corridor-seed0" / "checkpoints"
    assert len(list(checkpoints.iterdir())) == 2
    (checkpoints / ".writing-iteration-000009").mkdir()
    interrupted = store / "toys" / "1count-corridor-seed1"
    status = json.loads((interrupted / "status.json").read_text())
    (interrupted / "status.json").write_text(json.dumps(status | {"state": "interrupted"}))
    call("clean", str(store), "--checkpoints", "--yes")
    assert names(checkpoints) == ["iteration-000003"]
    call("clean", str(store), "--checkpoints", "--keep", "0", "--yes")
    assert names(checkpoints) == []
    assert names(interrupted / "checkpoints") == ["iteration-000003"]  # or it could not go on


def test_young_runs_stay(call, store) -> None:
    assert "nothing to remove" in call("clean", str(store), "--failed", "--older-than", "1d")[1]
    assert "2 things" in call("clean", str(store), "--failed", "--older-than", "0s")[1]


def test_bad_input(call, store) -> None:
    for arguments, words in (
        ((), "it was not said what to remove"),
        (("--failed", "--keep", "2"), "--keep is about checkpoints"),
        (("--failed", "--older-than", "week"), "--older-than week: is no length of time"),
    ):
        code, _, err = call("clean", str(store), *arguments, "--yes")
        assert code == 2
        assert words in err
