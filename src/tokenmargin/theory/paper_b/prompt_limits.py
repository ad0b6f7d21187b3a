"""Where the prompt goes: Theorems 1, 2, 3 and 8 of paper B."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.dynamics import GradientDescent, evolve, regularisation_path
from tokenmargin.heads import NonlinearHead, optimal_sets
from tokenmargin.instances import figure1a, figure1b, figure1c, figure8
from tokenmargin.margin import choice_margin, max_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import angle, optimal_tokens
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, true
from tokenmargin.theory.instances import ProblemInstance
from tokenmargin.theory.limits import follow
from tokenmargin.theory.paper_b.directions import log_outside
from tokenmargin.theory.paper_b.excess import signed_excess
from tokenmargin.theory.paper_b.gradients import assumption_b, mirrored
from tokenmargin.theory.paper_b.local_cone import behind_its_neighbour, cone, local_cone, locally_optimal
from tokenmargin.theory.search import best_direction, vanishing

__all__ = ["CLAIMS"]

HARM = 1e-3
"""What (L - L_star) / q_max must stay above, and its inverse below, to count as bounded over a sample."""
REACH = 1000.0
"""|p| times the margin of its limit at the end of a regularisation path."""


def _path_angles(x: ProblemInstance, targets: list[Float[Array, " D"]]) -> tuple[tuple[float, float], float]:
    """Angles of `argmin_{|p| <= R} L(p)` to the nearest target at R/10 and at R, and R."""
    keys = x.problem.keys
    norm = REACH * float(keys.norm(targets[0]))
    path = regularisation_path(x.risk, [norm / 1000, norm / 100, norm / 10, norm], rng=x.rng)
    lowest = [_lowest(x, r, [p, *targets]) for r, p in zip(path.radii[-2:], path.points[-2:], strict=True)]
    early, late = (min(float(angle(keys, p, target)) for target in targets) for p in lowest)
    return (early, late), norm


def _lowest(x: ProblemInstance, radius: float, near: list[Float[Array, " D"]]) -> Float[Array, " D"]:
    """The direction of least risk at a radius, by search around each of `near`.

    A path found by continuation can be a local minimum; one that starts at the supposed limit settles which is lower.
    """
    keys, rng = x.problem.keys, x.rng
    best = np.where(x.problem.mask, x.problem.scores, -np.inf).argmax(axis=1)

    def score(units: Float[Array, "k D"]) -> Float[Array, " k"]:
        if x.head is not None:
            return np.array([_rank(*x.risk.excess(radius * unit)) for unit in units])
        return signed_excess(x, radius * units, best)[1]  # the excess over the best scores is positive

    starts = np.stack([p / keys.norm(p) for p in near])
    spread = np.concatenate([starts, x.sphere(200, rng)])
    return best_direction(score, spread, lambda u: u / keys.norm(u)[:, None], rng=rng, rounds=60)


def _rank(log_size: float, sign: float) -> float:
    """Orders excess risks as the numbers themselves: all negative ones below all positive ones."""
    return log_size if sign > 0 else -1e12 - log_size


def theorem1(x: ProblemInstance) -> Findings:
    """If every input has one optimal token, the regularisation path `argmin_{|p| <= R} L(p)` converges in direction to
    the GMM as R grows."""
    solution = max_margin(x.problem, x.alpha)
    tops = optimal_tokens(x.problem).sum(axis=1).max()
    hypotheses = (
        below("most optimal tokens in an input", tops, 1),
        true("the optimal tokens are separable", solution.is_optimal),
    )
    if not solution.is_optimal:
        return Findings(hypotheses, (true("there is a GMM", False),))
    angles, norm = _path_angles(x, [solution.vector])
    return Findings(hypotheses, vanishing("the GMM", angles, norm=norm))


def theorem2(x: ProblemInstance) -> Findings:
    """Under Assumption B, descent with a step of at most `1/L_p` grows without bound from any start; for one input its
    direction converges to the GMM. (Norms by descent, 6 starts; the direction by gradient flow from the same starts,
    since descent's norm grows like the logarithm of the number of steps.)"""
    solution, keys = max_margin(x.problem, x.alpha), x.problem.keys
    hypotheses = (*assumption_b(x.problem), below("number of inputs", x.problem.n, 1))
    if not solution.is_optimal:
        return Findings(hypotheses, (true("there is a GMM", False),))
    starts = 2 * x.sphere(6, x.rng) if x.p is None else x.p[None]
    path = evolve(x.objective, GradientDescent(), steps=2000, start=starts, keep=("norm",), every=200)
    norms = path["norm"][:, :, 0]
    late = [follow(x.problem, start, norm=x.norm, loss=x.loss) for start in starts]
    reached = [float(angle(keys, limit.path.prompt, solution.vector)) for limit in late]
    worst = int(np.argmax(reached))
    slowest = late[worst].path
    if slowest.stop != "norm":
        return Findings(hypotheses, (true("gradient flow grows without bound", False),))
    earlier = float(angle(keys, slowest.at_norm(x.norm / 10), solution.vector))
    return Findings(
        hypotheses,
        (
            above("smallest growth of |p(t)| from step 1800 to 2000", (norms[-1] - norms[-2]).min(), 0, strict=True),
            *vanishing("the GMM", (earlier, reached[worst]), norm=x.norm),
        ),
    )


def theorem3(x: ProblemInstance) -> Findings:
    """Around the max-margin direction of locally optimal tokens there is a cone that holds no stationary point beyond
    some radius, and from which descent with a step of at most `1/L_p` grows without bound and converges to the axis.
    (The cone of Lemma 7 as repaired, from 50 times its radius; single steps vanish in rounding there, so 10 starts on
    and in the cone are followed by gradient flow.)"""
    hypotheses = locally_optimal(x.problem, x.alpha)
    if not hypotheses[0].holds:
        return Findings(hypotheses, (true("there is a max-margin direction", False),))
    c, keys = local_cone(x, repaired=True), x.problem.keys
    units = cone(x, c.axis, c.mu, 10, x.rng)
    axis = c.axis / keys.norm(c.axis)
    radius = 50 * c.radius
    direction = x.objective.descent(radius * units).direction
    outward, along = keys.inner(direction, units), keys.inner(direction, axis)
    paths = [follow(x.problem, radius * unit, norm=1e3 * radius, loss=x.loss).path for unit in units]
    if any(path.stop != "norm" for path in paths):
        return Findings(hypotheses, (true("gradient flow grows without bound", False),))
    late = [float(angle(keys, path.prompt, axis)) for path in paths]
    worst = int(np.argmax(late))
    earlier = float(angle(keys, paths[worst].at_norm(1e2 * radius), axis))
    return Findings(
        hypotheses,
        (
            above("smallest cosine of p with -dL at the starts: |p| grows", outward.min(), 0, strict=True),
            above("least turn towards the axis at the starts", (along - keys.inner(units, axis) * outward).min(), 0),
            *vanishing("the axis", (earlier, late[worst]), norm=1e3 * radius),
        ),
    )


def theorem8(x: ProblemInstance) -> Findings:
    """With sets O_i of optimal tokens such that mixing others in hurts (Assumption D), the regularisation path comes
    arbitrarily near the set of global minima of ATT-SVM', scaled to its length. (O_i are the tokens of highest score,
    for which Lemma 14 gives Assumption D when that score is positive. With a nonlinear head, O_i are the tokens of
    lowest loss, and Assumption D is what the proof of Lemma 14 makes of it: the risk exceeds that of O_i by a multiple
    of q_max, the attention elsewhere.)"""
    problem = x.problem
    if x.optimal is not None:
        optimal = x.optimal
    else:
        optimal = optimal_tokens(problem) if x.head is None else optimal_sets(problem, x.head)
    minima = [minimum.vector for minimum in choice_margin(problem, optimal).minima]
    hypotheses = (
        above("number of global minima of ATT-SVM'", len(minima), 1),
        *(_linear_mixing(problem, optimal) if x.head is None else _mixing_hurts(x, optimal)),
    )
    if not minima:
        return Findings(hypotheses, (true("ATT-SVM' has a solution", False),))
    if x.head is not None and _stays_inside(x, minima):
        return Findings(hypotheses, (true("the minimiser over |p| <= R grows with R", False),))
    angles, norm = _path_angles(x, minima)
    return Findings(hypotheses, vanishing("the nearest minimum", angles, norm=norm))


def _stays_inside(x: ProblemInstance, targets: list[Float[Array, " D"]]) -> bool:
    """Whether some short p has less risk than every long one found: then the regularisation path stays bounded."""
    norm = REACH * float(x.problem.keys.norm(targets[0]))
    short = min(_rank(*x.risk.excess(p)) for p in _probes(x))
    return short < _rank(*x.risk.excess(norm * _lowest(x, norm, targets)))


def _probes(x: ProblemInstance) -> Float[Array, "480 D"]:
    """Random points of lengths from 0.3 to 300."""
    return np.concatenate([r * x.sphere(60, x.rng) for r in np.geomspace(0.3, 300, 8)])


def _linear_mixing(problem: TokenProblem, optimal: Bool[Array, "n T"]) -> tuple[Slack, ...]:
    """Lemma 14's conditions for a linear head."""
    best = np.where(problem.mask, problem.scores, -np.inf).max(axis=1)
    inside = np.where(optimal, problem.scores, np.inf).min(axis=1)
    outside = np.where(problem.mask & ~optimal, problem.scores, -np.inf).max(axis=1)
    return (
        above("smallest optimal score", best.min(), 0, strict=True),
        below("spread of scores within O_i", (best - inside).max(), 0),
        above("lead of O_i over other scores", (inside - outside).min(), 0, strict=True),
    )


def _mixing_hurts(x: ProblemInstance, optimal: Bool[Array, "n T"]) -> tuple[Slack, ...]:
    """`C_- q_max <= L(p) - L_star <= C_+ q_max`, from which Assumption D follows as in the proof of Lemma 14."""
    points = _probes(x)
    log_q, alpha = log_outside(x.problem, points, optimal), optimal.argmax(axis=1)
    excess = [x.risk.excess(p, alpha) for p in points]
    ratios = np.array([sign * np.exp(size - q) for (size, sign), q in zip(excess, log_q, strict=True)])
    return (
        above("least (L - L_star) / q_max, 480 points", ratios.min(), HARM),
        below("largest", ratios.max(), 1 / HARM),
    )


def _two_optima(second: float = 1.0) -> ProblemInstance:
    """Two tokens share the highest score (unless told); the second of them is cheaper to select."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]], [1], scores=[[1.0, second, 0.0]])
    return ProblemInstance(
        problem, "two optimal tokens" if second == 1 else f"scores 1, {second:g}, 0, O the first two"
    )


def _network(x: Float[Array, "... d"]) -> Float[Array, "..."]:
    """A head of two hidden units; it sees the third and fourth coordinates of a token, the keys are the first two."""
    return np.asarray(np.tanh(x[..., 2] - x[..., 3]) + np.tanh(x[..., 2] + 2 * x[..., 3]) / 2)


def _network_gradient(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    one, two = np.cosh(x[..., 2] - x[..., 3]) ** -2, np.cosh(x[..., 2] + 2 * x[..., 3]) ** -2 / 2
    return np.stack([0 * one, 0 * one, one + two, 2 * two - one], axis=-1)


def _bump(x: Float[Array, "... d"]) -> Float[Array, "..."]:
    """Highest where the third coordinate is 1/2, between tokens rather than on one."""
    return np.asarray(1 - (x[..., 2] - 0.5) ** 2)


def _bump_gradient(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    return -2 * (x - 0.5) * [0.0, 0.0, 1.0, 0.0]


def _two_inputs(head: NonlinearHead, name: str) -> ProblemInstance:
    """Two inputs of three tokens (key_1, key_2, x_3, x_4) under a nonlinear head."""
    tokens = np.array(
        [
            [(1.0, 0.2, 1.0, 0.3), (-0.3, 1.0, 0.2, 0.4), (-0.5, -0.4, -0.5, 0.1)],
            [(0.8, -0.5, 0.9, -0.2), (0.1, 0.9, 0.0, 0.5), (-0.6, 0.3, 0.3, 0.8)],
        ]
    )
    problem = TokenProblem.of(tokens * [1.0, 1.0, 0.0, 0.0], [1, 1], values=tokens, head=[0.0, 0.0, 1.0, 0.0])
    return ProblemInstance(problem, name, head=head)


CLAIMS = (
    Claim(
        "B.theorem1",
        theorem1,
        "sampled",
        about="regularisation path to the GMM",
        example=lambda: ProblemInstance(figure1c(), "fig1c"),
        outside=(_two_optima,),
        unneeded={"the optimal tokens are separable": NO_SUBJECT},
        note=(
            "The proof goes through Lemma 14, whose epsilon = 1 - max gamma_t / gamma_opt is positive only for "
            "positive optimal scores. The theorem does not ask for them, and the path converges without."
        ),
    ),
    Claim(
        "B.theorem2",
        theorem2,
        "sampled",
        about="Assumption B: growth; n = 1: to the GMM",
        example=lambda: ProblemInstance(figure1a(), "fig1a"),
        outside=(
            lambda: ProblemInstance(figure8(), "fig8"),
            lambda: ProblemInstance(figure1b(), "fig1b"),
            mirrored,
        ),
    ),
    Claim(
        "B.theorem3",
        theorem3,
        "sampled",
        about="local convergence to LMM directions",
        example=lambda: ProblemInstance(figure1b(), "fig1b", selected=(1,)),
        outside=(behind_its_neighbour,),
        unneeded={"alpha is separable": NO_SUBJECT},
        note="The printed cone is too wide where an input has no neighbours: see B.lemma7. A narrower one serves.",
    ),
    Claim(
        "B.theorem8",
        theorem8,
        "sampled",
        about="several optimal tokens: path to the minima of ATT-SVM'",
        example=mirrored,
        outside=(
            lambda: replace(_two_optima(), optimal=np.array([[True, False, False]])),
            lambda: replace(_two_optima(second=0.5), optimal=np.array([[True, True, False]])),
        ),
        unneeded={
            "number of global minima of ATT-SVM'": NO_SUBJECT,
            "smallest optimal score": "Lemma 14's way to say that O_i leads: only differences of scores matter.",
        },
    ),
    Claim(
        "B.theorem8-nonlinear",
        theorem8,
        "sampled",
        about="... with a nonlinear head",
        example=lambda: _two_inputs(NonlinearHead(_network, _network_gradient), "two hidden units"),
        outside=(lambda: _two_inputs(NonlinearHead(_bump, _bump_gradient), "a head that likes mixtures"),),
        unneeded={
            "number of global minima of ATT-SVM'": NO_SUBJECT,
            "largest": "True of every head with a bounded gradient between the tokens.",
        },
        note="The general case of appendix D, with psi a small network; outside, psi is highest between two tokens.",
    ),
)
