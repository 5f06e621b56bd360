"""The program: its commands, its options, and what becomes of every failure."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from difflib import get_close_matches

import rich_click as click
from click.exceptions import Exit

from threespo_bench import __version__, errors
from threespo_bench.cli import (
    clean,
    compare,
    credit,
    diff,
    doctor,
    evaluation,
    info,
    leaderboard,
    listing,
    ls,
    merge,
    play,
    prepare,
    report,
    reproduce,
    run,
    show,
    slurm,
    sync,
    warm_start,
    watch,
)
from threespo_bench.cli.output import note, show_error

DEBUG_VARIABLE = "THREESPO_BENCH_DEBUG"

EXIT_CODES: dict[int, str] = {
    0: "done",
    1: "a defect of the program; a traceback was written to a file",
    errors.UsageError.exit_code: "a wrong name, option, override or value; nothing was started",
    errors.PluginError.exit_code: "a plugin is broken, a name has two owners, or the plugins of two processes differ",
    errors.DataError.exit_code: "games, a model folder or recorded turns are missing or unreadable",
    errors.EngineError.exit_code: "the engine failed: log-probabilities that disagree, stale weights, a loss that is not finite",
    errors.StorageError.exit_code: "the run folder cannot be written or read: full disk, locked, no usable checkpoint",
    errors.PartialFailure.exit_code: "some runs of a comparison failed; the others finished and were reported",
    errors.NotReproduced.exit_code: "a run that was made again measured something else",
    errors.TrackerError.exit_code: "the tracking server cannot be reached or did not take everything; the next `sync` sends the rest",
    errors.Interrupted.exit_code: "interrupted; the run can be resumed",
}

_EPILOG = "\n\n".join(["Exit codes:", *(f"{code} = {meaning}" for code, meaning in EXIT_CODES.items())])  # a paragraph is a line


class _Group(click.RichGroup):
    """A group that knows what a mistyped command was meant to be."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = get_close_matches(args[0], self.list_commands(ctx), n=1)
            raise click.UsageError(f"No such command {args[0]!r}." + (f" Did you mean {close[0]!r}?" if close else ""), ctx) from error


@click.group(cls=_Group, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--strict", is_flag=True, help="A plugin that is broken or looks wrong is an error, not a warning (also THREESPO_BENCH_STRICT=1).")
@click.version_option(__version__, prog_name="threespo-bench", message="%(prog)s %(version)s")
def cli(strict: bool) -> None:
    """Compare reinforcement-learning algorithms for language-model agents: same tasks, same seeds, same budget."""


_COMMANDS = (
    *(run, compare, slurm, watch, report, leaderboard, ls, show, diff, reproduce, clean, sync, credit),
    *(evaluation, play, merge, prepare, listing, info, warm_start, doctor),
)
for _module in _COMMANDS:
    cli.add_command(_module.command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script."""
    sys.exit(run_cli(arguments))


def run_cli(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Never raises and never prints a traceback, unless THREESPO_BENCH_DEBUG is set."""
    try:
        result = cli.main(args=None if arguments is None else list(arguments), prog_name="threespo-bench", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except errors.BenchError as error:
        show_error(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        note("interrupted", "yellow")
        return errors.Interrupted.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left; say nothing at exit either
        return 0
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exc()
        return 1
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        storage = errors.StorageError(f"the disk is full: {error.filename or error.strerror}", fix="free some space; a run can be resumed")
        show_error(storage)
        return storage.exit_code
    kind = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    show_error(errors.BenchError(f"unexpected failure, a defect of the program ({kind})", fix=_write_traceback()))
    return 1


def _write_traceback() -> str:
    try:
        with tempfile.NamedTemporaryFile("w", prefix="threespo-bench-", suffix=".log", delete=False, encoding="utf-8") as file:
            file.write(f"threespo-bench {__version__}\n{' '.join(sys.argv)}\n\n{traceback.format_exc()}")
        return f"please report it with the traceback in {file.name}"
    except OSError:
        return f"set {DEBUG_VARIABLE}=1 to see the traceback"
