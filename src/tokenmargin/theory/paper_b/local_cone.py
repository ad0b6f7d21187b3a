"""The local cone of paper B: the constants (32) and (39), and Lemma 7."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from scipy.special import logsumexp

from tokenmargin.instances import figure1b
from tokenmargin.margin import max_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import margins, neighbours, score_gaps
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, true
from tokenmargin.theory.instances import ProblemInstance

__all__ = ["CLAIMS", "LocalCone", "behind_its_neighbour", "cone", "local_cone", "locally_optimal", "without_neighbours"]


def locally_optimal(problem: TokenProblem, alpha: Int[Array, " n"]) -> tuple[Slack, ...]:
    """Definition 2: ATT-SVM is feasible for alpha, and every selected token outscores its SVM-neighbours."""
    solution = max_margin(problem, alpha)
    if not solution.is_optimal:
        return (true("alpha is separable", False),)
    gap = float(score_gaps(problem, solution.vector, alpha).min())
    return true("alpha is separable", True), above("smallest score gap to a neighbour", gap, 0, strict=True)


def cone(
    x: ProblemInstance, axis: Float[Array, " D"], mu: float, number: int, rng: np.random.Generator
) -> Float[Array, "number D"]:
    """Unit vectors of `cone_mu(axis)` in the span of the keys, half of them on its boundary."""
    keys = x.problem.keys
    axis = axis / keys.norm(axis)
    across = x.sphere(number, rng)
    across = across - keys.inner(across, axis)[:, None] * axis
    length = keys.norm(across)[:, None]
    across = np.where(length > 1e-12, across / np.maximum(length, 1e-12), 0.0)  # in one dimension the cone is a ray
    slope = np.where(np.arange(number) % 2 == 0, 1.0, rng.uniform(size=number))
    cos = 1 - mu * slope
    points = cos[:, None] * axis + np.sqrt(1 - cos**2)[:, None] * across
    return np.asarray(points / keys.norm(points)[:, None])


@dataclass(frozen=True, eq=False)
class LocalCone:
    """The constants of Lemma 7: (32), (39), and those of its proof."""

    axis: Float[Array, " D"]
    alpha: Int[Array, " n"]
    theta: float
    mu: float
    radius: float
    low: float  # c
    high: float  # C
    spread: float  # A-bar


def local_cone(x: ProblemInstance, *, repaired: bool) -> LocalCone:
    """The cone around the max-margin direction of `alpha`, with the printed constants or the repaired ones."""
    problem, alpha = x.problem, x.alpha
    solution = max_margin(problem, alpha)
    p, theta = solution.vector, solution.margin
    near, ahead = neighbours(problem, p, alpha), margins(problem, p, alpha)
    far = problem.mask & ~near
    far[np.arange(problem.n), alpha] = False
    delta = _half_gap(ahead, near, far, repaired=repaired)
    keys = problem.keys
    size = np.sqrt(keys.gram_of(np.arange(keys.rows)).diagonal()[keys.index[problem.mask]].max()) / theta
    gap = abs(float(score_gaps(problem, p, alpha).min()))  # positive where alpha is locally optimal
    widest = float(np.max([np.ptp(row[here]) for row, here in zip(problem.scores, problem.mask, strict=True)]))
    lowest = np.where(near, problem.scores, np.inf).min(axis=1)
    wide = problem.scores[np.arange(problem.n), alpha] - lowest
    largest = np.abs(problem.scores[problem.mask]).max()
    slopes = np.exp(x.loss.log_slope(np.array([-largest, largest])))
    inner = min(0.5, delta / 2 if repaired else delta)
    inputs = problem.n if repaired else 1
    return LocalCone(
        axis=p,
        alpha=alpha,
        theta=theta,
        mu=(inner / size) ** 2 / 8,
        radius=max(2, 1 / delta) / theta * np.log(64 * inputs * problem.T * widest * size / gap),
        low=float(slopes.min() * gap / 8) / inputs,
        high=float(2 * slopes.max() * np.abs(wide[np.isfinite(wide)]).max()),
        spread=max(_diameter(problem, i) for i in range(problem.n)),
    )


def _half_gap(
    ahead: Float[Array, "n T"], near: Bool[Array, "n T"], far: Bool[Array, "n T"], *, repaired: bool
) -> float:
    """delta: half the least distance from a neighbour to a non-neighbour (32), infinity where there is none.

    As printed the minimum runs within inputs that have both kinds. Repaired, it runs over every non-neighbour: all
    neighbours stand at margin 1, also those of other inputs.
    """
    counted = far if repaired else far & near.any(axis=1, keepdims=True)
    return float((ahead[counted] - 1).min(initial=np.inf)) / 2


def _diameter(problem: TokenProblem, i: int) -> float:
    gram = problem.keys.gram_of(problem.keys.index[i, problem.mask[i]])
    squares = gram.diagonal()
    return float(np.sqrt(np.maximum(squares[:, None] + squares - 2 * gram, 0.0).max()))


def lemma7(x: ProblemInstance) -> Findings:
    """Around the max-margin direction of locally optimal tokens, the cone of width mu (32) beyond the radius (39) holds
    no stationary point: for p in it and q in the cone of length |p_mm|, `-<dL(p), q>` lies between c and C times the
    mean attention on other tokens (31a), |dL| is at most A-bar C times it (31b), and q makes an angle with the gradient
    bounded away from a right one (31c). Farther out p is no better a direction than p_mm (L3, here with pi = 0.1)."""
    return _findings(x, repaired=False)


def lemma7_repaired(x: ProblemInstance) -> Findings:
    """Lemma 7 with delta the least half gap from margin 1 to any non-neighbour, in inputs without neighbours too, with
    the cone narrowed to delta/2, and with c and the radius reckoned over n inputs."""
    return _findings(x, repaired=True)


def _findings(x: ProblemInstance, *, repaired: bool) -> Findings:
    hypotheses = locally_optimal(x.problem, x.alpha)
    if not hypotheses[0].holds:
        return Findings(hypotheses, (true("there is a max-margin direction", False),))
    return Findings(hypotheses, _gradient_condition(x, local_cone(x, repaired=repaired)))


def _gradient_condition(x: ProblemInstance, c: LocalCone) -> tuple[Slack, ...]:
    keys, rng, number = x.problem.keys, x.rng, 400
    points = np.concatenate([r * c.radius * cone(x, c.axis, c.mu, number, rng) for r in (1, 2, 5)])
    directions = cone(x, c.axis, c.mu, len(points), rng) / c.theta
    direction, log_norm = x.objective.descent(points)
    log_rest = _log_other_attention(x.problem, points, c.alpha)
    ratio = keys.inner(direction, directions) * np.exp(log_norm[:, 0] - log_rest)
    steep = np.exp(log_norm[:, 0] - log_rest)
    angle = keys.inner(direction, directions) * c.theta
    far = 20 * points / keys.norm(points)[:, None] * c.radius
    descent = x.objective.descent(far).direction
    outward = keys.inner(descent, far) / keys.norm(far)
    lead = outward / keys.inner(descent, c.axis / keys.norm(c.axis))
    return (
        above("(31a) smallest -<dL, q> / attention on others", ratio.min(), c.low),
        below("(31a) largest", ratio.max(), c.high),
        below("(31b) largest |dL| / attention on others", steep.max(), c.spread * c.high),
        above("(31c) smallest cosine with -dL", angle.min(), c.low * c.theta / (c.spread * c.high)),
        below("(L3) largest ratio at 20 R", lead.max(), 1.1),
    )


def _log_other_attention(
    problem: TokenProblem, points: Float[Array, "k D"], alpha: Int[Array, " n"]
) -> Float[Array, " k"]:
    """`log mean_i (1 - s_{i alpha_i})`, right where the attention has saturated."""
    logits = problem.keys.logits(points)
    others = np.ones(problem.mask.shape, dtype=bool)
    others[np.arange(problem.n), alpha] = False
    rest = logsumexp(np.where(others, logits, -np.inf), axis=-1) - logsumexp(logits, axis=-1)
    return np.asarray(logsumexp(rest, axis=-1) - np.log(problem.n))


def without_neighbours() -> ProblemInstance:
    """Input 2's selected token has no SVM-neighbour, and a better token at margin 1.05 where input 1's is at 1."""
    keys = [[[1.0, 0.0], [0.0, 0.0]], [[1.05, 1.0], [0.0, 0.0]]]
    problem = TokenProblem.of(keys, [1, 1], scores=[[1.0, 0.0], [0.0, 5.0]])
    return ProblemInstance(problem, "two inputs, the second without neighbours", selected=(0, 0))


def behind_its_neighbour() -> ProblemInstance:
    """One input whose selected token is separable and scores less than its neighbour."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 0.0], [-0.5, 1.0]]], [1], scores=[[0.0, 1.0, -1.0]])
    return ProblemInstance(problem, "a neighbour of higher score", selected=(0,))


CLAIMS = (
    Claim(
        "B.lemma7",
        lemma7,
        "sampled",
        about="local cone: (31a)-(31c), L3",
        example=lambda: ProblemInstance(figure1b(), "fig1b", selected=(1,)),
        outside=(behind_its_neighbour,),
        unneeded={"alpha is separable": NO_SUBJECT},
        refutation=without_neighbours,
        note=(
            "As printed, delta ignores inputs whose selected token has no SVM-neighbour. There a better token may "
            "stand just beyond margin 1 and dominate the gradient inside the cone. B.lemma7-repaired counts it."
        ),
    ),
    Claim(
        "B.lemma7-repaired",
        lemma7_repaired,
        "sampled",
        about="the same with the gap over all inputs",
        example=without_neighbours,
        outside=(behind_its_neighbour,),
        unneeded={"alpha is separable": NO_SUBJECT},
    ),
)
