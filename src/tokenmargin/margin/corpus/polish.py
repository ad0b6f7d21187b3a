"""The last digits of a corpus margin, by solving the constraints believed to be active as equations.

Corrections are taken small relative to each multiplier, so that they stay positive; and the rows may depend on one
another, as they do wherever two chains of pairs lead from one token to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from scipy.linalg import cho_factor, cho_solve

from tokenmargin.margin.certificate import TOLERANCE
from tokenmargin.margin.corpus.pairs import Differences, Proposal
from tokenmargin.norms import EPS

ROUNDS = 12
"""Corrections of the active set, and of the digits of its solution."""
LARGEST_SET = 4096  # active constraints that are solved as equations, or four times the dimension
_FLOOR = 1e-3  # least weight, relative to the mean one
_FLOORS = (0.0, 1e-8, 1e-6, 1e-4, 1e-2)  # sizes under which a multiplier may count as none, relative to the largest
_RIDGES = (1e-14, 1e-12, 1e-10)  # where rows depend on one another; the smallest that is stable is the quickest

_Solve = Callable[[Array], Array]


def polish_solution(rows: Differences, guess: Proposal, active: Bool[Array, " k"]) -> Proposal:
    """The solution whose active set this is: constraints it violates join the set, negative multipliers leave it.

    The guess itself comes back where that does not bring the gap down.
    """
    best, least = guess, rows.gap(guess.multipliers, guess.vector)
    for _ in range(ROUNDS):
        which = np.flatnonzero(active)
        if not len(which) or len(which) > max(LARGEST_SET, 4 * rows.vectors.shape[1]):
            break
        inner, p = _tight_multipliers(rows.only(which), guess.multipliers[which])
        multipliers = np.zeros(len(rows))
        multipliers[which] = np.maximum(inner, 0.0)
        reached = rows.gap(multipliers, p)
        if reached <= least:
            best, least = Proposal(multipliers, p), reached
        margins = rows.times(p)
        violation = np.where(active, 0.0, 1 - margins)
        # Only the worst join. Many of the others are violated because the worst are missing, and would have to leave.
        change = violation > max(TOLERANCE, violation.max() / 2)
        change[which[inner < 0]] = True
        if not change.any():
            break
        active = active ^ change
    return best


def _tight_multipliers(rows: Differences, guess: Float[Array, " k"]) -> tuple[Float[Array, " k"], Float[Array, " d"]]:
    """Multipliers near the guess with `A A' multipliers = 1`, and `p = A' multipliers`.

    p is summed up apart: multipliers of 1e8 rounded to doubles do not carry a p of 1e4 to its last digits.
    """
    weights = np.maximum(guess, _FLOOR * guess.mean())
    multipliers, p = guess, rows.adjoint(guess)
    remainder = 1 - rows.times(p)
    k, d = len(rows), rows.vectors.shape[1]
    for build in (_by_rows, _by_columns) if k <= d else (_by_columns, _by_rows):
        for step_for in build(rows, weights):
            for _ in range(ROUNDS):
                step = step_for(remainder)
                nearer = p + rows.adjoint(step)
                error, before = 1 - rows.times(nearer), np.abs(remainder).max()
                if np.abs(error).max() < before:
                    multipliers, p, remainder = multipliers + step, nearer, error
                if not np.abs(error).max() <= before / 2:
                    break
            if np.abs(remainder).max() <= TOLERANCE / 10:
                return multipliers, p
    return multipliers, p


def _by_rows(rows: Differences, weights: Float[Array, " k"]) -> Iterator[_Solve]:
    """Steps with `A A' step` given, through the matrix of inner products: best for independent rows."""
    root = np.sqrt(weights)
    scaled = rows.dense(slice(None)) * root[:, None]
    gram = scaled @ scaled.T

    def step(solve: _Solve, right: Array) -> Array:
        return root * solve(root * right)

    for ridge in _RIDGES:
        yield partial(step, _factor_with_ridge(gram, ridge))


def _by_columns(rows: Differences, weights: Float[Array, " k"]) -> Iterator[_Solve]:
    """Steps with `A A' step` given, through `A' W A`: best for rows that span the space and depend on one another."""
    matrix = rows.covariance(weights)

    def step(solve: _Solve, right: Array) -> Array:
        return weights * rows.times(solve(solve(rows.adjoint(weights * right))))

    for ridge in _RIDGES:
        yield partial(step, _factor_with_ridge(matrix, ridge))


def polish_farkas(rows: Differences, multipliers: Float[Array, " k"]) -> Proposal:
    """A refutation: multipliers near these, in relative terms, with `A' multipliers = 0`.

    Rows that take no part in the contradiction keep small multipliers that nothing balances, so they are dropped at
    several sizes.
    """
    best, least = multipliers, np.inf
    for floor in _FLOORS:
        which = np.flatnonzero(multipliers > floor * multipliers.max())
        some, kept = rows.only(which), multipliers[which]
        solve, weights = _factor_with_ridge(some.covariance(kept), _RIDGES[0]), kept
        for _ in range(3):
            weights = weights - kept * some.times(solve(some.adjoint(weights)))
        size = float(weights @ some.lengths())  # zero where ties leave nothing of the rows
        if weights.min() < 0 or size == 0:
            continue
        residual = float(np.linalg.norm(some.adjoint(weights))) / size
        if residual < least:
            best, least = np.zeros(len(rows)), residual
            best[which] = weights
        if residual <= TOLERANCE / 10:
            break
    return Proposal(best, None)


def _factor_with_ridge(matrix: Float[Array, "n n"], ridge: float) -> _Solve:
    """Solves with a matrix, given by its lower triangle, whose diagonal is first multiplied by `1 + ridge`.

    Where rounding leaves no factorisation the ridge grows, tenfold each time.
    """
    diagonal = matrix.diagonal()
    diagonal = np.maximum(diagonal, EPS * diagonal.max()) if diagonal.any() else diagonal + 1
    while True:
        raised = matrix.copy()
        np.fill_diagonal(raised, (1 + ridge) * diagonal)
        try:
            factor = cho_factor(raised, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError:
            ridge *= 10
        else:
            return lambda right: np.asarray(cho_solve(factor, right, check_finite=False))
