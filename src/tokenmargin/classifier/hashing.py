"""A vocabulary of hashed tokens, for which no words have to be fixed before the first text.

The spelling of a token is hashed to a number, its bucket. Words and n-grams of each length have `buckets` numbers of
their own. A bucket is known once it was met often enough, and the model has a row for each known bucket. All tokens of
a bucket are one token to the model, with one logit and one value; its name lists the first `SPELLED` that were met.
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

from tokenmargin.classifier.solver import LabelledTexts
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.vocabulary import EncodedTexts
from tokenmargin.data.words import Words

SPELLED = 3  # spellings kept for each bucket
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False, repr=False)
class HashedVocabulary:
    """Buckets of words, of pairs of words, and so on.

    **Attributes**
    - `buckets`: how many there are for each length of n-gram. `ngrams`: the longest n-gram.
    - `minimum`: how often a bucket must be met to be known.
    - `counts`: how often each bucket was met. `spellings`: for each bucket the first tokens that fell into it.
    """

    buckets: int
    ngrams: int
    minimum: int
    counts: Float[Array, " all"]
    spellings: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @staticmethod
    def empty(buckets: int, *, ngrams: int, minimum: int) -> HashedVocabulary:
        """A vocabulary that has met no text."""
        return HashedVocabulary(buckets, ngrams, minimum, np.zeros(ngrams * buckets))

    def __len__(self) -> int:
        return len(self.known)

    def __repr__(self) -> str:
        return f"<HashedVocabulary of {len(self)} known of {len(self.counts)} buckets>"

    @cached_property
    def known(self) -> Int[Array, " m"]:
        """The known buckets in rising order; they are the rows of a model."""
        return np.flatnonzero(self.counts >= max(self.minimum, 1e-300))

    @cached_property
    def _rows(self) -> Int[Array, " all_plus_1"]:
        rows = np.full(len(self.counts) + 1, -1, np.int32)  # the last for what is no token
        rows[self.known] = np.arange(len(self.known))
        return rows

    @cached_property
    def names(self) -> list[str]:
        """The name of every known bucket: its spellings, with bars between."""
        return [" | ".join(self.spellings[bucket]) for bucket in self.known.tolist()]

    def encode(self, words: Words) -> EncodedTexts:
        """Documents in the buckets that are known."""
        return EncodedTexts([self._rows[level] for level in self.in_buckets(words).levels], words, shared=True)

    def in_buckets(self, words: Words) -> EncodedTexts:
        """Documents in all buckets, known or not."""
        digests = [blake2b(w.encode("utf-8", "surrogatepass"), digest_size=8).digest() for w in words.distinct]
        of_word = np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
        last = of_word[words.codes]
        plain, levels = EncodedTexts([], words), list[Array]()
        # `mixed` is the hash of the n-gram that begins at each word: it goes on from that of its first n - 1 words. An
        # n-gram that would reach into the next document is none.
        segment, mixed = plain.segment, last
        for n in range(1, self.ngrams + 1):
            if n > 1:
                mixed = _mix_bits(mixed[:-1] * _ODD + last[n - 1 :]) if len(mixed) else mixed
            ids = np.full(len(last), -1, np.int64)
            inside = segment[: len(mixed)] == segment[len(segment) - len(mixed) :]
            ids[: len(mixed)][inside] = (mixed[inside] % np.uint64(self.buckets)).astype(np.int64)
            levels.append(np.where(ids >= 0, ids + (n - 1) * self.buckets, -1))
        return replace(plain, levels=levels, shared=True)

    def with_words(self, words: Words, weight: Float[Array, " n"] | None = None) -> HashedVocabulary:
        """The vocabulary after more documents, each of which counts `weight` times."""
        met, counts, spellings = self.in_buckets(words), self.counts.copy(), dict(self.spellings)
        times = None if weight is None else weight[met.segment]
        for n, ids in enumerate(met.levels):
            at = np.flatnonzero(ids >= 0)
            counts += np.bincount(ids[at], None if times is None else times[at], len(counts))
            for first in _first_places(words.codes, at, n + 1).tolist():
                name = " ".join(words.distinct[code] for code in words.codes[first : first + n + 1])
                before = spellings.get(int(ids[first]), ())
                if len(before) < SPELLED and name not in before:
                    spellings[int(ids[first])] = (*before, name)
        return replace(self, counts=counts, spellings=spellings)

    def counted_on(self, data: LabelledTexts) -> HashedVocabulary:
        """The vocabulary with the counts of these texts alone; their matrix has a column for every bucket."""
        return replace(self, counts=np.asarray(data.matrix.T @ data.weight))

    def tensors(self) -> dict[str, Array]:
        """The arrays that a file holds of it: the buckets that were met, and how often."""
        met = np.flatnonzero(self.counts)
        return {"buckets": met, "bucket_counts": self.counts[met]}

    def json_content(self) -> dict[str, object]:
        """What a JSON file holds of it: the spellings of the buckets that were met."""
        return {"spellings": [self.spellings[bucket] for bucket in np.flatnonzero(self.counts).tolist()]}

    @staticmethod
    def of_tensors(
        buckets: int, ngrams: int, minimum: int, arrays: Mapping[str, Array], described: Mapping[str, Any]
    ) -> HashedVocabulary:
        """The vocabulary of a file; ValueError if its numbers or spellings are not such as `tensors` gives."""
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

    def change_in_own_rows(self, change: TokenModel, before: HashedVocabulary) -> TokenModel:
        """The change of a fit over the rows of an earlier vocabulary, as one over the rows of this vocabulary."""
        rows = self._rows[before.known]
        kept = rows >= 0
        logits, values = np.zeros(len(self)), np.zeros((len(self), change.values.shape[1]))
        logits[rows[kept]], values[rows[kept]] = change.logits[kept], change.values[kept]
        return replace(change, logits=logits, values=values)


def _mix_bits(numbers: Array) -> Array:
    """Mix the bits of numbers so that every bit of the answer depends on every bit given (as splitmix64 ends)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))


def _first_places(codes: Int[Array, " words"], at: Int[Array, " places"], n: int) -> Int[Array, " distinct"]:
    """Of the places `at` where n-grams begin, the first place of every distinct n-gram, in the order of the text."""
    number = np.zeros(len(at), np.int64)
    for place in range(n):  # one number for the words so far and the next word, made small again by `unique`
        pair = number * (int(codes.max(initial=0)) + 1) + codes[at + place]
        _, first, number = np.unique(pair, return_index=True, return_inverse=True)
    return np.sort(at[first])
