"""``diff``: what two runs have not in common."""

from __future__ import annotations

import shutil


def test_variants_differ_in_an_option_and_from_the_first_training_row(call, made_store) -> None:
    folder = made_store / "toys"
    code, out, err = call("diff", str(folder / "1count-corridor-seed0"), str(folder / "larger-corridor-seed0"))
    assert code == 0, err
    assert ["algorithm.group_size", "3", "4"] in [line.split() for line in out.splitlines()]
    assert "code, versions, machine, tasks and starting weights are equal" in out
    assert "first difference is in row 2, train at iteration 1: env_steps is " in out


def test_seeds_differ_in_their_conditions(call, made_store) -> None:
    folder = made_store / "toys"
    _, out, _ = call("diff", str(folder / "1count-corridor-seed0"), str(folder / "1count-corridor-seed1"))
    keys = [line.split()[0] for line in out.splitlines() if line]
    assert {"seed", "task_order_digest", "environment_seeds_digest", "evaluation_noise_digest"} <= set(keys)
    assert "starting_weights_digest" not in keys


def test_a_copy_is_equal(call, made_store, tmp_path) -> None:
    run = made_store / "toys" / "1count-corridor-seed0"
    copy = shutil.copytree(run, tmp_path / "elsewhere")
    _, out, _ = call("diff", str(run), str(copy))
    assert "all options are equal" in out
    assert "the results are equal" in out
    assert "metrics: all 5 rows are equal" in out


def test_no_run(call, made_store, tmp_path) -> None:
    assert call("diff", str(made_store / "toys" / "1count-corridor-seed0"), str(tmp_path))[0] == 6
