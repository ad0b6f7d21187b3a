"""Stacks of systems solved: a solver proposes, the certificate decides, and what fails is rescued one by one.

Many small systems go through the compiled search of `stack`; few, large or tied ones through daqp.
"""

from __future__ import annotations

from typing import NamedTuple

import daqp
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.answers import UNDECIDED
from tokenmargin.margin.certificate import TOLERANCE, Residuals, Systems, judge
from tokenmargin.margin.master import propose_by_cuts
from tokenmargin.margin.rescue import VANISHED, Refutation, rescue

__all__ = ["FEW", "MANY", "Farkas", "Verdicts", "solve_systems"]

FEW, MANY = 16, 100
"""Systems from which compiled code is worth loading, and constraints up to which it is worth using."""
_INFINITE = 1e30  # what daqp takes for no bound
_EQUALITY = 5  # daqp's code for an equality row
_MANY, _LARGE = 8, 40_000  # constraints per dimension, and numbers in all, from which most constraints can wait
_WIDE = 6  # dimensions per constraint from which a single system is worth narrowing


class Farkas(NamedTuple):
    """Proofs of infeasibility with their residuals; zeros and infinity for the systems that have none."""

    weights: Float[Array, "B k"]
    residual: Float[Array, " B"]


class Verdicts(NamedTuple):
    """What is proven of each system: multipliers where `residuals.largest` is small, or a Farkas vector."""

    multipliers: Float[Array, "B k"]
    residuals: Residuals
    farkas: Farkas


def solve_systems(systems: Systems, *, by_multipliers: bool = False, few: int = FEW) -> Verdicts:
    """Multipliers and residuals of every system; Farkas vectors for those that have no solution.

    **Arguments**
    - `by_multipliers`: the vectors will be stored as their multipliers, so they must be `rows' multipliers` to the last
      digit. Otherwise hard cases get vectors that meet the constraints better than any rounded multipliers do.
    - `few`: fewer systems than this go without compiled code.
    """
    B, k, _ = systems.rows.shape
    if few > B or k > MANY or systems.equality is not None:
        return _one_by_one(systems, by_multipliers=by_multipliers)
    # Compiled code takes its time to load: only where there is work for it.
    from tokenmargin.margin.stack import solve_stack

    answers = solve_stack(systems.rows, systems.bound, systems.size)
    residuals = Residuals(answers.residuals[:, :4], answers.norms, answers.vectors)
    verdicts = Verdicts(answers.multipliers, residuals, Farkas(answers.farkas, answers.residuals[:, 4]))
    left = np.flatnonzero(answers.codes == UNDECIDED)
    if len(left):
        _replace(verdicts, left, _one_by_one(systems.some(left), by_multipliers=by_multipliers))
    return verdicts


def _replace(verdicts: Verdicts, which: Int[Array, " c"], others: Verdicts) -> None:
    """Write the verdicts of the given systems over those that are there."""
    verdicts.multipliers[which] = others.multipliers
    for array, values in zip(verdicts.residuals, others.residuals, strict=True):
        array[which] = values
    if others.farkas is not None:
        for array, values in zip(verdicts.farkas, others.farkas, strict=True):
            array[which] = values


def _one_by_one(systems: Systems, *, by_multipliers: bool) -> Verdicts:
    """As `solve_systems`: daqp proposes, one system after the other, and what fails is refuted or rescued."""
    multipliers = propose(systems, narrowed(systems.rows))
    residuals = judge(systems, multipliers)
    failed = residuals.largest > TOLERANCE
    farkas = Farkas(np.zeros_like(multipliers), np.full(len(multipliers), np.inf))
    if not failed.any():
        return Verdicts(multipliers, residuals, farkas)
    hopeless = failed & ~multipliers.any(axis=1)
    if systems.equality is None and hopeless.any():
        _refute(systems, np.flatnonzero(hopeless), farkas)
        residuals.table[farkas.residual <= TOLERANCE] = np.inf
    for b in np.flatnonzero(failed & (farkas.residual > TOLERANCE)).tolist():
        one = systems.one(b)
        rescued = rescue(one, multipliers[b], by_multipliers=by_multipliers)
        if isinstance(rescued, Refutation):
            farkas.weights[b], farkas.residual[b] = rescued
            multipliers[b], residuals.vectors[b], residuals.norm[b], residuals.table[b] = 0.0, 0.0, 0.0, np.inf
            continue
        multipliers[b], y = rescued
        for array, value in zip(residuals, judge(one, multipliers[b : b + 1], y), strict=True):
            array[b] = value[0]
    return Verdicts(multipliers, residuals, farkas)


