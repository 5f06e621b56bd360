"""How an algorithm looks in every figure of every report: its printed name, one colour and one line style that never change.

Colours are Okabe and Ito's, darkened where needed for thin lines on white; each has a lighter twin for dark pages. Colour and line
style are both distinct, so the figures can be read without colour."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count

COLOURS = {  # on white: on a dark page
    "#0072b2": "#5db7f0",  # blue
    "#d55e00": "#ff8f45",  # vermillion
    "#00855f": "#35c89c",  # green
    "#a8528a": "#e596c8",  # purple
    "#b07d00": "#f0bb3a",  # ochre
    "#3a8fc4": "#9ad4f7",  # sky
    "#7a4f2b": "#cfa27a",  # brown
    "#4d4d4d": "#c4c8cc",  # grey
}
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (5, 1.6, 1.2, 1.6), (1.4, 1.4))
MORE_DASHES: tuple[tuple[float, ...], ...] = ((9, 2), (9, 1.6, 1.2, 1.6), (2.6, 1.2), (6, 1.4, 1.2, 1.4, 1.2, 1.4), (1.2, 3), (9, 3, 3, 3))  # of other names
_KNOWN: dict[str, tuple[str, int, int]] = {  # name: printed name, colour, line style; a pair stands here once, so that none changes when another is added
    "threespo": ("3SPO", 0, 0),
    "threespo_ppo": ("3SPO-PPO", 0, 1),
    "threespo_dpo": ("3SPO-DPO", 0, 2),
    "vineppo": ("VinePPO", 0, 3),
    "t2spo": ("T2SPO", 1, 0),
    "gigpo": ("GiGPO", 1, 1),
    "t2spo_knn": ("T2SPO-kNN", 1, 2),
    "step_dpo": ("Step-DPO", 1, 3),
    "dmpo": ("DMPO", 2, 0),
    "opo": ("OPO", 2, 1),
    "grpo": ("GRPO", 2, 2),
    "dr_grpo": ("Dr.GRPO", 2, 3),
    "sapo_autoreg": ("SAPO", 3, 0),
    "hgpo": ("HGPO", 3, 1),
    "ipo": ("IPO", 3, 2),
    "kto": ("KTO", 3, 3),
    "progpo": ("ProGPO", 4, 0),
    "cdpo": ("cDPO", 4, 1),
    "rloo": ("RLOO", 4, 2),
    "dpo_offline": ("DPO-offline", 4, 3),
    "spo_stream": ("SPO", 5, 0),
    "spopp": ("SPO++", 5, 1),
    "spo_segment_chain": ("SPO-chain", 5, 2),
    "spo_segment_tree": ("SPO-tree", 5, 3),
    "dpo": ("DPO", 6, 0),
    "reinforce_pp_baseline": ("REINFORCE++-baseline", 6, 1),
    "reinforce_pp": ("REINFORCE++", 6, 2),
    "remax": ("ReMax", 6, 3),
    "mirror": ("mirror", 7, 0),  # the example of a third-party plugin
    "ppo": ("PPO", 7, 1),
    "ppo_row": ("PPO-row", 7, 2),
    "ppo_turn": ("PPO-turn", 7, 3),
}
USUAL_BASELINES = ("grpo", "ppo", "rloo")


@dataclass(frozen=True)
class Style:
    """``colour`` is for a white page (see :data:`COLOURS` for its dark twin); ``dashes`` are lengths in line widths, () is solid."""

    colour: str
    dashes: tuple[float, ...]


def printed_name(label: str) -> str:
    """What to print for an algorithm label, e.g. ``threespo (preset=paper)`` -> ``3SPO (preset=paper)``."""
    name, space, options = label.partition(" ")
    return (_KNOWN[name][0] if name in _KNOWN else name) + space + options


def known_name(printed: str) -> str:
    """The registered name of an algorithm from its printed one, letter case aside; ``printed`` itself where there is none."""
    names = {shown.lower(): name for name, (shown, _, _) in _KNOWN.items()}
    return names.get(printed.strip().lower(), printed.strip())


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Label -> style, the same in whatever company.

    Known names have the colour and line style of the table. Another name has a slot of its own, counted from its letters, with line styles
    that no known name has; only if two such names share a slot, the later one takes the next. Variants of one algorithm share its colour.
    """
    names = sorted(set(labels))
    taken: dict[str, tuple[int, int]] = {}
    for name in names:
        base = name.partition(" ")[0]
        first = _slot(base)
        place = first if first not in taken.values() else next(slot for slot in _slots_after(first, variant=base != name) if slot not in taken.values())
        taken[name] = place
    colours, dashes = list(COLOURS), (*DASHES, *MORE_DASHES)
    return {name: Style(colours[taken[name][0]], dashes[taken[name][1] % len(dashes)]) for name in names}


def _slot(name: str) -> tuple[int, int]:
    if name in _KNOWN:
        return _KNOWN[name][1:]
    number = zlib.crc32(name.encode()) % (len(COLOURS) * len(MORE_DASHES))
    return number % len(COLOURS), len(DASHES) + number // len(COLOURS)


def _slots_after(first: tuple[int, int], variant: bool) -> Iterator[tuple[int, int]]:
    """The further slots that a name may take: a variant keeps its colour, another name goes through all. There is always one more."""
    colour, dash = first
    start = max(dash, len(DASHES)) - len(DASHES)
    if variant:
        yield from ((colour, len(DASHES) + (start + step) % len(MORE_DASHES)) for step in range(len(MORE_DASHES)))
    slots = [(place % len(COLOURS), len(DASHES) + place // len(COLOURS)) for place in range(len(COLOURS) * len(MORE_DASHES))]
    begin = slots.index((colour, len(DASHES) + start))
    yield from slots[begin:] + slots[:begin]
    every = len(DASHES) + len(MORE_DASHES)
    yield from ((colour, number * every + dash) for number in count(1))


def find_label(wanted: str, labels: Iterable[str]) -> str | None:
    """The label that a user means by ``wanted``: exact, or its printed name, letter case aside (``3spo`` is ``threespo``)."""
    names = sorted(labels)
    for name in names:
        if wanted == name:
            return name
    for name in names:
        if wanted.lower() in (name.lower(), printed_name(name).lower()):
            return name
    return None


def usual_baseline(labels: Iterable[str]) -> str | None:
    """The baseline when none is named: GRPO, else PPO, else RLOO, if present beside something to compare with it."""
    names = set(labels)
    return next((name for name in USUAL_BASELINES if name in names and len(names) > 1), None)
