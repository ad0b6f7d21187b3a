"""Stacks of small systems solved and certified by compiled code.

The certificate is that of `certificate.judge`, computed from the rows themselves; what does not pass is left undecided,
for the ways of `system` with hard cases.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.activeset import Workspace, compiled, correct, inner_products, search, summing
from tokenmargin.margin.answers import INFEASIBLE, OUT_OF_RANGE, SOLVED, UNDECIDED, Answers
from tokenmargin.margin.certificate import TOLERANCE, UNRESOLVED

__all__ = ["solve_keys", "solve_stack"]

_EPS = float(np.finfo(float).eps)
_SMALLEST, _LARGEST = 1e-280, 1e280  # squared lengths that are neither zero nor spoilt by underflow or overflow


@compiled
@no_type_check
def _workspace(k):
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
def _judge(rows, bound, size, space, a, y, table):
    """The residuals of `certificate.judge` at `y = rows' u`, and the norm of y; slacks stay in the workspace."""
    slack = space.slack
    squared = _dot(y, y)
    primal = 0.0
    for j in range(len(bound)):
        slack[j] = _dot(rows[j], y) - bound[j]
        primal = max(primal, -slack[j] / size[j])
    if primal > TOLERANCE:
        rounding = rows.shape[1] * _EPS * np.sqrt(squared)
        primal = 0.0
        for j in range(len(bound)):
            primal = max(primal, -(slack[j] + min(rounding, UNRESOLVED * size[j])) / size[j])
    least = largest = product = gap = 0.0
    for i in range(a):
        u = space.u[i]
        least, largest = min(least, u), max(largest, abs(u))
        product = max(product, abs(u * slack[space.work[i]]))
        gap += u * slack[space.work[i]]
    table[0] = primal if squared > 0 else np.inf
    table[1] = -least / largest if least < 0 else 0.0
    table[2] = product / squared
    table[3] = abs(gap) / squared
    return np.sqrt(squared)


@compiled
@no_type_check
def _passes(table):
    return table[0] <= TOLERANCE and table[1] <= TOLERANCE and table[2] <= TOLERANCE and table[3] <= TOLERANCE


@compiled
@no_type_check
def _farkas_residual(rows, bound, space, a, y):
    """`|rows' u|` relative to `sum u`, as `certificate.farkas_residual`."""
    _combine(rows, space, a, y)
    gain = total = least = 0.0
    for i in range(a):
        gain += space.u[i] * bound[space.work[i]]
        total += space.u[i]
        least = min(least, space.u[i])
    return np.sqrt(_dot(y, y)) / max(gain, total) if gain > 0 and least >= 0 else np.inf


@compiled
@no_type_check
def _refuted(rows, bound, space, a, y):
    """The outcome of a ray, refined once if need be."""
    proof = _farkas_residual(rows, bound, space, a, y)
    if proof > TOLERANCE:
        for i in range(a - 1):  # the factor is of all but the last, which opened the ray
            space.aim[i] = -_dot(rows[space.work[i]], y)
        correct(space, a - 1)
        proof = _farkas_residual(rows, bound, space, a, y)
    return (INFEASIBLE, a, proof) if proof <= TOLERANCE else (UNDECIDED, 0, np.inf)


@compiled
@no_type_check
def _solved(rows, bound, size, space, a, y, table):
    """The outcome of a working set, refined once if need be."""
    _combine(rows, space, a, y)
    norm = _judge(rows, bound, size, space, a, y, table)
    if not _passes(table):
        for i in range(a):
            space.aim[i] = -space.slack[space.work[i]]
        correct(space, a)
        _combine(rows, space, a, y)
        norm = _judge(rows, bound, size, space, a, y, table)
    return (SOLVED, a, norm) if _passes(table) else (UNDECIDED, 0, np.inf)


@compiled
@no_type_check
def _solve(rows, bound, size, space, y, table):
    """What was proven, the size of the working set, and the norm of y or the residual of the Farkas vector."""
    inner_products(rows, space.gram)
    code, a = search(space, bound, size, rows.shape[1])
    if code == SOLVED:
        return _solved(rows, bound, size, space, a, y, table)
    if code == INFEASIBLE:
        return _refuted(rows, bound, space, a, y)
    return UNDECIDED, 0, np.inf


@compiled
@no_type_check
def _write(answers, b, outcome, space, y, table, lengths, scale):
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
    elif code == INFEASIBLE:
        answers.residuals[b, 4] = number
        total = 0.0
        for i in range(a):
            total += space.u[i] / lengths[space.work[i]]
        for i in range(a):
            answers.farkas[b, space.work[i]] = space.u[i] / lengths[space.work[i]] / total


@compiled
@no_type_check
def _solve_rows(rows, bound, size, start, stop, answers):
    """Systems `start..stop` of a stack with unit rows, answered in the units of the system."""
    k, r = rows.shape[1:]
    space, y, table, ones = _workspace(k), np.empty(r), np.empty(4), np.ones(k)
    row, one, unit = np.empty((k, r)), np.empty(k), np.empty(k)
    for b in range(start, stop):
        row[:], one[:], unit[:] = rows[b], bound[b], size[b]
        outcome = _solve(row, one, unit, space, y, table)
        _write(answers, b, outcome, space, y, table, ones, 1.0)


@compiled
@no_type_check
def _pose(tokens, selected, rows, lengths, bound):
    """Unit rows `k_{i alpha_i} - k_it` and bounds of at most 1; the scale of the bounds, 0 for rows out of range."""
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
            ordinary &= squared == 0 or _SMALLEST < squared < _LARGEST
            lengths[j] = np.sqrt(squared) if squared > 0 else 1.0
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
def solve_keys(keys, selected, start, stop, answers):
    """ATT-SVM of problems `start..stop`: tokens (B or 1, n, T, d), one selected token per input."""
    n, T, d = keys.shape[1:]
    k = n * (T - 1)
    space, y, table = _workspace(k), np.empty(d), np.empty(4)
    rows, lengths, bound = np.empty((k, d)), np.empty(k), np.empty(k)
    for b in range(start, stop):
        scale = _pose(keys[b if len(keys) > 1 else 0], selected[b], rows, lengths, bound)
        if scale == 0:
            answers.codes[b] = OUT_OF_RANGE
            continue
        outcome = _solve(rows, bound, bound, space, y, table)
        _write(answers, b, outcome, space, y, table, lengths, scale)


def solve_stack(rows: Float[Array, "B k r"], bound: Float[Array, "B k"], size: Float[Array, "B k"]) -> Answers:
    """The answers to a stack of systems with unit rows (see `certificate.Systems`)."""
    answers = Answers.empty(*rows.shape)
    _solve_rows(_plain(rows), _plain(bound), _plain(size), 0, len(rows), answers)
    return answers


def _plain(array: Array) -> Array:
    """Contiguous and read-only: one kind of array, so that one compiled version serves all."""
    view = np.ascontiguousarray(array).view()
    view.setflags(write=False)
    return view
