"""The constraints of a corpus: which rows of the dictionary must beat which, and those from which the others follow.

Tokens are rows of a dictionary, so a constraint is a pair of rows: `<e_s - e_r, p> >= 1` where s is selected in some
sequence that also holds r. Equal ones are merged, and all are checked at the price of one product `E p` and a look-up
per pair.

`s` before `r` and `r` before `u`, each by 1, put `s` before `u` by 2: the constraint of (s, u) is slack whatever the
vectors are. What is left is the transitive reduction of the order, the edges of its Hasse diagram. A corpus selected
by an argmax is ordered by the logits, and millions of pairs shrink to some tens of thousands. A selection that is no
order holds a cycle, and a cycle is a proof that there is no solution: its rows add up to exactly zero.

As rows of the max-margin problem the constraints are differences of dictionary rows (`Differences`): products with very
many of them are computed without forming them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.problem.corpus import TokenCorpus

PIECE = 1 << 22
"""Tokens looked at at once when the constraints are collected."""
BLOCK = 256
"""Columns of the normal matrix computed at once: only its lower triangle is."""
FORMED = 4096
"""Rows that are formed at a time, where the differences themselves are needed."""


@dataclass(frozen=True, eq=False)
class RowPairs:
    """The distinct constraints of a corpus: `selected[j]` must beat the rows `rivals[starts[j] : starts[j + 1]]`.

    **Attributes**
    - `selected`: the selected rows of the dictionary, ascending.
    - `starts`: where the rivals of each of them begin, and their number at the end.
    - `rivals`: rows that occur with it in some sequence and are not selected there.
    - `ties`: pairs of rows selected in one sequence, whose logits must be equal.
    - `occurrences`: constraints before equal ones were merged.
    - `tied_dimensions`: how many dimensions the ties span at most, where that is known.
    """

    selected: Int[Array, " h"]
    starts: Int[Array, " s"]
    rivals: Int[Array, " k"]
    ties: Int[Array, "q 2"]
    occurrences: int
    tied_dimensions: int | None = None

    def __len__(self) -> int:
        return len(self.rivals)

    def margins(self, logits: Float[Array, " m"]) -> Float[Array, " k"]:
        """`<e_s - e_r, p>` of every pair, from the logits `E p`."""
        return np.repeat(logits[self.selected], np.diff(self.starts)) - logits[self.rivals]

    def plus(self, pairs: Int[Array, " c"]) -> Int[Array, " c"]:
        """The selected row of each of the given pairs."""
        return self.selected[np.searchsorted(self.starts, pairs, side="right") - 1]


def argmax_pairs(corpus: TokenCorpus, logits: Float[Array, " m"], *, tolerance: float = 0.0) -> RowPairs:
    """The constraints of the selection made by `logits = E p`: the tokens of largest logit of every sequence.

    Tokens within `tolerance` of the largest logit are selected too, and tied with it.
    """
    if logits.shape != (len(corpus.vocabulary),):
        raise ValueError(
            f"logits must have one entry per token of the vocabulary, {len(corpus.vocabulary)}, got {logits.shape}"
        )
    least, selected = np.empty(corpus.n), np.empty(corpus.n, dtype=np.intp)
    for piece in _pieces(corpus):
        ids, starts = corpus.tokens[piece.tokens], piece.starts
        values = logits[ids]
        least[piece.sequences] = np.maximum.reduceat(values, starts) - tolerance
        chosen = values >= np.repeat(least[piece.sequences], piece.lengths)
        # Of tied tokens the one of lowest row stands for all.
        selected[piece.sequences] = np.minimum.reduceat(np.where(chosen, ids, len(logits)), starts)
    return _merge_pairs(
        corpus, selected, lambda ids, piece: logits[ids] >= np.repeat(least[piece.sequences], piece.lengths)
    )


def selected_pairs(corpus: TokenCorpus, selected: Int[Array, " n"]) -> RowPairs:
    """The constraints of a given selection: one token of the vocabulary per sequence."""
    if selected.shape != corpus.lengths.shape:
        raise ValueError(f"selected must be one token for each of the {corpus.n} sequences, got {selected.shape}")
    pairs = _merge_pairs(
        corpus, selected, lambda ids, piece: ids == np.repeat(selected[piece.sequences], piece.lengths)
    )
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


def _merge_pairs(corpus: TokenCorpus, selected: Int[Array, " n"], choose: Callable[[Array, _Piece], Array]) -> RowPairs:
    """Mark every (selected, rival) pair in a table of both, and read the distinct ones off it."""
    vocabulary = len(corpus.vocabulary)
    unique, rank = np.unique(selected, return_inverse=True)
    table = np.zeros(len(unique) * vocabulary, dtype=bool)
    occurrences, ties = 0, [np.zeros((0, 2), dtype=np.intp)]
    for piece in _pieces(corpus):
        ids = corpus.tokens[piece.tokens]
        chosen = choose(ids, piece)
        table[(np.repeat(rank[piece.sequences] * vocabulary, piece.lengths) + ids)[~chosen]] = True
        occurrences += int((~chosen).sum())
        owners = np.repeat(selected[piece.sequences], piece.lengths)
        tied = chosen & (ids != owners)
        ties.append(np.unique(np.column_stack([owners[tied], ids[tied]]), axis=0).astype(np.intp))
    distinct = np.flatnonzero(table)
    counts = np.bincount(distinct // vocabulary, minlength=len(unique))
    return RowPairs(
        selected=unique.astype(np.intp),
        starts=np.concatenate([[0], np.cumsum(counts)]),
        rivals=(distinct % vocabulary).astype(np.int32),
        ties=np.unique(np.concatenate(ties), axis=0),
        occurrences=occurrences,
    )


class ReducedPairs(NamedTuple):
    """Numbers of the pairs that imply all others; or of pairs that form a cycle, which rules out a solution."""

    numbers: Int[Array, " c"]
    cyclic: bool


class _Order(NamedTuple):
    """A relation between nodes: `before[j]` is before `rivals[starts[j] : starts[j + 1]]`, by the pairs `numbers`."""

    before: Int[Array, " h"]
    starts: Int[Array, " s"]
    rivals: Int[Array, " k"]
    numbers: Int[Array, " k"]
    nodes: int

    def after(self, j: int) -> slice:
        """Where the rivals of `before[j]` lie."""
        return slice(int(self.starts[j]), int(self.starts[j + 1]))


def transitive_reduction(pairs: RowPairs, rows: int) -> ReducedPairs:
    """The pairs from which all others follow, of a dictionary with so many `rows`.

    >>> every = RowPairs(np.array([0, 1]), np.array([0, 2, 3]), np.array([1, 2, 2]), np.zeros((0, 2), int), 3)
    >>> transitive_reduction(every, 3).numbers  # 0 before 1 and 1 before 2 imply 0 before 2
    array([0, 2])
    """
    order = _as_relation(pairs, rows)
    itself = np.repeat(order.before, np.diff(order.starts)) == order.rivals
    if itself.any():  # a row before one it is tied with
        return ReducedPairs(order.numbers[[int(itself.argmax())]], cyclic=True)
    sequence = _topological_order(order)
    if len(sequence) < len(order.before):
        return ReducedPairs(order.numbers[_find_cycle(order, sequence)], cyclic=True)
    return ReducedPairs(np.sort(order.numbers[_irreplaceable_edges(order, sequence)]), cyclic=False)


def _as_relation(pairs: RowPairs, rows: int) -> _Order:
    """The pairs as a relation between nodes; tied rows are one node."""
    if not len(pairs.ties):
        return _Order(pairs.selected, pairs.starts, pairs.rivals, np.arange(len(pairs)), rows)
    from scipy.sparse import coo_array  # loaded where a corpus needs it: single problems do without
    from scipy.sparse.csgraph import connected_components

    first, second = pairs.ties.T
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(rows, rows))
    _, node = connected_components(graph, directed=False)
    edges = node[np.repeat(pairs.selected, np.diff(pairs.starts))] * np.int64(rows) + node[pairs.rivals]
    edges, numbers = np.unique(edges, return_index=True)
    before, counts = np.unique(edges // rows, return_counts=True)
    return _Order(before, np.concatenate([[0], np.cumsum(counts)]), edges % rows, numbers, rows)


def _topological_order(order: _Order) -> list[int]:
    """Places of the nodes `before`, each before those it precedes; those in or below a cycle are missing."""
    place = np.full(order.nodes, -1)
    place[order.before] = np.arange(len(order.before))
    above = np.bincount(order.rivals, minlength=order.nodes)
    ready = np.flatnonzero(above[order.before] == 0).tolist()
    sequence: list[int] = []
    while ready:
        j = ready.pop()
        sequence.append(j)
        after = order.rivals[order.after(j)]
        above[after] -= 1
        free = place[after[above[after] == 0]]
        ready.extend(free[free >= 0].tolist())
    return sequence


def _find_cycle(order: _Order, sequence: list[int]) -> Int[Array, " c"]:
    """Edges of a cycle among the nodes that have no place in the sequence: each of them has one above it."""
    from scipy.sparse import csr_array

    left = np.setdiff1d(np.arange(len(order.before)), sequence)
    # Edges are numbered from 1, as a sparse matrix drops zeros. A column lists the edges from above.
    edges = csr_array((np.arange(1, len(order.rivals) + 1), order.rivals, order.starts), shape=(
        len(order.before), order.nodes))[left][:, order.before[left]].tocsc()  # fmt: skip
    seen: dict[int, int] = {}
    path: list[int] = []
    at = 0
    while at not in seen:  # up and up: some node comes again, and what lies between the two visits is the cycle
        seen[at] = len(path)
        entry = int(edges.indptr[at])
        path.append(int(edges.data[entry]) - 1)
        at = int(edges.indices[entry])
    return np.array(path[seen[at] :])


def _irreplaceable_edges(order: _Order, sequence: list[int]) -> Bool[Array, " k"]:
    """Which edges no chain of others replaces: from the last node up, with all that each one precedes."""
    rank = np.full(order.nodes, len(sequence))
    rank[order.before[sequence]] = np.arange(len(sequence))
    place = np.full(order.nodes, -1)
    place[order.before] = np.arange(len(order.before))
    below = np.zeros((len(order.before), (order.nodes + 7) // 8), dtype=np.uint8)  # nodes under each, a bit a node
    covers = np.ones(len(order.rivals), dtype=bool)
    for j in reversed(sequence):
        rivals = order.rivals[order.after(j)]
        reached = np.zeros(order.nodes, dtype=bool)
        waiting = rivals[place[rivals] >= 0]
        waiting = waiting[np.argsort(rank[waiting])]
        while len(waiting):  # the rival nearest in the order first: what lies under it need not be looked at again
            reached |= np.unpackbits(below[place[waiting[0]]], count=order.nodes).view(bool)
            waiting = waiting[1:][~reached[waiting[1:]]]
        covers[order.after(j)] = ~reached[rivals]
        reached[rivals] = True
        below[j] = np.packbits(reached)
    return covers


class Proposal(NamedTuple):
    """What a method proposes: multipliers and a vector p, or multipliers that refute the constraints and no vector."""

    multipliers: Float[Array, " k"]
    vector: Float[Array, " d"] | None


class Differences:
    """The k rows `a_j = vectors[plus[j]] - vectors[minus[j]]`.

    With P the incidence matrix of the pairs, `A = P E`, so products cost as much as the dictionary and not as the rows,
    and `A' D A = E' (P' D P) E` with a sparse matrix in the middle: the weighted Laplacian of the graph of pairs.
    """

    def __init__(self, vectors: Float[Array, "m d"], *, plus: Int[Array, " k"], minus: Int[Array, " k"]) -> None:
        used, index = np.unique(np.concatenate([plus, minus]), return_inverse=True)
        self.plus, self.minus = index[: len(plus)], index[len(plus) :]
        self.vectors = vectors if len(used) == len(vectors) else vectors[used]

    def __len__(self) -> int:
        return len(self.plus)

    def only(self, which: Int[Array, " c"]) -> Differences:
        """Some of the rows."""
        return Differences(self.vectors, plus=self.plus[which], minus=self.minus[which])

    def dense(self, which: Int[Array, " c"] | slice) -> Float[Array, "c d"]:
        """Some of the rows, formed."""
        return self.vectors[self.plus[which]] - self.vectors[self.minus[which]]

    def lengths(self) -> Float[Array, " k"]:
        """The norm of each row."""
        return np.concatenate(
            [np.linalg.norm(self.dense(slice(first, first + FORMED)), axis=1) for first in range(0, len(self), FORMED)]
        )

    def combination(self, weights: Float[Array, " k"]) -> Float[Array, " d"]:
        """`A' weights` from the rows themselves: slower than `adjoint`, and exact where tokens nearly coincide."""
        total = np.zeros(self.vectors.shape[1])
        for first in range(0, len(self), FORMED):
            total += weights[first : first + FORMED] @ self.dense(slice(first, first + FORMED))
        return total

    def times(self, q: Float[Array, " d"]) -> Float[Array, " k"]:
        """`A q`."""
        logits = self.vectors @ q
        return logits[self.plus] - logits[self.minus]

    def adjoint(self, weights: Float[Array, " k"]) -> Float[Array, " d"]:
        """`A' weights`."""
        m = len(self.vectors)
        return (np.bincount(self.plus, weights, m) - np.bincount(self.minus, weights, m)) @ self.vectors

    def covariance(self, weights: Float[Array, " k"], mean: Float[Array, " d"] | None = None) -> Float[Array, "d d"]:
        """The lower triangle of `A' diag(weights) A`, less `sum(weights) mean mean'`; the rest is not set."""
        from scipy.sparse import csr_array  # loaded where a corpus needs it: single problems do without

        m, d = self.vectors.shape
        coupling = csr_array((weights, (self.plus, self.minus)), shape=(m, m))
        coupling = coupling + coupling.T
        degree = np.bincount(self.plus, weights, m) + np.bincount(self.minus, weights, m)
        matrix, total = np.empty((d, d)), weights.sum()
        for first in range(0, d, BLOCK):
            block = np.ascontiguousarray(self.vectors[:, first : first + BLOCK])
            flow = degree[:, None] * block - coupling @ block
            matrix[first:, first : first + BLOCK] = self.vectors[:, first:].T @ flow
            if mean is not None:
                matrix[first:, first : first + BLOCK] -= np.outer(total * mean[first:], mean[first : first + BLOCK])
        return matrix

    def gap(self, multipliers: Float[Array, " k"], q: Float[Array, " d"] | None = None) -> float:
        """How far `|p|`, for p along q (by default `A' multipliers`), may lie above the least norm, relatively.

        `|q| / min A q` is the norm of a feasible vector, and none undercuts `sum(multipliers) / |A' multipliers|`.
        """
        combined = self.adjoint(multipliers)
        q = combined if q is None else q
        least = float(self.times(q).min())
        if least <= 0:
            return np.inf
        bound = float(multipliers.sum()) * least
        return max(float(np.linalg.norm(q)) * float(np.linalg.norm(combined)) / bound - 1, 0.0)
