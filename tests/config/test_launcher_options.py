"""The launcher of a comparison: how it is chosen, and that no run knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.toys import plugin, toy_plugin
from threespo_bench.cli.comparison_request import Options, request
from threespo_bench.config.compose import compose
from threespo_bench.config.launcher import compose_launcher
from threespo_bench.contracts.entries import LauncherEntry
from threespo_bench.contracts.launcher import LauncherConfig, require
from threespo_bench.errors import UsageError
from threespo_bench.experiment_file import read_experiment_file
from threespo_bench.host import PluginHost


@dataclass
class FarConfig(LauncherConfig):
    """Attributes:
    gpus: of a run.
    resources: by name.
    """

    gpus: float = 0.0
    resources: dict[str, float] = field(default_factory=dict)

    def validate(self) -> None:
        super().validate()
        require(self.gpus >= 0, "gpus", self.gpus, ">= 0")


class Far:
    """Never launched."""

    Config = FarConfig


@pytest.fixture
def host() -> PluginHost:
    entries = [LauncherEntry("local", "threespo_plugins.launchers.local:LocalLauncher", ""), LauncherEntry("far", f"{__name__}:Far", "")]
    for entry in entries[1:]:
        object.__setattr__(entry, "load", lambda: Far)
    toys = toy_plugin()
    del toys.threespo_launchers
    return PluginHost.from_plugins([toys, plugin("launchers", launchers=entries)])


def test_local_is_the_default(host):
    chosen = compose_launcher([], host, jobs=3)
    assert (chosen.name, chosen.options.jobs) == ("local", 3)
    assert compose_launcher([], host).options.jobs is None


def test_options(host):
    chosen = compose_launcher(["launcher=far", "launcher.gpus=2", "launcher.jobs=1e1", "launcher.resources.slices=1"], host, jobs=3)
    assert (chosen.name, chosen.options) == ("far", FarConfig(jobs=10, gpus=2.0, resources={"slices": 1.0}))


def test_options_of_a_launcher_that_is_not_chosen_are_dropped(host):
    assert compose_launcher(["launcher=far", "launcher.gpus=2", "launcher=local"], host).name == "local"
    assert compose_launcher(["launcher=far", "launcher.gpus=2", "launcher=far"], host).options.gpus == 2.0


@pytest.mark.parametrize(
    ("texts", "message", "fix"),
    [
        (["launcher=fra"], "unknown launcher 'fra'", "did you mean far?"),
        (["launcher=far", "launcher.gpu=1"], "unknown key 'launcher.gpu': the launcher far has no such option", "did you mean launcher.gpus?"),
        (["launcher=far", "launcher.gpus=some"], "launcher.gpus=some: must be of type float", "the default is launcher.gpus=0.0"),
        (["launcher=far", "launcher.gpus=-1"], "launcher.gpus=-1.0 is out of range: must be >= 0", ""),
        (["launcher=far", "launcher.gpus=nan"], "launcher.gpus=nan is out of range", ""),
        (["launcher.jobs=0"], "launcher.jobs=0 is out of range: must be >= 1, or null", ""),
    ],
)
def test_what_is_refused(host, texts, message, fix):
    with pytest.raises(UsageError) as refused:
        compose_launcher(texts, host)
    assert message in str(refused.value)
    assert fix in refused.value.fix


def test_a_run_has_no_launcher(host):
    with pytest.raises(UsageError, match="a launcher carries out the runs of a comparison, it is no setting of a run"):
        compose("toy", "household", ["launcher=far"], host)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("launcher: far", ("launcher=far",)),
        ("launcher: {name: far, gpus: 1, resources: {slices: 2}}", ("launcher=far", "launcher.gpus=1", "launcher.resources.slices=2")),
        ("launcher: {jobs: 2}", ("launcher.jobs=2",)),
    ],
)
def test_in_a_file(tmp_path, host, text, texts):
    path = tmp_path / "experiment.yaml"
    path.write_text(f"algorithms: [grpo]\n{text}\n")
    assert read_experiment_file(path).launcher == texts
    asked = request(Options(words=(str(path), "launcher.gpus=4", "seed=1"), launcher="far"), host)
    assert asked.launcher == (*texts, "launcher=far", "launcher.gpus=4")
    assert asked.variants[0].last == ("seed=1",)


def test_a_wrong_name_in_a_file_has_a_line(tmp_path):
    path = tmp_path / "experiment.yaml"
    path.write_text("algorithms: [grpo]\nlauncher:\n  name: [far]\n")
    with pytest.raises(UsageError, match="line 3: a name is needed, not a list"):
        read_experiment_file(path)
