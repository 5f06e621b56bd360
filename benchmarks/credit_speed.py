"""How fast turns are credited: the implementation next to plain Python loops over rows, and how time and memory grow with the batch.

    python benchmarks/credit_speed.py [--turns N ...] [--loop-turns N] [--repeat N] [--parts WORD ...] [--own-texts]

Two loops compute the same formulas (see ``credit_loops.py``), and every result is compared with theirs. All times are CPU time of this one
process. Every call gets a batch that has not been computed with, so nothing is remembered from the one before.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import credit_loops as loops
import numpy as np

from threespo_algorithms.gigpo import GiGPO, GiGPOConfig
from threespo_algorithms.group_statistics import discounted_returns, group_statistics, normalise
from threespo_algorithms.grpo import GRPO, GRPOConfig
from threespo_algorithms.hgpo import HGPO, HGPOConfig
from threespo_algorithms.observation_history import recent_history_keys, time_order
from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.turns import TurnBatch, object_column

SIZES = (1_000, 10_000, 131_072, 1_000_000)
GROUP_SIZE, TOKENS, TEXTS = 8, 16, 64
TOLERANCE = 1e-9


# ---- batches


def synthetic_batch(turns: int, seed: int = 0, own_texts: bool = False) -> TurnBatch:
    """Groups of 8 episodes of 5 to 50 turns; half of them end with the reward 10. States are texts of 64 kinds, early ones more frequent.

    Equal texts are one object, as in batches that come from a sampler or a file; with ``own_texts`` each row has texts of its own, as in columns that
    somebody made otherwise. Besides what credit is computed from there are the tokens and their log-probabilities, which every sampler writes.
    """
    column = partial(np.array, dtype=object) if own_texts else object_column
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 51, turns // 5 + 1)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), turns)) + 1]
    episode = np.repeat(np.arange(len(lengths)), lengths)
    step = np.arange(len(episode)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    last = step == np.repeat(lengths, lengths) - 1
    reward = np.where(last & (rng.random(len(episode)) < 0.5), 10.0, 0.0)
    state = (TEXTS * rng.random(len(episode)) ** 2).astype(int)
    episode, step, reward, state = (values[:turns] for values in (episode, step, reward, state))
    return TurnBatch(
        group_id=column([f"0/{number // GROUP_SIZE}" for number in episode.tolist()]),
        traj_id=column([f"0/{number // GROUP_SIZE}/{number % GROUP_SIZE}" for number in episode.tolist()]),
        step_id=step,
        step_reward=reward,
        anchor_obs=column([text_of_state(number) for number in state.tolist()]),
        action_valid=rng.random(turns) < 0.9,
        response_mask=np.arange(TOKENS) < rng.integers(4, TOKENS + 1, turns)[:, None],
        response_ids=np.ones((turns, TOKENS), np.int32),
        old_log_probs=np.full((turns, TOKENS), -1.0),
    )


def text_of_state(number: int) -> str:
    """About a hundred characters; neighbours differ in few of them."""
    return f"You arrive at shelf {number // 8}. On the shelf {number // 8}, you see a book {number % 4}, a mug {number % 8} and a pencil {number}."


# ---- what is measured


@dataclass(frozen=True)
class Loop:
    """A computation by loops, and the largest batch that it is asked for."""

    run: Callable[[TurnBatch], Any]
    limit: int = 131_072


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Equal up to rounding."""
    return ours.shape == theirs.shape and bool(np.abs(ours - theirs).max() <= TOLERANCE)


def same_groups(ours: np.ndarray, theirs: Sequence[Any]) -> bool:
    """Both put the same rows together."""
    pairs = set(zip(ours.tolist(), theirs, strict=True))
    return len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})


def same_histories(ours: np.ndarray, spelled: list[dict[int, tuple[Any, ...]]]) -> bool:
    """The same at every depth, on the rows that have as many turns before them."""
    return all(len(key_of) == (keys >= 0).sum() and same_groups(keys[list(key_of)], list(key_of.values())) for keys, key_of in zip(ours, spelled, strict=True))


@dataclass(frozen=True)
class Part:
    """One computation: here, by plain loops, in the form of published code where there is one, and how equal results are recognised."""

    name: str
    ours: Callable[[TurnBatch], np.ndarray]
    loop: Loop
    published: Loop | None = None
    same: Callable[[Any, Any], bool] = close


@lru_cache
def values_of(turns: int) -> np.ndarray:
    """(N,) values that are not equal inside groups."""
    return np.sin(np.arange(turns))


def our_group_statistics(turns: TurnBatch) -> np.ndarray:
    """(N,) the values relative to their task."""
    values = values_of(len(turns))
    return normalise(values, group_statistics(values, turns.codes("group_id"), turns.real), by_std=True, epsilon=loops.EPSILON)


def our_history_keys(turns: TurnBatch) -> np.ndarray:
    """(depth, N) keys of the last observations."""
    return recent_history_keys(time_order(turns), turns.codes("group_id", "anchor_obs"), loops.DEPTH)


def whole(algorithm: Algorithm) -> Callable[[TurnBatch], np.ndarray]:
    """The advantages of an algorithm."""
    return lambda turns: algorithm.credit(turns).advantages


