"""Stacks of systems: a solver proposes, the certificate decides, and what fails is refined or refuted singly.

Many small systems go through the compiled search of `stack`; few, large or tied ones go through daqp, one by one.
Compiled code writes into the arrays of `StackResult`, and what is kept of it on disk names this module: where it moves,
numba cannot read what an earlier version left there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE, Systems
from tokenmargin.margin.single.proposals import many_can_wait, propose_from_many, shortest_vector
from tokenmargin.margin.single.refine import infeasibility_proof, refine_or_refute, residuals_of

UNDECIDED, SOLVED, INFEASIBLE, OUT_OF_RANGE, RAY = 0, 1, 2, 3, 4
"""What compiled code knows of a system; out of range are rows whose squared length is no ordinary number.

A ray is a Farkas vector that only exact arithmetic can judge: its rows span less than the whole space.
"""


class StackResult(NamedTuple):
    """Multipliers and vector of each system, or a Farkas vector, with the residuals that judge them.

    - `codes`: what compiled code found, as above; undecided where it was not asked.
    - `vectors`, `norms`: the vectors that were judged, and their lengths.
    - `residuals`: primal, dual, complementarity and gap in the units of `Certificate`; last that of the Farkas vector,
      which is 0 where it is proven and infinite where there is none.
    - `tolerance`: largest residual with which a vector is called the solution.
    """

    codes: Int[Array, " B"]
    vectors: Float[Array, "B r"]
    norms: Float[Array, " B"]
    multipliers: Float[Array, "B k"]
    farkas: Float[Array, "B k"]
    residuals: Float[Array, "B 5"]
    tolerance: float = TOLERANCE

    @classmethod
    def empty(cls, B: int, k: int, r: int, *, tolerance: float = TOLERANCE) -> StackResult:
        """Nothing decided yet: zeros, and infinite residuals."""
        return cls(
            codes=np.full(B, UNDECIDED, dtype=np.intp),
            vectors=np.zeros((B, r)),
            norms=np.zeros(B),
            multipliers=np.zeros((B, k)),
            farkas=np.zeros((B, k)),
            residuals=np.full((B, 5), np.inf),
            tolerance=tolerance,
        )

    @property
    def optimal(self) -> Bool[Array, " B"]:
        """Which vectors are proven to be the solution."""
        return np.maximum.reduce(self.residuals[:, :4], axis=1) <= self.tolerance

    @property
    def infeasible(self) -> Bool[Array, " B"]:
        """Which systems are proven to have no solution."""
        return self.residuals[:, 4] == 0


FEWEST_SYSTEMS, MOST_ROWS = 16, 100
"""Systems from which compiled code is worth loading, and constraints up to which it is worth using."""
WIDE = 6  # dimensions per constraint from which a single system is worth narrowing


def solve_systems(systems: Systems) -> StackResult:
    """Multipliers and residuals of every system; Farkas vectors for those that have no solution."""
    B, k, _ = systems.rows.shape
    if B < FEWEST_SYSTEMS or k > MOST_ROWS or not k or systems.equality is not None or systems.known is not None:
        return _one_by_one(systems)
    # Compiled code takes its time to load: only where there is work for it.
    from tokenmargin.margin.compiled.stack import solve_stack

    found = solve_stack(systems.rows, systems.bound, systems.size, exact=systems.lost is None)
    for b in np.flatnonzero(found.codes == RAY).tolist():
        proven = infeasibility_proof(systems.one(b), found.farkas[b])
        if proven is None:
            found.codes[b] = UNDECIDED
        else:
            found.farkas[b], found.residuals[b, 4] = proven, 0.0
    left = np.flatnonzero(found.codes == UNDECIDED)
    if systems.in_range is not None:
        left = np.union1d(left, np.flatnonzero(~systems.in_range))
    if len(left):
        others = _one_by_one(systems.some(left))
        for name in ("vectors", "norms", "multipliers", "farkas", "residuals"):
            getattr(found, name)[left] = getattr(others, name)
    return found


@np.errstate(over="ignore", invalid="ignore")  # what is beyond doubles fails the certificate, without a warning
def _one_by_one(systems: Systems) -> StackResult:
    """As `solve_systems`: daqp proposes, one system after the other, and what fails is refined or refuted."""
    found = StackResult.empty(*systems.rows.shape, tolerance=systems.tolerance)
    if not systems.rows.shape[1]:  # nothing to separate
        found.residuals[:, :4] = 0.0
        return found
    proposals = propose(systems, in_fewer_dimensions(systems.rows))
    for b, proposal in enumerate(proposals):
        if systems.in_range is not None and not systems.in_range[b]:
            continue
        one = systems.one(b)
        reached = residuals_of(one, proposal) if proposal.any() and proposal.min() >= 0 else None
        if reached is None or reached.largest > systems.tolerance:
            proposal, reached, found.farkas[b], found.residuals[b, 4] = refine_or_refute(one, proposal)
        found.multipliers[b], found.residuals[b, :4], found.norms[b] = proposal, reached[:4], reached.norm
        if systems.known is None:
            found.vectors[b] = reached.vector
    return found


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
    if r <= k or (B == 1 and r <= WIDE * k):
        return rows
    try:
        return np.linalg.cholesky(np.matmul(rows, rows.transpose(0, 2, 1)))
    except np.linalg.LinAlgError:
        # Dependent rows: to full accuracy, R' of their QR factorisation.
        triangle = np.asarray(np.linalg.qr(rows.transpose(0, 2, 1), mode="r"))
        return np.ascontiguousarray(triangle.transpose(0, 2, 1))
