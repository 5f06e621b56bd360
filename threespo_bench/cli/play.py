"""``threespo-bench play``: watch a policy play a task step by step, or play it yourself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from threespo_bench.cli.output import console, load_host, note, warn
from threespo_bench.errors import UsageError, suggest

if TYPE_CHECKING:
    from threespo_bench.contracts.environment import Task
    from threespo_bench.policies.playing import Player, Shown

_EPILOG = """\
CHECKPOINT is what `eval` takes. The seed is that of `eval`: the same task with the same seed is the same episode. Where the policy is of a
3SPO run, every state has its score S(s) and the number n(s) of samples that the search would take there. With `--interactive`, Enter plays the
policy's next step, anything else is carried out as your command, and q leaves; without a terminal the lines are read from standard input, and
at its end the policy plays on.

threespo-bench play household-tiny --task 3

threespo-bench play runs/default/3spo-household-seed0 --task household/valid_unseen/00017 --seed 123

threespo-bench play smollm2 --env alfworld --interactive env.games=FOLDER env.template=verl_agent rollout.max_new_tokens=128
"""


@click.command("play", epilog=_EPILOG)
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--env", default="", metavar="NAME", help="Environment; by default that of the run or of the named model, else household.")
@click.option("--split", metavar="NAME", help="Split of the environment, by default the one of evaluation.")
@click.option("--task", "wanted", default="0", show_default=True, metavar="ID|N", help="A task's key, a part of it, or its place in the split, from 0.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the sampling noise.")
@click.option("--episodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="So many tasks, from the chosen one on.")
@click.option("--temperature", type=click.FloatRange(min=0), metavar="T", help="Sampling temperature; by default that of evaluation.")
@click.option("--base", metavar="MODEL", help="Folder or name of the model that a LoRA adapter belongs to.")
@click.option("--interactive", is_flag=True, help="Wait before every step, and take commands.")
@click.pass_context
def command(
    context: click.Context,
    checkpoint: str,
    overrides: tuple[str, ...],
    env: str,
    split: str | None,
    wanted: str,
    seed: int,
    episodes: int,
    temperature: float | None,
    base: str | None,
    interactive: bool,
) -> None:
    """Play tasks step by step: observation, admissible actions, thought, action, what was read from it, reward."""
    host = load_host(context)
    from threespo_bench.policies import opened, settings, source
    from threespo_bench.policies.playing import Player
    from threespo_bench.vocabulary import unknown_words

    found = source.find(checkpoint, host, base, warn)
    config = settings.configure(found, host, env, overrides, note)
    if temperature is not None:
        config.evaluation.temperature = temperature
    environment = opened.open_environment(config, host)
    tasks = opened.tasks_of(environment, split or config.evaluation.split, None, config.env.name)
    first = _place(tasks, wanted)
    ask = _asker() if interactive else None
    import asyncio

    with opened.open_policy(found, config, host, environment) as policy, asyncio.Runner() as loop:
        if unknown := unknown_words(Path(policy.engine.model), environment, tasks[first], policy.max_turns):
            warn(unknown)
        for task in tasks[first : first + episodes]:
            if not _play(Player(policy, task, seed, loop), task, ask):
                return


def _place(tasks: Sequence[Task], wanted: str) -> int:
    """The place of the task that a user named. Raises UsageError if it is none or several."""
    keys = [task.key for task in tasks]
    if wanted in keys:
        return keys.index(wanted)
    if wanted.isdecimal():
        if int(wanted) >= len(keys):
            raise UsageError(f"--task {wanted}: the split has only {len(keys)} tasks", fix=f"give 0 to {len(keys) - 1}, or a task's key")
        return int(wanted)
    places = [place for place, key in enumerate(keys) if wanted in key]
    if len(places) != 1:
        raise UsageError(
            f"--task {wanted}: {len(places)} tasks of the split have this in their key", fix=suggest(wanted, keys if len(keys) <= 20 else keys[:3])
        )
    return places[0]


def _play(player: Player, task: Task, ask: Callable[[], str | None] | None) -> bool:
    """One episode on the screen; False if the user left."""
    _line("task", f"{task.key} ({task.kind})" if task.kind else task.key, "bold")
    reading = ask
    while not player.ended:
        before = player.look()
        _line(f"[{before.number}] sees", before.observation, "cyan")
        if before.admissible:
            _line("can", " | ".join(before.admissible), "dim")
        if before.score is not None:
            _line("state", before.score, "magenta")
        typed = None if reading is None else reading()
        if typed == "q":
            note("left")
            return False
        if reading is not None and typed is None:  # the input has ended: the policy plays on
            reading = None
        _show_step(player.step(typed or ""))
    _line("end", player.result(), "bold green" if player.won else "bold yellow")
    return True


def _show_step(shown: Shown) -> None:
    if shown.thought:
        _line("thinks", shown.thought, "dim")
    if shown.response is not None:
        _line("says", json.dumps(shown.response, ensure_ascii=False))
    _line("does", shown.command + ("" if shown.verdict == "valid" else f"  ({shown.verdict})"), "bold" if shown.verdict == "valid" else "bold red")
    _line("reward", f"{shown.reward:g}")


def _line(label: str, text: str, style: str = "") -> None:
    from rich.text import Text

    out = console()
    if not out.is_terminal:
        click.echo(f"{label:<9} {' '.join(text.split())}")
        return
    out.print(Text(f"{label:<9} ", style="dim") + Text(text, style=style))


def _asker() -> Callable[[], str | None]:
    """Reads a line: with a prompt on a terminal, without one elsewhere; None at the end of the input."""
    prompt = "          [Enter] the policy, or a command, or q: " if sys.stdin.isatty() and sys.stdout.isatty() else ""

    def ask() -> str | None:
        try:
            return input(prompt).strip()
        except EOFError:
            return None

    return ask
