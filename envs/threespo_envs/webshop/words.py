"""The words of generated catalogues: departments, kinds of product, their properties and options. All of them are made up or common words."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from threespo_envs.words import split_words

PRICES = range(5, 100)
"""Whole dollars."""
PRICE_LIMITS = range(10, 150, 10)
"""All limits that a goal can have, for the vocabulary."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of product.

    Attributes:
        query: what it is called in a search and in an instruction, plural. name: what it is called in a title.
        path: its place in the category tree. category: the department.
        attributes: properties that a product of the kind can have.
        options: names of the options that it can come with.
        prices: the least and the greatest price, dollars.
    """

    query: str
    name: str
    category: str
    path: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    prices: tuple[int, int]


BRANDS = tuple(
    split_words(
        "alvero belmira corvana dunmore elvant farlow gelmont harvik ilmora jontra kelvora lumbry marvento norwick olvani pelmar quorvo rastin "
        "selvona tarnbury ulvero venlow wexmar yarvik zolmont"
    )
)

BEFORE, WITH, FOR = "before", "with", "for"
"""Where a property stands in an instruction: before the kind's name, after "with", or after "for"."""

ATTRIBUTES: dict[str, dict[str, str]] = {
    "beauty": {
        BEFORE: "long lasting, cruelty free, paraben free, sulfate free, easy apply, alcohol free, travel size",
        WITH: "coconut oil, tea tree, natural ingredients, vitamin e",
        FOR: "dry skin, sensitive skin, damaged hair, daily care",
    },
    "electronics": {
        BEFORE: "fast charging, noise cancelling, water proof, light weight, easy install, high speed, heavy duty",
        WITH: "stereo sound, carrying case, battery included, metal frame",
        FOR: "home office, outdoor sports, long travel, gaming night",
    },
    "garden": {
        BEFORE: "easy clean, easy assemble, space saving, hand made, machine washable, eco friendly, non slip",
        WITH: "solid wood, steel legs, memory foam, storage space",
        FOR: "living room, dining room, small balcony, guest bedroom",
    },
    "fashion": {
        BEFORE: "machine wash, slim fit, loose fit, quick drying, hand wash, high waist, wrinkle free",
        WITH: "rubber sole, cotton lining, elastic closure, long sleeve",
        FOR: "daily wear, gym workout, evening party, winter walks",
    },
    "grocery": {
        BEFORE: "gluten free, low sugar, fat free, non dairy, ready eat, individually wrapped, freshly roasted",
        WITH: "natural flavors, sea salt, whole grain, high protein",
        FOR: "school lunch, family party, quick breakfast, gift basket",
    },
}
"""The properties of each department, by where they stand in an instruction."""

VALUES: dict[str, str] = {
    "color": "black, white, red, blue, green, gray, brown, pink, purple, yellow, orange, navy",
    "size": "small, medium, large, x-large, xx-large",
    "scent": "lavender, rose, vanilla, mint, lemon, jasmine, cedar",
    "flavor": "chocolate, caramel, strawberry, banana, honey, cinnamon, ginger, almond",
    "pack": "pack of 1, pack of 2, pack of 4, pack of 6, pack of 12",
    "length": "3 feet, 6 feet, 9 feet, 12 feet",
    "finish": "walnut, oak, cherry, bamboo, marble",
    "style": "classic, modern, vintage, sport, deluxe",
}
"""Options and the values that they can have."""

