"""The constraints of a corpus that do not follow from others, by order alone.

`s` before `r` and `r` before `u`, each by 1, put `s` before `u` by 2: the constraint of (s, u) is slack whatever the
vectors are. What is left is the transitive reduction of the order, the edges of its Hasse diagram. A corpus selected
by an argmax is ordered by the logits, and millions of pairs shrink to some tens of thousands.

A selection that is no order holds a cycle, and a cycle is a proof: its rows add up to exactly zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray as Array

from tokenmargin.margin.corpus.pairs import RowPairs


class ReducedPairs(NamedTuple):
    """Numbers of the pairs that imply all others; or of pairs that form a cycle, which rules out a solution."""

    numbers: Int[Array, " c"]
    cyclic: bool


class _Order(NamedTuple):
    """A relation between nodes: `heads[j]` is before `rivals[starts[j] : starts[j + 1]]`, by the pairs `numbers`."""

    heads: Int[Array, " h"]
    starts: Int[Array, " s"]
    rivals: Int[Array, " k"]
    numbers: Int[Array, " k"]
    nodes: int

    def after(self, j: int) -> slice:
        """Where the rivals of head j lie."""
        return slice(int(self.starts[j]), int(self.starts[j + 1]))


def transitive_reduction(pairs: RowPairs, rows: int) -> ReducedPairs:
    """The pairs from which all others follow, of a dictionary with so many `rows`.

    >>> every = RowPairs(np.array([0, 1]), np.array([0, 2, 3]), np.array([1, 2, 2]), np.zeros((0, 2), int), 3)
    >>> transitive_reduction(every, 3).numbers  # 0 before 1 and 1 before 2 imply 0 before 2
    array([0, 2])
    """
    order = _order(pairs, rows)
    itself = np.repeat(order.heads, np.diff(order.starts)) == order.rivals
    if itself.any():  # a row before one it is tied with
        return ReducedPairs(order.numbers[[int(itself.argmax())]], cyclic=True)
    sequence = _topological(order)
    if len(sequence) < len(order.heads):
        return ReducedPairs(order.numbers[_cycle(order, sequence)], cyclic=True)
    return ReducedPairs(np.sort(order.numbers[_covers(order, sequence)]), cyclic=False)


def _order(pairs: RowPairs, rows: int) -> _Order:
    """The pairs as a relation between nodes; tied rows are one node."""
    if not len(pairs.ties):
        return _Order(pairs.heads, pairs.starts, pairs.rivals, np.arange(len(pairs)), rows)
    from scipy.sparse import coo_array  # loaded where a corpus needs it: single problems do without
    from scipy.sparse.csgraph import connected_components

    first, second = pairs.ties.T
    graph = coo_array((np.ones(len(first)), (first, second)), shape=(rows, rows))
    _, node = connected_components(graph, directed=False)
    edges = node[np.repeat(pairs.heads, np.diff(pairs.starts))] * np.int64(rows) + node[pairs.rivals]
    edges, numbers = np.unique(edges, return_index=True)
    heads, counts = np.unique(edges // rows, return_counts=True)
    return _Order(heads, np.concatenate([[0], np.cumsum(counts)]), edges % rows, numbers, rows)


def _topological(order: _Order) -> list[int]:
    """Places of the heads, each before those it precedes; those in or below a cycle are missing."""
    place = np.full(order.nodes, -1)
    place[order.heads] = np.arange(len(order.heads))
    above = np.bincount(order.rivals, minlength=order.nodes)
    ready = np.flatnonzero(above[order.heads] == 0).tolist()
    sequence: list[int] = []
    while ready:
        j = ready.pop()
        sequence.append(j)
        after = order.rivals[order.after(j)]
        above[after] -= 1
        free = place[after[above[after] == 0]]
        ready.extend(free[free >= 0].tolist())
    return sequence


def _cycle(order: _Order, sequence: list[int]) -> Int[Array, " c"]:
    """Edges of a cycle among the heads that have no place in the sequence: each of them has one above it."""
    from scipy.sparse import csr_array

    left = np.setdiff1d(np.arange(len(order.heads)), sequence)
    edges = csr_array((np.arange(1, len(order.rivals) + 1), order.rivals, order.starts), shape=(
        len(order.heads), order.nodes))[left][:, order.heads[left]].tocsc()  # fmt: skip
    seen: dict[int, int] = {}
    path: list[int] = []
    at = 0
    while at not in seen:
        seen[at] = len(path)
        entry = int(edges.indptr[at])
        path.append(int(edges.data[entry]) - 1)
        at = int(edges.indices[entry])
    return np.array(path[seen[at] :])


def _covers(order: _Order, sequence: list[int]) -> Bool[Array, " k"]:
    """Which edges no chain of others replaces: from the last head up, with all that each one precedes."""
    rank = np.full(order.nodes, len(sequence))
    rank[order.heads[sequence]] = np.arange(len(sequence))
    place = np.full(order.nodes, -1)
    place[order.heads] = np.arange(len(order.heads))
    below = np.zeros((len(order.heads), (order.nodes + 7) // 8), dtype=np.uint8)
    covers = np.ones(len(order.rivals), dtype=bool)
    for j in reversed(sequence):
        rivals = order.rivals[order.after(j)]
        reached = np.zeros(order.nodes, dtype=bool)
        waiting = rivals[place[rivals] >= 0]
        waiting = waiting[np.argsort(rank[waiting])]
        while len(waiting):
            reached |= np.unpackbits(below[place[waiting[0]]], count=order.nodes).view(bool)
            waiting = waiting[1:][~reached[waiting[1:]]]
        covers[order.after(j)] = ~reached[rivals]
        reached[rivals] = True
        below[j] = np.packbits(reached)
    return covers
