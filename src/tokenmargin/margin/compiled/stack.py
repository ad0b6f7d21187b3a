"""Stacks of small systems solved and certified by compiled code.

The certificate is that of `certificate.kkt_residuals`, and a refutation is proven as in `exact.proven_infeasible`; what
does not pass is left undecided, for `systems` to refine or refute.
"""

from __future__ import annotations

import math
from typing import no_type_check

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE
from tokenmargin.margin.compiled.active_set import (
    Workspace,
    compiled,
    correct_multipliers,
    inner_products,
    search_working_set,
    summing,
)
from tokenmargin.margin.compiled.systems import INFEASIBLE, OUT_OF_RANGE, RAY, SOLVED, UNDECIDED, StackResult
from tokenmargin.norms import EPS

_SMALLEST, _LARGEST = 1e-280, 1e280  # squared lengths that are neither zero nor spoilt by underflow or overflow
_GRID, _MULTIPLES = 2.0**24, 12  # exact sums are tried with rows on this grid, and with weights up to so many units


@compiled
@no_type_check
def _workspace(k):
    """Memory for systems of k rows."""
    return Workspace(
        np.empty((k, k)),
        np.empty(k, dtype=np.intp),
        np.empty(k),
        np.empty((k, k)),
        np.empty(k),
        np.empty(k),
        np.empty(k),
        np.empty(k, dtype=np.bool_),
    )


@compiled
@no_type_check
def _combine(rows, space, a, y):
    """`y = rows' u` over the working set."""
    for t in range(len(y)):
        y[t] = 0.0
    for i in range(a):
        weight, row = space.u[i], rows[space.work[i]]
        for t in range(len(y)):
            y[t] += weight * row[t]


@summing
@no_type_check
def _dot(x, y):
    total = 0.0
    for t in range(len(x)):
        total += x[t] * y[t]
    return total


@compiled
@no_type_check
def _measure_residuals(rows, bound, size, space, a, y, table):
    """The residuals of `certificate.kkt_residuals` at `y = rows' u`, and |y|; slacks stay in the workspace."""
    k, r = rows.shape
    slack = space.slack
    squared = _dot(y, y)
    norm = np.sqrt(squared)
    rounding = (r + 4) * EPS * norm
    primal = 0.0
    for j in range(k):
        slack[j] = _dot(rows[j], y) - bound[j]
        primal = max(primal, (rounding - slack[j]) / size[j])
    product = total = gained = 0.0
    for i in range(a):
        u = space.u[i]
        product = max(product, abs(u * slack[space.work[i]]))
        total += u
        gained += u * bound[space.work[i]]
    table[0] = primal if squared > 0 else np.inf
    table[1] = 0.0
    table[2] = product / squared
    table[3] = abs(1 - gained / squared) + (a + 4) * EPS * total / norm + (a + 2 * r + 4) * EPS
    return norm


@compiled
@no_type_check
def _is_certified(table):
    return table[0] <= TOLERANCE and table[2] <= TOLERANCE and table[3] <= TOLERANCE


@compiled
@no_type_check
def _surely_positive(rows, space, a, y):
    """As `exact.surely_positive`: `a - 1` rows span the space, and the weights `u` exceed their error bound.

    The factor L of the rows' inner products gives the norm of the inverse, `|L^-1|`: those products and L itself are
    off by at most `3 r^2 eps`, so where `|L^-1|^2` times that is below 1/4 the true norm is at most 1.16 times it.
    """
    r = rows.shape[1]
    if a - 1 != r:
        return False
    factor, column = space.factor, space.forward
    inverse = 0.0
    for j in range(r):  # column j of L^-1, whose diagonal is stored inverted
        column[j] = factor[j, j]
        inverse += column[j] * column[j]
        for i in range(j + 1, r):
            value = 0.0
            for t in range(j, i):
                value -= factor[i, t] * column[t]
            column[i] = value * factor[i, i]
            inverse += column[i] * column[i]
    least, total = np.inf, space.u[r]
    for i in range(r):
        least, total = min(least, space.u[i]), total + space.u[i]
    rho = np.sqrt(_dot(y, y)) + (a + 4) * EPS * total
    return inverse * 3 * r * r * EPS < 0.25 and space.u[r] > 0 and least > 1.5 * np.sqrt(inverse) * rho


