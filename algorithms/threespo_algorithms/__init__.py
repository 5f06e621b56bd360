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
        AlgorithmEntry(
            name="hgpo",
            target="threespo_algorithms.hgpo:HGPO",
            summary="HGPO: turns compared at several depths of their recent history, deeper ones weigh more",
            defaults="threespo_algorithms:hgpo.yaml",
            tags=("grouped", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="opo",
            target="threespo_algorithms.opo:OPO",
            summary="OPO: returns less a length-weighted mean of the group",
            defaults="threespo_algorithms:opo.yaml",
            tags=("grouped", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="ppo",
            target="threespo_algorithms.ppo:PPO",
            summary="PPO: a critic and generalised advantages over the tokens of a trajectory",
            defaults="threespo_algorithms:ppo.yaml",
            tags=("critic", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="ppo_row",
            target="threespo_algorithms.ppo:PPORow",
            summary="PPO as in verl-agent: a critic, each turn a sequence of its own with the return of the episode",
            defaults="threespo_algorithms:ppo_row.yaml",
            tags=("critic", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="ppo_turn",
            target="threespo_algorithms.ppo:PPOTurn",
            summary="PPO: a critic and generalised advantages over the turns of a trajectory",
            defaults="threespo_algorithms:ppo_turn.yaml",
            tags=("critic", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="progpo",
            target="threespo_algorithms.progpo:ProGPO",
            summary="ProGPO, a reconstruction: comparison after identical histories, change of a potential where there is no peer",
            defaults="threespo_algorithms:progpo.yaml",
            tags=("grouped", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="reinforce_pp",
            target="threespo_algorithms.reinforce_pp:ReinforcePP",
            summary="REINFORCE++: discounted returns of tokens, whitened over the batch",
            defaults="threespo_algorithms:reinforce_pp.yaml",
            tags=("post-trajectory",),
        ),
        AlgorithmEntry(
            name="reinforce_pp_baseline",
            target="threespo_algorithms.reinforce_pp_baseline:ReinforcePPBaseline",
            summary="REINFORCE++-baseline: returns less the group's mean, whitened over the tokens of the batch",
            defaults="threespo_algorithms:reinforce_pp_baseline.yaml",
            tags=("grouped", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="remax",
            target="threespo_algorithms.remax:ReMax",
            summary="ReMax: returns less that of a greedy episode of the same task",
            defaults="threespo_algorithms:remax.yaml",
            tags=("post-trajectory",),
        ),
        AlgorithmEntry(
            name="rloo",
            target="threespo_algorithms.rloo:RLOO",
            summary="RLOO: returns less the mean of the other rollouts of the task",
            defaults="threespo_algorithms:rloo.yaml",
            tags=("grouped", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="sapo_autoreg",
            target="threespo_algorithms.sapo_autoreg:SAPOAutoreg",
            summary="SAPO: single rollouts, values of states and actions read from two reserved tokens of the policy itself",
            defaults="threespo_algorithms:sapo_autoreg.yaml",
            tags=("value-tokens", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="spo_segment_chain",
            target="threespo_algorithms.spo_segment_chain:SegmentChain",
            summary="SPO-chain: segments between uncertain places, valued by fresh continuations; uncertain tokens are trained",
            defaults="threespo_algorithms:spo_segment_chain.yaml",
            tags=("monte-carlo", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="spo_segment_tree",
            target="threespo_algorithms.spo_segment_tree:SegmentTree",
            summary="SPO-tree: a tree of segments of turns; an edge's advantage is its gain in value, the mean over what grows from it",
            defaults="threespo_algorithms:spo_segment_tree.yaml",
            tags=("tree", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="spo_stream",
            target="threespo_algorithms.spo_stream:SPOStream",
            summary="SPO: single rollouts compared with a running success rate of the task that fades as the policy drifts",
            defaults="threespo_algorithms:spo_stream.yaml",
            tags=("single-stream", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="spopp",
            target="threespo_algorithms.spopp:SPOPlusPlus",
            summary="SPO++: single rollouts as they complete, the baseline frozen at dispatch, whitening over action tokens",
            defaults="threespo_algorithms:spopp.yaml",
            tags=("single-stream", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="t2spo",
            target="threespo_algorithms.t2spo:T2SPO",
            summary="T2SPO: credit for turns that bring success nearer, as TabPFN predicts from past successes",
            defaults="threespo_algorithms:t2spo.yaml",
            extra="tabpfn",
            tags=("grouped", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="t2spo_knn",
            target="threespo_algorithms.t2spo:T2SPOKNN",
            summary="T2SPO with nearest neighbours in the place of TabPFN",
            defaults="threespo_algorithms:t2spo.yaml",
            tags=("grouped", "post-trajectory"),
        ),
        AlgorithmEntry(
            name="threespo_ppo",
            target="threespo_algorithms.threespo_ppo:ThreeSPOPPO",
            summary="3SPO-PPO: the search and transition reward of 3SPO with a critic in place of the comparison of siblings",
            aliases=("3spo_ppo",),
            defaults="threespo_algorithms:threespo_ppo.yaml",
            tags=("tree", "critic", "post-step"),
        ),
        AlgorithmEntry(
            name="vineppo",
            target="threespo_algorithms.vineppo:VinePPO",
            summary="VinePPO: turns judged by the values before and after them, means over fresh continuations",
            defaults="threespo_algorithms:vineppo.yaml",
            tags=("monte-carlo", "post-trajectory"),
        ),
    ]
