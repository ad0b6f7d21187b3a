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


def exact_ties(keys: np.ndarray, chosen: np.ndarray) -> tuple[list[Row], list[Row]]:
    """The differences of chosen tokens, and those of the first of them and the tokens that are not chosen."""
    exact = [[[Fraction(x) for x in token] for token in tokens] for tokens in keys.tolist()]
    ties: list[Row] = []
    rows: list[Row] = []
    for tokens, kept in zip(exact, chosen.tolist(), strict=True):
        first = kept.index(True)
        for t in set(range(len(tokens))) - {first}:
            row = tuple(a - b for a, b in zip(tokens[first], tokens[t], strict=True))
            (ties if kept[t] else rows).append(row)
    return ties, rows


@dataclass(frozen=True)
class ExactAnswer:
    """The shortest p with `<row, p> >= bound` for all rows, 1 by default; None where there is none."""

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


def solve_exactly(
    rows: list[Row],
    *,
    bounds: Sequence[int] | None = None,
    ties: Sequence[Row] = (),
    active: Sequence[int] = (),
    farkas: Sequence[int] = (),
) -> ExactAnswer:
    """The exact answer. Only independent subsets of rows can hold it (Caratheodory), and all are tried.

    `ties` are rows of which the inner product with p is zero. `active` and `farkas` are subsets of the rows to try
    first: whatever set passes the exact test is right.
    """
    if not rows:
        return ExactAnswer(())
    d = len(rows[0])
    unit = math.lcm(*(x.denominator for row in (*rows, *ties) for x in row))
    whole = [[int(x * unit) for x in row] for row in rows]
    level = independent([[int(x * unit) for x in row] for row in ties])
    asked = [1] * len(rows) if bounds is None else list(bounds)
    found = _held_by(whole, asked, level, tuple(active)) if 0 < len(active) <= d - len(level) else None
    if found is None and farkas and not level and bounds is None and _adds_up_to_zero([whole[j] for j in farkas]):
        return ExactAnswer(None)
    most = min(d - len(level), len(rows))
    subsets = (s for size in range(1, most + 1) for s in itertools.combinations(range(len(rows)), size))
    while found is None and (subset := next(subsets, None)) is not None:
        found = _held_by(whole, asked, level, subset)
    return ExactAnswer(None if found is None else tuple(x * unit for x in found))


def _times(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def independent(rows: list[list[int]]) -> list[list[int]]:
    """As many of the rows as are independent."""
    kept: list[list[int]] = []
    for row in rows:
        if _solve([[_times(a, b) for b in [*kept, row]] for a in [*kept, row]], [0] * (len(kept) + 1)) is not None:
            kept.append(row)
    return kept


def _held_by(
    rows: list[list[int]], bounds: list[int], level: list[list[int]], subset: Sequence[int]
) -> list[Fraction] | None:
    """The shortest vector on `<row, p> = bound` for the subset and `<row, p> = 0` for those that are level, if the
    multipliers of the subset are not negative and all rows hold."""
    held = [*level, *(rows[j] for j in subset)]
    right = [0] * len(level) + [bounds[j] for j in subset]
    solved = _solve([[_times(a, b) for b in held] for a in held], right)
    if solved is None or min(solved[0][len(level) :]) < 0:
        return None
    weights, scale = solved
    p = [_times(weights, column) for column in zip(*held, strict=True)]
    kept = all(_times(row, p) >= bound * scale for row, bound in zip(rows, bounds, strict=True))
    return [Fraction(x, scale) for x in p] if kept else None


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


def tie_violation(
    rows: list[Row], vector: Sequence[Fraction], *, level: Sequence[Row] = (), behind: Sequence[Row] = ()
) -> float:
    """By how much the vector misses the worst of the ties and margins of zero, as a share of a margin of 1 or of the
    least distance that `rows` ask for, whichever is less."""
    missed = [(abs(dot(row, vector)), row) for row in level] + [(-dot(row, vector), row) for row in behind]
    longest = max((dot(row, row) for row in rows), default=Fraction(1))
    return max(
        (float(x) * max(1.0, _root(longest / dot(row, row))) for x, row in missed if x > 0 and any(row)), default=0.0
    )


def excess(answer: ExactAnswer, vector: Sequence[Fraction]) -> float:
    """`|p| / |p*| - 1`, signed."""
    ratio = float(dot(vector, vector) / answer.squared) if answer.squared else 1.0
    return ratio**0.5 - 1
