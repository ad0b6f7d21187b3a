"""The atlas of keys in the plane by another way: which selections are feasible is read off the circle, not proven."""

from __future__ import annotations

import time

import numpy as np

from tokenmargin.margin import Atlas, held_ties, limit_constraints, selection_arcs, solve
from tokenmargin.margin.limit_directions import name_direction, name_global
from tokenmargin.margin.limit_results import SelectionTally
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.token_problem import TokenProblem


def atlas_by_arcs(problem: TokenProblem, *, loss: AbstractLoss | None = None) -> Atlas:
    """The limits of `atlas` for keys in the plane, from the selections that own an arc of the circle.

    Selections without an arc are counted as infeasible, by geometry: no Farkas vector is computed for them.
    """
    began = time.perf_counter()
    chosen = np.unique([arc.selected for arc in selection_arcs(problem)], axis=0)
    found = [name_direction(problem, alpha, solve(limit_constraints(problem, alpha)), loss) for alpha in chosen]
    distinct = problem.mask & (problem.keys.first_copies == np.arange(problem.T))
    tally = SelectionTally(distinct.sum(axis=1).tolist(), np.inf)
    for alpha, limit in zip(chosen, found, strict=True):
        if limit.kind != "infeasible":
            tally.record(alpha, limit)
    # By the tokens that lead together: several selections may have one direction.
    seen = {limit.chosen.tobytes(): limit for limit in found if limit.is_limit and limit.solution.vector.any()}
    ties = held_ties(problem, loss, listed=seen.values())
    tally.solves = len(chosen) + ties.solves
    tally.infeasible = tally.leaves[0] - tally.feasible - len(tally.undecided)
    tally.limits = list(seen.values())
    named = name_global(problem, tally, ties.held)
    return tally.atlas(named, began=began, ties_left=ties.left, ties_undecided=ties.unknown)
