"""The command line. One module per command; heavy libraries are imported by the commands that need them, when they run."""

from threespo_bench.cli.app import main

__all__ = ["main"]
