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
    found = _held_by(rows, tuple(active)) if 0 < len(active) <= d else None
    if found is not None:
        return ExactAnswer(found)
    if farkas and _adds_up_to_zero([rows[j] for j in farkas]):
        return ExactAnswer(None)
    for size in range(1, min(d, len(rows)) + 1):
        for subset in itertools.combinations(range(len(rows)), size):
            found = _held_by(rows, subset)
            if found is not None:
                return ExactAnswer(found)
    return ExactAnswer(None)


def _held_by(rows: list[Row], subset: Sequence[int]) -> Row | None:
    """The shortest vector on `<row, p> = 1` for the subset, if its multipliers are not negative and all rows hold."""
    held = [rows[j] for j in subset]
    weights = _solve([[dot(a, b) for b in held] for a in held], [Fraction(1)] * len(held))
    if weights is None or min(weights) < 0:
        return None
    p = tuple(dot(weights, column) for column in zip(*held, strict=True))
    return p if all(dot(row, p) >= 1 for row in rows) else None


def _solve(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction] | None:
    """The solution of a square system; None where it is singular."""
    table = [[*row, b] for row, b in zip(matrix, right, strict=True)]
    n = len(table)
    for c in range(n):
        pivot = next((i for i in range(c, n) if table[i][c]), None)
        if pivot is None:
            return None
        table[c], table[pivot] = table[pivot], table[c]
        for i in range(c + 1, n):
            if table[i][c]:
                share = table[i][c] / table[c][c]
                table[i] = [x - share * y for x, y in zip(table[i], table[c], strict=True)]
    solution = [Fraction(0)] * n
    for c in range(n - 1, -1, -1):
        solution[c] = (table[c][n] - dot(table[c][c + 1 : n], solution[c + 1 :])) / table[c][c]
    return solution


def _adds_up_to_zero(rows: list[Row]) -> bool:
    """Whether the rows but the last are independent and minus the last is a combination of them, none negative."""
    *others, last = rows
    if not others:
        return not any(last)
    minus = [-dot(row, last) for row in others]
    weights = _solve([[dot(a, b) for b in others] for a in others], minus)
    if weights is None or min(weights) < 0:
        return False
    return all(dot(weights, column[:-1]) == -column[-1] for column in zip(*rows, strict=True))


def worst_violation(rows: list[Row], vector: Sequence[Fraction]) -> float:
    """By how much the vector misses the worst margin of 1."""
    return float(max((1 - dot(row, vector) for row in rows), default=Fraction(0)))


def excess(answer: ExactAnswer, vector: Sequence[Fraction]) -> float:
    """`|p| / |p*| - 1`, signed."""
    ratio = float(dot(vector, vector) / answer.squared) if answer.squared else 1.0
    return ratio**0.5 - 1
