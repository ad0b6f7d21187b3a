"""Evidence that many claims share: flows followed to a finite norm, and probabilities from a number of draws.

A flow is compared with the max-margin class of what it selects: the two sides of every limit theorem. Of a probability,
draws give an exact binomial interval, and a slack made of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from scipy.stats import beta

from tokenmargin.dynamics.flow import FlowPath, flow
from tokenmargin.dynamics.integrate import LARGEST_NORM, FlowSettings
from tokenmargin.dynamics.span import ReducedObjective
from tokenmargin.margin import MarginSolution, class_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory.claim import Slack, below, searched, seen, true

# A token tied in the limit is behind by o(|p|); one that is not, by a share of |p| near the margin. At the norms
# followed here (1e4 and more) the two differ by orders of magnitude.
TIE = 1e-2

# Directions are compared to 1e-6 at best. Corpora under Assumption 4 are symmetric enough to stall LSODA often, so
# Radau is not kept waiting.
SETTINGS = FlowSettings(tolerance=1e-8, solver="Radau")

CONFIDENCE = 0.95
"""How sure the interval of a report is of holding the true probability."""
REFUTING = 1 - 1e-9
"""How sure the interval must be before a statement is said to fail: one false refutation in a thousand million."""


def selected_in_the_limit(problem: TokenProblem, p: Float[Array, " D"]) -> Bool[Array, "n T"]:
    """`S_X(p)` (8) for the direction that a long p stands for: behind by less than `TIE` of the largest gap."""
    logits = problem.keys.logits(p)
    behind = logits.max(axis=1, keepdims=True) - logits
    return np.asarray((behind <= TIE * behind[problem.mask].max()) & problem.mask)


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


def follow_flow(
    problem: TokenProblem, start: Float[Array, " D"], *, norm: float, loss: AbstractLoss | None = None
) -> FollowedFlow:
    """Gradient flow of the prompt from `start` to length `norm`, or as far as doubles know logits, compared with the
    class it ends in."""
    objective = PromptObjective(problem, loss or LogisticLoss())
    norm = min(norm, LARGEST_NORM * ReducedObjective.of(objective, in_units=True).unit)
    path = flow(objective, start=start, until_norm=norm, settings=SETTINGS)
    chosen = selected_in_the_limit(problem, path.prompt)
    solution = class_margin(problem, chosen)
    if path.stop != "norm" or not solution.is_optimal:
        return FollowedFlow(path, chosen, solution, np.inf, np.inf)
    began = float(problem.keys.norm(start))
    before = path.at_norm(norm / 10) if began < norm / 10 else start
    late, early = (float(angle(problem.keys, p, solution.vector)) for p in (path.prompt, before))
    return FollowedFlow(path, chosen, solution, late, early)


def has_solution(name: str, solution: MarginSolution) -> Slack:
    """That a max-margin problem has a solution: refuted where it is proven to have none, open where neither is."""
    slack = true(name, solution.is_optimal)
    return searched(slack, "a margin that doubles tell from zero") if solution.status == "inaccurate" else slack


def falls_to_zero(name: str, angles: tuple[float, float], *, norm: float, most: float = 1e-2) -> tuple[Slack, Slack]:
    """An angle that goes to zero: small at `norm`, and falling like a power of the norm over the decade before.

    A limit is seen, not proven, by a path of finite length: broken, these leave a claim undecided.

    - `angles`: at a tenth of the norm, and at the norm. Where the last is below 1e-7 (what a path resolves) the power
      counts as 1.
    - `most`: what counts as small.
    """
    earlier, late = angles
    exponent = float(np.log10(late / earlier)) if late > 1e-7 and earlier > 0 else -1.0
    farther = "following the path to larger norms"
    return (
        seen(below(f"angle to {name} at norm {norm:.4g}", late, most), farther),
        seen(below("its exponent in the norm, last decade", exponent, -0.8), farther),
    )


def binomial_interval(events: int, draws: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Clopper and Pearson's interval for a probability: exact, so never narrower than the confidence asks.

    >>> low, high = binomial_interval(0, 59)
    >>> low, round(high, 4)
    (0.0, 0.0606)
    """
    if not 0 <= events <= draws or draws < 1:
        raise ValueError(f"events: between 0 and the number of draws, which is at least 1; got {events} of {draws}")
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, events, draws - events + 1)) if events > 0 else 0.0
    high = float(beta.isf(tail, events + 1, draws - events)) if events < draws else 1.0
    return low, high


def enough_draws(delta: float) -> int:
    """The fewest draws without an event that show `P(event) <= delta`: `(1 - delta)^draws` is at most the tail.

    >>> enough_draws(0.05), enough_draws(0.25)
    (72, 13)
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta: a probability between 0 and 1, got {delta:g}")
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log1p(-delta))


def rare_event(name: str, events: int, draws: int, delta: float) -> Slack:
    """`P(event) <= delta`, from independent draws.

    Met when the whole interval lies below delta, which takes about 3.7/delta draws without the event; refuted when an
    interval of the confidence `REFUTING` lies above it; open in between, as it is for fewer draws than 1/delta.
    """
    low, high = binomial_interval(events, draws)
    sure, _ = binomial_interval(events, draws, REFUTING)
    shown = f"{name}, {events} of {draws} draws: probability {low:.2g} to {high:.2g}"
    decide = f"more draws: {draws} leave the probability between {low:.2g} and {high:.2g}"
    return replace(below(shown, high, delta), conclusive="if broken" if sure > delta else "never", decide=decide)
