"""Small dense linear algebra of the interior-point methods, compiled: loops, which compile fast."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from tokenmargin.margin.compiled.active_set import summing

__all__ = ["factor", "longest_step", "products", "pulled_back", "step_system", "substitute"]

_RIDGE = 1e-15  # of the largest diagonal entry: keeps dependent rows from a division by zero


@summing
@no_type_check
def factor(a):
    """Cholesky's factor in the lower half, in place."""
    n = len(a)
    ridge = 0.0
    for i in range(n):
        ridge = max(ridge, a[i, i])
    ridge *= _RIDGE
    for i in range(n):
        for j in range(i + 1):
            total = a[i, j]
            for c in range(j):
                total -= a[i, c] * a[j, c]
            if i == j:
                a[i, i] = np.sqrt(max(total, 0.0) + ridge)
            else:
                a[i, j] = total / a[j, j]


@summing
@no_type_check
def substitute(a, x):
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
def step_system(rows, weights, out):
    """`rows' diag(weights) rows`, the lower half."""
    k, r = rows.shape
    for a in range(r):
        for b in range(a + 1):
            out[a, b] = 0.0
    for j in range(k):
        for a in range(r):
            scaled = weights[j] * rows[j, a]
            for b in range(a + 1):
                out[a, b] += scaled * rows[j, b]


@summing
@no_type_check
def products(rows, x, out):
    """`rows x`."""
    for j in range(len(rows)):
        total = 0.0
        for i in range(len(x)):
            total += rows[j, i] * x[i]
        out[j] = total


@summing
@no_type_check
def pulled_back(rows, m, out):
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
