"""l1 and linf: a linear program by a primal-dual interior-point method (Mehrotra's predictor and corrector).

`|x_i| <= t_i` with `sum t_i` (l1), or one t common to all (linf), to be least. The slacks `t - x` and `t + x` have
multipliers, as have the constraints `rows x - s = bound`. Eliminating all but x leaves `rows' diag(m/s) rows` plus a
diagonal (and for linf a matrix of rank one); with fewer constraints than coordinates, the same in the multipliers.

The iterates end in the middle of the set of solutions, not at a vertex: strictly complementary, so that they tell which
constraints hold every solution and which coordinates are free.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.compiled.active_set import summing
from tokenmargin.margin.normed.linear_algebra import (
    adjoint_product,
    cholesky,
    longest_multiplier_step,
    longest_step,
    matrix_product,
    slack_changes,
    solve_by_cholesky,
    step_by_coordinates,
    step_by_rows,
    step_system,
)

_ROUNDS = 60
_ENOUGH = 1e-11  # relative gap and residuals: what is left is for the certificate
_GOOD = 1e-7  # from here on, a round that does not improve is the last
_FINE = 1e-3  # from here on, directions are refined
_NEAR = 0.9995  # share of the way to the boundary

# Rows of the array of coordinates: x and t, the slacks t - x and t + x, their multipliers, and what each changes by;
# the residuals of the equations in x and in t, what products shall change by, and coefficients of the linear system.
X, T, U, V, A, C, DX, DT, DU, DV, DA, DC, RX, RT, WU, WV, INV, TILT, DIF, SUM, START = range(21)
# Rows of the array of constraints: slack and multiplier, their changes, the residual, the product's change, a ratio.
S, M, DS, DM, RS, WS, RATIO, ASK, MORE = range(9)


@summing
@no_type_check
def interior_point(rows, bound, tied, common):
    """A vector and multipliers close to optimal, for l1, or linf where the bound t is `common` to all coordinates."""
    k, r = rows.shape
    free = 0
    y, z = np.zeros((21, r)), np.zeros((9, k))
    for j in range(k):
        free += tied[j]
        z[S, j] = 0.0 if tied[j] else 1.0
        z[M, j] = 0.0 if tied[j] else 1.0 / k
    for i in range(r):
        y[T, i] = y[U, i] = y[V, i] = 1.0
        y[A, i] = y[C, i] = 0.5 / r if common else 0.5
    by_rows = k < r or free > 0
    across = np.ascontiguousarray(rows.T)
    scaled, matrix = (np.empty((k, r)), np.empty((k, k))) if by_rows else (np.empty((r, k)), np.empty((r, r)))
    kept_x, kept_m, reached = np.zeros(r), np.zeros(k), np.inf
    for _ in range(_ROUNDS):
        worst, gap = _measure_residuals(rows, bound, common, y, z)
        if not worst < 1e30 or (reached < _GOOD and worst > 0.5 * reached) or worst > 1e8 * reached:
            break
        if worst < reached:
            reached = worst
            for i in range(r):
                kept_x[i] = y[X, i]
            for j in range(k):
                kept_m[j] = z[M, j]
        if worst < _ENOUGH:
            break
        total, stiff = _set_coefficients(tied, common, by_rows, y, z)
        if by_rows:
            step_system(rows, y[INV], scaled, matrix)
            matrix_product(rows, y[TILT], z[ASK])
        else:
            step_system(across, z[RATIO], scaled, matrix)
        _complete_matrix(matrix, common, by_rows, total, stiff, y, z)
        cholesky(matrix)
        for corrected in range(2):
            _find_direction(rows, tied, common, by_rows, matrix, total, stiff, worst < _FINE, y, z)
            forward = min(longest_step(y[U], y[DU]), longest_step(y[V], y[DV]), longest_step(z[S], z[DS]))
            backward = min(
                longest_step(y[A], y[DA]), longest_step(y[C], y[DC]), longest_multiplier_step(tied, z[M], z[DM])
            )
            if corrected == 0:
                _correct_products(tied, gap, gap / (2 * r + k - free), min(1.0, forward), min(1.0, backward), y, z)
        _take_step(min(1.0, _NEAR * forward), min(1.0, _NEAR * backward), y, z)
    return kept_x, kept_m


@summing
@no_type_check
def _measure_residuals(rows, bound, common, y, z):
    """Of the constraints, of the equations in x and t; the largest, relatively, and the sum of the products."""
    matrix_product(rows, y[X], z[RS])
    adjoint_product(rows, z[M], y[RX])
    worst, gap, value, left, size = 0.0, 0.0, 0.0, 1.0, 0.0
    for j in range(z.shape[1]):
        z[RS, j] = bound[j] + z[S, j] - z[RS, j]
        z[WS, j] = -z[S, j] * z[M, j]
        gap -= z[WS, j]
        worst = max(worst, abs(z[RS, j]))
    for i in range(y.shape[1]):
        a, c = y[A, i], y[C, i]
        y[WU, i], y[WV, i] = -y[U, i] * a, -y[V, i] * c
        y[RX, i] += c - a
        y[RT, i] = 1.0 - a - c
        left -= a + c
        gap -= y[WU, i] + y[WV, i]
        value += y[T, i]
        size = max(size, a + c)
    if common:
        value /= y.shape[1]
        y[RT, 0] = left
    for i in range(y.shape[1]):
        worst = max(worst, abs(y[RX, i]) / size)
    return max(worst, gap / value), gap


@summing
@no_type_check
def _set_coefficients(tied, common, by_rows, y, z):
    """Fills in the coefficients of the linear system; returns the sums that its part of rank one needs."""
    total, stiff = 0.0, 0.0
    for i in range(y.shape[1]):
        a, c = y[A, i] / y[U, i], y[C, i] / y[V, i]
        y[SUM, i], y[DIF, i], y[TILT, i] = a + c, a - c, (a - c) / (a + c)
        both = 4 * a * c / (a + c)  # sum less difference squared over sum, without the cancellation
        y[INV, i] = 1 / (a + c) if common else 1 / both
        total += a + c
        stiff += both
    for j in range(z.shape[1]):
        z[RATIO, j] = 0.0 if tied[j] else (z[S, j] / z[M, j] if by_rows else z[M, j] / z[S, j])
    return total, stiff


@summing
@no_type_check
def _complete_matrix(matrix, common, by_rows, total, stiff, y, z):
    """The diagonal and, for linf, the part of rank one (Sherman and Morrison, in the multipliers)."""
    one = z[ASK] if by_rows else y[DIF]
    share = 0.0 if not common else (1 / stiff if by_rows else -1 / total)
    for i in range(len(matrix)):
        for j in range(i + 1):
            matrix[i, j] += share * one[i] * one[j]
        matrix[i, i] += z[RATIO, i] if by_rows else 1 / y[INV, i]


@summing
@no_type_check
def _find_direction(rows, tied, common, by_rows, matrix, total, stiff, fine, y, z):
    """What changes the products by `WU`, `WV`, `WS` and removes the residuals."""
    k, r = rows.shape
    lead = -y[RT, 0]
    for i in range(r):
        lead += y[WU, i] / y[U, i] + y[WV, i] / y[V, i]
    pull = 0.0
    for i in range(r):
        cu, cv = y[WU, i] / y[U, i], y[WV, i] / y[V, i]
        y[START, i] = y[RX, i] - cu + cv
        if not common:
            y[START, i] += y[TILT, i] * (cu + cv - y[RT, i])
        elif not by_rows:
            y[START, i] += y[DIF, i] * lead / total
        pull += y[TILT, i] * y[START, i]
    for j in range(k):
        z[ASK, j] = z[RS, j] + (0.0 if tied[j] else z[WS, j] / z[M, j])
    if by_rows:
        for i in range(r):
            y[START, i] *= y[INV, i]
            if common:
                y[START, i] += y[TILT, i] * (pull + lead) / stiff
        step_by_rows(rows, matrix, z[ASK], y[START], z[DM], y[DX])
        _follow_multipliers(common, y, stiff)
        if fine:  # the system is nearly singular by now: once more, for what is missing
            matrix_product(rows, y[DX], z[MORE])
            for j in range(k):
                z[MORE, j] = z[ASK, j] - z[MORE, j] - z[RATIO, j] * z[DM, j]
            solve_by_cholesky(matrix, z[MORE])
            for j in range(k):
                z[DM, j] += z[MORE, j]
            adjoint_product(rows, z[DM], y[DX])
            _follow_multipliers(common, y, stiff)
        slack_changes(tied, z[S], z[M], z[WS], z[DM], z[DS])
        return
    step_by_coordinates(rows, matrix, z[RATIO], z[ASK], y[START], z[DM], y[DX])
    for i in range(r):
        lead += y[DIF, i] * y[DX, i]
    for i in range(r):
        cu, cv = y[WU, i] / y[U, i], y[WV, i] / y[V, i]
        y[DT, i] = lead / total if common else (cu + cv - y[RT, i]) / y[SUM, i] + y[TILT, i] * y[DX, i]
        y[DU, i], y[DV, i] = y[DT, i] - y[DX, i], y[DT, i] + y[DX, i]
        y[DA, i], y[DC, i] = cu - y[A, i] / y[U, i] * y[DU, i], cv - y[C, i] / y[V, i] * y[DV, i]
    slack_changes(tied, z[S], z[M], z[WS], z[DM], z[DS])


@summing
@no_type_check
def _follow_multipliers(common, y, stiff):
    """The changes of coordinates, slacks and multipliers that go with `rows' dm`, which stands in `DX`.

    `da - dc` is what the equation in x asks for, to the last digit: written so, the stiff coordinates lose none.
    """
    r, lead = y.shape[1], -y[RT, 0]
    for i in range(r):
        a, c = y[A, i] / y[U, i], y[C, i] / y[V, i]
        cu, cv, h = y[WU, i] / y[U, i], y[WV, i] / y[V, i], y[RX, i] + y[DX, i]
        lead += (2 * c * cu + 2 * a * cv + (a - c) * h) / (a + c)
        y[DX, i] = h
    for i in range(r):
        a, c = y[A, i] / y[U, i], y[C, i] / y[V, i]
        cu, cv, h = y[WU, i] / y[U, i], y[WV, i] / y[V, i], y[DX, i]
        if common:
            y[DT, i] = lead / stiff
            y[DA, i] = (c * cu + a * (h + cv) - 2 * a * c * y[DT, i]) / (a + c)
            y[DC, i] = (a * cv + c * (cu - h) - 2 * a * c * y[DT, i]) / (a + c)
            y[DU, i] = (2 * c * y[DT, i] - h + cu - cv) / (a + c)
            y[DV, i] = (2 * a * y[DT, i] + h - cu + cv) / (a + c)
        else:
            y[DA, i], y[DC, i] = (y[RT, i] + h) / 2, (y[RT, i] - h) / 2
            y[DU, i], y[DV, i] = (cu - y[DA, i]) / a, (cv - y[DC, i]) / c
            y[DT, i] = (y[DU, i] + y[DV, i]) / 2
        y[DX, i] = y[DT, i] - y[DU, i] if y[U, i] < y[V, i] else y[DV, i] - y[DT, i]


@summing
@no_type_check
def _correct_products(tied, gap, mean, forward, backward, y, z):
    """What the products shall change by in view of the first direction: Mehrotra's centring and second order."""
    after = 0.0
    for i in range(y.shape[1]):
        after += (y[U, i] + forward * y[DU, i]) * (y[A, i] + backward * y[DA, i])
        after += (y[V, i] + forward * y[DV, i]) * (y[C, i] + backward * y[DC, i])
    for j in range(z.shape[1]):
        after += (z[S, j] + forward * z[DS, j]) * (z[M, j] + backward * z[DM, j])
    centre = mean * (after / gap) ** 3
    for i in range(y.shape[1]):
        y[WU, i] += centre - y[DU, i] * y[DA, i]
        y[WV, i] += centre - y[DV, i] * y[DC, i]
    for j in range(z.shape[1]):
        z[WS, j] = 0.0 if tied[j] else z[WS, j] + centre - z[DS, j] * z[DM, j]


