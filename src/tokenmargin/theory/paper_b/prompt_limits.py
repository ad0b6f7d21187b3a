"""Where the prompt goes, Theorems 1, 2 and 3 of paper B, and that it goes nowhere else: Theorems 4 and 7, on
regularisation paths confined to a cone, and Lemmas 9 and 10.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.dynamics import cone_path, regularisation_path
from tokenmargin.margin import MarginSolution, max_margin
from tokenmargin.norms import EPS
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import figure1a, figure1b, figure1c, figure8
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import (
    angle,
    cone_constants,
    directional_neighbours,
    is_locally_optimal,
    leads,
    optimal_tokens,
    selected_tokens,
)
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, searched, seen, true
from tokenmargin.theory.evidence import FollowedFlow, falls_to_zero, follow_flow, has_solution
from tokenmargin.theory.paper_b.assumptions import assumption_a, assumption_b, general_position, rank_of_vectors
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
        has_solution("the optimal tokens are separable", solution),
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


def _three_starts(x: ProblemInstance) -> Float[Array, "k D"]:
    return 2 * x.sphere(3, x.rng) if x.p is None else x.p[None]


def theorem2(x: ProblemInstance) -> Findings:
    """Under Assumptions A and B, with the optimal tokens separable, descent with a step of at most `1/L_p` grows
    without bound from any start; if there is one input, its direction converges to the GMM. (Three starts. Descent's
    norm over 2000 steps; gradient flow from the same starts to |p| = 10^5, since descent gets there in exp(10^5)
    steps.)"""
    hypotheses, solution = _assumptions_a_and_b(x)
    if not solution.is_optimal:
        return Findings(hypotheses)
    late = [follow_flow(x.problem, start, norm=x.norm, loss=x.loss) for start in _three_starts(x)]
    growth = _growth_of_descent(x, late, solution.vector)
    if x.problem.n > 1 or not growth[-1].holds:
        return Findings(hypotheses, growth)
    return Findings(hypotheses, (*growth, *_slowest_flow(x, late, solution.vector)))


def theorem2_direction(x: ProblemInstance) -> Findings:
    """The second part of Theorem 2, with its condition that there is one input: the direction converges to the GMM."""
    hypotheses, solution = _assumptions_a_and_b(x)
    hypotheses += (below("number of inputs", x.problem.n, 1),)
    if not solution.is_optimal:
        return Findings(hypotheses)
    late = [follow_flow(x.problem, start, norm=x.norm, loss=x.loss) for start in _three_starts(x)]
    reached = _growth_of_descent(x, late, solution.vector)[-1:]
    return Findings(hypotheses, _slowest_flow(x, late, solution.vector) if reached[0].holds else reached)


def _assumptions_a_and_b(x: ProblemInstance) -> tuple[tuple[Slack, ...], MarginSolution]:
    solution = max_margin(x.problem, x.best)
    separable = has_solution("the optimal tokens are separable", solution)
    return (assumption_a(x.loss, x.problem), *assumption_b(x.problem), separable), solution


def _growth_of_descent(x: ProblemInstance, late: list[FollowedFlow], gmm: Float[Array, " D"]) -> tuple[Slack, Slack]:
    """Descent's component along the GMM, below which |p| cannot be, over its last 200 of 2000 steps; and flow's
    norm."""
    printed, keys = printed_smoothness(x.problem, x.loss), x.problem.keys
    step = 1 / max(x.objective.smoothness() if printed is None else printed, 1e-12)
    points, along = _three_starts(x), []
    for _ in range(2000):
        points = points - step * x.objective.gradient(points)
        along.append(keys.inner(points, gmm / keys.norm(gmm)))
    growth = float((along[-1] - along[-200]).min())
    reached = min(float(keys.norm(limit.path.prompt)) for limit in late)
    return (
        seen(above("growth of <p(t), p_mm/|p_mm|>, steps 1800 to 2000", growth, 0, strict=True), LOG_TIME),
        seen(above("smallest |p| that gradient flow reaches", reached, x.norm, tolerance=1e-6 * x.norm), LOG_TIME),
    )


def _slowest_flow(
    x: ProblemInstance, late: list[FollowedFlow], target: Float[Array, " D"], name: str = "the GMM"
) -> tuple[Slack, Slack]:
    """The slowest of the flows against the target."""
    keys = x.problem.keys
    ends = [float(angle(keys, limit.path.prompt, target)) for limit in late]
    slowest = late[int(np.argmax(ends))].path
    norm, start = float(keys.norm(slowest.prompt)), slowest(0.0)
    earlier = slowest.at_norm(norm / 10) if float(keys.norm(start)) < norm / 10 else start
    return falls_to_zero(name, (float(angle(keys, earlier, target)), max(ends)), norm=norm)


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
    return Findings(hypotheses, (still, grows, *_slowest_flow(x, late, axis, "the axis")))


def two_optima(second: float = 1.0) -> ProblemInstance:
    """Two tokens share the highest score (unless told); the second of them is cheaper to select."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]], [1], scores=[[1.0, second, 0.0]])
    return ProblemInstance(
        problem, "two optimal tokens" if second == 1 else f"scores 1, {second:g}, 0, O the first two"
    )


