"""limit_of: where gradient flow goes, named and proven: a certified direction, a stationary point, or neither yet.

This is where the dynamics meet the max-margin problems; the two rooms themselves do not know each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, overload

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Drawable, Tabular, select_columns
from tokenmargin.dynamics import AbstractMethod, FinitePart, FlowPath, FlowSettings, flow
from tokenmargin.limits.by_method import (
    SHARE,
    MethodLimit,
    NamedLimit,
    exact_weights,
    limit_by_method,
    separating_direction,
)
from tokenmargin.margin import LimitDirection, MarginSolution, limit_direction, tie_of_equals, tied_direction
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.attention_maps import MapObjective
from tokenmargin.objective.factored import MultiHeadObjective
from tokenmargin.objective.local_scores import AbstractLocalObjective, prompt_objective
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.objective.products import ProductObjective
from tokenmargin.objective.shared_pulls import SATURATED
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, copies_of, selection_text, tokens_of_equal_score

Outcome = Literal["direction", "bounded", "saturated", "finite part", "rounding", "undecided"]

Followed: TypeAlias = PromptObjective | AbstractLocalObjective | MapObjective | MultiHeadObjective
"""Objectives of p alone, or of the prompts of several heads, which are one side by side."""

TOLERANCE = 1e-6
"""Largest angle, in radians, between the end of a path and a direction that is called its limit."""
FALLING = 1e-4, 1e-6
"""Distances from a finite part between which its rate is fitted: nearer ones are in the solver's error."""
ROUNDING = 1e-13  # angles and shares below it are rounding, and have no rate
_FITTED = 3.0  # decades of the norm over which the rate is fitted


@dataclass(frozen=True, eq=False)
class Limit(NamedLimit, Tabular, Drawable):
    """Where a path of gradient flow goes.

    **Attributes**
    - `outcome`: "direction" when the path diverges along a certified direction; "bounded" when it ends at a stationary
      point; "saturated" when it rests at a finite p at which every input has exactly one weight (sparsemax, entmax);
      "finite part" when it diverges along a direction while tied tokens of different scores keep their weights
      (`path.finite_part`); "rounding" when the path left an unstable one (an axis of symmetry, say) only where rounding
      had grown to order one, so that what is named is one of several limits; "undecided" when nothing was settled.
    - `reason`: why it is undecided, where rounding decides, or which tokens keep their weights; empty where the outcome
      needs no explanation.
    - `named`: the direction of the tokens of largest weight at the end: solved with its certificate, and what it is.
    - `angle`: between the end of the path and that direction, in radians; NaN without one.
    - `rate`: fitted exponent of the angle as a power of the norm over the last three decades; NaN where the angle is
      rounding or the path too short.
    - `log_gradient`: logarithm of the gradient norm at the end: the evidence for a stationary point.
    - `path`: the flow itself.
    """

    outcome: Outcome
    reason: str
    named: LimitDirection
    angle: float
    rate: float
    log_gradient: float
    path: FlowPath

    @property
    def selected(self) -> Int[Array, " n"]:
        """The selected token of each input; of a set, the first."""
        return self.named.selected

    @property
    def finite(self) -> FinitePart | None:
        """The part of the limit that stays beside its direction, with its certificate; None where all of p diverges."""
        return self.path.finite_part

    @cached_property
    def finite_rate(self) -> float:
        """Fitted exponent of the distance to the finite part as a power of time, where that distance falls from 1e-4 to
        1e-6; NaN without a finite part, or where it does not. It tends to -1: the distance falls like the weights of
        the others, `exp(-|p| margin)`, and |p| grows like the logarithm of time over the margin."""
        if self.finite is None:
            return np.nan
        path = self.path
        off = self.finite.distance_to_rest(path(path.arcs))
        begin, end = (
            np.flatnonzero(off > FALLING[0]).max(initial=-1) + 1,
            np.flatnonzero(off > FALLING[1]).max(initial=-1),
        )
        if not 0 < begin <= end:
            return np.nan
        arcs = np.linspace(path.arcs[begin - 1], path.arcs[end], 17)[1:]
        off = self.finite.distance_to_rest(path(arcs))
        kept = (off < FALLING[0]) & (off > FALLING[1])
        return float(np.polyfit(path.log_time_at(arcs)[kept], np.log(off[kept]), 1)[0]) if kept.sum() > 2 else np.nan

    @property
    def point(self) -> Float[Array, " D"]:
        """The end of the path: the stationary point, when it is bounded."""
        return self.path.final

    def _columns(self) -> dict[str, Array]:
        return select_columns(
            outcome=self.outcome, kind=self.kind, tokens=selection_text(self.chosen), margin=self.solution.margin,
            angle=self.angle, rate=self.rate, norm=self.path.norm, residual=self.solution.certificate.residual,
        )  # fmt: skip

    def __repr__(self) -> str:
        match self.outcome:
            case "direction":
                detail = f"{self.kind}, angle={self.angle:.1e} at |p|={self.path.norm:.3g}, rate={self.rate:.3f}"
            case "bounded":
                detail = f"|p|={self.path.norm:.6g}, |gradient|=exp({self.log_gradient:.3g})"
            case "saturated":
                detail = f"{self.reason}, angle={self.angle:.1e}"
            case "finite part":
                part = f"gradient balance {self.finite.balance:.1e}" if self.finite is not None else ""
                detail = f"{self.reason} ({part}), angle={self.angle:.1e} at |p|={self.path.norm:.3g}"
            case _:
                detail = f"{self.reason}, at |p|={self.path.norm:.3g}, angle={self.angle:.1e}"
        return f"Limit({self.outcome}: {detail}, tokens={selection_text(self.chosen)})"


