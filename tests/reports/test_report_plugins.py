"""Sections and writers of third parties: what the documentation shows works in the same commands, and what breaks is told and breaks alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from report_helpers import DRAWN, constant
from synthetic_runs import write_lines

import threespo_reports
from tests.docs.pages import ROOT, blocks
from threespo_bench.contracts.entries import ReportEntry
from threespo_bench.contracts.report import Figure, Fragment, ReportSection
from threespo_bench.errors import UsageError
from threespo_bench.hookspecs import hookimpl
from threespo_bench.host import PluginHost
from threespo_bench.reporting import write_comparison
from threespo_reports.comparison import ReportPaths, write_report
from threespo_reports.sections import BUILT_IN

MIRROR = ROOT / "plugins" / "examples" / "threespo-bench-mirror"


def module_of(monkeypatch: pytest.MonkeyPatch, **members: Any) -> ModuleType:
    """A plugin in memory."""
    module = ModuleType("threespo_bench_mine")
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def plugin(monkeypatch: pytest.MonkeyPatch, **classes: Any) -> PluginHost:
    """A host of the built-in report and of a plugin with the given sections."""

    @hookimpl
    def threespo_report_sections() -> list[ReportEntry]:
        return [ReportEntry(name, f"threespo_bench_mine:{name}", "") for name in classes]

    module = module_of(monkeypatch, threespo_report_sections=threespo_report_sections, **classes)
    return PluginHost.from_plugins([threespo_reports, module], strict=True)


def section(render: Callable[..., Any], **attributes: Any) -> type:
    """A class of sections."""
    return type("Mine", (ReportSection,), {"name": "mine", "title": "Mine", "order": 45, **attributes, "render": render})


def light() -> list[ReportSection]:
    """The built-in sections that draw nothing."""
    return [made() for made in BUILT_IN if made.name not in DRAWN]


def told(paths: ReportPaths) -> list[str]:
    """Where and what of the problems with sections."""
    return [f"{problem.where}: {problem.message}" for problem in paths.problems if problem.where.startswith("section")]


def test_the_section_of_the_plugins_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = next(block for block in blocks(ROOT / "docs" / "plugins.md", "python") if "ReportSection)" in block)
    module = module_of(monkeypatch)
    exec(compile(source, "plugins.md", "exec"), vars(module))
    constant(tmp_path / "e", "grpo", [0.5])
    paths = write_comparison(PluginHost.from_plugins([threespo_reports, module], strict=True), [tmp_path / "e"], tmp_path / "out")
    assert told(paths) == []
    assert "## Evaluations\n\n* grpo-s0: 3\n" in paths.markdown.read_text()
    assert '<section id="evaluations">' in paths.html.read_text()
    assert json.loads(paths.json.read_text())["tables"]["evaluations"] == [{"run": "grpo-s0", "evaluations": 3}]


def test_the_example_plugin_in_the_command(tmp_path: Path) -> None:
    """Found on the path as an installed distribution, its section is on the page that `report` writes."""
    metadata = tmp_path / "site" / "threespo_bench_mirror-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: threespo-bench-mirror\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[threespo_bench]\nmirror = threespo_bench_mirror\n")
    constant(tmp_path / "e", "batch_mean", [0.5], env="mirror")
    run = tmp_path / "e" / "batch_mean-s0"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    write_lines(run / "metrics.jsonl", rows + [{"kind": "train", "iteration": n, "env_steps": 1000 * n, "baseline": n / 4} for n in (1, 2)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(MIRROR)]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "threespo_bench", "report", str(tmp_path / "e"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "## Baselines of batch_mean\n\n* batch_mean-s0: 0.250 at first, 0.500 in the end\n" in (tmp_path / "out" / "report.md").read_text()
    assert pd.read_csv(tmp_path / "out" / "tables" / "mirror_baselines.csv").to_numpy().tolist() == [["batch_mean-s0", 0.25, 0.5]]


def _text(self: Any, data: Any) -> str:
    return "<p>no fragment</p>"


def _clash(self: Any, data: Any) -> Fragment:
    return Fragment("<p></p>", tables={"summary": pd.DataFrame({"a": [1]})})


def _outside(self: Any, data: Any) -> Fragment:
    return Fragment("<p></p>", figures=(Figure("../mine", "<svg/>", b"", "a picture"),))


def _no_frame(self: Any, data: Any) -> Fragment:
    return Fragment("<p></p>", tables={"mine": [1, 2]})


def _page_only(self: Any, data: Any) -> Fragment:
    return Fragment("<p>only here</p>")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (section(_text), "section mine: could not be made: TypeError: render returned str, not a Fragment"),
        (section(_clash), "section mine: could not be made: ValueError: tables/summary is written by the section verdict already"),
        (section(_outside), "section mine: could not be made: ValueError: 'figures/../mine' is no name for a file: letters, digits, '.', '_' and '-' are"),
        (section(_no_frame), "section mine: could not be made: TypeError: the table mine is a list, not a data frame"),
        (section(_page_only, name="verdict", order=5), "section verdict: left out: another section has its name"),
    ],
)
def test_a_section_that_breaks_is_told_and_spoils_nothing(tmp_path: Path, made: type, message: str) -> None:
    constant(tmp_path / "e", "grpo", [0.5])
    paths = write_report([tmp_path / "e"], tmp_path / "out", sections=[*light(), made()])
    assert told(paths) == [message]
    assert message.partition(": ")[2] in paths.markdown.read_text().replace("\\", "").replace("&#x27;", "'")
    assert json.loads(paths.json.read_text())["summary"][0]["final_mean"] == 0.5
    assert "## Verdict" in paths.markdown.read_text()


def test_a_section_without_markdown_points_to_the_page(tmp_path: Path) -> None:
    constant(tmp_path / "e", "grpo", [0.5])
    paths = write_report([tmp_path / "e"], tmp_path / "out", sections=[*light(), section(_page_only)()])
    assert "## Mine\n\nThis section is in report.html only.\n" in paths.markdown.read_text()


class _Unnamed:
    order = 1

    def render(self, data: Any) -> None:
        return None


class _Raises(ReportSection):
    name, title = "raises", "Raises"

    def __init__(self) -> None:
        raise RuntimeError("not\ntoday")

    def render(self, data: Any) -> None:
        return None


def test_sections_that_cannot_even_be_made_are_warned_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constant(tmp_path / "e", "grpo", [0.5])
    warnings: list[str] = []
    write_comparison(plugin(monkeypatch, Unnamed=_Unnamed, Raises=_Raises), [tmp_path / "e"], tmp_path / "out", warn=warnings.append)
    assert [line.partition(" cannot be made: ")[2] for line in warnings] == ["TypeError: name is missing or of a wrong type", "RuntimeError: not today"]
    assert (tmp_path / "out" / "report.html").exists()


def test_a_writer_of_a_plugin_need_not_know_every_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def comparison(runs: list[Path], out: Path, baseline: str | None = None, sections: Any = (), title: str = "") -> Path:
        return out / f"{title}.txt"

    @hookimpl
    def threespo_report_sections() -> list[ReportEntry]:
        return [ReportEntry("comparison", "threespo_bench_mine:comparison", "")]

    host = PluginHost.from_plugins([module_of(monkeypatch, comparison=comparison, threespo_report_sections=threespo_report_sections)], strict=True)
    assert write_comparison(host, [tmp_path], tmp_path, title="mine") == tmp_path / "mine.txt"
    with pytest.raises(UsageError, match="has no option smooth"):
        write_comparison(host, [tmp_path], tmp_path, smooth=3)
