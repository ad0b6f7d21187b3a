"""Paper B's gradients: Lemmas 1, 3, 4, 5 and 6."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin import max_margin
from tokenmargin.norms import EPS
from tokenmargin.objective.attention import AbstractObjective, PromptObjective
from tokenmargin.objective.local_scores import HeadObjective, NonlinearHead
from tokenmargin.objective.losses import AbstractLoss, CorrelationLoss
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import figure1a, figure1b, figure1c, figure8, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import attention_weights
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, equal, sampled, seen, true
from tokenmargin.theory.evidence import has_solution
from tokenmargin.theory.paper_b.assumptions import assumption_a, assumption_b
from tokenmargin.theory.paper_b.local_cone import vectors_in_cone
from tokenmargin.theory.settings import ProblemInstance


def lemma1(x: ProblemInstance) -> Findings:
    """With any differentiable loss and head psi, descent on W in the logits `<X_i W' u>`, from `W(0) = u p(0)'/|u|^2`
    with step `eta/|u|^2`, is descent on p with step eta: `W(t) = u p(t)' / |u|^2` at all times. (50 steps with the
    linear head, and with the head given or psi(x) = tanh(sum x) + <v, x>^2/2, where the values are coordinates.)"""
    u = x.rng.standard_normal(3) if x.q is None else x.q
    slacks = [_same_path(x, u, None)]
    if isinstance(x.problem.values, Coordinates):
        slacks.append(_same_path(x, u, x.head or _bent_head(x.problem)))
    return Findings(
        hypotheses=(
            above("|u|", float(np.linalg.norm(u)), 0, strict=True),
            equal("step of W |u|^2 / eta", x.factor, 1, tolerance=0),
        ),
        conclusion=tuple(slacks),
    )


def _same_path(x: ProblemInstance, u: Float[Array, " k"], head: NonlinearHead | None) -> Slack:
    """The largest difference of W(t) and u p(t)'/|u|^2, relative to the largest entry seen."""

    def risk(problem: TokenProblem) -> AbstractObjective:
        return PromptObjective(problem, x.loss) if head is None else HeadObjective(problem, x.loss, head=head)

    def lifted(p: Float[Array, " D"]) -> Float[Array, " k"]:
        """`u p'`: entry by entry, or in Gram space the coefficients of the `u k'`, which are those of p."""
        return np.outer(u, p).ravel() if isinstance(x.problem.keys, Coordinates) else p

    steps, squared, p = 50, float(u @ u), 0.1 * x.sphere(1, x.rng)[0]
    on_p, on_W = risk(x.problem), risk(x.problem.with_matrix(u))
    smoothness = x.objective.smoothness()
    # Errors grow by (1 + eta L)^t at most: with eta L = 1/50 by a factor e. A nonlinear head has no L: its Hessian
    # sets the step at the start, and is watched along the path.
    eta = 1 / (steps * max(smoothness if head is None else _curvature(on_p, p), smoothness, 1e-3))
    W = lifted(p) / squared
    apart, sizes, growth = [], [], 0.0
    for _ in range(steps):
        growth += eta * (smoothness if head is None else _curvature(on_p, p))
        p = p - eta * on_p.gradient(p)
        W = W - x.factor * eta / squared * on_W.gradient(W)
        apart.append(np.abs(W - lifted(p) / squared).max())
        sizes.append(np.abs(W).max())
    kind = "linear head" if head is None else "nonlinear head"
    # Where all keys are zero, both stand still; where the step is zero to doubles, nothing was seen.
    relative = np.max(apart) / (np.max(sizes) or 1.0) if eta > 0 else np.nan
    same = below(f"|W(t) - u p(t)'/|u|^2| over {steps} steps, {kind}, relative", relative, 0, tolerance=1e-10)
    return same if growth <= MOST_GROWTH else seen(same, "smaller steps: at these rounding grows")


MOST_GROWTH = 5.0
"""Logarithm of what rounding may grow by along a path whose points are compared to 1e-10: a million roundings of EPS
have room for exp(5) and no more."""


