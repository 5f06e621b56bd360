"""Another process rebuilds the same host, or says what differs (R37)."""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeDistribution
from tests.host.sources import BROKEN, algorithm
from tests.toys import toy_host
from threespo_bench.errors import PluginError
from threespo_bench.host import PluginHost


def rebuild(hidden: list[str], text: str, queue: Any) -> None:
    """Runs in a worker: rebuild the host and answer with what it has, or with the error."""
    sys.path[:] = [path for path in sys.path if path not in hidden]  # a spawned process inherits the path
    try:
        host = PluginHost.from_identity(json.loads(text))
        queue.put(("host", sorted(host.algorithms), host.identity() == json.loads(text)))
    except PluginError as error:
        queue.put(("error", str(error), error.fix))


def in_worker(identity: dict[str, Any], hidden: Sequence[Path] = ()) -> tuple[Any, ...]:
    """What a spawned process makes of an identity, if it has nothing of the folders in ``hidden``."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=rebuild, args=([str(path) for path in hidden], json.dumps(identity), queue))
    process.start()
    answer = queue.get()
    process.join(60)
    return answer


def test_a_worker_rebuilds_an_installed_host(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(make_distribution("worker-plugin", algorithm("vine"))))
    kind, names, equal = in_worker(PluginHost.discover().identity())
    assert (kind, equal) == ("host", True)
    assert "vine" in names


def test_a_worker_refuses_a_plugin_that_is_only_in_memory() -> None:
    kind, message, _ = in_worker(toy_host().identity())
    assert kind == "error"
    assert "exists only in the memory" in message


def test_a_worker_without_the_plugin_says_so(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_distribution("worker-plugin", algorithm("vine"))
    monkeypatch.syspath_prepend(str(folder))
    kind, message, fix = in_worker(PluginHost.discover().identity(), hidden=[folder])
    assert kind == "error"
    assert "plugin worker_plugin of worker-plugin 1.0 is not installed" in message
    assert "install the same" in fix


def test_what_differs_is_listed(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_distribution("worker-plugin", algorithm("vine"))
    monkeypatch.syspath_prepend(str(folder))
    identity = PluginHost.discover().identity()

    other_version = json.loads(json.dumps(identity))
    other_version["plugins"]["worker_plugin"]["version"] = "0.9"
    with pytest.raises(PluginError, match=r"worker-plugin is 1.0 here and 0.9 there"):
        PluginHost.from_identity(other_version)

    other_target = json.loads(json.dumps(identity))
    other_target["contributions"]["algorithms:grpo"]["target"] = "elsewhere:GRPO"
    with pytest.raises(PluginError, match=r"algorithms:grpo is threespo_algorithms.grpo:GRPO of threespo-bench here and elsewhere:GRPO"):
        PluginHost.from_identity(other_target)

    module = folder / "worker_plugin.py"
    module.write_text(module.read_text() + "# changed\n")
    with pytest.raises(PluginError, match="source code of plugin worker_plugin"):
        PluginHost.from_identity(identity)


def test_a_changed_source_of_an_algorithm_is_seen(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(make_distribution("worker-plugin", algorithm("vine"))))
    identity = PluginHost.discover().identity()
    identity["contributions"]["algorithms:grpo"]["digest"] = "0" * 16
    with pytest.raises(PluginError, match="source code of algorithms:grpo differs"):
        PluginHost.from_identity(identity)


def test_plugins_the_other_process_did_not_have_are_not_loaded(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = PluginHost.discover().identity()
    monkeypatch.syspath_prepend(str(make_distribution("late", BROKEN["raises-at-import"])))
    host = PluginHost.from_identity(identity)
    assert not host.failures


def test_an_explicit_replacement_is_repeated(make_distribution: MakeDistribution, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(make_distribution("my-grpo", algorithm("grpo"))))
    identity = PluginHost.discover(replace="algorithms:grpo=my-grpo").identity()
    assert PluginHost.from_identity(json.loads(json.dumps(identity))).algorithms["grpo"].owner == "my-grpo"


def test_the_identity_is_plain_data_and_digests_every_algorithm() -> None:
    identity = PluginHost.discover().identity()
    assert json.loads(json.dumps(identity)) == identity
    assert all(len(identity["contributions"][f"algorithms:{name}"]["digest"]) == 16 for name in ("grpo", "gigpo", "threespo"))
