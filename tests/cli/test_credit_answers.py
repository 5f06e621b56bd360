"""What ``threespo-bench credit`` answers: its numbers, options of the algorithms, tables and files, the figure. Some tests run it in a process of its own."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.credit_command import GOLDEN, Run, bench, strict, write
from threespo_bench.testing import sample_turns

# ---- the numbers


def test_the_worked_example(b1: Path) -> None:
    done = bench(b1, *(f"--algo={name}" for name in GOLDEN), "--format", "json")
    assert done.returncode == 0, done.stderr
    answers = strict(done.stdout)
    assert [answer["algorithm"] for answer in answers] == list(GOLDEN)
    for answer in answers:
        assert answer.keys() == {"algorithm", "rows", "diag", "dropped"}
        assert [(row["traj_id"], row["step_id"]) for row in answer["rows"]] == [*zip("AAABBCCC", [0, 1, 2, 0, 1, 0, 1, 2], strict=True)]
        np.testing.assert_allclose([row["advantage"] for row in answer["rows"]], GOLDEN[answer["algorithm"]], atol=1e-6)
        assert answer["diag"]["group/groups"] == 1
        assert set(answer["dropped"].values()) == {0}


def test_the_order_of_the_file_is_kept_and_changes_no_number(b1: Path, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in b1.read_text().splitlines()]
    order = [5, 2, 7, 0, 4, 1, 6, 3]
    done = bench(write(tmp_path / "mixed.jsonl", [rows[place] for place in order]), "--algo", "gigpo@reference", "--format", "json")
    assert done.returncode == 0, done.stderr
    shown = strict(done.stdout)["rows"]
    assert [(row["traj_id"], row["step_id"]) for row in shown] == [(rows[place]["traj_id"], rows[place]["step_id"]) for place in order]
    np.testing.assert_allclose([row["advantage"] for row in shown], [GOLDEN["gigpo@reference"][place] for place in order], atol=1e-6)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), order=st.randoms(use_true_random=False))
def test_any_order_of_any_batch(seed: int, order: Any, tmp_path: Path, credit: Run) -> None:
    turns = sample_turns(seed, tasks=2, rollouts=3)
    columns = {name: getattr(turns, name).tolist() for name in ("group_id", "traj_id", "step_id", "step_reward", "anchor_obs", "action_valid")}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    for row, mask in zip(rows, turns.response_mask.astype(int).tolist(), strict=True):
        row["response_mask"] = mask
    found = []
    for _ in range(2):
        code, out, err = credit(write(tmp_path / "turns.jsonl", rows), "--algo", "gigpo", "--format", "json")
        assert code == 0, err
        found.append({(row["traj_id"], row["step_id"]): row["advantage"] for row in strict(out)["rows"]})
        order.shuffle(rows)
    assert found[0].keys() == found[1].keys() and len(found[0]) == len(turns)
    np.testing.assert_allclose([found[0][key] for key in found[0]], [found[1][key] for key in found[0]], atol=1e-12)


def test_a_recorded_file(tmp_path: Path, credit: Run) -> None:
    from threespo_algorithms.gigpo import GiGPO, GiGPOConfig

    turns = sample_turns()
    turns.save(tmp_path / "turns.parquet")
    code, out, _ = credit(tmp_path / "turns.parquet", "--algo", "gigpo", "--format", "json")
    assert code == 0
    expected = GiGPO(GiGPOConfig()).credit(turns).advantages[:, 0]
    np.testing.assert_array_equal([row["advantage"] for row in strict(out)["rows"]], expected)


@pytest.mark.parametrize("name", ["3spo", "gigpo"])
def test_batches_that_samplers_make(name: str, tmp_path: Path, credit: Run) -> None:
    import asyncio

    from tests.rollout.players import Drawing, context, household
    from threespo_bench.config.algorithm import Choice, make_algorithms
    from threespo_bench.host import PluginHost

    environment = household()
    algorithm = make_algorithms([Choice(name, name)], [], PluginHost.discover())[name]

    async def batches() -> list[tuple[Any, Any]]:
        run = context(environment, Drawing(), list(environment.tasks("train"))[:2])
        return [(turns, algorithm.credit(turns).advantages) async for turns in algorithm.collect(run)][:3]

    for turns, advantages in asyncio.run(batches()):
        turns.save(tmp_path / "turns.parquet")
        code, out, err = credit(tmp_path / "turns.parquet", "--algo", name, "--format", "json")
        assert code == 0 and "not used" not in err, err
        np.testing.assert_array_equal([row["advantage"] for row in strict(out)["rows"]], advantages[:, 0])


def test_episode_returns_give_the_numbers_of_step_rewards(b1: Path, tmp_path: Path, credit: Run) -> None:
    rows = [json.loads(line) for line in b1.read_text().splitlines()]
    for row in rows:
        del row["step_reward"]
        row["episode_return"] = 10 if row["traj_id"] == "A" else 0
    code, out, _ = credit(write(tmp_path / "returns.jsonl", rows), "--algo", "gigpo@reference", "--format", "json")
    assert code == 0
    np.testing.assert_allclose([row["advantage"] for row in strict(out)["rows"]], GOLDEN["gigpo@reference"], atol=1e-6)


# ---- options of the algorithms


@pytest.mark.parametrize("key", ["step_weight", "algorithm.step_weight"])
def test_an_option_reaches_the_algorithms_that_have_it(key: str, b1: Path, credit: Run) -> None:
    code, out, err = credit(b1, "--algo", "gigpo", "--algo", "grpo", "--set", f"{key}=0", "--format", "json")
    assert code == 0, err
    gigpo, grpo = ([row["advantage"] for row in answer["rows"]] for answer in strict(out))
    assert gigpo == grpo


def test_an_option_for_one_algorithm_alone(b1: Path, credit: Run) -> None:
    code, out, _ = credit(b1, "--algo", "gigpo", "--algo", "grpo", "--set", "grpo:normalise_by_std=false", "--format", "json")
    first = [answer["rows"][0]["advantage"] for answer in strict(out)]
    assert code == 0 and first[0] < 4 and first[1] == pytest.approx(20 / 3)


def test_a_preset_for_all_that_have_it(b1: Path, credit: Run) -> None:
    code, out, _ = credit(b1, "--algo", "gigpo", "--algo", "grpo", "--set", "preset=reference_mean", "--format", "json")
    assert code == 0
    gigpo, grpo = ([row["advantage"] for row in answer["rows"]] for answer in strict(out))
    np.testing.assert_allclose(gigpo, GOLDEN["gigpo@reference_mean"], atol=1e-6)
    np.testing.assert_allclose(grpo, GOLDEN["grpo"], atol=1e-6)


# ---- forms of the answer


def test_the_table_fits_into_80_columns(b1: Path, credit: Run) -> None:
    code, out, _ = credit(b1, *(f"--algo={name}" for name in [*GOLDEN, "grpo@dr_grpo"]))
    assert code == 0
    assert all(len(line) <= 80 for line in out.splitlines())
    assert out.splitlines()[2].split() == ["A", "0", "0", "+2.7076", "+13.0312", "+1.2076", "+1.1547"]
    assert "@dr_grpo" in out and "group/zero_variance_share" in out


def test_csv_and_parquet_are_tidy(b1: Path, tmp_path: Path, credit: Run) -> None:
    names = ["--algo", "grpo", "--algo", "gigpo@reference"]
    assert credit(b1, *names, "--out", tmp_path / "new" / "a.csv")[0] == 0
    with open(tmp_path / "new" / "a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[8] == {"algorithm": "gigpo@reference", "traj_id": "A", "step_id": "0", "advantage": rows[8]["advantage"]}
    assert float(rows[8]["advantage"]) == pytest.approx(2.707589, abs=1e-6)
    assert credit(b1, *names, "--out", tmp_path / "a.parquet")[0] == 0
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column_names == ["algorithm", "traj_id", "step_id", "advantage"]
    assert table["advantage"].to_pylist() == [float(row["advantage"]) for row in rows]


def test_a_file_that_cannot_be_written(b1: Path, credit: Run) -> None:
    code, _, err = credit(b1, "--algo", "grpo", "--out", b1 / "below" / "a.json")
    assert code == 6 and "cannot write" in err


def test_the_example_goes_to_the_screen_and_to_a_file(tmp_path: Path, credit: Run) -> None:
    code, out, _ = credit("--example")
    assert code == 0
    assert credit("--example", tmp_path / "b1.jsonl")[:2] == (0, "")
    assert (tmp_path / "b1.jsonl").read_text() == out
    assert [json.loads(line)["traj_id"] for line in out.splitlines()] == list("AAABBCCC")


THIRD_PARTY = '''
import numpy as np
from threespo_bench.contracts.algorithm import Algorithm, AlgorithmConfig, Credit
from threespo_bench.contracts.entries import AlgorithmEntry
from threespo_bench.hookspecs import hookimpl

class Late(Algorithm):
    """The reward of the turn, on its last token; the turn's own column is added on all tokens of even turns."""
    Config = AlgorithmConfig
    title = source = "late"
    requires = ("bonus",)
    def credit(self, turns):
        turns.require(self.requires, "late")
        mask = turns.response_mask
        last = mask & (np.arange(mask.shape[1]) == mask.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)[:, None])
        even = (turns.step_id % 2 == 0)[:, None] & mask
        return Credit(np.where(last, turns.step_reward[:, None], 0.0) + np.where(even, turns.extras["bonus"][:, None], 0.0), diagnostics={"odd": np.nan})

