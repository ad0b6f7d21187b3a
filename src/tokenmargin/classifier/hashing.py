"""Tokens known by the number that their spelling hashes to: no words have to be fixed before the first text.

Words and n-grams of each length have `buckets` numbers of their own. A bucket is known once it was met often enough;
the model has a row for each bucket that is known. Tokens that fall into one bucket are one token to the model: it gives
them one logit and one value, and its name lists those that were met, the first `SPELLED` of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.solver import Labelled
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.vocabulary import Encoded
from tokenmargin.data.words import Words

SPELLED = 3  # spellings kept for each bucket
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False, repr=False)
class HashedVocabulary:
    """Buckets of words, of pairs of words, and so on.

    **Attributes**
    - `buckets`: how many there are for each length of an n-gram. `ngrams`: the longest.
    - `minimum`: how often a bucket must be met to be known.
    - `counts`: how often each was. `spellings`: tokens that fell into it, by its number.
    """

    buckets: int
    ngrams: int
    minimum: int
    counts: Float[Array, " all"]
    spellings: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @staticmethod
    def empty(buckets: int, *, ngrams: int, minimum: int) -> HashedVocabulary:
        """One that has met no text."""
        return HashedVocabulary(buckets, ngrams, minimum, np.zeros(ngrams * buckets))

    def __len__(self) -> int:
        return len(self.known)

    def __repr__(self) -> str:
        return f"<HashedVocabulary of {len(self)} known of {len(self.counts)} buckets>"

    @cached_property
    def known(self) -> Int[Array, " m"]:
        """The buckets that are known, rising: the rows of a model."""
        return np.flatnonzero(self.counts >= max(self.minimum, 1e-300))

    @cached_property
    def _rows(self) -> Int[Array, " all_plus_1"]:
        rows = np.full(len(self.counts) + 1, -1, np.int32)  # the last for what is no token
        rows[self.known] = np.arange(len(self.known))
        return rows

    @cached_property
    def names(self) -> list[str]:
        """The spellings of every known bucket; several that share it with a bar between."""
        return [" | ".join(self.spellings[bucket]) for bucket in self.known.tolist()]

    def encode(self, words: Words) -> Encoded:
        """Documents in the buckets that are known."""
        return Encoded([self._rows[level] for level in self.in_buckets(words).levels], words, shared=True)

    def in_buckets(self, words: Words) -> Encoded:
        """Documents in all buckets, known or not."""
        digests = [blake2b(w.encode("utf-8", "surrogatepass"), digest_size=8).digest() for w in words.distinct]
        of_word = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
        last = of_word[words.codes]
        plain, levels = Encoded([], words), list[Array]()
        segment, mixed = plain.segment, last
        for n in range(1, self.ngrams + 1):
            if n > 1:
                mixed = _mix(mixed[:-1] * _ODD + last[n - 1 :]) if len(mixed) else mixed
            ids = np.full(len(last), -1, np.int64)
            inside = segment[: len(mixed)] == segment[len(segment) - len(mixed) :]
            ids[: len(mixed)][inside] = (mixed[inside] % np.uint64(self.buckets)).astype(np.int64)
            levels.append(np.where(ids >= 0, ids + (n - 1) * self.buckets, -1))
        return replace(plain, levels=levels, shared=True)

    def with_words(self, words: Words, weight: Float[Array, " n"] | None = None) -> HashedVocabulary:
        """The same after more documents, of which each counts `weight` times."""
        met, counts, spellings = self.in_buckets(words), self.counts.copy(), dict(self.spellings)
        times = None if weight is None else weight[met.segment]
        for n, ids in enumerate(met.levels):
            at = np.flatnonzero(ids >= 0)
            counts += np.bincount(ids[at], None if times is None else times[at], len(counts))
            for first in _distinct(words.codes, at, n + 1).tolist():
                name = " ".join(words.distinct[code] for code in words.codes[first : first + n + 1])
                before = spellings.get(int(ids[first]), ())
                if len(before) < SPELLED and name not in before:
                    spellings[int(ids[first])] = (*before, name)
        return replace(self, counts=counts, spellings=spellings)

    def of_texts(self, data: Labelled) -> HashedVocabulary:
        """The same with the counts of these texts alone, which are given in all buckets."""
        return replace(self, counts=np.asarray(data.matrix.T @ data.weight))

    def tensors(self) -> dict[str, Array]:
        """Arrays for a file: the buckets that were met, and how often."""
        met = np.flatnonzero(self.counts)
        return {"buckets": met, "bucket_counts": self.counts[met]}

    def described(self) -> dict[str, object]:
        """What a file says of it in text: the spellings of the buckets that were met."""
        return {"spellings": [self.spellings[bucket] for bucket in np.flatnonzero(self.counts).tolist()]}

    @staticmethod
    def of_tensors(
        buckets: int, ngrams: int, minimum: int, arrays: Mapping[str, Array], described: Mapping[str, Any]
    ) -> HashedVocabulary:
        """The vocabulary of a file; refused where its numbers and spellings are none."""
        met, times, spelled = arrays["buckets"], arrays["bucket_counts"], described["spellings"]
        if met.ndim != 1 or met.dtype.kind != "i" or (np.diff(met, prepend=-1, append=ngrams * buckets) <= 0).any():
            raise ValueError("buckets must be whole numbers that rise, none too large")
        if times.shape != met.shape or len(spelled) != len(met) or not (times > 0).all() or np.isinf(times).any():
            raise ValueError("every bucket needs a count and its spellings")
        if not all(isinstance(names, list) and names and all(isinstance(n, str) for n in names) for names in spelled):
            raise ValueError("the spellings of the buckets must be text")
        counts = np.zeros(ngrams * buckets)
        counts[met] = times
        known = dict(zip(met.tolist(), map(tuple, spelled), strict=True))
        return HashedVocabulary(buckets, ngrams, minimum, counts, known)

    def moved(self, change: TokenModel, before: HashedVocabulary) -> TokenModel:
        """What a fit changed, in the rows of this vocabulary instead of those of an earlier one."""
        rows = self._rows[before.known]
        kept = rows >= 0
        logits, values = np.zeros(len(self)), np.zeros((len(self), change.values.shape[1]))
        logits[rows[kept]], values[rows[kept]] = change.logits[kept], change.values[kept]
        return replace(change, logits=logits, values=values)


def _mix(numbers: Array) -> Array:
    """Every bit of the answer depends on every bit of a number (the last steps of splitmix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


def _distinct(codes: Int[Array, " words"], at: Int[Array, " places"], n: int) -> Int[Array, " distinct"]:
    """Of the places where n-grams begin, the first of each that is spelled alike, in the order of the text."""
    number = np.zeros(len(at), np.int64)
    for place in range(n):  # the number of the first words, and that of the next, as one number
        pair = number * (int(codes.max(initial=0)) + 1) + codes[at + place]
        _, first, number = np.unique(pair, return_index=True, return_inverse=True)
    return np.sort(at[first])
