"""``threespo-bench merge``: a checkpoint becomes an ordinary Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from threespo_bench.cli.output import load_host, say, warn

_EPILOG = """\
CHECKPOINT is a run folder (its newest checkpoint is taken), a folder under its checkpoints, a LoRA adapter's folder, or a checkpoint of verl
with FSDP shards under `actor`. A result that would equal its base is refused: the adapter is zero, or nothing was learned.

threespo-bench merge runs/default/3spo-household-seed0 my-model

threespo-bench merge adapter merged --base Qwen2.5-1.5B-Instruct

threespo-bench run --algo 3spo model.path=my-model
"""


@click.command("merge", epilog=_EPILOG)
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--base", metavar="MODEL", help="Folder or name of the model that a LoRA adapter belongs to; by default what its configuration says.")
@click.pass_context
def command(context: click.Context, checkpoint: str, out: Path, base: str | None) -> None:
    """Write a policy to the new folder OUT: weights, configuration and tokenizer in Hugging Face format."""
    host = load_host(context)
    from threespo_bench.assembly import parameter_count
    from threespo_bench.policies.merging import merge
    from threespo_bench.policies.source import find

    source = find(checkpoint, host, base, warn)
    made = merge(source, host, out, warn)
    count = parameter_count(made)
    say(f"wrote {made}{f', {count:,} parameters' if count else ''}; use it with model.path={made}")
