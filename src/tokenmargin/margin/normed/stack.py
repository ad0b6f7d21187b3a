"""Stacks of systems in an lp norm, compiled: a proposal for each, trimmed, and the certificate that decides.

The ordinary case, without ties and bounds of zero; what does not pass here is handed to the general path of `solve`.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.compiled.active_set import summing
from tokenmargin.margin.normed.linear_algebra import adjoint_product, matrix_product
from tokenmargin.margin.normed.polyhedral import interior_point
from tokenmargin.margin.normed.smooth import ENOUGH, newton_on_active, smooth_interior_point
from tokenmargin.margin.normed.solve import GAP
from tokenmargin.norms import EPS

_FOR_NEWTON = 1e-6  # residuals at which Newton's method takes over: it doubles the digits at each of its four steps


def solve_stack(
    rows: Float[Array, "B k r"], bound: Float[Array, "B k"], p: float
) -> tuple[Float[Array, "B r"], Float[Array, "B k"], Float[Array, "B 2"]]:
    """Vectors, multipliers with `|rows' multipliers|_* = |vector|`, and the norm and gap of each; infinite gaps where
    nothing is proven. The gap is that of `solve.judge_proposal`."""
    B, k, r = rows.shape
    vectors, multipliers, found = np.empty((B, r)), np.empty((B, k)), np.empty((B, 2))
    _solve_all(rows, bound, float(p), vectors, multipliers, found)
    return vectors, multipliers, found


@summing
@no_type_check
def _solve_all(rows, bound, p, vectors, multipliers, found):
    """Fills in vectors, multipliers, and norm and gap of every system."""
    B, k, r = rows.shape
    tied = np.zeros(k, dtype=np.bool_)
    along, across = np.empty((2, k)), np.empty((3, r))
    for b in range(B):
        gap = np.inf
        if 1 < p < 2:  # near enough to see which constraints hold; Newton's method on them is quicker and goes farther
            x, m = smooth_interior_point(rows[b], bound[b], tied, p, k < r, _FOR_NEWTON)
            _trim_one(rows[b], bound[b], p, x, m, along, across)
            newton_on_active(rows[b], bound[b], p, x, m)
            norm, gap = _judge_one(rows[b], bound[b], p, x, m, along, across)
        if not gap <= GAP:
            if p == 1 or p == np.inf:
                x, m = interior_point(rows[b], bound[b], tied, p > 1)
            else:
                x, m = smooth_interior_point(rows[b], bound[b], tied, p, k < r, ENOUGH)
            _trim_one(rows[b], bound[b], p, x, m, along, across)
            norm, gap = _judge_one(rows[b], bound[b], p, x, m, along, across)
        vectors[b], multipliers[b] = x, m
        found[b, 0], found[b, 1] = norm, gap if gap <= GAP else np.inf


@summing
@no_type_check
def _trim_one(rows, bound, p, x, m, along, across):
    """As `faces.trim_proposal`: without multipliers of idle constraints and coordinates that vanish."""
    matrix_product(rows, x, along[0])
    largest = 0.0
    for j in range(len(m)):
        largest = max(largest, m[j])
    for j in range(len(m)):
        if not m[j] > largest * abs(along[0, j] - bound[j]):
            m[j] = 0.0
    adjoint_product(rows, m, across[0])
    most, pull = 0.0, 0.0
    for i in range(len(x)):
        most, pull = max(most, abs(x[i])), max(pull, abs(across[0, i]))
    for i in range(len(x)):
        stiff = abs(x[i]) / most + abs(across[0, i]) / pull > 1
        if p == 1 and not stiff:
            x[i] = 0.0
        if p == np.inf and stiff:
            x[i] = np.sign(x[i]) * most


@summing
@no_type_check
def _judge_one(rows, bound, p, x, m, along, across):
    """Scales x until it is feasible, and m to dual norm |x|, as `solve.judge_proposal`. Returns |x| and the gap.

    Sums may be in any order: the bounds on rounding hold for all.
    """
    k, r = rows.shape
    factor = 0.0
    for j in range(k):
        reached, size = 0.0, 0.0
        for i in range(r):
            term = rows[j, i] * x[i]
            reached += term
            size += abs(term)
        surely = reached - (r + 4) * EPS * size
        if not surely > 0:
            return 0.0, np.inf
        factor = max(factor, bound[j] / surely)
    for i in range(r):
        x[i] *= factor * (1 + 4 * EPS)
        across[0, i] = across[1, i] = 0.0
    used, gained = 0, 0.0
    for j in range(k):
        m[j] = max(m[j], 0.0)
        used += m[j] > 0
        gained += bound[j] * m[j]
        for i in range(r):
            across[0, i] += m[j] * rows[j, i]
            across[1, i] += m[j] * abs(rows[j, i])
    for i in range(r):
        across[1, i] *= (used + 4) * EPS
    rounding = 1 + (r + 8) * EPS
    q = np.inf if p == 1 else (1.0 if p == np.inf else p / (p - 1))
    upper = _lp_norm(x, p) * rounding
    dual = (_lp_norm(across[0], q) + _lp_norm(across[1], q)) * rounding
    gained *= 1 - (k + 2) * EPS
    if not (0 < dual < np.inf and gained > 0 and 0 < upper < np.inf):
        return 0.0, np.inf
    for j in range(k):
        m[j] *= upper / dual
    return upper, abs(1 - gained / dual / upper)


@summing
@no_type_check
def _lp_norm(x, p):
    largest, total = 0.0, 0.0
    for i in range(len(x)):
        largest = max(largest, abs(x[i]))
    if p == np.inf or not largest > 0:
        return largest
    for i in range(len(x)):
        total += abs(x[i]) / largest if p == 1 else (abs(x[i]) / largest) ** p
    return largest * (total if p == 1 else total ** (1 / p))
