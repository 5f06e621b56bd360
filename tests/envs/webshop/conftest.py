"""Fixtures of the shop's tests: the 1,000 products of the original's small set, and a few made up here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from threespo_envs.webshop.products import Product
from threespo_envs.webshop.reading import read_products


@pytest.fixture(scope="session")
def products_path(shared_data: Callable[..., Path]) -> Path:
    """The file with the original's 1,000 products; skips the test if it is not there."""
    return shared_data("webshop_1k", "products_1000.jsonl.xz")


@pytest.fixture(scope="session")
def real_products(products_path: Path) -> tuple[Product, ...]:
    """The original's 1,000 products."""
    return read_products(products_path)


@pytest.fixture
def shirt() -> Product:
    """A product with an instruction, two options and a price range."""
    return Product(
        asin="B000000001",
        title="Harbour Men's Linen Shirt",
        query="men's shirts",
        category="fashion",
        path=("Clothing", "Men", "Shirts"),
        prices=(24.5, 30.0),
        description="Cool in summer.",
        features=("Machine wash", "Two pockets"),
        attributes=("machine wash", "classic fit"),
        options=(("size", ("small", "large")), ("color", ("navy blue", "white", "green"))),
        instruction="Find me machine wash men's shirts with classic fit",
        wanted=("machine wash", "classic fit"),
    )