@overload
def limit_of(
    problem: TokenProblem | Followed,
    start: Float[Array, " D"] | None = None,
    *,
    method: None = None,
    loss: AbstractLoss | None = None,
    until_norm: float | None = None,
    tolerance: float | None = None,
    settings: FlowSettings | None = None,
    progress: Callable[[float], None] | None = None,
) -> Limit: ...


@overload
def limit_of(
    problem: TokenProblem | Followed | ProductObjective,
    start: Float[Array, " D"] | None = None,
    *,
    method: AbstractMethod | str,
    steps: int = 100_000,
    loss: AbstractLoss | None = None,
    tolerance: float | None = None,
    progress: Callable[[float], None] | None = None,
) -> MethodLimit: ...


def limit_of(
    problem: TokenProblem | Followed | ProductObjective,
    start: Float[Array, " D"] | None = None,
    *,
    method: AbstractMethod | str | None = None,
    steps: int = 100_000,
    loss: AbstractLoss | None = None,
    until_norm: float | None = None,
    tolerance: float | None = None,
    settings: FlowSettings | None = None,
    progress: Callable[[float], None] | None = None,
) -> Limit | MethodLimit:
    """Follow gradient flow from `start` and name its limit.

    The direction is settled when, at the norm `until_norm`, softmax is saturated (mean selected weight at least
    1 - 1e-5, where tokens of equal score count together), the max-margin problem of the selected tokens is solved with
    a certificate, and the angle to its solution is at most `tolerance`; or that of the path's last decade alone, where
    what lies across the direction has settled at a length that is long beside `tolerance * until_norm`. A stationary
    point is settled when Newton's method has found it and the gradient there is zero to rounding. A finite part is
    settled when besides the direction that keeps the ties, followed by itself, is within `tolerance` of its
    certificate. Anything else is "undecided", with the reason and what was reached.

    With a `method` that method is run instead, and its limit is named by its own norm: settled when its margin has come
    within `tolerance` of the largest margin of the selected tokens in that norm; that of K and Q by the nuclear one.

    **Arguments**
    - `problem`: in either geometry, with labels of any kind; or an objective of p, of several heads, or (with a method
      along the gradient) of K and Q.
    - `start`: where the flow begins; zero by default.
    - `loss`: logistic by default, square for real labels; not beside an objective, which has its own.
    - `method`, `steps`: a method of descent, or its name, and the most steps it may take.
    - `until_norm`: how far to follow a diverging path; as `flow` does by default.
    - `tolerance`: largest angle called settled, 1e-6; of a method, what may be missing of the margin, 0.02.
    - `settings`: of the flow.
    - `progress`: called with the norm.

    >>> from tokenmargin.problem.instances import figure1b
    >>> limit = limit_of(figure1b(), np.array([0.0, -1.5, 0.0]))
    >>> limit.outcome, limit.kind, limit.selected, round(limit.rate, 2)
    ('direction', 'LMM', array([1]), -1.0)
    >>> limit_of(figure1b(), method="sign").norm.name
    'linf'
    """
    short = SHARE if tolerance is None else tolerance
    if isinstance(problem, ProductObjective) and method is not None and loss is None:
        return limit_by_method(problem, method, start, steps=steps, tolerance=short, progress=progress)
    objective, problem = _objective_and_problem(problem, loss)
    if method is not None:
        return limit_by_method(objective, method, start, steps=steps, tolerance=short, progress=progress)
    tolerance = TOLERANCE if tolerance is None else tolerance
    path = flow(objective, start=start, until_norm=until_norm, settings=settings, progress=progress)
    if path.finite_part is not None:
        return _limit_beside_finite_part(path, path.finite_part, tolerance)
    if isinstance(objective, MapObjective) and not objective.attention.shares:
        named = separating_direction(objective, path.prompt)
        off = _angle_to(path, named)
        outcome, reason = _outcome_of_path(path, named, off, tolerance, shares=False)
        return Limit(outcome, reason, named, off, np.nan, path.log_gradient, path)
    if isinstance(objective, MapObjective) and path.stop == "saturated":
        named = limit_direction(problem, path.selected, loss=objective.loss)
        reason = exact_weights(objective, path.prompt, named.solution).at(float(problem.keys.norm(path.prompt)))
        return Limit("saturated", reason, named, _angle_to(path, named), np.nan, path.log_gradient, path)
    named = direction_of_flow(path, tolerance)
    off = _angle_to(path, named)
    outcome, reason = _outcome_of_path(path, named, off, tolerance)
    if path.stop == "norm" and not off <= tolerance and _angle_of_last_decade(path, named) <= tolerance:
        outcome, reason = _outcome_of_path(path, named, 0.0, tolerance)
        reason = (
            reason or f"what lies across it has settled at {path.norm * np.sin(off):.3g}, and the angle falls as 1/|p|"
        )
    rate = _angle_rate(path, named.solution) if outcome == "direction" else np.nan
    return Limit(outcome, reason, named, off, rate, path.log_gradient, path)


