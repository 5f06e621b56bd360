"""A Ray cluster that cannot be joined is one line. A stand-in for Ray says what Ray says; nothing here needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from threespo_bench.errors import EngineError
from threespo_plugins import ray_cluster
from threespo_plugins.ray_cluster import check_ray_cluster

HEAD = "import os, sys, time\ndef init(address, **_):\n    open(os.environ['JOINED'], 'a').write(address + '\\n')\n    "


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module ``ray`` whose ``init`` runs a statement; returns the file that says which addresses were tried."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("JOINED", str(tmp_path / "joined"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_cluster, "check_ray_address", lambda *_: None)  # nobody listens there
    ray_cluster._try.cache_clear()

    def write(statement: str) -> Path:
        (tmp_path / "ray.py").write_text(HEAD + statement + "\n")
        return tmp_path / "joined"

    yield write
    ray_cluster._try.cache_clear()


def refused(capfd: pytest.CaptureFixture[str], address: str = "head:6379") -> EngineError:
    with pytest.raises(EngineError) as caught:
        check_ray_cluster(address, "start it")
    assert "\n" not in str(caught.value) and capfd.readouterr() == ("", ""), "nothing of Ray's log is shown"
    return caught.value


def test_one_that_answers_is_tried_once(stand_in, capfd) -> None:
    joined = stand_in("assert os.environ['RAY_NUM_REDIS_GET_RETRIES'] == '1'")
    check_ray_cluster("head:6379", "start it")
    check_ray_cluster("head:6379", "start it")
    check_ray_cluster("auto", "start it")
    assert joined.read_text().split() == ["head:6379", "auto"]


def test_one_that_is_not_there(stand_in, capfd, monkeypatch) -> None:
    joined = stand_in(r"""print('[gcs_client.cc:210] Failed', file=sys.stderr); raise ConnectionError('Could not find\n any running Ray instance.')""")
    for _ in range(2):  # it may have come up meanwhile
        error = refused(capfd, "auto")
    assert (str(error), error.fix) == ("cannot join the Ray cluster auto: Could not find any running Ray instance.", "start it")
    assert len(joined.read_text().split()) == 2
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert "cannot join the Ray cluster auto, which is RAY_ADDRESS=head:6379: Could not" in str(refused(capfd, "auto"))


def test_one_that_does_not_answer(stand_in, capfd, monkeypatch) -> None:
    stand_in("time.sleep(60)")
    monkeypatch.setattr(ray_cluster, "_SECONDS", 1)
    assert "no head of a cluster answered within 1 s" in str(refused(capfd))


def test_one_that_wants_a_token(stand_in, capfd) -> None:
    stand_in("print('Unauthenticated: RPC error: InvalidAuthToken: missing', file=sys.stderr); raise ConnectionError('Failed to connect')")
    error = refused(capfd)
    assert "it wants a token" in str(error) and "RAY_AUTH_MODE=token" in error.fix


def test_one_of_another_version(stand_in, capfd) -> None:
    stand_in("raise RuntimeError('Version mismatch: The cluster was started with:\\n    Ray: 2.9.0')")
    error = refused(capfd)
    assert "Version mismatch: The cluster was started with: Ray: 2.9.0" in str(error) and "same versions" in error.fix


@pytest.mark.parametrize(("statement", "words"), [("raise ConnectionError", "ConnectionError"), ("os._exit(3)", "exit code 3")])
def test_one_that_says_nothing(stand_in, capfd, statement: str, words: str) -> None:
    stand_in(statement)
    assert str(refused(capfd)) == f"cannot join the Ray cluster head:6379: {words}"


def test_a_machine_on_which_ray_is_never_imported(stand_in, capfd, monkeypatch) -> None:
    (stand_in("pass").parent / "ray.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(ray_cluster, "_SECONDS", 0)
    monkeypatch.setattr(ray_cluster, "_IMPORT_SECONDS", 1)
    assert "Ray could not be imported within 1 s" in str(refused(capfd))
