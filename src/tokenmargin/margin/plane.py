"""The atlas of a problem in the plane, by the circle instead of the tree of selections.

A selection is feasible exactly when some direction selects it strictly, that is, when it owns an arc of the circle.
There are at most n T (T - 1) arcs where there are T^n selections, and they are known exactly.
"""

from __future__ import annotations

import math
import time

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.geometry import Coordinates
from tokenmargin.margin.arcs import selection_arcs
from tokenmargin.margin.certificate import normalised
from tokenmargin.margin.constraints import attention_constraints
from tokenmargin.margin.limits import Atlas, LimitDirection
from tokenmargin.margin.solver import solve
from tokenmargin.margin.system import solve_systems
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import NEIGHBOUR_TOLERANCE, is_globally_optimal

__all__ = ["plane_atlas"]


def plane_atlas(problem: TokenProblem) -> Atlas:
    """The answer of `atlas` for keys in the plane, fast enough to follow a moving token.

    A selection without an arc is infeasible by geometry; no Farkas vector is computed for it (`max_margin` gives one).

    >>> from tokenmargin.instances import figure8
    >>> for limit in plane_atlas(figure8()).limits:
    ...     print(limit.selected, limit.solution.vector.round(6), limit.is_global)
    [0 0] [1. 3. 0.] True
    [0 1] [1. 0. 0.] False
    """
    began = time.perf_counter()
    chosen = np.unique([arc.selected for arc in selection_arcs(problem)], axis=0)
    vectors, solved, refuted = _solved(problem, chosen)
    gaps, near = _gaps(problem, chosen, vectors)
    limits = [
        LimitDirection(
            selected=chosen[b],
            solution=solve(attention_constraints(problem, chosen[b])),
            neighbours=near[b],
            gaps=gaps[b],
            is_global=is_globally_optimal(problem, chosen[b]),
        )
        for b in np.flatnonzero(solved & (gaps > 0).all(axis=1))
    ]
    selections = math.prod(problem.mask.sum(axis=1).tolist())
    undecided = chosen[~solved & ~refuted]
    return Atlas(
        limits=tuple(sorted(limits, key=lambda limit: (not limit.is_global, -limit.solution.margin))),
        selections=selections,
        feasible=int(solved.sum()),
        infeasible=selections - int(solved.sum()) - len(undecided),
        undecided=tuple(tuple(selected) for selected in undecided.tolist()),
        solves=len(chosen),
        seconds=time.perf_counter() - began,
    )


def _solved(
    problem: TokenProblem, chosen: Int[Array, "B n"]
) -> tuple[Float[Array, "B D"], Bool[Array, " B"], Bool[Array, " B"]]:
    """Max-margin vectors of the selections, which of them are proven, and which are proven infeasible.

    The selected token's own row and those without a token are zero and ask for nothing, so inputs may be of any length.
    An arc whose selection is infeasible is that of two tokens at one place, which no direction can tell apart.
    """
    assert isinstance(problem.keys, Coordinates), "selection_arcs has checked it"
    laid_out = problem.keys.laid_out
    inputs = np.arange(problem.n)
    asked = np.broadcast_to(problem.mask, (len(chosen), *problem.mask.shape)).copy()
    asked[np.arange(len(chosen))[:, None], inputs, chosen] = False
    plus = np.where(asked[..., None], laid_out[inputs, chosen][:, :, None], 0.0)
    minus = np.where(asked[..., None], laid_out, 0.0)
    if not asked.any():
        nothing = np.zeros(len(chosen), dtype=bool)
        return np.zeros((len(chosen), problem.keys.dimension)), nothing, nothing
    shape = (len(chosen), -1, problem.keys.dimension)
    bound = asked.reshape(len(chosen), -1).astype(float)
    systems = normalised(plus.reshape(shape), bound, minus=minus.reshape(shape))
    verdicts = solve_systems(systems)
    return verdicts.residuals.vectors * systems.scale[:, None], verdicts.optimal, verdicts.infeasible


def _gaps(
    problem: TokenProblem, chosen: Int[Array, "B n"], vectors: Float[Array, "B D"]
) -> tuple[Float[Array, "B n"], Bool[Array, "B n T"]]:
    """Score gaps and SVM-neighbours of all selections: `score_gaps` and `neighbours` in one pass."""
    logits, at = problem.keys.logits(vectors), chosen[:, :, None]
    near = np.take_along_axis(logits, at, axis=2) - logits <= 1 + NEIGHBOUR_TOLERANCE
    np.put_along_axis(near, at, False, axis=2)
    best = np.where(near, problem.scores, -np.inf).max(axis=2)
    return problem.scores[np.arange(problem.n), chosen] - best, near
