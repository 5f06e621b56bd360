"""``threespo-bench show``: everything about one recorded run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from threespo_bench.cli.output import console, load_host, say, table, warn
from threespo_bench.cli.run_selection import COLOURS, age, percent
from threespo_bench.errors import BenchError

if TYPE_CHECKING:
    from threespo_bench.host import PluginHost
    from threespo_bench.inspection.summary import RunSummary

_PLACES = {"config.yaml": "configuration", "manifest.json": "manifest", "metrics.jsonl": "metrics", "events.log": "log", "curve.png": "curve"}
_EPILOG = """\
threespo-bench show runs/default/3spo-household-seed0

threespo-bench show runs/default/3spo-household-seed0 --json
"""


@click.command("show", epilog=_EPILOG)
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Plain data: status, configuration, manifest and the last metrics.")
@click.pass_context
def command(context: click.Context, run: Path, as_json: bool) -> None:
    """Show a run: how it stands, its options that are not the defaults, digests, last metrics, where things are and how it goes on."""
    from threespo_bench.inspection.summary import one_run, summarise, tail
    from threespo_bench.store import METRICS, read_config, read_manifest, read_status

    path = one_run(run)
    status, manifest, config, rows = read_status(path), read_manifest(path), read_config(path), tail(path / METRICS)
    last = {kind: next((row for row in reversed(rows) if row.get("kind") == kind), {}) for kind in ("train", "eval")}
    summary = summarise(path)
    if as_json:
        import json

        say(json.dumps({"state": summary.state, "status": status, "config": config, "manifest": manifest, "last": last}, indent=2))
        return
    _print_facts(_facts(path, summary, status, manifest, config))
    _print_options(config, load_host(context))
    _print_pairs("what must match between the algorithms of a seed", _digests(manifest))
    for kind, title in (("eval", "last evaluation"), ("train", "last training row")):
        _print_pairs(title, {key: _number(value) for key, value in last[kind].items() if key != "kind"})
    _print_pairs("where things are", _places(path))
    say(_how_to_go_on(path, summary))


def _facts(path: Path, run: RunSummary, status: Mapping[str, Any], manifest: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    from threespo_bench.cli.progress import duration

    incidental, versions, git = manifest.get("incidental", {}), manifest.get("versions", {}), manifest.get("incidental", {}).get("git") or {}
    spent = ", ".join(f"{run.spent.get(name, 0):,} of {limit:,} {name}" for name, limit in run.budget.items())
    continued = len(incidental.get("continued", []))
    torch = ", ".join(f"{name} {value}" for name, value in (incidental.get("torch") or {}).items())
    preset = config.get("algorithm", {}).get("preset", "")
    return {
        "run": str(path),
        "state": run.state,
        "error": run.error,
        "fix": status.get("fix", ""),
        "algorithm": f"{run.algorithm}{f', preset {preset}' if preset else ''} (from {manifest.get('algorithm', {}).get('owner') or 'unknown'})",
        "environment": run.env,
        "seed": str(run.seed),
        "experiment": run.experiment,
        "budget": spent,
        "success": f"{percent(run.success)}, from {percent(run.start)}" if run.success is not None else "",
        "time": "" if run.seconds is None else duration(run.seconds),
        "started": incidental.get("started", "") + (f", continued {continued} times" if continued else ""),
        "ended": f"{status['ended']}, {age(run.changed)} ago" if status.get("ended") else "",
        "machine": ", ".join(str(value) for value in (incidental.get("host_name"), incidental.get("platform"), torch) if value),
        "versions": ", ".join(f"{name} {versions[name]}" for name in ("threespo-bench", "python", "numpy", "torch") if name in versions),
        "commit": f"{git['commit']}{' with changes' if git.get('changed') else ''}" if git.get("commit") else "",
        "command": " ".join(incidental.get("command", [])),
    }


def _print_facts(facts: Mapping[str, str]) -> None:
    from rich.text import Text

    shown = table("", "")
    shown.show_header = False
    for label, value in facts.items():
        if value:
            shown.add_row(label, Text(value, style=COLOURS.get(value, "") if label == "state" else ""))
    console().print(shown)


def _print_options(config: Mapping[str, Any], host: PluginHost) -> None:
    """The options that are not the defaults of the chosen plugins and preset."""
    from threespo_bench.config.compose import show
    from threespo_bench.config.plain import flatten

    try:
        usual = _defaults(config, host)
    except BenchError as error:
        warn(f"which options are not the defaults cannot be told: {error}")
        usual = {}
    shown = table("option", "value", "default", title="options that are not the defaults" if usual else "options")
    for key, value in flatten(config).items():
        if usual.get(key, ...) != value and key not in ("out", "experiment", "seed"):
            shown.add_row(key, show(value), show(usual[key]) if key in usual else "")
    say()
    console().print(shown if shown.row_count else "all options are the defaults")


def _defaults(config: Mapping[str, Any], host: PluginHost) -> dict[str, Any]:
    from threespo_bench.config.compose import compose, default_names
    from threespo_bench.config.plain import flatten, to_plain

    algorithm, env = config["algorithm"], config["env"]["name"]
    chosen = [f"{section}={config[section]['name']}" for section in ("engine", "rollout", "tracker") if "name" in config[section]]
    preset = [f"algorithm.preset={algorithm['preset']}"] if algorithm.get("preset") else []
    model = [f"model={config['model']['name']}"] if config.get("model", {}).get("name") in host.names("models") else []
    usual = flatten(to_plain(compose(algorithm["name"], env, [*chosen, *preset, *model], host)))
    names = default_names()
    return usual | {section: names[section] for section in ("engine", "rollout", "tracker", "model") if section in names}


def _print_pairs(title: str, pairs: Mapping[str, str]) -> None:
    if not pairs:
        return
    shown = table("", "", title=title)
    shown.show_header = False
    for label, value in pairs.items():
        shown.add_row(label, value)
    say()
    console().print(shown)


def _digests(manifest: Mapping[str, Any]) -> dict[str, str]:
    from threespo_bench.matching import MUST_MATCH

    found = {key: str(manifest[key]) for key in MUST_MATCH if key in manifest and key != "budget"}
    return found | {key: str(value) for key, value in manifest.get("run", {}).items()}


def _number(value: Any) -> str:
    return "null" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}" if isinstance(value, float) else str(value)


def _places(path: Path) -> dict[str, str]:
    found = {label: str(path / name) for name, label in _PLACES.items() if (path / name).exists()}
    checkpoints = sorted(folder.name for folder in (path / "checkpoints").glob("iteration-*"))
    if checkpoints:
        found["checkpoints"] = f"{path / 'checkpoints'}: {', '.join(checkpoints)}"
    turns = len(list((path / "turns").glob("*.parquet")))
    return found | ({"turns": f"{path / 'turns'}: {turns} batches"} if turns else {})


def _how_to_go_on(path: Path, run: RunSummary) -> str:
    command = f"threespo-bench run --resume {path}"
    if run.state == "running":
        return "\na process is working on it; threespo-bench watch shows how it goes on"
    if run.state == "finished":
        name, limit = next(iter(run.budget.items()), ("env_steps", 0))
        return f"\nlonger: {command} budget.{name}={2 * limit}"
    return f"\nresume: {command}"
