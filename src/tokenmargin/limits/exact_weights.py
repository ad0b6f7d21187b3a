"""Attention maps other than softmax: a finite p whose weights are exact, or tokens each for itself.

Under sparsemax and entmax a token ahead by the map's margin has all the weight, and its input stops pulling. Training
then comes to rest at a finite p, which meets the constraints of the max-margin problem of its selection; the shortest p
that does is the solution of that problem. Under sigmoid attention p diverges, and separates the tokens that help from
those that do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.dynamics.rest import STATIONARY, polish
from tokenmargin.dynamics.span import Reduced
from tokenmargin.margin import Constraints, Kind, LimitDirection, solve
from tokenmargin.objective.attention_maps import MapObjective
from tokenmargin.selection import NEIGHBOUR_TOLERANCE, margins, select

__all__ = ["StepPath", "follow_by_steps", "separating_direction"]

STEP, MOST_STEPS = 0.01, 20_000


@dataclass(frozen=True, eq=False)
class StepPath:
    """Training by normalised steps, each a hundredth of the length reached, until the gradient is exactly zero.

    - `stop`: "saturated" when every input gives one token all its weight; "stationary" when the gradient is zero
      otherwise, to rounding by Newton's method or exactly; "steps" when neither came about.
    """

    objective: MapObjective
    final: Float[Array, " D"]
    steps: int
    stop: Literal["saturated", "stationary", "steps"]

    @property
    def prompt(self) -> Float[Array, " D"]:
        return self.final

    @property
    def norm(self) -> float:
        """Length of p at the end."""
        return float(self.objective.problem.keys.norm(self.final))

    @property
    def selected(self) -> Int[Array, " n"]:
        """The token of largest weight in each input."""
        return select(self.objective.problem.keys, self.final)

    @property
    def log_gradient(self) -> float:
        """Logarithm of the gradient norm at the end; minus infinity where it is exactly zero."""
        return float(self.objective.descent(self.final).log_norm[0])

    @property
    def margin(self) -> float:
        """How far in logits the selected tokens are ahead of all others, at the least."""
        ahead = margins(self.objective.problem, self.final, self.selected)
        ahead[np.arange(len(ahead)), self.selected] = np.inf
        return float(ahead.min())


def follow_by_steps(objective: MapObjective, start: Float[Array, " D"] | None) -> StepPath:
    """Normalised descent from `start` (zero by default) until it rests; where it does not, Newton's method is asked."""
    keys = objective.problem.keys
    p = objective.start() if start is None else np.array(start, dtype=np.float64)
    unit = 1 / max(2 * float(keys.token_lengths.max()), np.finfo(float).tiny)  # it changes no logit by more than 1
    for step in range(MOST_STEPS):
        direction, log_norm = objective.descent(p)
        if np.isneginf(log_norm[0]):
            one = bool((objective.weights(p).max(axis=-1) == 1).all())
            return StepPath(objective, p, step, "saturated" if one else "stationary")
        p = p + STEP * (unit + float(keys.norm(p))) * direction
    reduced = Reduced.of(objective)
    y = reduced.reduce(p)
    polished, balance = polish(reduced.objective, y)
    near = np.linalg.norm(polished - y) <= 10 * STEP * (unit + np.linalg.norm(y))
    if balance <= STATIONARY and near:
        return StepPath(objective, p + reduced.lift(polished) - reduced.lift(y), MOST_STEPS, "stationary")
    return StepPath(objective, p, MOST_STEPS, "steps")


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
