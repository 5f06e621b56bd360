"""``python -m threespo_bench``."""

from threespo_bench.cli import main

main()
