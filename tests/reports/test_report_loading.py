"""Reading run directories, whole and damaged."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import write_curve, write_json, write_lines, write_run

from threespo_reports import rows as row_reading
from threespo_reports.describing import one_line
from threespo_reports.loading import TRAINING_ROWS, load
from threespo_reports.rows import parse_rows
from threespo_reports.variants import component, variant_labels


def messages(path: Path) -> dict[str, str]:
    """Where -> message of all problems of the store in ``path``."""
    return {problem.where: problem.message for problem in load([path]).problems}


def test_a_whole_run_is_one_row_and_its_evaluations(tmp_path: Path) -> None:
    write_curve(tmp_path / "exp" / "a", "grpo", 3, [0.1, 0.2])
    store = load([tmp_path / "exp"])
    assert store.problems == ()
    assert store.folder == "exp"
    row = store.runs.iloc[0]
    assert (row["run"], row["env"], row["algorithm"], row["seed"], row["state"]) == ("a", "household", "grpo", 3, "finished")
    assert store.evaluations[["env_steps", "tokens", "success"]].to_numpy().tolist() == [[0, 0, 0.1], [1000, 10_000, 0.2]]


def test_names_are_relative_so_a_store_can_be_moved(tmp_path: Path) -> None:
    write_curve(tmp_path / "x" / "exp" / "a", "grpo", 0, [0.1, 0.2])
    before = load([tmp_path / "x" / "exp"])
    (tmp_path / "x").rename(tmp_path / "y")
    after = load([tmp_path / "y" / "exp"])
    assert before.inputs == after.inputs
    assert before.runs.equals(after.runs)


def test_one_run_is_found_from_any_path_above_it(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "runs" / "exp" / "a", "grpo", 0, [0.1, 0.2])
    (run / "checkpoints" / "5").mkdir(parents=True)
    (run / "checkpoints" / "5" / "status.json").write_text("{}")
    shutil.copytree(run, tmp_path / "runs" / "mlruns" / "1" / "artifacts")
    assert [len(load([path]).runs) for path in (run, run.parent, tmp_path)] == [1, 1, 1]
    assert len(load([run, run.parent]).runs) == 1


def test_torn_and_damaged_lines_are_skipped_counted_and_named(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2, 0.3])
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([lines[0], "\x00\x00", lines[1], '{"kind": "eval"}', '{"kind": "eval", "env_st']))
    assert messages(tmp_path) == {"a": "metrics.jsonl: 2 damaged lines skipped (line 2, 4); the last line is torn and was skipped"}
    assert load([tmp_path]).evaluations["success"].tolist() == [0.1, 0.2]


def test_a_last_line_without_newline_is_whole_if_it_reads(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2])
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text().rstrip("\n"))
    assert messages(tmp_path) == {}
    assert len(load([tmp_path]).evaluations) == 2


@pytest.mark.parametrize("name", ["config.yaml", "manifest.json", "status.json", "metrics.jsonl", "timings.jsonl"])
@pytest.mark.parametrize("content", [None, b"", b"{\xff\xfe", b"[1, 2]\n"])
def test_no_file_is_needed(tmp_path: Path, name: str, content: bytes | None) -> None:
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2])
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    store = load([tmp_path])
    assert len(store.runs) == 1
    if content is None or not name.endswith("jsonl"):
        assert any(name in problem.message for problem in store.problems)


def test_rows_that_are_there_twice_count_once_and_lose_no_later_one(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2, 0.3, 0.4])
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines, lines[1], lines[1]]) + "\n")
    assert load([tmp_path]).evaluations["success"].tolist() == [0.1, 0.2, 0.3, 0.4]
    assert messages(tmp_path) == {"a": "metrics.jsonl: 2 rows repeat an earlier one exactly and are left out"}


@pytest.mark.parametrize(
    ("garbage", "told"),
    [
        (b"\x00" * 400 + b"\n", "1 damaged line skipped (line 3)"),
        (b"\xff\xfe\n\x80\x81{}\n", "2 damaged lines skipped (line 3, 4)"),
        (b'{"kind": "eval", "env_steps": 1' + b"0" * 400 + b', "success": 0.5}\n', "1 damaged line skipped (line 3)"),
        (b'{"kind": "eval", "env_steps": Infinity, "success": 0.5}\n', "1 damaged line skipped (line 3)"),
        (b'{"kind": "e\xec", "env_steps": 1500, "success": 0.5}\n', "1 rows are of no known kind and left out (lines 3)"),
        (b"[" * 100_000 + b"\n", "1 damaged line skipped (line 3)"),
    ],
)
def test_garbage_in_the_middle_costs_its_own_lines_only(tmp_path: Path, garbage: bytes, told: str) -> None:
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2, 0.3, 0.4])
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join([*lines[:2], garbage, *lines[2:]]))
    assert load([tmp_path]).evaluations["success"].tolist() == [0.1, 0.2, 0.3, 0.4]
    assert messages(tmp_path) == {"a": f"metrics.jsonl: {told}"}


def test_recorded_runs_without_a_folder_are_told_unless_some_were_chosen(tmp_path: Path) -> None:
    runs = [write_curve(tmp_path / "e" / name, "grpo", seed, [0.1, 0.2]) for seed, name in enumerate("abc")]
    rows = [{"name": run.name, "run": run.name, "state": "finished", "error": None} for run in runs]
    rows += [{"name": "d", "run": None, "state": "failed", "error": "it needs\na critic"}, {"name": "f", "run": None, "state": "planned"}, {"odd": 1}]
    write_json(tmp_path / "e" / "experiment.json", {"runs": rows})
    shutil.rmtree(runs[1])
    assert messages(tmp_path / "e") == {
        "b": "the run directory b is missing; experiment.json says: finished",
        "d": "has no run directory; experiment.json says: failed (it needs a critic)",
        "f": "was planned and has not begun",
    }
    assert load([runs[0], runs[2]]).problems == load([tmp_path / "e"]).problems
    assert load([runs[0]]).problems == ()
    (tmp_path / "e" / "experiment.json").write_text("{")
    assert messages(tmp_path / "e") == {"e": "experiment.json is damaged, so runs that have no folder are not known"}


def test_a_run_without_its_configuration_belongs_to_the_only_variant(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_curve(tmp_path / "e" / f"a{seed}", "grpo", seed, [0.1, 0.2])
    (tmp_path / "e" / "a1" / "config.yaml").unlink()
    assert load([tmp_path]).runs["algorithm"].tolist() == ["grpo", "grpo"]
    write_curve(tmp_path / "e" / "b", "grpo", 0, [0.1, 0.2], options={"group_size": 4})
    assert load([tmp_path]).runs["algorithm"].tolist() == ["grpo (group_size=8)", "grpo", "grpo (group_size=4)"]


def test_missing_paths_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    store = load([tmp_path / "gone", tmp_path / "empty"])
    assert [(problem.where, problem.message) for problem in store.problems] == [("gone", "the run directory is missing"), ("empty", "holds no run")]
    assert store.runs.empty


def test_a_resumed_run_counts_each_step_once(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2, 0.3, 0.4])
    rows = [{"kind": "eval", "iteration": n, "env_steps": 1000 * n, "success": value} for n, value in ((0, 0.1), (1, 0.9), (2, 0.9), (1, 0.2), (2, 0.3))]
    write_lines(run / "metrics.jsonl", rows)
    assert load([tmp_path]).evaluations["success"].tolist() == [0.1, 0.2, 0.3]
    assert "2 rows were measured again" in messages(tmp_path)["a"]


def test_iterations_that_spend_nothing_are_no_repeats(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2])
    write_lines(run / "metrics.jsonl", [{"kind": "train", "iteration": n, "env_steps": 100, "train/success": None} for n in (1, 2, 3)])
    store = load([tmp_path])
    assert len(store.training) == 3
    assert math.isnan(store.training["train/success"].iloc[0])


def test_variants_of_an_algorithm_get_labels_of_their_own() -> None:
    plain = ("threespo", {"alpha": 50, "lr": 1e-5})
    assert variant_labels({"a": plain, "b": plain}) == {"a": "threespo", "b": "threespo"}
    labels = variant_labels({"a": plain, "b": ("threespo", {"alpha": 0.3, "lr": 1e-5}), "c": ("grpo", {})})
    assert labels == {"a": "threespo (alpha=50)", "b": "threespo (alpha=0.3)", "c": "grpo"}
    presets = {"a": ("threespo", {"preset": "paper", "alpha": 50}), "b": ("threespo", {"preset": "threespo", "alpha": 0.3})}
    assert variant_labels(presets) == {"a": "threespo (preset=paper)", "b": "threespo (preset=threespo)"}


def test_an_empty_preset_is_none() -> None:
    configs = [{"env": {"name": "household", "options": {}}}, {"env": {"name": "household", "options": {}, "preset": ""}}]
    assert variant_labels({str(place): component(config, {}, "env") for place, config in enumerate(configs)}) == {"0": "household", "1": "household"}


def test_time_and_memory_are_summed_over_phases(tmp_path: Path) -> None:
    write_run(tmp_path / "e" / "a", "grpo", 0, steps=5_000, budget=5_000)
    row = load([tmp_path]).runs.iloc[0]
    assert row["seconds"] == pytest.approx(row["seconds/rollout"] + row["seconds/update"] + row["seconds/evaluation"], abs=0.01)
    assert row["peak_memory_mb"] > 780


def test_errors_become_one_line() -> None:
    assert one_line("Traceback (most recent call last):\n  x\nValueError: bad\n") == "ValueError: bad"
    assert one_line(None) == ""
    assert len(one_line("x" * 5000)) == 200


def test_whole_files_are_read_at_once_and_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "e" / "a", "threespo", 0, steps=9_000, budget=9_000)
    content = (run / "metrics.jsonl").read_bytes()
    fast = parse_rows(content)
    monkeypatch.setattr(row_reading, "_by_arrow", lambda content: None)
    slow = parse_rows(content)
    for kind in ("eval", "train"):
        assert fast.lines[kind].tolist() == slow.lines[kind].tolist()
        assert set(fast.of(kind)) == set(slow.of(kind))
        for name, values in fast.of(kind).items():
            assert np.array_equal(values, slow.of(kind)[name], equal_nan=True), name


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b'{"kind": "eval", "env_steps": 1}{"kind": "eval", "env_steps": 2}\n',
        b'{"kind": 1, "env_steps": 1}\n',
    ],
)
def test_odd_files_are_read_line_by_line(content: bytes) -> None:
    assert row_reading._by_arrow(content) is None
    assert parse_rows(content).length("eval") == 0


def test_not_a_number_is_read_as_such() -> None:
    for content in (b'{"kind": "eval", "env_steps": 1, "success": NaN}\n', b'{"kind": "eval", "env_steps": 1, "success": null}\n\n'):
        assert np.isnan(parse_rows(content).of("eval")["success"]).tolist() == [True]


def test_very_long_training_is_thinned_and_told(tmp_path: Path) -> None:
    run = write_curve(tmp_path / "e" / "a", "grpo", 0, [0.1, 0.2])
    count = 2 * TRAINING_ROWS + 1
    evaluations = (run / "metrics.jsonl").read_text()
    write_lines(
        run / "metrics.jsonl",
        [{"kind": "train", "iteration": n, "env_steps": n, "train/success": n % 2, "update/tokens": 2, "train/batches": 1} for n in range(count)],
    )
    (run / "metrics.jsonl").write_text(evaluations + (run / "metrics.jsonl").read_text())
    store = load([tmp_path])
    assert len(store.training) <= TRAINING_ROWS
    assert store.training["iteration"].max() == count - 1
    assert store.runs["trained_tokens"].iloc[0] == 2 * count
    assert store.runs["train_area"].iloc[0] == pytest.approx(0.5)
    assert f"of {count} training iterations every 3th is shown" in messages(tmp_path)["a"]
