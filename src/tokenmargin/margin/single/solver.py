"""One solver for every max-margin problem: daqp proposes, our own certificate decides.

No solver's word is taken. An answer is "optimal" only when the residuals of the vector we return are at most
`TOLERANCE` (`PRODUCTS_TOLERANCE` in Gram space), rounding counted against it; "infeasible" only where a non-negative
combination of the constraints is proven to be exactly zero; anything else is "inaccurate", with what is known.
"""

from __future__ import annotations

import time

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE, TOLERANCE, in_doubles
from tokenmargin.margin.compiled.systems import solve_systems
from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.single.at_once import Solved, solve_at_once
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
        if isinstance(quick, Solved):
            multipliers, y, margin, certificate = quick
            return MarginSolution(
                "optimal", y, margin, multipliers, constraints.token, certificate, None, time.perf_counter() - began
            )
        if quick is not None:
            return _infeasible(constraints, quick, Certificate(farkas=0.0), time.perf_counter() - began)
    if not constraints.bound.any():  # nothing asks for a margin: p = 0
        return _zero_solution(constraints)
    return _general(constraints, began)


def _general(constraints: Constraints, began: float) -> MarginSolution:
    """The answer by the general path, in the units of the constraints."""
    systems = constraints.systems()
    verdicts = solve_systems(systems)
    lengths, scale = systems.lengths[0], systems.scale[0]
    certificate = Certificate(*verdicts.residuals.table[0].tolist())._replace(farkas=float(verdicts.farkas.residual[0]))
    if verdicts.infeasible[0]:
        farkas = in_doubles(verdicts.farkas.weights[0], over=lengths)
        farkas = farkas / (farkas @ constraints.bound)
        return _infeasible(constraints, farkas, certificate, time.perf_counter() - began)
    multipliers = in_doubles(verdicts.multipliers[0], times=scale, over=lengths)
    y = in_doubles(verdicts.residuals.vectors[0], times=scale)
    norm = float(verdicts.residuals.norm[0])
    margin = float(np.ldexp(1 / norm, 1 - np.frexp(scale)[1])) if norm > 0 else np.inf
    return _solved(constraints, multipliers, y, margin, certificate, time.perf_counter() - began)


def _solved(
    constraints: Constraints,
    multipliers: Float[Array, " k"],
    y: Float[Array, " r"],
    margin: float,
    certificate: Certificate,
    seconds: float,
) -> MarginSolution:
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
