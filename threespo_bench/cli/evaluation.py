"""``threespo-bench eval``: how well a trained or pretrained policy plays, over several evaluation seeds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from threespo_bench.cli.output import console, load_host, note, table, warn
from threespo_bench.cli.overrides import seeds as read_seeds

if TYPE_CHECKING:
    from threespo_bench.policies.evaluating import Measured
    from threespo_bench.policies.opened import OpenedPolicy

FORMATS = ("table", "json", "csv")
_SHARES = ("success", "invalid_actions", "truncated", "score")
_EPILOG = """\
CHECKPOINT is a run folder (its newest checkpoint is taken), a folder under its checkpoints, a Hugging Face folder, a LoRA adapter's folder,
a checkpoint of verl, or a model that `list` shows. Every seed plays the same tasks with other sampling noise; mean and standard deviation
(n - 1) are over seeds.

threespo-bench eval runs/default/3spo-household-seed0

threespo-bench eval runs/default/3spo-household-seed0 --split eval_in_distribution --format json --out results.json

threespo-bench eval smollm2 --env alfworld --episodes 8 env.games=FOLDER env.template=verl_agent rollout.max_new_tokens=128
"""


@click.command("eval", epilog=_EPILOG)
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--env", default="", metavar="NAME", help="Environment; by default that of the run or of the named model, else household.")
@click.option("--split", metavar="NAME", help="Split of the environment; eval_in_distribution and eval_out_of_distribution are understood.")
@click.option("--seeds", default="123,456,789", show_default=True, metavar="SEEDS", help="Evaluation seeds, e.g. 0..2 or 123,456,789.")
@click.option("--episodes", type=click.IntRange(min=1), metavar="N", help="The first N tasks of the split; by default evaluation.episodes, 128.")
@click.option("--temperature", type=click.FloatRange(min=0), metavar="T", help="Sampling temperature, 0 for the most probable tokens; by default the run's.")
@click.option("--base", metavar="MODEL", help="Folder or name of the model that a LoRA adapter belongs to; by default what its configuration says.")
@click.option("--format", "form", type=click.Choice(FORMATS), help="By default what the name of --out says, else a table.")
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write there and not to the screen.")
@click.option("--no-progress", is_flag=True, help="Show no progress bar.")
@click.pass_context
def command(
    context: click.Context,
    checkpoint: str,
    overrides: tuple[str, ...],
    env: str,
    split: str | None,
    seeds: str,
    episodes: int | None,
    temperature: float | None,
    base: str | None,
    form: str | None,
    out: Path | None,
    no_progress: bool,
) -> None:
    """Play a policy on held-out tasks: success by type of task, turns and invalid actions, for several seeds."""
    numbers = read_seeds(seeds)
    host = load_host(context)
    from threespo_bench.policies import evaluating, opened, settings, source
    from threespo_bench.vocabulary import unknown_words

    found = source.find(checkpoint, host, base, warn)
    config = settings.configure(found, host, env, overrides, note)
    if temperature is not None:
        config.evaluation.temperature = temperature
    config.evaluation.split = split or config.evaluation.split
    config.evaluation.episodes = episodes or config.evaluation.episodes
    environment = opened.open_environment(config, host)
    tasks = opened.tasks_of(environment, config.evaluation.split, config.evaluation.episodes, config.env.name)
    if len(tasks) < config.evaluation.episodes:
        note(f"the split {config.evaluation.split} has only {len(tasks)} tasks: all are played")
    with opened.open_policy(found, config, host, environment) as policy:
        if unknown := unknown_words(Path(policy.engine.model), environment, tasks[0], policy.max_turns):
            warn(unknown)
        with _progress(len(tasks) * len(numbers), quiet=no_progress) as ended:
            measured = evaluating.evaluate_seeds(policy, tasks, numbers, ended)
        _write(_about(policy, len(tasks), numbers), numbers, measured, _form(form, out), out)


def _about(policy: OpenedPolicy, episodes: int, seeds: Sequence[int]) -> dict[str, Any]:
    """What was evaluated and how."""
    config, source = policy.config, policy.source
    return {
        "checkpoint": source.text,
        "kind": source.kind,
        "iteration": None if source.checkpoint is None else source.checkpoint.iteration,
        "algorithm": None if policy.algorithm is None else config.algorithm.name,
        "env": config.env.name,
        "environment_digest": policy.environment.digest(),
        "split": config.evaluation.split,
        "episodes": episodes,
        "seeds": list(seeds),
        "temperature": config.evaluation.temperature,
        "max_turns": policy.max_turns,
        "max_new_tokens": policy.sampling.max_new_tokens,
    }


def _form(form: str | None, out: Path | None) -> str:
    suffix = "" if out is None else out.suffix.lower().lstrip(".")
    return form or (suffix if suffix in FORMATS else "table")


def _write(about: dict[str, Any], seeds: Sequence[int], measured: Sequence[Measured], form: str, out: Path | None) -> None:
    from threespo_bench.atomic import storage_errors, write_text
    from threespo_bench.policies import evaluating

    if form == "table" and out is None:
        _show(about, seeds, measured)
        return
    if form == "table":
        text = _text(about, seeds, measured)
    else:
        text = evaluating.as_json(about, measured) if form == "json" else evaluating.as_csv(seeds, measured)
    if out is None:
        click.echo(text, nl=False)
        return
    with storage_errors(f"write {out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, text)
    note(f"written to {out}")


def _show(about: dict[str, Any], seeds: Sequence[int], measured: Sequence[Measured], out: Any = None) -> None:
    shown = table("", "episodes", *(f"seed {seed}" for seed in seeds), "mean", "sd")
    for column in shown.columns[1:]:
        column.justify = "right"
    for m in measured:
        values = [_number(m.name, value) for value in (*m.values, m.mean)]
        shown.add_row(m.name, str(m.episodes), *values, "-" if m.deviation is None else _number(m.name, m.deviation))
    screen = out or console()
    where = f", iteration {about['iteration']}" if about["iteration"] is not None else ""
    screen.print(f"{about['checkpoint']}{where} on {about['env']}, {about['split']}, temperature {about['temperature']:g}", soft_wrap=True)
    screen.print(shown)


def _text(about: dict[str, Any], seeds: Sequence[int], measured: Sequence[Measured]) -> str:
    """The table without colours, for a file."""
    import io

    from rich.console import Console

    out = io.StringIO()
    _show(about, seeds, measured, Console(file=out, width=200, highlight=False, markup=False, emoji=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _number(name: str, value: float) -> str:
    """Shares as percentages, the rest as it is."""
    return f"{100 * value:.1f}%" if name.partition("/")[0] in _SHARES else f"{value:.2f}"


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, nothing elsewhere; yields what is to be called after every episode."""
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(err=True), transient=True) as bar:
        task = bar.add_task("episodes", total=total)
        yield lambda: bar.advance(task)
