"""How an algorithm looks in every figure of every report: its printed name, one colour and one line style that never change.

Colours are Okabe and Ito's, darkened where needed for thin lines on white; each has a lighter twin for dark pages. Colour and line
style are both distinct, so the figures can be read without colour."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

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
_KNOWN: dict[str, tuple[str, int, int]] = {  # name: printed name, colour, line style
    "threespo": ("3SPO", 0, 0),
    "gigpo": ("GiGPO", 1, 1),
    "grpo": ("GRPO", 2, 2),
    "dr_grpo": ("Dr.GRPO", 2, 3),
    "hgpo": ("HGPO", 3, 1),
    "rloo": ("RLOO", 4, 2),
    "ppo": ("PPO", 7, 1),
    "reinforce_pp": ("REINFORCE++", 6, 2),
    "remax": ("ReMax", 6, 3),
    "spo": ("SPO", 5, 0),
    "spo_pp": ("SPO++", 5, 1),
    "sapo": ("SAPO", 3, 0),
    "t2spo": ("T2SPO", 1, 0),
    "progpo": ("ProGPO", 4, 0),
    "vineppo": ("VinePPO", 7, 3),
    "spo_chain": ("SPO-chain", 5, 2),
    "spo_tree": ("SPO-tree", 5, 3),
    "dpo": ("DPO", 6, 0),
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


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Label -> style. Known names have fixed ones; another label takes the slot of its hash, or the next one with a colour that is free in this report."""
    names = sorted(set(labels))
    taken = {name: _KNOWN[name][1:] for name in names if name in _KNOWN}
    for name in names:
        if name not in taken:
            taken[name] = _free_slot(name, list(taken.values()))
    colours = list(COLOURS)
    return {name: Style(colours[taken[name][0]], DASHES[taken[name][1]]) for name in names}


def _free_slot(name: str, taken: list[tuple[int, int]]) -> tuple[int, int]:
    """The slot that ``name`` hashes to, or after it the first with an unused colour, else the first unused, else that one all the same."""
    slots = [(colour, dash) for dash in range(len(DASHES)) for colour in range(len(COLOURS))]
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % len(slots)
    order = slots[first:] + slots[:first]
    used = {colour for colour, _ in taken}
    free = [slot for slot in order if slot[0] not in used] or [slot for slot in order if slot not in taken]
    return free[0] if free else order[0]


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
