"""What a configuration is made of, and that composing leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize, version
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra

from tests.toys import ToyAlgorithmConfig, ToyEngineConfig, plugin, toy_host, toy_plugin
from threespo_bench.budget import Limits
from threespo_bench.config.compose import compose, default_names, run_options
from threespo_bench.config.plain import from_plain, to_plain
from threespo_bench.config.schema import RunConfig
from threespo_bench.contracts.entries import AlgorithmEntry, EnvironmentEntry
from threespo_bench.errors import DataError, PluginError, UsageError
from threespo_bench.host import PluginHost


def toy(*overrides: str, env: str = "household") -> RunConfig:
    return compose("toy", env, list(overrides), toy_host())


def test_layers_dataclass_file_preset_override() -> None:
    options = toy().algorithm.options
    assert isinstance(options, ToyAlgorithmConfig)
    assert options.group_size == 6  # the file overrides the class
    assert options.temperature == 0.5  # the file's preset overrides the file
    assert options.optimization.learning_rate == 1e-3
    assert options.optimization.weight_decay == 0.01  # the class
    assert toy("algorithm.preset=paper").algorithm.options.group_size == 16
    assert toy("algorithm.group_size=3", "algorithm.preset=paper").algorithm.options.group_size == 3  # an override beats a preset
    assert compose("bare", "", [], toy_host()).algorithm.options.group_size == 4


def test_names_are_the_registered_ones() -> None:
    config = compose("3toy", "", ["model=household-tiny", "tracker=none"], toy_host())
    assert (config.algorithm.name, config.env.name, config.engine.name, config.tracker.name) == ("toy", "household", "embedded", "none")
    assert config.model.name == "household_tiny"


def test_seed_out_and_experiment_are_defaults_for_their_keys() -> None:
    config = compose("toy", "", ["seed=5"], toy_host(), seed=3, out="/x \"y'", experiment="e")
    assert (config.seed, config.out, config.experiment) == (5, "/x \"y'", "e")


def test_values_are_typed() -> None:
    options = toy("algorithm.words=[x,y]", "algorithm.weights={a: 1}", "algorithm.weights.b=2", "algorithm.limit=3", "algorithm.share=null").algorithm.options
    assert options.words == ("x", "y")
    assert options.weights == {"a": 1.0, "b": 2.0}
    assert options.limit == 3
    assert options.share is None
    assert toy().algorithm.options.words == ("a", "b")
    assert toy("engine.device=cuda").engine.options == ToyEngineConfig("cuda")  # a frozen class


def test_a_path_under_the_home_folder_need_not_be_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/some one")
    assert toy("model.path=~/models/a=b").model.path == "/home/some one/models/a=b"


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert toy("budget.env_steps=1e5").budget.env_steps == 100_000
    assert toy("budget.env_steps=200_000").budget.env_steps == 200_000


def test_a_limit_replaces_the_default_limit() -> None:
    assert toy("budget.tokens=500").budget == Limits(tokens=500)
    assert toy("budget.tokens=500", "budget.env_steps=7").budget == Limits(env_steps=7, tokens=500)


def test_an_environment_brings_defaults_for_the_run() -> None:
    config = toy(env="rooms")
    assert (config.env.options.rooms, config.evaluation.split, config.evaluation.episodes, config.budget.env_steps) == (3, "test", 4, 500)
    assert toy("evaluation.split=other", env="rooms").evaluation.split == "other"
    assert toy("budget.tokens=9", env="rooms").budget == Limits(tokens=9)


def test_a_model_folder_wins_and_needs_no_name() -> None:
    config = toy("model.path=/data/my model")
    assert config.model.path == "/data/my model"


def test_interpolation() -> None:
    assert toy("seed=4", "experiment=seed-${seed}").experiment == "seed-4"


@pytest.mark.parametrize("overrides", [[], ["algorithm.words=[x]", "algorithm.weights={a: 1.5}", "seed=3", "budget.iterations=2", "rollout.max_turns=5"]])
def test_plain_data_and_back(overrides: list[str]) -> None:
    config = toy(*overrides)
    text = yaml.safe_dump(to_plain(config), sort_keys=False)
    assert from_plain(yaml.safe_load(text), toy_host()) == config
    assert json.loads(json.dumps(to_plain(config))) == to_plain(config)


def test_damaged_plain_data() -> None:
    good = to_plain(toy())
    cases = [
        (good | {"algorithm": {"options": {}}}, DataError, "does not say which algorithm"),
        (good | {"algorithm": {"name": "gone", "options": {}}}, UsageError, "unknown algorithm 'gone'"),
        (good | {"env": {"name": "household", "options": {"windows": 3}}}, DataError, "env does not fit ToyEnvironmentConfig"),
        (good | {"budget": {"env_steps": "many"}}, DataError, "the run does not fit"),
        (good | {"colour": "red"}, DataError, "the run does not fit"),
        (good | {"seed": -1}, UsageError, "seed=-1 is out of range"),
    ]
    for data, kind, message in cases:
        with pytest.raises(kind, match=message):
            from_plain(data, toy_host())


def test_plain_data_of_an_older_version_lacks_options() -> None:
    data = to_plain(toy())
    del data["algorithm"]["options"]["share"]
    del data["checkpoint"]
    assert from_plain(data, toy_host()) == toy()


def test_nothing_global_is_left() -> None:
    store = ConfigStore.instance()
    store.store("algorithm_of_somebody_else", {"x": 1}, group="algorithm")
    before, before_version = json.dumps(sorted(store.repo)), version.VersionBase.instance().version_base
    try:
        toy()
        with pytest.raises(UsageError):
            toy("algorithm.group_size=four")
        assert json.dumps(sorted(store.repo)) == before
        assert list(store.repo["algorithm"]) == ["algorithm_of_somebody_else.yaml"]
        assert not GlobalHydra.instance().is_initialized()
        assert version.VersionBase.instance().version_base is before_version
    finally:
        del store.repo["algorithm"]


def test_inside_another_hydra_program() -> None:
    ConfigStore.instance().store("their_config", {"x": 1})
    with initialize(version_base="1.3", config_path=None):
        assert hydra_compose("their_config").x == 1
        assert toy().algorithm.options.group_size == 6
        assert hydra_compose("their_config", overrides=["x=2"]).x == 2
    del ConfigStore.instance().repo["their_config.yaml"]


def test_no_run_directory_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    toy()
    assert not list(tmp_path.iterdir())


def test_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        sizes = list(pool.map(lambda size: toy(f"algorithm.group_size={size}").algorithm.options.group_size, range(2, 14)))
    assert sizes == list(range(2, 14))


def test_a_plugin_without_a_config_is_named() -> None:
    host = PluginHost.from_plugins([toy_plugin(), plugin("odd", algorithms=[AlgorithmEntry("odd", "tests.toys:toy_host", "s")])])
    with pytest.raises(PluginError, match=r"tests.toys:toy_host \(from odd\) has no dataclass named Config"):
        compose("odd", "", [], host)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("group_sise: 4", "Key 'group_sise' not in"),
        ("group_size: many", "could not be converted"),
        ("- 1", "no mapping"),
        ("{", "cannot be read"),
        ("preset: nope", "'nope' is not among its presets"),
        ("run: {seed: 1}", "only an environment"),
    ],
)
def test_a_wrong_defaults_file_is_the_plugins_fault(text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package_with_defaults"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "x.yaml").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "package_with_defaults", raising=False)
    entry = AlgorithmEntry("odd", "tests.toys:ToyAlgorithm", "s", defaults="package_with_defaults:x.yaml")
    host = PluginHost.from_plugins([toy_plugin(), plugin("odd", algorithms=[entry])])
    with pytest.raises(PluginError, match=r"package_with_defaults:x\.yaml") as refused:
        compose("odd", "", [], host)
    assert complaint in str(refused.value)


def test_a_missing_defaults_file_and_wrong_run_defaults() -> None:
    entries = [EnvironmentEntry("lost", "tests.toys:ToyEnvironment", "s", defaults="tests.config:lost.yaml")]
    host = PluginHost.from_plugins([toy_plugin(), plugin("odd", environments=entries)])
    with pytest.raises(PluginError, match=r"tests.config:lost.yaml \(from odd\): cannot be read"):
        compose("toy", "lost", [], host)


def test_option_documentation() -> None:
    documented = {option.key: option for option in run_options()}
    assert documented["evaluation.split"].doc == "a split of the environment."
    assert documented["evaluation.episodes"].doc.startswith("number of tasks")
    assert documented["budget.env_steps"].type == "int or null"
    assert default_names() == {"algorithm": "???", "env": "household", "engine": "embedded", "rollout": "hf", "tracker": "mlflow"}


def test_every_option_of_the_built_in_plugins_is_documented() -> None:
    from threespo_bench.config.defaults import config_class
    from threespo_bench.config.options import describe

    host = PluginHost.discover()
    lacking = []
    for kind in ("algorithms", "environments", "engines", "trackers"):
        for contribution in host.all(kind).values():
            if contribution.owner == "threespo-bench":
                lacking += [f"{contribution.name}: {option.key}" for option in describe(config_class(contribution), "", {}) if not option.doc]
    assert not lacking


def test_composing_imports_no_engine() -> None:
    code = (
        "import sys\nfrom threespo_bench.config.compose import compose\nfrom threespo_bench.host import PluginHost\n"
        "compose('grpo', 'household', [], PluginHost.discover())\n"
        "print(sorted({'torch', 'transformers', 'mlflow', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.stdout.strip() == "[]", done.stderr
