"""What is found in other environments without importing anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from threespo_bench.errors import UsageError
from threespo_plugins.serving import environments
from threespo_plugins.serving.environments import interpreter, versions


def test_versions() -> None:
    assert versions(None, ["pytest", "no-such-distribution"]) == {"pytest": pytest.__version__, "no-such-distribution": None}
    assert interpreter(None) == sys.executable


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no program") as caught:
        versions(str(tmp_path / "nothing"), ["pytest"], fix="make one")
    assert caught.value.fix == "make one"


def test_a_folder_instead_of_its_interpreter(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no program"):
        interpreter(str(tmp_path))
    (tmp_path / "bin").mkdir()
    inside = write(tmp_path / "bin" / "python", "")
    with pytest.raises(UsageError, match="is a folder, not the interpreter in it") as caught:
        interpreter(str(tmp_path))
    assert caught.value.fix == f"rollout.python={inside}"


def write(program: Path, script: str, shell: str = "/bin/sh") -> str:
    program.write_text(f"#!{shell}\n{script}\n")
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("", "it said nothing and ended with 0"),
        ("echo '[]'", "it said '[]' and ended with 0"),
        ("echo '{}'", "it said '{}' and ended with 0"),
        ("echo '\"pytest\"'", "and ended with 0"),
        ("printf 'line 1\\nModuleNotFoundError: json\\n' >&2; exit 3", "it said 'ModuleNotFoundError: json' and ended with 3"),
    ],
)
def test_a_program_that_answers_otherwise(tmp_path: Path, script: str, reason: str) -> None:
    with pytest.raises(UsageError, match="is no Python interpreter that works") as caught:
        versions(write(tmp_path / "python", script), ["pytest"], fix="make one")
    assert str(caught.value).endswith(reason) and "\n" not in str(caught.value) and caught.value.fix == "make one"


def test_a_program_that_says_something_before(tmp_path: Path) -> None:
    assert versions(write(tmp_path / "python", f'echo "Welcome to the cluster"; exec {sys.executable} "$@"'), ["pytest"]) == {"pytest": pytest.__version__}


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory") as caught:
        versions(write(tmp_path / "python", "", str(tmp_path / "nothing")), ["pytest"], fix="make one")
    assert caught.value.fix == "make one"


def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_SECONDS", 0.5)
    program = write(tmp_path / "python", f"sleep 300 &\necho $! > {tmp_path}/child; wait")
    with pytest.raises(UsageError, match=r"it did not answer within 0\.5 s$"):
        versions(program, ["pytest"])
    child = (tmp_path / "child").read_text().strip()
    state = subprocess.run(["ps", "-o", "stat=", "-p", child], capture_output=True, text=True, check=False).stdout.strip()
    assert state in ("", "Z"), "it goes on"


def test_another_environment_is_asked_without_pythonpath(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server is started without it too."""
    metadata = tmp_path / "somewhere-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: somewhere\nVersion: 1.0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    other = write(tmp_path / "python", f'exec {sys.executable} "$@"')
    assert versions(None, ["somewhere"]) == {"somewhere": "1.0"}
    assert versions(other, ["somewhere"]) == {"somewhere": None}