def _curvature(objective: AbstractObjective, p: Float[Array, " D"]) -> float:
    """The norm of the Hessian at p, by differences: an estimate good to a few digits."""
    step = 1e-5 / max(float(objective.problem.keys.vector_norms.max()), 1e-5)
    aside = step * np.eye(len(p))
    return float(np.linalg.norm(objective.gradient(p + aside) - objective.gradient(p - aside)) / (2 * step))


def _bent_head(problem: TokenProblem) -> NonlinearHead:
    v = np.ones(problem.values.dimension) / problem.values.dimension if problem.head is None else problem.head

    def function(x: Float[Array, "... d"]) -> Float[Array, "..."]:
        return np.asarray(np.tanh(x.sum(axis=-1)) + (x @ v) ** 2 / 2)

    def gradient(x: Float[Array, "... d"]) -> Float[Array, "... d"]:
        return np.asarray(np.cosh(x.sum(axis=-1))[..., None] ** -2 + (x @ v)[..., None] * v)

    return NonlinearHead(function, gradient)


def lemma3(x: ProblemInstance) -> Findings:
    """For any p, q, with `a = K q`, `s = softmax(K p)` and token 1 of an input: `a'(diag(s) - s s') gamma` differs from
    `sum_t (a_1 - a_t) s_t (gamma_1 - gamma_t)` by at most `2 Gamma A (1 - s_1)^2`, Gamma the spread of the scores and A
    the largest |k_t| times |q|."""
    problem, keys, rng = x.problem, x.problem.keys, x.rng
    rooms, tightest, scale_ = [], 0.0, 0.0
    size = keys.token_norms.max(axis=1)
    for scale in np.geomspace(0.1, 30, 60):
        p, q = scale * x.sphere(1, rng)[0], x.sphere(1, rng)[0]
        a, s, gamma = np.where(problem.mask, keys.logits(q), 0.0), attention_weights(keys, p), problem.scores
        exact = (a * s * gamma).sum(1) - (a * s).sum(1) * (s * gamma).sum(1)
        scale_ = max(scale_, float(np.abs(a).max() * np.abs(gamma).max()))
        for t in range(problem.T):
            here = problem.mask[:, t]
            short = ((a[:, [t]] - a) * s * (gamma[:, [t]] - gamma)).sum(1)
            spread = np.ptp(np.where(problem.mask, gamma, gamma[:, [t]]), axis=1)
            bound = 2 * spread * size * float(keys.norm(q)) * (1 - s[:, t]) ** 2
            error = np.abs(exact - short)
            rooms.append((bound - error)[here].min(initial=np.inf))
            shares = (error / np.maximum(bound, 1e-300))[
                here & (bound > 1e-8 * scale_)
            ]  # below, rounding is all there is
            tightest = max(tightest, float(shares.max(initial=0.0)))
    rounding = 64 * problem.T * EPS * scale_  # a few sums of T products of |a| |gamma| at most
    return Findings(
        hypotheses=(),
        conclusion=(
            above("smallest bound - error", np.min(rooms), 0, tolerance=rounding),
            below("largest error / bound", tightest, 1, tolerance=1e-4),  # rounding over bounds of 1e-8 and more
        ),
    )


def lemma4(x: ProblemInstance) -> Findings:
    """Under Assumption B with the optimal tokens separable, moving towards the GMM direction decreases the risk from
    everywhere: `<dL(p), p_mm> < 0` for all p."""
    solution = max_margin(x.problem, x.best)
    hypotheses = (has_solution("the optimal tokens are separable", solution), *assumption_b(x.problem))
    if not solution.is_optimal:
        return Findings(hypotheses)
    worst = min(float(_steepness(x, solution.vector, r * x.sphere(500, x.rng)).min()) for r in (0.01, 1, 10, 100, 1e4))
    slack = above("smallest -<dL, p_mm> / (|dL| |p_mm|), 2500 points", worst, 0, strict=True)
    return Findings(hypotheses, (beyond_rounding(x, slack, solution.vector),))


