"""Small dense linear algebra of the interior-point methods, compiled: loops, which compile fast."""

from __future__ import annotations

import numba
import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

__all__ = ["compiled", "factor", "longest_step", "products", "pulled_back", "step_system", "substitute"]

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
_RIDGE = 1e-15  # of the largest diagonal entry: keeps dependent rows from a division by zero


@compiled
def factor(a: Float[Array, "n n"]) -> None:
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


@compiled
def substitute(a: Float[Array, "n n"], x: Float[Array, " n"]) -> None:
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


@compiled
def step_system(rows: Float[Array, "k r"], weights: Float[Array, " k"], out: Float[Array, "r r"]) -> None:
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


@compiled
def products(rows: Float[Array, "k r"], x: Float[Array, " r"], out: Float[Array, " k"]) -> None:
    """`rows x`."""
    for j in range(len(rows)):
        total = 0.0
        for i in range(len(x)):
            total += rows[j, i] * x[i]
        out[j] = total


@compiled
def pulled_back(rows: Float[Array, "k r"], m: Float[Array, " k"], out: Float[Array, " r"]) -> None:
    """`rows' m`."""
    for i in range(len(out)):
        out[i] = 0.0
    for j in range(len(rows)):
        for i in range(len(out)):
            out[i] += m[j] * rows[j, i]


@compiled
def longest_step(x: Float[Array, " n"], dx: Float[Array, " n"]) -> float:
    """The largest step, at most 1e10, that keeps `x + step dx` from being negative."""
    step = 1e10
    for i in range(len(x)):
        if dx[i] < 0.0:
            step = min(step, -x[i] / dx[i])
    return step
