"""``threespo-bench doctor``: is everything in order, and if not, whose fault is it."""

from __future__ import annotations

import os
import platform
import sys

import rich_click as click

from threespo_bench import __version__
from threespo_bench.cli import installation
from threespo_bench.cli.output import console, load_host, say, table
from threespo_bench.discovery import REPLACE_VARIABLE
from threespo_bench.errors import PluginError
from threespo_bench.host import KINDS, STRICT_VARIABLE, Contribution, Failure, PluginHost, one_line

_LIBRARIES = ("torch", "transformers", "hydra-core", "pluggy", "numpy", "scipy", "pandas", "pyarrow", "mlflow")
_SECTIONS = {"algorithms": "algorithm", "environments": "env", "engines": "engine", "rollouts": "rollout", "trackers": "tracker", "launchers": "launcher"}
_VARIABLES = (STRICT_VARIABLE, REPLACE_VARIABLE, "MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "ALFWORLD_DATA")
_NAMED = 3
"""So many contributions of a kind are named in one line, more are counted."""

Failed = list[tuple[Contribution, BaseException]]


@click.command("doctor")
@click.pass_context
def command(context: click.Context) -> int:
    """Look for faults: import what is installed, load every plugin's contributions, and say what does not work, why, and how to mend it.

    Before that it shows versions, devices and plugins; which engines and rollouts can run here; and the extras with their install commands. That one of those
    is not installed is no fault. It takes some seconds.

    Exit code 0 if there is no problem, 3 if there is one; with --strict (threespo-bench --strict doctor), hints are problems too.
    """
    host = load_host(context, check=False)
    damages = installation.damages()
    _print_versions()
    _print_plugins(host)
    failed = _load_everything(host)
    without = _print_what_runs(host, damages)
    wrong = _print_problems(host, damages, failed)
    for line in host.hints:
        say(f"hint: {line}", "yellow")
    if wrong or host.hints:
        say()
    if without and not damages:
        say(without)
    hints = f", {_count(len(host.hints), 'hint')} (above)" if host.hints else ""
    say(f"{_count(wrong, 'problem')}{hints}" if wrong else f"no problems{hints}: the installation and its plugins are in order")
    strict = context.find_root().params.get("strict") or os.environ.get(STRICT_VARIABLE, "") not in ("", "0")
    return PluginError.exit_code if wrong or (strict and host.hints) else 0


def _print_versions() -> None:
    shown = table("", "")
    shown.show_header = False
    shown.add_row("threespo-bench", f"{__version__} ({installation.FOLDER})")
    shown.add_row("python", f"{platform.python_version()} ({sys.executable})")
    for name in _LIBRARIES:
        version = installation.installed(name)
        shown.add_row(name, "not installed" if version is None else version or "without a version")
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


def _load_everything(host: PluginHost) -> Failed:
    """Import every contribution and read its defaults; what fails although its extra is there is a problem."""
    failed: Failed = []
    for kind in KINDS:
        for contribution in host.all(kind).values():
            try:
                if _lacks_extra(contribution):
                    continue
                contribution.load()
                if kind in _SECTIONS:
                    from threespo_bench.config.defaults import load_defaults

                    load_defaults(contribution, _SECTIONS[kind])
            except Exception as error:  # what is damaged raises all sorts of things
                failed.append((contribution, error))
    return failed


def _lacks_extra(contribution: Contribution) -> bool:
    extra = contribution.entry.extra
    return bool(extra) and any(map(installation.lack, installation.requirements(contribution.owner, extra)))


def _print_what_runs(host: PluginHost, damages: list[installation.Damage]) -> str:
    try:
        from threespo_bench.cli.runs_here import print_what_runs

        return print_what_runs(host, damaged=bool(damages))
    except Exception:  # what is damaged raises all sorts of things
        if not damages:
            raise
        say("which engines and rollouts can run here is known once the problems below are mended", "dim")
        say()
        return ""


def _print_problems(host: PluginHost, damages: list[installation.Damage], failed: Failed) -> int:
    """Causes first, each with its fix; what is only their consequence in one line.

    Returns:
        the number of problems, consequences not counted.
    """
    modules = {module for damage in damages for module in damage.modules}
    for damage in damages:
        _problem(damage.cause, damage.fix)
    consequences = [contribution for contribution, error in failed if installation.passed_through(error) & modules]
    skipped = [failure for failure in host.failures if any(f"No module named {module!r}" in failure.cause for module in modules)]
    if consequences or skipped:
        parts = [*_grouped(host, consequences), *(f"the plugin {failure.source.owner}" for failure in skipped)]
        say(f"  until then these do not work: {'; '.join(parts)}")
    for line in host.conflicts:
        _problem(line)
    failures = [failure for failure in host.failures if failure not in skipped]
    for failure in failures:
        _problem_of_plugin(failure)
    causes = _by_cause([(contribution, error) for contribution, error in failed if contribution not in consequences])
    for found in causes:
        _problem_of_contributions(host, found)
    return len(damages) + len(host.conflicts) + len(failures) + len(causes)


def _by_cause(failed: Failed) -> list[Failed]:
    """Failures with the same owner and the same first cause belong together."""
    groups: dict[tuple[str, str], Failed] = {}
    for contribution, error in failed:
        groups.setdefault((contribution.source.owner, one_line(installation.root(error))), []).append((contribution, error))
    return list(groups.values())


def _problem_of_contributions(host: PluginHost, found: Failed) -> None:
    contribution, error = found[0]
    if len(found) == 1:
        _problem(str(error), getattr(error, "fix", ""))
        return
    names = "; ".join(_grouped(host, [each for each, _ in found]))
    _problem(f"{names} (from {contribution.source.owner}) cannot be used: {one_line(installation.root(error))}", getattr(error, "fix", ""))


def _problem_of_plugin(failure: Failure) -> None:
    _problem(str(failure))
    if failure.details.startswith("Traceback"):  # a wrong entry raised nothing
        say(failure.details.rstrip(), "dim")


def _problem(text: str, fix: str = "") -> None:
    say(f"problem: {' '.join(text.split())}", "red")
    if fix:
        say(f"  fix: {fix}")


def _grouped(host: PluginHost, contributions: list[Contribution]) -> list[str]:
    """Contributions by kind: a few with their names, many as a number."""
    parts = []
    for kind, description in KINDS.items():
        names = [contribution.name for contribution in contributions if contribution.kind == kind]
        if len(names) > _NAMED:
            parts.append(f"{len(names)} of {len(host.all(kind))} {kind}")
        elif names:
            parts.append(f"{description.singular if len(names) == 1 else kind} {installation.listing(names)}")
    return parts


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