def start_to_local() -> ProblemInstance:
    """Figure 1(b) from a start whose flow goes to the locally optimal token."""
    return ProblemInstance(figure1b(), "fig1b from (1, -1.5)", p=np.array([1.0, -1.5, 0.0]))


WIDTH = 0.005
"""The cone's epsilon: directions of cosine at least 1 - 0.005 with q, a half-angle of 0.1."""
RADII = (10.0, 1e2, 1e3, 1e4)
"""R_0, and the largest norms that the path is followed to."""
RESOLVED = 1e-6
"""Directions of a followed path are known to about a hundredth of this."""
SAME = 1e-7
"""Two directions closer than this may be one: the certificate of a max-margin solution says no more."""
UNIT_ROUNDING = 8 * EPS
"""Scaling a vector to unit length rounds each entry by EPS/2 of itself; q is scaled twice, the solution once, and their
difference and sum are rounded too."""


def theorem4(x: ProblemInstance) -> Findings:
    """A unit vector q that is no locally optimal max-margin direction is not the limit of its local regularisation
    path, if scores are distinct and keys in general position: with p confined to `cone_eps(q)` and |p| >= R_0, either
    the minimisers stay bounded, or their direction does not converge to q; in either case p(R)/R does not. (eps =
    0.005, R_0 = 10; q is given, or drawn. Followed to R = 10^4: a path that goes to q comes nearer with every
    decade.)"""
    return _path_findings(x, x.sphere(1, x.rng)[0] if x.q is None else x.q / x.problem.keys.norm(x.q))


def theorem7(x: ProblemInstance) -> Findings:
    """Theorem 4, with general position spelt out. (q is given, or one that ties two tokens of the first input where the
    keys leave room for one: case B of the proof.)"""
    return _path_findings(x, _tying_direction(x) if x.q is None else x.q / x.problem.keys.norm(x.q))


def _tying_direction(x: ProblemInstance) -> Float[Array, " D"]:
    """A random unit vector orthogonal to the difference of two tokens, or any on a line."""
    keys, across = x.problem.keys, x.sphere(1, x.rng)[0]
    one, two = keys.index[int(x.problem.mask.sum(axis=1).argmax()), :2]
    weights = np.zeros(keys.n_vectors)
    weights[one] += 1.0
    weights[two] -= 1.0
    tied = keys.combine(weights)
    length = float(keys.inner(tied, tied))
    beside = across - keys.inner(across, tied) / length * tied if length > 0 else across
    size = float(keys.norm(beside))
    return np.asarray(beside / size if size > SAME else across)


def _path_findings(x: ProblemInstance, q: Float[Array, " D"]) -> Findings:
    """The findings of Theorems 4 and 7 for a unit vector q."""
    problem = x.problem
    alpha = np.asarray(problem.keys.logits(q).argmax(axis=1))
    hypotheses = (
        _no_lmm(x, q, alpha),
        above("smallest difference of two scores of an input", _score_gap(problem), 0, strict=True),
        general_position(problem, alpha),
    )
    early, late = _distances_to_axis(x, q)
    decide = "following the path farther, or a narrower cone"
    return Findings(
        hypotheses,
        (
            seen(above(f"|p(R)/R - q| at R = {RADII[-1]:g}", late, RESOLVED), decide),
            seen(above("... over the same at a tenth of R", late / early if early > RESOLVED else 0.0, 0.5), decide),
        ),
    )


