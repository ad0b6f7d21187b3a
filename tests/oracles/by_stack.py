"""The proofs of a whole stack of answers at once, in extended precision on the original rows; nothing of the solver."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from tests.oracles.exact_margin import dot, exact_rows, worst_violation

from tokenmargin.margin import MarginBatch, MarginSolution
from tokenmargin.margin.constraints import Constraints


def rows_of(keys: np.ndarray, selected: np.ndarray) -> np.ndarray:
    """`k_{i alpha_i} - k_it` for every other token, in extended precision: (B, k, d)."""
    B, n, T, d = keys.shape
    exact = keys.astype(np.longdouble)
    chosen = np.take_along_axis(exact, selected[:, :, None, None], axis=2)
    others = np.arange(T) != selected[:, :, None]
    return (chosen - exact)[others].reshape(B, n * (T - 1), d)


def length(vectors: np.ndarray, p: float) -> np.ndarray:
    """The lp norm along the last axis, in units of the largest coordinate."""
    size = np.abs(vectors)
    most = size.max(axis=-1, keepdims=True)
    if p == np.inf:
        return np.asarray(most[..., 0])
    unit = np.divide(size, most, out=np.zeros_like(size), where=most > 0)
    return np.asarray(most[..., 0] * (unit ** np.longdouble(p)).sum(axis=-1) ** (1 / np.longdouble(p)))


def dual_of(p: float) -> float:
    return {1.0: np.inf, np.inf: 1.0}.get(p) or p / (p - 1)


def check_stack(keys: np.ndarray, selected: np.ndarray, batch: MarginBatch, p: float = 2.0) -> np.ndarray:
    """The largest residual of each claim; of what is not decided, zero.

    A vector that keeps every margin is an upper bound of the least norm, `sum m / |rows' m|_*` a lower one for any
    `m >= 0`; weights `m >= 0` that add the rows up to nothing leave no direction.
    """
    rows = rows_of(keys, selected)
    vectors, m = batch.vectors.astype(np.longdouble), batch.multipliers.astype(np.longdouble)
    with np.errstate(all="ignore"):
        primal = 1 - np.einsum("bkd,bd->bk", rows, vectors).min(axis=1)
        negative = -m.min(axis=1) / np.abs(m).max(axis=1)
        lower = m.sum(axis=1) / length(np.einsum("bk,bkd->bd", m, rows), dual_of(p))
        claim = np.maximum(np.maximum(primal, negative), np.abs(1 - lower / length(vectors, p)))
        f = batch.farkas.astype(np.longdouble)
        left = length(np.einsum("bk,bkd->bd", f, rows), 2.0) / np.einsum("bk,bk->b", f, length(rows, 2.0))
        left = np.where((f.min(axis=1) >= 0) & (f.sum(axis=1) > 0), np.where(np.isnan(left), 0, left), np.inf)
    found = np.where(batch.optimal, np.where(np.isnan(claim), np.inf, claim), 0.0)
    return np.where(batch.infeasible, left, found).astype(float)


def check_exactly(keys: np.ndarray, selected: np.ndarray, one: MarginSolution, p: float = 2.0) -> float:
    """The same of one claim, all that may cancel added up in rational numbers.

    Where a row meets a vector 1e10 times as long, extended precision does not tell 1 from 1 + 1e-9.
    """
    rows = exact_rows(keys, selected.tolist())

    def combined(weights: np.ndarray) -> np.ndarray:
        exact = [Fraction(w) for w in weights.tolist()]
        return np.array([float(dot(exact, column)) for column in zip(*rows, strict=True)])

    if one.farkas is not None:
        weight = one.farkas @ length(np.array(rows, dtype=float), 2.0)
        rest = float(length(combined(one.farkas), 2.0) / weight) if weight > 0 else 0.0
        return rest if one.farkas.min() >= 0 and one.farkas.sum() > 0 else np.inf
    m, vector = one.multipliers, [Fraction(x) for x in one.vector.tolist()]
    gap = abs(1 - m.sum() / length(combined(m), dual_of(p)) / length(one.vector, p))
    return max(worst_violation(rows, vector), float(-m.min() / np.abs(m).max()), float(gap))


def check_in_matrix_norm(constraints: Constraints, solution: MarginSolution, p: float) -> float:
    """The same of one answer for a matrix, by the singular values; of what is not decided, zero."""
    rows = constraints.rows().astype(np.longdouble)
    if solution.status == "infeasible":
        assert solution.farkas is not None
        weight = solution.farkas @ length(rows, 2.0)
        left = length(solution.farkas @ rows, 2.0) / weight if weight > 0 else 0.0
        return float(left) if (solution.farkas >= 0).all() and solution.farkas.sum() > 0 else np.inf
    if solution.status == "inaccurate" or not len(rows):
        return 0.0
    m = solution.multipliers
    built, vector = m @ rows, solution.vector.astype(np.longdouble)
    assert solution.shape is not None
    upper, lower = (_singular(matrix.reshape(solution.shape), q) for matrix, q in ((vector, p), (built, dual_of(p))))
    primal = float(1 - (rows @ vector).min())
    return max(primal, float(-m.min() / np.abs(m).max()), float(abs(1 - m.sum() / lower / upper)))


def _singular(matrix: np.ndarray, p: float) -> np.longdouble:
    """The lp norm of the singular values, which are taken in units of the largest entry."""
    size = np.abs(matrix).max()
    values = np.linalg.svd((matrix / size).astype(float), compute_uv=False)
    return size * np.longdouble(length(values, p))
