"""A vocabulary of words and n-grams, and documents as ids of its tokens.

An n-gram is identified by the number of its first n - 1 words and the number of its last word, so counting n-grams is
counting integers. An n-gram never occurs more often than its parts, so those with a rare part are not counted at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.data.words import Words


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """The known tokens of documents.

    **Attributes**
    - `levels`: for n = 1, 2, ... the id of the n-gram that begins at each word; -1 where no known one does.
    - `words`: the words of the documents, with their places.
    - `shared`: whether tokens with different spellings may have the same id.
    """

    levels: list[Int[Array, " words"]]
    words: Words
    shared: bool = False

    @property
    def n(self) -> int:
        """Number of documents."""
        return len(self.words.offsets) - 1

    @cached_property
    def segment(self) -> Int[Array, " words"]:
        """The document of each word."""
        return np.repeat(np.arange(self.n, dtype=np.int32), np.diff(self.words.offsets))

    def presence(self, m: int, *, repeats: bool = False) -> sp.csr_matrix:
        """A matrix with 1 where a document holds one of the `m` tokens; with `repeats`, how often it does."""
        blocks = []
        for ids in self.levels:
            kept = ids >= 0
            pointers = np.concatenate([[0], np.cumsum(kept)])[self.words.offsets]
            block = sp.csr_matrix((np.ones(int(pointers[-1])), ids[kept], pointers), shape=(self.n, m))
            block.sum_duplicates()
            blocks.append(block)
        total = sum(blocks[1:], start=blocks[0])
        if not repeats:
            total.data[:] = 1
        return total


@dataclass(frozen=True, eq=False, repr=False)
class Vocabulary:
    """Words, and n-grams over them.

    **Attributes**
    - `words`: the words, sorted.
    - `keys`: for n = 2, 3, ...: sorted numbers `first * len(words) + last`, where `first` counts (n-1)-grams.
    """

    words: tuple[str, ...]
    keys: tuple[Int[Array, " _"], ...] = ()

    @staticmethod
    def learn(
        words: Words,
        *,
        ngrams: int,
        minimum: int,
        minimum_gram: int,
        most: int | None = None,
        weight: Float[Array, " n"] | None = None,
        known: Sequence[str] | None = None,
    ) -> tuple[Vocabulary, EncodedTexts]:
        """The vocabulary of documents, and the documents in it.

        **Arguments**
        - `ngrams`: the longest n-gram.
        - `minimum`, `minimum_gram`: how often a word, and a longer n-gram, must occur.
        - `most`: how many words are kept, the most frequent (of equals the first in the alphabet); None for all.
        - `weight`: as how many documents each counts; None for one each.
        - `known`: the words, however often they occur; None for those that occur often enough.
        """
        times = None if weight is None else np.repeat(weight, np.diff(words.offsets))
        counts = np.bincount(words.codes, times, minlength=len(words.distinct))
        often = [(-counts[code], word) for code, word in enumerate(words.distinct) if counts[code] >= minimum]
        kept = sorted({*known} if known is not None else (word for _, word in sorted(often)[:most]))
        row_of = {word: row for row, word in enumerate(kept)}
        rank = np.array([row_of.get(word, -1) for word in words.distinct] + [-1], np.int32)
        keys: list[Array] = []
        encoded = EncodedTexts([rank[words.codes]], words)
        below, base = 0, len(kept)  # the first ids of the (n-1)-grams and of the n-grams
        for n in range(2, ngrams + 1):
            numbers, places = _ngram_numbers(encoded, n, len(kept), below)
            found, row = _frequent_numbers(numbers, minimum_gram, None if times is None else times[places])
            ids = np.full(len(words.codes), -1, np.int32)
            ids[places] = np.where(row >= 0, row + base, -1)
            keys.append(found)
            encoded.levels.append(ids)
            below, base = base, base + len(found)
        return Vocabulary(tuple(kept), tuple(keys)), encoded

    def __repr__(self) -> str:
        return f"<Vocabulary of {len(self.words)} words and {len(self) - len(self.words)} longer n-grams>"

    def __len__(self) -> int:
        return len(self.words) + sum(map(len, self.keys))

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def _tables(self) -> tuple[_HashTable, ...]:
        return tuple(_HashTable.of(keys) for keys in self.keys)

    @cached_property
    def names(self) -> list[str]:
        """The spelling of every token; the words of an n-gram with a blank between."""
        names = list(self.words)
        before = names
        for keys in self.keys:
            first, last = np.divmod(keys, max(len(self.words), 1))
            before = [f"{before[a]} {self.words[b]}" for a, b in zip(first.tolist(), last.tolist(), strict=True)]
            names = names + before
        return names

    def tensors(self) -> dict[str, Array]:
        """The arrays that a file holds of it."""
        return {f"grams_{n}": keys for n, keys in enumerate(self.keys, start=2)}

    def json_content(self) -> dict[str, object]:
        """What a JSON file holds of it."""
        return {"words": self.words}

    def encode(self, words: Words) -> EncodedTexts:
        """Documents in this vocabulary."""
        rows = np.array([self._rows.get(word, -1) for word in words.distinct] or [-1], np.int32)
        encoded = EncodedTexts([rows[words.codes]], words)
        below, base = 0, len(self.words)  # the first ids of the (n-1)-grams and of the n-grams
        for n, keys in enumerate(self.keys, start=2):
            numbers, places = _ngram_numbers(encoded, n, len(self.words), below)
            ids = np.full(len(words.codes), -1, np.int32)
            row = self._tables[n - 2].find(numbers)
            ids[places] = np.where(row >= 0, row + base, -1)
            encoded.levels.append(ids)
            below, base = base, base + len(keys)
        return encoded


@dataclass(frozen=True, eq=False)
class _HashTable:
    """A hash table from distinct numbers, none negative, to rows: open addressing, with at least three slots a number.

    It is some five times faster than a binary search, which misses the cache at every step.
    """

    keys: Int[Array, " slots"]
    rows: Int[Array, " slots"]

    @staticmethod
    def of(numbers: Int[Array, " k"]) -> _HashTable:
        """A table of `numbers`; the row of a number is its place among them."""
        size = 1 << max(4, (3 * len(numbers)).bit_length())
        table = _HashTable(np.full(size, -1, np.int64), np.full(size, -1, np.int32))
        rows, slots = np.arange(len(numbers)), table._slots(numbers)
        # All numbers try their slots at once; those whose slot is taken try the next slot together.
        while len(rows):
            free = table.keys[slots] < 0
            table.keys[slots[free]] = numbers[rows[free]]  # of several that want a slot, the last one gets it
            table.rows[slots[free]] = rows[free]
            left = table.keys[slots] != numbers[rows]
            rows, slots = rows[left], (slots[left] + 1) & (size - 1)
        return table

    def _slots(self, numbers: Int[Array, " k"]) -> Int[Array, " k"]:
        # Fibonacci hashing: 2^64 over the golden ratio spreads runs of near numbers, and the top bits are best mixed.
        shift = np.uint64(64 - (len(self.keys).bit_length() - 1))
        return ((numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> shift).astype(np.int64)

    def find(self, numbers: Int[Array, " k"]) -> Int[Array, " k"]:
        """The row of each number, -1 where it is not in the table."""
        slots = self._slots(numbers)
        stored = self.keys[slots]
        rows = np.where(stored == numbers, self.rows[slots], np.int32(-1))
        # An empty slot ends a search: a number in the table would have taken it.
        asked = np.flatnonzero((stored != numbers) & (stored >= 0))
        slots = slots[asked]
        while len(asked):
            slots = (slots + 1) & (len(self.keys) - 1)
            stored = self.keys[slots]
            hit = stored == numbers[asked]
            rows[asked[hit]] = self.rows[slots[hit]]
            more = ~hit & (stored >= 0)
            asked, slots = asked[more], slots[more]
        return rows


def _ngram_numbers(encoded: EncodedTexts, n: int, size: int, below: int) -> tuple[Array, Array]:
    """Numbers of the n-grams with known parts, and the places where they begin; `below` ids precede the (n-1)-grams."""
    # The n-gram at a word is the (n-1)-gram that begins there and the word n - 1 places on, in the same text.
    first, last, segment = encoded.levels[-1], encoded.levels[0], encoded.segment
    stop = max(len(last) - n + 1, 0)
    first, last = first[:stop], last[n - 1 :]
    places = np.flatnonzero((first >= 0) & (last >= 0) & (segment[:stop] == segment[n - 1 :]))
    return (first[places].astype(np.int64) - below) * size + last[places], places


def _frequent_numbers(numbers: Int[Array, " k"], minimum: int, times: Float[Array, " k"] | None) -> tuple[Array, Array]:
    """The sorted numbers seen at least `minimum` times, and for each number its row among them or -1."""
    import pyarrow as pa

    coded = pa.array(numbers).dictionary_encode()
    codes, distinct = np.asarray(coded.indices), np.asarray(coded.dictionary)
    often = np.flatnonzero(np.bincount(codes, times, minlength=len(distinct)) >= minimum)
    often = often[np.argsort(distinct[often])]
    rank = np.full(len(distinct) + 1, -1, np.int64)
    rank[often] = np.arange(len(often))
    return distinct[often], rank[codes]


def segment_sum(values: Float[Array, " words"], offsets: Int[Array, " n_plus_1"]) -> Float[Array, " n"]:
    """Sums over consecutive segments, some of them empty.

    >>> segment_sum(np.array([1.0, 2.0, 4.0]), np.array([0, 2, 2, 3])).tolist()
    [3.0, 0.0, 4.0]
    """
    total = np.zeros(len(offsets) - 1)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        total[filled] = np.add.reduceat(values, offsets[filled])
    return total


def segment_max(values: Float[Array, " words"], offsets: Int[Array, " n_plus_1"]) -> Float[Array, " n"]:
    """Maxima over consecutive segments, -inf for empty ones."""
    largest = np.full(len(offsets) - 1, -np.inf)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        largest[filled] = np.maximum.reduceat(values, offsets[filled])
    return largest