def direction_of_flow(path: FlowPath, tolerance: float = TOLERANCE) -> LimitDirection:
    """The direction that a path of gradient flow is compared with: that of the ties it keeps beside a finite part, of
    equals that stay level within an angle of `tolerance`, or of the tokens of largest weight at its end."""
    problem, loss = path.objective.local_problem(path.final), path.objective.loss
    if path.finite_part is not None:
        return tied_direction(problem, path.finite_part.tied, scored=path.objective.constant_scores is not None)
    named = limit_direction(problem, path.selected, loss=loss)
    near = _angle_to(path, named) <= tolerance
    if path.stop == "norm" and not (near and named.is_limit):
        tied = _level_equals(problem, path, tolerance)
        if tied is not None:
            # A choice among equals may have the very direction of their tie, and not be a limit where the tie is one.
            tie, verdict = tie_of_equals(problem, tied, loss)
            if _angle_to(path, tie) <= tolerance and (verdict != "not held" or not near):
                return tie
    return named


def _angle_to(path: FlowPath, named: LimitDirection) -> float:
    """The angle between the end of a path and a direction; NaN where there is none."""
    if not (named.solution.is_optimal and path.norm > 0 and np.isfinite(named.solution.margin)):
        return np.nan
    return float(angle(path.objective.problem.keys, path.prompt, named.solution.vector))


def _angle_of_last_decade(path: FlowPath, named: LimitDirection) -> float:
    """The angle between a direction and the last decade of a path; NaN where there is none, or the path began there."""
    begun = float(np.linalg.norm(path.objective.norms(path(0.0))))
    if np.isnan(_angle_to(path, named)) or path.norm <= 10.0 * begun:
        return np.nan
    step = path.prompt - path.at_norm(path.norm / 10.0)
    return float(angle(path.objective.problem.keys, step, named.solution.vector))


def _level_equals(problem: TokenProblem, path: FlowPath, tolerance: float) -> Bool[Array, "n T"] | None:
    """Equals of the selected tokens that are level with them up to an angle of `tolerance`; None without any."""
    logits = problem.keys.logits(path.prompt)
    visible = logits[problem.mask]
    behind = logits.max(axis=1, keepdims=True) - logits
    # The longest difference of two keys is at least the largest difference of logits over |p|.
    tied = tokens_of_equal_score(problem, path.selected) & (behind <= tolerance * np.ptp(visible))
    tied |= copies_of(problem, path.selected)
    return tied if (tied & ~copies_of(problem, path.selected)).any() else None


def _objective_and_problem(
    given: TokenProblem | Followed | ProductObjective, loss: AbstractLoss | None
) -> tuple[Followed, TokenProblem]:
    """The objective to follow, in which copies of a key have one score, and the problem that was given."""
    if isinstance(given, TokenProblem):
        return prompt_objective(given.merged, loss), given
    if loss is not None:
        raise ValueError(f"{type(given).__name__} has its own loss; give loss= beside a problem only")
    if isinstance(given, ProductObjective):
        raise TypeError(
            f"the limit of K and Q is named by the {given.margin_norm.name} margin that steps reach: give "
            "limit_of(objective, start, method='ngd'), or compare the end of flow(objective) with "
            f"max_margin(..., norm='{given.margin_norm.name}')"
        )
    if not isinstance(given, Followed):
        raise TypeError(f"limit_of follows p alone; give a problem or an objective of p, got {type(given).__name__}")
    return given.merged, given.problem  # type: ignore[return-value]


