"""The options of a configuration class: key, type, default and explanation, read from the dataclass itself."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        key: the full override key. type: in words, e.g. ``int or null``. default: its value without any override. doc: its explanation.
        annotation: the declared type.
    """

    key: str
    type: str
    default: Any
    doc: str
    annotation: Any = None

    @property
    def open(self) -> bool:
        """It is a mapping whose keys the user makes up."""
        return _without_none(self.annotation) is dict or typing.get_origin(_without_none(self.annotation)) is dict


def describe(config: type, prefix: str, values: Any) -> list[Option]:
    """All options of a dataclass, nested ones included, in the order of declaration.

    Args:
        config: the dataclass.
        prefix: what comes before its keys, e.g. ``algorithm``; may be empty.
        values: the defaults, as nested plain data: a mapping, as OmegaConf.to_container gives it.
    """
    return list(_walk(config, prefix, values))


def _walk(config: Any, prefix: str, values: Mapping[str, Any]) -> Iterator[Option]:
    annotations = typing.get_type_hints(config)
    docs = field_docs(config)
    for name in sorted(annotations_in_order(config), key=lambda name: is_dataclass(annotations[name])):  # groups of options come last
        key = f"{prefix}.{name}" if prefix else name
        annotation, value = annotations[name], values.get(name)
        if is_dataclass(annotation):
            yield from _walk(annotation, key, value or {})
        else:
            yield Option(key, type_text(annotation), value, docs.get(name, ""), annotation)


def annotations_in_order(config: type) -> list[str]:
    """The names of the fields, those of the class itself before those that it inherits."""
    own = {name: place for place, base in reversed(list(enumerate(config.__mro__))) for name in inspect.get_annotations(base)}
    return sorted((field.name for field in fields(config)), key=lambda name: own.get(name, 0))


def type_text(annotation: Any) -> str:
    """A type as users read it: ``int``, ``float or null``, ``list of str``."""
    if annotation is Any:
        return "any"
    if annotation is type(None):
        return "null"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_text(argument) for argument in sorted(arguments, key=lambda argument: argument is type(None)))
    if origin in (list, tuple):
        inner = [argument for argument in arguments if argument is not Ellipsis]
        return "list of " + type_text(inner[0]) if inner else "list"
    if origin is dict:
        return f"mapping of {type_text(arguments[1])}"
    return getattr(annotation, "__name__", str(annotation))


def field_docs(config: type) -> dict[str, str]:
    """The explanation of each field, from the ``Attributes`` of the docstrings of a dataclass and its bases."""
    docs: dict[str, str] = {}
    names = [field.name for field in fields(config)]
    for base in config.__mro__:
        text = _without_markup(inspect.cleandoc(base.__dict__.get("__doc__") or ""))
        for name, doc in _split_docs(text, names).items():
            docs.setdefault(name, doc)
        if "Attributes:" not in text:  # a short class explains its fields in a sentence
            docs |= {name: " ".join(text.split()) for name in names if f"`{name}`" in text and name not in docs}
    mentioned = {name: doc for name in names for doc in docs.values() if f"`{name}`" in doc}
    return mentioned | docs


def _without_markup(text: str) -> str:
    return re.sub(r":\w+:`~?([^`]+)`", r"\1", text).replace("``", "`")


def _split_docs(text: str, names: list[str]) -> dict[str, str]:
    """Several fields may share one explanation (``a, b: text``) and several explanations one line (``a: text. b: text.``)."""
    if "Attributes:" not in text or not names:
        return {}
    text = text.partition("Attributes:")[2]
    name = "(?:" + "|".join(sorted(map(re.escape, names), key=len, reverse=True)) + ")"
    heads = list(re.finditer(rf"(?:(?<=\s)|^)({name}(?:,\s+{name})*):\s", text))
    docs: dict[str, str] = {}
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        doc = " ".join(text[head.end() : following.start() if following else len(text)].split())
        docs |= {part.strip(): doc for part in head.group(1).split(",")}
    return docs


def whole_number(option: Option, value: Any) -> int | None:
    """The integer that was meant by a float such as 1e5 for an integer option; None if the value is to be taken as it is."""
    wanted = _without_none(option.annotation)
    return int(value) if wanted is int and isinstance(value, float) and value.is_integer() else None


def _without_none(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
        return rest[0] if len(rest) == 1 else annotation
    return annotation
