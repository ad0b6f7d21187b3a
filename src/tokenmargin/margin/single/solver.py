"""One solver for every max-margin problem: daqp proposes, our own certificate decides.

No solver's word is taken. An answer is "optimal" only when the residuals of the vector we return are at most
`TOLERANCE` (`PRODUCTS_TOLERANCE` in Gram space), rounding counted against it; "infeasible" only where a non-negative
combination of the constraints is proven to be exactly zero; anything else is "inaccurate", with what is known.

The ordinary case is fast: one system without ties, well scaled, whose first proposal passes, is solved and certified in
the time of some twenty array operations (`solve_at_once`). What does not pass there is handed to the general path.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE, TOLERANCE, kkt_residuals, rescale_exactly
from tokenmargin.margin.compiled.systems import WIDE, solve_systems
from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.single.exact import surely_positive
from tokenmargin.margin.single.proposals import least_distance, many_can_wait, propose_from_many, shortest_vector
from tokenmargin.margin.single.ties import distance_from_ties
from tokenmargin.margin.solution import Certificate, MarginSolution, Status
from tokenmargin.problem.geometry import Coordinates


def solve(constraints: Constraints) -> MarginSolution:
    """Minimise |p| under `constraints`, with a certificate.

    >>> from tokenmargin.problem.instances import figure3a
    >>> from tokenmargin.margin.constraints import attention_constraints
    >>> solution = solve(attention_constraints(figure3a(), [1, 1, 1]))
    >>> solution.status, solution.vector.round(6)
    ('optimal', array([1.333333, 0.333333]))
    """
    began = time.perf_counter()
    if constraints.equality is None and isinstance(constraints.geometry, Coordinates):
        quick = solve_at_once(constraints.rows(), constraints.bound)
        if isinstance(quick, ProvenVector):
            multipliers, y, margin, certificate = quick
            return MarginSolution(
                "optimal", y, margin, multipliers, constraints.token, certificate, None, time.perf_counter() - began
            )
        if quick is not None:
            return _infeasible(constraints, quick, Certificate(farkas=0.0), time.perf_counter() - began)
    if not constraints.bound.any():  # nothing asks for a margin: p = 0
        return _zero_solution(constraints)
    return _solve_generally(constraints, began)


@np.errstate(over="ignore")  # what is beyond doubles becomes infinite, or the end of their range
def _solve_generally(constraints: Constraints, began: float) -> MarginSolution:
    """The answer by the general path, in the units of the constraints."""
    systems = constraints.systems()
    found = solve_systems(systems)
    lengths, scale = systems.lengths[0], systems.scale[0]
    certificate = Certificate(*found.residuals[0].tolist())
    if found.infeasible[0]:
        farkas = rescale_exactly(found.farkas[0], over=lengths)
        farkas = rescale_exactly(farkas / (farkas @ constraints.bound))
        return _infeasible(constraints, farkas, certificate, time.perf_counter() - began)
    multipliers = rescale_exactly(found.multipliers[0], times=scale, over=lengths)
    y = rescale_exactly(found.vectors[0], times=scale)
    norm = float(found.norms[0])
    if certificate.residual <= systems.tolerance:  # else it is inaccurate anyway, and perhaps not finite
        away = distance_from_ties(constraints, systems, found.multipliers[0], found.vectors[0])
        certificate = certificate._replace(primal=max(certificate.primal, away))
    margin = float(np.ldexp(1 / norm, 1 - np.frexp(scale)[1])) if norm > 0 else 0.0
    return _to_solution(constraints, multipliers, y, margin, certificate, time.perf_counter() - began)


def _to_solution(
    constraints: Constraints,
    multipliers: Float[Array, " k"],
    y: Float[Array, " r"],
    margin: float,
    certificate: Certificate,
    seconds: float,
) -> MarginSolution:
    """An optimal solution, or an inaccurate one where the residuals are too large or the vector is beyond doubles."""
    tolerance = TOLERANCE if isinstance(constraints.geometry, Coordinates) else PRODUCTS_TOLERANCE
    status: Status = "optimal" if certificate.residual <= tolerance else "inaccurate"
    vector = constraints.parameter(multipliers, y)
    if not np.isfinite(vector).all():
        status, vector = "inaccurate", constraints.geometry.zero()
    return MarginSolution(status, vector, margin, multipliers, constraints.token, certificate, None, seconds)


def _zero_solution(constraints: Constraints) -> MarginSolution:
    """Nothing to separate: p = 0."""
    multipliers, certificate = np.zeros(len(constraints)), Certificate(0.0, 0.0, 0.0, 0.0)
    return MarginSolution("optimal", constraints.geometry.zero(), np.inf, multipliers, constraints.token, certificate)


def _infeasible(
    constraints: Constraints, farkas: Float[Array, " k"], certificate: Certificate, seconds: float
) -> MarginSolution:
    """The answer of a problem that has no solution, with its Farkas vector."""
    return MarginSolution(
        status="infeasible",
        vector=constraints.geometry.zero(),
        margin=0.0,
        multipliers=np.zeros(len(constraints)),
        tokens=constraints.token,
        certificate=certificate,
        farkas=farkas,
        seconds=seconds,
    )


_LARGEST = 10_000  # numbers in the rows, beyond which the general path wins unless most constraints can wait
SPREAD = 1e3  # ratio of lengths, and of bounds, up to which rows need no scaling of their own
_RANGE = 1e140  # lengths up to this, and down to its reciprocal, have squares


class ProvenVector(NamedTuple):
    """A vector that is proven to be the solution."""

    multipliers: Float[Array, " k"]
    vector: Float[Array, " r"]
    margin: float
    certificate: Certificate


def solve_at_once(rows: Float[Array, "k r"], bound: Float[Array, " k"]) -> ProvenVector | Float[Array, " k"] | None:
    """The solution of `min |y|, rows y >= bound`, or a Farkas vector; None unless either is proven at once.

    The residuals are ratios that do not change when a row is scaled together with its bound, all but one: how negative
    a multiplier is beside the largest. So rows are left as they are, and negative multipliers to the general path.
    """
    k, r = rows.shape
    large = rows.size > _LARGEST
    if not rows.size or r > WIDE * k or (large and not many_can_wait(k, r)):
        return None
    squares = np.einsum("kr,kr->k", rows, rows)
    shortest, longest = squares.item(squares.argmin()) ** 0.5, squares.item(squares.argmax()) ** 0.5
    least, most = bound.item(bound.argmin()), bound.item(bound.argmax())
    if not (1 / _RANGE < longest <= SPREAD * shortest and longest < _RANGE and 0 < most <= SPREAD * least):
        return None
    scale = shortest / most  # the solver's tolerances are for vectors of length about 1
    scaled = bound * scale
    multipliers = propose_from_many(rows, scaled) if large else shortest_vector(rows, scaled)
    if multipliers is None:
        return _farkas_vector(rows, bound, longest) if k > r else None
    if not multipliers.any():
        return None
    reached = kkt_residuals(rows, scaled, multipliers, length=longest)
    if reached.dual > 0 or not reached.largest <= TOLERANCE:
        return None
    margin = scale / reached.norm
    if not 0 < margin < math.inf:
        return None
    return ProvenVector(multipliers / scale, reached.vector / scale, margin, Certificate(*reached[:4]))


def _farkas_vector(rows: Float[Array, "k r"], bound: Float[Array, " k"], longest: float) -> Float[Array, " k"] | None:
    """A Farkas vector with `bound' u = 1`, where r + 1 rows in r dimensions give one beyond all rounding."""
    rows = rows * 2.0 ** -math.frexp(longest)[1]  # to lengths of at most 1, exactly
    u = least_distance(rows, bound / bound.item(bound.argmax()))
    if u is None:
        return None
    support = u.nonzero()[0]
    kept = u.take(support)
    if len(support) != rows.shape[1] + 1 or not surely_positive(rows.take(support, axis=0), kept):
        return None
    return u / u.dot(bound)
