"""Several optimal tokens, any head: Assumption D, Lemma 14 and Theorem 8 of paper B (its appendix D)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin import MarginSolution, choice_margin
from tokenmargin.objective.local_scores import NonlinearHead, optimal_sets
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import attention_weights, optimal_tokens
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, sampled, searched, seen, true
from tokenmargin.theory.evidence import falls_to_zero
from tokenmargin.theory.paper_b.assumptions import assumption_d, log_outside, values_of
from tokenmargin.theory.paper_b.gradients import mirrored_optima
from tokenmargin.theory.paper_b.local_cone import three_tokens
from tokenmargin.theory.paper_b.prompt_limits import path_angles, two_optima
from tokenmargin.theory.settings import ProblemInstance

DELTAS = (0.1, 0.5, 2.0)
"""The Delta of Assumption D that Lemma 14 is tried with."""


def lemma14(x: ProblemInstance) -> Findings:
    """If the output is `nu_i (1 - q_i) + Z_i` with `nu_i > 0` and `-C q_max <= Z_i <= (1 - eps) nu_i q_i`, q_i being
    the attention outside O_i, then Assumption D holds: for any Delta there is rho < 0 such that, wherever log q_max of
    p is at most (1 + Delta) times that of p' and at most rho, L(p) < L(p'). (O_i the optimal tokens; Delta = 0.1, 0.5
    and 2 with the rho of the proof; 480 points, and 80 that select O_i where it can be. With a nonlinear head, C and
    eps are what these points show.)"""
    optimal = _optimal_sets_of(x)
    selecting = choice_margin(x.problem, optimal)
    points = np.concatenate([_random_points(x), _points_around(x, selecting)])
    nu = np.where(optimal, _output_of_token(x), np.inf).min(axis=1)
    spread = float((np.where(optimal, _output_of_token(x), -np.inf).max(axis=1) - nu).max())
    C, eps = _mixing_constants(x, optimal, nu, points)
    log_q = log_outside(x.problem, points, optimal)
    excess = [x.risk.excess(p) for p in points]
    ranks = np.array([size if sign > 0 else -1e12 - size for size, sign in excess])
    wrong = compared = 0
    for delta in DELTAS:
        ratio = _ratio_of_bounds(x, nu, C, eps) if eps > 0 and nu.min() > 0 else np.e
        rho = -2 * (1 + 1 / delta) * np.log(ratio if ratio > 0 else np.e)  # without bounds any rho may be tried
        pairs = log_q[:, None] <= np.minimum((1 + delta) * log_q[None, :], rho)
        compared += int(pairs.sum())
        wrong += int((pairs & (ranks[:, None] >= ranks[None, :])).sum())
    known = (lambda slack: slack) if x.head is None else sampled
    hypotheses = (
        known(above("smallest nu_i", nu.min(), 0, strict=True)),
        known(below("spread of outputs within O_i", spread, 0)),
        known(above("eps", eps, 0, strict=True)),
        # where all tokens are optimal q is zero, and its logarithm orders nothing
        above("tokens outside the O_i", int((x.problem.mask & ~optimal).sum()), 1),
    )
    if not compared and selecting.status == "infeasible":
        # for every p a token outside O_i leads in some input, so q_max >= 1/T: rho < -log T compares none
        return Findings(hypotheses, (true("no p selects the O_i, and nothing is to be compared", True),))
    if not compared:
        return Findings(hypotheses, (seen(above("pairs that Assumption D compares", 0, 1), "longer points"),))
    return Findings(hypotheses, (seen(below("pairs ordered otherwise", wrong, 0), "another rho: any will do"),))


def _optimal_sets_of(x: ProblemInstance) -> Bool[Array, "n T"]:
    if x.optimal is not None:
        return x.optimal
    return optimal_tokens(x.problem) if x.head is None else optimal_sets(x.problem, x.head)


def _output_of_token(x: ProblemInstance) -> Float[Array, "n T"]:
    """The output when one token is attended to alone."""
    if x.head is None:
        return x.problem.scores
    return np.asarray(x.problem.labels[:, None] * x.head.function(values_of(x.problem).tokens))


def _random_points(x: ProblemInstance) -> Float[Array, "480 D"]:
    """Random points of lengths from 0.3 to 300."""
    return np.concatenate([r * x.sphere(60, x.rng) for r in np.geomspace(0.3, 300, 8)])


def _points_around(x: ProblemInstance, selecting: MarginSolution) -> Float[Array, "k D"]:
    """Points around a direction that selects O_i, long enough for next to no attention outside; none without one."""
    axis = selecting.vector
    if selecting.status == "infeasible" or not np.isfinite(axis).all() or not np.any(axis):
        return x.sphere(0, x.rng)
    width = np.resize([0.2, 0.02, 0.002], 80)[:, None] * float(x.problem.keys.norm(axis))
    return np.geomspace(3, 1000, 80)[:, None] * (axis + width * x.sphere(80, x.rng))


def _mixing_constants(
    x: ProblemInstance, optimal: Bool[Array, "n T"], nu: Float[Array, " n"], points: Float[Array, "k D"]
) -> tuple[float, float]:
    """C and eps of (85): from the scores for a linear head, else from the points."""
    others = x.problem.mask & ~optimal
    if nu.min() <= 0:
        return np.inf, 0.0
    if x.head is None:
        outside = np.where(others, x.problem.scores, -np.inf).max(axis=1)
        lowest = float(np.where(others, x.problem.scores, 0.0).min())
        return max(0.0, -lowest), float(1 - (outside / nu).max(initial=-np.inf))
    weights = attention_weights(x.problem.keys, points)
    q = (weights * others).sum(axis=-1)
    outputs = x.problem.labels * x.head.function(np.einsum("knt,ntd->knd", weights, values_of(x.problem).tokens))
    Z, some = outputs - nu * (1 - q), q > 1e-6  # below, Z is rounding
    largest = q.max(axis=1, keepdims=True)
    lost = np.where(largest > 1e-6, -Z / np.maximum(largest, 1e-6), 0.0)
    return float(max(0.0, lost.max())), float((1 - (Z / np.where(some, nu * q, 1.0))[some]).min(initial=1.0))


def _ratio_of_bounds(x: ProblemInstance, nu: Float[Array, " n"], C: float, eps: float) -> float:
    """`C_+ / C_-` of the proof: how far apart the bounds on (L - L_star) / q_max are."""
    largest = np.abs(_output_of_token(x)[x.problem.mask]).max()
    low, high = np.sort(np.exp(x.loss.log_slope(np.array([-largest, largest]))))
    return float(high * (C + nu.max()) / (low * eps * nu.min() / x.problem.n))


def theorem8(x: ProblemInstance) -> Findings:
    """With sets O_i of optimal tokens such that mixing others in hurts (Assumption D), the regularisation path comes
    arbitrarily near the set of global minima of ATT-SVM', scaled to its length. (O_i are the tokens of highest score;
    Assumption D holds where they share it and lead, by Lemma 14 with every input's scores raised until they are
    positive, which is another decreasing loss for each. With a nonlinear head, O_i are the tokens of lowest loss, and
    Assumption D is tried on 480 points.)"""
    optimal = _optimal_sets_of(x)
    minima = [minimum.vector for minimum in choice_margin(x.problem, optimal).minima]
    mixing = (
        _lemma14_conditions(x.problem, optimal) if x.head is None else assumption_d(x.risk, optimal, _random_points(x))
    )
    hypotheses = (
        # where all tokens are optimal the minimum is zero: without a margin, without a direction
        above("tokens outside the O_i", int((x.problem.mask & ~optimal).sum()), 1),
        above("number of global minima of ATT-SVM'", len(minima), 1),
        *mixing,
    )
    if not minima or not np.isfinite([x.problem.keys.norm(p) for p in minima]).all() or not np.any(minima):
        return Findings(hypotheses)
    angles, norm = path_angles(x, minima)
    if not np.isfinite(angles).all():
        grows = true("the minimiser over |p| <= R grows with R", False)
        return Findings(hypotheses, (seen(grows, "a proof that a mixture of tokens is best"),))
    return Findings(hypotheses, falls_to_zero("the nearest minimum", angles, norm=norm))


def _lemma14_conditions(problem: TokenProblem, optimal: Bool[Array, "n T"]) -> tuple[Slack, ...]:
    """What gives Assumption D for a linear head: enough, and not shown to be necessary."""
    best, inside = (
        np.where(optimal, problem.scores, -np.inf).max(axis=1),
        np.where(optimal, problem.scores, np.inf).min(axis=1),
    )
    outside = np.where(problem.mask & ~optimal, problem.scores, -np.inf).max(axis=1)
    other = "another proof of Assumption D, or a refutation"
    return (
        searched(below("spread of scores within O_i", (best - inside).max(), 0), other),
        searched(above("lead of O_i over other scores", (inside - outside).min(), 0, strict=True), other),
    )


def _with_optimal_sets(*optimal: bool) -> ProblemInstance:
    """Sets O_i that hold a worse token than they leave out, or tokens of unequal scores."""
    names = ",".join(str(t) for t in np.flatnonzero(optimal))
    return ProblemInstance(three_tokens((1.0, 0.5, -0.2)), f"three tokens, O={names}", optimal=np.array([optimal]))


def _network_head(x: Float[Array, "... d"]) -> Float[Array, "..."]:
    """A head of two hidden units; it sees the third and fourth coordinates of a token, the keys are the first two."""
    return np.asarray(np.tanh(x[..., 2] - x[..., 3]) + np.tanh(x[..., 2] + 2 * x[..., 3]) / 2)


def _network_gradient(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
    one, two = np.cosh(x[..., 2] - x[..., 3]) ** -2, np.cosh(x[..., 2] + 2 * x[..., 3]) ** -2 / 2
    return np.stack([0 * one, 0 * one, one + two, 2 * two - one], axis=-1)


def _bump_head(x: Float[Array, "... d"]) -> Float[Array, "..."]:
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
    Claim("B.lemma14", lemma14, "sampled", about="mixing others in hurts: Assumption D",
        example=lambda: ProblemInstance(three_tokens((1.0, 0.5, -0.2)), "three tokens"),
        outside=(
            lambda: _with_optimal_sets(False, True, False),
            lambda: _with_optimal_sets(True, True, False),
            lambda: ProblemInstance(three_tokens((1.0, 1.0, 1.0)), "three tokens alike"),
        ),
        unneeded={
            "smallest nu_i": "A way to say that O_i leads: only differences of scores matter, as B.theorem1 shows.",
        }),
    Claim("B.lemma14-nonlinear", lemma14, "sampled", about="... with a nonlinear head",
        example=lambda: _two_inputs(NonlinearHead(_network_head, _network_gradient), "two hidden units")),
    Claim("B.theorem8", theorem8, "sampled", about="several optimal tokens: path to the minima of ATT-SVM'",
        example=mirrored_optima,
        outside=(
            lambda: replace(two_optima(), optimal=np.array([[True, False, False]])),
            lambda: replace(two_optima(second=0.5), optimal=np.array([[True, True, False]])),
        ),
        unneeded={
            "tokens outside the O_i": NO_SUBJECT,
            "number of global minima of ATT-SVM'": NO_SUBJECT,
        }),
    Claim("B.theorem8-nonlinear", theorem8, "sampled", about="... with a nonlinear head",
        example=lambda: _two_inputs(NonlinearHead(_network_head, _network_gradient), "two hidden units"),
        outside=(lambda: _two_inputs(NonlinearHead(_bump_head, _bump_gradient), "a head that likes mixtures"),),
        unneeded={
            "tokens outside the O_i": NO_SUBJECT,
            "number of global minima of ATT-SVM'": NO_SUBJECT,
            "largest": "True of every head with a bounded gradient between the tokens.",
        },
        note="The general case of appendix D, with psi a small network; outside, psi is highest between two tokens."),
)  # fmt: skip
