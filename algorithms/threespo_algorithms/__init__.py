"""The built-in algorithms: one readable file each, with a YAML of the same stem for its defaults and presets."""

from __future__ import annotations

from threespo_bench.contracts.entries import AlgorithmEntry
from threespo_bench.hookspecs import hookimpl


@hookimpl
def threespo_algorithms() -> list[AlgorithmEntry]:
    return [
        AlgorithmEntry(
            name="threespo",
            target="threespo_algorithms.threespo:ThreeSPO",
            summary="3SPO: state-score allocation of rollouts in a backtracking search, group comparison at every expanded state",
            aliases=("3spo",),
            defaults="threespo_algorithms:threespo.yaml",
            tags=("tree", "post-step"),
        ),
        AlgorithmEntry(
            name="gigpo",
            target="threespo_algorithms.gigpo:GiGPO",
            summary="GiGPO: group-relative advantages of episodes and of the actions taken in a repeated state",
            defaults="threespo_algorithms:gigpo.yaml",
            tags=("grouped", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="grpo",
            target="threespo_algorithms.grpo:GRPO",
            summary="GRPO: group-relative advantages of whole episodes (Dr.GRPO as an option)",
            defaults="threespo_algorithms:grpo.yaml",
            tags=("grouped", "post-trajectory"),
        ),
    ]
