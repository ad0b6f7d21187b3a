"""The graph max-margin problem: the shortest W whose logits tie within components and are 1 apart between them.

Orthonormal tokens make it a problem of one logit per component, `min sum_c weight_c b_c^2` with `b_u - b_v >= 1` for
all ordered pairs (`order_margin`); a component of tied tokens weighs as many as it holds. Millions of pairs are one
sparse problem: components that nothing follows and that have the same ones ahead of them are moved together first,
then an interior point method takes over. Its answer is judged by itself: scaled until every pair has its margin, and
compared with the bound that its multipliers prove.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.corpus.pairs import RowPairs
from tokenmargin.margin.corpus.solve import corpus_margin
from tokenmargin.margin.single.solver import solve
from tokenmargin.margin.solution import Certificate, MarginSolution, Status
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.matrix_geometry import Bilinear
from tokenmargin.problem.next_token import NextTokenProblem, PriorityGraph

DENSE = 2_000_000
"""Numbers in the rows of constraints up to which the solver of single problems is asked, which also counts rounding."""


def node_vectors(problem: NextTokenProblem) -> Float[Array, "nodes D"]:
    """The matrices `z x'` of every pair of last token and token, flattened: logits are their inner products with W."""
    if problem.embeddings is None:
        raise ValueError("orthonormal tokens have no coordinates: their logits are the parameter itself")
    query, key = problem.embeddings[problem.graph.last], problem.embeddings[problem.graph.token]
    return np.asarray((query[:, :, None] * key[:, None, :]).reshape(len(query), -1))


def cyclic_subspace(problem: NextTokenProblem) -> Float[Array, "s D"]:
    """The span of `z (x_i - x_j)'` for tokens i and j of one component, where W_fin lies: an orthonormal basis.

    >>> problem = NextTokenProblem.of([[1, 2, 0], [1, 2, 0]], [1, 2], embeddings=np.eye(3))
    >>> np.abs(cyclic_subspace(problem)).round(3) + 0.0  # 1 and 2 tie after a 0
    array([[0.   , 0.707, 0.707, 0.   , 0.   , 0.   , 0.   , 0.   , 0.   ]])
    """
    graph, vectors = problem.graph, node_vectors(problem)
    first = np.unique(graph.component, return_index=True)[1]
    return _span_basis((vectors - vectors[first[graph.component]])[first[graph.component] != np.arange(graph.nodes)])


def active_subspace(problem: NextTokenProblem) -> Float[Array, "s D"]:
    """The span of `z (x_i - x_j)'` over all edges, where every gradient lies: an orthonormal basis."""
    graph, vectors = problem.graph, node_vectors(problem)
    return _span_basis(vectors[graph.source] - vectors[graph.target])


def svm_subspace(problem: NextTokenProblem) -> Float[Array, "s D"]:
    """What the active subspace has across the cyclic one, where W_mm lies: an orthonormal basis."""
    active, cyclic = active_subspace(problem), cyclic_subspace(problem)
    if not len(cyclic):
        return active
    # The singular values of what is left are 1 and 0: angles between a space and one inside it.
    _, sizes, rows = np.linalg.svd(active - active @ cyclic.T @ cyclic, full_matrices=False)
    return np.asarray(rows[sizes > 0.5])


def unit_rows(rows: Float[Array, "k D"]) -> Float[Array, "k D"]:
    """The rows divided by their lengths; rows of zeros stay what they are."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def _span_basis(rows: Float[Array, "k D"]) -> Float[Array, "s D"]:
    """An orthonormal basis of the span of rows, each counted by its direction; below 1e-10 it is rounding."""
    rows = unit_rows(rows[np.linalg.norm(rows, axis=1) > 0])
    if not len(rows):
        return rows
    _, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(basis[sizes > 1e-10 * sizes[0]])


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
        return _solve_orthonormal(graph)
    vectors, first = node_vectors(problem), np.unique(graph.component, return_index=True)[1]
    above, below = first[graph.order].T if len(graph.order) else np.zeros((2, 0), dtype=np.intp)
    tied = np.flatnonzero(first[graph.component] != np.arange(graph.nodes))
    if not len(above):
        return replace(order_margin(np.ones(1), graph.order), vector=np.zeros(vectors.shape[1]))
    if vectors.shape[1] * (len(above) + len(tied)) > DENSE:
        # After one token the differences of others lie in d dimensions.
        ties_after = np.bincount(graph.last[tied], minlength=1)
        dimensions = int(np.minimum(ties_after, problem.embeddings.shape[1]).sum())
        pairs = _as_row_pairs(above, below, np.stack([first[graph.component[tied]], tied], axis=1))
        return corpus_margin(vectors, replace(pairs, tied_dimensions=dimensions))
    plus, minus = np.append(above, first[graph.component[tied]]), np.append(below, tied)
    return solve(
        Constraints(
            Bilinear(Coordinates(problem.embeddings, graph.token[:, None]), problem.embeddings[graph.last]),
            plus=plus,
            minus=minus,
            bound=np.append(np.ones(len(above)), np.zeros(len(tied))),
            token=np.stack([plus, minus], axis=1),
            equality=np.append(np.zeros(len(above), bool), np.ones(len(tied), bool)) if len(tied) else None,
        )
    )


