"""Sequences of token ids, kept end to end: what a labelled corpus and a next-token problem share."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int
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
