"""Named random streams: every random draw of a run comes from (run seed, name of the stream, keys), and from nothing else.

Because a stream is addressed by name and not by how often it was asked, the draws for task 3, branch 2, turn 5 are the same
whatever else happened before: the same for every algorithm (matched sampling noise), for every batch composition, and after a resume.
"""

from __future__ import annotations

import hashlib

import numpy as np


class Streams:
    """The random streams of one run.

    Args:
        seed: the run's seed; two runs with equal seeds draw equal numbers from equal streams.
    """

    def __init__(self, seed: int) -> None:
        self.seed = int(seed)

    def integer(self, name: str, *keys: int | str) -> int:
        """A 63-bit seed for stream ``name`` at ``keys``; stable over processes, platforms and versions of Python."""
        text = "\x1f".join([str(self.seed), name, *map(str, keys)])
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def generator(self, name: str, *keys: int | str) -> np.random.Generator:
        """A fresh NumPy generator for stream ``name`` at ``keys``."""
        return np.random.Generator(np.random.PCG64(self.integer(name, *keys)))
