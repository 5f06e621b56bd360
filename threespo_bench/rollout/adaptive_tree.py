"""The sampler ``adaptive_tree``: ranked backtracking depth-first search with as many samples per state as the algorithm asks for.

Every task of the iteration grows one tree. A *wave* expands the top state of every tree at once: it goes back to the state, samples
n(s) actions from the present policy, carries each out from a restored copy of the state, and hands all children to the loop, which
learns from them before the next wave. Children are then pushed so that the best-ranked one is expanded next and the others wait for the
search to backtrack (3SPO, arXiv:2606.09961, section 4; its figure 2 is a test). Where episodes live in environment workers, the children
of a wave are carried out at the same time, each from a copy of its own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np

from threespo_bench.contracts.algorithm import Algorithm
from threespo_bench.contracts.engine import Generation
from threespo_bench.contracts.environment import Task
from threespo_bench.contracts.sampler import RolloutContext, Sampler
from threespo_bench.rollout.batching import make_batch
from threespo_bench.rollout.concurrency import in_order, together
from threespo_bench.rollout.episode import Episode, EpisodeState, PlayedTurn
from threespo_bench.rollout.playing import begin, with_next_prompt
from threespo_bench.turns import TurnBatch, object_column


class TreeAlgorithm(Algorithm):
    """What the search asks of its algorithm."""

    @abstractmethod
    def samples(self, task_key: str, key: str, root: bool) -> int:
        """n(s): how many actions to sample in the state with this key; 0 gives the branch up, 1 goes on without comparison."""

    @abstractmethod
    def annotate(self, turns: TurnBatch) -> None:
        """Add the columns that :meth:`credit` reads (what is known of the states before this wave's outcomes) to ``turns.extras``."""

    @abstractmethod
    def unsolved(self, task_key: str, keys: tuple[str, ...]) -> None:
        """A search ended (its budget is spent, or nothing is left to expand) before any trajectory did; ``keys`` is the path it was following."""

    @abstractmethod
    def rank(self, turns: TurnBatch) -> np.ndarray:
        """(N,) the larger, the earlier a child is expanded; ties go to the lower sample index."""


@dataclass(frozen=True, slots=True)
class Node:
    """A state waiting on the stack.

    Attributes:
        node_id: iteration/task place/sample indices from the root; depth: turns from the root.
        keys: state keys from the root to this state. places: search keys on the same path.
    """

    node_id: str
    state: EpisodeState
    keys: tuple[str, ...]
    places: tuple[str, ...]

    @property
    def depth(self) -> int:
        return len(self.keys) - 1


@dataclass(frozen=True, slots=True)
class Child:
    """A sampled action and where it led."""

    parent: Node
    turn: PlayedTurn
    node: Node


class SearchTree:
    """The search of one task: the stack, the states already expanded, and what was spent.

    Args:
        episodes: live copies for the children; more are made when they are needed.
        root: the state that the search begins with.
    """

    def __init__(self, context: RolloutContext, task: Task, settings: AdaptiveTreeSampler, episodes: list[Episode], root: Node) -> None:
        self._context, self._task, self._settings, self._episodes = context, task, settings, episodes
        self._following = root
        self._stack = [root]
        self._expanded: set[str] = set()
        self._steps = self._leaves = 0
        self._solved = self._over = False

    @classmethod
    async def plant(cls, context: RolloutContext, place: int, task: Task, settings: AdaptiveTreeSampler) -> SearchTree:
        """A tree whose root is the beginning of ``task``."""
        episode = await begin(context, task)
        state = episode.state
        root = Node(f"{context.iteration}/{place}", state, (state.anchor,), (await episode.key(settings.search_key),))
        return cls(context, task, settings, [episode], root)

    def pop(self, algorithm: TreeAlgorithm, seen: Counter[str]) -> tuple[Node, int] | None:
        """The next state to expand and its number of samples; None when the search is over."""
        settings = self._settings
        while self._stack and self._steps < settings.env_steps_per_tree and self._leaves < settings.leaves_per_tree:
            node = self._stack.pop()
            if settings.graph_search and node.places[-1] in self._expanded:
                seen["repeated"] += 1
                continue
            count = algorithm.samples(self._task.key, node.keys[-1], root=node.depth == 0)
            seen["popped"] += 1
            seen[f"n={count}"] += 1
            if count == 0:
                seen["pruned_root"] += node.depth == 0
                continue
            self._expanded.add(node.places[-1])
            self._following = node
            return node, count
        self._finish(algorithm, seen)
        return None

    def _finish(self, algorithm: TreeAlgorithm, seen: Counter[str]) -> None:
        """Tell the algorithm, once, if the search ended without any ending."""
        if not self._over:
            self._over = True
            self._episodes.clear()  # room in the workers for those that go on
            seen["trees"] += 1
            seen["solved"] += self._solved
            if self._leaves == 0:
                algorithm.unsolved(self._task.key, self._following.keys)

    async def expand(self, node: Node, count: int) -> list[Child]:
        """Sample ``count`` actions in ``node`` and carry each out from a restored copy of the state: at the same time where there are workers."""
        context = self._context
        episodes = await self._at(node.state, count)
        prompt = episodes[0].prompt()
        seeds = [context.streams.integer("sample", node.node_id, i) for i in range(count)]
        generations = await together(context.engine.generate(prompt, seed, context.sampling) for seed in seeds)
        actions = (self._act(node, i, episodes[i % len(episodes)], generation) for i, generation in enumerate(generations))
        return [await action for action in actions] if context.workers is None else await in_order(actions)

    def charge(self, children: list[Child]) -> None:
        """Count what an expansion has spent and reached, in the order of the samples."""
        for child in children:
            generation, ended = child.turn.generation, child.node.state.ended
            self._steps += 1
            self._leaves += ended
            self._solved |= child.turn.success
            tokens, prompt_tokens = len(generation.token_ids), len(generation.prompt_ids)
            self._context.budget.charge(env_steps=1, tokens=tokens, prompt_tokens=prompt_tokens, episodes=int(ended))

    async def _at(self, state: EpisodeState, count: int) -> list[Episode]:
        """Live copies at ``state``: one for each of ``count`` children in workers, one that goes back for every child in this process."""
        context = self._context
        wanted = 1 if context.workers is None else count
        while len(self._episodes) < wanted:
            self._episodes.append(Episode(context.environment, context.max_turns, context.anchor, context.workers))
        episodes = self._episodes[:wanted]
        await together(episode.restore(state) for episode in episodes)
        return episodes

    async def _act(self, node: Node, i: int, episode: Episode, generation: Generation) -> Child:
        """The ``i``-th child of ``node``."""
        context = self._context
        if episode.state is not node.state:
            await episode.restore(node.state)
        turn = await episode.act(generation)
        context.tick()
        if context.keep_next_prompt and not turn.terminated:
            turn = with_next_prompt(context, episode, turn)
        place = await episode.key(self._settings.search_key)
        return Child(node, turn, Node(f"{node.node_id}/{i}", episode.state, (*node.keys, turn.next_anchor), (*node.places, place)))

    def push(self, children: list[Child], rank: np.ndarray) -> None:
        """Put the children that did not end on the stack, the best-ranked on top."""
        order = np.argsort(-rank, kind="stable")  # D14: among equals the lower sample index comes first
        self._stack.extend(children[i].node for i in order[::-1] if not children[i].node.state.ended)


class AdaptiveTreeSampler(Sampler):
    """Grows one search tree per task and yields wave by wave.

    Args:
        env_steps_per_tree, leaves_per_tree: a tree ends when either is reached.
        graph_search: a state already expanded in this tree is not expanded again.
        search_key: the kind of key by which the search recognises a state and its first visit on a path.
        most_samples: the largest n(s) that the algorithm can ask for, where that is known.
    """

    def __init__(self, env_steps_per_tree: int, leaves_per_tree: int, graph_search: bool, search_key: str, most_samples: int | None = None) -> None:
        self.env_steps_per_tree, self.leaves_per_tree = env_steps_per_tree, leaves_per_tree
        self.graph_search, self.search_key, self.most_samples = graph_search, search_key, most_samples
        self._seen: Counter[str] = Counter()

    async def collect(self, context: RolloutContext, algorithm: Algorithm) -> AsyncIterator[TurnBatch]:
        """One batch per wave; its rows are the children, grouped by the state they were sampled in."""
        assert isinstance(algorithm, TreeAlgorithm)
        self._seen.clear()
        trees = await together(SearchTree.plant(context, place, task, self) for place, task in enumerate(context.tasks))
        while not context.budget.exhausted():
            popped = [(tree, node) for tree in trees if (node := tree.pop(algorithm, self._seen)) is not None]
            if not popped:
                return
            families = await in_order(tree.expand(node, count) for tree, (node, count) in popped)
            for (tree, _), children in zip(popped, families, strict=True):  # only now: which child was ready first carries no meaning
                tree.charge(children)
            turns = _wave(families)
            algorithm.annotate(turns)
            rank = algorithm.rank(turns)  # before the loop writes this wave's outcomes into the statistics (D10)
            bounds = np.cumsum([0, *map(len, families)])
            yield turns
            for (tree, _), children, start, end in zip(popped, families, bounds, bounds[1:], strict=False):
                tree.push(children, rank[start:end])

    def most_env_steps(self, tasks: int, max_turns: int) -> int | None:
        """A tree that is one step short of its limit expands one more state."""
        return None if self.most_samples is None else tasks * (self.env_steps_per_tree - 1 + self.most_samples)

    def diagnostics(self) -> dict[str, float]:
        """What the last iteration's search did: states popped, given up and repeated, and the distribution of n(s)."""
        popped = max(self._seen["popped"], 1)
        counts = {int(name[2:]): number for name, number in self._seen.items() if name.startswith("n=")}
        row = {
            "tree/states_popped": float(self._seen["popped"]),
            "tree/repeated_states": float(self._seen["repeated"]),
            "tree/truncated_share": counts.get(0, 0) / popped,
            "tree/single_sample_share": counts.get(1, 0) / popped,
            "tree/solved_share": self._seen["solved"] / max(self._seen["trees"], 1),
            "tree/pruned_roots": float(self._seen["pruned_root"]),
            "tree/mean_samples": sum(n * number for n, number in counts.items()) / popped,
        }
        return row | {f"tree/samples_{n}": number / popped for n, number in sorted(counts.items())}


def _wave(families: list[list[Child]]) -> TurnBatch:
    """The children of all expanded states as one batch."""
    children = [child for family in families for child in family]
    ended = [child.node.state.ended for child in children]
    return make_batch(
        [child.turn for child in children],
        group_ids=[child.parent.node_id for child in children],
        traj_ids=[child.node.node_id for child in children],
        extras={
            "first_on_path": np.array([child.node.places[-1] not in child.parent.places for child in children]),
            "path": object_column([child.node.keys if over else () for child, over in zip(children, ended, strict=True)]),
        },
    )
