"""One solver for every max-margin problem: daqp proposes, our own certificate decides.

No solver's word is taken. An answer is "optimal" only when the KKT residuals of the vector we return are at most
`TOLERANCE`, and "infeasible" only with a Farkas vector checked to `TOLERANCE`; anything else is "inaccurate", with
the residuals that were reached.
"""

from __future__ import annotations

import time

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.geometry import Coordinates
from tokenmargin.margin.certificate import TOLERANCE, Systems, judge, normalised
from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.ordinary import solve_ordinary
from tokenmargin.margin.solution import Certificate, MarginSolution, Status
from tokenmargin.margin.system import Verdicts, solve_systems

__all__ = ["closed_form", "concluded", "solve", "unresolved"]


def solve(constraints: Constraints) -> MarginSolution:
    """Minimise |p| under `constraints`, with a certificate.

    >>> from tokenmargin.instances import figure3a
    >>> from tokenmargin.margin.constraints import attention_constraints
    >>> solution = solve(attention_constraints(figure3a(), [1, 1, 1]))
    >>> solution.status, solution.vector.round(6)
    ('optimal', array([1.333333, 0.333333]))
    """
    began = time.perf_counter()
    rows = constraints.rows()
    quick = None if constraints.equality is not None else solve_ordinary(rows, constraints.bound)
    if quick is not None:
        multipliers, y, certificate = quick
        return _solved(constraints, multipliers, y, certificate, time.perf_counter() - began)
    if not constraints.bound.any():  # nothing asks for a margin: p = 0
        return _unmoved(constraints, "optimal", Certificate(0.0, 0.0, 0.0, 0.0))
    systems = normalised(rows[None], constraints.bound[None], constraints.equality)
    if unresolved(constraints, systems.lengths[0]):
        return _unmoved(constraints, "inaccurate", Certificate())
    verdicts = solve_systems(systems, by_multipliers=not isinstance(constraints.geometry, Coordinates))
    return concluded(constraints, systems, verdicts, 0, seconds=time.perf_counter() - began)


def unresolved(constraints: Constraints, lengths: Float[Array, " k"]) -> bool:
    """Whether tokens to be separated are closer than the geometry can tell: by inner products, they look equal."""
    resolution = constraints.geometry.resolution
    return resolution > 0 and bool((constraints.bound[lengths <= resolution] > 0).any())


def concluded(
    constraints: Constraints, systems: Systems, verdicts: Verdicts, b: int, *, seconds: float
) -> MarginSolution:
    """The verdict on system `b` as the solution of its constraints, in their units."""
    lengths, scale = systems.lengths[b], systems.scale[b]
    if verdicts.farkas.residual[b] < np.inf:
        farkas = verdicts.farkas.weights[b] / lengths
        certificate = Certificate(farkas=float(verdicts.farkas.residual[b]))
        return _infeasible(constraints, farkas / (farkas @ constraints.bound), certificate, seconds)
    certificate = Certificate(*verdicts.residuals.table[b].tolist())
    multipliers = verdicts.multipliers[b] * (scale / lengths)
    return _solved(constraints, multipliers, verdicts.residuals.vectors[b] * scale, certificate, seconds)


def _solved(
    constraints: Constraints,
    multipliers: Float[Array, " k"],
    y: Float[Array, " r"],
    certificate: Certificate,
    seconds: float,
) -> MarginSolution:
    squared = float(y.dot(y))
    return MarginSolution(
        "optimal" if certificate.residual <= TOLERANCE else "inaccurate",
        constraints.parameter(multipliers, y),
        squared**-0.5 if squared > 0 else np.inf,
        multipliers,
        constraints.token,
        certificate,
        None,
        seconds,
    )


def _unmoved(constraints: Constraints, status: Status, certificate: Certificate) -> MarginSolution:
    """The answer p = 0: nothing to separate, or nothing known."""
    multipliers = np.zeros(len(constraints))
    return MarginSolution(
        status, constraints.geometry.zero(), np.inf, multipliers, constraints.token, certificate, None, 0.0
    )


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


def closed_form(constraints: Constraints) -> tuple[Float[Array, " D"], bool]:
    """`M^+ 1` and whether it is the solution: all constraints tight, with non-negative multipliers.

    It is the max-margin vector only when `M p = 1` is solvable and `(M M')^+ 1 >= 0`; otherwise some constraints of
    the solution are slack and this vector is another one.

    >>> from tokenmargin.instances import figure3b
    >>> from tokenmargin.margin.constraints import attention_constraints
    >>> closed_form(attention_constraints(figure3b(), [1, 1, 1]))[1]  # three constraints in the plane
    False
    """
    if constraints.equality is not None:
        raise ValueError("the closed form is for inequalities alone; solve() answers problems with ties")
    rows = constraints.rows()
    multipliers = (
        np.linalg.pinv(rows @ rows.T, rcond=len(rows) * np.finfo(float).eps, hermitian=True) @ constraints.bound
    )
    systems = normalised(rows[None], constraints.bound[None])
    scaled = multipliers * systems.lengths[0] / systems.scale[0]
    tight = np.abs(rows @ (multipliers @ rows) - constraints.bound).max(initial=0.0) <= TOLERANCE
    return constraints.combine(multipliers), bool(tight and judge(systems, scaled[None]).largest[0] <= TOLERANCE)
