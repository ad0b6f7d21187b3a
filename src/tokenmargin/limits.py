"""limit_of: where gradient flow goes, named and proven: a certified direction, a stationary point, or neither yet.

This is where the dynamics meet the max-margin problems; the two rooms themselves do not know each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.attention import PromptObjective
from tokenmargin.dynamics import FlowPath, FlowSettings, flow
from tokenmargin.losses import AbstractLoss, LogisticLoss
from tokenmargin.margin import MarginSolution, max_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import angle, is_globally_optimal, is_locally_optimal

__all__ = ["Kind", "Limit", "kind_of", "limit_of"]

Kind = Literal["GMM", "LMM", "not locally optimal", "infeasible", "inaccurate"]

SATURATED = 1 - 1e-5
_ROUNDING = 1e-13  # angles below it are rounding, and have no rate
_FITTED = 3.0  # decades of the norm over which the rate is fitted


@dataclass(frozen=True, eq=False)
class Limit:
    """Where a path of gradient flow goes.

    **Attributes**
    - `outcome`: "direction" when the path diverges along a certified direction, "bounded" when it ends at a stationary
      point, "undecided" when neither was settled.
    - `selected`: tokens of largest weight at the end.
    - `solution`: the max-margin problem of that selection, solved with its certificate.
    - `kind`: what that direction is: GMM, LMM, not locally optimal, or why there is none.
    - `angle`: between the end of the path and that direction, in radians; NaN without one.
    - `rate`: fitted exponent of the angle as a power of the norm over the last three decades; NaN where the angle is
      rounding or the path too short.
    - `log_gradient`: logarithm of the gradient norm at the end: the evidence for a stationary point.
    - `path`: the flow itself.
    """

    outcome: Literal["direction", "bounded", "undecided"]
    selected: Int[Array, " n"]
    solution: MarginSolution
    kind: Kind
    angle: float
    rate: float
    log_gradient: float
    path: FlowPath

    @property
    def point(self) -> Float[Array, " D"]:
        """The end of the path: the stationary point, when it is bounded."""
        return self.path.final

    def __repr__(self) -> str:
        match self.outcome:
            case "direction":
                detail = f"{self.kind}, angle={self.angle:.1e} at |p|={self.path.norm:.3g}, rate={self.rate:.3f}"
            case "bounded":
                detail = f"|p|={self.path.norm:.6g}, |gradient|=exp({self.log_gradient:.3g})"
            case _:
                detail = f"stopped by {self.path.stop} at |p|={self.path.norm:.3g}, angle={self.angle:.1e}"
        return f"Limit({self.outcome}: {detail}, selected={self.selected.tolist()})"


def kind_of(problem: TokenProblem, selected: Int[Array, " n"], solution: MarginSolution) -> Kind:
    """What a max-margin direction is to its problem (Definitions 1 and 2)."""
    if solution.status != "optimal":
        return solution.status
    if not is_locally_optimal(problem, solution.vector, selected):
        return "not locally optimal"
    return "GMM" if is_globally_optimal(problem, selected) else "LMM"


def limit_of(
    problem: TokenProblem,
    start: Float[Array, " D"] | None = None,
    *,
    loss: AbstractLoss | None = None,
    until_norm: float = 1e8,
    tolerance: float = 1e-6,
    settings: FlowSettings | None = None,
    progress: Callable[[float], None] | None = None,
) -> Limit:
    """Follow gradient flow from `start` and name its limit.

    The direction is settled when, at the norm `until_norm`, softmax is saturated (mean selected weight at least
    1 - 1e-5), the max-margin problem of the selected tokens is solved with a certificate, and the angle to its solution
    is at most `tolerance`. A stationary point is settled when Newton's method has found it and the gradient there is
    zero to rounding. Anything else is "undecided", with what was reached.

    **Arguments**
    - `problem`: in either geometry.
    - `start`: where the flow begins; zero by default.
    - `loss`: logistic by default.
    - `until_norm`: how far to follow a diverging path.
    - `tolerance`: largest angle called settled.
    - `settings`: of the flow.
    - `progress`: called with the norm.

    >>> from tokenmargin.instances import figure1b
    >>> limit = limit_of(figure1b(), np.array([0.0, -1.5, 0.0]))
    >>> limit.outcome, limit.kind, limit.selected, round(limit.rate, 2)
    ('direction', 'LMM', array([1]), -1.0)
    """
    objective = PromptObjective(problem, LogisticLoss() if loss is None else loss)
    path = flow(objective, start=start, until_norm=until_norm, settings=settings, progress=progress)
    selected = path.selected
    solution = max_margin(problem, selected)
    known = solution.is_optimal and path.norm > 0 and np.isfinite(solution.margin)
    off = float(angle(problem.keys, path.prompt, solution.vector)) if known else np.nan
    outcome: Literal["direction", "bounded", "undecided"] = "undecided"
    if path.stop == "stationary":
        outcome = "bounded"
    elif path.stop == "norm" and path.saturation >= SATURATED and off <= tolerance:
        outcome = "direction"
    rate = _rate(path, solution) if outcome == "direction" else np.nan
    return Limit(
        outcome, selected, solution, kind_of(problem, selected, solution), off, rate, path.log_gradient, path
    )  # fmt: skip


def _rate(path: FlowPath, solution: MarginSolution) -> float:
    """Slope of log angle against log norm over the last decades, where the angle is more than rounding."""
    keys = path.objective.problem.keys
    first = np.log10(max(float(np.linalg.norm(path.objective.norms(path(0.0)))), 1.0)) + 0.5
    decades = np.linspace(max(np.log10(path.norm) - _FITTED, first), np.log10(path.norm) - 1e-9, 7)
    if decades[0] >= decades[-1]:
        return np.nan
    angles = np.array([float(angle(keys, path.at_norm(norm), solution.vector)) for norm in 10**decades])
    return float(np.polyfit(decades, np.log10(angles), 1)[0]) if (angles > _ROUNDING).all() else np.nan
