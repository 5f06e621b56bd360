"""A recorded run made again from what its folder says, and compared row by row with what it measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from threespo_bench.config.plain import from_plain
from threespo_bench.config.schema import RunConfig
from threespo_bench.errors import StorageError
from threespo_bench.host import PluginHost
from threespo_bench.inspection.differences import Difference, RowComparison, circumstances, compare_metrics, condition_differences
from threespo_bench.manifest import MATCHED, incidental, run_identity, versions
from threespo_bench.outcome import Outcome
from threespo_bench.recorder import Progress
from threespo_bench.rows import RowFile
from threespo_bench.store import METRICS, read_config, read_manifest, run_state

_NO_TRACKER = "none"
_WORDS = {**MATCHED, "code_digest": "the code of the program or of the plugins"}


@dataclass(frozen=True)
class Reproduction:
    """What came of it.

    Attributes:
        outcome: of the new run. comparison: of the measurements; None if the new run did not finish.
        changed: what was different when it was made again, a line each. deterministic: whether the engine promises equal numbers at all.
    """

    outcome: Outcome
    comparison: RowComparison | None
    changed: tuple[str, ...]
    deterministic: bool


def reproduce(original: Path, host: PluginHost, out: Path | None = None, *, progress: Progress | None = None, say: Callable[[str], None]) -> Reproduction:
    """Make a run again and compare.

    A run that did not finish is compared as far as it came. The new one tells no tracker.

    Args:
        out: folder for the new run, by default ``reproduced`` beside the original's experiment. say: gets a line for everything that is different now.

    Raises:
        StorageError: ``original`` is no run, is being worked on, or has measured nothing. UsageError, DataError: it cannot be built here.
    """
    from threespo_bench import runner

    state = run_state(original)
    if state == "running":
        raise StorageError(f"the run in {original} is still going on", fix="wait for it, or stop it first")
    if not RowFile(original / METRICS).read():
        raise StorageError(f"the run in {original} has measured nothing, so there is nothing to compare with")
    config = configuration(original, host, out)
    before = [_line(found) for found in _expected(original, config, host)]
    for line in before:
        say(line)
    outcome = runner.run(config, host, progress=progress, name=original.name)
    after: list[str] = []
    if outcome.run is not None:
        known = {line.partition(" was ")[0] for line in before}
        after = [line for found in condition_differences(original, outcome.run) if (line := _line(found)).partition(" was ")[0] not in known]
    for line in after:
        say(line)
    comparison = None
    if outcome.state == "finished" and outcome.run is not None:
        comparison = compare_metrics(original, outcome.run, prefix=state != "finished")
    return Reproduction(outcome, comparison, (*before, *after), bool(read_manifest(original).get("deterministic", True)))


def configuration(original: Path, host: PluginHost, out: Path | None) -> RunConfig:
    """The recorded configuration, to be written elsewhere and without a tracker where there is a plugin for that."""
    saved = read_config(original)
    if _NO_TRACKER in host.names("trackers"):
        saved = saved | {"tracker": {"name": _NO_TRACKER}}
    config = from_plain(saved, host)
    folder = out if out is not None else original.resolve().parent.parent / "reproduced"
    config.out, config.experiment = str(folder.parent), folder.name
    return config


def _expected(original: Path, config: RunConfig, host: PluginHost) -> list[Difference]:
    """What can be told to be different before anything is run."""
    saved = circumstances(read_manifest(original))
    here = incidental()
    now = {f"version of {name}": version for name, version in versions(host).items()}
    now |= {"code_digest": run_identity(config, host)["code_digest"], **{name: here[name] for name in ("processor", "platform")}}
    known = {key for key in saved if key in now or key.startswith("version of ")}
    return [Difference(key, saved[key], now.get(key, "absent")) for key in sorted(known) if saved[key] != now.get(key, "absent")]


def _line(found: Difference) -> str:
    return f"{_WORDS.get(found.key, found.key)} was {_short(found.first)} and is now {_short(found.second)}"


def _short(value: object) -> str:
    """Digests by their beginning."""
    text = str(value)
    return text[:12] if len(text) == 64 else text
