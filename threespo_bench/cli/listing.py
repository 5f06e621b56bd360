"""``threespo-bench list``: what is installed."""

from __future__ import annotations

from typing import Any

import rich_click as click

from threespo_bench.cli.installation import installed, requirements
from threespo_bench.cli.output import console, load_host, say, table
from threespo_bench.host import KINDS, Contribution, PluginHost

_HINTS = {
    "algorithms": "--algo NAME",
    "environments": "--env NAME",
    "engines": "engine=NAME",
    "rollouts": "rollout=NAME",
    "models": "model=NAME",
    "trackers": "tracker=NAME",
    "launchers": "compare --launcher NAME",
    "reports": "sections of a report",
}


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Plain data instead of a table.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List algorithms, environments, engines, rollouts, models, trackers, launchers and report sections, with the distribution each one comes from."""
    host = load_host(context)
    if as_json:
        import json

        say(json.dumps({kind: [_plain(contribution) for contribution in host.all(kind).values()] for kind in KINDS}, indent=2))
        return
    _print(host)


def _print(host: PluginHost) -> None:
    out = console()
    for kind, hint in _HINTS.items():
        if not host.all(kind):
            continue
        shown = table(kind, hint, "from")
        for contribution in host.all(kind).values():
            missing = missing_requirements(contribution)
            lack = f"  [needs {', '.join(missing)}: pip install '{contribution.owner}[{contribution.entry.extra}]']" if missing else ""
            names = ", ".join([contribution.name, *contribution.entry.aliases])
            shown.add_row(names, contribution.entry.summary + lack, contribution.source.owner)
        out.print(shown)
        out.print()
    say("threespo-bench info NAME shows the options of one of them")


def missing_requirements(contribution: Contribution) -> list[str]:
    """The distributions of a contribution's extra that are not installed."""
    extra = contribution.entry.extra
    if not extra:
        return []
    return [requirement.name for requirement in requirements(contribution.owner, extra) if installed(requirement.name) is None]


def _plain(contribution: Contribution) -> dict[str, Any]:
    return {
        "name": contribution.name,
        "aliases": list(contribution.entry.aliases),
        "summary": contribution.entry.summary,
        "tags": list(contribution.entry.tags),
        "distribution": contribution.owner,
        "version": contribution.version,
        "target": contribution.entry.target,
        "extra": contribution.entry.extra,
        "missing": missing_requirements(contribution),
    }
