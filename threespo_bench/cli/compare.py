"""``threespo-bench compare``: algorithms x environments x seeds, and a report of how they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import rich_click as click

from threespo_bench.cli.output import console, load_host, note, say, table
from threespo_bench.cli.overrides import algorithm_and_preset, budget_overrides, scoped
from threespo_bench.cli.overrides import seeds as read_seeds
from threespo_bench.cli.report import show_paths

if TYPE_CHECKING:
    from threespo_bench.experiment import Comparison, PlannedRun
    from threespo_bench.host import PluginHost
    from threespo_bench.recorder import Progress

_EPILOG = (
    "Every algorithm gets the same tasks, seeds, starting weights and budget. An override for one algorithm only has its name in front: "
    "`--set grpo:algorithm.group_size=16`. `--algo 3spo@paper` is an algorithm with a preset. The same command again goes on where it stopped."
)


@click.command("compare", epilog=_EPILOG)
@click.option("--algo", "algorithms", multiple=True, required=True, metavar="NAME", help="An algorithm, or NAME@PRESET; give it several times.")
@click.option("--env", "environments", multiple=True, metavar="NAME", help="An environment, by default household; can be given several times.")
@click.option("--seeds", default="0..2", show_default=True, metavar="SEEDS", help="0..4, or 0,3,5. A seed is the unit of every statistic.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Runs at the same time.")
@click.option("--budget", "budgets", multiple=True, metavar="NAME=N", help="What every run may spend: env_steps=N, tokens=N, updates=N or iterations=N.")
@click.option("--out", metavar="DIR", type=click.Path(file_okay=False), help="Folder for runs, by default runs.")
@click.option("--experiment", metavar="NAME", help="Folder in DIR for these runs, by default made from the algorithms and environments.")
@click.option("--baseline", metavar="NAME", help="The algorithm that the others are compared with in the report.")
@click.option("--dry-run", is_flag=True, help="Check everything and print the plan, start nothing.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An override; the same as KEY=VALUE after the options.")
@click.option("--no-progress", is_flag=True, help="Show messages only.")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.pass_context
def command(
    context: click.Context,
    algorithms: tuple[str, ...],
    environments: tuple[str, ...],
    seeds: str,
    jobs: int,
    budgets: tuple[str, ...],
    out: str | None,
    experiment: str | None,
    baseline: str | None,
    dry_run: bool,
    settings: tuple[str, ...],
    no_progress: bool,
    overrides: tuple[str, ...],
) -> int:
    """Run several algorithms with the same seeds and budget, one after another or at once, then write the report. A failed run stops no other."""
    common, own = scoped([*settings, *overrides], algorithms)
    numbers = read_seeds(seeds)
    common = [*budget_overrides(budgets), *common]
    host = load_host(context)
    if baseline:
        baseline = host.find("algorithms", baseline).name
    planned = _plan(host, algorithms, environments, numbers, common, own, out, experiment)
    if dry_run:
        _show_plan(planned, host)
        return 0
    from threespo_bench.experiment import execute

    comparison = execute(planned, host, jobs=jobs, progress=_progress(no_progress, jobs), say=note, baseline=baseline)
    return _finish(comparison)


def _plan(
    host: PluginHost,
    algorithms: Sequence[str],
    environments: Sequence[str],
    seeds: Sequence[int],
    common: Sequence[str],
    own: dict[str, list[str]],
    out: str | None,
    experiment: str | None,
) -> list[PlannedRun]:
    from threespo_bench.config.compose import default_names
    from threespo_bench.experiment import Variant, plan

    variants = []
    for text in dict.fromkeys(algorithms):
        name, preset = algorithm_and_preset(text)
        variants.append(Variant(name, (*preset, *own.get(text, []))))
    environments = environments or (default_names()["env"],)
    experiment = experiment or "-".join(dict.fromkeys([*algorithms, *environments])).replace("@", "-")
    return plan(variants, environments, seeds, host, overrides=common, out=out, experiment=experiment)


def _progress(quiet: bool, jobs: int) -> Callable[[str], Progress]:
    """A live line for one run at a time; labelled plain lines for several."""
    import sys

    from threespo_bench.cli.progress import Lines, make_progress

    def make(name: str) -> Progress:
        return Lines(sys.stderr, label=name, quiet=quiet) if jobs > 1 else make_progress(quiet=quiet, label=name)

    return make


def _show_plan(planned: Sequence[PlannedRun], host: PluginHost) -> None:
    """Build what costs little of every combination, so that mistakes show, and print the plan."""
    from threespo_bench import assembly
    from threespo_bench.cli.run import limits
    from threespo_bench.experiment import experiment_folder

    checked = set()
    shown = table("run", "algorithm", "env", "seed", "budget")
    for run in planned:
        config = run.config
        kind = (run.name.rpartition("-seed")[0], config.env.name)
        if kind not in checked:
            checked.add(kind)
            for line in assembly.warnings(config, assembly.load_parts(config, host)):
                note(f"{run.name}: {line}", "yellow")
        shown.add_row(run.name, config.algorithm.name, config.env.name, str(config.seed), limits(config.budget))
    console().print(shown)
    note(f"{len(planned)} runs, in {experiment_folder(planned[0].config)}; nothing was started")


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
    error = comparison.error()
    if error is not None:
        raise error
    return 0