@compiled
@no_type_check
def _small_multiples(rows, space, a):
    """Whether the weights are small multiples of one unit and, for rows on a coarse grid, the rows add up to zero.

    Multiples of `1 / _GRID` below 1, times at most `_MULTIPLES`, add up without rounding.
    """
    largest = 0.0
    for i in range(a):
        largest = max(largest, space.u[i])
        row = rows[space.work[i]]
        for t in range(len(row)):
            if row[t] * _GRID != np.rint(row[t] * _GRID):
                return False
    for units in range(1, _MULTIPLES + 1):
        close = True
        for i in range(a):
            share = space.u[i] * units / largest
            space.aim[i] = np.rint(share)
            close &= abs(share - space.aim[i]) < 1e-8
        if close:
            break
    if not close:
        return False
    for t in range(rows.shape[1]):
        total = 0.0
        for i in range(a):
            total += space.aim[i] * rows[space.work[i], t]
        if total != 0:
            return False
    return True


@compiled
@no_type_check
def _judge_ray(rows, bound, space, a, y, exact):
    """What a ray proves: that the system is infeasible, or nothing yet (RAY), for exact arithmetic to decide.

    A ray whose weights are too inaccurate is refined once; `exact` says that the rows are free of rounding.
    """
    gain = total = 0.0
    for i in range(a):
        gain += space.u[i] * bound[space.work[i]]
        total += space.u[i]
    if not gain > 0:
        return UNDECIDED, 0, np.inf
    _combine(rows, space, a, y)
    if _surely_positive(rows, space, a, y) or (exact and _small_multiples(rows, space, a)):
        return INFEASIBLE, a, 0.0
    if a - 1 == rows.shape[1]:
        for i in range(a - 1):  # the factor is of all but the last, which opened the ray
            space.aim[i] = -_dot(rows[space.work[i]], y)
        correct_multipliers(space, a - 1)
        _combine(rows, space, a, y)
        if _surely_positive(rows, space, a, y):
            return INFEASIBLE, a, 0.0
    for i in range(a):
        space.u[i] = max(space.u[i], 0.0)
    return RAY, a, np.sqrt(_dot(y, y)) / total + (a + 4) * EPS


@compiled
@no_type_check
def _judge_working_set(rows, bound, size, space, a, y, table):
    """What a working set proves: its solution, after one refinement if need be, or nothing (UNDECIDED)."""
    _combine(rows, space, a, y)
    norm = _measure_residuals(rows, bound, size, space, a, y, table)
    if not _is_certified(table):
        for i in range(a):
            space.aim[i] = -space.slack[space.work[i]]
        correct_multipliers(space, a)
        for i in range(a):
            space.u[i] = max(space.u[i], 0.0)
        _combine(rows, space, a, y)
        norm = _measure_residuals(rows, bound, size, space, a, y, table)
    return (SOLVED, a, norm) if _is_certified(table) else (UNDECIDED, 0, np.inf)


@compiled
@no_type_check
def _solve_one(rows, bound, size, space, y, table, exact):
    """What was proven, the size of the working set, and the norm of y or the residual of the Farkas vector."""
    inner_products(rows, space.gram)
    for j in range(len(rows)):
        if space.gram[j, j] == 0 and bound[j] > 0:  # nothing separates two tokens at one place
            space.work[0], space.u[0] = j, 1.0
            return INFEASIBLE, 1, 0.0
    code, a = search_working_set(space, bound, size, rows.shape[1])
    if code == SOLVED:
        return _judge_working_set(rows, bound, size, space, a, y, table)
    if code == INFEASIBLE:
        return _judge_ray(rows, bound, space, a, y, exact)
    return UNDECIDED, 0, np.inf


@compiled
@no_type_check
def _write_answer(answers, b, outcome, space, y, table, lengths, scale):
    """Write one outcome in the units of its problem: the rows had `lengths`, the bounds were divided by `scale`."""
    code, a, number = outcome
    answers.codes[b] = code
    if code == SOLVED:
        answers.norms[b] = number * scale
        for t in range(len(y)):
            answers.vectors[b, t] = y[t] * scale
        for i in range(4):
            answers.residuals[b, i] = table[i]
        for i in range(a):
            answers.multipliers[b, space.work[i]] = space.u[i] * (scale / lengths[space.work[i]])
    elif code in (INFEASIBLE, RAY):
        answers.residuals[b, 4] = number
        total = 0.0
        for i in range(a):
            total += space.u[i] / lengths[space.work[i]]
        for i in range(a):
            answers.farkas[b, space.work[i]] = space.u[i] / lengths[space.work[i]] / total


