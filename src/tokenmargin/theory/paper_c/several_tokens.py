"""A nonlinear head that is best served by a mixture of tokens: `W = W_fin + R W_mm`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from scipy.optimize import LinearConstraint, minimize

from tokenmargin.dynamics.paths.ball import log_landscape
from tokenmargin.dynamics.paths.newton import Sphere, minimise
from tokenmargin.margin import class_margin
from tokenmargin.objective.local_scores import HeadObjective, NonlinearHead
from tokenmargin.problem.attention_problems import cross_attention
from tokenmargin.problem.geometry import in_coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, attention_weights
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, sampled, seen
from tokenmargin.theory.evidence import has_solution
from tokenmargin.theory.paper_b.assumptions import assumption_a
from tokenmargin.theory.paper_c.matrix_limits import matrix_keys
from tokenmargin.theory.settings import ProblemInstance

FARTHER = "following the path to larger norms: at these the risk is its infimum up to rounding"
KEPT = 1e-6  # weights of the best mixture below this are zero
REACH = (6.0, 18.0)  # |W| over that of the solution: weights of the others fall to exp(-18)


@dataclass(frozen=True, eq=False)
class Mixture:
    """The weights that are best for every input, whatever W can do.

    - `weights`: s_i*; `kept`: where they are positive, the sets O_i.
    - `residual`: how far the derivatives of the output in the kept weights differ, at most.
    - `lead`: by how much they exceed those in the other weights, at least.
    """

    weights: Float[Array, "n T"]
    kept: Bool[Array, "n T"]
    residual: float
    lead: float


def best_mixture(x: ProblemInstance, head: NonlinearHead) -> Mixture:
    """Maximise `Y_i psi(X_i' s)` over the simplex, input by input."""
    values = in_coordinates(x.problem.values)
    found, residual, lead = [], 0.0, np.inf
    for label, tokens in zip(x.problem.labels, values, strict=True):
        s, gains = _best_weights(float(label), tokens, head)
        residual = max(residual, float(np.ptp(gains[s > 0])))
        lead = min(lead, float((gains[s > 0].min() - gains[s == 0]).min(initial=np.inf)))
        found.append(s)
    weights = np.stack(found)
    return Mixture(weights, weights > 0, residual, lead)


def _best_weights(
    label: float, tokens: Float[Array, "T d"], head: NonlinearHead
) -> tuple[Float[Array, " T"], Float[Array, " T"]]:
    """The best weights of one input, and the derivatives of its output in them."""

    def loss(s: Array) -> tuple[float, Array]:
        attended = s @ tokens
        return float(-label * head.function(attended)), -label * (tokens @ head.gradient(attended))

    T = len(tokens)
    s = minimize(
        loss, np.full(T, 1 / T), jac=True, bounds=[(0, 1)] * T, constraints=LinearConstraint(np.ones((1, T)), 1, 1),
        method="SLSQP", options={"ftol": 1e-16, "maxiter": 500},
    ).x  # fmt: skip
    s = np.where(s > KEPT, s, 0.0)
    s = s / s.sum()
    return s, -loss(s)[1]


def several_tokens(x: ProblemInstance) -> Findings:
    """Let every input have one best mixture of its tokens, on the tokens O_i, with a smaller derivative of the output
    in every other weight; and let some W give the tokens of each O_i equal logits and keep the others 1 behind. Then
    the minimiser of the risk over `|W|_F <= R` is `W_fin + r W_mm` up to what vanishes as R grows: W_mm is the
    shortest such W, and W_fin, in the span of the differences within the O_i, gives the tokens of O_i the weights of
    the mixture. (Concave heads, so that the mixture is one; radii of 6 and 18 times |W_mm|.)"""
    matrix_keys(x)
    assert x.head is not None, "the statement is about a nonlinear head"
    mixture = best_mixture(x, x.head)
    solution = class_margin(x.problem, mixture.kept)
    hypotheses = (
        assumption_a(x.loss, x.problem),
        _largest_curvature(x, x.head),
        below("difference of derivatives within the best mixtures", mixture.residual, KEPT),
        above("their lead over the other tokens", mixture.lead, KEPT, strict=True),
        has_solution("the best mixtures are separable", solution),
    )
    if not solution.is_optimal or not np.isfinite(mixture.lead):
        return Findings(hypotheses)
    finite = shortest_with_logits(x.problem, np.log(np.where(mixture.kept, mixture.weights, 1.0)), mixture.kept)
    length = float(np.linalg.norm(solution.vector))
    ends = [_minimum_on_sphere(x, x.head, mixture, finite + r * solution.vector, r * length) for r in REACH]
    errors = [_angle_to_line(W, finite, solution.vector) for W in ends]
    wrong = float(np.abs(attention_weights(x.problem.keys, ends[1]) - mixture.weights).max())
    return Findings(
        hypotheses,
        (
            seen(below(f"angle of W to W_fin + r W_mm at {REACH[1]:g} |W_mm|", errors[1], 0.05), FARTHER),
            seen(below("the same over that at a third of the norm", errors[1] / max(errors[0], 1e-12), 0.5), FARTHER),
            seen(below("largest difference of a weight to the mixture", wrong, 1e-3), FARTHER),
        ),
    )


def _largest_curvature(x: ProblemInstance, head: NonlinearHead) -> Slack:
    """The largest eigenvalue of the Hessian of `Y psi` at fifty mixtures of each input."""
    values = in_coordinates(x.problem.values)
    weights = x.rng.dirichlet(np.ones(x.problem.T), size=(50, x.problem.n))
    points = np.einsum("knt,ntd->knd", weights, values)
    bend = x.problem.labels[:, None, None] * head.second(points)
    return sampled(below("largest curvature of Y psi", float(np.linalg.eigvalsh(bend).max()), 0, strict=True))


def shortest_with_logits(
    problem: TokenProblem, logits: Float[Array, "n T"], kept: Bool[Array, "n T"]
) -> Float[Array, " D"]:
    """The shortest W that gives the kept tokens of every input the differences of these logits."""
    tokens, first, (inputs, places) = in_coordinates(problem.keys), kept.argmax(axis=1), np.nonzero(kept)
    rows = tokens[inputs, places] - tokens[inputs, first[inputs]]
    apart = logits[inputs, places] - logits[inputs, first[inputs]]
    return np.asarray(np.linalg.lstsq(rows, apart, rcond=None)[0])


def _minimum_on_sphere(
    x: ProblemInstance, head: NonlinearHead, mixture: Mixture, start: Float[Array, " D"], radius: float
) -> Float[Array, " D"]:
    """A minimum of the risk on the sphere, by the logarithm of what it has over its infimum."""
    objective = HeadObjective(x.problem, x.loss, head=head)
    values = in_coordinates(x.problem.values)
    best = x.problem.labels * head.function(np.einsum("nt,ntd->nd", mixture.weights, values))
    infimum = float(x.loss.value(best).mean())

    def landscape(W: Array) -> tuple[float, Array, Array]:
        over = float(objective.value(W)) - infimum
        return log_landscape(objective, W, np.log(over) if over > 0 else np.nan)

    return minimise(landscape, start, sphere=Sphere(radius)).point


def _angle_to_line(W: Float[Array, " D"], finite: Float[Array, " D"], direction: Float[Array, " D"]) -> float:
    """Angle of W to the line `finite + r direction`, at the r nearest to W."""
    along = finite + (W - finite) @ direction / (direction @ direction) * direction
    return float(angle(W, along))


def _bowl_around(centre: list[float]) -> NonlinearHead:
    """`-|x - c|^2 / 2`: best served by the mixture nearest to c."""
    c = np.array(centre)
    flat = -np.eye(len(c))
    return NonlinearHead(
        lambda x: -((x - c) ** 2).sum(-1) / 2, lambda x: c - x, lambda x: np.broadcast_to(flat, (*x.shape, len(c)))
    )


def _two_of_three() -> ProblemInstance:
    """Two inputs of three tokens; the mixtures nearest to the centre lie on an edge each."""
    tokens = np.array(
        [[[1.0, 0.0, 0.2], [0.0, 1.0, 0.1], [-1.0, -0.5, 0.3]], [[0.8, 0.5, 0], [0.2, 1.2, 0.4], [0.1, -1.0, 0]]]
    )
    queries = np.array([[1.0, 0.2], [-0.3, 1.0]])
    problem = cross_attention(tokens, queries, [1, 1], scores=np.zeros((2, 3)))
    return ProblemInstance(problem, "two of three tokens", head=_bowl_around([1.0, 1.0, 0.0]))


def _on_the_brink() -> ProblemInstance:
    """The second input's third token is worth exactly what the mixture is: it is driven away to second order only."""
    tokens = [[[0, 0.5, 0], [0, -1.0, 0], [0, -1.0, 0.5]], [[1.0, 0, 0], [-1.0, 0, 0], [0, 0, 1.0]]]
    problem = cross_attention(tokens, np.eye(2), [1, 1], scores=np.zeros((2, 3)))
    return ProblemInstance(problem, "a token worth as much as the mixture", head=_bowl_around([0.0, 1.0, 0.0]))


CLAIMS = (
    Claim("C.several-tokens", several_tokens, "sampled", about="a head served by mixtures: W_fin + R W_mm",
        example=_two_of_three, outside=(_on_the_brink,),
        unneeded={
            "the best mixtures are separable": NO_SUBJECT,
            "difference of derivatives within the best mixtures": "It says that the best mixture has been found.",
        }),
)  # fmt: skip
