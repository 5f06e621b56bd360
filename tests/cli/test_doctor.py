"""``doctor``: its verdict, its advice, and damaged installations."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from threespo_bench.cli import installation, runs_here
from threespo_bench.errors import EngineError, PluginError
from threespo_bench.host import PluginHost

ENGINES_AND_ROLLOUTS = ("embedded", "verl", "hf", "vllm", "sglang")


def doctor(*path: Path) -> subprocess.CompletedProcess[str]:
    """Run the program with folders that are searched before what is installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run([sys.executable, "-m", "threespo_bench", "doctor"], capture_output=True, text=True, timeout=120, env=environment)


def module(folder: Path, name: str, source: str) -> Path:
    """A folder in which a module hides the installed one."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source, encoding="utf-8")
    return folder


def distribution(folder: Path, name: str, version: str) -> Path:
    """A folder whose metadata hide those of the installed distribution."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    return folder


def test_an_installation_in_order() -> None:
    done = doctor()
    assert done.returncode == 0, done.stdout
    for word in ("torch", "devices", "cpu", "threespo_algorithms"):
        assert word in done.stdout
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("no problems") and lines[-1].endswith("the installation and its plugins are in order")
    answers = {line.split()[1]: line for line in lines if line.startswith(("engine ", "rollout ")) and line.split()[1] in ENGINES_AND_ROLLOUTS}
    assert set(answers) == set(ENGINES_AND_ROLLOUTS)
    without = sum(" no: " in line for line in answers.values())
    assert (f"{without} of 5 engines and rollouts cannot run here" in done.stdout) == bool(without)
    for extra in set(installation.extras()) - {"dev"}:
        row = next(index for index, line in enumerate(lines) if line.startswith(f"{extra} "))
        assert lines[row].rstrip().endswith("yes") or f"pip install 'threespo-bench[{extra}]'" in " ".join(lines[row : row + 3])


def test_a_package_that_cannot_be_imported_is_one_problem(tmp_path: Path) -> None:
    done = doctor(module(tmp_path, "scipy", "raise ImportError('libopenblas.so.0: cannot open shared object file')"))
    assert done.returncode == PluginError.exit_code
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem: ")]
    assert len(problems) == 1, done.stdout
    assert f"scipy {metadata.version('scipy')} is installed but cannot be imported: ImportError: libopenblas.so.0" in problems[0]
    assert "-m pip install --force-reinstall --no-deps 'scipy" in done.stdout
    assert "until then these do not work: algorithm t2spo_knn; " in done.stdout and " reports" in done.stdout
    assert "yes, once the problems below are mended" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 problem"


def test_a_package_of_the_wrong_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "requirements", lambda owner, extra="": [Requirement("pluggy<1,>=0.9"), Requirement("nobody-has-this")])
    [damage] = installation.damages()
    assert damage.cause.endswith(f"nobody-has-this is not installed; pluggy is {metadata.version('pluggy')} and must be <1,>=0.9")
    assert damage.fix.endswith("-m pip install 'pluggy<1,>=0.9' nobody-has-this")


@pytest.mark.parametrize("name", ["numpy", "omegaconf"])
def test_whatever_a_damaged_package_raises_is_one_problem(tmp_path: Path, name: str) -> None:
    done = doctor(module(tmp_path, name, "raise OSError('libgone.so: cannot open shared object file')"))
    assert done.returncode == PluginError.exit_code, done.stderr
    problems = [line for line in done.stdout.splitlines() if line.startswith("problem: ")]
    assert len(problems) == 1 and "cannot be imported: OSError: libgone.so" in problems[0], done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_metadata_without_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "half_there", "1.0")
    (tmp_path / "half_there-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: half_there\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(installation, "requirements", lambda owner, extra="": [Requirement("half-there")])
    [damage] = installation.damages()
    assert damage.cause.endswith("half-there is installed without a version")


@pytest.mark.parametrize("name", ["rich_click", "pluggy"])
def test_without_what_the_command_line_is_made_of(tmp_path: Path, name: str) -> None:
    done = doctor(module(tmp_path, name, f"raise ModuleNotFoundError('no {name}', name='{name}')"))
    assert done.returncode == PluginError.exit_code
    assert f"error: the installation of threespo-bench is damaged: no {name}" in done.stderr and "fix: " in done.stderr
    assert "Traceback" not in done.stderr


def test_packages_that_are_missing_are_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ["nobody-has-this", "nor-this"]
    monkeypatch.setattr(installation, "requirements", lambda owner, extra="": [Requirement(f"{name}>=2") for name in absent] + [Requirement("numpy>=1")])
    [damage] = installation.damages()
    assert damage.cause.endswith("nobody-has-this and nor-this are not installed")
    assert damage.fix.endswith("-m pip install 'nobody-has-this>=2' 'nor-this>=2'")
    assert damage.modules == ("nobody_has_this", "nor_this")
    del absent[1:]
    [damage] = installation.damages()
    assert damage.cause.endswith("nobody-has-this is not installed")


def test_only_the_package_at_fault_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module(tmp_path, "lower_one", "raise OSError('libfoo.so: not found')")
    module(tmp_path, "upper_one", "try:\n    import lower_one\nexcept OSError as error:\n    raise RuntimeError('upper_one cannot work') from error")
    module(tmp_path, "third_one", "import something_nobody_has")
    for name in ("lower_one", "upper_one", "third_one"):
        distribution(tmp_path, name, "1.0")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(installation, "requirements", lambda owner, extra="": list(map(Requirement, ("upper-one", "lower-one", "third-one"))))
    lower, third = installation.damages()
    assert lower.cause == "lower-one 1.0 is installed but cannot be imported: OSError: libfoo.so: not found"
    assert third.cause.startswith("third-one 1.0") and "pip check" in third.fix


def test_a_folder_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation.metadata, "version", version)
    [damage] = installation.damages()
    assert "it has no plugins" in damage.cause and f"pip install -e {shlex.quote(installation.FOLDER)}" in damage.fix


def test_the_metadata_and_the_checkout_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["numpy>=1.26", 'ray[default]>=2.41; extra == "verl"', 'verl==0.9.1; extra == "verl"', 'trl; extra == "parity"', "not a requirement"]
    monkeypatch.setattr(installation.metadata, "requires", lambda name: lines)
    assert [each.name for each in installation.requirements("other")] == ["numpy"]
    assert [each.name for each in installation.requirements("other", "verl")] == ["ray", "verl"]
    assert {"numpy", "torch"} <= {each.name for each in installation.requirements("threespo-bench")}


def test_the_advice_is_that_of_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from threespo_plugins.verl_engine.engine import VerlEngine

    def check(*_: object) -> None:
        raise EngineError("verl is away", fix="make an environment for it")

    monkeypatch.setattr(VerlEngine, "check", check)
    monkeypatch.setattr(runs_here, "lack", lambda requirement: f"{requirement.name} is not installed")
    monkeypatch.setattr(runs_here, "lacks", lambda unmet: "things are not installed")
    without = runs_here.print_what_runs(PluginHost.discover(), damaged=False)
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    row = printed.index("engine verl no: verl is away")
    assert printed[row + 1] == "to have it: make an environment for it"
    row = printed.index("verl engine verl no: things are not installed")
    assert printed[row + 1 : row + 3] == ["to have it: see engine verl above", "the extra alone: pip install 'threespo-bench[verl]'"]
    row = printed.index("ray launcher ray no: things are not installed")
    assert printed[row + 1] == "to have it: pip install 'threespo-bench[ray]'"
    assert " of 5 engines and rollouts cannot run here" in without