def beyond_rounding(x: ProblemInstance, slack: Slack, gmm: Float[Array, " D"]) -> Slack:
    """The least cosine of descent with the GMM as evidence: a sample where it is off zero by more than rounding.

    Under Assumption B minus the gradient is a sum of positive multiples of differences `k_opt - k_t`, each of at least
    1 along p_mm. So its terms are longer than it by a factor of at most 4 |k| |p_mm|, k the longest key, and that many
    roundings of each of them turn its direction. A gradient that cancels down to rounding is reported as zero.
    """
    keys = x.problem.keys
    factor = 4 * float(keys.vector_norms.max()) * float(keys.norm(gmm))
    off = keys.noise * int(x.problem.mask.sum()) * factor
    return sampled(slack) if slack.measured < -off else seen(slack, "more digits")


def _steepness(x: ProblemInstance, u: Float[Array, " D"], points: Float[Array, "k D"]) -> Float[Array, " k"]:
    """`-<dL(p), u> / (|dL(p)| |u|)` at many points."""
    keys = x.problem.keys
    return np.asarray(keys.inner(x.objective.descent(points).direction, u) / keys.norm(u))


RADII = np.geomspace(1.0, 1e5, 26)
"""Norms at which Lemma 5 is tried, in units of |p_mm|."""


def lemma5(x: ProblemInstance) -> Findings:
    """For one input under Assumption B and any pi > 0, there is R_pi such that for all |p| >= R_pi, p itself is no
    better a direction of descent than the GMM direction by more than a factor 1 + pi: `-<dL, p/|p|> <= -(1 + pi) <dL,
    p_mm/|p_mm|>`. (R_pi is measured for pi = 0.1 and 0.001: the least norm from which no direction of 1000, half of
    them around p_mm, does better, up to 10^5 |p_mm|.)"""
    solution = max_margin(x.problem, x.best)
    hypotheses = (
        has_solution("the optimal tokens are separable", solution),
        below("number of inputs", x.problem.n, 1),
        *assumption_b(x.problem),
    )
    if not solution.is_optimal:
        return Findings(hypotheses)
    length = float(x.problem.keys.norm(solution.vector))
    excess = np.array([_largest_ratio(x, solution.vector, radius, length) for radius in RADII * length]) - 1
    slacks = [
        below(f"R_pi / |p_mm| for pi = {pi:g}, measured", _settled_radius(excess, pi), float(RADII[-1]), strict=True)
        for pi in (0.1, 0.001)
    ]
    return Findings(hypotheses, tuple(seen(slack, "larger norms") for slack in slacks))


def _settled_radius(excess: Float[Array, " k"], pi: float) -> float:
    """The first of the radii from which on the excess stays at most pi; the last where it never does."""
    above_pi = np.flatnonzero(excess > pi)
    return float(RADII[min(int(above_pi[-1]) + 1, len(RADII) - 1)]) if len(above_pi) else float(RADII[0])


def _largest_ratio(x: ProblemInstance, axis: Float[Array, " D"], radius: float, length: float) -> float:
    """The largest ratio of descent along p to descent along p_mm, over directions at large and around p_mm."""
    rng = x.rng
    width = min(1.0, 50 * length / radius)  # the ratio peaks within O(1/|p|) of the axis
    units = np.concatenate([x.sphere(500, rng), vectors_in_cone(x, axis, width**2 / 2, 500, rng)])
    towards = _steepness(x, axis, radius * units)
    outward = np.asarray(x.problem.keys.inner(x.objective.descent(radius * units).direction, units))
    ratio = outward / np.where(towards > 0, towards, 1.0)
    return float(np.where(towards > 0, ratio, np.where(outward > towards, np.inf, 1.0)).max())