@summing
@no_type_check
def _take_step(forward, backward, y, z):
    """Moves all iterates: primal ones by `forward`, multipliers by `backward`."""
    for i in range(y.shape[1]):
        for f in range(6):
            y[f, i] += (forward if f < A else backward) * y[DX + f, i]
    for j in range(z.shape[1]):
        z[S, j] += forward * z[DS, j]
        z[M, j] += backward * z[DM, j]


def propose_by_highs(
    rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"], *, common: bool
) -> tuple[Float[Array, " r"], Float[Array, " k"]] | None:
    """What HiGHS proposes, a vertex; None where it finds no solution. Some milliseconds a call."""
    from scipy.optimize import linprog  # it takes half a second to load, and is needed by the hardest cases alone

    k, r = rows.shape
    eye, ones = np.eye(r), -np.ones((r, 1)) if common else -np.eye(r)
    # The constraints come first, equalities as pairs: their multipliers are then the differences.
    least = np.concatenate([rows, -rows[tied]])
    pairs = np.block([[-least, np.zeros((len(least), ones.shape[1]))], [eye, ones], [-eye, ones]])
    cost = np.r_[np.zeros(r), np.ones(ones.shape[1])]
    room = np.r_[-bound, bound[tied], np.zeros(2 * r)]
    found = linprog(cost, pairs, room, bounds=[(None, None)] * len(cost), method="highs")
    if found.status != 0:
        return None
    marginals = np.asarray(found.ineqlin.marginals)
    x = np.asarray(found.x)
    multipliers = -marginals[:k]
    multipliers[tied] += marginals[k : len(least)]
    return x[:r], multipliers