def _distances_to_axis(x: ProblemInstance, q: Float[Array, " D"]) -> tuple[float, float]:
    """`|p(R)/R - q|` for the local regularisation path at the last two radii."""
    keys = x.problem.keys
    if rank_of_vectors(keys) > 1:
        points = cone_path(x.objective, q, RADII, width=WIDTH, rng=x.rng, starts=1).points[-2:]
    else:  # the cone is a ray
        points = np.stack([_on_the_ray(x, q, top) for top in RADII[-2:]])
    early, late = keys.norm(points / np.array(RADII[-2:])[:, None] - q)
    return float(early), float(late)


def _on_the_ray(x: ProblemInstance, q: Float[Array, " D"], top: float) -> Float[Array, " D"]:
    """The point of least risk on a ray, of length between R_0 and `top`; of equal risks the longest."""
    alpha = np.asarray(x.problem.keys.logits(q).argmax(axis=1))
    lengths = np.geomspace(RADII[0], top, 200)[::-1]
    return np.asarray(min(lengths, key=lambda r: x.risk.excess_rank(r * q, alpha)) * q)


def _no_lmm(x: ProblemInstance, q: Float[Array, " D"], alpha: Int[Array, " n"]) -> Slack:
    """Whether q is no LMM direction. Nearer to one than the certificate tells, it is left open, unless only rounding is
    between them."""
    solution, name = max_margin(x.problem, alpha), "q is no LMM direction"
    if solution.status == "inaccurate":
        return seen(true(name, True), "whether its tokens are separable")
    if not solution.is_optimal or not is_locally_optimal(x.problem, solution.vector, alpha):
        return true(name, True)
    apart = float(angle(x.problem.keys, q, solution.vector))
    slack = true(name, apart >= SAME)
    return seen(slack, "the max-margin direction to more digits") if UNIT_ROUNDING < apart < SAME else slack


def _score_gap(problem: TokenProblem) -> float:
    rows = (np.sort(row[here]) for row, here in zip(problem.scores, problem.mask, strict=True))
    return float(min(np.diff(row).min(initial=np.inf) for row in rows))


def lemma9(x: ProblemInstance) -> Findings:
    """If a unit vector p selects one token of every input and all its directional neighbours score higher than the
    tokens they neighbour, then the risk along p lies below its own limit from some norm on: `L(R p) < L_star` for all
    large R. (p is given, or drawn; R in steps up to 3000 over the distance of the next margin.)"""
    problem, keys = x.problem, x.problem.keys
    p = x.sphere(1, x.rng)[0] if x.p is None else x.p / keys.norm(x.p)
    alpha, near = np.asarray(keys.logits(p).argmax(axis=1)), directional_neighbours(keys, p)
    behind = problem.scores - problem.scores[np.arange(problem.n), alpha][:, None]
    hypotheses = (
        below("most tokens that p selects in an input", selected_tokens(keys, p).sum(axis=1).max(), 1),
        above("smallest lead of a neighbour over the selected token", behind[near].min(initial=np.inf), 0, strict=True),
    )
    ahead = leads(keys, p, alpha)
    margin, beyond = float(ahead.min()), ahead[np.isfinite(ahead) & ~near]
    next_ = float((beyond - margin).min(initial=margin if margin > 0 else 1.0))
    signs = [x.risk.excess(r * p, alpha)[1] for r in np.geomspace(30, 3000, 40) / max(next_, 1e-9)]
    wrong = int(np.sum(np.array(signs[20:]) >= 0))
    return Findings(hypotheses, (seen(below("radii of the last 20 at which L(R p) >= L_star", wrong, 0)),))


