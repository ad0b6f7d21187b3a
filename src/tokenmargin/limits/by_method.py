"""Where training goes that is not gradient flow under softmax: by another method, or under another attention map.

A method is judged by its own norm: how much of that norm's largest margin it has reached. Under sparsemax and entmax a
token ahead by the map's margin has all the weight, and its input stops pulling: training comes to rest at a finite p,
which meets the constraints of the max-margin problem of its selection (the shortest p that does is its solution). Under
sigmoid attention p diverges, and separates the tokens that help from those that do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Tabular
from tokenmargin.dynamics import AbstractMethod, Trajectory, evolve
from tokenmargin.margin import Constraints, Kind, LimitDirection, MarginSolution, limit_direction, solve
from tokenmargin.margin.leading_risk import least_known
from tokenmargin.norms import L2, AbstractNorm
from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.attention_maps import MapObjective
from tokenmargin.objective.products import ProductObjective
from tokenmargin.objective.shared_pulls import SATURATED
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import NEIGHBOUR_TOLERANCE, lead_over, leads, select, selection_text, tokens_of_equal_score

FIRST_LOOK = 250  # steps before the margin is first looked at; then at every doubling
SHARE = 0.02  # a margin that falls short of the largest by this share at most is called settled


class NamedLimit:
    """What every limit says of the direction it is named by."""

    named: LimitDirection

    @property
    def chosen(self) -> Bool[Array, "n T"]:
        """All selected tokens: several in an input where they are copies, or tie in score and in logit."""
        return self.named.chosen

    @property
    def solution(self) -> MarginSolution:
        """The max-margin problem of the selection, in the norm of the method, solved with its certificate."""
        return self.named.solution

    @property
    def kind(self) -> Kind:
        """What that direction is: GMM, LMM, not locally optimal, or why there is none."""
        return self.named.kind


@dataclass(frozen=True, eq=False)
class MethodLimit(NamedLimit, Tabular):
    """Where a run of a method goes.

    **Attributes**
    - `outcome`: "direction" when softmax is saturated and the margin has come within `tolerance` of the largest of the
      tokens it selects, in the method's norm; else "undecided".
    - `reason`: why it is undecided.
    - `named`: the direction of largest margin in that norm, certified, and what it is.
    - `steps`, `norms`, `shares`: at every look, the steps taken, the norm of p in the method's own norm, and its margin
      as a share of the certified largest one.
    - `path`: the last piece of the run; `evolve(..., start=path.final, memory=path.memory)` goes on.
    """

    outcome: Literal["direction", "undecided"]
    reason: str
    named: LimitDirection
    steps: Int[Array, " looks"]
    norms: Float[Array, " looks"]
    shares: Float[Array, " looks"]
    path: Trajectory

    @property
    def norm(self) -> AbstractNorm:
        """The norm by whose margin the limit is named."""
        return self.named.solution.norm

    @property
    def selected(self) -> Int[Array, " n"]:
        """The selected token of each input; of a set, the first."""
        return self.named.selected

    @property
    def share(self) -> float:
        """The margin that was reached, as a share of the largest."""
        return float(self.shares[-1])

    @property
    def point(self) -> Float[Array, " D"]:
        """The end of the run."""
        return self.path.final

    def __repr__(self) -> str:
        words = self.kind if self.outcome == "direction" else self.reason
        return (
            f"MethodLimit({self.outcome}: {words}, {self.share:.4f} of the largest {self.norm.name} margin "
            f"at norm {self.norms[-1]:.3g} after {self.steps[-1]} steps, tokens={selection_text(self.chosen)})"
        )

    def _columns(self) -> dict[str, Array]:
        """A row a look."""
        return {"step": self.steps, "norm": self.norms, "share": self.shares}


def size_in(norm: AbstractNorm, problem: TokenProblem, p: Float[Array, "... D"]) -> Float[Array, "..."]:
    """The size of a parameter in a norm, in either geometry for the Euclidean one."""
    return problem.keys.norm(p) if norm == L2 else norm.of_shape(problem.keys.matrix_shape).value(p)


def margin_share(problem: TokenProblem, p: Float[Array, " D"], named: LimitDirection) -> float:
    """The margin of `p / |p|` over the largest, in the norm in which `named` was solved; NaN where there is none."""
    solution = named.solution
    size = float(size_in(solution.norm, problem, p))
    if not (solution.is_optimal and np.isfinite(solution.margin) and size > 0):
        return np.nan
    logits = problem.keys.logits(p)
    others = problem.mask & ~named.chosen & ~tokens_of_equal_score(problem, named.selected)
    return float(lead_over(logits, named.selected)[others].min()) / size / solution.margin


def limit_by_method(
    objective: AbstractObjective,
    method: AbstractMethod | str,
    start: Float[Array, " D"] | None,
    *,
    steps: int,
    tolerance: float = SHARE,
    progress: Callable[[float], None] | None = None,
) -> MethodLimit:
    """Run the method until its margin is within `tolerance` of the largest, or it has taken `steps` steps."""
    path = evolve(objective, method, steps=0, start=start)
    norm = _margin_norm(objective, path.method)
    looks: list[tuple[int, float, float]] = []
    named = _direction_of_end(objective, path, norm)
    while not looks or (looks[-1][0] < steps and not path.interrupted):
        more = min(max(path.memory.t, FIRST_LOOK), steps - path.memory.t)
        path = evolve(objective, path.method, steps=more, start=path.final, memory=path.memory)
        if (path.selected != named.selected).any():
            named = _direction_of_end(objective, path, norm)
        share = margin_share(objective.problem, path.prompt, named)
        looks.append((path.memory.t, float(size_in(norm, objective.problem, path.prompt)), share))
        if progress is not None:
            progress(looks[-1][1])
        if share >= 1 - tolerance and path.saturation >= SATURATED:
            break
    taken, norms, shares = (np.array(column) for column in zip(*looks, strict=True))
    reason = _why_unsettled(path, named, shares, tolerance)
    return MethodLimit("undecided" if reason else "direction", reason, named, taken, norms, shares, path)


def _margin_norm(objective: AbstractObjective, method: AbstractMethod) -> AbstractNorm:
    """The method's own; of two factors that of their product, which `(|K|^2 + |Q|^2) / 2` is at its least."""
    if not isinstance(objective, ProductObjective):
        return method.margin_norm
    if method.margin_norm != L2:
        raise ValueError(
            f"which margin of W {method} maximises through K and Q is not known; use a method along the gradient "
            "(ngd, gd, momentum), or train W itself: PromptObjective(problem)"
        )
    return objective.margin_norm


