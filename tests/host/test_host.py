"""Finding contributions, and hints for hooks that nobody will ever call."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.toys import plugin, toy_host, toy_plugin
from threespo_bench.contracts.entries import AlgorithmEntry, ModelEntry
from threespo_bench.errors import PluginError, UsageError
from threespo_bench.hookspecs import hookimpl
from threespo_bench.host import KINDS, PluginHost


def test_the_built_in_plugins_come_through_entry_points() -> None:
    host = PluginHost.discover()
    assert not host.failures
    assert {"threespo", "gigpo", "grpo"} <= set(host.algorithms)
    assert {"household", "alfworld"} <= set(host.environments)
    assert "embedded" in host.engines
    assert {contribution.owner for contribution in host.algorithms.values() if contribution.name == "grpo"} == {"threespo-bench"}


def test_every_built_in_contribution_can_be_loaded() -> None:
    host = PluginHost.discover()
    for kind in KINDS:
        for contribution in host.all(kind).values():
            if contribution.owner == "threespo-bench" and not contribution.entry.extra:
                contribution.load()


def test_find_by_name_and_alias() -> None:
    host = toy_host()
    assert host.find("algorithms", "3toy") is host.find("algorithms", "toy")
    assert host.find("models", "household-tiny").name == "household_tiny"


@pytest.mark.parametrize(("kind", "name", "meant"), [("algorithms", "tyo", "toy"), ("algorithms", "2toy", "3toy"), ("environments", "houshold", "household")])
def test_a_close_name_is_suggested(kind: str, name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"unknown {KINDS[kind].singular} '{name}'") as refused:
        toy_host().find(kind, name)
    assert meant in refused.value.fix


def test_a_name_like_nothing_lists_all() -> None:
    with pytest.raises(UsageError) as refused:
        toy_host().find("engines", "warp")
    assert "embedded" in refused.value.fix


def test_misspelt_and_unmarked_hooks_get_a_hint() -> None:
    made = ModuleType("slips")

    @hookimpl
    def threespo_algoritms() -> list[AlgorithmEntry]:
        return []

    @hookimpl
    def treespo_engines() -> list[AlgorithmEntry]:
        return []

    def threespo_environments() -> list[AlgorithmEntry]:
        return []

    def threespo_modls() -> list[AlgorithmEntry]:
        return []

    for function in (threespo_algoritms, treespo_engines, threespo_environments, threespo_modls):
        setattr(made, function.__name__, function)
    host = PluginHost.from_plugins([made])
    text = "\n".join(host.hints)
    assert "threespo_algoritms is no hook: did you mean threespo_algorithms" in text
    assert "treespo_engines is no hook: did you mean threespo_engines" in text
    assert "threespo_environments is never called: mark it with @hookimpl" in text
    assert "threespo_modls is no hook and not marked with @hookimpl: did you mean threespo_models" in text
    assert all(hint.startswith("slips") for hint in host.hints)
    with pytest.raises(PluginError, match="strict mode"):
        PluginHost.from_plugins([made], strict=True)


def test_a_plugin_without_hooks_gets_a_hint() -> None:
    assert "it implements no hook" in PluginHost.from_plugins([ModuleType("empty")]).hints[0]


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (AlgorithmEntry("a b", "m:C", "s"), "no valid name"),
        (AlgorithmEntry("", "m:C", "s"), "no valid name"),
        (AlgorithmEntry("a", "m.C", "s"), "has not the form package.module:Name"),
        (AlgorithmEntry("a", "m:C", "s", aliases="bc"), "aliases"),  # type: ignore[arg-type]
        (AlgorithmEntry("a", "m:C", "s", aliases=("b c",)), "aliases"),
        (AlgorithmEntry("a", "m:C", "s", defaults="a.yaml"), "defaults"),
        (AlgorithmEntry("a", None, "s"), "target"),  # type: ignore[arg-type]
        (AlgorithmEntry("a", "m:C", "s", aliases=("a",)), "used twice"),
    ],
)
def test_entries_are_checked(entry: AlgorithmEntry, complaint: str) -> None:
    host = PluginHost.from_plugins([plugin(algorithms=[entry])])
    assert not host.algorithms
    assert complaint in host.failures[0].cause


def test_the_environment_of_a_model_is_a_word() -> None:
    host = PluginHost.from_plugins([plugin(models=[ModelEntry("a", "m:C", "s", env=None)])])  # type: ignore[arg-type]
    assert not host.names("models")
    assert "the env of entry 'a' is None, not a string" in host.failures[0].cause


def test_an_answer_that_is_no_list_is_the_plugins_failure() -> None:
    host = PluginHost.from_plugins([plugin("one", algorithms=42), plugin("two", algorithms=[AlgorithmEntry("fine", "m:C", "s")])])
    assert list(host.algorithms) == ["fine"]
    assert len(host.failures) == 1


def test_a_contribution_that_cannot_be_imported_names_its_owner() -> None:
    entries = [AlgorithmEntry("lost", "no_such_module:X", "s"), AlgorithmEntry("gone", "tests.toys:Nope", "s")]
    host = PluginHost.from_plugins([plugin("lost", algorithms=entries)])
    for name in ("lost", "gone"):
        with pytest.raises(PluginError, match=rf"algorithm {name}.*from lost"):
            host.find("algorithms", name).load()


def test_mappings_are_read_only() -> None:
    with pytest.raises(TypeError):
        toy_host().algorithms["x"] = None  # type: ignore[index]


def test_methods_of_an_object_are_hooks_too() -> None:
    class Plugin:
        @hookimpl
        def threespo_algorithms(self) -> list[AlgorithmEntry]:
            return [AlgorithmEntry("mine", "m:C", "s")]

    host = PluginHost.from_plugins([Plugin()])
    assert "mine" in host.algorithms
    assert not host.warnings


def test_two_hosts_do_not_share_anything() -> None:
    first, second = PluginHost.from_plugins([toy_plugin()]), PluginHost.from_plugins([])
    assert "toy" in first.algorithms
    assert "toy" not in second.algorithms
