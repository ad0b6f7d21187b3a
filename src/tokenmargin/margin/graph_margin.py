"""The graph max-margin problem: the shortest W whose logits tie within components and are 1 apart between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.corpus.pairs import RowPairs
from tokenmargin.margin.corpus.solve import corpus_margin
from tokenmargin.margin.order_margin import order_margin
from tokenmargin.margin.single.solver import solve
from tokenmargin.margin.solution import MarginSolution
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.next_token import NextTokenProblem
from tokenmargin.problem.priority_graph import PriorityGraph

DENSE = 2_000_000
"""Numbers in the rows of constraints up to which the solver of single problems is asked, which also counts rounding."""


def node_vectors(problem: NextTokenProblem) -> Float[Array, "nodes D"]:
    """The matrices `z x'` of every pair of last token and token, flattened: logits are their inner products with W."""
    if problem.embeddings is None:
        raise ValueError("orthonormal tokens have no coordinates: their logits are the parameter itself")
    query, key = problem.embeddings[problem.graph.last], problem.embeddings[problem.graph.token]
    return np.asarray((query[:, :, None] * key[:, None, :]).reshape(len(query), -1))


def graph_margin(problem: NextTokenProblem, graph: PriorityGraph | None = None) -> MarginSolution:
    """The shortest W with `<z (x_i - x_j)', W> = 0` for tied tokens and `>= 1` where i's component is ahead of j's.

    The vector is W flattened row by row, so that logits are `z' W x`; for orthonormal tokens it is the logit of every
    node of the graph, all other entries of W being zero. `tokens` are the nodes of each constraint.

    **Arguments**
    - `graph`: with its components; the problem's own by default.

    >>> chain = NextTokenProblem.of([[1, 0], [2, 1, 0]], [1, 2])  # 2 ahead of 1 ahead of 0
    >>> graph_margin(chain).vector.round(6) + 0.0
    array([-1.,  0.,  1.])
    """
    graph = problem.graph if graph is None else graph
    if problem.embeddings is None:
        return _table(graph)
    vectors, first = node_vectors(problem), np.unique(graph.component, return_index=True)[1]
    above, below = first[graph.order].T if len(graph.order) else np.zeros((2, 0), dtype=np.intp)
    tied = np.flatnonzero(first[graph.component] != np.arange(graph.nodes))
    if not len(above):
        return replace(order_margin(np.ones(1), graph.order), vector=np.zeros(vectors.shape[1]))
    if vectors.shape[1] * (len(above) + len(tied)) > DENSE:
        return corpus_margin(vectors, _pairs(above, below, np.stack([first[graph.component[tied]], tied], axis=1)))
    plus, minus = np.append(above, first[graph.component[tied]]), np.append(below, tied)
    return solve(
        Constraints(
            Coordinates(vectors, np.arange(len(vectors))[None]),
            plus=plus,
            minus=minus,
            bound=np.append(np.ones(len(above)), np.zeros(len(tied))),
            token=np.stack([plus, minus], axis=1),
            equality=np.append(np.zeros(len(above), bool), np.ones(len(tied), bool)) if len(tied) else None,
        )
    )


def _table(graph: PriorityGraph) -> MarginSolution:
    """Orthonormal tokens: a component moves as one, and weighs as many as it has."""
    found = order_margin(graph.sizes.astype(float), graph.order)
    return replace(found, vector=found.vector[graph.component])


def _pairs(above: Int[Array, " k"], below: Int[Array, " k"], ties: Int[Array, "q 2"]) -> RowPairs:
    order = np.lexsort((below, above))
    heads, counts = np.unique(above, return_counts=True)
    return RowPairs(heads, np.concatenate([[0], np.cumsum(counts)]), below[order], ties, len(above))


def forced_ties(problem: NextTokenProblem) -> Bool[Array, " edges"]:
    """Which edges of the graph no W can satisfy strictly while it satisfies all others weakly.

    They are those within components, and, where embeddings are linearly dependent, maybe more: `x_1 - x_2 = x_3 - x_4`
    ties orders of different components. One linear program tells them: sums of solutions are solutions, so all edges
    that can be strict can be so together.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack, identity

    graph, vectors = problem.graph, node_vectors(problem)
    rows = vectors[graph.source] - vectors[graph.target]
    edges, dimension = rows.shape
    # Edges count by their direction: HiGHS takes numbers below 1e-9 for zero, and those above 1e15 for a mistake.
    rows /= np.maximum(np.abs(rows).max(axis=1, keepdims=True, initial=0.0), np.finfo(float).tiny)
    # Maximise the sum of s with s_j <= <row_j, W>, 0 <= s_j <= 1.
    found = linprog(  # type: ignore[call-overload]  # its stubs do not know sparse matrices
        np.concatenate([np.zeros(dimension), -np.ones(edges)]),
        A_ub=hstack([csr_array(-rows), identity(edges)]),
        b_ub=np.zeros(edges),
        bounds=[(None, None)] * dimension + [(0, 1)] * edges,
    )
    if found.status != 0:
        raise RuntimeError(f"the linear program of the ties was not solved: {found.message}")
    return np.asarray(found.x[dimension:] < 0.5)
