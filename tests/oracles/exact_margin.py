"""Max-margin problems in exact rational arithmetic, and what that says of an answer.

Nothing of the package is used: a double is a rational number, and the rows are differences of rationals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import linprog

Row = tuple[Fraction, ...]


def exact_rows(keys: np.ndarray, selected: Sequence[int]) -> list[Row]:
    """`k_{i alpha_i} - k_it` for every other token, in the order of the package's constraints."""
    exact = [[[Fraction(x) for x in token] for token in tokens] for tokens in keys.tolist()]
    return [
        tuple(a - b for a, b in zip(tokens[alpha], token, strict=True))
        for tokens, alpha in zip(exact, selected, strict=True)
        for t, token in enumerate(tokens)
        if t != alpha
    ]


def dot(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), start=Fraction(0))


@dataclass(frozen=True)
class ExactAnswer:
    """The shortest p with `<row, p> >= 1` for all rows; None where there is none."""

    vector: Row | None

    @property
    def feasible(self) -> bool:
        return self.vector is not None

    @property
    def squared(self) -> Fraction:
        """|p|^2."""
        assert self.vector is not None
        return dot(self.vector, self.vector)

    @property
    def margin(self) -> float:
        """`1 / |p|`, right to rounding wherever doubles can hold it."""
        return math.inf if self.squared == 0 else _root(1 / self.squared)


def _root(x: Fraction) -> float:
    """The square root of a rational, which may itself be too large or small for a double."""
    shift = (x.numerator.bit_length() - x.denominator.bit_length()) // 2
    try:
        return math.ldexp(math.sqrt(x / Fraction(2) ** (2 * shift)), shift)
    except OverflowError:
        return math.inf


def solve_exactly(rows: list[Row], *, active: Sequence[int] = (), farkas: Sequence[int] = ()) -> ExactAnswer:
    """The exact answer. Only independent subsets of rows can hold it (Caratheodory), and all are tried.

    `active` and `farkas` are subsets to try first: whatever set passes the exact test is right.
    """
    if not rows:
        return ExactAnswer(())
    d = len(rows[0])
    unit = math.lcm(*(x.denominator for row in rows for x in row))
    whole = [[int(x * unit) for x in row] for row in rows]
    found = _held_by(whole, tuple(active)) if 0 < len(active) <= d else None
    if found is None and farkas and _adds_up_to_zero([whole[j] for j in farkas]):
        return ExactAnswer(None)
    subsets = (s for size in range(1, min(d, len(rows)) + 1) for s in itertools.combinations(range(len(rows)), size))
    while found is None and (subset := next(subsets, None)) is not None:
        found = _held_by(whole, subset)
    return ExactAnswer(None if found is None else tuple(x * unit for x in found))


def _times(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _held_by(rows: list[list[int]], subset: Sequence[int]) -> list[Fraction] | None:
    """The shortest vector on `<row, p> = 1` for the subset, if its multipliers are not negative and all rows hold."""
    held = [rows[j] for j in subset]
    solved = _solve([[_times(a, b) for b in held] for a in held], [1] * len(held))
    if solved is None or min(solved[0]) < 0:
        return None
    weights, scale = solved
    p = [_times(weights, column) for column in zip(*held, strict=True)]
    return [Fraction(x, scale) for x in p] if all(_times(row, p) >= scale for row in rows) else None


def _solve(matrix: list[list[int]], right: list[int]) -> tuple[list[int], int] | None:
    """Numerators and the positive denominator of the solution of a square system of integers; None where singular.

    Gauss-Jordan elimination without fractions (Bareiss): all divisions are exact.
    """
    table = [[*row, b] for row, b in zip(matrix, right, strict=True)]
    n, before = len(table), 1
    for c in range(n):
        pivot = next((i for i in range(c, n) if table[i][c]), None)
        if pivot is None:
            return None
        table[c], table[pivot] = table[pivot], table[c]
        top = table[c]
        for i in range(n):
            if i != c:
                table[i] = [(top[c] * x - table[i][c] * y) // before for x, y in zip(table[i], top, strict=True)]
        before = top[c]
    sign = 1 if before > 0 else -1
    return [sign * row[n] for row in table], sign * before


def _adds_up_to_zero(rows: list[list[int]]) -> bool:
    """Whether the rows but the last are independent and minus the last is a combination of them, none negative."""
    *others, last = rows
    if not others:
        return not any(last)
    solved = _solve([[_times(a, b) for b in others] for a in others], [-_times(row, last) for row in others])
    if solved is None or min(solved[0]) < 0:
        return False
    weights, scale = solved
    return all(_times(weights, column[:-1]) == -scale * column[-1] for column in zip(*rows, strict=True))


def exactly_infeasible(rows: list[Row], farkas: np.ndarray) -> bool:
    """Whether non-negative multipliers of some of the rows add up to zero exactly: of those named, or by HiGHS.

    A vertex of `lambda >= 0, lambda' rows = 0, sum(lambda) = 1` has as few rows as can be: their multipliers are
    determined, and computed in integers. False where there is none, or it was missed.
    """
    if not all(map(any, rows)):
        return True
    rounded = np.array([[float(x / max(map(abs, row))) for x in row] for row in rows])
    ask = np.vstack([rounded.T, np.ones(len(rows))])
    vertex = linprog(np.zeros(len(rows)), A_eq=ask, b_eq=np.eye(len(ask))[-1], method="highs-ds").x
    for chosen in (farkas, np.zeros(len(rows)) if vertex is None else vertex):
        held = [row for row, weight in zip(rows, chosen.tolist(), strict=True) if weight > 0]
        unit = math.lcm(*(x.denominator for row in held for x in row))
        if held and _adds_up_to_zero([[int(x * unit) for x in row] for row in held]):
            return True
    return False


def worst_violation(rows: list[Row], vector: Sequence[Fraction]) -> float:
    """By how much the vector misses the worst margin of 1."""
    return float(max((1 - dot(row, vector) for row in rows), default=Fraction(0)))


def excess(answer: ExactAnswer, vector: Sequence[Fraction]) -> float:
    """`|p| / |p*| - 1`, signed."""
    ratio = float(dot(vector, vector) / answer.squared) if answer.squared else 1.0
    return ratio**0.5 - 1
