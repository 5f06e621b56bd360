"""``threespo-bench info NAME``: what one contribution is and which options it has."""

from __future__ import annotations

import inspect
from typing import Any

import rich_click as click

from threespo_bench.cli.output import console, load_host, say, table
from threespo_bench.contracts.entries import ModelEntry
from threespo_bench.errors import UsageError, suggest
from threespo_bench.host import KINDS, Contribution, PluginHost

_SECTIONS = {"algorithms": "algorithm", "environments": "env", "engines": "engine", "rollouts": "rollout", "trackers": "tracker", "launchers": "launcher"}


@click.command("info")
@click.argument("name")
@click.option("--preset", help="Show the options of this preset of an algorithm.")
@click.pass_context
def command(context: click.Context, name: str, preset: str | None) -> None:
    """Explain an algorithm, environment, engine, rollout, model, tracker or launcher: source, notes, presets, and every option with its default.

    NAME can also be `run`, for the options of a run that belong to no plugin.
    """
    host = load_host(context)
    if name == "run" and not any(name in host.names(kind) for kind in KINDS):
        from threespo_bench.config.compose import run_options

        _print_options("run", run_options())
        return
    found = [host.find(kind, name) for kind in KINDS if name in host.names(kind)]
    if not found:
        _refuse(host, name)
    for contribution in found:
        _print(contribution, preset)


def _refuse(host: PluginHost, name: str) -> None:
    """Let the host explain a name that a broken plugin would have given; otherwise suggest from all kinds."""
    if host.failures:
        for kind in KINDS:
            try:
                host.find(kind, name)
            except UsageError as error:
                if "could not be loaded" in str(error):
                    raise
    raise UsageError(f"nothing is called {name!r}", fix=suggest(name, [known for kind in KINDS for known in host.names(kind)]))


def _print(contribution: Contribution, preset: str | None) -> None:
    entry, target = contribution.entry, contribution.load()
    made_for = entry.env if isinstance(entry, ModelEntry) else ""
    facts = table("", "")
    facts.show_header = False
    rows = {
        KINDS[contribution.kind].singular: f"{entry.name}" + (f" (also {', '.join(entry.aliases)})" if entry.aliases else ""),
        "what": getattr(target, "title", "") or entry.summary,
        "summary": entry.summary if getattr(target, "title", "") else "",
        "from": f"{contribution.source.owner}, {entry.target}",
        "source": getattr(target, "source", ""),
        "notes": getattr(target, "notes", ""),
        "made for": f"env={made_for}" if made_for else "",
        "tags": ", ".join(entry.tags),
        **_capabilities(target),
    }
    for label, value in rows.items():
        if value:
            facts.add_row(label, value)
    console().print(facts)
    section = _SECTIONS.get(contribution.kind)
    if section:
        _print_config(contribution, section, preset)
    elif contribution.kind == "models":
        say(f"use: model={entry.name}")
    say()


def _capabilities(target: Any) -> dict[str, str]:
    """What a class says about itself, in words."""

    def words(name: str) -> str:
        return ", ".join(sorted(getattr(target, name, ()) or ()))

    if not inspect.isclass(target):
        return {}
    restores = getattr(target, "can_restore", None)
    return {
        "needs": words("needs"),
        "reads": ", ".join(getattr(target, "requires", ()) or ()),
        "offers": words("capabilities"),
        "state keys": ", ".join(getattr(target, "anchors", ()) or ()),
        "going back": "" if restores is None else "by snapshots" if restores else "by replaying the actions",
    }


def _print_config(contribution: Contribution, section: str, preset: str | None) -> None:
    from omegaconf import OmegaConf

    from threespo_bench.config.compose import show
    from threespo_bench.config.defaults import load_defaults
    from threespo_bench.config.options import describe

    defaults = load_defaults(contribution, section, preset)
    _print_options(f"{section}, of {contribution.name}", describe(defaults.config, section, OmegaConf.to_container(defaults.node)))
    if defaults.presets:
        others = [f"{name}{' (used unless another is named)' if name == defaults.preset and preset is None else ''}" for name in defaults.presets]
        say(f"presets ({section}.preset=NAME): {', '.join(others)}")
        for name in defaults.presets:
            values = load_defaults(contribution, section, name).node
            plain = load_defaults(contribution, section, "").node
            changed = _changes(OmegaConf.to_container(plain), OmegaConf.to_container(values), section)
            say(f"  {name}: " + (" ".join(f"{key}={show(value)}" for key, value in changed.items()) or "the defaults"))
    if defaults.run:
        say(f"defaults for the run that it brings along: {defaults.run}")


def _changes(old: Any, new: Any, key: str) -> dict[str, Any]:
    if isinstance(old, dict) and isinstance(new, dict):
        return {k: v for name in new for k, v in _changes(old.get(name), new[name], f"{key}.{name}").items()}
    return {} if old == new else {key: new}


def _print_options(title: str, options: list[Any]) -> None:
    from threespo_bench.config.compose import show

    shown = table("option", "type", "default", "meaning", title=f"options of {title} (key=value)")
    for option in options:
        shown.add_row(option.key, option.type, show(option.default), option.doc)
    console().print(shown if options else f"{title} has no options")
