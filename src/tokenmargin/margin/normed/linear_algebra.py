"""Small dense linear algebra of the interior-point methods, compiled: loops, which compile fast."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from tokenmargin.margin.compiled.active_set import inner_products, summing

_RIDGE = 1e-15  # of the largest diagonal entry: keeps dependent rows from a division by zero


@summing
@no_type_check
def cholesky(a):
    """Cholesky's factor in the lower half, in place."""
    n = len(a)
    ridge = 0.0
    for i in range(n):
        ridge = max(ridge, a[i, i])
    ridge *= _RIDGE
    for i in range(0, n, 2):  # two rows and two columns at a time: each number read is used twice
        below = min(i + 1, n - 1)
        for j in range(0, i, 2):
            p, q, u, v = a[i, j], a[i, j + 1], a[below, j], a[below, j + 1]
            for c in range(j):
                p -= a[i, c] * a[j, c]
                q -= a[i, c] * a[j + 1, c]
                u -= a[below, c] * a[j, c]
                v -= a[below, c] * a[j + 1, c]
            p, u = p / a[j, j], u / a[j, j]
            a[i, j], a[below, j] = p, u
            a[i, j + 1] = (q - p * a[j + 1, j]) / a[j + 1, j + 1]
            a[below, j + 1] = (v - u * a[j + 1, j]) / a[j + 1, j + 1]
        p, u, v = a[i, i], a[below, i], a[below, below]
        for c in range(i):
            p -= a[i, c] * a[i, c]
            u -= a[below, c] * a[i, c]
            v -= a[below, c] * a[below, c]
        a[i, i] = np.sqrt(max(p, 0.0) + ridge)
        if below > i:
            a[below, i] = u / a[i, i]
            a[below, below] = np.sqrt(max(v - a[below, i] ** 2, 0.0) + ridge)


@summing
@no_type_check
def solve_by_cholesky(a, x):
    """Solve with the factor, in place."""
    n = len(a)
    for i in range(n):
        total = x[i]
        for c in range(i):
            total -= a[i, c] * x[c]
        x[i] = total / a[i, i]
    for i in range(n - 1, -1, -1):
        x[i] /= a[i, i]
        for c in range(i):
            x[c] -= a[i, c] * x[i]


@summing
@no_type_check
def step_system(vectors, weights, scaled, out):
    """`vectors diag(weights) vectors'`, for weights that are not negative; `scaled` has the shape of the vectors."""
    for i in range(vectors.shape[1]):
        root = np.sqrt(weights[i])
        for j in range(len(vectors)):
            scaled[j, i] = root * vectors[j, i]
    inner_products(scaled, out)


@summing
@no_type_check
def matrix_product(rows, x, out):
    """`rows x`."""
    for j in range(len(rows)):
        total = 0.0
        for i in range(len(x)):
            total += rows[j, i] * x[i]
        out[j] = total


@summing
@no_type_check
def adjoint_product(rows, m, out):
    """`rows' m`."""
    for i in range(len(out)):
        out[i] = 0.0
    for j in range(len(rows)):
        for i in range(len(out)):
            out[i] += m[j] * rows[j, i]


@summing
@no_type_check
def longest_step(x, dx):
    """The largest step, at most 1e10, that keeps `x + step dx` from being negative."""
    step = 1e10
    for i in range(len(x)):
        if dx[i] < 0.0:
            step = min(step, -x[i] / dx[i])
    return step


@summing
@no_type_check
def longest_multiplier_step(tied, m, dm):
    """As `longest_step`, for the multipliers of inequalities: those of ties may have either sign."""
    step = 1e10
    for j in range(len(m)):
        if dm[j] < 0.0 and not tied[j]:
            step = min(step, -m[j] / dm[j])
    return step


@summing
@no_type_check
def step_by_rows(rows, matrix, asked, start, dm, pulled):
    """The multipliers' change `dm`, by the factor of a system of their size, and `rows' dm`."""
    matrix_product(rows, start, dm)
    for j in range(len(dm)):
        dm[j] = asked[j] - dm[j]
    solve_by_cholesky(matrix, dm)
    adjoint_product(rows, dm, pulled)


@summing
@no_type_check
def step_by_coordinates(rows, matrix, ratio, asked, start, dm, dx):
    """The coordinates' change `dx`, by the factor of a system of their size, and then that of the multipliers."""
    for j in range(len(dm)):
        dm[j] = ratio[j] * asked[j]
    adjoint_product(rows, dm, dx)
    for i in range(len(dx)):
        dx[i] += start[i]
    solve_by_cholesky(matrix, dx)
    matrix_product(rows, dx, dm)
    for j in range(len(dm)):
        dm[j] = ratio[j] * (asked[j] - dm[j])


@summing
@no_type_check
def slack_changes(tied, s, m, product, dm, out):
    """The change of the slacks with which the products `s m` change by `product`, to first order; ties have none."""
    for j in range(len(out)):
        out[j] = 0.0 if tied[j] else (product[j] - s[j] * dm[j]) / m[j]
