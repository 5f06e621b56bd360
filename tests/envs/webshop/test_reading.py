"""Reading products: the original's 1,000, its own item list, and files that cannot be read."""

from __future__ import annotations

import gzip
import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from threespo_bench.errors import DataError
from threespo_envs.webshop.products import Product
from threespo_envs.webshop.reading import index_text, read_products

RECORD: dict[str, Any] = {
    "asin": "B000000001",
    "name": "Linen Shirt",
    "query": " Men's Shirts ",
    "category": "fashion",
    "product_category": "Clothing › Men › Shirts",
    "pricing": [24.5, 30],
    "options": {"Size": ["Small", "large"], "color": []},
    "Attributes": ["machine wash"],
    "full_description": "Cool.",
    "small_description": ["Two Pockets", "Buttons"],
    "ins": {"attributes": ["machine wash"], "instruction": "Find me men's shirts", "instruction_attributes": ["machine wash"]},
}
PRODUCT = Product(
    asin="B000000001",
    title="Linen Shirt",
    query="men's shirts",
    category="fashion",
    path=("Clothing", "Men", "Shirts"),
    prices=(24.5, 30.0),
    description="Cool.",
    features=("Two Pockets", "Buttons"),
    attributes=("machine wash",),
    options=(("size", ("small", "large")),),
    instruction="Find me men's shirts",
    wanted=("machine wash",),
)


def written(path: Path, *records: Any) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records).encode()
    {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)(path, "wb").write(text)
    return path


def test_the_original_has_1000_products(real_products: tuple[Product, ...]) -> None:
    assert len(real_products) == 1000
    assert Counter(product.category for product in real_products) == {"beauty": 238, "electronics": 229, "garden": 216, "fashion": 200, "grocery": 117}
    assert sum(bool(product.instruction) for product in real_products) == 415
    assert sum(bool(product.options) for product in real_products) == 423
    assert len({product.query for product in real_products}) == 246
    assert all(product.wanted and set(product.wanted) <= set(product.attributes) for product in real_products if product.instruction)


def test_the_indexed_text_is_the_originals(products_path: Path, real_products: tuple[Product, ...]) -> None:
    with lzma.open(products_path, "rt", encoding="utf-8") as lines:
        expected = [json.loads(line)["contents"] for line in lines]
    assert [index_text(product) for product in real_products] == expected


def test_the_indexed_text_has_the_first_feature_only() -> None:
    assert index_text(PRODUCT) == "linen shirt cool. two pockets size: small, large"
    assert index_text(Product("A", "T", "q", "c", (), (1.0,), options=(("a", ("x", "y")), ("b", ("z",))))) == "t   a: x, y, and b: z"


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.xz", "p.jsonl.gz"])
def test_one_product_a_line(tmp_path: Path, name: str) -> None:
    minimal = {"asin": "B000000002", "pricing": [5], "small_description": "One text", "Attributes": None}
    first, second = read_products(written(tmp_path / name, RECORD, minimal))
    assert first == PRODUCT
    assert second == Product("B000000002", "", "", "", (), (5.0,), features=("One text",))


def test_the_originals_item_list(tmp_path: Path) -> None:
    item = {key: RECORD[key] for key in ("asin", "name", "query", "category", "product_category", "full_description", "small_description")}
    item |= {"pricing": "$24.50 - $1,030.00", "customization_options": {"Size": [{"value": " S/M ", "image": None}], "Color": None}}
    unpriced = {**item, "asin": "B000000002", "pricing": "", "customization_options": ""} | {"customization_options": None}
    path = tmp_path / "items_shuffle_1000.json"
    path.write_text(json.dumps([item, {**item, "asin": "nan"}, item, {**item, "asin": "B0000000012"}, unpriced]))
    with pytest.raises(DataError, match=r"items_ins_v2_1000\.json cannot be read"):
        read_products(path)
    (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps({"B000000001": RECORD["ins"]}))
    first, second = read_products(path)
    assert (first.prices, first.options) == ((24.5, 1030.0), (("size", ("s | m",)),))
    assert (first.instruction, first.wanted, first.attributes, first.title) == (PRODUCT.instruction, PRODUCT.wanted, PRODUCT.attributes, PRODUCT.title)
    assert (second.prices, second.options, second.instruction, second.attributes) == ((100.0,), (), "", ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"asin": None}, "the asin is missing"),
        ({"asin": 3}, "asin is no text"),
        ({"name": ["a"]}, "name is no text"),
        ({"pricing": []}, "pricing is not one price"),
        ({"pricing": [1, 2, 3]}, "pricing is not one price"),
        ({"pricing": [0]}, "pricing is not one price"),
        ({"pricing": [float("nan")]}, "pricing is no list of numbers"),
        ({"pricing": [True]}, "pricing is no list of numbers"),
        ({"pricing": "$5"}, "pricing is no list of numbers"),
        ({"pricing": [10**400]}, "pricing is no list of numbers"),
        ({"options": ["red"]}, "options: not a JSON object"),
        ({"options": {"color": [1]}}, "color is no list of texts"),
        ({"small_description": {}}, "small_description is no list of texts"),
        ({"ins": []}, "ins: not a JSON object"),
        ({"ins": {"instruction": 1}}, "instruction is no text"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "p.jsonl", {**RECORD, "asin": "B000000009"}, {**RECORD, **change})
    with pytest.raises(DataError) as raised:
        read_products(path)
    assert str(raised.value).startswith(f"{path}, line 2") and message in str(raised.value) and raised.value.fix


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.jsonl", b"", "holds no products"),
        ("p.jsonl", b"{\n", "line 1: not valid JSON"),
        ("p.jsonl", b"\xff\xfe{}\n", "line 1: not valid JSON"),
        ("p.jsonl", b"[" * 100_000, "line 1: not valid JSON"),
        ("p.jsonl", b"3\n", "line 1: not a JSON object"),
        ("p.jsonl.xz", b"no archive", "is damaged"),
        ("p.jsonl.xz", lzma.compress(b"{}" * 1000)[:40], "is damaged"),
        ("p.jsonl.gz", b"no archive", "cannot be read"),
        ("p.jsonl.gz", gzip.compress(b"{}" * 1000, mtime=0)[:15], "is damaged"),
        ("p.csv", b"a,b", "is no file of products"),
        ("items_shuffle.json", b"{}", "not a list of items"),
        ("goods.json", b"[]", "does not begin with items_shuffle"),
    ],
)
def test_an_unreadable_file_is_one_clear_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_products(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl cannot be read: No such file"):
        read_products(tmp_path / "none.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match=r"folder\.jsonl cannot be read"):
        read_products(tmp_path / "folder.jsonl")


def test_an_asin_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 2: the asin B000000001 stands in line 1 already"):
        read_products(written(tmp_path / "p.jsonl", RECORD, RECORD))
