"""Where training goes, and the max-margin class it is compared with: the two sides of every limit theorem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.dynamics.flow import FlowPath, flow
from tokenmargin.dynamics.integrate import FlowSettings
from tokenmargin.margin import MarginSolution, class_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory.claim import Slack, below, seen

# A token tied in the limit is behind by o(|p|); one that is not, by a share of |p| near the margin. At the norms
# followed here (1e4 and more) the two differ by orders of magnitude.
TIE = 1e-2

# Directions are compared to 1e-6 at best. Corpora under Assumption 4 are symmetric enough to stall LSODA often, so
# Radau is not kept waiting.
SETTINGS = FlowSettings(tolerance=1e-8, solver="Radau")


def selected_in_the_limit(problem: TokenProblem, p: Float[Array, " D"], tie: float = TIE) -> Bool[Array, "n T"]:
    """`S_X(p)` (8) for the direction that a long p stands for: behind by less than `tie` of the largest gap."""
    logits = problem.keys.logits(p)
    behind = logits.max(axis=1, keepdims=True) - logits
    return np.asarray((behind <= tie * behind[problem.mask].max()) & problem.mask)


@dataclass(frozen=True, eq=False)
class FollowedFlow:
    """A flow followed far, and how it stands to the max-margin direction of what it selects.

    - `path`: the flow.
    - `chosen`: the tokens selected, ties included.
    - `solution`: the max-margin problem of that selection.
    - `angle`, `earlier`: angle to its direction at the end, and at a tenth of the norm.
    """

    path: FlowPath
    chosen: Bool[Array, "n T"]
    solution: MarginSolution
    angle: float
    earlier: float

    @property
    def slope(self) -> float:
        """Exponent of the angle's fall with the norm over the last decade: -1 when it falls like 1/|p|."""
        return float(np.log10(self.angle / self.earlier)) if 0 < self.earlier < np.inf else 0.0


def follow(
    problem: TokenProblem, start: Float[Array, " D"], *, norm: float, loss: AbstractLoss | None = None
) -> FollowedFlow:
    """Gradient flow of the prompt from `start` to length `norm`, compared with the class it ends in."""
    objective = PromptObjective(problem, loss or LogisticLoss())
    path = flow(objective, start=start, until_norm=norm, settings=SETTINGS)
    chosen = selected_in_the_limit(problem, path.prompt)
    solution = class_margin(problem, chosen)
    if path.stop != "norm" or not solution.is_optimal:
        return FollowedFlow(path, chosen, solution, np.inf, np.inf)
    began = float(problem.keys.norm(start))
    before = path.at_norm(norm / 10) if began < norm / 10 else start
    late, early = (float(angle(problem.keys, p, solution.vector)) for p in (path.prompt, before))
    return FollowedFlow(path, chosen, solution, late, early)


def vanishing(name: str, angles: tuple[float, float], *, norm: float, most: float = 1e-2) -> tuple[Slack, Slack]:
    """An angle that goes to zero: small at `norm`, and falling like a power of the norm over the decade before.

    A limit is seen, not proven, by a path of finite length: broken, these leave a claim undecided.

    - `angles`: at a tenth of the norm, and at the norm. Where the last is below 1e-7 (what a path resolves) the power
      counts as 1.
    """
    earlier, late = angles
    exponent = float(np.log10(late / earlier)) if late > 1e-7 and earlier > 0 else -1.0
    farther = "following the path to larger norms"
    return (
        seen(below(f"angle to {name} at norm {norm:.4g}", late, most), farther),
        seen(below("its exponent in the norm, last decade", exponent, -0.8), farther),
    )
