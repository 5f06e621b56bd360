"""cDPO: DPO that takes a share of its labels to be wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

from threespo_algorithms.dpo import DPO, DPOConfig
from threespo_bench.contracts.objective import Preference


@dataclass
class CDPOConfig(DPOConfig):
    """Options of cDPO: those of DPO."""

    objective: Preference = field(default_factory=lambda: Preference(label_smoothing=0.1))  # type: ignore[assignment]


class CDPO(DPO):
    """Conservative Direct Preference Optimization, online."""

    Config = CDPOConfig
    title = "Conservative Direct Preference Optimization"
    source = "DPO with smoothed labels: https://ericmitchell.ai/cdpo.pdf; DPO: arXiv:2305.18290"
    notes = (
        "-(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h) on the pairs of DPO, e = objective.label_smoothing: where returns are noisy, the better "
        "trajectory is not always the better behaviour. The slope changes its sign at beta h = log((1 - e) / e), so margins stay finite."
    )
    name = "cdpo"
