"""The joint ridge path: head and prompt minimising the risk together over `|v| <= r` and `|p| <= R` (Theorems 5 and 6).

The two blocks are minimised in turn, each on its own sphere: the head by the logarithm of the risk, which is convex in
it, and the prompt by the logarithm of the excess risk of the scores that the head gives, which resolves its direction
when its effect on the risk itself is below rounding. Where both are stationary, the pair is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.special import logsumexp

from tokenmargin._notebook import Tabular
from tokenmargin._statistics import Rng, generator
from tokenmargin.dynamics.paths.ball import RATIO, prompt_landscape
from tokenmargin.dynamics.paths.newton import SecondOrderFunction, Sphere, minimise
from tokenmargin.dynamics.span import ReducedObjective
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.plugins import kind_in_words
from tokenmargin.problem.abstract_geometry import as_array
from tokenmargin.problem.geometry import in_coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import attention_weights, select

_ROUNDS = 60


@dataclass(frozen=True, eq=False)
class RidgePath(Tabular):
    """The joint minimisers found along growing radii.

    - `radii`: pairs (r, R), shape (k, 2).
    - `heads`, `prompts`: the minimisers, of lengths r and R.
    - `log_risk`: logarithm of the risk there.
    - `residuals`: departure from stationarity of head and prompt, shape (k, 2).
    """

    objective: JointObjective
    radii: Float[Array, "k 2"]
    heads: Float[Array, "k D_head"]
    prompts: Float[Array, "k D_keys"]
    log_risk: Float[Array, " k"]
    residuals: Float[Array, "k 2"]

    def __repr__(self) -> str:
        return f"RidgePath({len(self.radii)} radii to {self.radii[-1].tolist()}, log risk {self.log_risk[-1]:.4g})"

    def _columns(self) -> dict[str, Array]:
        return {
            "head_radius": self.radii[:, 0], "prompt_radius": self.radii[:, 1], "log_risk": self.log_risk,
            "head_residual": self.residuals[:, 0], "prompt_residual": self.residuals[:, 1],
        }  # fmt: skip

    @property
    def selected(self) -> Int[Array, " n"]:
        """The tokens selected at the largest radii."""
        return select(self.objective.problem.keys, self.prompts[-1])


def ridge_path(
    objective: JointObjective,
    radii: Sequence[tuple[float, float]],
    *,
    rng: Rng,
    starts: int = 8,
    also: Float[Array, "k D"] | None = None,
) -> RidgePath:
    """`argmin over |v| <= r, |p| <= R` of the risk for each pair (r, R), with a positive loss.

    The starts at the first pair are continued through all of them; the path returned is the one of lowest risk at
    the last pair. The minimiser lies on both spheres whenever more norm lowers the risk, as it does in the theorems.

    **Arguments**
    - `objective`: head and prompt together, with a positive loss.
    - `radii`: pairs (r, R), both growing.
    - `rng`, `starts`: the random starts.
    - `also`: parameters (v, p) to start from as well.
    """
    if not isinstance(objective, JointObjective):
        raise TypeError(f"ridge_path takes a JointObjective(problem, loss); got {kind_in_words(objective)}")
    rng = generator(rng)
    pairs = as_array("radii", radii, float)
    if starts < 0 or (starts == 0 and (also is None or not len(also))):
        raise ValueError(f"starts must be at least 1, or 0 with others given, got {starts}")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not len(pairs):
        raise ValueError(f"radii must be pairs (r, R), got shape {pairs.shape}")
    if not np.isfinite(pairs).all() or (pairs[0] <= 0).any() or (np.diff(pairs, axis=0) < 0).any():
        raise ValueError(f"radii must be pairs (r, R) of positive numbers that do not shrink, got {radii!r}")
    reduced = ReducedObjective.of(objective)
    inner = reduced.objective
    assert isinstance(inner, JointObjective), "a reduced objective is of its own kind"
    given = [] if also is None else list(reduced.reduce(also))
    begin = [*given, *rng.standard_normal((starts, inner.dimension))]
    found = [_continue_minimum(inner, pairs, start) for start in begin]
    points, log_risk, residuals = min(found, key=lambda path: float(path[1][-1]))
    lifted = objective.split(reduced.lift(points))
    return RidgePath(objective, pairs, lifted["head"], lifted["prompt"], log_risk, residuals)


def _continue_minimum(
    objective: JointObjective, pairs: Float[Array, "k 2"], start: Float[Array, " r"]
) -> tuple[Float[Array, "k r"], Float[Array, " k"], Float[Array, "k 2"]]:
    """One local minimum, continued through the radii in steps of at most a factor of two."""
    parts = objective.split(start)
    v, p = parts["head"], parts["prompt"]
    points, risks, residuals, before = [], [], [], pairs[0]
    for pair in pairs:
        steps = max(int(np.ceil(np.log(np.max(pair / before)) / np.log(RATIO))), 1)
        for share in np.arange(1, steps + 1) / steps:
            v, p, risk, residual = _minimise_by_turns(objective, v, p, before * (pair / before) ** share)
        points.append(np.concatenate([v, p]))
        risks.append(risk)
        residuals.append(residual)
        before = pair
    return np.stack(points), np.array(risks), np.array(residuals)


def _minimise_by_turns(
    objective: JointObjective, v: Float[Array, " a"], p: Float[Array, " b"], pair: Float[Array, " 2"]
) -> tuple[Float[Array, " a"], Float[Array, " b"], float, tuple[float, float]]:
    """Minimise in the head and in the prompt by turns, until the direction of neither moves."""
    problem = objective.problem
    risk, residual = np.inf, (np.inf, np.inf)
    for _ in range(_ROUNDS):
        head = minimise(head_landscape(problem, objective.loss, p), v, sphere=Sphere(float(pair[0])))
        moved = np.linalg.norm(head.point - v)
        v, risk = head.point, head.value
        given = TokenProblem(problem.keys, problem.labels, problem.values, head=v)
        prompt = minimise(prompt_landscape(PromptObjective(given, objective.loss)), p, sphere=Sphere(float(pair[1])))
        moved = max(moved / pair[0], np.linalg.norm(prompt.point - p) / pair[1])
        p, residual = prompt.point, (head.residual, prompt.residual)
        if moved < 1e-12:
            break
    return v, p, risk, residual


def head_landscape(problem: TokenProblem, loss: AbstractLoss, p: Float[Array, " b"]) -> SecondOrderFunction:
    """Logarithm of the risk as a function of the head, at the features that `p` attends to."""
    weights = attention_weights(problem.keys, p)
    values = in_coordinates(problem.values)
    features = problem.labels[:, None] * np.einsum("nt,ntd->nd", weights, values)

    def landscape(v: Float[Array, " a"]) -> tuple[float, Array, Array]:
        u = features @ v
        value = float(logsumexp(loss.log_value(u)) - np.log(len(u)))
        share = np.exp(loss.log_slope(u) - np.log(len(u)) - value)  # -loss' / (n risk)
        gradient = -share @ features
        bend = -share * loss.log_slope_derivative(u)
        return value, gradient, np.einsum("n,nd,ne->de", bend, features, features) - np.outer(gradient, gradient)

    return landscape
