"""What exactly was run. The fields at the top repeat for an equal run; those under ``incidental`` do not and decide nothing.

Every ``*_digest`` at the top must be equal between the runs of one comparison at one seed: that is what "matched" means.
"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

from threespo_bench import __version__
from threespo_bench.atomic import digest_of
from threespo_bench.config.plain import to_plain
from threespo_bench.config.schema import RunConfig
from threespo_bench.contracts.environment import Task
from threespo_bench.errors import DataError
from threespo_bench.host import PluginHost
from threespo_bench.identity import contribution_digest, differences
from threespo_bench.seeding import Streams
from threespo_bench.training import TrainingRun

_LIBRARIES = ("numpy", "scipy", "pandas", "pyarrow", "torch", "transformers", "tokenizers", "safetensors", "hydra-core", "pluggy", "mlflow")
_DIGESTED_TASKS = 10_000
_NOT_IDENTITY = ("out", "experiment", "tracker", "save_turns", "checkpoint")
MATCHED = {
    "starting_weights_digest": "the starting weights",
    "environment_digest": "the environment's data or version",
    "task_order_digest": "the training tasks or their order",
    "environment_seeds_digest": "the seeds of the environments",
    "evaluation_tasks_digest": "the evaluation tasks",
    "evaluation_noise_digest": "the seeds or the sampling of evaluation",
}
"""The digests that must be equal between the runs of one environment and seed, and what each one covers. The budget is the other thing."""


def describe(run: TrainingRun, host: PluginHost) -> dict[str, Any]:
    """The manifest of a run that was just built (its weights are still the starting weights)."""
    config = run.config
    return {
        "seed": config.seed,
        **{section: _identity(host, kind, name) for section, (kind, name) in zip(("algorithm", "env", "engine", "rollout"), _components(config), strict=True)},
        "method": {"title": run.algorithm.title, "source": run.algorithm.source, "notes": run.algorithm.notes},
        "deterministic": bool(run.engine.deterministic),
        "model": {"name": config.model.name, "path": config.model.path},
        "starting_weights_digest": run.engine.digest(),
        "environment_digest": run.environment.digest(),
        "task_order_digest": task_order_digest(run.environment.tasks(config.train_split), run.streams),
        "environment_seeds_digest": environment_seeds_digest(run.environment.tasks(config.train_split), run.streams),
        "evaluation_tasks_digest": _task_digest(run.evaluation_tasks),
        "evaluation_noise_digest": evaluation_noise_digest(run),
        "evaluation_tasks": len(run.evaluation_tasks),
        "budget": asdict(config.budget),
        "run": run_identity(config, host),
        "versions": versions(host),
        "host": host.identity(),
        "incidental": incidental(),
    }


def config_digest(config: RunConfig) -> str:
    """Digest of the options that decide what a run measures: not where it is written, how it is tracked or how often it is saved."""
    return digest_of({key: value for key, value in to_plain(config).items() if key not in _NOT_IDENTITY})


def run_identity(config: RunConfig, host: PluginHost) -> dict[str, str]:
    """What tells whether a recorded run is the one that a configuration asks for: its options, and the code that would carry them out."""
    identity = host.identity()
    used = {host.find(kind, name).source.entry_point for kind, name in _components(config)}
    code = {"host": identity["host"], "plugins": {name: plugin for name, plugin in identity["plugins"].items() if name in used}}
    return {"config_digest": config_digest(config), "code_digest": digest_of(code)}


def task_order_digest(tasks: Sequence[Task], streams: Streams) -> str:
    """Digest of the keys of the first epoch's training tasks in their order (of the first ten thousand)."""
    order = streams.generator("tasks", 0).permutation(len(tasks))
    return _task_digest(tasks[int(place)] for place in order[:_DIGESTED_TASKS])


def environment_seeds_digest(tasks: Sequence[Task], streams: Streams) -> str:
    """Digest of the seeds that training resets the environment with, in the order of the split (of the first ten thousand tasks)."""
    return _lines_digest(str(streams.integer("reset", task.key)) for task in islice(tasks, _DIGESTED_TASKS))


def evaluation_noise_digest(run: TrainingRun) -> str:
    """Digest of what decides an evaluation besides tasks and weights: the seeds of each task's reset and first answer, and how answers are sampled."""
    sampling = f"temperature {run.config.evaluation.temperature!r} tokens {run.max_new_tokens} turns {run.max_turns}"
    names = (("evaluation/reset",), ("evaluation/sample", 0))
    seeds = (str(run.streams.integer(name, task.key, *turn)) for task in islice(run.evaluation_tasks, _DIGESTED_TASKS) for name, *turn in names)
    return _lines_digest([sampling, *seeds])


def versions(host: PluginHost) -> dict[str, str]:
    """Versions of Python, of this program, of the libraries whose version can change a number, and of the plugins' distributions."""
    names = {*_LIBRARIES, *(source.distribution for source in host.sources)}
    found = {"python": platform.python_version(), "threespo-bench": __version__}
    return found | {name: version for name in sorted(names) if (version := _version(name))}


def incidental() -> dict[str, Any]:
    """The time, the machine and the command: for people, never compared."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host_name": socket.gethostname(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "processors": os.cpu_count(),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "torch": _torch(),
        "git": _git(),
    }


def check_same(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Compare the manifest of a run with that of its continuation.

    Returns:
        What changed and may make the continuation differ from an uninterrupted run, one line each.

    Raises:
        DataError: it would be another run: other starting weights (the reference policy), tasks or environment.
    """
    for key, what in MATCHED.items():
        if key in saved and saved[key] != now[key]:
            raise DataError(f"the run cannot be continued exactly: {what} changed since it was started", fix="put back what was used then, or start a new run")
    changed = [
        f"{name} was {saved['versions'].get(name, 'absent')} and is now {now['versions'].get(name, 'absent')}"
        for name in sorted({*saved.get("versions", {}), *now["versions"]})
        if saved.get("versions", {}).get(name) != now["versions"].get(name)
    ]
    if saved.get("algorithm") != now["algorithm"]:
        changed.append("the code of the algorithm changed")
    elif "host" in saved and not changed:
        changed += [line for line in differences(saved["host"], now["host"]) if "only in the memory" not in line]
    return changed


def _components(config: RunConfig) -> list[tuple[str, str]]:
    return [("algorithms", config.algorithm.name), ("environments", config.env.name), ("engines", config.engine.name), ("rollouts", config.rollout.name)]


def _identity(host: PluginHost, kind: str, name: str) -> dict[str, Any]:
    contribution = host.find(kind, name)
    owner = " ".join(part for part in (contribution.owner, contribution.version) if part)
    return {"name": contribution.name, "owner": owner, "target": contribution.entry.target, "digest": contribution_digest(contribution)}


def _task_digest(tasks: Iterable[Task]) -> str:
    return _lines_digest(task.key for task in islice(tasks, _DIGESTED_TASKS))


def _lines_digest(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _torch() -> dict[str, Any]:
    """Threads and device, if torch is in use; it is never imported for this."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"threads": torch.get_num_threads(), "device": device}


def _git() -> dict[str, Any]:
    """Commit of the checkout this program runs from, and whether it was changed; empty if it is installed."""
    checkout = Path(__file__).resolve().parent.parent
    if not (checkout / ".git").exists():
        return {}
    commit = _git_output(checkout, "rev-parse", "HEAD")
    return {"commit": commit, "changed": bool(_git_output(checkout, "status", "--porcelain", "--untracked-files=no"))} if commit else {}


def _git_output(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