PARTS = (
    Part(
        "group statistics",
        our_group_statistics,
        Loop(lambda turns: loops.loop_group_statistics(values_of(len(turns)), turns.group_id)),
        Loop(lambda turns: loops.published_group_statistics(values_of(len(turns)), turns.group_id)),
    ),
    Part(
        "discounted returns",
        partial(discounted_returns, gamma=loops.GAMMA),
        Loop(loops.loop_discounted_returns),
        Loop(loops.published_discounted_returns, 10_000),  # quadratic
    ),
    Part("state groups", lambda turns: turns.codes("group_id", "anchor_obs"), Loop(loops.loop_states), Loop(loops.published_states), same_groups),
    Part("history keys, 3 depths", our_history_keys, Loop(loops.loop_history_keys), same=same_histories),
    Part("credit of grpo", whole(GRPO(GRPOConfig())), Loop(loops.loop_grpo), Loop(loops.published_grpo)),
    Part("credit of gigpo", whole(GiGPO(GiGPOConfig())), Loop(loops.loop_gigpo), Loop(loops.published_gigpo, 10_000)),
    Part("credit of hgpo", whole(HGPO(HGPOConfig())), Loop(loops.loop_hgpo)),
    Part(
        "credit of gigpo, alike texts",
        whole(GiGPO(GiGPOConfig(similarity=True, similarity_threshold=loops.THRESHOLD))),
        Loop(partial(loops.loop_gigpo, states=loops.loop_similar_states), 10_000),  # every pair of texts of every task
    ),
)


def seconds(function: Callable[[TurnBatch], Any], turns: TurnBatch) -> tuple[float, Any]:
    """CPU seconds of one call on a new batch, and its result."""
    fresh = replace(turns)
    gc.collect()
    start = time.process_time()
    result = function(fresh)
    return time.process_time() - start, result


def peak_shares(parts: Sequence[Part], size: int, own_texts: bool) -> list[float]:
    """The most memory that each call takes besides its batch, its result included, in sizes of the batch."""
    gc.collect()
    tracemalloc.start()
    turns = synthetic_batch(size, own_texts=own_texts)
    own = tracemalloc.get_traced_memory()[0]
    shares = []
    for part in parts:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        part.ours(replace(turns))
        shares.append((tracemalloc.get_traced_memory()[1] - before) / own)
    tracemalloc.stop()
    return shares


def compare(part: Part, turns: TurnBatch, loop_turns: int, repeat: int) -> float:
    """Print the times of one computation; returns the least of ours. Raises SystemExit if a loop gives another result."""
    ours, result = seconds(part.ours, turns)
    for _ in range(repeat - 1):
        del result  # the next one takes its memory
        spent, result = seconds(part.ours, turns)
        ours = min(ours, spent)
    line = f"{part.name:30}{ours * 1000:10,.1f}"
    for loop in (part.loop, part.published):
        if loop is None or len(turns) > min(loop_turns, loop.limit):
            line += f"{'-':>14}{'-':>8}"
            continue
        spent, expected = seconds(loop.run, turns)
        if spent < 1:
            spent = min(spent, *(seconds(loop.run, turns)[0] for _ in range(repeat)))
        if not part.same(result, expected):
            raise SystemExit(f"{part.name}: a loop gives something else for {len(turns):,} turns")
        line += f"{spent * 1000:14,.0f}{spent / ours:8,.0f}"
    print(line, flush=True)
    return ours


def measure(parts: Sequence[Part], sizes: Sequence[int], loop_turns: int, repeat: int, own_texts: bool = False) -> None:
    """Print a table of ratios for each size, then the growth of time and memory."""
    best: dict[str, list[float]] = {part.name: [] for part in parts}
    for size in sizes:
        turns = synthetic_batch(size, own_texts=own_texts)
        print(f"\n{size:,} turns, milliseconds\n{'':30}{'here':>10}{'plain loop':>14}{'ratio':>8}{'published':>14}{'ratio':>8}")
        for part in parts:
            best[part.name].append(compare(part, turns, loop_turns, repeat))
    head = "".join(f"{size:>12,}" for size in sizes)
    print(f"\n{'seconds':30}{head}")
    for name, times in best.items():
        print(f"{name:30}" + "".join(f"{spent:12.4f}" for spent in times))
    print(f"\n{'peak memory, times the input':30}{head}")
    shares = [peak_shares(parts, size, own_texts) for size in sizes]
    for part, *of_part in zip(parts, *shares, strict=True):
        print(f"{part.name:30}" + "".join(f"{share:12.2f}" for share in of_part))


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, nargs="+", default=SIZES)
    parser.add_argument("--loop-turns", type=int, default=131_072, help="the largest batch that the loops run on")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--parts", nargs="+", default=[""], metavar="WORD", help="only computations whose name has one of these words")
    parser.add_argument("--own-texts", action="store_true", help="no two rows share the object of an id or a text")
    options = parser.parse_args()
    chosen = [part for part in PARTS if any(word in part.name for word in options.parts)]
    measure(chosen, options.turns, options.loop_turns, options.repeat, options.own_texts)


if __name__ == "__main__":
    main()
