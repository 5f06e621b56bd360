"""The prompts: versioned templates that turn a :class:`PromptContext` into chat messages.

``verl_agent`` lays a turn out as the WebShop prompts of verl-agent do (role, task, recent history, page, possible actions, think-then-act
contract), in our own wording. ``compact`` is for very small word-level models: what was read so far, in a fixed order of sections, one token a
word. Both are made of the texts and commands of the episode and of nothing else.
"""

from __future__ import annotations

from math import ceil, inf

from threespo_bench.contracts.environment import Message, Observation, PromptContext
from threespo_envs.templates import Template, of_template
from threespo_envs.webshop import pages
from threespo_envs.webshop.commands import BUTTONS, shorten
from threespo_envs.webshop.memory import Listed, Memory, has_word, read, words_of
from threespo_envs.webshop.pages import INSTRUCTION, SEPARATOR, SUB_PAGES, label_of
from threespo_envs.words import split_words

_LONGEST_TITLE = 16
_LONGEST_QUERY = 16
_LONGEST_TEXT = 64
_MOST_VALUES = 12
_MOST_LEFT = 3
_PLACES = ("search", "results", "item", *SUB_PAGES, "nowhere")

COMPACT_WORDS: tuple[str, ...] = tuple(
    sorted(
        {
            *BUTTONS,
            *_PLACES,
            *split_words("search open choose can last tried left page of seen over dollars title lacks nothing chosen find with under at , . :"),
            *map(str, range(pages.PER_PAGE + 1)),
        }
    )
)
"""The words that the ``compact`` prompts and commands have besides those of instructions, products and prices."""


def render(context: PromptContext, template: str = "compact", history_length: int | None = None, list_admissible: bool | None = None) -> list[Message]:
    """The prompt for the present turn by the template of that name in :data:`TEMPLATES`; see :meth:`Template.render`."""
    return template_named(template).render(context, history_length, list_admissible)


def template_named(name: str) -> Template:
    """The template of that name; raises UsageError for an unknown one."""
    return of_template(TEMPLATES, name)


# ---- compact


def _compact(context: PromptContext, history_length: int, list_admissible: bool) -> str:
    """Sections from general to decisive, so that the wish and the present page are always nearest to the answer."""
    memory = Memory.of_context(context)
    parts: list[str] = []
    if list_admissible:
        commands = [shorten(command, context.observation) for command in context.observation.admissible]
        parts += ["can", " , ".join(commands) or "search", "."]
    if history_length > 0:
        _add_last_commands(parts, context, history_length)
    if memory.page == "results":
        _add_results(parts, memory)
    elif memory.page == "item":
        _add_item(parts, memory)
    elif memory.now.page == "sub":
        _add_sub_page(parts, memory)
    elif memory.page == "search":
        _add_past(parts, memory)
    else:
        parts += (*split_words(context.observation.text)[:_LONGEST_TEXT], ".")
    _add_wish(parts, memory)
    parts += ("at", memory.page if memory.page in _PLACES else "nowhere", ".")
    return " ".join(parts)


def _add_last_commands(parts: list[str], context: PromptContext, count: int) -> None:
    shown = [" ".join(split_words(shorten(turn.command, Observation(turn.observation)))[:_LONGEST_QUERY]) for turn in context.history[-count:]]
    parts += ("last", " , ".join(shown) or "nothing", ".")


def _add_past(parts: list[str], memory: Memory) -> None:
    """What was searched for last, and which products were looked at and left."""
    if memory.queries:
        parts += ("tried", *split_words(memory.queries[-1])[:_LONGEST_QUERY], ".")
    left = [" ".join(split_words(title)[:_LONGEST_TITLE]) for title in memory.opened.values()][-_MOST_LEFT:]
    if left:
        parts += ("left", " , ".join(left), ".")


def _add_results(parts: list[str], memory: Memory) -> None:
    """The products by number. Of a title only the words that the instruction has too are shown: the others cannot tell which product is wanted."""
    now = memory.now
    parts += ("page", str(now.number), "of", str(max(1, ceil(now.total / pages.PER_PAGE))), ".")
    entries = [" ".join(_entry(number, listed, memory)) for number, listed in enumerate(now.products, start=1)]
    parts += (" , ".join(entries) or "nothing", ".")


def _entry(number: int, listed: Listed, memory: Memory) -> list[str]:
    wanted = words_of(" ".join((memory.wish.words, *(value for _, value in memory.wish.options))))
    has = [word for word in wanted if has_word(word, (listed.title,))]
    return [str(number), *(["seen"] if listed.asin in memory.opened else []), *has, *_price(listed.price, memory)]


def _price(price: float, memory: Memory) -> list[str]:
    """In whole dollars, rounded up, so that what is within a limit of whole dollars remains so."""
    return [*(["over"] if price > memory.wish.price_limit else []), str(ceil(price)), "dollars"]


