"""The toy bench as an installed plugin, real processes of the program with it, and a small store that ``compare`` made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOY_SETTINGS = ("engine=table", "model=nothing", "tracker=none", "evaluation.episodes=4", "checkpoint.every_iterations=1")
_REPLACED = ("launchers:local", "rollouts:hf", "trackers:none", "trackers:mlflow", "reports:curve", "reports:comparison")
_REPLACE = ",".join(f"{name}=toy-bench" for name in _REPLACED)

Toys = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def toy_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables with which the toys are an installed plugin whose parts win over the built-in ones of the same names."""
    site = tmp_path_factory.mktemp("site")
    metadata = site / "toy_bench-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-bench\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[threespo_bench]\ntoy_bench = tests.runner.toy_bench\n")
    return {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "THREESPO_BENCH_REPLACE": _REPLACE}


@pytest.fixture(scope="session")
def toys(toy_environment: dict[str, str]) -> Toys:
    """Run the program with the toys in a process of its own."""

    def bench(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "threespo_bench", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=cwd, env={**os.environ, **toy_environment})

    return bench


@pytest.fixture
def call(toy_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process, which is quicker: exit code, standard output, standard error."""
    from threespo_bench.cli.app import run_cli

    for folder in reversed(toy_environment["PYTHONPATH"].split(os.pathsep)):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("THREESPO_BENCH_REPLACE", toy_environment["THREESPO_BENCH_REPLACE"])

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_cli(arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run a command in this process without the toys: exit code, standard output, standard error."""
    from threespo_bench.cli.app import run_cli

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_cli([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the architecture of household-tiny, smaller and with random weights in float32. No test may change it."""
    from threespo_envs.alfred.vocabulary import vocabulary
    from threespo_plugins.models.word_level import make_model, make_tokenizer

    folder = tmp_path_factory.mktemp("model") / "base"
    tokenizer = make_tokenizer(vocabulary())
    make_model(tokenizer, hidden=64, layers=2, heads=2, intermediate=64, seed=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def made_store(tmp_path_factory: pytest.TempPathFactory, toys: Toys) -> Path:
    """Two variants and one algorithm that cannot run, on two seeds; made once by the program itself."""
    store = tmp_path_factory.mktemp("store") / "runs"
    file = store.parent / "toys.yaml"
    file.write_text(
        "name: toys\nalgorithms:\n  - counting\n  - {name: counting, label: larger, overrides: {algorithm: {group_size: 4}}}\n"
        "  - {name: counting, label: faulty, overrides: {algorithm.bad_state: true}}\nenvironments: corridor\nseeds: 0..1\n"
        f"budget: {{iterations: 3}}\noverrides: [{', '.join(TOY_SETTINGS)}]\nout: {store}\n"
    )
    done = toys("compare", str(file), "--no-progress")
    assert done.returncode == 7, done.stdout + done.stderr
    return store


@pytest.fixture
def store(made_store: Path, tmp_path: Path) -> Path:
    """A copy of that store, to be changed."""
    return Path(shutil.copytree(made_store, tmp_path / "runs"))


@pytest.fixture
def b1(tmp_path: Path) -> Path:
    """The example batch of ``credit``."""
    from threespo_bench.recorded import example_lines

    path = tmp_path / "b1.jsonl"
    path.write_text("".join(f"{line}\n" for line in example_lines()), encoding="utf-8")
    return path


@pytest.fixture
def credit(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run ``credit`` in this process: exit code, standard output, standard error."""
    from threespo_bench.cli.app import run_cli

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_cli(["credit", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run
