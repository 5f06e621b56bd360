"""``threespo-bench warm-start``: make a packaged model anew, from nothing, or fine-tune one on an oracle's episodes."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from pathlib import Path
from typing import Any

import rich_click as click

from threespo_bench.cli.output import load_host, say
from threespo_bench.errors import UsageError, suggest
from threespo_bench.host import Contribution

_FINE_TUNING = "threespo_plugins.models.fine_tuning"
_EPILOG = """\
household_tiny and webshop_tiny are made from nothing; smollm2, or the model in a Hugging Face folder, is fine-tuned on episodes that an oracle plays in the
household, in the games of ALFWorld or in WebShop. --env, --episodes and --steps are short for env=, episodes= and steps=, of which a model has those that
make sense for it.

threespo-bench warm-start --out my-model --seed 1

threespo-bench warm-start --model smollm2 --env alfworld --episodes 64 --steps 100 --out my-smollm2

threespo-bench warm-start --model my-smollm2 --env household --out more
"""


@click.command("warm-start", epilog=_EPILOG)
@click.option(
    "--model", default="household_tiny", show_default=True, metavar="NAME|DIR", help="A model that can be made (`list` shows the models), or a folder."
)
@click.option("--out", required=True, metavar="DIR", type=click.Path(file_okay=False, path_type=Path), help="Folder for the model, in Hugging Face format.")
@click.option("--env", metavar="NAME", help="Environment of the episodes.")
@click.option("--episodes", type=click.IntRange(min=1), metavar="N", help="Episodes to learn from.")
@click.option("--steps", type=click.IntRange(min=1), metavar="K", help="Optimiser steps.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of weights and demonstrations.")
@click.option("--no-progress", is_flag=True, help="Show nothing while it is being made.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.pass_context
def command(
    context: click.Context,
    model: str,
    out: Path,
    env: str | None,
    episodes: int | None,
    steps: int | None,
    seed: int,
    no_progress: bool,
    overrides: tuple[str, ...],
) -> None:
    """Make a starting model by supervised learning on demonstrations. Equal seeds give equal weights. Use it with model.path=DIR."""
    given = {"env": env, "episodes": episodes, "steps": steps}
    texts = tuple(f"{key}={value}" for key, value in given.items() if value is not None) + overrides
    arguments: dict[str, Any] = {} if no_progress else {"progress": _Progress()}
    folder = Path(model).expanduser()
    host = load_host(context)
    if model not in host.names("models") and folder.is_dir():
        module = import_module(_FINE_TUNING)
        made = module.fine_tune(folder, out, seed, _options(module.WarmStartOptions, texts), **arguments)
    else:
        module = _maker(host.find("models", model))
        made = module.warm_start(out, seed, _options(module.WarmStartOptions, texts), **arguments)
    say(f"made {made}; use it with model.path={made}")


def _maker(contribution: Contribution) -> Any:
    """The module ``warm_start`` beside the model's function."""
    name = contribution.entry.target.partition(":")[0] + ".warm_start"
    try:
        present = importlib.util.find_spec(name) is not None
    except ImportError:
        present = False
    if not present:
        raise UsageError(f"model {contribution.name} (from {contribution.source.owner}) cannot be made: it has no module {name}")
    return import_module(name)


def _options(config: type, texts: tuple[str, ...]) -> Any:
    """The options with overrides applied, types checked."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from threespo_bench.config.options import describe
    from threespo_bench.config.overrides import read

    node = OmegaConf.structured(config)
    types = {option.key: option.type for option in describe(config, "", {})}
    for text in texts:
        override = read(text)
        if override.key not in types:
            raise UsageError(f"unknown key {override.key!r}", fix=suggest(override.key, types))
        try:
            node[override.key] = override.value
        except OmegaConfBaseException as error:
            raise UsageError(f"{text}: must be of type {types[override.key]}") from error
    return OmegaConf.to_object(node)


class _Progress:
    """A bar, or now and then a line where there is no terminal."""

    def __init__(self) -> None:
        self._said = -1

    def __call__(self, done: int, total: int, loss: float) -> None:
        from threespo_bench.cli.output import note

        tenth = 10 * done // max(total, 1)
        if tenth != self._said:
            self._said = tenth
            note(f"{min(done, total):,}/{total:,} steps, loss {loss:.3f}")
