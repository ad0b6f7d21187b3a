"""The dual active-set method of `min |y|, rows y >= bound`, compiled: small systems by the thousand.

In the dual, `max bound' u - |rows' u|^2 / 2` over `u >= 0`, only the inner products of the rows enter. A working set of
constraints holds as equations, with a Cholesky factor of its inner products; the worst violated constraint joins, and
constraints whose multiplier would turn negative leave. A constraint that depends on the working set opens a ray: either
one of the set leaves, or the ray itself proves that there is no solution.

Squaring the rows costs digits. That does no harm, because the result is a proposal that is judged against the rows.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numba
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.compiled.systems import INFEASIBLE, SOLVED, UNDECIDED
from tokenmargin.norms import EPS

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
"""Compiled once per machine, run without the interpreter's lock."""
summing = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
"""As `compiled`, for long sums, which may be reordered; in short ones that costs more than it saves."""

DEPENDENT = 1e-11
"""Squared distance of a unit row from the span of the working set below which it counts as dependent."""
SATISFIED = 1e-12
"""Violations below this share of the bound are left to the certificate."""
VANISHED = 1e-14
"""Entries of a ray above minus this are zero."""


class Workspace(NamedTuple):
    """Memory for one search after another.

    `work` are the constraints of the working set, `u` their multipliers, `factor` the Cholesky factor of their inner
    products with reciprocals on its diagonal, and `forward` the bounds with the factor divided out.
    """

    gram: Float[Array, "k k"]
    work: Int[Array, " k"]
    u: Float[Array, " k"]
    factor: Float[Array, "k k"]
    forward: Float[Array, " k"]
    aim: Float[Array, " k"]
    slack: Float[Array, " k"]
    inside: Bool[Array, " k"]


@summing
@no_type_check
def inner_products(rows, gram):
    """`rows rows'`, two by two: each number read is used twice."""
    k, r = rows.shape
    for i in range(0, k, 2):
        below = min(i + 1, k - 1)
        for j in range(0, i + 1, 2):
            beside = min(j + 1, k - 1)
            a = b = c = d = 0.0
            for t in range(r):
                p, q, u, v = rows[i, t], rows[below, t], rows[j, t], rows[beside, t]
                a += p * u
                b += p * v
                c += q * u
                d += q * v
            gram[i, j] = gram[j, i] = a
            gram[i, beside] = gram[beside, i] = b
            gram[below, j] = gram[j, below] = c
            gram[below, beside] = gram[beside, below] = d


@compiled
@no_type_check
def _append(space, bound, rank, a):
    """Factor row `a` of the working set; False when its constraint depends on those before it."""
    # One more row of the Cholesky factor, and of the forward substitution of the bounds in the same pass. `left` is
    # what the row has outside the span of those before it; diagonals are stored inverted, so nothing is divided.
    work, factor, forward = space.work, space.factor, space.forward
    j = work[a]
    left = space.gram[j, j]
    reached = bound[j]
    for i in range(a):
        entry = space.gram[j, work[i]]
        for t in range(i):
            entry -= factor[i, t] * factor[a, t]
        entry *= factor[i, i]
        factor[a, i] = entry
        left -= entry * entry
        reached -= entry * forward[i]
    if a >= rank or not left > DEPENDENT:
        return False
    factor[a, a] = 1 / np.sqrt(left)
    forward[a] = reached * factor[a, a]
    return True


@compiled
@no_type_check
def _backward(factor, right, out, a):
    """Solve `factor' out = right` for the first `a` entries."""
    for i in range(a):
        out[i] = right[i]
    for i in range(a - 1, -1, -1):
        value = out[i] * factor[i, i]
        out[i] = value
        for t in range(i):
            out[t] -= value * factor[i, t]


@compiled
@no_type_check
def _from_all(space, bound, rank):
    """Begin with all constraints as equations, dropping those with negative multipliers until there are none.

    Returns the size of the working set; 0 where the constraints are dependent.
    """
    work, u, aim = space.work, space.u, space.aim
    a = len(bound)
    for i in range(a):
        work[i] = i
    first = 0  # rows of the factor before this one are those of the last round: nothing left before them
    while True:
        for i in range(first, a):
            if not _append(space, bound, rank, i):
                return 0
        _backward(space.factor, space.forward, aim, a)
        kept, first = 0, a
        for i in range(a):
            if aim[i] > 0:
                work[kept], u[kept] = work[i], aim[i]
                kept += 1
            else:
                first = min(first, i)
        if kept == a:
            return a
        a = kept