def _solve_orthonormal(graph: PriorityGraph) -> MarginSolution:
    """Orthonormal tokens: a component moves as one, and weighs as many as it has."""
    found = order_margin(graph.sizes.astype(float), graph.order)
    return replace(found, vector=found.vector[graph.component])


def _as_row_pairs(above: Int[Array, " k"], below: Int[Array, " k"], ties: Int[Array, "q 2"]) -> RowPairs:
    """The constraints as pairs of a corpus: those of one component together."""
    order = np.lexsort((below, above))
    selected, counts = np.unique(above, return_counts=True)
    return RowPairs(selected, np.concatenate([[0], np.cumsum(counts)]), below[order], ties, len(above))


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


ORDER_TOLERANCE = 1e-7
"""Largest gap of an answer called optimal; as for corpora, rounding of the sums is not counted."""
_STEPS = 80
# Of the gap: multipliers times slacks over the squared length. With smaller slacks rounding takes over.
_ENOUGH = 1e-11


def order_margin(weights: Float[Array, " m"], order: Int[Array, "pairs 2"]) -> MarginSolution:
    """Minimise `sum_c weights_c b_c^2` with `b_u >= b_v + 1` for every pair (u, v) of `order`, which has no cycle.

    The solution's `vector` is b, its `margin` one over the root of the sum, its `tokens` the pairs.

    >>> order_margin(np.array([1.0, 1.0, 2.0]), np.array([[0, 1], [1, 2]])).vector.round(6)
    array([ 1.25,  0.25, -0.75])
    """
    began = time.perf_counter()
    if not len(order):
        nothing = Certificate(0.0, 0.0, 0.0, 0.0)
        return MarginSolution("optimal", np.zeros(len(weights)), np.inf, np.zeros(0), order, nothing)
    moved = _merge_twins(weights, order)
    logits, pull = _interior_point(moved)
    return _certified_order(weights, order, logits[moved.node], pull[moved.pair] * moved.share, began)


def _certified_order(
    weights: Float[Array, " m"],
    order: Int[Array, "pairs 2"],
    b: Float[Array, " m"],
    multipliers: Float[Array, " pairs"],
    began: float,
) -> MarginSolution:
    """The answer on the pairs as they were given: b scaled until it satisfies all, and the bound of the multipliers."""
    least = float((b[order[:, 0]] - b[order[:, 1]]).min())
    if not least > 0:
        return MarginSolution("inaccurate", np.zeros(len(weights)), 0.0, multipliers, order, Certificate())
    b = b / least
    slack = b[order[:, 0]] - b[order[:, 1]] - 1
    length = float(np.sqrt((weights * b**2).sum()))
    ahead, behind = (np.bincount(side, multipliers, len(weights)) for side in order.T)
    bound = float(multipliers.sum() / np.sqrt(((ahead - behind) ** 2 / weights).sum()))
    certificate = Certificate(
        primal=max(float(-slack.min()), 0.0),
        dual=max(float(-multipliers.min() / multipliers.max()), 0.0),
        complementarity=float(np.abs(multipliers * slack).max() / length**2),
        gap=max(1 - bound / length, 0.0),
    )
    status: Status = "optimal" if certificate.residual <= ORDER_TOLERANCE else "inaccurate"
    return MarginSolution(
        status, b, 1 / length, multipliers, order, certificate, None, time.perf_counter() - began
    )  # fmt: skip