def _direction_of_end(objective: AbstractObjective, path: Trajectory, norm: AbstractNorm) -> LimitDirection:
    problem = objective.local_problem(path.final)
    return limit_direction(problem, path.selected, loss=objective.loss, norm=norm)


def _why_unsettled(path: Trajectory, named: LimitDirection, shares: Float[Array, " looks"], tolerance: float) -> str:
    """Why nothing is settled; empty where it is."""
    if path.interrupted:
        return "interrupted"
    if path.saturation < SATURATED:
        return f"tokens of different scores still share the weight (mean {float(path.saturation):.6f} selected)"
    if not named.solution.is_optimal:
        return f"the selection is {named.solution.status}"
    if shares[-1] >= 1 - tolerance:
        return ""
    rising = len(shares) > 1 and shares[-1] > shares[-2]
    more = "it rises: take more steps" if rising else "it does not rise: take shorter steps"
    return f"the margin is {shares[-1]:.4f} of the largest, and {more}"


class ExactWeights(NamedTuple):
    """How far ahead the selected tokens are where the weights are exact, how far they must be, and the least such |p|.

    `shortest_norm` is None where the max-margin direction of the selection is not certified.
    """

    ahead: float
    needed: float
    shortest_norm: float | None

    def at(self, norm: float) -> str:
        """The same as a sentence, for a p of this norm."""
        reason = f"the weights are exact at |p|={norm:.6g}: ahead by {self.ahead:.6g}, {self.needed:g} needed"
        return reason if self.shortest_norm is None else f"{reason}, which |p|={self.shortest_norm:.6g} can do"


def exact_weights(objective: MapObjective, p: Float[Array, " D"], solution: MarginSolution) -> ExactWeights:
    """What is known of a point whose selected tokens have all the weight; `solution` is that of their problem."""
    keys, needed = objective.problem.keys, objective.attention.margin
    shortest = needed / solution.margin if solution.is_optimal else None
    return ExactWeights(float(leads(keys, p, select(keys, p)).min()), needed, shortest)


def separating_direction(objective: MapObjective, p: Float[Array, " D"]) -> LimitDirection:
    """The shortest p with `<k_it, p> >= 1` for the tokens that are attended to at `p`, and `<= -1` for the others.

    Tokens of score zero or of key zero do not pull, and have no constraint. It is a limit ("LMM") when every token at
    distance exactly 1 stands on the side to which its score pulls it, and the best one ("GMM") when all tokens do. One
    that does not makes training leave where no other moves its coordinate; else the others may outweigh it.
    """
    problem = objective.problem
    attended = problem.keys.logits(p) > 0
    asked: Bool[Array, "n T"] = problem.mask & (problem.scores != 0) & (problem.keys.token_norms > 0)
    inputs, positions = np.nonzero(asked)
    side = np.where(attended, 1.0, -1.0)
    constraints = Constraints(
        problem.keys, problem.keys.index[inputs, positions], None, np.ones(len(inputs)),
        np.stack([inputs, positions], axis=1), sign=side[asked],
    )  # fmt: skip
    solution = solve(constraints)
    chosen = attended & problem.mask
    if not solution.is_optimal:
        return LimitDirection.without_direction(chosen.argmax(axis=1), chosen, solution)
    right = side * problem.scores > 0
    near = asked & (side * np.where(asked, problem.keys.logits(solution.vector), 0.0) <= 1 + NEIGHBOUR_TOLERANCE)
    kind: Kind = "GMM" if right[asked].all() else "LMM"
    if not right[near].all():
        rows = constraints.only(near[asked]).systems().rows[0]  # scaled to length 1
        sizes = np.linalg.svd(rows, compute_uv=False)
        independent = len(rows) == len(sizes) and sizes[-1] > least_known(problem.keys) * sizes[0]
        kind = "not locally optimal" if independent else "undecided"
    return LimitDirection(chosen.argmax(axis=1), chosen, solution, near, np.full(problem.n, np.nan), kind)
