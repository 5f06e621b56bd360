"""``threespo-bench credit``: who gets the credit for a recorded batch, without training anything."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from threespo_bench.cli.output import load_host, note, warn
from threespo_bench.cli.overrides import algorithm_and_preset, scoped
from threespo_bench.errors import UsageError

if TYPE_CHECKING:
    from threespo_bench.credit_table import CreditTable

FORMATS = ("table", "json", "csv", "parquet")
FIGURES = (".png", ".svg")

_EPILOG = """\
FILE is Parquet, as runs with save_turns=true write it under turns/, or JSONL with one object a turn. `--example` shows one.

threespo-bench credit --example example.jsonl

threespo-bench credit example.jsonl --algo grpo --algo gigpo@reference

threespo-bench credit example.jsonl --algo grpo --set normalise_by_std=false --format json
"""


@click.command("credit", epilog=_EPILOG)
@click.argument("file", required=False, metavar="FILE", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--algo", "algorithms", multiple=True, metavar="NAME", help="An algorithm, or NAME@PRESET; give it several times.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of the algorithms; for one alone NAME:KEY=VALUE.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="By default what the name of --out says, else a table.")
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write there and not to the screen.")
@click.option("--figure", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Draw a heat map of the turns, as .png or .svg.")
@click.option("--example", is_flag=True, help="Write an example batch as JSONL, to FILE or to the screen.")
@click.pass_context
def command(
    context: click.Context,
    file: Path | None,
    overrides: tuple[str, ...],
    algorithms: tuple[str, ...],
    settings: tuple[str, ...],
    form: str | None,
    out: Path | None,
    figure: Path | None,
    example: bool,
) -> None:
    """Compute the advantages that algorithms give the turns of a recorded batch."""
    if example:
        given = {"--algo": algorithms, "--set": settings or overrides, "--format": form, "--out": out, "--figure": figure}
        _write_example(file, [name for name, value in given.items() if value])
        return
    if file is None:
        raise UsageError("no file was named", fix="give a file of turns; threespo-bench credit --example FILE makes one")
    if not algorithms:
        raise UsageError("no algorithm was named", fix="add --algo NAME (threespo-bench list shows them)")
    form = _form(form, out)
    if figure is not None and figure.suffix.lower() not in FIGURES:
        raise UsageError(f"--figure {figure}: a figure is {' or '.join(FIGURES)}", fix=f"write --figure {figure.with_suffix('.png')}")
    _credit(context, file, tuple(dict.fromkeys(algorithms)), [*settings, *overrides], form, out, figure)


def _credit(context: click.Context, file: Path, labels: Sequence[str], texts: Sequence[str], form: str, out: Path | None, figure: Path | None) -> None:
    common, own = scoped(texts, labels)
    host = load_host(context)
    from threespo_bench.batch_checks import check_batch
    from threespo_bench.config.algorithm import Choice, make_algorithms
    from threespo_bench.credit_table import make_table
    from threespo_bench.crediting import credit_turns, mean_advantages
    from threespo_bench.recorded import read_turns
    from threespo_bench.reporting import draw_credit

    choices = []
    for label in labels:
        name, preset = algorithm_and_preset(label)
        choices.append(Choice(label, name, preset[0].partition("=")[2] if preset else None, tuple(own.get(label, ()))))
    made = make_algorithms(choices, common, host)
    if figure is not None:
        host.find("reports", "credit")  # before any work is done
    recorded = read_turns(file, labels[0])
    check_batch(recorded.turns)
    credits = [credit_turns(label, algorithm, recorded) for label, algorithm in made.items()]
    _say_about(file, recorded.unused, recorded.warnings)
    for credited in credits:
        for line in credited.warnings:
            warn(line)
        for line in credited.notes:
            note(line)
    table = make_table(recorded.turns, credits)
    _say_dropped(table.dropped)
    _write(table, form, out)
    if figure is not None:
        means = {credited.label: mean_advantages(credited.credit, recorded.turns) for credited in credits}
        note(f"figure: {draw_credit(host, recorded.turns, means, figure)}")


def _form(form: str | None, out: Path | None) -> str:
    suffix = "" if out is None else out.suffix.lower().lstrip(".")
    form = form or (suffix if suffix in FORMATS else "table")
    if form == "parquet" and out is None:
        raise UsageError("--format parquet: Parquet is not for the screen", fix="add --out FILE.parquet")
    return form


def _say_about(file: Path, unused: dict[str, str], warnings: Sequence[str]) -> None:
    if unused:
        warn(f"{file}: columns that are not used: " + "; ".join(f"{name} ({reason})" for name, reason in unused.items()))
    for line in warnings:
        warn(f"{file}: {line}")


def _say_dropped(dropped: dict[str, int]) -> None:
    words = {"padding": "padding", "no_response_tokens": "without a response token (their rewards count)"}
    counts = [f"{count} {words[reason]}" for reason, count in dropped.items() if count]
    if counts:
        note(f"rows left out: {', '.join(counts)}")


def _write(table: CreditTable, form: str, out: Path | None) -> None:
    from threespo_bench import credit_table

    writers: dict[str, Callable[[CreditTable], str | bytes]] = {
        "table": lambda table: _rendered(table, None if out is None else credit_table.TABLE_WIDTH),
        "json": credit_table.as_json,
        "csv": credit_table.as_csv,
        "parquet": credit_table.as_parquet,
    }
    text = writers[form](table)
    if out is None:
        click.echo(text, nl=False)
        return
    _save(out, text)
    note(f"written to {out}")


def _rendered(table: CreditTable, width: int | None) -> str:
    """The table as text; coloured and as wide as the terminal, if there is one and it is not to be a file."""
    import io

    from rich.console import Console

    from threespo_bench.credit_table import PER_TOKEN, TABLE_WIDTH, as_tables, per_token

    terminal = width is None and sys.stdout.isatty()
    width = max(Console().width, 40) if terminal else TABLE_WIDTH
    out = io.StringIO()
    console = Console(file=out, width=max(width, 200), highlight=False, markup=False, emoji=False, force_terminal=terminal)
    for place, made in enumerate(as_tables(table, width)):
        if place:
            console.print()
        console.print(made)
    if per_token(table):
        console.print(f"\n{PER_TOKEN} the mean of a turn whose tokens have different advantages; --format json has them all")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _write_example(file: Path | None, options: Sequence[str]) -> None:
    from threespo_bench.recorded import example_lines

    if options:
        raise UsageError(f"{options[0]} cannot be combined with --example, which only writes a batch", fix="write it to a file, then give that file")
    text = "".join(f"{line}\n" for line in example_lines())
    if file is None:
        click.echo(text, nl=False)
        return
    if file.exists():
        raise UsageError(f"{file} is there already", fix="choose another name: --example overwrites nothing")
    _save(file, text)
    note(f"written to {file}; try: threespo-bench credit {file} --algo grpo --algo gigpo")


def _save(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all. Raises StorageError."""
    import os

    from threespo_bench.atomic import storage_errors

    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with storage_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.write_bytes(content.encode() if isinstance(content, str) else content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
