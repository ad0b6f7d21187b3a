"""Max-margin problems in any norm: somebody proposes, the certificate decides.

l1 and linf: our interior-point method, then HiGHS. lp: an interior-point method for smooth norms. Nuclear and spectral: one
for matrices (`conic`). A norm of the user's own: the user's proposal. Infeasibility does not depend on the norm: it is the
Euclidean problem's, with its exact proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import Systems, in_doubles
from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.normed.certificate import Judged, judge
from tokenmargin.margin.single.solver import solve
from tokenmargin.margin.solution import Certificate, MarginSolution
from tokenmargin.norms import AbstractNorm, CustomNorm, LpNorm, SchattenNorm, as_norm
from tokenmargin.problem.geometry import Coordinates

__all__ = ["norm_for", "solve_in_norm"]

_WIDE = 600  # size up to which the larger linear system is worth trying

Proposal: TypeAlias = tuple[Float[Array, " r"], Float[Array, " k"]]


def norm_for(constraints: Constraints, norm: AbstractNorm | str) -> AbstractNorm:
    """The norm as one of the problem's parameters, or the reason why it has no meaning there."""
    chosen, geometry = as_norm(norm), constraints.geometry
    if isinstance(chosen, SchattenNorm) and chosen.p == 2:
        chosen = LpNorm(2.0)
    if chosen == LpNorm(2.0):
        return chosen
    if not isinstance(geometry, Coordinates):
        raise ValueError(
            f"the {chosen.name} norm needs coordinates, and this problem is known by inner products alone, which give "
            "Euclidean lengths; pose it with keys of shape (n, T, d), or use norm='l2'"
        )
    if isinstance(chosen, SchattenNorm) and geometry.matrix_shape is None:
        raise ValueError(
            f"the {chosen.name} norm is one of matrices, and this problem is for a vector of length "
            f"{geometry.dimension}; pose it for W by problem.with_matrix(queries)"
        )
    return chosen.of_shape(geometry.matrix_shape)


def solve_in_norm(constraints: Constraints, norm: AbstractNorm | str = "l2") -> MarginSolution:
    """Minimise `|p|` in a norm under `constraints`, with a certificate.

    >>> from tokenmargin.problem.instances import figure3a
    >>> from tokenmargin.margin.constraints import attention_constraints
    >>> solution = solve_in_norm(attention_constraints(figure3a(), [1, 1, 1]), "linf")
    >>> solution.status, solution.vector.round(6)
    ('optimal', array([1., 1.]))
    """
    chosen = norm_for(constraints, norm)
    shape = constraints.geometry.matrix_shape
    began = time.perf_counter()
    if chosen == LpNorm(2.0) or not constraints.bound.any():
        found = solve(constraints)
        return found if chosen == LpNorm(2.0) and shape is None else replace(found, norm=chosen, shape=shape)
    systems = constraints.systems()
    best: Judged | None = None
    for vector, multipliers in _proposals(systems, chosen):
        judged = judge(systems, chosen, vector, multipliers)
        if best is None or judged.residual < best.residual:
            best = judged
        if judged.passes(chosen):
            break
    if best is None or not best.passes(chosen):
        euclidean = solve(constraints)
        if euclidean.status == "infeasible":
            return replace(euclidean, norm=chosen, shape=shape, seconds=time.perf_counter() - began)
        own = judge(systems, chosen, *_scaled(systems, euclidean))
        best = own if best is None or own.residual < best.residual else best
    return _answer(constraints, systems, chosen, best, time.perf_counter() - began)


def _scaled(systems: Systems, found: MarginSolution) -> Proposal:
    """A solution in the units of the system."""
    lengths, scale = systems.lengths[0], systems.scale[0]
    return in_doubles(found.vector, over=scale), in_doubles(found.multipliers, times=lengths, over=scale)


def _answer(
    constraints: Constraints, systems: Systems, norm: AbstractNorm, best: Judged, seconds: float
) -> MarginSolution:
    lengths, scale = systems.lengths[0], systems.scale[0]
    vector = in_doubles(best.vector, times=scale)
    proven = best.passes(norm) and systems.in_range is None and bool(np.isfinite(vector).all())
    margin = float(np.ldexp(1 / best.norm, 1 - np.frexp(scale)[1])) if best.norm > 0 else 0.0
    return MarginSolution(
        status="optimal" if proven else "inaccurate",
        vector=vector,
        margin=margin,
        multipliers=in_doubles(best.multipliers, times=scale, over=lengths),
        tokens=constraints.token,
        certificate=Certificate(best.primal, 0.0, 0.0, best.gap),
        seconds=seconds,
        norm=norm,
        shape=constraints.geometry.matrix_shape,
    )


def _proposals(systems: Systems, norm: AbstractNorm) -> Iterator[Proposal]:
    """Whoever knows the norm, the fastest first."""
    rows, bound = systems.rows[0], systems.bound[0]
    tied = np.zeros(len(bound), dtype=bool) if systems.equality is None else systems.equality
    if isinstance(norm, LpNorm):
        yield from _of_vectors(norm, rows, bound, tied)
    elif isinstance(norm, SchattenNorm):
        from tokenmargin.margin.normed.conic import matrix_proposals

        yield from matrix_proposals(norm, rows, bound, tied)
    elif isinstance(norm, CustomNorm) and norm.propose is not None:
        if tied.any():
            raise ValueError(f"the norm {norm.name} proposes for inequalities alone, and these constraints have equalities")
        vector, multipliers = norm.propose(rows, bound)
        yield np.asarray(vector, dtype=np.float64), np.asarray(multipliers, dtype=np.float64)
    else:
        raise ValueError(
            f"nobody proposes solutions in the norm {norm.name}; give CustomNorm(propose=...), a function "
            "(rows, bound) -> (vector, multipliers)"
        )


def _of_vectors(
    norm: LpNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"]
) -> Iterator[Proposal]:
    from tokenmargin.margin.normed.polish import polished  # what is compiled loads when it is needed
    from tokenmargin.margin.normed.polyhedral import by_highs, interior_point
    from tokenmargin.margin.normed.smooth import smooth_interior_point

    k, r = rows.shape
    attempts: list[Callable[[], Proposal | None]]
    if norm.p in (1, np.inf):
        attempts = [
            lambda: interior_point(rows, bound, tied, norm.p > 1),
            lambda: by_highs(rows, bound, tied, common=norm.p > 1),
        ]
    else:
        # By the smaller linear system first; the other one is slower, and where the first stalls more robust.
        ways = (True,) if tied.any() else ((k < r, k >= r) if max(k, r) <= _WIDE else (k < r,))
        attempts = [lambda way=way: smooth_interior_point(rows, bound, tied, norm.p, way) for way in ways]
    for attempt in attempts:
        proposal = attempt()
        if proposal is None:
            continue
        yield proposal
        better = polished(norm, rows, bound, tied, *proposal)
        if better is not None:
            yield better