def mirrored_optima() -> ProblemInstance:
    """Two optimal tokens on either side of a third: the minima of ATT-SVM' are two opposite directions."""
    problem = TokenProblem.of([[[1.0, 0.2], [-1.0, -0.2], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    return ProblemInstance(problem, "k = 1, -1, 0 in the plane")


def equal_scores_problem() -> ProblemInstance:
    """Two tokens of one score: the gradient is zero everywhere."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0]])
    return ProblemInstance(problem, "two tokens of one score")


def printed_smoothness(problem: TokenProblem, loss: AbstractLoss) -> float | None:
    """The objective's `printed_smoothness`, (6) and (24), with the smallest map W from tokens to keys.

    None where (24) says nothing: the keys are no linear map of the tokens, or there is no head.
    """
    try:
        return PromptObjective(problem, loss).printed_smoothness()
    except ValueError:
        return None


def lemma6(x: ProblemInstance) -> Findings:
    """The risk is `L_p`-smooth with the constant (24), and descent with a step eta of at most `1/L_p` lowers it by
    `eta/2 |dL|^2` each time (25), so that the squared gradients sum to a finite number and go to zero (26). (2000
    steps; where the keys are no linear map of tokens, (24) has no W, and the constant that the proof reaches before it
    bounds scores by |v| |X_i| takes its place.)"""
    objective, rng, keys = x.objective, x.rng, x.problem.keys
    with np.errstate(over="ignore"):
        ours, printed = objective.smoothness(), printed_smoothness(x.problem, x.loss)
        smoothness = max(ours if printed is None else printed, 1e-12)
        within_doubles = bool(np.isfinite(np.square(smoothness)))
    hypotheses = (assumption_a(x.loss, x.problem), below("eta L_p", x.factor, 1))
    if not within_doubles:
        return Findings(hypotheses, (seen(true("L_p and its square are within doubles", False), "a wider range"),))
    one, other = (r * x.sphere(500, rng) for r in (3.0, 3.1))
    other = np.where(rng.uniform(size=(500, 1)) < 0.5, other, one + 1e-3 * other)  # at least 3.1e-3 apart
    off = 2 * _rounding(x, 3.2)[1] / 3.1e-3
    apart = np.maximum(keys.norm(one - other), 1e-300)  # zero where all keys are, as the gradients' difference then is
    steep = float((keys.norm(objective.gradient(one) - objective.gradient(other)) / apart).max())
    eta, p = x.factor / smoothness, x.sphere(1, rng)[0] if x.p is None else x.p
    values, squares, excess, reach = [float(objective.value(p))], [], [], [_size(keys, p)]
    for _ in range(2000):
        gradient = objective.gradient(p)
        squares.append(float(keys.norm(gradient)) ** 2)
        p = p - eta * gradient
        values.append(float(objective.value(p)))
        excess.append(values[-1] - values[-2] + eta / 2 * squares[-1])
        reach.append(_size(keys, p))
    # Two risks, and what an error g of the gradient costs a step of at most 1/L_p: eta |dL| g, below two risks' errors.
    rounding = 4 * _rounding(x, np.max(reach))[0]
    best = np.where(x.problem.mask, x.problem.scores, -np.inf).max(axis=1)
    room = values[0] - float(x.loss.value(best).mean())
    slacks: tuple[Slack, ...] = (
        sampled(below("steepest change of the gradient, 500 pairs", steep, smoothness, tolerance=off)),
        sampled(below("... the same against the sharper constant of the proof", steep, ours, tolerance=off)),
        sampled(below("(25) largest L(t+1) - L(t) + eta/2 |dL|^2", np.max(excess), 0, tolerance=rounding)),
        below("(30) sum of |dL|^2 eta/2", eta / 2 * sum(squares), values[0] - values[-1], tolerance=2000 * rounding),
        below("... against L(p(0)) - inf L", eta / 2 * sum(squares), room, tolerance=2000 * rounding),
        seen(below("(26) |dL|^2 at the last step, against the largest", squares[-1], max(squares))),
    )
    if printed is not None:
        slacks += (below("the sharper constant over the printed one", ours, printed, tolerance=1e-9 * printed),)
    return Findings(hypotheses, slacks)


def _size(keys: AbstractGeometry, p: Float[Array, " D"]) -> float:
    """What the terms of a logit, over the length of a token, sum to at most."""
    return float(keys.norm(p)) if isinstance(keys, Coordinates) else float(np.abs(p) @ keys.vector_norms)


def _rounding(x: ProblemInstance, reach: float) -> tuple[float, float]:
    """How far rounding moves the risk and its gradient at points of sizes up to `reach`.

    Logits are sums of D products. Off by e, they change weights by 2 e of themselves, and normalising T of them adds
    T + 4 roundings. As weights sum to 1, an output moves by that times the spread of the scores, and the loss carries
    it on with its slope, at most M1, and that slope with M0. A gradient is a sum over n inputs of T tokens of slope,
    weight, gap of scores and difference of keys.
    """
    problem, keys = x.problem, x.problem.keys
    n, T, D = problem.n, problem.T, keys.dimension
    visible = problem.scores[problem.mask]
    low, high = float(visible.min()), float(visible.max())
    m0, m1 = x.loss.constants(low, high)
    longest = float(keys.vector_norms.max())
    weight = min(1.0, (2 * D * longest * reach + T + 4) * EPS)
    output = weight * (high - low) + (T + D) * EPS * max(abs(low), abs(high))
    value = m1 * output + (n + 6) * EPS * float(np.abs(x.loss.value(np.array([low, high]))).max())
    pull = 2 * longest * (high - low)
    return value, pull * (m1 * (2 * weight + (n + T + D + 8) * EPS) + m0 * output)


def _one_step_too_far() -> ProblemInstance:
    """Tokens 0 and 1 on a line, correlation loss: minus a sigmoid, far less curved than L_p allows."""
    problem = TokenProblem.of([[[0.0], [1.0]]], [1], head=[1.0])
    return ProblemInstance(problem, "tokens 0 and 1", CorrelationLoss(), p=np.array([1.0]), factor=100.0)


CLAIMS = (
    Claim("B.lemma1", lemma1, "exact", about="descent on W is descent on p, any head",
        example=lambda: ProblemInstance(random_problem(4, 6, 10, rng=0), "random d=10"),
        outside=(lambda: ProblemInstance(random_problem(4, 6, 10, rng=0), "random d=10", factor=2.0),),
        unneeded={"|u|": "The statement divides by it."}),
    Claim("B.lemma3", lemma3, "exact", about="key lemma, error 2 Gamma A (1 - s_1)^2",
        example=lambda: ProblemInstance(random_problem(4, 6, 10, rng=0), "random d=10"),
        unconditional="An inequality for every p, q and token: no hypothesis."),
    Claim("B.lemma4", lemma4, "sampled", about="the GMM is a descent direction everywhere",
        example=lambda: ProblemInstance(figure1a(), "fig1a"),
        outside=(lambda: ProblemInstance(figure1b(), "fig1b"), equal_scores_problem),
        unneeded={"the optimal tokens are separable": NO_SUBJECT}),
    Claim("B.lemma5", lemma5, "sampled", about="n = 1: far out, no direction beats the GMM",
        example=lambda: ProblemInstance(figure1a(), "fig1a"),
        outside=(lambda: ProblemInstance(figure8(), "fig8"), lambda: ProblemInstance(figure1b(), "fig1b")),
        unneeded={
            "the optimal tokens are separable": NO_SUBJECT,
            "lead of the optimal score": "With all scores alike the gradient is zero, and the inequality an equation.",
        }),
    Claim("B.lemma6", lemma6, "sampled", about="smoothness (24) and descent",
        example=lambda: ProblemInstance(figure1c(), "fig1c"), outside=(_one_step_too_far,),
        note="Before it bounds scores by |v| |X_i| to print (24), the proof has a sharper constant: checked as well."),
)  # fmt: skip
