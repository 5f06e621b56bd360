"""Nothing is lost silently: what MLflow does not take as it is stands in a tag, or in a file where a tag is too short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugins.mlflow.conftest import local
from threespo_plugins.mlflow_tracker import MlflowConfig, MlflowTracker
from threespo_plugins.mlflow_tracker.names import PARAM_LENGTH, Changes, Names, batches

pytest.importorskip("mlflow")


class Value:
    def __init__(self, length: int) -> None:
        self.value = "x" * length


def tracked(runs, params, *rows) -> tuple[MlflowTracker, object]:
    tracker = MlflowTracker(MlflowConfig(), runs)
    tracker.start("test", "name", params, {}, None, None)
    for step, metrics in enumerate(rows):
        tracker.log(metrics, step)
    tracker.finish("finished")
    return tracker, local(runs).client.get_run(tracker.run_id).data


def test_renamed_metrics_and_parameters_are_told(runs) -> None:
    names = ["pass@8", "pass(8", "a b", "ünïcode µ", "日本/語", "emoji 🎉", "x" * 300, "x" * 301]
    _, data = tracked(runs, {"size(mm)": 1, "size@mm@": 2, "plain": ""}, {name: float(place) for place, name in enumerate(names)})
    renamed = json.loads(data.tags["threespo_bench.renamed_metrics"])
    assert {renamed.get(key, key): value for key, value in data.metrics.items()} == {name: float(place) for place, name in enumerate(names)}
    assert sorted(json.loads(data.tags["threespo_bench.renamed_params"]).values()) == ["size(mm)", "size@mm@"]
    assert "a b" not in renamed.values()


def test_values_that_are_not_finite_are_told_by_name(runs) -> None:
    odd = {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 1e300, "e": -1e300, "f": 5e-324}
    _, data = tracked(runs, {}, odd, odd | {"a": 1.0})
    assert json.loads(data.tags["threespo_bench.not_finite"]) == {"a": 1, "b": 2, "c": 2}
    assert data.metrics == {"a": 1.0, "d": 1e300, "e": -1e300, "f": 5e-324, "non_finite": 2.0}


def test_cut_parameters_are_told(runs) -> None:
    params = {"fits": "x" * PARAM_LENGTH, "long": "é" * 20_000, "lines": "a\nb\n", "empty": ""}
    _, data = tracked(runs, params)
    assert json.loads(data.tags["threespo_bench.cut_params"]) == {"long": 20_000}
    assert (data.params["fits"], data.params["lines"], len(data.params["long"])) == ("x" * PARAM_LENGTH, "a\nb\n", PARAM_LENGTH)


def test_thousands_of_metrics(runs) -> None:
    names = [f"layer@{place}/{'weights' * 8}" for place in range(3000)]
    tracker, data = tracked(runs, {}, dict.fromkeys(names, 1.0), dict.fromkeys(names, 2.0))
    assert len(data.metrics) == 3000 and set(data.metrics.values()) == {2.0}
    assert data.tags["threespo_bench.renamed_metrics"].endswith("... (cut; see changes.json)")
    reader = local(runs)
    assert reader.files(tracker.run_id) == ["changes.json"]
    changes = json.loads(Path(reader.client.download_artifacts(tracker.run_id, "changes.json", str(runs))).read_text())
    assert sorted(changes["threespo_bench.renamed_metrics"].values()) == sorted(names)


def test_names_do_not_depend_on_being_asked_twice() -> None:
    names = Names()
    first = [names(name) for name in ("a@b", "a(b", "a_b")]
    assert first == [names(name) for name in ("a@b", "a(b", "a_b")]
    assert len(set(first)) == 3
    assert Changes().tags() == ({}, True)


@pytest.mark.parametrize(("lengths", "parts"), [([1] * 250, [100, 100, 50]), ([60_000, 50_000, 10], [1, 2]), ([], []), ([200_000], [1])])
def test_parts_of_parameters(lengths, parts) -> None:
    assert [len(part) for part in batches([Value(length) for length in lengths])] == parts
