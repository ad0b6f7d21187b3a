"""The atlas of a problem in the plane, by the circle instead of the tree of selections.

A selection is feasible exactly when some direction selects it strictly, that is, when it owns an arc of the circle.
There are at most n T (T - 1) arcs where there are T^n selections, and they are known exactly.
"""

from __future__ import annotations

import math
import time

import numpy as np

from tokenmargin.margin.arcs import selection_arcs
from tokenmargin.margin.held_ties import held_ties
from tokenmargin.margin.limit_directions import Atlas, limit_constraints, name_global, read_direction
from tokenmargin.margin.single.solver import solve
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.token_problem import TokenProblem

TIES = 256
"""Convex problems solved to decide ties of equals: a fraction of a second."""


def plane_atlas(problem: TokenProblem, *, loss: AbstractLoss | None = None) -> Atlas:
    """The limits of `atlas` for keys in the plane, fast enough to follow a moving token.

    Selections are counted as feasible when they own an arc; the others are infeasible by geometry, and no Farkas vector
    is computed for them (`max_margin` gives one). Copies of one key are one token.

    >>> from tokenmargin.problem.instances import figure8
    >>> for limit in plane_atlas(figure8()).limits:
    ...     print(limit.selected, limit.solution.vector.round(6), limit.is_global)
    [0 0] [1. 3.] True
    [0 1] [1. 0.] False
    """
    began = time.perf_counter()
    chosen = np.unique([arc.selected for arc in selection_arcs(problem)], axis=0)
    found = [read_direction(problem, alpha, solve(limit_constraints(problem, alpha)), loss) for alpha in chosen]
    seen = {limit.chosen.tobytes(): limit for limit in found if limit.is_limit and limit.solution.vector.any()}
    distinct = problem.mask & (problem.keys.first_copies == np.arange(problem.T))
    selections = math.prod(distinct.sum(axis=1).tolist())
    undecided = [limit.selected for limit in found if limit.kind == "inaccurate"]
    feasible = sum(limit.kind not in ("infeasible", "inaccurate") for limit in found)
    ties = held_ties(problem, loss, listed=seen.values(), most=TIES)
    return Atlas(
        limits=name_global(problem, seen.values(), ties.held),
        selections=selections,
        feasible=feasible,
        infeasible=selections - feasible - len(undecided),
        undecided=tuple(tuple(selected) for selected in np.array(undecided, dtype=int).tolist()),
        solves=len(chosen) + ties.solves,
        ties_undecided=ties.unknown,
        ties_left=ties.left,
        seconds=time.perf_counter() - began,
    )
