"""What kinds of corpora share: sequences of token ids kept end to end, and tokens counted under two labels."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array


class EndToEnd:
    """Sequences as one array of ids and their lengths, so that they cost their tokens and not the longest of them."""

    tokens: Int[Array, " N"]
    lengths: Int[Array, " n"]
    vocabulary: tuple[str, ...]

    @property
    def n(self) -> int:
        """Number of sequences."""
        return len(self.lengths)

    @property
    def T(self) -> int:
        """Length of the longest sequence."""
        return int(self.lengths.max())

    @property
    def size(self) -> int:
        """Size of the vocabulary, `|S|`."""
        return len(self.vocabulary)

    @cached_property
    def sequence(self) -> Int[Array, " N"]:
        """Which sequence each token belongs to."""
        return np.repeat(np.arange(self.n), self.lengths)

    @cached_property
    def mask(self) -> Bool[Array, "n T"]:
        """Which positions of the padded layout hold a token."""
        return np.arange(self.T) < self.lengths[:, None]

    @cached_property
    def index(self) -> Int[Array, "n T"]:
        """The ids laid out per sequence, padded with zeros."""
        index = np.zeros((self.n, self.T), dtype=np.intp)
        index[self.mask] = self.tokens
        return index


class CountedByLabel:
    """Tokens counted in negative (row 0) and in positive (row 1) sequences, and what paper A reads off the counts."""

    counts: Int[Array, "2 m"]

    @cached_property
    def signed_frequency(self) -> Float[Array, " m"]:
        """`alpha_s` (3): occurrences in positive sequences less those in negative ones, over all tokens of the corpus.

        A quotient of integers, so its sign is exact. With sequences of one length it is what the first gradient step
        sees; with several, that is `signed_share`.
        """
        negative, positive = self.counts
        return np.asarray((positive - negative) / max(int(self.counts.sum()), 1))

    @cached_property
    def posterior_difference(self) -> Float[Array, " m"]:
        """`p(+1|s) - p(-1|s)` by counting (37): between -1 and 1; zero for a token that never occurs."""
        negative, positive = self.counts
        return np.asarray((positive - negative) / np.maximum(negative + positive, 1))
