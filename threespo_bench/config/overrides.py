"""Overrides as users write them, ``key=value``: read with Hydra's grammar, refused with a line that says what was meant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from threespo_bench.errors import UsageError


@dataclass(frozen=True)
class Override:
    """One override: its text, its key, and its value as Hydra's grammar reads it."""

    text: str
    key: str
    value: Any


def split(text: str) -> tuple[str, str]:
    """Key and raw value.

    Raises:
        UsageError: there is no ``=``, no key, or a prefix of Hydra's grammar that has no use here.
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is no override: it has no '='", fix="write key=value")
    if key != key.strip():
        raise UsageError(f"{text!r}: no space may stand before '='", fix=f"write {key.strip()}={value.strip()}")
    if not key:
        raise UsageError(f"{text!r} is no override: it has no key", fix="write key=value")
    if key[0] in "+~":
        raise UsageError(f"{text!r}: keys cannot be added or deleted, only set", fix=f"write {key.lstrip('+~')}={value}")
    return key, value


def with_home(text: str) -> str:
    """The override with a value that begins with ``~/`` written out: shells leave it as it is behind a key, and Hydra's grammar refuses it."""
    key, equals, value = text.partition("=")
    return f"{key}={quoted_value(str(Path(value).expanduser()))}" if equals and value.startswith("~/") else text


def read(text: str) -> Override:
    """Read one override.

    Raises:
        UsageError: it does not follow the grammar, or it gives several values.
    """
    key, value = split(text)
    try:
        parsed = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise _unreadable(text, key, value) from error
    if parsed.is_sweep_override():
        raise UsageError(
            f"{text!r} gives several values, but a run has one",
            fix=f"to compare settings use threespo-bench compare; a list is written {key}=[a,b], a text with a comma {quoted(key, value)}",
        )
    return Override(text, key, parsed.value())


def _unreadable(text: str, key: str, value: str) -> UsageError:
    strange = next((character for character in value if character in "=#()[]{}'\"`,~%&!;<>|*?@^" or ord(character) > 126), "")
    if '"' in value or "'" in value:
        return UsageError(f"{text!r}: the quotes of the value do not match", fix=f"write {quoted(key, value.strip(chr(34) + chr(39)))}")
    if strange:
        return UsageError(f"{text!r}: a value with {strange!r} in it must be quoted", fix=f"write {quoted(key, value)}")
    return UsageError(f"{text!r} cannot be read as key=value", fix="see threespo-bench run --help for the form of overrides")


def quoted(key: str, value: str) -> str:
    """The override with its value quoted, and the whole quoted for the shell."""
    return f"'{key}={quoted_value(value)}'"


def quoted_value(value: str) -> str:
    """A text as Hydra's grammar takes it whatever is in it."""
    return '"' + value.replace('"', '\\"') + '"'
