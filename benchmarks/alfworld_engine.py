"""How fast the ALFWorld engine is: steps, resets, snapshots, memory; next to stock TextWorld where that is installed.

    python benchmarks/alfworld_engine.py [--games PATH] [--steps N] [--stock-steps N]

All times are CPU time of this one process. A step is: look up the admissible commands, draw one, carry it out, ask whether it is won.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from threespo_bench.contracts.environment import Task
from threespo_envs.alfred.game import Game
from threespo_envs.alfred.world import World
from threespo_envs.alfworld.environment import AlfworldConfig, AlfworldEnvironment

DEFAULT_GAMES = Path(__file__).resolve().parents[2] / "shared" / "data" / "alfworld"
EPISODE = 50


class Player(Protocol):
    """An engine as the benchmark drives it."""

    def reset(self) -> str: ...

    def step(self, command: str) -> str: ...

    def commands(self) -> list[str] | tuple[str, ...]: ...

    def won(self) -> bool: ...


class OurPlayer:
    """The engine that is measured."""

    def __init__(self, game: Game) -> None:
        self.world = World(game)
        self.reset, self.step = self.world.reset, self.world.step

    def commands(self) -> tuple[str, ...]:
        return self.world.admissible(with_help=False)

    def won(self) -> bool:
        return self.world.won


class StockPlayer:
    """TextWorld itself, as ALFWorld runs it: ``PddlEnv`` with the names that ALFWorld gives.

    Each one leaks the copy of the planner's library that it loads; closing it (``fast_downward.close_lib``) crashes the process later.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        from textworld import EnvInfos
        from textworld.envs.pddl import PddlEnv

        self.env = PddlEnv(EnvInfos(admissible_commands=True, won=True))
        with _argv_kept():
            self.env.load(data)
        self._name_entities()
        self.state: Any = None

    def _name_entities(self) -> None:
        """ALFWorld's names: the type and a number; the numbers of a type are dealt out downwards along the sorted ids."""
        infos = self.env._entity_infos
        kinds = {key: key.split("_bar_")[0] + "basin" * ("basin" in key) for key in infos if "_bar_" in key}
        left = {kind: list(kinds.values()).count(kind) for kind in kinds.values()}
        for key in sorted(kinds):
            infos[key].name = f"{kinds[key]} {left[kinds[key]]}"
            left[kinds[key]] -= 1

    def reset(self) -> str:
        with _argv_kept():
            self.state = self.env.reset()
        return self.state.feedback

    def step(self, command: str) -> str:
        self.state, _, _ = self.env.step(command)
        return self.state.feedback

    def commands(self) -> list[str]:
        return [command for command in self.state["admissible_commands"] if command != "help"]

    def won(self) -> bool:
        return bool(self.state["won"])


@contextmanager
def _argv_kept() -> Iterator[None]:
    """Its PDDL translator overwrites the arguments of the program and its standard output."""
    argv, out = sys.argv, sys.stdout
    try:
        yield
    finally:
        sys.argv, sys.stdout = argv, out


def has_textworld() -> bool:
    """TextWorld with its PDDL part can be imported."""
    return all(importlib.util.find_spec(name) for name in ("textworld", "fast_downward"))


def stock_data(line: dict[str, Any], domain: str, grammar: str) -> dict[str, Any]:
    """A packed game as TextWorld takes it."""
    return {"pddl_domain": domain, "grammar": grammar.replace("UNKNOWN GOAL.", line["task"]), "pddl_problem": line["pddl_problem"]}


def walk(player: Player, steps: int, seed: int) -> float:
    """CPU seconds for ``steps`` random admissible steps in episodes of 50; resets are not counted."""
    draw = random.Random(seed).random
    spent = 0.0
    for begin in range(0, steps, EPISODE):
        player.reset()
        start = time.process_time()
        for _ in range(min(EPISODE, steps - begin)):
            commands = player.commands()
            player.step(commands[int(draw() * len(commands))])
            player.won()
        spent += time.process_time() - start
    return spent


def cpu_microseconds(function: Callable[[], object], times: int) -> float:
    """Mean CPU time of a call."""
    start = time.process_time()
    for _ in range(times):
        function()
    return (time.process_time() - start) / times * 1e6


