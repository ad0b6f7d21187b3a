"""Where the prompt goes: Theorems 1, 2, 3, 4, 7 and 8 of paper B."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.dynamics import GradientDescent, evolve
from tokenmargin.instances import figure1a, figure1b, figure1c, figure8
from tokenmargin.margin import Constraints, max_margin, solve
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import angle, is_locally_optimal, optimal_tokens
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, true
from tokenmargin.theory.instances import ProblemInstance
from tokenmargin.theory.limits import follow
from tokenmargin.theory.paper_b.excess import signed_excess
from tokenmargin.theory.paper_b.gradients import assumption_b
from tokenmargin.theory.paper_b.local_cone import behind_its_neighbour, cone, local_cone, locally_optimal
from tokenmargin.theory.search import best_direction, vanishing

__all__ = ["CLAIMS"]

PATH_NORM = 1000.0
"""How long the regularisation path is followed: at this norm the logarithm of the excess risk is about -1000."""


def _unit(x: ProblemInstance) -> Callable[[Float[Array, "k D"]], Float[Array, "k D"]]:
    keys = x.problem.keys
    return lambda points: np.asarray(points / keys.norm(points)[:, None])


def regularised(x: ProblemInstance, norm: float) -> Float[Array, " D"]:
    """The direction of `argmin_{|p| = norm} L(p)`, found by search."""
    best = np.where(x.problem.mask, x.problem.scores, -np.inf).argmax(axis=1)

    def score(units: Float[Array, "k D"]) -> Float[Array, " k"]:
        return signed_excess(x, norm * units, best)[1]  # the excess over the best scores is positive

    rng = x.rng
    return best_direction(score, x.sphere(500, rng), _unit(x), rng=rng)


def theorem1(x: ProblemInstance) -> Findings:
    """If every input has one optimal token, the regularisation path `argmin_{|p| <= R} L(p)` converges in direction to
    the GMM as R grows."""
    solution = max_margin(x.problem, x.alpha)
    tops = optimal_tokens(x.problem).sum(axis=1).max()
    angles = tuple(
        float(angle(x.problem.keys, regularised(x, r), solution.vector)) for r in (PATH_NORM / 10, PATH_NORM)
    )
    return Findings(
        hypotheses=(
            below("most optimal tokens in an input", tops, 1),
            true("the optimal tokens are separable", solution.is_optimal),
        ),
        conclusion=vanishing("the GMM", angles, norm=PATH_NORM),  # type: ignore[arg-type]
    )


def theorem2(x: ProblemInstance) -> Findings:
    """Under Assumption B, descent with a step of at most `1/L_p` grows without bound from any start; for one input its
    direction converges to the GMM. (Norms by descent, 10 starts; the direction by gradient flow from the same starts,
    since descent's norm grows like the logarithm of the number of steps.)"""
    solution, keys = max_margin(x.problem, x.alpha), x.problem.keys
    starts = 2 * x.sphere(10, x.rng) if x.p is None else x.p[None]
    path = evolve(x.objective, GradientDescent(), steps=2000, start=starts, keep=("norm",), every=200)
    norms = path["norm"][:, :, 0]
    late = [follow(x.problem, start, norm=x.norm, loss=x.loss) for start in starts]
    reached = [float(angle(keys, limit.path.prompt, solution.vector)) for limit in late]
    earlier = [float(angle(keys, limit.path.at_norm(x.norm / 10), solution.vector)) for limit in late]
    worst = int(np.argmax(reached))
    return Findings(
        hypotheses=(*assumption_b(x.problem), below("number of inputs", x.problem.n, 1)),
        conclusion=(
            above("smallest growth of |p(t)| from step 1800 to 2000", (norms[-1] - norms[-2]).min(), 0, strict=True),
            *vanishing("the GMM", (earlier[worst], reached[worst]), norm=x.norm),
        ),
    )


def theorem3(x: ProblemInstance) -> Findings:
    """Around the max-margin direction of locally optimal tokens there is a cone that holds no stationary point beyond
    some radius, and from which descent with a step of at most `1/L_p` grows without bound and converges to the axis.
    (The cone of Lemma 7 as repaired; its radius is so large that single steps vanish in rounding, so 10 starts on and
    in the cone are followed by gradient flow.)"""
    hypotheses = locally_optimal(x.problem, x.alpha)
    if not hypotheses[0].holds:
        return Findings(hypotheses, (true("there is a max-margin direction", False),))
    c, keys = local_cone(x, repaired=True), x.problem.keys
    units = cone(x, c.axis, c.mu, 10, x.rng)
    axis = c.axis / keys.norm(c.axis)
    direction = x.objective.descent(c.radius * units).direction
    outward, along = keys.inner(direction, units), keys.inner(direction, axis)
    paths = [follow(x.problem, c.radius * unit, norm=1e3 * c.radius, loss=x.loss).path for unit in units]
    if any(path.stop != "norm" for path in paths):
        return Findings(hypotheses, (true("gradient flow grows without bound", False),))
    late = [float(angle(keys, path.prompt, axis)) for path in paths]
    worst = int(np.argmax(late))
    earlier = float(angle(keys, paths[worst].at_norm(1e2 * c.radius), axis))
    return Findings(
        hypotheses,
        (
            above("smallest cosine of p with -dL at the starts: |p| grows", outward.min(), 0, strict=True),
            above("least turn towards the axis at the starts", (along - keys.inner(units, axis) * outward).min(), 0),
            *vanishing("the axis", (earlier, late[worst]), norm=1e3 * c.radius),
        ),
    )


HALF_ANGLE = 0.1
"""Half-angle of the cones that local regularisation paths are confined to."""


def theorem4(x: ProblemInstance) -> Findings:
    """A unit vector q that is no locally optimal max-margin direction is not the limit of its local regularisation
    path: with p confined to a cone around q and |p| >= R_0, either the minimisers stay bounded or their direction does
    not converge to q. (Cone of half-angle 0.1, R_0 = 10.)"""
    q = x.sphere(1, x.rng)[0] if x.q is None else x.q / x.problem.keys.norm(x.q)
    apart = [_apart(x, q, top) for top in (1e2, 1e3)]
    return Findings(
        hypotheses=(true("q is no LMM direction", not _is_lmm(x, q)), *_generic(x, q)),
        conclusion=tuple(
            above(f"|p(R)/R - q| at R = {top:g}", distance, HALF_ANGLE / 4)
            for top, distance in zip((1e2, 1e3), apart, strict=True)
        ),
    )


def theorem7(x: ProblemInstance) -> Findings:
    """With distinct scores and keys in general position, no unit vector but the locally optimal max-margin directions
    is the limit of its local regularisation path. (Twelve random vectors, and one that ties two tokens.)"""
    keys = x.problem.keys
    first, second = keys.index[0, :2]
    tied = keys.differences(np.array([first]), np.array([second]))[0]
    across = x.sphere(1, x.rng)[0]
    if len(tied) == keys.dimension:
        across = across - keys.inner(across, tied) / keys.inner(tied, tied) * tied
    candidates = [*x.sphere(12, x.rng), across / keys.norm(across)]
    apart = min(_apart(x, q, 1e3) for q in candidates)
    return Findings(
        hypotheses=(true("none is an LMM direction", not any(_is_lmm(x, q) for q in candidates)), *_generic(x, tied)),
        conclusion=(above("smallest |p(R)/R - q| at R = 1000", apart, HALF_ANGLE / 4),),
    )


def _generic(x: ProblemInstance, q: Float[Array, " D"]) -> tuple[Slack, Slack]:
    return (
        above("smallest difference of two scores of an input", _score_gap(x.problem), 0, strict=True),
        true("keys in general position", _general_position(x.problem, _selected_by(x, q))),
    )


def _apart(x: ProblemInstance, q: Float[Array, " D"], top: float) -> float:
    """`|p(R)/R - q|` for the local regularisation path at R = `top`."""
    mu = 2 * np.sin(HALF_ANGLE / 2) ** 2
    directions = np.concatenate([q[None], cone(x, q, mu, 2000, x.rng)])
    return float(x.problem.keys.norm(_confined(x, directions, top) / top - q))


def _selected_by(x: ProblemInstance, q: Float[Array, " D"]) -> Int[Array, " n"]:
    return np.asarray(x.problem.keys.logits(q).argmax(axis=1))


def _is_lmm(x: ProblemInstance, q: Float[Array, " D"]) -> bool:
    alpha = _selected_by(x, q)
    solution = max_margin(x.problem, alpha)
    aligned = solution.is_optimal and float(angle(x.problem.keys, q, solution.vector)) < 1e-7
    return aligned and is_locally_optimal(x.problem, solution.vector, alpha)


def _confined(x: ProblemInstance, directions: Float[Array, "k D"], top: float) -> Float[Array, " D"]:
    """The best point of the cone with length between 10 and `top`, over a fine grid.

    Risks are compared by `L - L_star`, sign and logarithm, with L_star the risk of selecting what the cone's axis
    selects: where the cone selects one thing, differences far below rounding still count.
    """
    alpha = _selected_by(x, directions[0])
    candidates = [(r, *signed_excess(x, r * directions, alpha)) for r in np.geomspace(10, top, 25)]
    best = min(
        (float(sign[k]), float(sign[k] * log[k]), r, k)
        for r, sign, log in candidates
        for k in [int(np.lexsort((sign * log, sign))[0])]
    )
    return np.asarray(best[2] * directions[best[3]])


def _score_gap(problem: TokenProblem) -> float:
    rows = (np.sort(row[here]) for row, here in zip(problem.scores, problem.mask, strict=True))
    return float(min(np.diff(row).min(initial=np.inf) for row in rows))


def _general_position(problem: TokenProblem, alpha: Int[Array, " n"], most: int = 3000) -> bool:
    """Theorem 7's conditions on the differences `k_it - k_{i alpha_i}`: any d of them are independent, and the vector
    of ones is not in the range of any d + 1. Tried on all subsets, or on the first `most`."""
    others = problem.mask.copy()
    others[np.arange(problem.n), alpha] = False
    token = np.argwhere(others)
    index = problem.keys.index
    rows = problem.keys.differences(index[token[:, 0], token[:, 1]], index[token[:, 0], alpha[token[:, 0]]])
    d = int(np.linalg.matrix_rank(rows))
    for chosen in itertools.islice(itertools.combinations(range(len(rows)), d), most):
        if np.linalg.matrix_rank(rows[list(chosen)]) < d:
            return False
    for chosen in itertools.islice(itertools.combinations(range(len(rows)), d + 1), most):
        system = rows[list(chosen)]
        ones = np.ones(len(system))
        if np.abs(system @ np.linalg.lstsq(system, ones, rcond=None)[0] - ones).max() < 1e-9:
            return False
    return True


def theorem8(x: ProblemInstance) -> Findings:
    """With sets O_i of optimal tokens such that mixing others in hurts (Assumption D), the regularisation path comes
    arbitrarily near the set of global minima of ATT-SVM', scaled to its length. (Here O_i are the tokens of highest
    score, for which Lemma 14 gives Assumption D when that score is positive.)"""
    problem, keys = x.problem, x.problem.keys
    optimal = optimal_tokens(problem) if x.optimal is None else x.optimal
    minima = _several_optima(problem, optimal)
    best = np.where(problem.mask, problem.scores, -np.inf).max(axis=1)
    inside = np.where(optimal, problem.scores, np.inf).min(axis=1)
    outside = np.where(problem.mask & ~optimal, problem.scores, -np.inf).max(axis=1)
    distances = []
    for norm in (PATH_NORM / 10, PATH_NORM):
        u = regularised(x, norm)
        distances.append(min((float(angle(keys, u, p)) for p in minima), default=np.pi))
    return Findings(
        hypotheses=(
            above("number of global minima of ATT-SVM'", len(minima), 1),
            above("smallest optimal score", best.min(), 0, strict=True),
            below("spread of scores within O_i", (best - inside).max(), 0),
            above("lead of O_i over other scores", (inside - outside).min(), 0, strict=True),
        ),
        conclusion=vanishing("the nearest minimum", (distances[0], distances[1]), norm=PATH_NORM),
    )


def _several_optima(problem: TokenProblem, optimal: Bool[Array, "n T"]) -> list[Float[Array, " D"]]:
    """All global minima of ATT-SVM', by trying every choice of one token from each O_i."""
    index, others = problem.keys.index, problem.mask & ~optimal
    token = np.argwhere(others)
    solutions = []
    for choice in itertools.product(*(np.flatnonzero(row) for row in optimal)):
        plus = index[token[:, 0], np.array(choice)[token[:, 0]]]
        solution = solve(Constraints(problem.keys, plus, index[others], np.ones(len(token)), token))
        if solution.is_optimal:
            solutions.append(solution)
    longest = max((solution.margin for solution in solutions), default=0.0)
    return [solution.vector for solution in solutions if solution.margin > longest * (1 - 1e-9)]


def _two_optima() -> ProblemInstance:
    """Two tokens share the highest score; the nearer of them is cheaper to select."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    return ProblemInstance(problem, "two optimal tokens")


def _apart_tokens(q: tuple[float, ...], name: str) -> ProblemInstance:
    """Three tokens in the plane with distinct scores and keys in general position; the second is locally optimal."""
    keys = [[[-0.8, 1.0, 0.0], [1.0, 0.03, 0.0], [0.02, -0.05, 0.0]]]
    return ProblemInstance(TokenProblem.of(keys, [1], scores=[[1.0, 0.9, 0.0]]), name, q=np.array(q))


def _at_lmm() -> ProblemInstance:
    x = _apart_tokens((1.0, 0.0, 0.0), "")
    vector = max_margin(x.problem, [1]).vector
    return _apart_tokens(tuple(vector.tolist()), "three tokens, q the LMM direction")


def _mirrored() -> ProblemInstance:
    """Two optimal tokens on either side of a third: the minima of ATT-SVM' are two opposite directions."""
    problem = TokenProblem.of([[[1.0, 0.2], [-1.0, -0.2], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    return ProblemInstance(problem, "k = 1, -1, 0 in the plane")


CLAIMS = (
    Claim(
        "B.theorem1",
        theorem1,
        "sampled",
        example=lambda: ProblemInstance(figure1c(), "fig1c"),
        outside=_two_optima,
        note=(
            "The proof goes through Lemma 14, whose epsilon = 1 - max gamma_t / gamma_opt is positive only for "
            "positive optimal scores. The theorem does not ask for them, and the path converges without."
        ),
    ),
    Claim(
        "B.theorem2",
        theorem2,
        "sampled",
        example=lambda: ProblemInstance(figure1a(), "fig1a"),
        outside=lambda: ProblemInstance(figure8(), "fig8"),
    ),
    Claim(
        "B.theorem3",
        theorem3,
        "sampled",
        example=lambda: ProblemInstance(figure1b(), "fig1b", selected=(1,)),
        outside=behind_its_neighbour,
        note="The printed cone is too wide where an input has no neighbours: see B.lemma7. A narrower one serves.",
    ),
    Claim(
        "B.theorem4",
        theorem4,
        "sampled",
        example=lambda: _apart_tokens((1.0, 0.5, 0.0), "three tokens, q=(1, 0.5)"),
        outside=_at_lmm,
    ),
    Claim(
        "B.theorem7",
        theorem7,
        "sampled",
        example=lambda: _apart_tokens((1.0, 0.5, 0.0), "three tokens"),
        note=(
            "Read literally, general position asks for independence of k_t - k_a and k_a - k_t, which never holds; the "
            "proof uses it for one choice of alpha at a time, as here."
        ),
    ),
    Claim(
        "B.theorem8",
        theorem8,
        "sampled",
        example=_mirrored,
        outside=lambda: replace(_two_optima(), optimal=np.array([[True, False, False]])),
    ),
)
