"""When two texts mean the same to WebShop's reward: fuzzy equality, colour words, and the nouns that two titles share."""

from __future__ import annotations

import re

from rapidfuzz import fuzz, utils

THRESHOLD = 85
"""Texts match if their token-set ratio, in whole per cent, is above this."""

COLOURS = (
    *("amber", "apricot", "aqua", "azure", "beige", "black", "blue", "blush", "bordeaux", "bronze", "brown", "burgundy", "caramel", "champagne"),
    *("charcoal", "chestnut", "chocolate", "cobalt", "coffee", "cognac", "copper", "coral", "cranberry", "cream", "crimson", "cyan", "denim"),
    *("emerald", "espresso", "fuchsia", "gold", "graphite", "gray", "green", "grey", "indigo", "ivory", "jade", "khaki", "lavender", "lemon", "lilac"),
    *("lime", "magenta", "maroon", "mauve", "mint", "mocha", "multicolor", "mustard", "navy", "nude", "ochre", "olive", "orange", "peach", "pewter"),
    *("pink", "plum", "purple", "rainbow", "red", "rose", "ruby", "rust", "salmon", "sand", "sapphire", "scarlet", "sienna", "silver", "slate", "tan"),
    *("taupe", "teal", "terracotta", "turquoise", "vanilla", "violet", "walnut", "wheat", "white", "wine", "yellow"),
)
"""Colour words in alphabetical order, which decides which one counts in a text with several."""

# WebShop finds the nouns of a title with a trained tagger. This list stands in for it: in a product's title, nearly all words that are none of these are nouns.
_NO_NOUNS = frozenset(
    (
        # articles, pronouns, prepositions, conjunctions, auxiliaries and adverbs
        *("about", "above", "after", "all", "also", "always", "an", "and", "any", "are", "around", "as", "at", "be", "before", "below", "between"),
        *("both", "but", "by", "can", "do", "does", "down", "each", "easily", "every", "extra", "for", "from", "fully", "has", "have", "her", "his"),
        *("how", "if", "in", "including", "inside", "into", "is", "it", "its", "just", "less", "like", "many", "may", "more", "most", "much", "my"),
        *("never", "no", "non", "not", "of", "off", "on", "only", "onto", "or", "other", "our", "out", "outside", "over", "per", "plus", "so", "some"),
        *("such", "than", "that", "the", "their", "them", "these", "they", "this", "those", "through", "to", "too", "ultra", "under", "up", "upon"),
        *("very", "via", "vs", "was", "we", "what", "when", "where", "which", "while", "who", "will", "with", "within", "without", "you", "your"),
        # number words
        *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "first", "second", "third", "double", "dual"),
        *("half", "multi", "quad", "single", "triple"),
        # adjectives
        *("active", "adjustable", "adorable", "amazing", "anti", "antique", "artificial", "assorted", "authentic", "automatic", "available", "basic"),
        *("beautiful", "best", "better", "big", "bright", "casual", "cheap", "classic", "clean", "clear", "colorful", "comfortable", "comfy"),
        *("compact", "compatible", "complete", "cool", "cordless", "cozy", "creative", "cute", "daily", "dark", "decorative", "deep", "delicious"),
        *("different", "digital", "disposable", "dry", "durable", "easy", "elastic", "electric", "elegant", "ergonomic", "essential", "excellent"),
        *("exclusive", "external", "fashionable", "fast", "female", "fine", "flat", "flexible", "foldable", "formal", "free", "fresh", "friendly"),
        *("full", "functional", "funny", "gentle", "genuine", "good", "great", "handmade", "happy", "hard", "healthy", "heavy", "high", "hot", "huge"),
        *("ideal", "independent", "indoor", "industrial", "internal", "large", "light", "lightweight", "little", "long", "loose", "lovely", "low"),
        *("luxurious", "luxury", "male", "manual", "medical", "medium", "mini", "modern", "natural", "new", "nice", "novelty", "old", "open"),
        *("optical", "organic", "original", "oversized", "perfect", "personal", "plain", "plush", "polarized", "popular", "portable", "powerful"),
        *("premium", "pretty", "professional", "pure", "quick", "rare", "raw", "real", "rechargeable", "reclaimed", "removable", "replaceable"),
        *("reusable", "rich", "romantic", "round", "rustic", "safe", "sensitive", "sexy", "sharp", "sheer", "short", "simple", "skinny", "slim"),
        *("small", "smart", "smooth", "soft", "solid", "special", "square", "stackable", "standard", "stylish", "super", "sweet", "synthetic"),
        *("tall", "thick", "thin", "tight", "tiny", "traditional", "transparent", "trendy", "universal", "unique", "unscented", "upholstered"),
        *("vegan", "versatile", "vibrant", "vintage", "warm", "washable", "waterproof", "wearable", "wide", "wireless", "wooden", "young"),
        # forms of verbs
        *("based", "breathable", "built", "buy", "certified", "designed", "distressed", "enhanced", "enriched", "fits", "fitted", "flavored", "get"),
        *("give", "hanging", "improved", "inspired", "insulated", "keep", "lasting", "made", "make", "makes", "moisturizing", "packed", "padded"),
        *("printed", "provide", "provides", "reclining", "refurbished", "renewed", "replacing", "resistant", "roasted", "save", "scented"),
        *("sculpted", "striped", "sweetened", "unsweetened", "updated", "upgraded", "use", "used", "using"),
        # basic colours; the other colour words are often the product itself: coffee, cream, denim
        *("beige", "black", "blue", "brown", "gray", "green", "grey", "multicolor", "pink", "purple", "red", "white", "yellow"),
    )
)
_WORD = re.compile(r"[^\W\d_]{2,}")


def similar(first: str, second: str) -> bool:
    """Whether two texts are equal, or nearly: their token-set ratio, without regard to case and punctuation and rounded to whole per cent, is above 85."""
    # texts of punctuation alone have no tokens, and still equal themselves
    return first == second or round(fuzz.token_set_ratio(first, second, processor=utils.default_process)) > THRESHOLD


def normalised_colour(text: str) -> str:
    """The first of the colour words, in alphabetical order, that stands anywhere in a text in lower case, be it inside a word; without any, the text.

    The rule is WebShop's, the list is our own and has colours only.
    """
    return next((colour for colour in COLOURS if colour in text), text)


def nouns(title: str) -> frozenset[str]:
    """The nouns of a title, lower case: its words of two letters or more that are not in a list of other words."""
    return frozenset(word for word in _WORD.findall(title.lower()) if word not in _NO_NOUNS)


def noun_overlap(wanted: str, bought: str) -> float:
    """The share of the wanted title's nouns that the bought title has, so 1 for a title with itself.

    A wanted title without nouns cannot be compared and gets 0.2, as in WebShop: neither a match nor a mismatch. A noun that a title repeats counts once here,
    in WebShop as often as the wanted title has it.
    """
    names = nouns(wanted)
    if not names:
        return 0.2
    return len(names & nouns(bought)) / len(names)
