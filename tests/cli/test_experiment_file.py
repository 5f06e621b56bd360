"""A comparison from a YAML file: what it may say, what is refused with its line, and options that override it."""

from __future__ import annotations

import pytest

from tests.cli.conftest import TOY_SETTINGS
from threespo_bench.cli.comparison_request import Options, request
from threespo_bench.config.overrides import read
from threespo_bench.errors import UsageError
from threespo_bench.experiment import Variant
from threespo_bench.experiment_file import override_text, read_experiment_file
from threespo_bench.host import PluginHost
from threespo_bench.store import RunStore

WHOLE = """\
name: sizes
algorithms:
  - 3spo
  - grpo@dr_grpo
  - name: grpo
    label: large
    preset: reference
    overrides:
      algorithm: {group_size: 16, optimization.learning_rate: 1e-4}
      model.path: a b
environments: [household, alfworld]
seeds: [0, "2..3"]
budget: {env_steps: 16000}
overrides: [evaluation.episodes=64]
baseline: grpo
jobs: 2
out: elsewhere
"""


def write(tmp_path, text: str):
    path = tmp_path / "experiment.yaml"
    path.write_text(text)
    return path


def test_everything_a_file_may_say(tmp_path):
    file = read_experiment_file(write(tmp_path, WHOLE))
    assert (file.name, file.environments, file.seeds, file.jobs, file.out, file.baseline) == (
        "sizes",
        ("household", "alfworld"),
        (0, 2, 3),
        2,
        "elsewhere",
        "grpo",
    )
    assert file.budget == ("budget.env_steps=16000",)
    assert file.overrides == ("evaluation.episodes=64",)
    large = ("algorithm.preset=reference", "algorithm.group_size=16", "algorithm.optimization.learning_rate=1e-4", 'model.path="a b"')
    assert file.algorithms == (Variant("3spo"), Variant("grpo", ("algorithm.preset=dr_grpo",)), Variant("grpo", large, "large"))


def test_little_is_enough(tmp_path):
    file = read_experiment_file(write(tmp_path, "algorithms: grpo\nseeds: 3\n"))
    assert (file.name, file.algorithms, file.seeds, file.environments, file.jobs) == ("experiment", (Variant("grpo"),), (3,), (), None)


@pytest.mark.parametrize(
    ("text", "line", "message", "fix"),
    [
        ("name: x\nalgoritms: [grpo]\n", 2, "unknown key 'algoritms'", "did you mean algorithms?"),
        ("algorithms:\n- name: grpo\n  overides: {a: 1}\n", 3, "unknown key 'overides'", "did you mean overrides?"),
        ("algorithms: [grpo]\nbudget:\n  env_step: 5\n", 3, "unknown key 'env_step'", "did you mean env_steps?"),
        ("algorithms: [grpo]\nseeds: 3..1\n", 2, "seeds: 3..1: '3..1' is neither a seed nor a range", "0..4"),
        ("algorithms: [grpo]\nseeds: [1, 1]\n", 2, "a seed comes twice", ""),
        ("algorithms: [grpo]\nseeds: 1.5\n", 2, "seeds are whole numbers, not 1.5", ""),
        ("algorithms: [grpo]\njobs: 0\n", 2, "jobs must be a whole number of at least 1, not 0", ""),
        ("algorithms: [grpo]\noverrides:\n- a=1\n- b\n", 4, "'b' is no override: it has no '='", "key=value"),
        ("algorithms: [grpo]\noverrides: 3\n", 2, "overrides are a mapping of keys or a list", ""),
        ("algorithms: [grpo, grpo@]\n", 1, "'grpo@' is neither NAME nor NAME@PRESET", ""),
        ("algorithms:\n- {label: x}\n", 2, "the algorithm has no name", "threespo-bench list"),
        ("algorithms:\n- {name: grpo@a, preset: b}\n", 2, "the preset is given twice", ""),
        ("name: x\n", 1, "no algorithms are named", ""),
        ("", 1, "no algorithms are named", ""),
        ("- grpo\n", 1, "a mapping is needed, not a list", ""),
        ("algorithms: {grpo: 1}\n", 1, "algorithms must be a list, not a mapping", "- "),
        ("algorithms: [grpo]\nname: a\nname: b\n", 3, "the key 'name' comes twice", ""),
        ("algorithms: [grpo\nname: b\n", 2, "no valid YAML", ""),
    ],
)
def test_what_is_wrong_has_a_line(tmp_path, text, line, message, fix):
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        read_experiment_file(path)
    assert str(refused.value).startswith(f"{path}, line {line}: ")
    assert message in str(refused.value)
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    "value", ["a", "a b", 'x"y', "c\\", 'a\\"b\\', "true", "", "it's", "a,b", "ü#", "nan", "${x}", " lead", True, None, 3, 1.5, [1, "a b"], {"k": "v w"}]
)
def test_values_come_back_from_overrides(value):
    assert read(override_text("k.x", value)).value == value