@compiled
@no_type_check
def _worst(space, bound, size, a):
    """The constraint that the working set's solution violates most, or -1."""
    slack, inside = space.slack, space.inside
    for j in range(len(bound)):
        slack[j] = -bound[j]
        inside[j] = False
    total = 0.0
    for i in range(a):
        weight, row = space.u[i], space.gram[space.work[i]]
        inside[space.work[i]] = True
        total += weight
        for j in range(len(bound)):
            slack[j] += weight * row[j]
    worst, least = -1, 0.0
    for j in range(len(bound)):
        if slack[j] < least and not inside[j] and slack[j] < -SATISFIED * size[j] - 4 * EPS * total:
            worst, least = j, slack[j]
    return worst


@compiled
@no_type_check
def _advance(u, aim, a):
    """Move `u` to `aim`, or as far towards it as no entry turns negative; the entry that blocks, or -1."""
    blocking, length = -1, 1.0
    for i in range(a):
        if aim[i] < 0:
            reach = u[i] / (u[i] - aim[i])
            if blocking < 0 or reach < length:
                blocking, length = i, reach
    for i in range(a):
        u[i] = aim[i] if blocking < 0 else u[i] + length * (aim[i] - u[i])
    return blocking


@compiled
@no_type_check
def _follow(u, ray, a):
    """Move `u` along `ray` until an entry vanishes: that entry, or -1 when none ever does."""
    blocking, length = -1, np.inf
    for i in range(a):
        if ray[i] < -VANISHED and u[i] / -ray[i] < length:
            blocking, length = i, u[i] / -ray[i]
    if blocking >= 0:
        for i in range(a):
            u[i] += length * ray[i]
    return blocking


@compiled
@no_type_check
def _enter(space, bound, rank, a):
    """Let constraint `work[a]` join the first `a`.

    Returns the new size, or minus it when `aim` holds a ray that nothing blocks; 0 where rounding got in the way.
    """
    work, u, aim = space.work, space.u, space.aim
    u[a] = 0.0
    first, a = a, a + 1
    while True:
        for i in range(first, a - 1):
            if not _append(space, bound, rank, i):
                return 0
        if _append(space, bound, rank, a - 1):
            _backward(space.factor, space.forward, aim, a)
            first = _advance(u, aim, a)
            if first < 0:
                return a
        else:
            # The newcomer is a combination of the others: adding it and taking that combination away changes nothing
            # but the multipliers. `_append` left the forward substitution of its inner products in row a - 1.
            _backward(space.factor, space.factor[a - 1], aim, a - 1)
            for i in range(a - 1):
                aim[i] = -aim[i]
            aim[a - 1] = 1.0
            first = _follow(u, aim, a)
            if first < 0:
                return -a
        if first == a - 1:
            return 0  # the newcomer itself cannot block but by rounding
        a -= 1
        for i in range(first, a):  # close the gap; the factor is rebuilt from there
            work[i], u[i] = work[i + 1], u[i + 1]


@compiled
@no_type_check
def search_working_set(space, bound, size, rank):
    """Fill the workspace with the working set and multipliers of the solution, or of a ray that refutes the system.

    No more than `rank` rows, their dimension, are independent. Where that is all of them, most will hold the solution.
    Returns what was found, and the size of the working set.
    """
    a = _from_all(space, bound, rank) if rank >= len(bound) else 0
    for _ in range(20 + 4 * len(bound)):
        j = _worst(space, bound, size, a)
        if j < 0:
            return SOLVED, a
        space.work[a] = j
        a = _enter(space, bound, rank, a)
        if a == 0:
            break
        if a < 0:
            for i in range(-a):
                space.u[i] = max(space.aim[i], 0.0)
            return INFEASIBLE, -a
    return UNDECIDED, 0


@compiled
@no_type_check
def correct_multipliers(space, a):
    """Add to the multipliers what raises the inner products of the working set by `aim`: iterative refinement."""
    factor, forward = space.factor, space.forward
    for i in range(a):
        value = space.aim[i]
        for t in range(i):
            value -= factor[i, t] * forward[t]
        forward[i] = value * factor[i, i]
    _backward(factor, forward, space.aim, a)
    for i in range(a):
        space.u[i] += space.aim[i]
