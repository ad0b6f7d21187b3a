"""The shortest table of logits that respects an order: `min sum_c weight_c b_c^2` with `b_u - b_v >= 1` for all pairs.

This is the max-margin problem of orthonormal tokens, whose ties are merged (a merged token weighs as many as it holds).
Millions of pairs are one sparse problem: tokens that nothing follows and that have the same ones ahead of them are
moved together first, then an interior point method takes over. Its answer is judged by itself: scaled until every pair
has its margin, and compared with the bound that its multipliers prove.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.solution import Certificate, MarginSolution, Status

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
    moved = _merged(weights, order)
    logits, pull = _interior(moved)
    return _judged(weights, order, logits[moved.node], pull[moved.pair] * moved.share, began)


def _judged(
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


class _Merged(NamedTuple):
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


def _merged(weights: Float[Array, " m"], order: Int[Array, "pairs 2"]) -> _Merged:
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
    return _Merged(heavier, pairs, node, pair, weights[below] / heavier[node[below]])


def _interior(problem: _Merged) -> tuple[Float[Array, " m"], Float[Array, " pairs"]]:
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
        reach = min(_longest(slack, ease), _longest(pull, tighten))
        centre = (float((slack + reach * ease) @ (pull + reach * tighten)) / k / mean) ** 3
        move, ease, tighten = step(centre * mean - ease * tighten)
        reach = min(1.0, 0.995 * min(_longest(slack, ease), _longest(pull, tighten)))
        b, slack, pull = b + reach * move, slack + reach * ease, pull + reach * tighten
    return b, pull


def _factor(matrix: Any) -> Callable[[Float[Array, " m"]], Float[Array, " m"]]:
    from scipy.sparse.linalg import splu

    return splu(
        matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    ).solve


def _longest(value: Float[Array, " k"], change: Float[Array, " k"]) -> float:
    """How far the values stay positive."""
    falling = change < 0
    return float((value[falling] / -change[falling]).min(initial=np.inf))