@hookimpl
def threespo_algorithms():
    return [AlgorithmEntry("late", "bench_late:Late", "late")]
'''


def test_an_algorithm_of_somebody_else_with_credit_per_token(b1: Path, tmp_path: Path, make_distribution: Callable[..., Path]) -> None:
    site = make_distribution("bench-late", THIRD_PARTY)
    rows = [json.loads(text) | {"bonus": 0.5} for text in b1.read_text().splitlines()]
    rows[2]["response_mask"] = [1, 0, 1, 0]
    done = bench(write(b1, rows), "--algo", "late", "--format", "json", PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    answer = strict(done.stdout)
    assert [row["advantage"] for row in answer["rows"]] == [0.5, 0, [0.5, 0, 10.5], 0.5, 0, 0.5, 0, 0.5]
    assert answer["diag"] == {"odd": None}
    done = bench(b1, "--algo", "late", "--out", tmp_path / "a.parquet", PYTHONPATH=str(site))
    assert pq.read_table(tmp_path / "a.parquet")["advantage"].to_pylist()[1:3] == [[0], [0.5, 0, 10.5]]
    done = bench(b1, "--algo", "late", PYTHONPATH=str(site))
    assert "+5.5000*" in done.stdout and "* the mean of a turn whose tokens have different advantages" in done.stdout


# ---- the figure


def test_a_figure(b1: Path, tmp_path: Path, credit: Run) -> None:
    code, out, err = credit(b1, "--algo", "grpo", "--algo", "gigpo", "--figure", tmp_path / "new" / "who.svg", "--format", "csv")
    assert code == 0, err
    assert out.startswith("algorithm,traj_id,step_id,advantage\n")
    assert "GiGPO" in (tmp_path / "new" / "who.svg").read_text()


LOADED = """\
import sys
from threespo_bench.cli.app import run_cli
run_cli(sys.argv[1:])
print(sorted({"torch", "pandas", "matplotlib", "pyarrow"} & set(sys.modules)))
"""


def test_starting_imports_nothing_heavy_and_a_table_needs_nothing_of_it(b1: Path) -> None:
    for arguments in (["--help"], ["credit", "--help"], ["credit", str(b1), "--algo", "grpo"]):
        done = subprocess.run([sys.executable, "-c", LOADED, *arguments], capture_output=True, text=True, timeout=120)
        assert done.stdout.splitlines()[-1] == "[]", done.stderr
