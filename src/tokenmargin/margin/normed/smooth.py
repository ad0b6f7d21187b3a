"""lp with 1 < p < inf: the smooth problem `min |x|_p^2 / 2` by a primal-dual interior-point method, compiled.

Squared, the norm is homogeneous of degree two, as its conjugate `|g|_q^2 / 2` is, so Newton's method does not mind the
scale. For p < 2 the norm bends infinitely where a coordinate vanishes, and the conjugate does not: x is then kept as
the gradient of the conjugate at `g = rows' m`. For p > 2 it is the other way round, and x is a variable of its own.
Either way the inverse of the second derivative is a diagonal plus a matrix of rank one, known in closed form.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

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

_ROUNDS = 100
ENOUGH = 1e-14  # residuals that cannot be improved
_GOOD = 1e-7  # from here on, three rounds that do not improve are the last
_FAIR = 1e-2  # from here on, seven
_NEWTON_STEPS = 4
_NEAR = 0.995
_SHORTEST = 1e-4  # a step that has to be cut below this is taken as it is: the next one starts elsewhere
_FLOOR = 1e-13  # share of the norm below which a coordinate is taken to be that large, where one divides by it

X, G, GRAD, E, W, V, DX, START, RX = range(9)  # per coordinate
S, M, DS, DM, RS, WS, RATIO, ASK, TRY = range(9)  # per constraint


@summing
@no_type_check
def smooth_interior_point(rows, bound, tied, p, by_rows, enough):
    """A vector and multipliers, optimal to `enough` or as far as rounding lets them; by linear systems in the
    multipliers (`by_rows`) or in x."""
    k, r = rows.shape
    y, z = np.zeros((9, r)), np.zeros((9, k))
    free = _first_point(rows, bound, tied, p, y, z)
    across = np.ascontiguousarray(rows.T)
    scaled, matrix = (np.empty((k, r)), np.empty((k, k))) if by_rows else (np.empty((r, k)), np.empty((r, r)))
    kept_x, kept_m, reached, idle = np.zeros(r), np.zeros(k), np.inf, 0
    for _ in range(_ROUNDS):
        worst, gap = _measure_residuals(rows, bound, p, y, z)
        idle = 0 if worst < 0.8 * reached else idle + 1
        if not worst < 1e30 or (reached < _GOOD and idle > 2) or (reached < _FAIR and idle > 6):
            break
        if worst < reached:
            reached = worst
            for i in range(r):
                kept_x[i] = y[X, i]
            for j in range(k):
                kept_m[j] = z[M, j]
        if worst < enough:
            break
        kappa = _curvature(p, by_rows, y)
        for j in range(k):
            z[RATIO, j] = 0.0 if tied[j] else (z[S, j] / z[M, j] if by_rows else z[M, j] / z[S, j])
        if by_rows:
            step_system(rows, y[E], scaled, matrix)
            matrix_product(rows, y[V], z[ASK])
        else:
            step_system(across, z[RATIO], scaled, matrix)
        one = z[ASK] if by_rows else y[W]
        for i in range(len(matrix)):
            for j in range(i + 1):
                matrix[i, j] += kappa * one[i] * one[j]
            matrix[i, i] += z[RATIO, i] if by_rows else 1 / y[E, i]
        cholesky(matrix)
        mean = gap / max(k - free, 1)
        for corrected in range(2):
            _find_direction(rows, tied, by_rows, matrix, kappa, y, z)
            step = min(longest_step(z[S], z[DS]), longest_multiplier_step(tied, z[M], z[DM]))
            if corrected == 0:
                _correct_products(tied, gap, mean, min(1.0, step), z)
        _take_step(rows, bound, p, min(1.0, _NEAR * step), y, z)
    return kept_x, kept_m


@summing
@no_type_check
def newton_on_active(rows, bound, p, x, m):
    """For p < 2, in place: the constraints with multipliers made equalities, as `faces._newton_in_multipliers` does."""
    k, r = rows.shape
    a = 0
    for j in range(k):
        a += m[j] > 0
    if a == 0 or a > r:  # more than there are dimensions cannot all be equalities
        return
    kept, w, rest = np.empty((a, r)), np.empty(a), np.empty(a)
    y, scaled, matrix = np.zeros((9, r)), np.empty((a, r)), np.empty((a, a))
    a = 0
    for j in range(k):
        if m[j] > 0:
            kept[a], w[a] = rows[j], m[j]
            rest[a] = bound[j]
            a += 1
    asked = rest.copy()
    for _ in range(_NEWTON_STEPS):
        adjoint_product(kept, w, y[G])
        kappa = _curvature(p, True, y)
        step_system(kept, y[E], scaled, matrix)
        matrix_product(kept, y[V], rest)
        for i in range(a):
            for j in range(i + 1):
                matrix[i, j] += kappa * rest[i] * rest[j]
        matrix_product(kept, y[GRAD], rest)
        for j in range(a):
            rest[j] = asked[j] - rest[j]
        cholesky(matrix)
        solve_by_cholesky(matrix, rest)
        for j in range(a):
            w[j] += rest[j]
    adjoint_product(kept, w, y[G])
    _gradient(y[G], p / (p - 1), x)
    a = 0
    for j in range(k):
        if m[j] > 0:
            m[j] = w[a]
            a += 1


@summing
@no_type_check
def _first_point(rows, bound, tied, p, y, z):
    """Equal multipliers, at the scale that is best for them, and slacks that are not small."""
    k, r = rows.shape
    free, asked = 0, 0.0
    for j in range(k):
        free += tied[j]
        z[M, j] = 0.0 if tied[j] else 1.0
        asked += z[M, j] * bound[j]
    adjoint_product(rows, z[M], y[G])
    norm = _gradient(y[G], p / (p - 1), y[X])
    for j in range(k):
        z[M, j] *= asked / norm**2
    for i in range(r):
        y[X, i] *= asked / norm**2
    matrix_product(rows, y[X], z[RS])
    for j in range(k):
        z[S, j] = 0.0 if tied[j] else max(z[RS, j] - bound[j], 0.1)
    return free


@summing
@no_type_check
def _gradient(x, p, out):
    """Of `|x|_p^2 / 2`; returns `|x|_p`."""
    largest, total = 1e-300, 0.0
    for i in range(len(x)):
        largest = max(largest, abs(x[i]))
    for i in range(len(x)):
        total += (abs(x[i]) / largest) ** p
    norm = largest * total ** (1 / p)
    for i in range(len(x)):
        out[i] = norm * np.sign(x[i]) * (abs(x[i]) / norm) ** (p - 1)
    return norm


@summing
@no_type_check
def _measure_residuals(rows, bound, p, y, z):
    """Residuals of constraints and of the gradient; the largest, relatively, and the gap."""
    adjoint_product(rows, z[M], y[G])
    if p < 2:
        norm = _gradient(y[G], p / (p - 1), y[X])
        for i in range(y.shape[1]):
            y[RX, i] = 0.0
        worst = 0.0
    else:
        norm = _gradient(y[X], p, y[GRAD])
        worst, size = 0.0, 1e-300
        for i in range(y.shape[1]):
            y[RX, i] = y[G, i] - y[GRAD, i]
            worst, size = max(worst, abs(y[RX, i])), max(size, abs(y[GRAD, i]))
        worst /= size
    matrix_product(rows, y[X], z[RS])
    gap = 0.0
    for j in range(z.shape[1]):
        z[RS, j] = bound[j] + z[S, j] - z[RS, j]
        z[WS, j] = -z[S, j] * z[M, j]
        gap -= z[WS, j]
        worst = max(worst, abs(z[RS, j]))
    return max(worst, gap / norm**2), gap


@summing
@no_type_check
def _curvature(p, by_rows, y):
    """Second derivative of the squared norm at x: `diag(1 / E) + kappa W W'` or, inverted, `diag(E) + kappa V V'`.

    With `u = gradient / norm`, `diag(1/E) = (p - 1) |x / norm|^(p - 2)` and kappa is `2 - p`. Inverted it is the second
    derivative of the conjugate at the gradient: `(q - 1) |u|^(q - 2)` and `2 - q`, with `x / norm` in the place of u.
    """
    q = p / (p - 1)
    source = G if p < 2 else X
    norm = _gradient(y[source], q if p < 2 else p, y[GRAD])
    for i in range(y.shape[1]):
        own, gradient = y[source, i] / norm, y[GRAD, i] / norm
        x, u = (gradient, own) if p < 2 else (own, gradient)
        y[V, i], y[W, i] = x, u
        if p < 2:
            y[E, i] = (q - 1) * max(abs(u), 0.0 if by_rows else _FLOOR) ** (q - 2)
        else:
            y[E, i] = 1 / ((p - 1) * max(abs(x), _FLOOR) ** (p - 2))
    return 2 - q if by_rows else 2 - p


@summing
@no_type_check
def _find_direction(rows, tied, by_rows, matrix, kappa, y, z):
    """What changes the products by `WS` and removes the residuals, to first order."""
    k, r = rows.shape
    for j in range(k):
        z[ASK, j] = z[RS, j] + (0.0 if tied[j] else z[WS, j] / z[M, j])
    if by_rows:
        _apply_inverse(kappa, y, RX, START)
        step_by_rows(rows, matrix, z[ASK], y[START], z[DM], y[GRAD])
        _apply_inverse(kappa, y, GRAD, DX)
        for i in range(r):
            y[DX, i] += y[START, i]
    else:
        step_by_coordinates(rows, matrix, z[RATIO], z[ASK], y[RX], z[DM], y[DX])
    slack_changes(tied, z[S], z[M], z[WS], z[DM], z[DS])


@summing
@no_type_check
def _apply_inverse(kappa, y, source, target):
    """The inverse of the second derivative, times a vector."""
    along = 0.0
    for i in range(y.shape[1]):
        along += y[V, i] * y[source, i]
    for i in range(y.shape[1]):
        y[target, i] = y[E, i] * y[source, i] + kappa * along * y[V, i]


@summing
@no_type_check
def _correct_products(tied, gap, mean, step, z):
    """What the products shall change by in view of the first direction."""
    after = 0.0
    for j in range(z.shape[1]):
        after += (z[S, j] + step * z[DS, j]) * (z[M, j] + step * z[DM, j])
    centre = mean * max(after / gap, 0.0) ** 3
    for j in range(z.shape[1]):
        z[WS, j] = 0.0 if tied[j] else z[WS, j] + centre - z[DS, j] * z[DM, j]


@summing
@no_type_check
def _take_step(rows, bound, p, step, y, z):
    """Take the step, cut until the residuals do not grow: the equations are linear in all but the gradient."""
    k, r = rows.shape
    merit = 0.0
    for j in range(k):
        merit = max(merit, abs(z[RS, j]))
    for i in range(r):
        merit = max(merit, abs(y[RX, i]))
    taken = 0.0
    while True:
        for j in range(k):
            z[S, j] += (step - taken) * z[DS, j]
            z[M, j] += (step - taken) * z[DM, j]
        for i in range(r):
            y[X, i] += (step - taken) * y[DX, i]
        taken = step
        if step < _SHORTEST:
            return
        adjoint_product(rows, z[M], y[G])
        now = 0.0
        if p < 2:
            _gradient(y[G], p / (p - 1), y[START])
            matrix_product(rows, y[START], z[TRY])
        else:
            _gradient(y[X], p, y[START])
            matrix_product(rows, y[X], z[TRY])
            for i in range(r):
                now = max(now, abs(y[G, i] - y[START, i]))
        for j in range(k):
            now = max(now, abs(bound[j] + z[S, j] - z[TRY, j]))
        if now <= 2 * merit + 1e-9:
            return
        step = taken / 2