class _MergedProblem(NamedTuple):
    """The problem with twins moved together.

    - `weights`, `order`: of what is left.
    - `node`: for each given token, what it became.
    - `pair`: for each given pair, which of those left it became.
    - `share`: its share of that one's multiplier.
    """

    weights: Float[Array, " m"]
    order: Int[Array, "pairs 2"]
    node: Int[Array, " tokens"]
    pair: Int[Array, " given"]
    share: Float[Array, " given"]


def _merge_twins(weights: Float[Array, " m"], order: Int[Array, "pairs 2"]) -> _MergedProblem:
    """Ends with the same tokens ahead of them have the same logit: they become one that weighs as much.

    Sets of tokens are told apart by the sum of random 62-bit marks; that two sets share one has a chance of 1e-6 among
    a million, and the judgement of the answer would see it.
    """
    m, (above, below) = len(weights), order.T
    marks = np.random.default_rng(0).integers(1 << 62, size=m, dtype=np.uint64)
    sums = np.zeros(m, dtype=np.uint64)
    np.add.at(sums, below, marks[above])
    ends = np.bincount(above, minlength=m) == 0
    key = np.where(ends & (sums > 0), sums, marks ^ np.uint64(1 << 63))
    _, node = np.unique(key, return_inverse=True)
    heavier = np.bincount(node, weights)
    codes, pair = np.unique(node[above] * np.int64(len(heavier)) + node[below], return_inverse=True)
    pairs = np.stack([codes // len(heavier), codes % len(heavier)], axis=1)
    return _MergedProblem(heavier, pairs, node, pair, weights[below] / heavier[node[below]])


def _interior_point(problem: _MergedProblem) -> tuple[Float[Array, " m"], Float[Array, " pairs"]]:
    """Logits and multipliers by Mehrotra's predictor and corrector; every step solves sparse systems in the logits."""
    from scipy.sparse import csc_array, diags_array  # loaded where an order needs it

    weights, (above, below) = problem.weights, problem.order.T
    m, k = len(weights), len(above)
    rows = csc_array(
        (np.repeat([1.0, -1.0], k), (np.tile(np.arange(k), 2), np.concatenate([above, below]))), shape=(k, m)
    )
    across = rows.T.tocsc()
    b, slack, pull = np.zeros(m), np.ones(k), np.ones(k)
    for _ in range(_STEPS):
        dual, primal = weights * b - across @ pull, rows @ b - slack - 1
        mean = float(slack @ pull) / k
        if float(slack @ pull) <= _ENOUGH * float(weights @ b**2) and np.abs(primal).max() <= 1e-9:
            break
        solve = _factor(diags_array(weights) + across @ diags_array(pull / slack) @ rows)

        def step(target: Float[Array, " k"]) -> tuple[Array, Array, Array]:
            move = solve(-dual + across @ ((target - pull * primal) / slack - pull))  # noqa: B023 - used at once
            ease = rows @ move + primal  # noqa: B023
            return move, ease, (target - pull * ease) / slack - pull  # noqa: B023

        _, ease, tighten = step(np.zeros(k))
        reach = min(_longest_step(slack, ease), _longest_step(pull, tighten))
        centre = (float((slack + reach * ease) @ (pull + reach * tighten)) / k / mean) ** 3
        move, ease, tighten = step(centre * mean - ease * tighten)
        reach = min(1.0, 0.995 * min(_longest_step(slack, ease), _longest_step(pull, tighten)))
        b, slack, pull = b + reach * move, slack + reach * ease, pull + reach * tighten
    return b, pull


def _factor(matrix: Any) -> Callable[[Float[Array, " m"]], Float[Array, " m"]]:
    """Solves with a sparse matrix that is symmetric and positive definite."""
    from scipy.sparse.linalg import splu

    return splu(
        matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    ).solve


def _longest_step(value: Float[Array, " k"], change: Float[Array, " k"]) -> float:
    """How far the values stay positive."""
    falling = change < 0
    return float((value[falling] / -change[falling]).min(initial=np.inf))
