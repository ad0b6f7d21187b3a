"""Priority graphs: for every last token, which tokens came next although others could have.

A sequence that ends in k and is followed by y adds an edge from y to every other token of it, in the graph of k. Of two
tokens on a cycle each was preferred to the other at some time: they tie, and belong to one strongly connected
component. The edges between components are an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int
from numpy import ndarray as Array


@dataclass(frozen=True, eq=False)
class PriorityGraph:
    """The graphs of all last tokens side by side: a node is a pair of a last token and a token.

    **Attributes**
    - `last`, `token`: of each node.
    - `source`, `target`: nodes of each edge: what came next, and what could have.
    - `count`: how many sequences draw the edge.
    - `component`: of each node; a component has nodes of one last token alone.
    - `vocabulary`: what the tokens stand for.
    """

    last: Int[Array, " nodes"]
    token: Int[Array, " nodes"]
    source: Int[Array, " edges"]
    target: Int[Array, " edges"]
    count: Int[Array, " edges"]
    component: Int[Array, " nodes"]
    vocabulary: tuple[str, ...]

    @classmethod
    def of(
        cls,
        tokens: Int[Array, " N"],
        sequence: Int[Array, " N"],
        last: Int[Array, " n"],
        labels: Int[Array, " n"],
        vocabulary: Sequence[str],
    ) -> PriorityGraph:
        """Collect the edges, merge equal ones, and find the strongly connected components."""
        from scipy.sparse import coo_array  # loaded where a graph needs it
        from scipy.sparse.csgraph import connected_components

        size = len(vocabulary)
        # Pairs are one number each, so that sorting finds equal ones: sequence and token, last token and token (a
        # node), source and target (an edge). An edge counts once per sequence, however often the token occurs in it.
        once = _distinct(sequence * size + tokens)[0]
        row, codes = once // size, last[once // size] * size + once % size
        nodes, node = np.unique(codes, return_inverse=True)
        label = np.searchsorted(nodes, last * size + labels)[row]
        edges, count = _distinct((label * np.int64(len(nodes)) + node)[label != node])
        source, target = edges // len(nodes), edges % len(nodes)
        graph = coo_array((np.ones(len(edges), dtype=np.int8), (source, target)), shape=(len(nodes), len(nodes)))
        _, component = connected_components(graph, directed=True, connection="strong")
        return cls(nodes // size, nodes % size, source, target, count, component.astype(np.int64), tuple(vocabulary))

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.last)

    @property
    def codes(self) -> Int[Array, " nodes"]:
        """Last token and token of each node as one number, ascending."""
        return self.last * len(self.vocabulary) + self.token

    @cached_property
    def sizes(self) -> Int[Array, " components"]:
        """Number of tokens in each component."""
        return np.bincount(self.component)

    @property
    def is_acyclic(self) -> bool:
        """Whether no tokens tie: every component is a single token."""
        return bool((self.sizes == 1).all())

    @cached_property
    def order(self) -> Int[Array, "pairs 2"]:
        """Pairs of components, the first ahead of the second by an edge; each pair once."""
        above, below = self.component[self.source], self.component[self.target]
        apart = above != below
        pairs = _distinct(above[apart] * np.int64(len(self.sizes)) + below[apart])[0]
        return np.stack([pairs // len(self.sizes), pairs % len(self.sizes)], axis=1)

    @cached_property
    def tied(self) -> Int[Array, " edges"]:
        """The edges within a component."""
        return np.flatnonzero(self.component[self.source] == self.component[self.target])

    def graph_of(self, last: int) -> PriorityGraph:
        """The graph of one last token alone."""
        kept = np.flatnonzero(self.last == last)
        if not len(kept):
            raise ValueError(f"no sequence ends in {self.vocabulary[last]}: it has no graph")
        edges = np.flatnonzero(self.last[self.source] == last)
        place = np.full(self.nodes, -1)
        place[kept] = np.arange(len(kept))
        return PriorityGraph(
            self.last[kept], self.token[kept], place[self.source[edges]], place[self.target[edges]], self.count[edges],
            np.unique(self.component[kept], return_inverse=True)[1], self.vocabulary,
        )  # fmt: skip

    def components_of(self, last: int) -> list[list[int]]:
        """The components of a last token's graph as lists of tokens; those that nothing is ahead of come first."""
        graph = self.graph_of(last)
        ranks = graph.ranks
        order = sorted(range(len(graph.sizes)), key=lambda c: (ranks[c], -graph.sizes[c], c))
        return [graph.token[graph.component == c].tolist() for c in order]

    @cached_property
    def ranks(self) -> Int[Array, " components"]:
        """Length of the longest chain of components ahead of each: 0 for those that nothing is ahead of."""
        ranks = np.zeros(len(self.sizes), dtype=np.int64)
        above, below = self.order.T
        while len(above):
            longer = ranks.copy()
            np.maximum.at(longer, below, ranks[above] + 1)
            if (longer == ranks).all():
                break
            ranks = longer
        return ranks

    @cached_property
    def component_counts(self) -> Int[Array, " components"]:
        """The summed counts of the edges that lead from or to each component."""
        ends = (self.component[self.source], self.component[self.target])
        return sum((np.bincount(end, self.count, len(self.sizes)) for end in ends), np.zeros(len(self.sizes))).astype(
            int
        )

    def __repr__(self) -> str:
        cyclic = int((self.sizes > 1).sum())
        return (
            f"PriorityGraph({len(np.unique(self.last))} last tokens, {self.nodes} nodes, {len(self.source)} edges, "
            f"{len(self.sizes)} components, {cyclic} of several tokens)"
        )


def _distinct(codes: Int[Array, " k"]) -> tuple[Int[Array, " d"], Int[Array, " d"]]:
    """The distinct numbers in order, and how often each occurs; by sorting, which is fastest for millions of them."""
    ordered = np.sort(codes)
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
    return ordered[first], np.diff(np.append(first, len(ordered)))
