"""``threespo-bench compare``: algorithms x environments x seeds, and a report of how they differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import rich_click as click

from threespo_bench.cli.comparison_request import DEFAULT_SEEDS, Options, Request, request
from threespo_bench.cli.output import console, load_host, note, say, table, warn
from threespo_bench.cli.report import show_paths

if TYPE_CHECKING:
    from threespo_bench.config.schema import Component
    from threespo_bench.experiment import Comparison
    from threespo_bench.host import PluginHost
    from threespo_bench.recorder import Progress

_EPILOG = """\
Every algorithm gets the same tasks, seeds, starting weights and budget. An override for one algorithm only has its name in front.
The same command again goes on where it stopped; with another seed or algorithm it adds to the experiment.
A file ending in .yaml says what to compare (docs/experiments.md); options override it.

threespo-bench compare --algo 3spo --algo grpo --seeds 0..4 --budget env_steps=200000

threespo-bench compare --algo 3spo@paper --algo grpo --set grpo:algorithm.group_size=16 --dry-run

threespo-bench compare experiment.yaml --jobs 2

threespo-bench compare experiment.yaml --launcher slurm launcher.partition=gpu launcher.gpus=1
"""


@click.command("compare", epilog=_EPILOG)
@click.option("--algo", "algorithms", multiple=True, metavar="NAME", help="An algorithm, or NAME@PRESET; give it several times.")
@click.option("--env", "environments", multiple=True, metavar="NAME", help="An environment, by default that of model=NAME, else household; repeatable.")
@click.option("--seeds", metavar="SEEDS", help=f"0..4, or 0,3,5; by default {DEFAULT_SEEDS}. A seed is the unit of every statistic.")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at the same time, by default 1.")
@click.option("--launcher", metavar="NAME", help="Where the runs are carried out: local (the default), ray, slurm; `info NAME` lists its options launcher.KEY.")
@click.option("--budget", "budgets", multiple=True, metavar="NAME=N", help="What every run may spend: env_steps=N, tokens=N, updates=N or iterations=N.")
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False), help="Folder for runs, by default runs.")
@click.option("--experiment", metavar="NAME", help="Folder in DIR for these runs, by default made from the algorithms and environments.")
@click.option("--baseline", metavar="NAME", help="The algorithm that the others are compared with in the report.")
@click.option("--retry/--no-retry", default=True, show_default=True, help="Go on with runs that failed before, or only report them.")
@click.option("--dry-run", is_flag=True, help="Check everything and print the plan with what is left to do, start nothing.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An override; the same as KEY=VALUE after the options.")
@click.option("--no-progress", is_flag=True, help="Show messages only.")
@click.argument("words", nargs=-1, metavar="[FILE.yaml] [KEY=VALUE]...")
@click.pass_context
def command(
    context: click.Context,
    algorithms: tuple[str, ...],
    environments: tuple[str, ...],
    seeds: str | None,
    jobs: int | None,
    launcher: str | None,
    budgets: tuple[str, ...],
    out: str | None,
    experiment: str | None,
    baseline: str | None,
    retry: bool,
    dry_run: bool,
    settings: tuple[str, ...],
    no_progress: bool,
    words: tuple[str, ...],
) -> int:
    """Run several algorithms with the same seeds and budget, one after another or at once, then write the report. A failed run stops no other."""
    host = load_host(context)
    asked = request(Options(algorithms, environments, seeds, budgets, out, experiment, baseline, jobs, (*settings, *words), launcher), host)
    named = _baseline(asked, host)
    chosen, planned = asked.choose_launcher(host), asked.plan(host)
    at_once = _at_once(chosen, len(planned))
    if dry_run:
        from threespo_bench.cli.comparison_plan import show_plan
        from threespo_bench.config.launcher import DEFAULT_LAUNCHER

        show_plan(planned, host, retry=retry, jobs=at_once, elsewhere=chosen.name != DEFAULT_LAUNCHER)
        return 0
    from threespo_bench.experiment import execute

    comparison = execute(planned, host, launcher=chosen, progress=_progress(no_progress, at_once), say=note, baseline=named, retry=retry)
    return _finish(comparison)


def _baseline(asked: Request, host: PluginHost) -> str | None:
    """What the report shall compare with: a label of the file, NAME@PRESET, or the registered name of an algorithm. Raises UsageError for any other."""
    if asked.baseline is None or asked.baseline in {variant.label for variant in asked.variants}:
        return asked.baseline
    name, at, _ = asked.baseline.partition("@")
    found = host.find("algorithms", name).name
    return asked.baseline if at else found


def _at_once(launcher: Component, runs: int) -> int:
    """How many runs go on at the same time; a launcher that decides this itself may start all of them."""
    from threespo_bench.config.launcher import DEFAULT_LAUNCHER

    return launcher.options.jobs or (1 if launcher.name == DEFAULT_LAUNCHER else runs)


def _progress(quiet: bool, jobs: int) -> Callable[[str], Progress]:
    """A live line for one run at a time; labelled plain lines for several."""
    import sys

    from threespo_bench.cli.progress import Lines, make_progress

    def make(name: str) -> Progress:
        return Lines(sys.stderr, label=name, quiet=quiet) if jobs > 1 else make_progress(quiet=quiet, label=name)

    return make


def _finish(comparison: Comparison) -> int:
    """Print the outcomes and where the report is; raises what the comparison should end with, if runs failed or were stopped."""
    shown = table("run", "state", "env steps", "held-out success: start", "end", "folder")
    for name, outcome in comparison.outcomes.items():
        start, end = ("-" if value is None else f"{value:.1%}" for value in (outcome.start_success, outcome.final_success))
        shown.add_row(name, outcome.state, f"{outcome.env_steps:,}", start, end, str(outcome.run or "-"))
    console().print(shown)
    if comparison.report is not None:
        show_paths(comparison.report)
    trackers = [outcome.tracker for outcome in comparison.outcomes.values() if outcome.tracker]
    if trackers:
        say(trackers[-1])
    for line in comparison.mismatches:
        warn(line)
    error = comparison.error()
    if error is not None:
        raise error
    return 0
