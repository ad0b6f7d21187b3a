"""The constraints of a corpus, given implicitly: which rows of the dictionary must beat which.

Tokens are rows of a dictionary, so a constraint is a pair of rows: `<e_s - e_r, p> >= 1` where s is selected in some
sequence that also holds r. Equal ones are merged, and all are checked at the price of one product `E p` and a look-up
per pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.problem.corpus import TokenCorpus

PIECE = 1 << 22
"""Tokens looked at at once when the constraints are collected."""


@dataclass(frozen=True, eq=False)
class RowPairs:
    """The distinct constraints of a corpus: `heads[j]` must beat the rows `rivals[starts[j] : starts[j + 1]]`.

    **Attributes**
    - `heads`: selected rows of the dictionary, ascending.
    - `starts`: where the rivals of each head begin, and their number at the end.
    - `rivals`: rows that occur with the head in some sequence and are not selected there.
    - `ties`: pairs of rows selected in one sequence, whose logits must be equal.
    - `occurrences`: constraints before equal ones were merged.
    """

    heads: Int[Array, " h"]
    starts: Int[Array, " s"]
    rivals: Int[Array, " k"]
    ties: Int[Array, "q 2"]
    occurrences: int

    def __len__(self) -> int:
        return len(self.rivals)

    def margins(self, logits: Float[Array, " m"]) -> Float[Array, " k"]:
        """`<e_s - e_r, p>` of every pair, from the logits `E p`."""
        return np.repeat(logits[self.heads], np.diff(self.starts)) - logits[self.rivals]

    def plus(self, pairs: Int[Array, " c"]) -> Int[Array, " c"]:
        """The head of each of the given pairs."""
        return self.heads[np.searchsorted(self.starts, pairs, side="right") - 1]


def argmax_pairs(corpus: TokenCorpus, logits: Float[Array, " m"], *, tolerance: float = 0.0) -> RowPairs:
    """The constraints of the selection made by `logits = E p`: the tokens of largest logit of every sequence.

    Tokens within `tolerance` of the largest logit are selected too, and tied with it.
    """
    if logits.shape != (len(corpus.vocabulary),):
        raise ValueError(
            f"logits must have one entry per token of the vocabulary, {len(corpus.vocabulary)}, got {logits.shape}"
        )
    least, heads = np.empty(corpus.n), np.empty(corpus.n, dtype=np.intp)
    for piece in _pieces(corpus):
        ids, starts = corpus.tokens[piece.tokens], piece.starts
        values = logits[ids]
        least[piece.sequences] = np.maximum.reduceat(values, starts) - tolerance
        chosen = values >= np.repeat(least[piece.sequences], piece.lengths)
        # Of tied tokens the one of lowest row stands for all.
        heads[piece.sequences] = np.minimum.reduceat(np.where(chosen, ids, len(logits)), starts)
    return _merged(corpus, heads, lambda ids, piece: logits[ids] >= np.repeat(least[piece.sequences], piece.lengths))


def selected_pairs(corpus: TokenCorpus, selected: Int[Array, " n"]) -> RowPairs:
    """The constraints of a given selection: one token of the vocabulary per sequence."""
    if selected.shape != corpus.lengths.shape:
        raise ValueError(f"selected must be one token for each of the {corpus.n} sequences, got {selected.shape}")
    pairs = _merged(corpus, selected, lambda ids, piece: ids == np.repeat(selected[piece.sequences], piece.lengths))
    found = np.zeros(corpus.n, dtype=bool)
    found[corpus.sequence[corpus.tokens == np.repeat(selected, corpus.lengths)]] = True
    if not found.all():
        i = int(found.argmin())
        raise ValueError(f"the selected token {selected[i]} of sequence {i} does not occur in it")
    return pairs


class _Piece(NamedTuple):
    """Some sequences of a corpus, and where their tokens lie."""

    sequences: slice
    tokens: slice
    lengths: Int[Array, " s"]

    @property
    def starts(self) -> Int[Array, " s"]:
        """Where each sequence begins within the piece."""
        return np.cumsum(self.lengths) - self.lengths


def _pieces(corpus: TokenCorpus) -> Iterator[_Piece]:
    """The corpus in pieces of about `PIECE` tokens: memory stays bounded whatever its size."""
    ends = np.cumsum(corpus.lengths)
    first, begin = 0, 0
    while first < corpus.n:
        last = max(int(np.searchsorted(ends, begin + PIECE, side="right")), first + 1)
        yield _Piece(slice(first, last), slice(begin, int(ends[last - 1])), corpus.lengths[first:last])
        first, begin = last, int(ends[last - 1])


def _merged(corpus: TokenCorpus, selected: Int[Array, " n"], choose: Callable[[Array, _Piece], Array]) -> RowPairs:
    """Mark every (head, rival) pair in a table of heads by vocabulary, and read the distinct ones off it."""
    vocabulary = len(corpus.vocabulary)
    unique, rank = np.unique(selected, return_inverse=True)
    table = np.zeros(len(unique) * vocabulary, dtype=bool)
    occurrences, ties = 0, [np.zeros((0, 2), dtype=np.intp)]
    for piece in _pieces(corpus):
        ids = corpus.tokens[piece.tokens]
        chosen = choose(ids, piece)
        table[(np.repeat(rank[piece.sequences] * vocabulary, piece.lengths) + ids)[~chosen]] = True
        occurrences += int((~chosen).sum())
        heads = np.repeat(selected[piece.sequences], piece.lengths)
        tied = chosen & (ids != heads)
        ties.append(np.unique(np.column_stack([heads[tied], ids[tied]]), axis=0).astype(np.intp))
    distinct = np.flatnonzero(table)
    counts = np.bincount(distinct // vocabulary, minlength=len(unique))
    return RowPairs(
        heads=unique.astype(np.intp),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        rivals=(distinct % vocabulary).astype(np.int32),
        ties=np.unique(np.concatenate(ties), axis=0),
        occurrences=occurrences,
    )
