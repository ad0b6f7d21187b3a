"""The nuclear norm's semidefinite program, compiled: rounds of a primal-dual interior-point method.

With `G = sum_j m_j M_j`: `max bound' m` under `S = [[I, -G], [-G', I]] >= 0` and `m >= 0`. The multiplier X of that
matrix holds the solution, `W = 2 X_12`; s are the slacks `<M_j, W> - bound_j`. Directions are those of Helmberg, Rendl,
Vanderbei and Wolkowicz, Kojima, Shindoh and Hara, and Monteiro, with Mehrotra's predictor and corrector. How long a
step may be is found by trying: whether a small matrix has a Cholesky factor is cheaper to see than its eigenvalues.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.compiled.active_set import summing
from tokenmargin.margin.normed.linear_algebra import cholesky, longest_multiplier_step, longest_step, solve_by_cholesky

_NEAR = 0.98  # share of the way to the boundary
_HALVINGS = 8  # of the interval in which the boundary lies
_TRIES = 40  # halvings after which a step is none


class MatrixIterate(NamedTuple):
    """Where the method is; changed in place by `run_rounds`."""

    X: Float[Array, "n n"]
    s: Float[Array, " k"]
    m: Float[Array, " k"]


def first_state(flat: Float[Array, "k c"], shape: tuple[int, int], tied: Bool[Array, " k"]) -> MatrixIterate:
    """In the middle: a multiple of the unit matrix, and multipliers half way to the boundary."""
    size = float(np.linalg.norm(flat.sum(axis=0).reshape(shape), 2))
    m = np.where(tied, 0.0, 0.5 / max(size, 1e-3))
    return MatrixIterate(np.eye(sum(shape)) * 2 * np.sqrt(len(flat)), np.where(tied, 0.0, 1.0), m)


@summing
@no_type_check
def run_rounds(u, v, core, bound, tied, state, rounds, enough):
    """At most so many rounds, until gap and residuals are at most `enough` of the value; whether that was reached.

    The matrices are `core`; where all are outer products, `u` and `v` are their factors, and elsewhere empty.
    """
    X, s, m = state
    k, a, b = core.shape
    flat, n, free = core.reshape(k, a * b), a + b, 0
    change, over, old = np.empty(k), np.zeros(k), np.empty(k)
    G, Z, dS, second = np.empty((a, b)), np.empty((n, n)), np.zeros((n, n)), np.zeros((n, n))
    least, test, schur, lead = np.empty((a, a)), np.empty((n, n)), np.empty((k, k)), np.empty((n, n))
    dX, dm, ds = np.empty((n, n)), np.empty(k), np.empty(k)
    for j in range(k):
        free += not tied[j]
    for _ in range(rounds):
        G[:] = np.dot(m, flat).reshape(a, b)
        if not _invert_blocks(G, least, Z):
            return False
        short = _corner_products(flat, X, a, b)
        gap, value, off = 0.0, 0.0, 0.0
        for i in range(n):
            value += X[i, i]
        gap = value - np.dot(m, short)  # X S, of which the part off the diagonal is G's
        for j in range(k):
            short[j] = bound[j] + s[j] - short[j]
            gap += s[j] * m[j]
            off = max(off, abs(short[j]))
        if gap <= enough * value and off <= enough:
            return True
        _schur_complement(u, v, core, X, Z, schur)
        for j in range(k):
            if not tied[j]:
                over[j] = 1 / m[j]
            schur[j, j] += s[j] * over[j]
            change[j] = -s[j] * m[j]
        whole = schur.copy()
        cholesky(schur)
        centre = 0.0
        for corrected in range(2):
            for i in range(n):
                for j in range(n):
                    lead[i, j] = centre * Z[i, j] - X[i, j]
                    if corrected:
                        lead[i, j] -= second[i, j]
            pull = _corner_products(flat, lead, a, b)
            for j in range(k):
                old[j] = short[j] + change[j] * over[j] - pull[j]
                dm[j] = old[j]
            solve_by_cholesky(schur, dm)
            old -= np.dot(whole, dm)  # once more, for what rounding has left
            solve_by_cholesky(schur, old)
            dm += old
            D = np.dot(dm, flat).reshape(a, b)
            for i in range(a):
                for j in range(b):
                    dS[i, a + j] = dS[a + j, i] = -D[i, j]
            turned = np.dot(dS, Z)
            moved = np.dot(X, turned)
            for i in range(n):
                for j in range(i + 1):
                    dX[i, j] = dX[j, i] = (lead[i, j] + lead[j, i] - moved[i, j] - moved[j, i]) / 2
            for j in range(k):
                ds[j] = (change[j] - s[j] * dm[j]) * over[j]
            forward = _step_inside(X, dX, test, min(1.0, _NEAR * longest_step(s, ds)), False)
            backward = _step_inside(G, D, least, min(1.0, _NEAR * longest_multiplier_step(tied, m, dm)), True)
            if corrected == 0:
                after = 0.0
                for i in range(n):
                    after += X[i, i] + forward * dX[i, i]
                for i in range(a):
                    for j in range(b):
                        after -= 2 * (X[i, a + j] + forward * dX[i, a + j]) * (G[i, j] + backward * D[i, j])
                for j in range(k):
                    after += (s[j] + forward * ds[j]) * (m[j] + backward * dm[j])
                centre = gap / (n + free) * max(after / gap, 0.0) ** 3
                bent = np.dot(dX, turned)
                for i in range(n):
                    for j in range(n):
                        second[i, j] = (bent[i, j] + bent[j, i]) / 2
                for j in range(k):
                    change[j] = 0.0 if tied[j] else centre - s[j] * m[j] - ds[j] * dm[j]
        if not forward + backward > 0:
            return False
        for i in range(n):
            for j in range(n):
                X[i, j] += forward * dX[i, j]
        for j in range(k):
            s[j] += forward * ds[j]
            m[j] += backward * dm[j]
    return False


@summing
@no_type_check
def _corner_products(flat, matrix, a, b):
    """`2 <M_j, matrix_12>`, for all j."""
    part = np.empty(a * b)
    for i in range(a):
        for j in range(b):
            part[i * b + j] = 2 * matrix[i, a + j]
    return np.dot(flat, part)


@summing
@no_type_check
def _has_cholesky_factor(matrix):
    """Whether a matrix has a Cholesky factor, which takes its place below the diagonal."""
    n = len(matrix)
    for i in range(n):
        for j in range(i):
            total = matrix[i, j]
            for c in range(j):
                total -= matrix[i, c] * matrix[j, c]
            matrix[i, j] = total / matrix[j, j]
        total = matrix[i, i]
        for c in range(i):
            total -= matrix[i, c] * matrix[i, c]
        if not total > 0:
            return False
        matrix[i, i] = np.sqrt(total)
    return True


@summing
@no_type_check
def _invert_blocks(G, least, Z):
    """The inverse of `[[I, -G], [-G', I]]`, by that of `I - G G'`; False where it is not positive."""
    a, b = G.shape
    _identity_less_square(G, G, 0.0, least)
    if not _has_cholesky_factor(least):
        return False
    column = np.empty(a)
    for j in range(a):
        column[:] = 0.0
        column[j] = 1.0
        solve_by_cholesky(least, column)
        for i in range(a):
            Z[i, j] = column[i]
    for j in range(b):
        for i in range(a):
            column[i] = G[i, j]
        solve_by_cholesky(least, column)
        for i in range(a):
            Z[i, a + j] = Z[a + j, i] = column[i]
        for c in range(b):
            total = 1.0 if c == j else 0.0
            for i in range(a):
                total += G[i, c] * column[i]
            Z[a + c, a + j] = total
    return True


@summing
@no_type_check
def _identity_less_square(G, D, step, out):
    """`I - (G + step D) (G + step D)'`, below the diagonal."""
    a, b = G.shape
    for i in range(a):
        for j in range(i + 1):
            total = 0.0
            for c in range(b):
                total += (G[i, c] + step * D[i, c]) * (G[j, c] + step * D[j, c])
            out[i, j] = (1.0 if i == j else 0.0) - total


@summing
@no_type_check
def _step_inside(X, dX, test, most, dual):
    """A share of the longest step, at most `most`, that keeps X positive; or S, if X and dX are its part that moves."""
    low, high = 0.0, most / _NEAR
    for t in range(_TRIES):
        step = high if t == 0 else (low + high) / 2
        if dual:
            _identity_less_square(X, dX, step, test)
        else:
            for i in range(len(X)):
                for j in range(i + 1):
                    test[i, j] = X[i, j] + step * dX[i, j]
        if _has_cholesky_factor(test):
            low = step
            if t == 0:
                break
        else:
            high = step
        if t >= _HALVINGS and low > 0:
            break
    return _NEAR * low


@summing
@no_type_check
def _schur_complement(u, v, core, X, Z, out):
    """`<M_j, X11 M_l Z22 + Z11 M_l X22 + X12 M_l' Z12 + Z12 M_l' X12>`."""
    k, a, b = core.shape
    X11, X12, X22 = X[:a, :a].copy(), X[:a, a:].copy(), X[a:, a:].copy()
    Z11, Z12, Z22 = Z[:a, :a].copy(), Z[:a, a:].copy(), Z[a:, a:].copy()
    if len(u):
        turned_u, turned_v = u.T.copy(), v.T.copy()
        p, q = np.dot(np.dot(u, X11), turned_u), np.dot(np.dot(v, Z22), turned_v)
        r, t = np.dot(np.dot(u, Z11), turned_u), np.dot(np.dot(v, X22), turned_v)
        x, z = np.dot(np.dot(u, X12), turned_v), np.dot(np.dot(u, Z12), turned_v)
        for j in range(k):
            for i in range(j + 1):
                out[j, i] = p[j, i] * q[j, i] + r[j, i] * t[j, i] + x[j, i] * z[i, j] + x[i, j] * z[j, i]
                out[i, j] = out[j, i]
        return
    moved = np.empty((k, a * b))
    for j in range(k):
        turned = core[j].T.copy()
        one = np.dot(np.dot(X11, core[j]), Z22) + np.dot(np.dot(Z11, core[j]), X22)
        one += np.dot(np.dot(X12, turned), Z12) + np.dot(np.dot(Z12, turned), X12)
        moved[j] = one.reshape(a * b)
    found = np.dot(core.reshape(k, a * b), moved.T.copy())
    for j in range(k):
        for i in range(k):
            out[j, i] = (found[j, i] + found[i, j]) / 2
