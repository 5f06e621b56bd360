"""A small catalogue for tests: hiking jackets, lamps and teas, written out so that pages and prompts can be checked word for word."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from threespo_envs.webshop.goals import make_goals
from threespo_envs.webshop.products import Product
from threespo_envs.webshop.shop import Shop, Visit

COLOURS = (("color", ("red", "dark blue")), ("size", ("small", "large")))


def jacket(number: int, title: str, price: float, features: tuple[str, ...], attributes: tuple[str, ...], **more: object) -> Product:
    return Product(
        asin=f"J{number:09d}",
        title=title,
        query="hiking jackets",
        category="fashion",
        path=("Clothing", "Men", "Jackets"),
        prices=(price,),
        description="A jacket for all seasons.",
        features=features,
        attributes=attributes,
        options=more.pop("options", COLOURS),  # type: ignore[arg-type]
        **more,  # type: ignore[arg-type]
    )


WANTED = jacket(
    1,
    "Norwind Waterproof Hiking Jacket",
    24.5,
    ("Made of breathable cotton.", "Two pockets."),
    ("waterproof", "breathable cotton"),
    instruction="Find me waterproof hiking jackets with breathable cotton",
    wanted=("waterproof", "breathable cotton"),
)
DEAR = jacket(2, "Alpin Waterproof Hiking Jacket, Breathable Cotton", 99.0, (), ("waterproof", "breathable cotton"))
PLAIN = jacket(3, "Heath Hiking Jacket", 19.0, ("Warm lining.",), ("warm",), options=())
RANGE = Product("L000000001", "Halo Desk Lamp", "desk lamps", "garden", ("Home", "Lamps"), (12.0, 15.99), options=(("size", ("one size",)),))
TEAS = tuple(
    Product(
        f"T{number:09d}",
        f"Hill {number} Green Tea",
        "green tea",
        "grocery",
        ("Food", "Tea"),
        (3.0 + number,),
        attributes=("organic",),
        instruction="Find me organic green tea",
        wanted=("organic",),
    )
    for number in range(1, 26)
)
PRODUCTS = (WANTED, DEAR, PLAIN, RANGE, *TEAS)


@cache
def shop(show_attributes: bool = False) -> Shop:
    return Shop(PRODUCTS, make_goals(PRODUCTS, 0), show_attributes)


def visit(instruction: str = "color: red, and size: large", show_attributes: bool = False) -> Visit:
    """A visit of the first customer whose instruction has these words."""
    place = shop(show_attributes)
    return Visit(place, next(goal for goal in place.goals if instruction in goal.instruction))


def write(path: Path) -> str:
    """The catalogue as a file; returns its name."""
    lines = [
        json.dumps(
            {
                "asin": product.asin,
                "name": product.title,
                "query": product.query,
                "category": product.category,
                "product_category": " › ".join(product.path),
                "pricing": list(product.prices),
                "options": {name: list(values) for name, values in product.options},
                "full_description": product.description,
                "small_description": list(product.features),
                "Attributes": list(product.attributes),
                "ins": {"instruction": product.instruction, "instruction_attributes": list(product.wanted)} if product.instruction else {},
            }
        )
        for product in PRODUCTS
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)