def _outcome_of_path(
    path: FlowPath, named: LimitDirection, off: float, tolerance: float, *, shares: bool = True
) -> tuple[Outcome, str]:
    """The outcome of a path that was compared with a direction, and the reason where it needs one."""
    if path.decided_by_rounding:
        return "rounding", _where_rounding_decides(path)
    if path.stop == "stationary":
        return "bounded", ""
    # A path that stalls has its direction all the same if it is within the tolerance of it.
    if path.stop != "norm" and not (path.stop == "stalled" and off <= tolerance):
        return "undecided", path.unfinished or f"stopped by {path.stop}"
    if shares and path.saturation < SATURATED:
        return "undecided", f"tokens of different scores still share the weight (mean {path.saturation:.6f} selected)"
    if not named.solution.is_optimal:
        return "undecided", f"the selection is {named.solution.status}"
    if not off <= tolerance:
        return "undecided", f"the angle is above {tolerance:g}{_what_hides_angles(path, named, off)}"
    if named.kind in ("balanced", "undecided"):
        return "direction", "whether other starts near it go there too is not decided"
    if not named.is_limit:  # far beside it what makes a path leave weighs exp(-distance), and takes exp(distance) to
        return "undecided", "it keeps to a direction that is not locally optimal so far, and may leave it farther out"
    return "direction", path.unfinished


def _what_hides_angles(path: FlowPath, named: LimitDirection, off: float) -> str:
    """Whether the inner products by which the keys are known could tell so small an angle from zero at all."""
    keys = path.objective.problem.keys
    if isinstance(keys, Coordinates) or keys.frame is not None:
        return ""
    ends = path.prompt, named.solution.vector
    known_to = keys.noise * sum(float(np.abs(end) @ keys.vector_norms / keys.norm(end)) for end in ends)
    return f", but inner products tell it to {known_to:.0e} at best" if off <= known_to else ""


def _where_rounding_decides(path: FlowPath) -> str:
    if not path.rounding.decided:
        return "it rests at a stationary point that is no minimum: starts beside it go elsewhere"
    return f"the path is unstable, and rounding has grown to order one at |p| = {path.rounding.norm:.3g}"


def _limit_beside_finite_part(path: FlowPath, part: FinitePart, tolerance: float) -> Limit:
    """The limit `R q + w`: the direction of the path is compared with the certified one that keeps the ties."""
    named = direction_of_flow(path)
    off = _angle_to(path, named)
    held = f"{part.size} tied tokens keep their weights"
    if path.decided_by_rounding:
        outcome: Outcome = "rounding"
        held = f"{held}; beside them, {_where_rounding_decides(path)}"
    elif np.isnan(part.curvature):
        outcome = "undecided"
        held = (
            f"{part.size} tied tokens do not pull at one another: smaller terms decide what they settle at, if at all"
        )
    elif not part.curvature > 0:
        outcome, held = "rounding", f"{held} at a point that is no minimum: starts beside it go elsewhere"
    # Short keys have a long finite part, which still turns p where its last decade has nothing of it.
    elif off <= tolerance or (path.stop == "norm" and _angle_of_last_decade(path, named) <= tolerance):
        outcome = "finite part"
    else:
        outcome = "undecided"
        held = (
            f"{part.size} tied tokens were followed as if they kept their weights, and the direction beside them is "
            f"not settled (stopped by {path.stop} at |p| = {path.norm:.3g})"
        )
    rate = _angle_rate(path, named.solution) if outcome == "finite part" else np.nan
    return Limit(outcome, held, named, off, rate, path.log_gradient, path)


def _angle_rate(path: FlowPath, solution: MarginSolution) -> float:
    """Slope of log angle against log norm over the last decades, where the angle is more than rounding."""
    keys = path.objective.problem.keys
    begun = float(np.linalg.norm(path.objective.norms(path(0.0))))
    first = np.log10(max(begun, path.unit)) + 0.5
    decades = np.linspace(max(np.log10(path.norm) - _FITTED, first), np.log10(path.norm) - 1e-9, 7)
    if decades[0] >= decades[-1]:
        return np.nan
    angles = np.array([float(angle(keys, path.at_norm(norm), solution.vector)) for norm in 10**decades])
    return float(np.polyfit(decades, np.log10(angles), 1)[0]) if (angles > ROUNDING).all() else np.nan
