"""Two owners of one name are an error that names both, whatever the order of installation (R35)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeDistribution
from tests.host.sources import algorithm
from tests.toys import plugin, toy_plugin
from threespo_bench.contracts.entries import AlgorithmEntry
from threespo_bench.errors import PluginError, UsageError
from threespo_bench.host import PluginHost


def conflict(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """The message of a conflict; the same for both orders on sys.path."""
    messages = []
    for order in (folders, folders[::-1]):
        with monkeypatch.context() as patch:
            for folder in order:
                patch.syspath_prepend(str(folder))
            with pytest.raises(PluginError) as refused:
                PluginHost.discover()
            messages.append(f"{refused.value} | {refused.value.fix}")
    assert messages[0] == messages[1]
    return messages[0]


def test_one_entry_point_name_of_two_distributions(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [make_distribution("mirror-a", algorithm("one"), entry="mirror"), make_distribution("mirror-b", algorithm("two"), entry="mirror", version="3.0")]
    message = conflict(folders, monkeypatch)
    assert "'mirror' is used by mirror-a 1.0 and by mirror-b 3.0" in message
    assert "THREESPO_BENCH_REPLACE" in message


def test_a_built_in_name_of_a_stranger(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    message = conflict([make_distribution("my-grpo", algorithm("grpo"))], monkeypatch)
    assert "the algorithm name 'grpo' is claimed by my-grpo 1.0 and by threespo-bench " in message


def test_a_built_in_alias_of_a_stranger(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    message = conflict([make_distribution("my-tree", algorithm("tree", aliases="('3spo',)"))], monkeypatch)
    assert "'3spo' is claimed by my-tree 1.0 and by threespo-bench " in message


def test_one_distribution_in_two_places(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [make_distribution("twice", algorithm("one"), folder="a"), make_distribution("twice", algorithm("one"), folder="b", version="1.1")]
    message = conflict(folders, monkeypatch)
    assert f"twice is installed 2 times: 1.0 in {folders[0]} and 1.1 in {folders[1]}" in message


def test_an_editable_installation_beside_a_wheel(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheel, editable = make_distribution("twice", algorithm("one"), folder="wheel"), make_distribution("twice", algorithm("one"), folder="editable")
    project = tmp_path / "project"
    project.mkdir()
    direct = f'{{"url": "{project.as_uri()}", "dir_info": {{"editable": true}}}}'
    (editable / "twice-1.0.dist-info" / "direct_url.json").write_text(direct)
    assert str(project) in conflict([wheel, editable], monkeypatch)


def test_metadata_that_a_build_left_in_the_project_folder_is_the_same_thing(
    make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = make_distribution("once", algorithm("one"), folder="project/src".replace("/", "-"))
    editable = make_distribution("once", algorithm("one"), folder="editable")
    direct = f'{{"url": "{source.as_uri()}", "dir_info": {{"editable": true}}}}'
    (editable / "once-1.0.dist-info" / "direct_url.json").write_text(direct)
    for folder in (source, editable):
        monkeypatch.syspath_prepend(str(folder))
    assert PluginHost.discover().algorithms["one"].owner == "once"


def test_an_explicit_setting_chooses_and_is_recorded(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(make_distribution("my-grpo", algorithm("grpo"))))
    monkeypatch.setenv("THREESPO_BENCH_REPLACE", "algorithms:grpo=my-grpo")
    host = PluginHost.discover()
    assert host.algorithms["grpo"].owner == "my-grpo"
    assert {"threespo", "gigpo"} <= set(host.algorithms)
    assert host.replacements == {"algorithms:grpo": "my-grpo"}
    assert host.identity()["replacements"] == {"algorithms:grpo": "my-grpo"}
    assert PluginHost.discover(replace="algorithms:grpo=threespo-bench").algorithms["grpo"].owner == "threespo-bench"


def test_an_explicit_setting_chooses_between_plugins(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, version in (("mirror-a", "1.0"), ("mirror-b", "3.0")):
        monkeypatch.syspath_prepend(str(make_distribution(name, algorithm(name[-1:] * 3), entry="mirror", version=version)))
    host = PluginHost.discover(replace="plugins:mirror=mirror-b")
    assert "bbb" in host.algorithms
    assert "aaa" not in host.algorithms
    assert host.replacements == {"plugins:mirror": "mirror-b"}


def test_a_setting_without_a_conflict_is_a_hint() -> None:
    host = PluginHost.discover(replace="algorithms:grpo=threespo-bench")
    assert any("nothing to choose between" in hint for hint in host.hints)


def test_a_setting_of_the_wrong_form() -> None:
    for text in ("grpo", "grpo=x", "algorithms:grpo", "algorithms:=x"):
        with pytest.raises(UsageError, match="kind:name=distribution"):
            PluginHost.discover(replace=text)


def test_all_conflicts_are_counted() -> None:
    other = plugin("others", algorithms=[AlgorithmEntry("toy", "a:b", "s"), AlgorithmEntry("bare", "a:b", "s")])
    with pytest.raises(PluginError, match="and 1 more"):
        PluginHost.from_plugins([toy_plugin(), other])


def test_a_name_given_twice_by_one_plugin_is_that_plugins_failure() -> None:
    entries = [AlgorithmEntry("one", "a:b", "first"), AlgorithmEntry("one", "c:d", "second"), AlgorithmEntry("two", "a:b", "s", ("one",))]
    twice = plugin("twice", algorithms=entries)
    host = PluginHost.from_plugins([twice])
    assert host.algorithms["one"].entry.summary == "first"
    assert len(host.failures) == 2
    assert all("used twice" in failure.cause for failure in host.failures)
