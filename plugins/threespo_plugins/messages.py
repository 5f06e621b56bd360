"""What other libraries' errors say, in a line."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type; where that line announces a list, as torch's does, its first item too."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else type(error).__name__
