"""The prompts: versioned templates that turn a :class:`PromptContext` into chat messages.

``verl_agent`` lays a turn out as the ALFWorld prompts of verl-agent do (role, task, recent history, observation, admissible
commands, think-then-act contract), in our own wording. ``compact`` is for very small word-level models: a memory of what was read
so far, in a fixed order of sections, one token a word. Both are made of the texts of the episode and of nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from threespo_bench.contracts.environment import Message, PromptContext
from threespo_envs.alfred.memory import TASK_MARK, Memory, Wish, kind_of, read, read_wish
from threespo_envs.templates import Template, of_template
from threespo_envs.words import split_words

_LONGEST_COMMAND = 8
_LONGEST_TEXT = 24


def render(context: PromptContext, template: str = "compact", history_length: int | None = None, list_admissible: bool | None = None) -> list[Message]:
    """The prompt for the present turn by the template of that name in :data:`TEMPLATES`; see :meth:`Template.render`."""
    return template_named(template).render(context, history_length, list_admissible)


def template_named(name: str) -> Template:
    """The template of that name; raises UsageError for an unknown one."""
    return of_template(TEMPLATES, name)


# ---- compact


def _compact(context: PromptContext, history_length: int, list_admissible: bool) -> str:
    """Sections from general to decisive, so that the goal, the hand and the present place are always nearest to the answer."""
    memory = Memory.of_context(context)
    wish = read_wish(memory.sentence)
    parts: list[str] = []
    if list_admissible:
        parts += ["can", " , ".join(command for command in context.observation.admissible if command != "help"), "."]
    searched = memory.searched
    parts += ("new", *([place for place in memory.places if place not in searched] or ("nothing",)))
    parts += (". old", *([place for place in memory.places if place in searched] or ("nothing",)), ".")
    if history_length > 0:
        _add_last_commands(parts, context, history_length)
    _add_unread_text(parts, context.observation.text)
    parts.append("see")
    parts += memory.contents.get(memory.at) or ("unknown" if memory.at and memory.at not in searched else "nothing",)
    parts.append(".")
    _add_finds(parts, memory, wish)
    parts.append("goal")
    if wish is None:
        parts += split_words(memory.sentence)
    else:
        parts += (wish.verb, wish.thing, "with" if wish.verb == "look" else "in", wish.place)
    parts += (". hold", memory.holding or "nothing", *memory.states.get(memory.holding, ()))
    parts += (". at", memory.at or "middle", memory.doors.get(memory.at, ""))
    return " ".join(filter(None, parts)) + " ."


def _add_last_commands(parts: list[str], context: PromptContext, count: int) -> None:
    history = context.history
    parts.append("last")
    if not history:
        parts.append("nothing")
    first = max(0, len(history) - count)
    for index in range(first, len(history)):
        if index > first:
            parts.append(",")
        answer = history[index + 1].observation if index + 1 < len(history) else context.observation.text
        parts += split_words(history[index].command)[:_LONGEST_COMMAND]
        if read(answer).kind == "nothing":
            parts.append("failed")
    parts.append(".")


def _add_unread_text(parts: list[str], text: str) -> None:
    """The present observation itself, where the memory has no place for what it says."""
    if read(text).kind == "other":
        parts.append("say")
        parts += split_words(text.strip().rstrip("."))[:_LONGEST_TEXT]
        parts.append(".")


def _add_finds(parts: list[str], memory: Memory, wish: Wish | None) -> None:
    """Where wanted things (and the lamp) were last seen, which of two are where they should be, and which are here.

    What is elsewhere must be walked to and what is here can be taken at once, so the two are told apart by the first word.
    """
    if wish is None:
        return
    home = _home_of_two(memory, wish) if wish.verb == "two" else ""
    prefixes = (wish.thing + " ", wish.place + " ") if wish.verb == "look" else (wish.thing + " ",)
    found: list[str] = []
    done: list[str] = []
    here: list[str] = []
    for place, things in memory.contents.items():
        for thing in things:
            if thing.startswith(prefixes):
                states = memory.states.get(thing, ())
                if place == home:
                    done += (thing, *states, "in", place)
                elif place == memory.at:
                    here += (thing, *states)
                else:
                    found += (thing, *states, "in", place)
    if found:
        parts += ("found", *found, ".")
    if done:
        parts += ("done", *done, ".")
    if here:
        parts += ("here", *here, ".")


def _home_of_two(memory: Memory, wish: Wish) -> str:
    """The place of the wanted kind that has most of the wanted things; empty if none has any."""
    home, most = "", 0
    for place, things in memory.contents.items():
        if kind_of(place) == wish.place:
            count = sum(kind_of(thing) == wish.thing for thing in things)
            if count > most:
                home, most = place, count
    return home


# ---- verl_agent

_ROLE = "You are an agent in a simulated home, the ALFRED household, and you act by typing commands."
_CONTRACT = (
    "It is your move. Work out first, step by step, what the situation is and what to do next, and write this between <think> and "
    "</think>. Then pick exactly one of the commands listed above and write it between <action> and </action>."
)


def _verl_agent(context: PromptContext, history_length: int, list_admissible: bool) -> str:
    taken = len(context.history)
    shown = context.history[max(0, taken - history_length) :] if history_length > 0 else ()
    blocks = [_ROLE]
    if taken:
        blocks.append(f"Your task: {_task_sentence(context)}")
    if shown:
        first = taken - len(shown) + 1
        pairs = [f"[Observation {number}: '{turn.observation}', Action {number}: '{turn.command}']" for number, turn in enumerate(shown, start=first)]
        blocks.append(f"Steps taken so far: {taken}. The latest {len(shown)}, each with what you saw before it:\n" + "\n".join(pairs))
        blocks.append(f"This is step {taken + 1}. What you see now: {context.observation.text}")
    else:
        blocks.append(f"What you see now: {context.observation.text}")
    if list_admissible:
        blocks.append(_bracketed(context.observation.admissible))
    blocks.append(_CONTRACT if list_admissible else _CONTRACT.replace("one of the commands listed above", "one command"))
    return "\n\n".join(blocks)


def _task_sentence(context: PromptContext) -> str:
    first = context.history[0].observation if context.history else context.observation.text
    return first.partition(TASK_MARK)[2].strip()


def _bracketed(admissible: Sequence[str]) -> str:
    listed = "\n".join(f"'{command}'" for command in admissible if command != "help")
    return f"The commands that you can use now:\n[{listed}]"


TEMPLATES: dict[str, Template] = {
    "compact": Template(version="compact-2", lists_admissible=False, history_length=0, max_new_tokens=16, write=_compact),
    "verl_agent": Template(version="verl_agent-1", lists_admissible=True, history_length=2, max_new_tokens=512, write=_verl_agent),
}
"""All templates by name."""
