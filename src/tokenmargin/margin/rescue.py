"""The hard cases: systems whose first proposal did not pass are refined, refuted, or solved another way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import daqp
import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.optimize import nnls

from tokenmargin.margin.certificate import TOLERANCE, Systems, farkas_residual, judge

__all__ = ["VANISHED", "Refutation", "rescue"]

_EPS = float(np.finfo(float).eps)
_INFINITE = 1e30  # what daqp takes for no bound
_EQUALITY = 5  # daqp's code for an equality row
VANISHED = 1e-13
"""A remainder at the level of rounding."""


class Refutation(NamedTuple):
    """A Farkas vector and its residual."""

    weights: Float[Array, " k"]
    residual: float


def rescue(
    one: Systems, proposal: Float[Array, " k"], *, by_multipliers: bool
) -> Refutation | tuple[Float[Array, " k"], Float[Array, "1 r"] | None]:
    """A Farkas vector, or the best multipliers (and vector) found, for a system whose proposal did not pass."""
    best: tuple[Array, Array | None] = proposal, None
    least = np.inf
    for u, remainder in itertools.chain([(proposal, 1.0)] if proposal.any() else [], _homogeneous(one)):
        # The likelier claim first: proving either ends the search.
        likely_infeasible = remainder < VANISHED
        for claim in ("infeasible", "optimal") if likely_infeasible else ("optimal", "infeasible"):
            if claim == "infeasible":
                witness, proof = _best_witness(one, u)
                if proof <= TOLERANCE:
                    return Refutation(witness, proof)
                continue
            multipliers = u if likely_infeasible else u / remainder
            refined, y = _refined(one, multipliers)
            for candidate in ((multipliers, None), (refined, None if by_multipliers else y)):
                residual = float(judge(one, candidate[0][None], candidate[1]).largest[0])
                if residual < least:
                    best, least = candidate, residual
                if residual <= TOLERANCE:
                    return candidate
    return best


def _refined(one: Systems, multipliers: Float[Array, " k"]) -> tuple[Float[Array, " k"], Float[Array, "1 r"] | None]:
    """Solve the active constraints as equations, with iterative refinement: multipliers, and the vector itself."""
    active = np.flatnonzero(multipliers)
    if active.size == 0:
        return multipliers, None
    rows, bound = one.rows[0][active], one.bound[0][active]
    # y = A^+ b is the shortest vector on the active constraints; its multipliers solve A' mu = y.
    inverse = np.linalg.pinv(rows, rcond=len(active) * _EPS)
    y, mu = np.zeros(rows.shape[1]), np.zeros(len(active))
    for _ in range(3):
        y += inverse @ (bound - rows @ y)
    for _ in range(3):
        mu += inverse.T @ (y - mu @ rows)
    refined = np.zeros_like(multipliers)
    refined[active] = mu
    return refined, y[None]


def _homogeneous(one: Systems) -> Iterator[tuple[Float[Array, " k"], float]]:
    """Candidates u with their remainder `1 - bound' u`, from Lawson and Hanson's least-distance problem.

    `min |[rows'; bound'] u - (0, ..., 0, 1)|` over `u >= 0` has residual zero exactly when the system is infeasible,
    and then u is the proof; otherwise `u / remainder` are the multipliers. Its dual, `min |x - (0, ..., 0, 1)|` under
    `[rows, bound] x <= 0`, is never infeasible itself, so daqp answers; NNLS gives a second opinion.
    """
    rows, bound, equality = one.rows[0], one.bound[0], one.equality
    cone = np.column_stack([rows, bound])
    target = np.zeros(cone.shape[1])
    target[-1] = 1.0
    lower, sense, settings = np.full(len(cone), -_INFINITE), np.zeros(len(cone), dtype=np.intc), {}
    if equality is not None:
        lower[equality], sense[equality], settings = 0.0, _EQUALITY, {"eq_reduction": -1}
    _, _, flag, info = daqp.solve(None, -target, cone, np.zeros(len(cone)), lower, sense, **settings)
    if flag > 0:
        u = np.asarray(info["lam"])
        yield u, float(1.0 - bound @ u)
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
    proof = farkas_residual(one, u)
    support = np.flatnonzero(u)
    if proof <= TOLERANCE or support.size == 0:
        return u, proof
    matrix = np.column_stack([one.rows[0][support], one.bound[0][support]]).T
    target = np.zeros(len(matrix))
    target[-1] = 1.0
    inverse = np.linalg.pinv(matrix, rcond=len(matrix) * _EPS)
    weights = inverse @ target
    weights += inverse @ (target - matrix @ weights)
    refined = np.zeros_like(u)
    refined[support] = weights
    better = farkas_residual(one, refined)
    return (refined, better) if better < proof else (u, proof)
