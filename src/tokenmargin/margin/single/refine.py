"""Hard cases. A system whose first proposal did not pass is refined, refuted, or solved another way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import (
    TOLERANCE,
    Residuals,
    Systems,
    farkas_residual,
    farkas_residual_by_products,
    kkt_residuals,
    kkt_residuals_by_products,
    rescale_exactly,
)
from tokenmargin.margin.single.exact import exact_residuals, proven_by_products, proven_infeasible
from tokenmargin.margin.single.proposals import least_distance
from tokenmargin.norms import EPS

_VANISHED = 1e-13  # a remainder at the level of rounding
_PLAUSIBLE = 1e-6  # Farkas residual from which a proof of infeasibility is not worth trying
_INWARDS = (0.5, 2.0)  # shares of the largest rounding by which a vector is moved inwards, the least first
_ORDINARY = 1e250  # scales up to this, and down to its reciprocal, leave vectors their digits


class Refinement(NamedTuple):
    """The best multipliers found for a system with their residuals, and the best Farkas vector with its residual rho.

    One of the two is a proof where `residuals` are at most the tolerance, or where rho is 0.
    """

    multipliers: Float[Array, " k"]
    residuals: Residuals
    farkas: Float[Array, " k"]
    rho: float


def residuals_of(one: Systems, multipliers: Float[Array, " k"], vector: Float[Array, " r"] | None = None) -> Residuals:
    """The residuals of a proposal: by floating point with rounding counted against it, then in exact arithmetic."""
    rows, bound, size, scale = one.rows[0], one.bound[0], one.size[0], one.scale[0]
    if one.known is not None:
        return kkt_residuals_by_products(one.known, bound, multipliers, size=size, equality=one.equality)
    if not 1 / _ORDINARY < scale < _ORDINARY:  # judge the vector as doubles will hold it
        vector = rescale_exactly(multipliers @ rows if vector is None else vector, times=scale)
        vector = rescale_exactly(vector, over=scale)
    found = kkt_residuals(rows, bound, multipliers, vector, size=size, equality=one.equality)
    if found.largest <= TOLERANCE or not 0 < found.norm < np.inf:
        return found
    exactly = exact_residuals(one, multipliers, found.vector)
    return found if exactly is None or exactly.largest > found.largest else exactly


def infeasibility_proof(one: Systems, weights: Float[Array, " k"]) -> Float[Array, " k"] | None:
    """The weights of a proof that the system has no solution, close to those given; None where there is none."""
    if one.known is not None:
        return proven_by_products(one.known, one.bound[0], weights, equality=one.equality)
    lost = None if one.lost is None else one.lost[0]
    return proven_infeasible(one.rows[0], one.bound[0], weights, lost=lost, equality=one.equality)


def farkas_residual_of(one: Systems, weights: Float[Array, " k"]) -> float:
    """The Farkas residual of the weights."""
    if one.known is not None:
        return farkas_residual_by_products(one.known, one.bound[0], weights, one.equality)
    return farkas_residual(one.rows[0], one.bound[0], weights, one.equality)


def refine_or_refute(one: Systems, proposal: Float[Array, " k"]) -> Refinement:
    """A proven Farkas vector, or the best multipliers (and vector) found, for a system whose proposal did not pass."""
    empty = _empty_row(one)
    if empty is not None:
        return Refinement(np.zeros_like(proposal), _no_residuals(one), empty, 0.0)
    best, reached = proposal, residuals_of(one, proposal) if proposal.any() else _no_residuals(one)
    witness, rho = np.zeros_like(proposal), np.inf
    for u, remainder in itertools.chain([(proposal, 1.0)] if proposal.any() else [], _solve_homogeneous(one)):
        # The likelier claim first: proving either ends the search.
        likely_infeasible = remainder < _VANISHED
        for claim in ("infeasible", "optimal") if likely_infeasible else ("optimal", "infeasible"):
            if claim == "infeasible":
                weights, residual = _best_witness(one, u)
                proven = infeasibility_proof(one, weights) if residual <= _PLAUSIBLE or one.known is not None else None
                if proven is not None:
                    return Refinement(np.zeros_like(u), _no_residuals(one), proven, 0.0)
                if residual < rho:
                    witness, rho = weights, residual
                continue
            for multipliers, y in _refined_candidates(one, u if likely_infeasible else u / remainder):
                residuals = residuals_of(one, multipliers, y)
                if residuals.largest < reached.largest:
                    best, reached = multipliers, residuals
                if residuals.largest <= one.tolerance:
                    return Refinement(best, reached, np.zeros_like(u), np.inf)
    return Refinement(best, reached, witness, rho)


def _empty_row(one: Systems) -> Float[Array, " k"] | None:
    """A Farkas vector by itself: a row that is exactly zero asks for a margin between two tokens at one place."""
    zero = ~one.rows[0].any(axis=1) & (one.bound[0] > 0)
    if one.known is not None:
        zero &= one.known.noise == 0
    elif one.lost is not None:
        zero &= ~one.lost[0].any(axis=1)
    return zero.astype(float) / zero.sum() if zero.any() else None


def _no_residuals(one: Systems) -> Residuals:
    return Residuals(np.inf, np.inf, np.inf, np.inf, np.zeros(one.rows.shape[2]), 0.0)


def _refined_candidates(
    one: Systems, multipliers: Float[Array, " k"]
) -> Iterator[tuple[Float[Array, " k"], Float[Array, " r"] | None]]:
    """The multipliers, then with the active constraints solved as equations, then with the vector moved inwards."""
    multipliers = _without_negative(one, multipliers)
    yield multipliers, None
    active = np.flatnonzero(multipliers)
    if active.size == 0:
        return
    rows, bound = one.rows[0][active], one.bound[0][active]
    # y = A^+ b is the shortest vector on the active constraints; its multipliers solve A' mu = y.
    inverse = np.linalg.pinv(rows, rcond=len(active) * EPS)
    y, mu = np.zeros(rows.shape[1]), np.zeros(len(active))
    for _ in range(3):
        y += inverse @ (bound - rows @ y)
    for _ in range(3):
        mu += inverse.T @ (y - mu @ rows)
    refined = np.zeros_like(multipliers)
    refined[active] = mu
    refined = _without_negative(one, refined)
    if one.known is not None:  # a vector known by inner products is its multipliers
        yield refined, None
        return
    yield refined, y
    for share in _INWARDS:
        yield refined, _move_inwards(one, y, share)


def _without_negative(one: Systems, multipliers: Float[Array, " k"]) -> Float[Array, " k"]:
    """Inequalities have no negative multipliers."""
    clipped = np.maximum(multipliers, 0.0)
    return clipped if one.equality is None else np.where(one.equality, multipliers, clipped)


def _move_inwards(one: Systems, y: Float[Array, " r"], share: float) -> Float[Array, " r"]:
    """`y` moved inwards by a share of the largest rounding error, so that constraints that just hold hold after it."""
    rows, bound = one.rows[0], one.bound[0]
    verge = (rows.shape[1] + 4) * EPS * np.linalg.norm(y)
    tied = np.zeros(len(rows), dtype=bool) if one.equality is None else one.equality
    near = np.flatnonzero(tied | (rows @ y - bound < 4 * verge))
    inverse = np.linalg.pinv(rows[near], rcond=len(near) * EPS)
    target = bound[near] + np.where(tied[near], 0.0, share * verge)
    for _ in range(2):
        y = y + inverse @ (target - rows[near] @ y)
    return y


def _solve_homogeneous(one: Systems) -> Iterator[tuple[Float[Array, " k"], float]]:
    """Candidates u with their remainder `1 - bound' u`: see `least_distance`. NNLS gives a second opinion."""
    rows, bound, equality = one.rows[0], one.bound[0], one.equality
    u = least_distance(rows, bound, equality)
    if u is not None:
        yield u, float(1.0 - bound @ u)
    from scipy.optimize import nnls  # it takes half a second to load, and is needed by the hardest cases alone

    cone = np.column_stack([rows, bound])
    target = np.zeros(cone.shape[1])
    target[-1] = 1.0
    # An equality is a pair of inequalities: u enters with both signs.
    paired = cone if equality is None else np.concatenate([cone, -cone[equality]])
    try:
        weights, _ = nnls(paired.T, target, maxiter=30 * len(paired))
    except RuntimeError:  # iteration limit: no second opinion
        return
    u = weights[: len(cone)].copy()
    if equality is not None:
        u[equality] -= weights[len(cone) :]
    yield u, float(1.0 - bound @ u)


def _best_witness(one: Systems, u: Float[Array, " k"]) -> tuple[Float[Array, " k"], float]:
    """`u` as a Farkas vector, or the weights on its support closest to `rows' u = 0`, `bound' u = 1`, if better."""
    rows, bound = one.rows[0], one.bound[0]
    residual = farkas_residual_of(one, u)
    support = np.flatnonzero(u)
    if residual <= TOLERANCE or support.size == 0:
        return u, residual
    matrix = np.column_stack([rows[support], bound[support]]).T
    target = np.zeros(len(matrix))
    target[-1] = 1.0
    inverse = np.linalg.pinv(matrix, rcond=len(matrix) * EPS)
    weights = inverse @ target
    weights += inverse @ (target - matrix @ weights)
    refined = np.zeros_like(u)
    refined[support] = weights
    better = farkas_residual_of(one, refined)
    return (refined, better) if better < residual else (u, residual)
