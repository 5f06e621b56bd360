"""What commands print: results to standard output, everything else to standard error."""

from __future__ import annotations

import sys
from typing import Any

import rich_click as click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from threespo_bench.errors import BenchError
from threespo_bench.host import PluginHost

_WIDTH_WITHOUT_TERMINAL = 200


def console(*, err: bool = False) -> Console:
    """A console on a standard stream; wide, if nobody is looking, so that lines can be searched and compared."""
    stream = sys.stderr if err else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _WIDTH_WITHOUT_TERMINAL, highlight=False, markup=False, emoji=False)


def say(text: str = "", style: str = "") -> None:
    """A line on standard output."""
    console().print(Text(text, style=style), soft_wrap=True)


def note(text: str, style: str = "dim") -> None:
    """A line on standard error."""
    console(err=True).print(Text(text, style=style), soft_wrap=True)


def warn(text: str) -> None:
    """A warning, one line on standard error."""
    note(f"warning: {text}", "yellow")


def show_error(error: BenchError) -> None:
    """The line of an expected failure and the line of advice."""
    out = console(err=True)
    out.print(Text("error: ", style="bold red") + Text(" ".join(str(error).split())), soft_wrap=True)
    if error.fix:
        out.print(Text("  fix: ", style="bold") + Text(error.fix), soft_wrap=True)


def table(*columns: str, title: str = "") -> Table:
    """An unboxed table; columns fold instead of being cut."""
    made = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def load_host(context: click.Context, *, check: bool = True) -> PluginHost:
    """The plugins, with a line on standard error for each that was skipped or looks wrong."""
    strict = True if context.find_root().params.get("strict") else None
    host = PluginHost.discover(strict=strict, check=check)
    for line in host.warnings:
        warn(line)
    return host


def plain_yaml(data: Any) -> str:
    """Plain data as YAML, keys in their order."""
    import yaml

    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120).rstrip()
