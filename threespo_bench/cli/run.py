"""``threespo-bench run``: one run, new or continued."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from threespo_bench.cli.output import load_host, note, plain_yaml, say, show_error, warn
from threespo_bench.cli.overrides import algorithm_and_preset
from threespo_bench.errors import BenchError, DataError, EngineError, UsageError

if TYPE_CHECKING:
    from threespo_bench.budget import Limits
    from threespo_bench.config.schema import RunConfig
    from threespo_bench.host import PluginHost
    from threespo_bench.outcome import Outcome


_EPILOG = """\
Overrides are written key=value and name any option: `info NAME` lists those of an algorithm or environment, `info run` those of a run.

threespo-bench run --algo 3spo

threespo-bench run --algo grpo --env alfworld env.games=FOLDER budget.env_steps=50000 algorithm.group_size=16

threespo-bench run --resume runs/default/3spo-household-seed0
"""


@click.command("run", epilog=_EPILOG)
@click.option("--algo", metavar="NAME", help="Algorithm, or NAME@PRESET; `list` shows them.")
@click.option("--env", metavar="NAME", help="Environment, by default that of model=NAME, else household.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of every random draw, by default 0.")
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False), help="Folder for runs, by default runs.")
@click.option("--experiment", metavar="NAME", help="Runs of one experiment share a folder, by default 'default'.")
@click.option("--resume", metavar="RUN", type=click.Path(path_type=Path), help="Continue the run in this folder; only budget.* can be changed.")
@click.option("--dry-run", is_flag=True, help="Check all but the engine's start, print the configuration, start nothing.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An override; the same as KEY=VALUE after the options.")
@click.option("--no-progress", is_flag=True, help="Show messages only.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.pass_context
def command(
    context: click.Context,
    algo: str | None,
    env: str | None,
    seed: int | None,
    out: str | None,
    experiment: str | None,
    resume: Path | None,
    dry_run: bool,
    settings: tuple[str, ...],
    no_progress: bool,
    overrides: tuple[str, ...],
) -> int:
    """Train with one algorithm, evaluate on held-out tasks, record everything. Ctrl-C leaves a run that can be resumed."""
    texts = [*settings, *overrides]
    if resume is not None:
        given = {"--algo": algo, "--env": env, "--seed": seed, "--out": out, "--experiment": experiment, "--dry-run": dry_run or None}
        return _resume(context, resume, [name for name, value in given.items() if value is not None], texts, no_progress)
    if not algo:
        raise UsageError("no algorithm was named", fix="add --algo NAME (threespo-bench list shows them), or --resume RUN")
    from threespo_bench.config.compose import compose

    host = load_host(context)
    name, preset = algorithm_and_preset(algo)
    config = compose(name, env or "", [*preset, *texts], host, seed=seed, out=out, experiment=experiment)
    if dry_run:
        show_plan(config, host)
        return 0
    from threespo_bench import runner
    from threespo_bench.cli.progress import make_progress

    return finish(runner.run(config, host, progress=make_progress(quiet=no_progress)))


def _resume(context: click.Context, path: Path, options: list[str], texts: list[str], no_progress: bool) -> int:
    if options:
        raise UsageError(f"{options[0]} cannot be combined with --resume: a run goes on as it was configured", fix="only budget.* can be changed")
    budget = _budget(texts)
    host = load_host(context)
    from threespo_bench import runner
    from threespo_bench.cli.progress import make_progress

    return finish(runner.resume(path, host, budget=budget, progress=make_progress(quiet=no_progress)))


def _budget(texts: list[str]) -> dict[str, int | None]:
    """Overrides of the budget as limits by name."""
    from threespo_bench.config.overrides import read

    limits: dict[str, int | None] = {}
    for text in texts:
        override = read(text)
        section, _, name = override.key.partition(".")
        if section != "budget":
            raise UsageError(f"{text}: only budget.* can be changed when a run is resumed", fix="start a new run for other settings")
        value = override.value
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and float(value).is_integer()
        if value is not None and not whole:
            raise UsageError(f"{text}: must be a whole number, or null for no limit")
        limits[name] = None if value is None else int(value)
    return limits


def show_plan(config: RunConfig, host: PluginHost) -> None:
    """Build all that costs little, so that mistakes show, and print what would be run. Raises a BenchError, at the end if only this machine is at fault."""
    from threespo_bench.assembly import dry_run

    shown = dry_run(config, host)
    for line in shown["warnings"]:
        warn(line)
    say(plain_yaml(shown["config"]))
    if shown["training_tasks"] is not None:
        note(f"{shown['training_tasks']:,} training tasks, {shown['evaluation_tasks']:,} for evaluation; model in {shown['model']}")
    if shown["iterations_at_least"]:
        note(f"at least {shown['iterations_at_least']:,} iterations")
    note(f"would run in {shown['run']}; nothing was started")
    refuse_what_is_lacking(shown["lacking"])


def refuse_what_is_lacking(lacking: Sequence[BenchError]) -> None:
    """After a plan was shown: raise the first thing that is lacking here to carry it out, as the run itself would, and say the others before."""
    for error in lacking[1:]:
        warn(f"also lacking here: {error}")
    for error in lacking[:1]:
        kind = DataError if isinstance(error, DataError) else EngineError  # what they are derived from may have other arguments
        raise kind(f"cannot run here: {error}", fix=error.fix) from error


def finish(outcome: Outcome) -> int:
    """Say how a run ended and where to look; returns the exit code."""
    if outcome.nothing_to_do:
        say(f"nothing to do: the run in {outcome.run} is finished")
        return 0
    if outcome.error:
        error = BenchError(outcome.error, outcome.fix)
        show_error(error)
    say(f"{outcome.state}: {results(outcome)}", {"finished": "bold green", "failed": "bold red"}.get(outcome.state, "bold yellow"))
    for label, value in _places(outcome).items():
        say(f"  {label:<8}{value}")
    return outcome.exit_code


def limits(budget: Limits) -> str:
    """A budget in words."""
    from dataclasses import asdict

    return ", ".join(f"{value:,} {name}" for name, value in asdict(budget).items() if value is not None)


def results(outcome: Outcome) -> str:
    """What a run achieved, in words."""
    parts = [f"{outcome.env_steps:,} env steps"]
    if outcome.final_success is not None:
        start = "" if outcome.start_success is None else f", from {outcome.start_success:.1%}"
        parts.append(f"success on held-out tasks {outcome.final_success:.1%}{start}")
    return "; ".join(parts)


def _places(outcome: Outcome) -> dict[str, Any]:
    places: dict[str, Any] = {}
    if outcome.run is None:
        return places
    places["run"] = outcome.run
    curve = outcome.run / "curve.png"
    if curve.exists():
        places["curve"] = curve
    if outcome.tracker:
        places["tracker"] = outcome.tracker
    if outcome.state == "interrupted":
        places["resume"] = f"threespo-bench run --resume {outcome.run}"
    return places
