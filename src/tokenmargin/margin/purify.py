"""The last digits: the constraints believed to be active, solved as equations.

`A' Lambda A` with the multipliers as weights is a metric in which corrections are small relative to each multiplier,
so they stay positive; and the rows may depend on one another, as they do wherever two chains of pairs lead from one
row to another.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from scipy.linalg import cho_factor, cho_solve

from tokenmargin.margin.certificate import TOLERANCE
from tokenmargin.margin.differences import Differences, Proposal

__all__ = ["balanced", "purified"]

ROUNDS = 12
"""Corrections of the active set, and of the digits of its solution."""
_FLOOR = 1e-3  # least weight, relative to the mean one
_FLOORS = (0.0, 1e-8, 1e-6, 1e-4, 1e-2)  # sizes under which a multiplier may count as none, relative to the largest
_RIDGE = 1e-14  # of the trace: where the active rows do not span the space


def purified(rows: Differences, guess: Proposal, active: Bool[Array, " k"]) -> Proposal:
    """The solution whose active set this is: constraints it violates join the set, negative multipliers leave it.

    The guess itself comes back where that does not bring the gap down.
    """
    best, least = guess, rows.gap(guess.multipliers, guess.vector)
    for _ in range(ROUNDS):
        which = np.flatnonzero(active)
        if not len(which):
            break
        inner, p = _tight(rows.only(which), guess.multipliers[which])
        multipliers = np.zeros(len(rows))
        multipliers[which] = np.maximum(inner, 0.0)
        reached = rows.gap(multipliers, p)
        if reached <= least:
            best, least = Proposal(multipliers, p), reached
        change = ~active & (rows.times(p) < 1 - TOLERANCE)
        change[which[inner < 0]] = True
        if not change.any():
            break
        active = active ^ change
    return best


def _tight(rows: Differences, guess: Float[Array, " k"]) -> tuple[Float[Array, " k"], Float[Array, " d"]]:
    """Multipliers near the guess with `A A' multipliers = 1`, and `p = A' multipliers`.

    p is summed up apart: multipliers of 1e8 rounded to doubles do not carry a p of 1e4 to its last digits.
    """
    weights = np.maximum(guess, _FLOOR * guess.mean())
    solve = _Metric(rows, weights)
    multipliers, p = guess, rows.adjoint(guess)
    best, error = (multipliers, p), np.inf
    for _ in range(ROUNDS):
        remainder = 1 - rows.times(p)
        if np.abs(remainder).max() >= error:
            break
        best, error = (multipliers, p), float(np.abs(remainder).max())
        step = solve(solve.inverse(rows.adjoint(weights * remainder)))
        multipliers, p = multipliers + step, p + rows.adjoint(step)
    return best


def balanced(rows: Differences, multipliers: Float[Array, " k"]) -> Proposal:
    """A refutation: multipliers near these, in relative terms, with `A' multipliers = 0`.

    Rows that take no part in the contradiction keep small multipliers that nothing balances, so they are dropped at
    several sizes.
    """
    best, least = multipliers, np.inf
    for floor in _FLOORS:
        which = np.flatnonzero(multipliers > floor * multipliers.max())
        some, kept = rows.only(which), multipliers[which]
        solve, weights = _Metric(some, kept), kept
        for _ in range(3):
            weights = weights - solve(some.adjoint(weights))
        if weights.min() < 0:
            continue
        residual = float(np.linalg.norm(some.adjoint(weights))) / float(weights @ some.lengths())
        if residual < least:
            best, least = np.zeros(len(rows)), residual
            best[which] = weights
        if residual <= TOLERANCE / 10:
            break
    return Proposal(best, None)


class _Metric:
    """Steps of the multipliers, in the metric of the weights."""

    def __init__(self, rows: Differences, weights: Float[Array, " k"]) -> None:
        self.rows, self.weights = rows, weights
        matrix = rows.covariance(weights)
        diagonal = np.diag_indices_from(matrix)
        ridge = _RIDGE * float(np.trace(matrix)) or 1.0
        while True:
            matrix[diagonal] += ridge
            try:
                self.factor = cho_factor(matrix, lower=True, check_finite=False)
                break
            except np.linalg.LinAlgError:  # rounding left a negative eigenvalue
                ridge *= 10

    def inverse(self, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """`(A' W A)^-1 y`."""
        return np.asarray(cho_solve(self.factor, y, check_finite=False))

    def __call__(self, y: Float[Array, " d"]) -> Float[Array, " k"]:
        """The shortest step, relative to the weights, with `A' step = y`."""
        return self.weights * self.rows.times(self.inverse(y))
