"""What the README and the pages under docs/ say is so: commands parse, outputs are real, tables agree with the code, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Command, anchors, blocks, commands, links, prose, table
from threespo_bench import errors
from threespo_bench.cli.app import EXIT_CODES, cli, run_cli
from threespo_bench.host import KINDS, PluginHost
from threespo_plugins.models import household_tiny

README = ROOT / "README.md"
COMMANDS = [command for page in PAGES for command in commands(page)]


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.discover()


# ---- commands


def test_there_are_commands_to_check() -> None:
    assert {command.words[0] for command in COMMANDS} >= {"run", "compare", "report", "list", "info", "warm-start", "doctor"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.page}: {command.text}")
def test_a_command_parses(command: Command) -> None:
    name, *arguments = command.words
    context = cli.make_context("threespo-bench", ["--help"] if name.startswith("-") else [name], resilient_parsing=True)
    if not name.startswith("-"):
        cli.commands[name].make_context(name, arguments, parent=context)


def plannable() -> list[Command]:
    """Commands that can be planned without files and plugins that are not here; one of each text."""
    texts: dict[str, Command] = {}
    for command in COMMANDS:
        elsewhere = re.search(r"--resume|FOLDER|NAME|\bmirror\b|grup_size|=runs/|=my-policy|rollout=|engine=", command.text)
        if command.words[0] in ("run", "compare") and not elsewhere:
            texts.setdefault(command.text, command)
    return list(texts.values())


@pytest.mark.parametrize("command", plannable(), ids=lambda command: command.text)
def test_a_run_or_comparison_can_be_planned(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-model").symlink_to(household_tiny.path())
    (tmp_path / "experiment.yaml").write_text(blocks(ROOT / "docs" / "experiments.md", "yaml")[0], encoding="utf-8")
    words = [word for word in command.words if word != "--dry-run"]
    assert run_cli([words[0], "--dry-run", *words[1:]]) == 0, capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_options_of_the_warm_start(host: PluginHost) -> None:
    from threespo_bench.cli.warm_start import _maker, _options

    module = _maker(host.find("models", "household-tiny"))
    for command in COMMANDS:
        if command.words[0] == "warm-start":
            _options(module.WarmStartOptions, tuple(word for word in command.words if "=" in word)).validate()


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.output], ids=lambda command: command.text)
def test_shown_output_is_what_the_program_prints(command: Command, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("THREESPO_BENCH")} | {"COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-m", "threespo_bench", *command.words], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120)
    printed = [" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines()]
    for line in command.output:
        if line != "...":
            assert " ".join(line.split()) in printed, f"{command.text} does not print {line!r}, but\n{done.stdout}{done.stderr}"


# ---- setting up


def test_the_ci_script_is_the_readme() -> None:
    first, second = (block.strip() for block in blocks(README, "bash"))
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert first.endswith("threespo-bench run --algo 3spo")
    *_, install, test = second.split(" && ")
    assert (install, test) == ("pip install -c constraints.txt -e '.[dev]'", "pytest -n 2")
    lines = script.splitlines()
    assert lines[lines.index(install) + 1] == test
    assert ".ci/engines" in script and os.access(ROOT / ".ci" / "engines", os.X_OK)
    assert "pip install -c constraints.txt -e ." in first


# ---- tables


def test_exit_codes() -> None:
    rows = table(README.read_text(encoding="utf-8"), "code", "meaning")
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.BenchError)]
    assert {kind.exit_code for kind in kinds} <= set(EXIT_CODES)


def test_every_command_has_a_row() -> None:
    rows = table(README.read_text(encoding="utf-8"), "command", "what it does")
    assert set(re.findall(r"`([\w-]+)`", " ".join(row[0] for row in rows))) == set(cli.commands)


def test_everything_installed_is_named(host: PluginHost) -> None:
    text = prose(README)
    for kind in ("algorithms", "environments", "engines", "rollouts", "models", "trackers", "launchers"):
        for contribution in host.all(kind).values():
            if contribution.owner == "threespo-bench":
                for name in (contribution.name, *contribution.entry.aliases):
                    assert f"`{name}`" in text, f"the README does not name the {KINDS[kind].singular} {name}"


# ---- links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}, but that page has {sorted(anchors(file))}"


def test_every_page_can_be_reached() -> None:
    reached = {(README.parent / target.partition("#")[0]).resolve() for target in links(README)}
    assert {page for page in PAGES if page.parent.name == "docs"} <= reached


# ---- the example


def test_the_example_of_the_readme_is_an_algorithm() -> None:
    from threespo_bench.testing import check_algorithm

    (source,) = blocks(README, "python")
    namespace: dict[str, object] = {"__name__": "threespo_bench_mine"}
    exec(compile(source, "README.md", "exec"), namespace)
    check_algorithm(namespace["BatchMean"])  # type: ignore[arg-type]
    (entry,) = namespace["threespo_algorithms"]()  # type: ignore[operator]
    assert entry.name == "batch_mean"
