"""BM25 search as Lucene computes it, with the parameters of WebShop's search engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from threespo_envs.webshop.analysis import terms

K1, B = 0.9, 0.4
HITS = 50
"""WebShop shows at most so many hits."""


class SearchIndex:
    """Texts that can be searched by words. Read-only once made, so episodes may share it.

    A document's score is the sum, over the words of the query, of ``idf * tf / (tf + k1 * (1 - b + b * length / mean length))`` with
    ``idf = ln(1 + (N - n + 0.5) / (n + 0.5))``: tf counts the word in the document, n of the N documents contain it. A word that the query
    repeats counts as often as it stands there. Lengths are rounded down to the values that Lucene's one-byte encoding has, and the arithmetic
    is in single precision where Lucene's is, because both decide the order of near ties. True ties are broken by position: WebShop's search
    engine breaks them by asin, so give the texts in the order of their asins for its results.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        analysed = [terms(text) for text in texts]
        lengths = np.array([len(words) for words in analysed], dtype=np.int64)
        filled = max(int((lengths > 0).sum()), 1)  # Lucene counts documents that have the field, and one without words does not
        mean = np.float32(max(int(lengths.sum()), 1) / filled)
        rounded = np.array([quantised_length(int(length)) for length in lengths], dtype=np.float32)
        # 1 / (k1 * (1 - b + b * length / mean length))
        inverse_norm = np.float32(1) / (np.float32(K1) * (np.float32(1 - B) + np.float32(B) * rounded / mean))
        postings: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for position, words in enumerate(analysed):
            for word, count in Counter(words).items():
                postings[word].append((position, count))
        self._size = len(analysed)
        self._postings: dict[str, tuple[np.ndarray, np.ndarray, np.float32]] = {}
        for word, entries in postings.items():
            positions, counts = np.array(entries, dtype=np.int64).T
            # ln(1 + (N - n + 0.5) / (n + 0.5))
            idf = np.float32(np.log(1 + (filled - len(entries) + 0.5) / (len(entries) + 0.5)))
            # tf / (tf + k1 * (1 - b + b * length / mean length)) = 1 - 1 / (1 + tf * inverse norm)
            self._postings[word] = (positions, np.float32(1) + counts.astype(np.float32) * inverse_norm[positions], idf)

    def search(self, query: str, count: int = HITS) -> list[int]:
        """The positions of the best ``count`` texts that share a word with the query, best first; ties by position. Takes any query."""
        scores = np.zeros(self._size, dtype=np.float64)
        for word, repeated in Counter(terms(query)).items():
            if word in self._postings:
                positions, saturation, idf = self._postings[word]
                weight = np.float32(repeated) * idf
                scores[positions] += weight - weight / saturation
        found = np.flatnonzero(scores)
        order = np.argsort(-scores[found].astype(np.float32), kind="stable")
        return found[order][: max(count, 0)].tolist()


def quantised_length(length: int) -> int:
    """The document length that is left when Lucene stores it in one byte: exact below 40, then with four significant bits above an offset of 24."""
    free = 24  # the byte's values that the floating code does not need stand for themselves
    if length < free:
        return length
    rest = length - free
    shift = max(rest.bit_length() - 4, 0)
    return free + ((rest >> shift) << shift)