def _add_item(parts: list[str], memory: Memory) -> None:
    """A product: title, price, options, what its other pages said of what is wanted, what no page has said yet, and what was chosen."""
    now, wish = memory.now, memory.wish
    parts += ("title", *split_words(now.title)[:_LONGEST_TITLE], ".", *_price(now.price, memory), ".")
    wanted = {label_of(value) for _, value in wish.options}
    for name, values in memory.options:
        shown = values if len(values) <= _MOST_VALUES else [value for value in values if label_of(value) in wanted] + list(values[: _MOST_VALUES - 1])
        parts += (*split_words(name), ":", " , ".join(" ".join(split_words(value)) for value in dict.fromkeys(shown)), ".")
    for kind in SUB_PAGES:
        if (said := memory.said.get((memory.item, kind))) is not None:
            has = [word for word in words_of(wish.words) if has_word(word, said)]
            parts += (kind, *(has or ("nothing",)), ".")
    _add_lacking(parts, memory)
    chosen = [" ".join(split_words(f"{name} {value}")) for name, value in memory.chosen.items()]
    parts += ("seen", str(min(len(memory.opened), pages.PER_PAGE)), ".", "chosen", " , ".join(chosen) or "nothing", ".")


def _add_lacking(parts: list[str], memory: Memory) -> None:
    """The wanted words that no page of the product has, and the options that lack the wanted value."""
    words = memory.lacking(memory.opened.get(memory.item, ""), *memory.texts_of_item())
    if memory.page == "item":
        offered = {label_of(value) for _, values in memory.options for value in values}
        words += [part for name, value in memory.wish.options if label_of(value) not in offered for part in split_words(name)]
    parts += ("lacks", *(words or ("nothing",)), ".")


def _add_sub_page(parts: list[str], memory: Memory) -> None:
    """What the page says, from the beginning, and what is still missing."""
    words = split_words(" , ".join(text.strip(" .") for text in memory.now.texts))[:_LONGEST_TEXT]
    parts += (memory.page, *(words or ("nothing",)), ".")
    _add_lacking(parts, memory)


def _add_wish(parts: list[str], memory: Memory) -> None:
    wish = memory.wish
    parts += ("find", *split_words(wish.words), ".")
    if wish.options:
        parts += ("with", " , ".join(" ".join(split_words(f"{name} {value}")) for name, value in wish.options), ".")
    if wish.price_limit < inf:
        parts += ("under", *split_words(f"{wish.price_limit:g}"), ".")


# ---- verl_agent

LONGEST_PROMPT = 13_000
"""A longer prompt is written without the history, as verl-agent does. In characters."""

_ROLE = "You are an agent in WebShop, an online shop, and you act by searching and clicking."
_CONTRACT = (
    "It is your move. Work out first, step by step, what the situation is and what to do next, and write this between <think> and "
    "</think>. Then pick exactly one {choice} and write it between <action> and </action>."
)


def _verl_agent(context: PromptContext, history_length: int, list_admissible: bool) -> str:
    shown = min(max(history_length, 0), len(context.history))
    text = _verl_agent_with(context, shown, list_admissible)
    return text if not shown or len(text) <= LONGEST_PROMPT else _verl_agent_with(context, 0, list_admissible)


def _verl_agent_with(context: PromptContext, shown: int, list_admissible: bool) -> str:
    taken = len(context.history)
    blocks = [_ROLE, f"Your task: {read(context.observation.text).instruction}"]
    page = _quoted(context.observation.text)
    if shown:
        pairs = [
            f"[Observation {number}: {_quoted(turn.observation)}, Action {number}: '{turn.command}']"
            for number, turn in enumerate(context.history[-shown:], start=taken - shown + 1)
        ]
        blocks.append(f"Steps taken so far: {taken}. The latest {shown}, each with what you saw before it:\n" + "\n".join(pairs))
        blocks.append(f"This is step {taken + 1}. What you see now: {page}")
    else:
        blocks.append(f"What you see now: {page}")
    if list_admissible:
        listed = "\n".join(f"'{command}'" for command in context.observation.admissible or ("search[<your query>]",))
        blocks.append(f"The actions that you can use now:\n[{listed}]")
    blocks.append(_CONTRACT.format(choice="of the actions listed above" if list_admissible else "action, search[<your query>] or click[<what to click>],"))
    return "\n\n".join(blocks)


def _quoted(text: str) -> str:
    """The texts of a page without the instruction, each in quotes."""
    parts = text.split(SEPARATOR)
    if INSTRUCTION in parts[:2]:
        parts = parts[parts.index(INSTRUCTION) + 2 :]
    return ", ".join(f"'{part}'" for part in parts)


TEMPLATES: dict[str, Template] = {
    "compact": Template(version="compact-1", lists_admissible=False, history_length=0, max_new_tokens=24, write=_compact),
    "verl_agent": Template(version="verl_agent-1", lists_admissible=True, history_length=2, max_new_tokens=512, write=_verl_agent),
}
"""All templates by name."""
