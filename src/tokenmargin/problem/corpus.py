"""TokenCorpus: labelled sequences of vocabulary tokens, and the statistics that paper A's theory reads off them.

*Attention with Trained Embeddings Provably Selects Important Tokens* explains what attention learns by how often a
token appears under each label. Sequences may differ in length; they are kept end to end, so that a corpus of reviews
costs its tokens and not its longest review.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from tokenmargin.norms import EPS
from tokenmargin.problem.abstract_geometry import as_array, read_only


class FlatSequences:
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


@dataclass(frozen=True)
class Assumption4:
    """Whether every sequence holds one completely positive or negative token, all others being irrelevant.

    - `offending`: (sequence, reason) for each sequence that breaks it.
    """

    offending: tuple[tuple[int, str], ...] = ()

    @property
    def holds(self) -> bool:
        return not self.offending


@dataclass(frozen=True, eq=False)
class TokenCorpus(FlatSequences, CountedByLabel):
    """Sequences of token ids with labels.

    **Arguments**
    - `tokens`: the ids of all sequences, end to end.
    - `lengths`: how many tokens each sequence has.
    - `labels`: -1 or +1 per sequence.
    - `vocabulary`: what each id stands for; ids themselves by default.

    >>> corpus = TokenCorpus.of([["good", "film"], ["bad", "film"]], [1, -1])
    >>> dict(zip(corpus.vocabulary, corpus.signed_frequency.tolist()))
    {'good': 0.25, 'film': 0.0, 'bad': -0.25}
    >>> corpus.assumption4().holds
    True
    """

    tokens: Int[Array, " N"]
    lengths: Int[Array, " n"]
    labels: Float[Array, " n"]
    vocabulary: tuple[str, ...]

    def __post_init__(self) -> None:
        tokens, lengths = np.asarray(self.tokens), np.asarray(self.lengths)
        labels = as_array("labels", self.labels, float)
        if lengths.ndim != 1 or len(lengths) == 0 or lengths.min() < 1:
            raise ValueError("a corpus needs at least one sequence, and each sequence at least one token")
        if tokens.dtype.kind not in "iu" or tokens.shape != (lengths.sum(),):
            raise ValueError(f"tokens must be {lengths.sum()} integers (the lengths' sum), got {tokens.shape}")
        if labels.shape != lengths.shape or not np.isin(labels, (-1.0, 1.0)).all():
            raise ValueError(f"labels must be -1 or +1, one for each of the {len(lengths)} sequences")
        if tokens.min() < 0 or tokens.max() >= len(self.vocabulary):
            raise ValueError(
                f"tokens must lie in 0..{len(self.vocabulary) - 1} (the vocabulary), got {tokens.min()}..{tokens.max()}"
            )
        for name, array in (
            ("tokens", tokens.astype(np.intp)),
            ("lengths", lengths.astype(np.intp)),
            ("labels", labels),
        ):
            object.__setattr__(self, name, read_only(array))

    @classmethod
    def of(cls, sequences: Iterable[Sequence[object]], labels: ArrayLike) -> TokenCorpus:
        """From sequences of words (or any hashable tokens); ids are given in order of first appearance."""
        ids: dict[object, int] = {}
        rows = [[ids.setdefault(token, len(ids)) for token in sequence] for sequence in sequences]
        flat = np.array([token for row in rows for token in row], dtype=np.intp)
        lengths = np.array([len(row) for row in rows], dtype=np.intp)
        return cls(flat, lengths, as_array("labels", labels, float), tuple(str(token) for token in ids))

    @cached_property
    def counts(self) -> Int[Array, "2 m"]:  # type: ignore[override]  # computed, not given
        """Occurrences of each token in negative (row 0) and in positive (row 1) sequences."""
        positive = self.labels[self.sequence] > 0
        return np.stack([np.bincount(self.tokens[side], minlength=self.size) for side in (~positive, positive)])

    @cached_property
    def signed_share(self) -> Float[Array, " m"]:
        """Mean over sequences of y times the share of positions that hold s: (3) with each sequence's own length T.

        What the first gradient step adds along v, whatever the lengths; equal to `signed_frequency` where they agree.
        """
        if self.lengths.min() == self.T:
            return self.signed_frequency
        weights = (self.labels / self.lengths)[self.sequence]
        sums = np.bincount(self.tokens, weights=weights, minlength=self.size)
        # One rounding per term and one per addition: a sum within that of zero is called zero.
        noise = 4 * EPS * np.bincount(self.tokens, weights=np.abs(weights), minlength=self.size)
        return np.where(np.abs(sums) <= noise, 0.0, sums) / self.n

    @cached_property
    def sole_label(self) -> Int[Array, " m"]:
        """+1 for tokens seen only in positive sequences, -1 only in negative ones, 0 otherwise (Definition 1)."""
        negative, positive = self.counts
        return np.where(negative == 0, np.sign(positive), 0) - np.where(positive == 0, np.sign(negative), 0)

    @cached_property
    def token_class(self) -> Int[Array, " m"]:
        """+1 positive, -1 negative, 0 irrelevant: the sign of `alpha_s`, by occurrences (Definition 1)."""
        negative, positive = self.counts
        return np.sign(positive - negative).astype(np.intp)

    @cached_property
    def important(self) -> Bool[Array, "n T"]:
        """Positions that hold a completely positive or completely negative token."""
        return np.asarray((self.sole_label[self.index] != 0) & self.mask)

    def assumption4(self) -> Assumption4:
        """Check Assumption 4 by Definition 1, and name the sequences that break it.

        A sequence is its T positions, as in (1): with an important token that stands in it twice it has two.
        """
        offending = []
        number = self.important.sum(axis=1)
        mixed = (self.sole_label == 0) & (self.token_class != 0)
        for i in range(self.n):
            row = self.index[i, : self.lengths[i]]
            if number[i] != 1:
                words = ", ".join(self.vocabulary[s] for s in row[self.sole_label[row] != 0]) or "none"
                offending.append((i, f"{number[i]} completely positive or negative tokens ({words}); needs one"))
            elif mixed[row].any():
                word = self.vocabulary[row[mixed[row]][0]]
                offending.append((i, f"token {word} is neither irrelevant nor confined to one label"))
        return Assumption4(tuple(offending))

    def __repr__(self) -> str:
        return f"TokenCorpus(n={self.n}, T={self.T}, vocabulary={self.size})"
