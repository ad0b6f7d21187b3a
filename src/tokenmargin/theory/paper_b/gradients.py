"""Paper B's gradients: Lemmas 1, 3, 4, 5 and 6."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.attention import PromptObjective
from tokenmargin.instances import figure1a, figure1b, figure1c, figure8, random_problem
from tokenmargin.margin import max_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import attention_weights
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, equal, true
from tokenmargin.theory.instances import ProblemInstance

__all__ = ["CLAIMS", "assumption_b", "mirrored"]

ROUNDING = 1e-12
"""Relative error of a sum of a few hundred doubles of either sign, with a wide margin."""


def assumption_b(problem: TokenProblem) -> tuple[Slack, Slack]:
    """Assumption B: in each input the other tokens score alike, and less than the optimal one."""
    lead, spread = np.inf, 0.0
    for scores, here in zip(problem.scores, problem.mask, strict=True):
        ordered = np.sort(scores[here])
        if len(ordered) > 1:
            lead = min(lead, float(ordered[-1] - ordered[-2]))
            spread = max(spread, float(ordered[-2] - ordered[0]))
    return above("lead of the optimal score", lead, 0, strict=True), below("spread of the other scores", spread, 0)


def lemma1(x: ProblemInstance) -> Findings:
    """Descent on W in the logits `<X_i W' u>`, from `W(0) = u p(0)'/|u|^2` with step `eta/|u|^2`, is descent on p with
    step eta: `W(t) = u p(t)' / |u|^2` at all times."""
    rng, steps, eta = x.rng, 50, 0.5
    u = rng.standard_normal(3) if x.q is None else x.q
    p = 0.1 * rng.standard_normal(x.problem.keys.dimension)
    squared = float(u @ u)
    W = np.outer(u, p).ravel() / squared
    on_p, on_W = x.objective, PromptObjective(x.problem.with_matrix(u), x.loss)
    worst = 0.0
    for _ in range(steps):
        p = p - eta * on_p.gradient(p)
        W = W - x.factor * eta / squared * on_W.gradient(W)
        worst = max(worst, float(np.abs(W - np.outer(u, p).ravel() / squared).max()))
    return Findings(
        hypotheses=(
            above("|u|", np.sqrt(squared), 0, strict=True),
            equal("step of W |u|^2 / eta", x.factor, 1, tolerance=0),
        ),
        conclusion=(below(f"|W(t) - u p(t)'/|u|^2| over {steps} steps", worst, 0, tolerance=ROUNDING),),
    )


def lemma3(x: ProblemInstance) -> Findings:
    """For any p, q, with `a = K q`, `s = softmax(K p)` and token 1 of an input: `a'(diag(s) - s s') gamma` differs from
    `sum_t (a_1 - a_t) s_t (gamma_1 - gamma_t)` by at most `2 Gamma A (1 - s_1)^2`, Gamma the spread of the scores and A
    the largest |k_t| times |q|."""
    problem, keys, rng = x.problem, x.problem.keys, x.rng
    room, tightest = np.inf, 0.0
    grams = (keys.gram_of(row[here]) for row, here in zip(keys.index, problem.mask, strict=True))
    size = np.sqrt([gram.diagonal().max() for gram in grams])
    for scale in np.geomspace(0.1, 30, 60):
        p, q = scale * x.sphere(1, rng)[0], x.sphere(1, rng)[0]
        a, s, gamma = np.where(problem.mask, keys.logits(q), 0.0), attention_weights(keys, p), problem.scores
        exact = (a * s * gamma).sum(1) - (a * s).sum(1) * (s * gamma).sum(1)
        for t in range(problem.T):
            here = problem.mask[:, t]
            short = ((a[:, [t]] - a) * s * (gamma[:, [t]] - gamma)).sum(1)
            spread = np.ptp(np.where(problem.mask, gamma, gamma[:, [t]]), axis=1)
            bound = 2 * spread * size * float(keys.norm(q)) * (1 - s[:, t]) ** 2
            error = np.abs(exact - short)
            room = min(room, float((bound - error)[here].min()))
            shares = (error / np.maximum(bound, 1e-300))[here & (bound > 1e-8)]  # below, rounding is all there is
            tightest = max(tightest, float(shares.max(initial=0.0)))
    return Findings(
        hypotheses=(),
        conclusion=(
            above("smallest bound - error", room, 0, tolerance=ROUNDING),
            below("largest error / bound", tightest, 1),
        ),
    )


def lemma4(x: ProblemInstance) -> Findings:
    """Under Assumption B with the optimal tokens separable, moving towards the GMM direction decreases the risk from
    everywhere: `<dL(p), p_mm> < 0` for all p."""
    solution = max_margin(x.problem, x.alpha)
    if not solution.is_optimal:
        return Findings((true("the optimal tokens are separable", False),), (true("there is a GMM", False),))
    worst = min(float(_steepness(x, solution.vector, r * x.sphere(500, x.rng)).min()) for r in (0.01, 1, 10, 100, 1e4))
    return Findings(
        hypotheses=(true("the optimal tokens are separable", solution.is_optimal), *assumption_b(x.problem)),
        conclusion=(above("smallest -<dL, p_mm> / (|dL| |p_mm|), 2500 points", worst, 0, strict=True),),
    )


def _steepness(x: ProblemInstance, u: Float[Array, " D"], points: Float[Array, "k D"]) -> Float[Array, " k"]:
    """`-<dL(p), u> / (|dL(p)| |u|)` at many points."""
    keys = x.problem.keys
    return np.asarray(keys.inner(x.objective.descent(points).direction, u) / keys.norm(u))


def lemma5(x: ProblemInstance) -> Findings:
    """For one input under Assumption B and any pi > 0, beyond some radius p itself is no better a direction of descent
    than the GMM direction: `-<dL, p/|p|> <= -(1 + pi) <dL, p_mm/|p_mm|>`. Here pi = 0.1."""
    solution = max_margin(x.problem, x.alpha)
    if not solution.is_optimal:
        return Findings((true("the optimal tokens are separable", False),), (true("there is a GMM", False),))
    units = x.sphere(4000, x.rng)
    ratios = []
    for radius in (x.norm / 100, x.norm):
        towards = _steepness(x, solution.vector, radius * units)
        outward = np.asarray(x.problem.keys.inner(x.objective.descent(radius * units).direction, units))
        ratios.append(float(_ratio(outward, towards).max()))
    return Findings(
        hypotheses=(below("number of inputs", x.problem.n, 1), *assumption_b(x.problem)),
        conclusion=tuple(
            below(f"largest ratio at |p| = {r:g}", ratio, 1.1)
            for r, ratio in zip((x.norm / 100, x.norm), ratios, strict=True)
        ),
    )


def _ratio(outward: Float[Array, " k"], towards: Float[Array, " k"]) -> Float[Array, " k"]:
    """`outward / towards`; infinite where the GMM direction is not one of descent and p itself is the better one."""
    ratio = outward / np.where(towards > 0, towards, 1.0)
    return np.where(towards > 0, ratio, np.where(outward > 1.1 * towards, np.inf, 0.0))


def mirrored() -> ProblemInstance:
    """Two optimal tokens on either side of a third: the minima of ATT-SVM' are two opposite directions."""
    problem = TokenProblem.of([[[1.0, 0.2], [-1.0, -0.2], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    return ProblemInstance(problem, "k = 1, -1, 0 in the plane")


def lemma6(x: ProblemInstance) -> Findings:
    """The risk is `L_p`-smooth with the constant (24), and descent with a step eta of at most `1/L_p` lowers it by
    `eta/2 |dL|^2` each time, so that the squared gradients sum to at most `2/eta (L(p(0)) - inf L)`."""
    objective, rng = x.objective, x.rng
    smoothness = objective.smoothness()
    one, other = (r * x.sphere(500, rng) for r in (3.0, 3.1))
    other = np.where(rng.uniform(size=(500, 1)) < 0.5, other, one + 1e-3 * other)
    keys = x.problem.keys
    steep = keys.norm(objective.gradient(one) - objective.gradient(other)) / keys.norm(one - other)
    eta, p = x.factor / smoothness, x.sphere(1, rng)[0] if x.p is None else x.p
    first, excess, total = float(objective.value(p)), -np.inf, 0.0
    for _ in range(300):
        gradient = objective.gradient(p)
        squared = float(keys.norm(gradient)) ** 2
        after = p - eta * gradient
        excess = max(excess, float(objective.value(after) - objective.value(p)) + eta / 2 * squared)
        p, total = after, total + squared
    best = np.where(x.problem.mask, x.problem.scores, -np.inf).max(axis=1)
    least = float(x.loss.value(best).mean())
    return Findings(
        hypotheses=(below("eta L_p", x.factor, 1),),
        conclusion=(
            below("steepest change of the gradient, 500 pairs", steep.max(), smoothness),
            below("L(t+1) - L(t) + eta/2 |dL|^2, 300 steps", excess, 0, tolerance=1e-15),
            below("sum of |dL|^2", total, 2 / eta * (first - least)),
        ),
    )


def _random(n: int, T: int, d: int, seed: int = 0) -> TokenProblem:
    return random_problem(n, T, d, rng=np.random.default_rng(seed))


CLAIMS = (
    Claim(
        "B.lemma1",
        lemma1,
        "exact",
        about="descent on W is descent on p",
        example=lambda: ProblemInstance(_random(4, 6, 10), "random d=10"),
        outside=(lambda: ProblemInstance(_random(4, 6, 10), "random d=10", factor=2.0),),
        unneeded={"|u|": "The statement divides by it."},
    ),
    Claim(
        "B.lemma3",
        lemma3,
        "exact",
        about="key lemma, error 2 Gamma A (1 - s_1)^2",
        example=lambda: ProblemInstance(_random(4, 6, 10), "random d=10"),
        unconditional="An inequality for every p, q and token: no hypothesis.",
    ),
    Claim(
        "B.lemma4",
        lemma4,
        "sampled",
        about="the GMM is a descent direction everywhere",
        example=lambda: ProblemInstance(figure1a(), "fig1a"),
        outside=(lambda: ProblemInstance(figure1b(), "fig1b"), mirrored),
        unneeded={"the optimal tokens are separable": NO_SUBJECT},
    ),
    Claim(
        "B.lemma5",
        lemma5,
        "sampled",
        about="n = 1: far out, no direction beats the GMM",
        example=lambda: ProblemInstance(figure1a(), "fig1a"),
        outside=(
            lambda: ProblemInstance(figure8(), "fig8"),
            lambda: ProblemInstance(figure1b(), "fig1b"),
            mirrored,
        ),
    ),
    Claim(
        "B.lemma6",
        lemma6,
        "sampled",
        about="smoothness (24) and descent",
        example=lambda: ProblemInstance(figure1c(), "fig1c"),
        outside=(lambda: ProblemInstance(figure1c(), "fig1c", factor=1000.0),),
        note="Checked with the constant the proof reaches before it bounds scores by |v| |X_i|; (24) is never smaller.",
    ),
)
