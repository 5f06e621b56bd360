"""The command line. One module per command; heavy libraries are imported by the commands that need them, when they run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from threespo_bench.errors import PluginError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the console script. An installation that lacks what the command line itself is made of gets a line instead of a traceback."""
    try:
        from threespo_bench.cli import app
    except ImportError as error:
        if (error.name or "threespo").startswith("threespo"):
            raise
        print(f"error: the installation of threespo-bench is damaged: {error}", file=sys.stderr)
        print(f"  fix: {sys.executable} -m pip install threespo-bench, or in a checkout of it: {sys.executable} -m pip install -e .", file=sys.stderr)
        sys.exit(PluginError.exit_code)
    app.main(arguments)