def lemma10(x: ProblemInstance) -> Findings:
    """With keys in general position, a direction q has at most d directional neighbours. (q is given; or the max-margin
    direction of alpha, which has as many neighbours as a direction can; or drawn.)"""
    problem = x.problem
    solution = max_margin(problem, x.alpha)
    drawn = solution.vector if solution.is_optimal else x.sphere(1, x.rng)[0]
    q = drawn if x.q is None else x.q
    alpha = np.asarray(problem.keys.logits(q).argmax(axis=1))
    number = int(directional_neighbours(problem.keys, q).sum())
    d = problem.keys.dimension if isinstance(problem.keys, Coordinates) else rank_of_vectors(problem.keys)
    # tokens within the tolerance of the margin are counted, so there may be fewer, and never more
    most = searched(below("directional neighbours", number, d), "margins to more digits")
    return Findings((general_position(problem, alpha),), (most,))


def _three_tokens(q: tuple[float, ...], name: str) -> ProblemInstance:
    """Three tokens in the plane with distinct scores and keys in general position; the second is locally optimal."""
    keys = [[[-0.8, 1.0], [1.0, 0.03], [0.02, -0.05]]]
    return ProblemInstance(TokenProblem.of(keys, [1], scores=[[1.0, 0.9, 0.0]]), name, q=np.array(q))


def _at_lmm() -> ProblemInstance:
    x = _three_tokens((1.0, 0.0), "")
    vector = max_margin(x.problem, [1]).vector
    return replace(x, name="three tokens, q the LMM direction", q=vector)


def _equal_scores() -> ProblemInstance:
    """Two tokens share the highest score. The path goes to q = (0, 1), which selects the second against the third; it
    is no LMM direction, since the first stands at margin 1 and scores no less."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    return ProblemInstance(problem, "two optimal tokens, q=(0, 1)", q=np.array([0.0, 1.0]))


def _equal_keys() -> ProblemInstance:
    """Two tokens share a key: q = 1 selects both, and their mean score is the higher; no max-margin direction does."""
    problem = TokenProblem.of([[[0.0], [1.0], [1.0]]], [1], scores=[[0.2, 0.9, 0.1]])
    return ProblemInstance(problem, "keys 0, 1, 1, q=1", q=np.array([1.0]))


def _better_neighbour(scores: tuple[float, float, float], name: str) -> ProblemInstance:
    """p = (1, 0) selects token 1; its neighbour is token 2, and token 3 is farther."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 0.5], [-1.0, 0.0]]], [1], scores=[scores])
    return ProblemInstance(problem, name, p=np.array([1.0, 0.0]))


def _on_a_square() -> ProblemInstance:
    """Token 1 against three tokens on a line at the same distance: not in general position."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, -1.0]]], [1], scores=[[3.0, 2.0, 1.0, 0.0]])
    return ProblemInstance(problem, "three neighbours on a line, q=(1, 0)", q=np.array([1.0, 0.0]))


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
    Claim("B.theorem4", theorem4, "sampled", about="other directions are no local limits",
        example=lambda: _three_tokens((1.0, 0.5), "three tokens, q=(1, 0.5)"),
        outside=(_at_lmm, _equal_scores, _equal_keys)),
    Claim("B.theorem7", theorem7, "sampled", about="as Theorem 4, general position spelt out",
        example=lambda: replace(_three_tokens((1.0, 0.0), "three tokens, q ties two"), q=None),
        outside=(_at_lmm, _equal_scores, _equal_keys),
        note=(
            "General position is read with alpha fixed, as everywhere in the paper. Were alpha_i free in it, k_t - k_a "
            "and k_a - k_t would both be rows and no data would be in general position."
        )),
    Claim("B.lemma9", lemma9, "sampled", about="all neighbours better: the risk nears its limit from below",
        example=lambda: _better_neighbour((0.5, 1.0, 0.0), "the neighbour scores higher"),
        outside=(lambda: _better_neighbour((0.5, 0.2, 1.0), "the neighbour scores lower"),)),
    Claim("B.lemma10", lemma10, "bounded", about="at most d directional neighbours",
        example=lambda: _three_tokens((1.0, 0.5), "three tokens, q=(1, 0.5)"), outside=(_on_a_square,)),
)  # fmt: skip
