"""Numbers as text. What is unknown stays blank."""

from __future__ import annotations

import math
from typing import Any


def known(value: Any) -> bool:
    """Whether ``value`` is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def percent(value: Any) -> str:
    """A fraction as ``63.4%``."""
    return f"{100 * value:.1f}%" if known(value) else ""


def points(value: Any) -> str:
    """A difference of fractions in signed percentage points, ``+12.3``."""
    return f"{100 * value:+.1f}" if known(value) else ""


def percent_range(low: Any, high: Any) -> str:
    """``51.0 to 70.3``, in percent."""
    return f"{100 * low:.1f} to {100 * high:.1f}" if known(low) and known(high) else ""


def points_range(low: Any, high: Any) -> str:
    """``+4.0 to +19.5``, in percentage points."""
    return f"{100 * low:+.1f} to {100 * high:+.1f}" if known(low) and known(high) else ""


def fraction(value: Any, digits: int = 3) -> str:
    """``0.438``."""
    return f"{value:.{digits}f}" if known(value) else ""


def fraction_range(low: Any, high: Any, digits: int = 3) -> str:
    """``0.401 to 0.470``."""
    return f"{fraction(low, digits)} to {fraction(high, digits)}" if known(low) and known(high) else ""


def count(value: Any) -> str:
    """``12,345``."""
    return f"{value:,.0f}" if known(value) else ""


def duration(seconds: Any) -> str:
    """``48 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if not known(seconds):
        return ""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def memory(megabytes: Any) -> str:
    """``812 MB`` or ``12.4 GB``."""
    if not known(megabytes):
        return ""
    return f"{megabytes:.0f} MB" if megabytes < 10_000 else f"{megabytes / 1000:.1f} GB"


def p_value(p: Any) -> str:
    """``0.25``, ``0.0625``, ``< 0.001``."""
    if not known(p):
        return ""
    return "< 0.001" if p < 0.001 else f"{p:.4f}".rstrip("0").rstrip(".")


def listing(items: list[str]) -> str:
    """``a, b and c``."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else ""


def task_kind(name: str) -> str:
    """``pick_and_place_simple`` -> ``pick and place simple``."""
    return name.replace("_", " ")