def resident_mib() -> float:
    """Resident memory of this process (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_ours(environment: AlfworldEnvironment, tasks: list[Task], steps: int, resets: int) -> float:
    """Print our figures; returns steps per CPU second."""
    games = [environment.load_game(task) for task in tasks]
    each = max(EPISODE, steps // len(games))
    spent = sum(walk(OurPlayer(game), each, seed) for seed, game in enumerate(games))
    rate = each * len(games) / spent
    print(f"engine                         {rate:12,.0f} steps per CPU second ({each * len(games):,} random steps in {len(games)} games)")

    live = environment.spawn()
    draw = random.Random(0).random
    observation = live.reset(tasks[0], 0)
    start = time.process_time()
    for index in range(steps // 4):
        if index % EPISODE == 0:
            observation = live.reset(tasks[index // EPISODE % len(tasks)], 0)
        commands = observation.admissible
        observation = live.step(commands[int(draw() * len(commands))]).observation
        live.anchor("state")
    plugin = (time.process_time() - start) / (steps // 4)
    print(f"through the plugin             {1 / plugin:12,.0f} steps per CPU second, with resets and a state key for each step")

    world = World(games[0])
    for command in games[0].walkthrough[:3]:
        world.step(command)
    kept = world.snapshot()
    print(f"snapshot                       {cpu_microseconds(world.snapshot, 100_000):12.2f} us")
    print(f"restore                        {cpu_microseconds(lambda: world.restore(kept), 100_000):12.2f} us")
    print(f"restore and list commands      {cpu_microseconds(lambda: (world.restore(kept), world.admissible()), 100_000):12.2f} us")
    print(f"state key                      {cpu_microseconds(world.state_key, 20_000):12.2f} us")
    print(f"reset, same game               {cpu_microseconds(world.reset, 20_000) / 1000:12.4f} ms")

    cold = AlfworldEnvironment(environment.config)
    order = iter(tasks * (1 + 500 // len(tasks)))
    print(f"reset, game not seen before    {cpu_microseconds(lambda: cold.reset(next(order), 0), len(tasks)) / 1000:12.4f} ms (reads and parses its problem)")
    order = iter(tasks * (1 + resets // len(tasks)))
    print(f"reset, other game in memory    {cpu_microseconds(lambda: live.reset(next(order), 0), 500) / 1000:12.4f} ms")
    measure_memory(environment, tasks, resets)
    return rate


def measure_memory(environment: AlfworldEnvironment, tasks: list[Task], resets: int) -> None:
    """Print how resident memory grows over many resets with steps, after the caches have filled."""
    live = environment.spawn()
    draw = random.Random(1).random

    def episodes(count: int) -> None:
        for index in range(count):
            observation = live.reset(tasks[index % len(tasks)], 0)
            for _ in range(5):
                observation = live.step(observation.admissible[int(draw() * len(observation.admissible))]).observation

    episodes(2 * len(tasks))
    before = resident_mib()
    episodes(resets)
    print(f"memory                         {before:12.1f} MiB, {resident_mib() - before:+.2f} MiB after {resets:,} more resets of 5 steps each")


def measure_stock(environment: AlfworldEnvironment, tasks: list[Task], folder: Path, steps: int) -> float:
    """Print stock TextWorld's figures for some of the same games, checking that both engines say the same; returns steps per CPU second."""
    import json
    import zlib

    domain, grammar = ((folder / name).read_text() for name in ("domain.pddl", "grammar.twl2"))
    chosen = tasks[:: max(1, len(tasks) // 4)][:4]
    each = max(1, steps // len(chosen))
    spent = load = reset = 0.0
    for seed, task in enumerate(chosen):
        start = time.process_time()
        stock = StockPlayer(stock_data(json.loads(zlib.decompress(task.payload)), domain, grammar))
        load += time.process_time() - start
        start = time.process_time()
        stock.reset()
        reset += time.process_time() - start
        ours = OurPlayer(environment.load_game(task))
        same = _Comparing(stock, ours)
        walk(same, each, seed)
        spent += same.spent
    rate = each * len(chosen) / spent
    print(f"stock TextWorld                {rate:12,.1f} steps per CPU second ({each * len(chosen)} of the same steps, {len(chosen)} games; all texts equal)")
    print(f"stock TextWorld, load / reset  {load / len(chosen) * 1000:12,.0f} ms / {reset / len(chosen) * 1000:,.0f} ms")
    return rate


class _Comparing:
    """Plays two engines side by side, times the first and stops at a difference."""

    def __init__(self, timed: Player, other: Player) -> None:
        self.timed = timed
        self.other = other
        self.spent = 0.0

    def _both(self, call: Callable[[Player], Any], counts: bool = True) -> Any:
        start = time.process_time()
        first = call(self.timed)
        self.spent += (time.process_time() - start) * counts
        second = call(self.other)
        if first != second and list(first) != list(second):
            raise SystemExit(f"the engines differ: {first!r} is not {second!r}")
        return first

    def reset(self) -> str:
        return self._both(lambda player: player.reset(), counts=False)

    def step(self, command: str) -> str:
        return self._both(lambda player: player.step(command))

    def commands(self) -> list[str]:
        return self._both(lambda player: player.commands())

    def won(self) -> bool:
        return self._both(lambda player: player.won())


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", default=os.environ.get("ALFWORLD_DATA") or str(DEFAULT_GAMES), help="folder with the packed games")
    parser.add_argument("--split", default="valid_seen")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--resets", type=int, default=10_000)
    parser.add_argument("--stock-steps", type=int, default=80)
    options = parser.parse_args()
    environment = AlfworldEnvironment(AlfworldConfig(games=options.games))
    tasks = list(environment.tasks(options.split))
    rate = measure_ours(environment, tasks, options.steps, options.resets)
    folder = Path(options.games)
    if not has_textworld():
        print('stock TextWorld                not installed (pip install "textworld[pddl]==1.7.0")')
    elif not (folder / "domain.pddl").is_file():
        print("stock TextWorld                needs domain.pddl and grammar.twl2 beside the packed games")
    else:
        stock = measure_stock(environment, tasks, folder, options.stock_steps)
        print(f"ratio                          {rate / stock:12,.0f} times as fast")


if __name__ == "__main__":
    main()
