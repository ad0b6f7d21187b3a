"""Which texts are held out: copies of a text always together, and the same texts whatever the order of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray as Array


def distinct(documents: Sequence[Any]) -> Int[Array, " n"]:
    """The number of each document, equal for equal ones, in the order of their first row.

    >>> distinct(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    numbers: dict[Any, int] = {}
    keys = (document if isinstance(document, str) else tuple(document) for document in documents)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def draw(documents: Sequence[Any], seed: int) -> Array:
    """A random number for each document that depends on the seed and on what it says, not on its row."""
    key = int(seed).to_bytes(8, "little")
    written = (document if isinstance(document, str) else " ".join(document) for document in documents)
    digests = b"".join(blake2b(t.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest() for t in written)
    return np.frombuffer(digests, np.uint64)


def _ranks(codes: Int[Array, " n"], chance: Array) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
    """The rank of each row by chance within its class, and the size of that class."""
    order = np.lexsort((chance, codes))
    sizes = np.bincount(codes)
    first = np.cumsum(sizes) - sizes
    rank = np.empty(len(codes), np.int64)
    rank[order] = np.arange(len(codes)) - np.repeat(first, sizes)
    return rank, sizes[codes]


def held_out(codes: Int[Array, " n"], chance: Array, fraction: float) -> Bool[Array, " n"]:
    """A mask of the rows of smallest chance, the same part of every class."""
    rank, sizes = _ranks(codes, chance)
    return rank < np.round(fraction * sizes)


def fold_numbers(codes: Int[Array, " n"], chance: Array, folds: int) -> Int[Array, " n"]:
    """For each row the fold that it is held out of, evenly by class.

    >>> fold_numbers(np.array([0, 0, 1, 1]), np.array([3, 1, 4, 2]), 2).tolist()
    [1, 0, 1, 0]
    """
    return _ranks(codes, chance)[0] % folds