_KINDS = {
    # query | name in a title | path below the department | options | prices
    "beauty": (
        "shampoos | shampoo | hair care > wash | scent, pack, size | 5-35",
        "hair brushes | hair brush | hair care > tools | color, style | 5-30",
        "face creams | face cream | skin care > face | scent, size, pack | 8-60",
        "body lotions | body lotion | skin care > body | scent, size, pack | 6-40",
        "lip balms | lip balm | makeup > lips | scent, color, pack | 5-20",
        "nail polish | nail polish | makeup > nails | color, pack | 5-25",
        "perfumes | perfume | fragrance > spray | scent, size | 20-95",
        "bath soaps | bath soap | bath > soap | scent, pack | 5-25",
    ),
    "electronics": (
        "headphones | headphones | audio > headphones | color, style | 15-95",
        "speakers | bluetooth speaker | audio > speakers | color, size | 20-95",
        "phone cases | phone case | phone > cases | color, style | 5-30",
        "charging cables | charging cable | phone > cables | length, color, pack | 5-30",
        "keyboards | keyboard | computer > input | color, size | 15-90",
        "computer mice | computer mouse | computer > input | color, style | 8-60",
        "security cameras | security camera | camera > home | color, pack | 25-95",
        "camera bags | camera bag | camera > bags | color, size, style | 10-70",
    ),
    "garden": (
        "table lamps | table lamp | lighting > lamps | color, finish | 15-90",
        "floor lamps | floor lamp | lighting > lamps | color, finish, style | 30-95",
        "coffee tables | coffee table | furniture > tables | finish, size | 40-95",
        "book shelves | book shelf | furniture > shelves | finish, size, color | 25-95",
        "desk chairs | desk chair | furniture > chairs | color, style | 40-95",
        "window curtains | window curtain | textiles > window | color, length, pack | 10-60",
        "area rugs | area rug | textiles > floor | color, size, style | 20-95",
        "throw pillows | throw pillow | textiles > sofa | color, size, pack | 8-45",
    ),
    "fashion": (
        "women's dresses | women's dress | women > clothing | color, size, style | 15-80",
        "women's boots | women's boots | women > shoes | color, size | 25-95",
        "women's sweaters | women's sweater | women > clothing | color, size | 15-70",
        "men's shirts | men's shirt | men > clothing | color, size, style | 10-60",
        "men's jeans | men's jeans | men > clothing | color, size, length | 20-80",
        "men's sandals | men's sandals | men > shoes | color, size | 12-60",
        "rain jackets | rain jacket | outdoor > jackets | color, size, style | 25-95",
        "wool socks | wool socks | outdoor > socks | color, size, pack | 5-30",
    ),
    "grocery": (
        "ground coffee | ground coffee | drinks > coffee | flavor, pack, size | 6-40",
        "herbal teas | herbal tea | drinks > tea | flavor, pack | 5-30",
        "fruit juices | fruit juice | drinks > juice | flavor, pack | 5-30",
        "cookies | cookies | snacks > sweet | flavor, pack | 5-25",
        "granola bars | granola bars | snacks > bars | flavor, pack, size | 5-30",
        "mixed nuts | mixed nuts | snacks > nuts | flavor, pack, size | 8-45",
        "breakfast cereals | breakfast cereal | pantry > breakfast | flavor, size | 5-25",
        "pasta sauces | pasta sauce | pantry > sauce | flavor, pack | 5-25",
    ),
}

