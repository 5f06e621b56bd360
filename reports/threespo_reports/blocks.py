"""Paragraphs, tables and pictures, each written once and given as HTML and as Markdown. Third-party sections may build with these too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import pandas as pd

from threespo_bench.contracts.report import Figure, Fragment
from threespo_reports.styles import Style


@dataclass(frozen=True)
class Cell:
    """A table cell: ``text``, a smaller ``detail`` under it, a ``mark`` (``bad``, ``muted`` or nothing), and the ``key`` of a curve before it."""

    text: str
    detail: str = ""
    mark: str = ""
    key: Style | None = None


@dataclass(frozen=True)
class Table:
    """``columns`` are headings; the first column names the row. ``words`` are the places of further columns that hold text, not numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]
    words: frozenset[int] = frozenset()


@dataclass
class Blocks:
    """Collects the content of a section in reading order."""

    _html: list[str] = field(default_factory=list)
    _markdown: list[str] = field(default_factory=list)
    _figures: list[Figure] = field(default_factory=list)
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict)

    def heading(self, text: str) -> None:
        """A heading under that of the section."""
        self._add(f"<h3>{escape(text)}</h3>", f"### {_plain(text)}")

    def text(self, text: str, mark: str = "") -> None:
        """A paragraph; ``mark`` is ``bad``, ``muted`` or nothing."""
        attribute = f' class="{mark}"' if mark else ""
        self._add(f"<p{attribute}>{escape(text)}</p>", f"**{_plain(text)}**" if mark == "bad" else _plain(text))

    def items(self, lines: Sequence[Cell]) -> None:
        """A list: ``text`` is set off before ``detail``."""
        rows = [f"<li{_class(line.mark)}><b>{escape(line.text)}</b> {escape(line.detail)}</li>" for line in lines]
        self._add(f"<ul>{''.join(rows)}</ul>", "\n".join(f"* **{_plain(line.text)}** {_plain(line.detail)}" for line in lines))

    def command(self, text: str) -> None:
        """A command line to copy."""
        self._add(f"<pre><code>{escape(text)}</code></pre>", f"```\n{text}\n```")

    def table(self, table: Table) -> None:
        """A table; on a narrow page it scrolls sideways by itself."""
        self._add(_html_table(table), _markdown_table(table))

    def pictures(self, inline: Sequence[str], figure: Figure, caption: str, size: str = "") -> None:
        """Panels side by side where there is room (``inline``: SVG elements) and one file of them all; ``size`` is ``small``, ``wide`` or nothing."""
        self._figures.append(figure)
        panels = "".join(f'<div class="panel">{svg}</div>' for svg in inline)
        self._add(
            f"<figure><div{_class('panels', size)}>{panels}</div><figcaption>{escape(caption)}</figcaption></figure>",
            f"![{_plain(figure.alt)}](figures/{figure.name}.png)\n\n{_plain(caption)}",
        )

    def switch(self, panes: Sequence[tuple[str, str]], figures: Sequence[Figure], caption: str) -> None:
        """One figure in several views, of which the reader chooses one by radio buttons, without a script; on paper it is the first.

        Args:
            panes: (label, SVG element) of each view, at most six. figures: the file of each view.
        """
        self._figures.extend(figures)
        name = figures[0].name
        buttons = "".join(_button(name, f"{name}-view{place}", label, first=place == 0) for place, (label, _) in enumerate(panes))
        views = "".join(f'<div class="view">{svg}</div>' for _, svg in panes)
        others = ", ".join(f"[{_plain(label)}](figures/{figure.name}.png)" for (label, _), figure in zip(panes[1:], figures[1:], strict=True))
        self._add(
            f'<figure><fieldset class="switch"><legend>against</legend>{buttons}<div class="views">{views}</div></fieldset>'
            f"<figcaption>{escape(caption)}</figcaption></figure>",
            f"![{_plain(figures[0].alt)}](figures/{name}.png)\n\n{_plain(caption)}" + (f"\n\nThe same against {others}." if others else ""),
        )

    def definitions(self, lines: Sequence[tuple[str, str]]) -> None:
        """Terms and what they mean."""
        rows = "".join(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in lines)
        self._add(f"<dl>{rows}</dl>", "\n".join(f"* {_plain(term)}: {_plain(meaning)}" for term, meaning in lines))

    def keys(self, names: Sequence[tuple[str, Style]]) -> None:
        """The legend of the page (Markdown needs none: the picture files carry their own labels)."""
        entries = "".join(f"<span>{key_line(style)}{escape(name)}</span>" for name, style in names)
        self._html.append(f'<p class="keys">{entries}</p>')

    def file(self, name: str, frame: pd.DataFrame) -> None:
        """A data frame to be written as ``tables/NAME.csv``."""
        self._tables[name] = frame

    def fragment(self) -> Fragment:
        """All of it."""
        return Fragment("\n".join(self._html), "\n\n".join(self._markdown), tuple(self._figures), dict(self._tables))

    def _add(self, html: str, markdown: str) -> None:
        self._html.append(html)
        self._markdown.append(markdown)


def _button(group: str, identifier: str, label: str, first: bool) -> str:
    checked = " checked" if first else ""
    return f'<input type="radio" name="{group}" id="{identifier}"{checked}/><label for="{identifier}">{escape(label)}</label>'


def key_line(style: Style) -> str:
    """A short piece of a curve in its colour and line style."""
    dashes = f' stroke-dasharray="{" ".join(f"{2 * length:g}" for length in style.dashes)}"' if style.dashes else ""
    return f'<svg class="key" viewBox="0 0 26 8" aria-hidden="true"><line x1="0" y1="4" x2="26" y2="4" style="stroke:{variable(style.colour)}"{dashes}/></svg>'


def variable(colour: str) -> str:
    """The CSS variable that carries a palette colour in its light or dark form."""
    return f"var(--c{colour.lstrip('#')})"


def _class(*names: str) -> str:
    used = " ".join(name for name in names if name)
    return f' class="{used}"' if used else ""


def _cell(value: Cell | str) -> Cell:
    return value if isinstance(value, Cell) else Cell(value)


def _html_table(table: Table) -> str:
    words = {0, *table.words}
    head = "".join(f'<th scope="col"{_class("" if place in words else "number")}>{escape(name)}</th>' for place, name in enumerate(table.columns))
    body = []
    for row in table.rows:
        cells = []
        for place, cell in enumerate(map(_cell, row)):
            inner = (key_line(cell.key) if cell.key else "") + escape(cell.text) + _html_detail(cell.detail)
            tag, scope = ("th", ' scope="row"') if place == 0 else ("td", "")
            cells.append(f"<{tag}{scope}{_class('' if place in words else 'number', cell.mark)}>{inner}</{tag}>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _markdown_table(table: Table) -> str:
    words = {0, *table.words}
    rule = ["---" if place in words else "---:" for place in range(len(table.columns))]
    lines = [[_plain(name) for name in table.columns], rule]
    for row in table.rows:
        cells = map(_cell, row)
        lines.append([f"**{_plain(c.text)}**" + _detail(c) if c.mark == "bad" and c.text else _plain(c.text) + _detail(c) for c in cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _html_detail(text: str) -> str:
    """A range stays on one line, words may break."""
    return f"<small{_class('' if any(map(str.isdigit, text)) else 'words')}>{escape(text)}</small>" if text else ""


def _detail(cell: Cell) -> str:
    return f" ({_plain(cell.detail)})" if cell.detail else ""


def _plain(text: str) -> str:
    """Text that Markdown leaves alone."""
    return text.replace("\n", " ").replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
