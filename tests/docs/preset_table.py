"""The table of what the presets of 3SPO change, in docs/3spo.md. ``python -m tests.docs.preset_table`` writes it."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from tests.docs.pages import ROOT
from threespo_bench.config.defaults import load_defaults
from threespo_bench.host import PluginHost

PAGE = ROOT / "docs" / "3spo.md"
BEGIN, END = "<!-- PRESETS: begin (a test keeps this table equal to the code) -->\n", "<!-- PRESETS: end -->"


def preset_table() -> str:
    """Every option in which the two presets differ."""
    contribution = PluginHost.discover().find("algorithms", "threespo")
    paper, ours = (_flat(OmegaConf.to_container(load_defaults(contribution, "algorithm", name).node)) for name in ("paper", "threespo"))
    rows = [f"| `{key}` | {_text(paper[key])} | {_text(ours[key])} |" for key in paper if paper[key] != ours[key]]
    return "\n".join(["| option | `paper` | default |", "|---|---|---|", *rows]) + "\n"


def shown_table() -> str:
    """What stands in the page."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + preset_table() + END + rest.partition(END)[2], encoding="utf-8")