_NEVER: dict[str, str] = {
    "shampoos": "dry skin, easy apply",
    "hair brushes": "coconut oil, vitamin e, natural ingredients, alcohol free, paraben free, sulfate free, dry skin, sensitive skin",
    "face creams, body lotions, lip balms": "damaged hair",
    "nail polish": "damaged hair, dry skin, coconut oil",
    "perfumes": "damaged hair, dry skin, easy apply",
    "bath soaps": "damaged hair, easy apply, long lasting",
    "headphones": "easy install, high speed",
    "speakers": "noise cancelling, high speed",
    "phone cases": "noise cancelling, stereo sound, high speed, fast charging, gaming night",
    "charging cables": "noise cancelling, stereo sound, battery included",
    "keyboards, computer mice": "noise cancelling, stereo sound, outdoor sports",
    "security cameras": "noise cancelling, stereo sound, long travel, gaming night",
    "camera bags": "noise cancelling, stereo sound, fast charging, high speed, battery included, gaming night",
    "table lamps, floor lamps": "machine washable, memory foam, storage space, non slip",
    "coffee tables": "machine washable, memory foam, guest bedroom",
    "book shelves": "machine washable, memory foam, non slip, small balcony",
    "desk chairs": "machine washable, storage space, dining room",
    "window curtains": "solid wood, steel legs, memory foam, storage space, easy assemble, non slip",
    "area rugs": "solid wood, steel legs, storage space, easy assemble, space saving",
    "throw pillows": "solid wood, steel legs, storage space, easy assemble, space saving, non slip",
    "women's dresses": "rubber sole",
    "women's boots": "high waist, slim fit, loose fit, long sleeve, wrinkle free, machine wash",
    "women's sweaters": "rubber sole, high waist, quick drying",
    "men's shirts": "rubber sole, high waist",
    "men's jeans": "rubber sole, long sleeve, quick drying",
    "men's sandals": "high waist, slim fit, loose fit, long sleeve, wrinkle free, machine wash, winter walks",
    "rain jackets": "rubber sole, high waist, evening party",
    "wool socks": "rubber sole, high waist, long sleeve, wrinkle free, evening party",
    "ground coffee": "sea salt, whole grain, high protein, school lunch, ready eat",
    "herbal teas": "sea salt, whole grain, high protein, ready eat, freshly roasted, fat free",
    "fruit juices": "sea salt, whole grain, freshly roasted, individually wrapped, ready eat",
    "cookies": "freshly roasted",
    "mixed nuts": "whole grain, fat free, low sugar",
    "breakfast cereals": "individually wrapped, sea salt",
    "pasta sauces": "whole grain, individually wrapped, freshly roasted, quick breakfast, low sugar",
}
"""The properties of its department that a kind, or each of several, does not have."""

DESCRIPTIONS = (
    "A {name} by {brand}. Known for: {attribute}.",
    "Made by {brand} with care. What sets it apart: {attribute}.",
    "{brand} made this {name} for you. Good to know: {attribute}.",
)
FEATURES = ("{brand} quality", "made to last", "a good gift")
"""Templates of the texts on the sub-pages. The properties come first among the features, as they are."""

OPENING, JOINED = "Find me", ", "


def split_list(text: str) -> tuple[str, ...]:
    """The items of a list with commas."""
    return tuple(item.strip() for item in text.split(","))


@cache
def kinds() -> tuple[Kind, ...]:
    """All kinds of product, department by department."""
    never = {query: split_list(attributes) for queries, attributes in _NEVER.items() for query in split_list(queries)}
    found = []
    for category, rows in _KINDS.items():
        attributes = tuple(attribute for pool in ATTRIBUTES[category].values() for attribute in split_list(pool))
        for row in rows:
            query, name, path, options, prices = (cell.strip() for cell in row.split("|"))
            least, most = map(int, prices.split("-"))
            tree = (category, *(part.strip() for part in path.split(">")))
            fitting = tuple(attribute for attribute in attributes if attribute not in never.get(query, ()))
            found.append(Kind(query, name, category, tree, fitting, split_list(options), (least, most)))
    return tuple(found)


@cache
def place_of(category: str) -> dict[str, str]:
    """Where each property of a department stands in an instruction."""
    return {attribute: place for place, pool in ATTRIBUTES[category].items() for attribute in split_list(pool)}


@cache
def vocabulary() -> tuple[str, ...]:
    """All words, sorted: of every product of every generated catalogue, and of every instruction."""
    texts = [*BRANDS, *VALUES, *VALUES.values(), *DESCRIPTIONS, *FEATURES, OPENING, JOINED, "with and for : price lower than dollars $ . 00 0"]
    texts += [pool for pools in ATTRIBUTES.values() for pool in pools.values()]
    texts += [" ".join((kind.query, kind.name, *kind.path)) for kind in kinds()]
    words = {word for text in texts for word in split_words(text)} - {"{", "}", "attribute", "name", "brand"}
    return tuple(sorted(words | {str(number) for numbers in (PRICES, PRICE_LIMITS) for number in numbers}))
