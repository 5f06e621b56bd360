"""``threespo-bench prepare``: the placeholder data files that verl's recipes ask for when the prompts come from an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rich_click as click

from threespo_bench.cli.output import load_host, say

_EPILOG = """\
verl reads its prompts from Parquet files, one row an episode. Where an environment makes the prompts, a row only says that there is an episode, and of which
environment; its prompt is empty. The columns are `data_source` (the environment), `prompt` (one empty user message), `ability` (agent) and `extra_info`
(split and index). train.parquet has the rows of `--train-size`, test.parquet those of `--val-size`; several environments take turns.

threespo-bench prepare --out data --env alfworld

threespo-bench prepare --out data --train-size 16 --val-size 128
"""


@click.command("prepare", epilog=_EPILOG)
@click.option("--out", default="data", show_default=True, metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Folder for the two files.")
@click.option("--env", "environments", multiple=True, default=("alfworld",), show_default=True, metavar="NAME", help="Environment; can be given several times.")
@click.option("--train-size", type=click.IntRange(min=1), default=256, show_default=True, metavar="N", help="Rows of train.parquet.")
@click.option("--val-size", type=click.IntRange(min=1), default=128, show_default=True, metavar="M", help="Rows of test.parquet.")
@click.pass_context
def command(context: click.Context, out: Path, environments: tuple[str, ...], train_size: int, val_size: int) -> None:
    """Write train.parquet and test.parquet with placeholders for episodes; the environments make the real prompts."""
    host = load_host(context)
    names = [host.find("environments", name).name for name in environments]
    for split, size in (("train", train_size), ("test", val_size)):
        file = out / f"{split}.parquet"
        _write(file, placeholders(names, split, size))
        say(f"wrote {file}, {size:,} rows")


def placeholders(environments: list[str], split: str, size: int) -> list[dict[str, Any]]:
    """The rows of one file; the environments take turns."""
    return [
        {
            "data_source": environments[index % len(environments)],
            "prompt": [{"role": "user", "content": ""}],
            "ability": "agent",
            "extra_info": {"split": split, "index": index},
        }
        for index in range(size)
    ]


def _write(file: Path, rows: list[dict[str, Any]]) -> None:
    """Replace a file whole or not at all."""
    import os

    import pyarrow as pa
    import pyarrow.parquet as pq

    from threespo_bench.atomic import storage_errors

    draft = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with storage_errors(f"write {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            pq.write_table(pa.Table.from_pylist(rows), draft)
            os.replace(draft, file)
        finally:
            draft.unlink(missing_ok=True)
