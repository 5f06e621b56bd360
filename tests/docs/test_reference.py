"""The reference parts of the pages: hooks, fields, options and presets are those of the code."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, fields
from types import ModuleType

import pytest

from tests.docs.pages import ROOT, blocks, table
from tests.docs.preset_table import preset_table, shown_table
from threespo_bench import hookspecs
from threespo_bench.assembly import HOST_CAPABILITIES
from threespo_bench.config.compose import run_options
from threespo_bench.config.defaults import load_defaults
from threespo_bench.config.options import describe
from threespo_bench.contracts.algorithm import Credit
from threespo_bench.contracts.engine import CAPABILITIES
from threespo_bench.contracts.entries import Entry
from threespo_bench.contracts.rollout import RolloutOptions
from threespo_bench.host import KINDS, PluginHost

DOCS = ROOT / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def code(cell: str) -> str:
    return cell.strip("`")


def test_hooks() -> None:
    specified = [name for name in vars(hookspecs) if name.startswith("threespo_")]
    rows = table(page("plugins.md"), "hook", "returns")
    assert [code(row[0]) for row in rows] == specified
    returned = {kind.hook: kind.entry.__name__ for kind in KINDS.values()}
    assert {code(row[0]): code(row[1]) for row in rows} == returned


def test_fields_of_an_entry() -> None:
    rows = table(page("plugins.md"), "field", "meaning")
    assert [code(row[0]) for row in rows] == [field.name for field in fields(Entry)]


def test_the_algorithm_of_the_plugins_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from threespo_bench.errors import UsageError
    from threespo_bench.testing import check_algorithm

    source = next(block for block in blocks(DOCS / "plugins.md", "python") if "class Mine(" in block)
    module = ModuleType("threespo_bench_mine")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # the dataclass looks its annotations up there
    exec(compile(source, "plugins.md", "exec"), vars(module))
    check_algorithm(module.Mine)
    with pytest.raises(UsageError, match=r"algorithm\.rollouts=0"):
        module.MineConfig(rollouts=0).validate()
    host = PluginHost.from_plugins([module], strict=True)
    assert host.find("algorithms", "mine").load() is module.Mine


def test_the_testing_kit_is_what_the_page_imports() -> None:
    source = next(block for block in blocks(DOCS / "plugins.md", "python") if "threespo_bench.testing" in block)
    exec(source, {})


def test_run_options() -> None:
    rows = table(page("configuration.md"), "key", "default")
    shown = {code(row[0]): row[1] for row in rows}
    options = run_options() + describe(RolloutOptions, "rollout", asdict(RolloutOptions()))
    real = {option.key: "null" if option.default is None else str(option.default).lower() for option in options}
    assert {key: value.lower() for key, value in shown.items()} == real


def test_presets_are_listed() -> None:
    host = PluginHost.discover()
    rows = {row[0]: set(re.findall(r"`(\w+)`", row[1])) for row in table(page("configuration.md"), "algorithm", "presets")}
    for name, listed in rows.items():
        assert listed == set(load_defaults(host.find("algorithms", name), "algorithm").presets)
    built_in = {contribution.name for contribution in host.algorithms.values() if contribution.owner == "threespo-bench"}
    assert {host.find("algorithms", name).name for name in rows} == built_in


def test_fields_of_a_credit() -> None:
    rows = table(page("plugins.md"), "field", "shape")
    assert [code(row[0]) for row in rows] == [field.name for field in fields(Credit)]


def test_capabilities() -> None:
    rows = table(page("plugins.md"), "need", "what it is")
    assert {code(row[0]): row[1] for row in rows if code(row[0]) not in HOST_CAPABILITIES} == CAPABILITIES
    assert {code(row[0]) for row in rows} == {*CAPABILITIES, *HOST_CAPABILITIES}


def test_environment_variables_are_read_somewhere() -> None:
    source = "".join(file.read_text(encoding="utf-8") for folder in ("threespo_bench", "envs", "plugins") for file in (ROOT / folder).rglob("*.py"))
    for row in table(page("configuration.md"), "variable", "meaning"):
        assert code(row[0]) in source, row[0]


def test_every_option_of_3spo_is_explained() -> None:
    from threespo_algorithms.threespo import ThreeSPOConfig

    text = page("3spo.md")
    own = [name for name in ThreeSPOConfig.__annotations__ if f"`{name}`" not in text]
    assert not own, f"docs/3spo.md does not mention {', '.join(own)}"


def test_every_decision_of_3spo_has_a_row() -> None:
    rows = table(page("3spo.md"), "", "question")
    assert [row[0] for row in rows] == [f"D{number}" for number in range(1, 15)]


def test_options_that_the_3spo_page_names_exist() -> None:
    from threespo_algorithms.threespo import ThreeSPOConfig

    known = {field.name for field in fields(ThreeSPOConfig)}
    for head in (("", "formula", "option"), ("", "question", "answer here", "option")):
        for row in table(page("3spo.md"), *head):
            assert set(re.findall(r"`(\w+)`", row[-1])) <= known, row


def test_the_table_of_presets() -> None:
    assert shown_table() == preset_table(), "run: python -m tests.docs.preset_table"
