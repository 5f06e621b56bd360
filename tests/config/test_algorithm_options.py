"""Algorithms configured without a run: the rules of overrides are those of a run."""

from __future__ import annotations

import pytest

from tests.toys import ToyAlgorithmConfig, plugin, toy_host
from threespo_bench.config.algorithm import Choice, make_algorithms
from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.contracts.entries import AlgorithmEntry
from threespo_bench.errors import PluginError, UsageError
from threespo_bench.host import PluginHost


class Real(Algorithm):
    """An algorithm with the options of the toy."""

    Config = ToyAlgorithmConfig

    def credit(self, turns):
        raise NotImplementedError


def host() -> PluginHost:
    target = f"{__name__}:Real"
    entries = [AlgorithmEntry("toy", target, "a toy", ("3toy",), defaults="tests.config:toy.yaml"), AlgorithmEntry("bare", target, "a toy")]
    return PluginHost.from_plugins([plugin(algorithms=entries)])


def configured(*overrides: str, own: tuple[str, ...] = ()) -> ToyAlgorithmConfig:
    return make_algorithms([Choice("bare", "bare", None, own)], overrides, host())["bare"].config


def test_values_of_every_kind() -> None:
    config = configured("group_size=1e1", "words=[x,y]", "weights.a=2", "limit=null", "algorithm.share=0.25", "objective.kl_coef=0.5")
    assert (config.group_size, config.words, config.weights, config.limit, config.share) == (10, ("x", "y"), {"a": 2.0}, None, 0.25)
    assert config.objective.kl_coef == 0.5
    assert isinstance(config.group_size, int)


def test_presets_and_aliases() -> None:
    choices = [Choice("3toy", "3toy"), Choice("toy@paper", "toy", "paper")]
    made = make_algorithms(choices, ["limit=3"], host())
    assert {label: (algorithm.config.group_size, algorithm.config.limit) for label, algorithm in made.items()} == {"3toy": (6, 3), "toy@paper": (16, 3)}
    made = make_algorithms([Choice("toy", "toy"), Choice("bare", "bare")], ["preset=paper"], host())
    assert [algorithm.config.group_size for algorithm in made.values()] == [16, 4]


def test_its_own_overrides_win() -> None:
    assert configured("group_size=6", own=("algorithm.group_size=7",)).group_size == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("group_size=2,4", "gives several values"),
        ("group=4", "algorithm.group is called algorithm.group_size"),
        ("magic=1", "algorithm.magic was removed"),
        ("share=nan", "algorithm.share=nan is not a number"),
        ("limit=1.5", "algorithm.limit=1.5: must be of type int or null"),
        ("group_size=1", "algorithm.group_size=1 is out of range"),
        ("+group_size=3", "keys cannot be added or deleted"),
        ("preset=any", "no preset 'any'"),
    ],
)
def test_overrides_that_are_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        configured(text)
    assert words in str(refused.value)


def test_a_class_that_is_no_algorithm() -> None:
    with pytest.raises(PluginError, match=r"ToyAlgorithm .* is no subclass of Algorithm"):
        make_algorithms([Choice("bare", "bare")], [], toy_host())
