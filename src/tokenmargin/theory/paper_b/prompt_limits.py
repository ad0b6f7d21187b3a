"""Where the prompt goes: Theorems 1, 2 and 3 of paper B."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics import regularisation_path
from tokenmargin.margin import MarginSolution, max_margin
from tokenmargin.problem.instances import figure1a, figure1b, figure1c, figure8
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, cone_constants, optimal_tokens
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, seen, true
from tokenmargin.theory.evidence import FollowedFlow, falls_to_zero, follow_flow
from tokenmargin.theory.paper_b.assumptions import assumption_a, assumption_b
from tokenmargin.theory.paper_b.gradients import equal_scores_problem, printed_smoothness
from tokenmargin.theory.paper_b.local_cone import along_the_axis, behind_its_neighbour, locally_optimal, vectors_in_cone
from tokenmargin.theory.settings import ProblemInstance

REACH = 1000.0
"""|p| times the margin of its limit at the end of a regularisation path."""
LOG_TIME = "following descent itself: its norm grows like the logarithm of the number of steps"


def path_angles(x: ProblemInstance, targets: list[Float[Array, " D"]]) -> tuple[tuple[float, float], float]:
    """Angles of `argmin_{|p| <= R} L(p)` to the nearest target at R/10 and at R, and R; infinite where it stays
    bounded.

    The search begins at the targets too, so that no start misses them; the lowest minimum found counts, whichever.
    """
    keys = x.problem.keys
    norm = REACH * float(keys.norm(targets[0]))
    try:
        path = regularisation_path(
            x.risk, [norm / 1000, norm / 100, norm / 10, norm], rng=x.rng, starts=2, directions=np.stack(targets)
        )
    except ValueError:  # a mixture of tokens has less risk than any choice of single ones
        return (np.inf, np.inf), norm
    points = path.points[-2:]
    if not np.isfinite(points).all() or keys.norm(points[-1]) < 0.99 * norm:
        return (np.inf, np.inf), norm
    early, late = (min(float(angle(keys, p, target)) for target in targets) for p in points)
    return (early, late), norm


def one_optimum(x: ProblemInstance, solution: MarginSolution) -> tuple[Slack, ...]:
    """Assumption A, one optimal token in every input, and a `solution` that separates those from the others."""
    return (
        assumption_a(x.loss, x.problem),
        below("most optimal tokens in an input", optimal_tokens(x.problem).sum(axis=1).max(), 1),
        true("the optimal tokens are separable", solution.is_optimal),
    )


def path_to(x: ProblemInstance, solution: MarginSolution, name: str) -> Findings:
    """Whether the regularisation path converges in direction to the `solution` of that name, where it has one."""
    hypotheses = one_optimum(x, solution)
    if not solution.is_optimal:
        return Findings(hypotheses)
    angles, norm = path_angles(x, [solution.vector])
    return Findings(hypotheses, falls_to_zero(name, angles, norm=norm))


def theorem1(x: ProblemInstance) -> Findings:
    """If every input has one optimal token, the regularisation path `argmin_{|p| <= R} L(p)` converges in direction to
    the GMM as R grows. (That the GMM exists is part of the statement. The path is the lowest minimum that continuation
    from many starts finds, at |p| up to 1000 |p_mm|.)"""
    return path_to(x, max_margin(x.problem, x.best), "the GMM")


def _starts(x: ProblemInstance) -> Float[Array, "k D"]:
    return 2 * x.sphere(3, x.rng) if x.p is None else x.p[None]


def theorem2(x: ProblemInstance) -> Findings:
    """Under Assumptions A and B, with the optimal tokens separable, descent with a step of at most `1/L_p` grows
    without bound from any start; if there is one input, its direction converges to the GMM. (Three starts. Descent's
    norm over 2000 steps; gradient flow from the same starts to |p| = 10^5, since descent gets there in exp(10^5)
    steps.)"""
    hypotheses, solution = _assumptions(x)
    if not solution.is_optimal:
        return Findings(hypotheses)
    late = [follow_flow(x.problem, start, norm=x.norm, loss=x.loss) for start in _starts(x)]
    growth = _growth(x, late, solution.vector)
    if x.problem.n > 1 or not growth[-1].holds:
        return Findings(hypotheses, growth)
    return Findings(hypotheses, (*growth, *_slowest(x, late, solution.vector)))


def theorem2_direction(x: ProblemInstance) -> Findings:
    """The second part of Theorem 2, with its condition that there is one input: the direction converges to the GMM."""
    hypotheses, solution = _assumptions(x)
    hypotheses += (below("number of inputs", x.problem.n, 1),)
    if not solution.is_optimal:
        return Findings(hypotheses)
    late = [follow_flow(x.problem, start, norm=x.norm, loss=x.loss) for start in _starts(x)]
    reached = _growth(x, late, solution.vector)[-1:]
    return Findings(hypotheses, _slowest(x, late, solution.vector) if reached[0].holds else reached)


def _assumptions(x: ProblemInstance) -> tuple[tuple[Slack, ...], MarginSolution]:
    solution = max_margin(x.problem, x.best)
    separable = true("the optimal tokens are separable", solution.is_optimal)
    return (assumption_a(x.loss, x.problem), *assumption_b(x.problem), separable), solution


def _growth(x: ProblemInstance, late: list[FollowedFlow], gmm: Float[Array, " D"]) -> tuple[Slack, Slack]:
    """Descent's component along the GMM, below which |p| cannot be, over its last 200 of 2000 steps; and flow's
    norm."""
    printed, keys = printed_smoothness(x.problem, x.loss), x.problem.keys
    step = 1 / max(x.objective.smoothness() if printed is None else printed, 1e-12)
    points, along = _starts(x), []
    for _ in range(2000):
        points = points - step * x.objective.gradient(points)
        along.append(keys.inner(points, gmm / keys.norm(gmm)))
    growth = float((along[-1] - along[-200]).min())
    reached = min(float(keys.norm(limit.path.prompt)) for limit in late)
    return (
        seen(above("growth of <p(t), p_mm/|p_mm|>, steps 1800 to 2000", growth, 0, strict=True), LOG_TIME),
        seen(above("smallest |p| that gradient flow reaches", reached, x.norm, tolerance=1e-6 * x.norm), LOG_TIME),
    )


def _slowest(
    x: ProblemInstance, late: list[FollowedFlow], target: Float[Array, " D"], name: str = "the GMM"
) -> tuple[Slack, Slack]:
    """The slowest of the flows against the target."""
    keys = x.problem.keys
    ends = [float(angle(keys, limit.path.prompt, target)) for limit in late]
    slowest = late[int(np.argmax(ends))].path
    norm = float(keys.norm(slowest.prompt))
    return falls_to_zero(name, (float(angle(keys, slowest.at_norm(norm / 10), target)), max(ends)), norm=norm)


def theorem3(x: ProblemInstance) -> Findings:
    """Around the max-margin direction of locally optimal tokens there are a cone and a radius beyond which it holds no
    stationary point, and from wherever in it descent with a step of at most `1/L_p` starts, it grows without bound and
    converges to the axis. (The cone of `cone_constants`, from 50 times its radius, where single steps vanish in
    rounding: 6 starts on and in the cone are followed by gradient flow over three decades of the norm.)"""
    hypotheses = (assumption_a(x.loss, x.problem), *locally_optimal(x.problem, x.alpha))
    if len(hypotheses) < 3:
        return Findings(hypotheses)
    axis, keys = max_margin(x.problem, x.alpha).vector, x.problem.keys
    if not hypotheses[-1].holds:
        return Findings(hypotheses, (along_the_axis(x, axis),))
    constants = cone_constants(x.problem, axis, x.alpha)
    units, radius = vectors_in_cone(x, axis, constants.mu, 6, x.rng), 50 * constants.radius
    along = keys.inner(x.objective.descent(radius * units).direction, axis / keys.norm(axis))
    some = "another cone: the theorem asks for some mu and R"
    still = seen(above("smallest cosine of -dL with the axis at the starts", along.min(), 0, strict=True), some)
    if not hypotheses[0].holds:  # slopes beyond doubles: one input pulls alone, another in turn, and flows zigzag
        return Findings(hypotheses, (still,))
    late = [follow_flow(x.problem, radius * unit, norm=1e3 * radius, loss=x.loss) for unit in units]
    reached = min(float(keys.norm(limit.path.prompt)) for limit in late)
    grows = seen(above("smallest |p| that gradient flow reaches", reached, 1e3 * radius, tolerance=radius), LOG_TIME)
    if not grows.holds:
        return Findings(hypotheses, (still, grows))
    return Findings(hypotheses, (still, grows, *_slowest(x, late, axis, "the axis")))


def two_optima(second: float = 1.0) -> ProblemInstance:
    """Two tokens share the highest score (unless told); the second of them is cheaper to select."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]], [1], scores=[[1.0, second, 0.0]])
    return ProblemInstance(
        problem, "two optimal tokens" if second == 1 else f"scores 1, {second:g}, 0, O the first two"
    )


