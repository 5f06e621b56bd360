"""IPO: the pairs of DPO, with a squared loss that aims at a finite margin."""

from __future__ import annotations

from dataclasses import dataclass, field

from threespo_algorithms.dpo import DPO, DPOConfig
from threespo_bench.contracts.objective import Preference


@dataclass
class IPOConfig(DPOConfig):
    """Options of IPO: those of DPO."""

    objective: Preference = field(default_factory=lambda: Preference(loss="ipo"))  # type: ignore[assignment]


class IPO(DPO):
    """Identity Preference Optimization, online."""

    Config = IPOConfig
    title = "Identity Preference Optimization"
    source = "arXiv:2310.12036"
    notes = (
        "(h - 1 / (2 beta))^2 on the pairs of DPO: the log-ratio of the pair is drawn to 1 / (2 beta) and not beyond. h is a sum over tokens; with "
        "objective.average_log_prob it is a mean, as some libraries have it."
    )
    name = "ipo"
