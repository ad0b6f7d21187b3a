"""Attention maps other than softmax: a finite p whose weights are exact, or tokens each for itself.

Under sparsemax and entmax a token ahead by the map's margin has all the weight, and its input stops pulling. Training
then comes to rest at a finite p, which meets the constraints of the max-margin problem of its selection; the shortest p
that does is the solution of that problem. Under sigmoid attention p diverges, and separates the tokens that help from
those that do not.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin import Constraints, Kind, LimitDirection, MarginSolution, solve
from tokenmargin.objective.attention_maps import MapObjective
from tokenmargin.selection import NEIGHBOUR_TOLERANCE, margins, select


def exactly_ahead(objective: MapObjective, p: Float[Array, " D"], solution: MarginSolution) -> str:
    """How far ahead the selected tokens are where the weights are exact, how far they must be, and at which length."""
    selected, needed = select(objective.problem.keys, p), objective.attention.margin
    ahead = margins(objective.problem, p, selected)
    ahead[np.arange(len(ahead)), selected] = np.inf
    length = float(objective.problem.keys.norm(p))
    reason = f"the weights are exact at |p|={length:.6g}: ahead by {ahead.min():.6g}, {needed:g} needed"
    return f"{reason}, which |p|={needed / solution.margin:.6g} can do" if solution.is_optimal else reason


def separating_direction(objective: MapObjective, p: Float[Array, " D"]) -> LimitDirection:
    """The shortest p with `<k_it, p> >= 1` for the tokens that are attended to at `p`, and `<= -1` for the others.

    Tokens of score zero do not pull, and are not asked about. It is a limit ("LMM") when every token at distance
    exactly 1 stands on the side to which its score pulls it, and the best one ("GMM") when all tokens do.
    """
    problem = objective.problem
    attended = problem.keys.logits(p) > 0
    asked: Bool[Array, "n T"] = problem.mask & (problem.scores != 0)
    inputs, positions = np.nonzero(asked)
    side = np.where(attended, 1.0, -1.0)
    solution = solve(
        Constraints(
            problem.keys, problem.keys.index[inputs, positions], None, np.ones(len(inputs)),
            np.stack([inputs, positions], axis=1), sign=side[asked],
        )
    )  # fmt: skip
    right = side * problem.scores > 0
    near = asked & (side * np.where(asked, problem.keys.logits(solution.vector), 0.0) <= 1 + NEIGHBOUR_TOLERANCE)
    kind: Kind = "GMM" if right[asked].all() else "LMM" if right[near].all() else "not locally optimal"
    if not solution.is_optimal:
        near, kind = np.zeros_like(near), "infeasible" if solution.status == "infeasible" else "inaccurate"
    chosen = attended & problem.mask
    return LimitDirection(chosen.argmax(axis=1), chosen, solution, near, np.full(problem.n, np.nan), kind)