def test_options_override_the_file(tmp_path):
    host = PluginHost.discover()
    path = str(write(tmp_path, WHOLE))
    asked = request(Options(words=(path,)), host)
    assert (asked.seeds, asked.jobs, asked.out, asked.experiment, asked.overrides) == (
        (0, 2, 3),
        2,
        "elsewhere",
        "sizes",
        ("budget.env_steps=16000", "evaluation.episodes=64"),
    )
    options = Options(("large", "gigpo"), ("household",), "7", ("tokens=5",), "there", "other", "gigpo", 1, (path, "algorithm.group_size=2", "large:seed=9"))
    asked = request(options, host)
    assert [(variant.algorithm, variant.label, variant.last) for variant in asked.variants] == [
        ("grpo", "large", ("algorithm.group_size=2", "seed=9")),
        ("gigpo", "", ("algorithm.group_size=2",)),
    ]
    assert asked.overrides == ("budget.tokens=5", "evaluation.episodes=64")
    assert (asked.environments, asked.seeds, asked.out, asked.experiment, asked.baseline, asked.jobs) == (("household",), (7,), "there", "other", "gigpo", 1)
    with pytest.raises(UsageError, match="a comparison has one file"):
        request(Options(words=(path, "b.yaml")), host)


def toy_file(tmp_path, *lines: str) -> str:
    settings = ", ".join(TOY_SETTINGS)
    text = ["environments: corridor", "budget: {iterations: 2}", f"overrides: [{settings}]", f"out: {tmp_path / 'runs'}", "algorithms: [counting]", *lines]
    return str(write(tmp_path, "\n".join(text) + "\n"))


def test_a_file_again_and_again(call, tmp_path):
    """Plan, run, skip what is finished, add a seed, and estimate from what there is."""
    file = toy_file(tmp_path, "seeds: 0")
    code, out, err = call("compare", file, "--dry-run")
    assert code == 0, err
    assert "1 to run; time unknown: no finished run of counting on corridor" in out
    assert not (tmp_path / "runs").exists()
    assert call("compare", file, "--no-progress")[0] == 0
    code, out, _ = call("compare", file, "--seeds", "0..1", "--dry-run")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert "skip: finished" in rows["1count-corridor-seed0"]
    assert "about " in rows["1count-corridor-seed1"]
    assert "1 to run, 1 finished; about " in out
    code, out, err = call("compare", file, "--seeds", "0..1", "--no-progress")
    assert code == 0
    assert "1count-corridor-seed0: finished before" in err
    assert "1count-corridor-seed1: finished after" in err
    assert "2 finished; nothing to wait for" in call("compare", file, "--seeds", "0..1", "--dry-run")[1]


def test_a_dry_run_and_the_call_agree_about_a_locked_run(call, tmp_path):
    file = toy_file(tmp_path, "seeds: 0")
    assert call("compare", file, "--no-progress")[0] == 0
    run = tmp_path / "runs" / "experiment" / "1count-corridor-seed0"
    more = ("compare", file, "budget.iterations=3")
    assert call(*more, "--no-progress")[0] == 0  # another run, which is then as if it were going on
    with RunStore.open(run.with_name(f"{run.name}-2")) as store:
        store.update_status(state="running")
        code, out, _ = call(*more, "--dry-run")
        assert code == 0
        assert "leave: another process works on it" in out and "1 in another process; nothing to wait for" in out
        code, _, err = call(*more, "--no-progress")
    assert code == 6
    assert "1 of 1 runs were left to another process" in err and "goes on from" not in err


def test_differences_are_a_warning_at_the_end(call, tmp_path):
    file = toy_file(tmp_path, "seeds: 0")
    variant = "\n- {name: counting, label: shorter, overrides: {budget.iterations: 1}}"
    text = (tmp_path / "experiment.yaml").read_text().replace("algorithms: [counting]", f"algorithms:\n- counting{variant}")
    (tmp_path / "experiment.yaml").write_text(text)
    code, _, err = call("compare", file, "--no-progress")
    assert code == 0
    assert "warning: corridor, seed 0: the budget differs between 1count-corridor-seed0 and shorter-corridor-seed0" in err.splitlines()[-1]


def test_a_label_of_the_file_is_a_baseline(call, tmp_path):
    file = toy_file(tmp_path, "seeds: 0")
    text = (tmp_path / "experiment.yaml").read_text().replace("[counting]", "[counting, {name: counting, label: shorter, overrides: {budget.iterations: 1}}]")
    (tmp_path / "experiment.yaml").write_text(text)
    for named in ("shorter", "counting"):
        code, _, err = call("compare", file, "--baseline", named, "--dry-run")
        assert code == 0, err
    code, _, err = call("compare", file, "--baseline", "shortest", "--dry-run")
    assert code == 2 and "shortest" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gone.yaml",), "the experiment file gone.yaml cannot be read: No such file"),
        (("experiment",), "'experiment' is no override: it has no '='"),
        ((), "no algorithm was named"),
    ],
)
def test_bad_input(call, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = call("compare", *(("--algo", "counting", *arguments) if arguments == ("experiment",) else arguments))
    assert code == 2
    assert words in err


def test_an_override_of_the_file_that_is_wrong_names_its_key(call, tmp_path):
    file = toy_file(tmp_path, "seeds: 0")
    text = (tmp_path / "experiment.yaml").read_text().replace("[counting]", "[{name: counting, overrides: {algorithm.grup_size: 2}}]")
    (tmp_path / "experiment.yaml").write_text(text)
    code, _, err = call("compare", file, "--dry-run")
    assert code == 2
    assert "unknown key 'algorithm.grup_size'" in err and "did you mean algorithm.group_size?" in err
