"""docs/algorithms.md has every registered algorithm, and says of it what the code says."""

from __future__ import annotations

import re

import pytest

from tests.algorithms.registered import NAMES, configured, host
from tests.docs.pages import ROOT, table

TEXT = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
VALUES = {"critic": "critic", "value_tokens": "tokens"}
every_algorithm = pytest.mark.parametrize("name", NAMES)


def row(name: str, *head: str) -> list[str]:
    found = [cells for cells in table(TEXT, *head) if cells[0] == f"`{name}`"]
    assert len(found) == 1, f"docs/algorithms.md has {len(found)} rows for {name} in the table of {head[1]}"
    return found[0]


def test_only_algorithms_that_there_are() -> None:
    for head in (("algorithm", "unit"), ("algorithm", "source")):
        assert {cells[0].strip("`") for cells in table(TEXT, *head)} == set(NAMES)


@every_algorithm
def test_what_it_does(name: str) -> None:
    algorithm = configured(name)
    _, _, compared, values, remembers, rollouts, update = row(name, "algorithm", "unit")
    needs = [VALUES[need] for need in sorted(algorithm.needs) if need in VALUES]
    assert values == needs[0] if needs else values not in VALUES.values()
    assert (remembers == "none") == (algorithm.state_dict() == {})
    tags = host().find("algorithms", name).entry.tags
    assert (update == "wave") == ("post-step" in tags)
    assert (values == "forks") == ("monte-carlo" in tags or name == "spo_segment_tree")
    assert ("group of a task" in rollouts) == hasattr(algorithm.config, "group_size")
    assert compared


@every_algorithm
def test_where_it_is_from(name: str) -> None:
    algorithm = type(configured(name))
    _, source, as_published, _ = row(name, "algorithm", "source")
    assert set(re.findall(r"arXiv:[\d.]+\d", source)) == set(re.findall(r"arXiv:[\d.]+\d", algorithm.source))
    assert ("reconstruction" in as_published) == ("econstruction" in algorithm.notes)


@every_algorithm
def test_its_worked_numbers_are_tested(name: str) -> None:
    worked = row(name, "algorithm", "source")[3]
    (test,) = re.findall(r"\]\(\.\./(tests/[\w/]+\.py)\)", worked)
    source = (ROOT / test).read_text(encoding="utf-8")
    numbers = [number for text in re.findall(r"`([^`]+)`", worked.partition("([test]")[0]) for number in re.findall(r"\d+\.\d+", text)]
    assert numbers and not [number for number in numbers if number not in source]