@compiled
@no_type_check
def _solve_rows(rows, bound, size, start, stop, answers, exact):
    """Systems `start..stop` of a stack with scaled rows, answered in the units of the system."""
    k, r = rows.shape[1:]
    space, y, table, ones = _workspace(k), np.empty(r), np.empty(4), np.ones(k)
    row, one, unit = np.empty((k, r)), np.empty(k), np.empty(k)
    for b in range(start, stop):
        row[:], one[:], unit[:] = rows[b], bound[b], size[b]
        outcome = _solve_one(row, one, unit, space, y, table, exact)
        _write_answer(answers, b, outcome, space, y, table, ones, 1.0)


@compiled
@no_type_check
def _pose_rows(tokens, selected, rows, lengths, bound):
    """Rows `k_{i alpha_i} - k_it` over powers of two, and bounds of at most 1; their scale, 0 if out of range."""
    n, T, d = tokens.shape
    j, scale, ordinary = 0, 0.0, True
    for i in range(n):
        chosen = tokens[i, selected[i]]
        for t in range(T):
            if t == selected[i]:
                continue
            row, other = rows[j], tokens[i, t]
            for c in range(d):
                row[c] = chosen[c] - other[c]
            squared = _dot(row, row)
            ordinary &= _SMALLEST < squared < _LARGEST or not row.any()
            lengths[j] = math.ldexp(1.0, math.frexp(np.sqrt(squared))[1]) if squared > 0 else 1.0
            inverse = 1 / lengths[j]
            for c in range(d):
                row[c] *= inverse
            scale = max(scale, inverse)
            j += 1
    for j in range(len(bound)):
        bound[j] = 1 / (lengths[j] * scale)
    return scale if ordinary else 0.0


@compiled
@no_type_check
def _free_of_rounding(tokens):
    """Whether differences of tokens are exact: all are multiples of the same power of two, below 2^24 of it."""
    largest = 0.0
    for number in tokens.flat:
        largest = max(largest, abs(number))
    grid = math.ldexp(1.0, 24 - math.frexp(largest)[1]) if 1e-200 < largest < 1e200 else 0.0
    for number in tokens.flat:
        if number * grid != np.rint(number * grid):
            return False
    return grid > 0


@compiled
@no_type_check
def solve_keys(keys, selected, start, stop, answers):
    """ATT-SVM of problems `start..stop`: tokens (B or 1, n, T, d), one selected token per input."""
    n, T, d = keys.shape[1:]
    k = n * (T - 1)
    space, y, table = _workspace(k), np.empty(d), np.empty(4)
    rows, lengths, bound = np.empty((k, d)), np.empty(k), np.empty(k)
    for b in range(start, stop):
        tokens = keys[b if len(keys) > 1 else 0]
        scale = _pose_rows(tokens, selected[b], rows, lengths, bound)
        if scale == 0:
            answers.codes[b] = OUT_OF_RANGE
            continue
        outcome = _solve_one(rows, bound, bound, space, y, table, False)
        if outcome[0] == RAY and _free_of_rounding(tokens) and _small_multiples(rows, space, outcome[1]):
            outcome = (INFEASIBLE, outcome[1], 0.0)
        _write_answer(answers, b, outcome, space, y, table, lengths, scale)


def solve_stack(
    rows: Float[Array, "B k r"], bound: Float[Array, "B k"], size: Float[Array, "B k"], *, exact: bool = True
) -> StackResult:
    """The answers to a stack of systems (see `certificate.Systems`); `exact` says that their rows are not rounded."""
    answers = StackResult.empty(*rows.shape)
    _solve_rows(
        _read_only_contiguous(rows),
        _read_only_contiguous(bound),
        _read_only_contiguous(size),
        0,
        len(rows),
        answers,
        exact,
    )
    return answers


def _read_only_contiguous(array: Array) -> Array:
    """Contiguous and read-only: one kind of array, so that one compiled version serves all."""
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view