def _refute(systems: Systems, which: Int[Array, " c"], farkas: Farkas) -> None:
    """Write Farkas vectors of systems without a proposal, where the least-distance problem gives clear ones.

    See `rescue`, which also handles what is left.
    """
    rows, bound = systems.rows[which], systems.bound[which]
    k, r = rows.shape[1:]
    cones = np.concatenate([rows, bound[:, :, None]], axis=2)
    target, upper, lower = np.eye(1, r + 1, r)[0], np.zeros(k), np.full(k, -_INFINITE)
    weights = np.zeros(bound.shape)
    for b, cone in enumerate(cones):
        _, _, flag, info = daqp.solve(None, -target, cone, upper, lower)
        if flag > 0:
            weights[b] = info["lam"]
    reached = np.matmul(weights[:, None, :], cones)[:, 0]
    proof = np.linalg.norm(reached[:, :r], axis=1) / np.maximum(weights.sum(axis=1), 1.0)
    clear = (np.abs(1 - reached[:, r]) < VANISHED) & (weights.min(axis=1) >= 0) & (proof <= TOLERANCE)
    farkas.weights[which[clear]], farkas.residual[which[clear]] = weights[clear], proof[clear]


def propose(systems: Systems, rows: Float[Array, "B k s"]) -> Float[Array, "B k"]:
    """Multipliers from daqp, one system after the other (threads lose: the solver holds the lock half the time)."""
    bound, equality = systems.bound, systems.equality
    multipliers = np.zeros(bound.shape)
    upper = np.full(bound.shape[1], _INFINITE)
    if equality is not None:
        return _propose_with_ties(rows, bound, equality)
    if rows.shape[1] >= _MANY * rows.shape[2] and rows[0].size >= _LARGE:
        return np.array([propose_by_cuts(*one) for one in zip(rows, bound, strict=True)])
    for b in range(len(rows)):
        _, _, flag, info = daqp.solve(None, None, rows[b], upper, bound[b])
        if flag > 0:
            multipliers[b] = info["lam"]
    return np.negative(multipliers, out=multipliers)


def _propose_with_ties(
    rows: Float[Array, "B k r"], bounds: Float[Array, "B k"], equality: Bool[Array, " k"]
) -> Float[Array, "B k"]:
    """As `propose`, for systems in which some rows are equalities."""
    sense = np.where(equality, _EQUALITY, 0).astype(np.intc)
    multipliers = np.zeros(bounds.shape)
    for b, bound in enumerate(bounds):
        upper = np.where(equality, bound, _INFINITE)
        _, _, flag, info = daqp.solve(None, None, rows[b], upper, bound, sense, eq_reduction=-1)
        if flag > 0:
            multipliers[b] = -info["lam"]
    return multipliers


def narrowed(rows: Float[Array, "B k r"]) -> Float[Array, "B k s"]:
    """Rows with the same inner products in at most k dimensions, by Cholesky where the rows are independent.

    Squaring the rows costs digits, but a proposal is judged against the rows themselves.
    """
    B, k, r = rows.shape
    if r <= k or (B == 1 and r <= _WIDE * k):
        return rows
    try:
        return np.linalg.cholesky(np.matmul(rows, rows.transpose(0, 2, 1)))
    except np.linalg.LinAlgError:
        return _rotated(rows)


def _rotated(rows: Float[Array, "B k r"]) -> Float[Array, "B k s"]:
    """Rows with the same inner products in at most k dimensions, to full accuracy: R' of their QR factorisation."""
    _, k, r = rows.shape
    if r <= k:
        return rows
    triangle = np.asarray(np.linalg.qr(rows.transpose(0, 2, 1), mode="r"))
    return np.ascontiguousarray(triangle.transpose(0, 2, 1))