def start_to_local() -> ProblemInstance:
    """Figure 1(b) from a start whose flow goes to the locally optimal token."""
    return ProblemInstance(figure1b(), "fig1b from (1, -1.5)", p=np.array([1.0, -1.5, 0.0]))


CLAIMS = (
    Claim("B.theorem1", theorem1, "sampled", about="regularisation path to the GMM",
        example=lambda: ProblemInstance(figure1c(), "fig1c"), outside=(two_optima,),
        unneeded={"the optimal tokens are separable": NO_SUBJECT},
        note=(
            "The proof goes through Lemma 14, whose epsilon = 1 - max gamma_t / gamma_opt is positive only for "
            "positive optimal scores. The theorem does not ask for them, and the path converges without."
        )),
    Claim("B.theorem2", theorem2, "sampled", about="Assumption B: descent grows; n = 1: to the GMM",
        example=lambda: ProblemInstance(figure8(), "fig8"), outside=(start_to_local, equal_scores_problem),
        unneeded={"the optimal tokens are separable": NO_SUBJECT}),
    Claim("B.theorem2-direction", theorem2_direction, "sampled", about="... n = 1: to the GMM",
        example=lambda: ProblemInstance(figure1a(), "fig1a"),
        outside=(lambda: ProblemInstance(figure8(), "fig8"), start_to_local, equal_scores_problem),
        unneeded={"the optimal tokens are separable": NO_SUBJECT}),
    Claim("B.theorem3", theorem3, "sampled", about="local convergence to LMM directions",
        example=lambda: ProblemInstance(figure1b(), "fig1b", selected=(1,)), outside=(behind_its_neighbour,),
        unneeded={"alpha is separable": NO_SUBJECT},
        note="The cone that Lemma 7's proof names can be too wide (B.lemma7-proof-constants); a narrower one serves."),
)  # fmt: skip
