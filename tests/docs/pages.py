"""Reads the documentation: its code blocks, commands, links and headings."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "plugins" / "examples" / "threespo-bench-mirror" / "README.md"]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A command line that a page shows, and the lines of output that it claims (empty for none)."""

    page: str
    text: str
    output: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """The arguments of the program, without assignments of environment variables before it."""
        words = shlex.split(self.text)
        return words[words.index("threespo-bench") + 1 :]


def blocks(page: Path, language: str = "") -> list[str]:
    """The fenced code blocks of a page, those in one language if it is given."""
    return [text for name, text in _FENCE.findall(page.read_text(encoding="utf-8")) if not language or name == language]


def prose(page: Path) -> str:
    """A page without its fenced code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def commands(page: Path) -> list[Command]:
    """Every call of the program in the code blocks of a page (fenced or indented)."""
    found: list[Command] = []
    for block in blocks(page):
        found += _of_block(page.name, block)
    indented = "\n".join(line.strip() for line in prose(page).splitlines() if line.startswith("    threespo-bench "))
    return [*found, *_of_block(page.name, indented)]


def _of_block(page: str, block: str) -> list[Command]:
    found: list[Command] = []
    output: list[str] = []
    for line in block.splitlines():
        shown = line.startswith("$ ")
        text = line.removeprefix("$ ").rpartition(" && ")[2]
        if re.match(r"([A-Z_]+=\S+ )*threespo-bench( |$)", text) and (shown or not any(command.output for command in found)):
            output = []
            found.append(Command(page, text.strip()))
        elif found and block.lstrip().startswith("$ "):
            output.append(line)
            found[-1] = Command(page, found[-1].text, tuple(output))
    return found


def links(page: Path) -> list[str]:
    """Targets of links and pictures that lie in this repository."""
    found = [one or other for one, other in _LINK.findall(prose(page))]
    return [target for target in found if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    texts = [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in _HEADING.findall(prose(page))]
    return set(texts)


def table(text: str, *head: str) -> list[list[str]]:
    """The rows of the Markdown table with these column heads, cells without their code marks."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if _cells(line)[: len(head)] == list(head)), None)
    assert start is not None, f"there is no table with the columns {head}"
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(_cells(line))
    return rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]
