"""The toys as a plugin that lives beside the built-in ones: its parts are toys, the report and the trackers are the real ones."""

from __future__ import annotations

from tests.runner.toy_bench import threespo_algorithms, threespo_engines, threespo_environments, threespo_models

__all__ = ["threespo_algorithms", "threespo_engines", "threespo_environments", "threespo_models"]
