"""``threespo-bench doctor``: is everything in order, and if not, whose fault is it."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import rich_click as click

from threespo_bench import __version__
from threespo_bench.cli.listing import missing_requirements
from threespo_bench.cli.output import console, load_host, say, table
from threespo_bench.discovery import REPLACE_VARIABLE
from threespo_bench.errors import BenchError, PluginError
from threespo_bench.host import KINDS, STRICT_VARIABLE, PluginHost

_LIBRARIES = ("torch", "transformers", "hydra-core", "pluggy", "numpy", "scipy", "pandas", "pyarrow", "mlflow")
_SECTIONS = {"algorithms": "algorithm", "environments": "env", "engines": "engine", "rollouts": "rollout", "trackers": "tracker", "launchers": "launcher"}
_VARIABLES = (STRICT_VARIABLE, REPLACE_VARIABLE, "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ALFWORLD_DATA")


@click.command("doctor")
@click.pass_context
def command(context: click.Context) -> int:
    """Show versions, devices and plugins, load every plugin's contributions, and explain what does not work. Exit code 3 if something does not."""
    host = load_host(context, check=False)
    _print_versions()
    _print_plugins(host)
    problems = _load_everything(host)
    _print_what_runs(host)
    for line in host.conflicts:
        say(f"conflict: {line}", "red")
    for failure in host.failures:
        say(f"failure: {failure}", "red")
        say(failure.details.rstrip(), "dim")
    for line in problems:
        say(f"failure: {line}", "red")
    for line in host.hints:
        say(f"hint: {line}", "yellow")
    wrong = len(host.conflicts) + len(host.failures) + len(problems)
    say(f"{wrong} problem{'s' * (wrong != 1)}, {len(host.hints)} hint{'s' * (len(host.hints) != 1)}" if wrong or host.hints else "everything is in order")
    strict = context.find_root().params.get("strict") or os.environ.get(STRICT_VARIABLE, "") not in ("", "0")
    return PluginError.exit_code if wrong or (strict and host.hints) else 0


def _print_versions() -> None:
    shown = table("", "")
    shown.show_header = False
    shown.add_row("threespo-bench", f"{__version__} ({os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))})")
    shown.add_row("python", f"{platform.python_version()} ({sys.executable})")
    for name in _LIBRARIES:
        try:
            shown.add_row(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            shown.add_row(name, "not installed")
    shown.add_row("devices", _devices())
    for name in _VARIABLES:
        if name in os.environ:
            shown.add_row(name, os.environ[name])
    console().print(shown)


def _devices() -> str:
    try:
        import torch
    except Exception as error:  # a broken installation of torch raises all sorts of things
        return f"unknown: torch cannot be imported ({error})"
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ", ".join([f"cpu ({len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} usable cores)", *gpus])


def _print_plugins(host: PluginHost) -> None:
    shown = table("plugin", "module", "from", "import", "gives")
    for source in host.sources:
        given = {kind: sum(contribution.source == source for contribution in host.all(kind).values()) for kind in KINDS}
        gives = ", ".join(f"{count} {kind}" for kind, count in given.items() if count) or "nothing"
        shown.add_row(source.entry_point, source.module, f"{source.owner} in {source.location}", f"{host.seconds[source.entry_point] * 1000:.0f} ms", gives)
    console().print()
    console().print(shown)
    for key, winner in host.replacements.items():
        say(f"chosen by {REPLACE_VARIABLE}: {key} of {winner}")
    say()


def _print_what_runs(host: PluginHost) -> None:
    """Which engines and rollouts can run here with their defaults, and what the others lack."""
    from threespo_bench.contracts.rollout import OwnSampling, Rollout

    models = [model.load() for model in host.all("models").values() if not missing_requirements(model)]
    if not models:
        return
    folder, own = Path(models[0]()), Rollout("hf", OwnSampling.Config(), OwnSampling)
    shown = table("", "runs here", "to have it")
    for kind in ("engines", "rollouts"):
        for contribution in host.all(kind).values():
            name = f"{KINDS[kind].singular} {contribution.name}"
            missing = missing_requirements(contribution)
            if missing:
                shown.add_row(name, f"no: {', '.join(missing)} is not installed", f"pip install '{contribution.owner}[{contribution.entry.extra}]'")
                continue
            try:
                target = contribution.load()
                check = getattr(target, "check", None)
                if check is not None:
                    check(target.Config(), folder, *([own] if kind == "engines" else []))
            except BenchError as error:
                shown.add_row(name, f"no: {error}", error.fix)
            else:
                shown.add_row(name, "yes", "")
    console().print(shown)
    say()


def _load_everything(host: PluginHost) -> list[str]:
    """Import every contribution and read its defaults; what fails although its extra is there is a problem."""
    from threespo_bench.config.defaults import load_defaults

    problems = []
    for kind in KINDS:
        for contribution in host.all(kind).values():
            missing = missing_requirements(contribution)
            if missing:
                say(f"{KINDS[kind].singular} {contribution.name} needs pip install '{contribution.owner}[{contribution.entry.extra}]'")
                continue
            try:
                contribution.load()
                if kind in _SECTIONS:
                    load_defaults(contribution, _SECTIONS[kind])
            except BenchError as error:
                problems.append(str(error))
    return problems
