"""Reads products from a file: one JSON object a line (plain, .xz or .gz), or the item list of the original WebShop with its instruction file beside it."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from threespo_bench.errors import DataError
from threespo_envs.webshop.products import Product

_LINES = (".jsonl", ".jsonl.xz", ".jsonl.gz")
_LISTS = (".json", ".json.xz", ".json.gz")
_HOW_TO_GET = "give a .jsonl, .jsonl.xz or .jsonl.gz file with one product a line, or WebShop's items_shuffle*.json"
_PATH_SEPARATOR = "›"
_PRICE = re.compile(r"\$\s*([\d,]+(?:\.\d+)?)")
_PRICE_IF_UNKNOWN = 100.0  # as in WebShop
_ASIN_LENGTH = 10


def read_products(path: Path) -> tuple[Product, ...]:
    """The products of a file, in its order.

    Two forms are read. In a ``.jsonl`` file each line is one product with the keys asin, name, query, category, product_category (a path, joined by ``›``),
    pricing, options, full_description, small_description (a text or a list), Attributes and ``ins`` (instruction and instruction_attributes); those that may be
    empty may be left out. A ``.json`` file is the original's list of items; the instructions are in a second file, ``items_ins_v2*.json`` for
    ``items_shuffle*.json``. Items without a usable asin, and all but the first with the same one, are left out there, as WebShop does.

    Raises:
        DataError: the file is missing, damaged or holds something that is no product; the message names the file and the line (or the item's number).
    """
    if not path.name.endswith((*_LINES, *_LISTS)):
        raise DataError(f"{path} is no file of products", _HOW_TO_GET)
    if path.name.endswith(_LISTS):
        products = tuple(_items(path))
    else:
        products = tuple(_lines(path))
    if not products:
        raise DataError(f"{path} holds no products", _HOW_TO_GET)
    return products


def index_text(product: Product) -> str:
    """The text that WebShop indexes, lower case: title, description, the first of the features, and all options with their values."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    return " ".join((product.title, product.description, product.features[0] if product.features else "", options)).lower()


def _lines(path: Path) -> Iterator[Product]:
    seen: dict[str, int] = {}
    for number, line in enumerate(_read(path).split(b"\n"), start=1):
        if not line.strip():
            continue
        fields = _Fields(_parsed(line, f"{path}, line {number}"), f"{path}, line {number}")
        product = _product(fields, fields.mapping("ins"))
        if product.asin in seen:
            fields.refuse(f"the asin {product.asin} stands in line {seen[product.asin]} already")
        seen[product.asin] = number
        yield product


def _items(path: Path) -> Iterator[Product]:
    """The original's items, brought into the form of the other file."""
    items = _parsed(_read(path), str(path))
    if not isinstance(items, list):
        raise DataError(f"{path}: not a list of items", _HOW_TO_GET)
    instructions_path = path.with_name(path.name.replace("items_shuffle", "items_ins_v2"))
    if instructions_path == path:
        raise DataError(f"{path}: the name does not begin with items_shuffle, so its instruction file cannot be found", _HOW_TO_GET)
    instructions = _Fields(_parsed(_read(instructions_path), str(instructions_path)), str(instructions_path))
    seen: set[str] = set()
    for number, item in enumerate(items, start=1):
        raw = _Fields(item, f"{path}, item {number}")
        asin = raw.text("asin")
        if asin == "nan" or len(asin) > _ASIN_LENGTH or asin in seen:
            continue
        seen.add(asin)
        ins = instructions.mapping(asin)
        prices = [float(price.replace(",", "")) for price in _PRICE.findall(raw.text("pricing"))][:2]
        changed = {"pricing": prices or [_PRICE_IF_UNKNOWN], "options": _original_options(raw), "Attributes": ins.values.get("attributes")}
        yield _product(_Fields({**raw.values, **changed}, raw.where), ins)


def _original_options(raw: _Fields) -> dict[str, list[str]]:
    options = {}
    for name, contents in raw.mapping("customization_options").values.items():
        if contents is None:
            continue
        if not isinstance(contents, list):
            raw.refuse(f"the option {name!r} is no list")
        options[name] = [_Fields(content, f"{raw.where}, option {name!r}").text("value").strip().replace("/", " | ") for content in contents]
    return options


def _product(fields: _Fields, ins: _Fields) -> Product:
    asin, title = fields.text("asin"), fields.text("name")
    if not asin:
        fields.refuse("the asin is missing")
    prices = fields.numbers("pricing")
    if not 1 <= len(prices) <= 2 or min(prices) <= 0:
        fields.refuse("pricing is not one price, or the least and the greatest, above 0")
    features = fields.values.get("small_description")
    options = fields.mapping("options")
    return Product(
        asin=asin,
        title=title,
        query=fields.text("query").lower().strip(),
        category=fields.text("category"),
        path=tuple(part for element in fields.text("product_category").split(_PATH_SEPARATOR) if (part := element.strip())),
        prices=tuple(sorted(prices)),
        description=fields.text("full_description"),
        features=(features,) if isinstance(features, str) else fields.texts("small_description"),
        attributes=fields.texts("Attributes"),
        options=tuple((name.lower(), tuple(value.lower() for value in values)) for name in options.values if (values := options.texts(name))),
        instruction=ins.text("instruction"),
        wanted=ins.texts("instruction_attributes"),
    )


class _Fields:
    """The fields of a JSON object that must be of a type; ``null`` is the same as nothing."""

    def __init__(self, values: Any, where: str) -> None:
        self.where = where
        if not isinstance(values, dict):
            self.refuse("not a JSON object")
        self.values: Mapping[str, Any] = values

    def refuse(self, what: str) -> NoReturn:
        raise DataError(f"{self.where}: {what}", _HOW_TO_GET)

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            self.refuse(f"{name} is no text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(self._list(name, "texts", str))

    def numbers(self, name: str) -> list[float]:
        values = self._list(name, "numbers", (int, float))
        # JSON as Python reads it also has NaN, Infinity and integers of any size
        if any(isinstance(value, bool) or not abs(value) < 1e9 for value in values):
            self.refuse(f"{name} is no list of numbers")
        return [float(value) for value in values]

    def mapping(self, name: str) -> _Fields:
        value = self.values.get(name)
        return _Fields({} if value is None else value, f"{self.where}, {name}")

    def _list(self, name: str, what: str, kind: type | tuple[type, ...]) -> list[Any]:
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(element, kind) for element in value):
            self.refuse(f"{name} is no list of {what}")
        return value


def _read(path: Path) -> bytes:
    opener: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    try:
        with opener(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}", _HOW_TO_GET) from error
    except (lzma.LZMAError, zlib.error, EOFError) as error:
        raise DataError(f"{path} is damaged: {error}", "fetch the file again") from error


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}", _HOW_TO_GET) from error
