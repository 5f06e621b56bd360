"""``reproduce``: a run made again is compared row by row."""

from __future__ import annotations

import json

RUN = "1count-corridor-seed0"


def test_equal(toys, made_store, tmp_path) -> None:
    done = toys("reproduce", str(made_store / "toys" / RUN), "--out", str(tmp_path / "again"), "--no-progress")
    assert done.returncode == 0, done.stderr
    assert "equal: all 5 rows of metrics" in done.stdout
    assert not done.stderr
    assert (tmp_path / "again" / RUN / "metrics.jsonl").read_bytes() == (made_store / "toys" / RUN / "metrics.jsonl").read_bytes()


def test_the_first_difference_and_what_changed(call, store) -> None:
    run = store / "toys" / RUN
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows[2]["updates"] += 1
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["run"]["code_digest"] = "0" * 64
    manifest["versions"]["numpy"] = "1.0"
    manifest["incidental"]["torch"] = {"threads": 64}
    manifest["starting_weights_digest"] = "others"
    (run / "manifest.json").write_text(json.dumps(manifest))
    code, _, err = call("reproduce", str(run), "--no-progress")
    assert code == 8
    assert f"the runs differ: row 3, train at iteration 2: updates is {rows[2]['updates']} and {rows[2]['updates'] - 1}" in err
    assert "warning: the code of the program or of the plugins was 000000000000 and is now " in err
    assert "warning: version of numpy was 1.0 and is now " in err
    assert "warning: torch threads was 64 and is now " in err
    assert "warning: the starting weights was others and is now " in err
    assert (store / "reproduced" / RUN / "status.json").exists()


def test_an_unfinished_run_is_compared_as_far_as_it_came(call, store) -> None:
    run = store / "toys" / RUN
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:3]))
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"state": "interrupted"}))
    code, out, err = call("reproduce", str(run), "--no-progress")
    assert code == 0, err
    assert "equal: all 3 rows of metrics" in out


def test_bad_input(call, store, tmp_path) -> None:
    assert call("reproduce", str(tmp_path))[0] == 6
    (store / "toys" / RUN / "metrics.jsonl").unlink()
    code, _, err = call("reproduce", str(store / "toys" / RUN))
    assert code == 6
    assert "has measured nothing" in err
