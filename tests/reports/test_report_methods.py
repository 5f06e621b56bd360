"""What the report says of the algorithms themselves: source, reconstruction, aggregation."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import yaml
from synthetic_runs import write_curve

from threespo_reports.comparison import ReportPaths, write_report
from threespo_reports.sections import BUILT_IN


def report(store: Path, out: Path) -> ReportPaths:
    return write_report([store], out, sections=[section() for section in BUILT_IN if section.name == "methods"])


def played(store: Path, algorithm: str, objective: dict[str, str], method: dict[str, str] | None) -> None:
    """A run that records these facts about its algorithm."""
    run = write_curve(store / f"{algorithm}-s0", algorithm, 0, [0.3, 0.8])
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["algorithm"].setdefault("options", {})["objective"] = objective
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | ({"method": method} if method else {})))


def test_reconstructions_and_aggregation_are_told(tmp_path: Path) -> None:
    clip = {"loss": "clip", "aggregation": "token-mean", "unit": "turn"}
    played(tmp_path / "e", "progpo", clip, {"source": "arXiv:2607.04242", "notes": "A reconstruction from the abstract: a < b."})
    played(tmp_path / "e", "grpo", clip | {"unit": "trajectory"}, {"source": "arXiv:2402.03300", "notes": "A is relative."})
    played(tmp_path / "e", "dpo", {"loss": "dpo"}, None)
    paths = report(tmp_path / "e", tmp_path / "out")
    text, page = paths.markdown.read_text(), paths.html.read_text()
    assert "| GRPO | arXiv:2402.03300 | no | clip | token-mean | trajectory |" in text
    assert "| ProGPO | arXiv:2607.04242 | yes, see below | clip | token-mean | turn |" in text
    assert "* **ProGPO** A reconstruction from the abstract: a &lt; b." in text and "**GRPO**" not in text
    assert "a &lt; b" in page and "a < b" not in page
    (dpo,) = [line for line in text.splitlines() if line.startswith("| DPO")]
    assert dpo == "| DPO | not recorded | not recorded | dpo | none | none |"
    table = pd.read_csv(paths.folder / "tables" / "methods.csv")
    assert table.set_index("algorithm").loc["progpo", "reconstruction"] == "yes"


def test_without_reconstructions_there_is_no_list_of_them(tmp_path: Path) -> None:
    played(tmp_path / "e", "grpo", {"loss": "clip"}, {"source": "s", "notes": "n"})
    assert "Reconstructions" not in report(tmp_path / "e", tmp_path / "out").markdown.read_text()
