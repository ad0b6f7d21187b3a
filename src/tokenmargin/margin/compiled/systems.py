"""Stacks of systems solved: a solver proposes, the certificate decides; what fails is refined or refuted, one by one.

Many small systems go through the compiled search of `stack`; few, large or tied ones through daqp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE, Systems
from tokenmargin.margin.compiled.buffers import RAY, UNDECIDED
from tokenmargin.margin.single.proposals import many_can_wait, propose_from_many, shortest_vector
from tokenmargin.margin.single.refine import proof, refine_or_refute, residuals_of

FEW, MANY = 16, 100
"""Systems from which compiled code is worth loading, and constraints up to which it is worth using."""
_WIDE = 6  # dimensions per constraint from which a single system is worth narrowing


class ResidualTable(NamedTuple):
    """Residuals of many systems, with the vectors that were judged and their norms.

    The columns of `table` are primal, dual, complementarity and gap, in the units of `Certificate`.
    """

    table: Float[Array, "B 4"]
    norm: Float[Array, " B"]
    vectors: Float[Array, "B r"]

    @property
    def largest(self) -> Float[Array, " B"]:
        """The worst of the four conditions."""
        return np.maximum.reduce(self.table, axis=1)


class Farkas(NamedTuple):
    """Farkas vectors with their residuals: 0 where proven exactly, infinity for the systems that have none."""

    weights: Float[Array, "B k"]
    residual: Float[Array, " B"]


class StackResult(NamedTuple):
    """What is proven of each system: multipliers where `optimal`, or a Farkas vector where `infeasible`."""

    multipliers: Float[Array, "B k"]
    residuals: ResidualTable
    farkas: Farkas
    tolerance: float = TOLERANCE

    @classmethod
    def empty(cls, B: int, k: int, r: int, *, tolerance: float = TOLERANCE) -> StackResult:
        """Nothing is known."""
        table = ResidualTable(np.full((B, 4), np.inf), np.zeros(B), np.zeros((B, r)))
        return cls(np.zeros((B, k)), table, Farkas(np.zeros((B, k)), np.full(B, np.inf)), tolerance)

    @property
    def optimal(self) -> Bool[Array, " B"]:
        """Which vectors are proven to be the solution."""
        return self.residuals.largest <= self.tolerance

    @property
    def infeasible(self) -> Bool[Array, " B"]:
        """Which systems are proven to have no solution."""
        return self.farkas.residual == 0


def solve_systems(systems: Systems) -> StackResult:
    """Multipliers and residuals of every system; Farkas vectors for those that have no solution."""
    B, k, _ = systems.rows.shape
    if B < FEW or k > MANY or not k or systems.equality is not None or systems.products is not None:
        return _one_by_one(systems)
    # Compiled code takes its time to load: only where there is work for it.
    from tokenmargin.margin.compiled.stack import solve_stack

    answers = solve_stack(systems.rows, systems.bound, systems.size, exact=systems.lost is None)
    residuals = ResidualTable(answers.residuals[:, :4], answers.norms, answers.vectors)
    verdicts = StackResult(answers.multipliers, residuals, Farkas(answers.farkas, answers.residuals[:, 4]))
    for b in np.flatnonzero(answers.codes == RAY).tolist():
        proven = proof(systems.one(b), verdicts.farkas.weights[b])
        if proven is None:
            answers.codes[b] = UNDECIDED
        else:
            verdicts.farkas.weights[b], verdicts.farkas.residual[b] = proven, 0.0
    left = np.flatnonzero(answers.codes == UNDECIDED)
    if systems.in_range is not None:
        left = np.union1d(left, np.flatnonzero(~systems.in_range))
    if len(left):
        _replace(verdicts, left, _one_by_one(systems.some(left)))
    return verdicts


def _replace(verdicts: StackResult, which: Int[Array, " c"], others: StackResult) -> None:
    """Write the verdicts of the given systems over those that are there."""
    verdicts.multipliers[which] = others.multipliers
    for mine, theirs in ((verdicts.residuals, others.residuals), (verdicts.farkas, others.farkas)):
        for array, values in zip(mine, theirs, strict=True):
            array[which] = values


def _one_by_one(systems: Systems) -> StackResult:
    """As `solve_systems`: daqp proposes, one system after the other, and what fails is refined or refuted."""
    verdicts = StackResult.empty(*systems.rows.shape, tolerance=systems.tolerance)
    if not systems.rows.shape[1]:  # nothing to separate
        verdicts.residuals.table[:] = 0.0
        return verdicts
    proposals = propose(systems, in_fewer_dimensions(systems.rows))
    for b, proposal in enumerate(proposals):
        if systems.in_range is not None and not systems.in_range[b]:
            continue
        one = systems.one(b)
        reached = residuals_of(one, proposal) if proposal.any() and proposal.min() >= 0 else None
        if reached is None or reached.largest > systems.tolerance:
            proposal, reached, verdicts.farkas.weights[b], verdicts.farkas.residual[b] = refine_or_refute(one, proposal)
        verdicts.multipliers[b] = proposal
        verdicts.residuals.table[b], verdicts.residuals.norm[b] = reached[:4], reached.norm
        if systems.products is None:
            verdicts.residuals.vectors[b] = reached.vector
    return verdicts


def propose(systems: Systems, rows: Float[Array, "B k s"]) -> Float[Array, "B k"]:
    """Multipliers from daqp, one system after the other (threads lose: the solver holds the lock half the time)."""
    if systems.equality is None and many_can_wait(*rows.shape[1:]):
        return np.array([propose_from_many(*one) for one in zip(rows, systems.bound, strict=True)])
    multipliers = np.zeros(systems.bound.shape)
    for b, bound in enumerate(systems.bound):
        proposed = shortest_vector(rows[b], bound, systems.equality)
        if proposed is not None:
            multipliers[b] = proposed
    return multipliers


def in_fewer_dimensions(rows: Float[Array, "B k r"]) -> Float[Array, "B k s"]:
    """Rows with the same inner products in at most k dimensions, by Cholesky where the rows are independent.

    Squaring the rows costs digits, but a proposal is judged against the rows themselves.
    """
    B, k, r = rows.shape
    if r <= k or (B == 1 and r <= _WIDE * k):
        return rows
    try:
        return np.linalg.cholesky(np.matmul(rows, rows.transpose(0, 2, 1)))
    except np.linalg.LinAlgError:
        return _by_qr(rows)


def _by_qr(rows: Float[Array, "B k r"]) -> Float[Array, "B k s"]:
    """Rows with the same inner products in at most k dimensions, to full accuracy: R' of their QR factorisation."""
    _, k, r = rows.shape
    if r <= k:
        return rows
    triangle = np.asarray(np.linalg.qr(rows.transpose(0, 2, 1), mode="r"))
    return np.ascontiguousarray(triangle.transpose(0, 2, 1))
