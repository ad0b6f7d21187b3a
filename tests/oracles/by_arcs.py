"""The atlas of keys in the plane by another way: which selections are feasible is read off the circle, not proven."""

from __future__ import annotations

import math
import time

import numpy as np

from tokenmargin.margin import Atlas, held_ties, limit_constraints, selection_arcs, solve
from tokenmargin.margin.limit_directions import name_direction, name_global
from tokenmargin.margin.limit_results import selections_that_are
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.token_problem import TokenProblem


def atlas_by_arcs(problem: TokenProblem, *, loss: AbstractLoss | None = None) -> Atlas:
    """The limits of `atlas` for keys in the plane, from the selections that own an arc of the circle.

    Selections without an arc are counted as infeasible, by geometry: no Farkas vector is computed for them.
    """
    began = time.perf_counter()
    chosen = np.unique([arc.selected for arc in selection_arcs(problem)], axis=0)
    found = [name_direction(problem, alpha, solve(limit_constraints(problem, alpha)), loss) for alpha in chosen]
    seen = {limit.chosen.tobytes(): limit for limit in found if limit.is_limit and limit.solution.vector.any()}
    distinct = problem.mask & (problem.keys.first_copies == np.arange(problem.T))
    selections = math.prod(distinct.sum(axis=1).tolist())
    undecided = selections_that_are("inaccurate", found)
    feasible = sum(limit.kind not in ("infeasible", "inaccurate") for limit in found)
    ties = held_ties(problem, loss, listed=seen.values())
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
