"""Keys in the plane: which directions select which tokens, as exact arcs of the circle, and the atlas read off them.

A selection is feasible exactly when some direction selects it strictly, that is, when it owns an arc of the circle.
There are at most n T (T - 1) arcs where there are T^n selections, and they are known exactly.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int
from numpy import ndarray as Array

from tokenmargin.margin.held_ties import held_ties
from tokenmargin.margin.limit_directions import limit_constraints, name_direction, name_global
from tokenmargin.margin.limit_results import Atlas, selections_that_are
from tokenmargin.margin.single.solver import solve
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import select

TIES = 256
"""Convex problems solved to decide ties of equals: a fraction of a second."""


def plane_atlas(problem: TokenProblem, *, loss: AbstractLoss | None = None) -> Atlas:
    """The limits of `atlas` for keys in the plane, fast enough to follow a moving token.

    Selections are counted as feasible when they own an arc; the others are infeasible by geometry, and no Farkas vector
    is computed for them (`max_margin` gives one). Copies of one key are one token.

    >>> from tokenmargin.problem.instances import figure8
    >>> for limit in plane_atlas(figure8()).limits:
    ...     print(limit.selected, limit.solution.vector.round(6) + 0.0, limit.is_global)
    [0 0] [1. 3.] True
    [0 1] [1. 0.] False
    """
    began = time.perf_counter()
    chosen = np.unique([arc.selected for arc in selection_arcs(problem)], axis=0)
    found = [name_direction(problem, alpha, solve(limit_constraints(problem, alpha)), loss) for alpha in chosen]
    seen = {limit.chosen.tobytes(): limit for limit in found if limit.is_limit and limit.solution.vector.any()}
    distinct = problem.mask & (problem.keys.first_copies == np.arange(problem.T))
    selections = math.prod(distinct.sum(axis=1).tolist())
    undecided = selections_that_are("inaccurate", found)
    feasible = sum(limit.kind not in ("infeasible", "inaccurate") for limit in found)
    ties = held_ties(problem, loss, listed=seen.values(), most=TIES)
    return Atlas(
        limits=name_global(problem, seen.values(), ties.held),
        selections=selections,
        feasible=feasible,
        infeasible=selections - feasible - len(undecided),
        undecided=undecided,
        solves=len(chosen) + ties.solves,
        ties_undecided=ties.unknown,
        ties_left=ties.left,
        balanced=selections_that_are("balanced", found),
        unsettled=selections_that_are("undecided", found),
        seconds=time.perf_counter() - began,
    )


@dataclass(frozen=True, eq=False)
class Arc:
    """Directions `(cos a, sin a)` with `start < a < stop`, all of which select the same token of every input.

    Angles are in radians, `0 <= start < 2 pi` and `stop <= start + 2 pi`; the last arc may run past `2 pi`.
    """

    start: float
    stop: float
    selected: Int[Array, " n"]


def is_planar(problem: TokenProblem) -> bool:
    """Whether the keys lie in the plane of the first two coordinates."""
    keys = problem.keys
    return isinstance(keys, Coordinates) and keys.dimension >= 2 and not keys.vectors[:, 2:].any()


def selection_arcs(problem: TokenProblem) -> tuple[Arc, ...]:
    """The circle of directions cut into arcs by the tokens they select: the basins of the selection rule.

    A far point `R q` in an arc attends to the arc's tokens as R grows. The max-margin direction of a feasible
    selection lies inside the arc of that selection, so an arc holds at most one limit of training. An arc is the set
    where a selection rules, not the set of starts that training takes to its limit: that one depends on the norm of
    the start and on the scores, and is for the dynamics to tell.

    The ends are exact: directions where two keys of one input tie, perpendicular to their difference.

    >>> from tokenmargin.problem.instances import figure8
    >>> [(round(float(np.degrees(arc.start)), 1), arc.selected.tolist()) for arc in selection_arcs(figure8())]
    [(63.4, [0, 0]), (90.0, [1, 0]), (243.4, [1, 1]), (270.0, [0, 1])]
    """
    keys = problem.keys
    if not isinstance(keys, Coordinates) or not is_planar(problem):
        raise ValueError("selection arcs need keys in the plane: coordinates with d = 2, or zero beyond the second")
    plane = keys.vectors[:, :2][keys.index]
    pairs = plane[:, :, None] - plane[:, None, :]
    seen = problem.mask[:, :, None] & problem.mask[:, None, :] & pairs.any(axis=3)
    differences = pairs[seen]
    # Each pair occurs with both signs, so turning a difference by a quarter gives both directions of the tie.
    turned = np.arctan2(differences[:, 0], -differences[:, 1])
    ends = np.unique(np.mod(turned, 2 * np.pi))
    if not len(ends):
        return (Arc(0.0, 2 * np.pi, select(keys, np.eye(keys.dimension)[0])),)
    stops = np.append(ends[1:], ends[0] + 2 * np.pi)
    middles = (ends + stops) / 2
    directions = np.zeros((len(ends), keys.dimension))
    directions[:, 0], directions[:, 1] = np.cos(middles), np.sin(middles)
    selections = select(keys, directions)
    # Only ties between the leading tokens change the selection: join what they leave apart.
    begins = np.flatnonzero((selections != np.roll(selections, 1, axis=0)).any(axis=1))
    if not len(begins):
        return (Arc(float(ends[0]), float(stops[-1]), selections[0]),)
    starts = ends[begins]
    stops = np.append(starts[1:], starts[0] + 2 * np.pi)
    return tuple(Arc(float(a), float(b), s) for a, b, s in zip(starts, stops, selections[begins], strict=True))
