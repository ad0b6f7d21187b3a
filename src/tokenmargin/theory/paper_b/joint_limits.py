"""Head and prompt together: Theorems 5 and 6 of paper B."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from scipy.special import logsumexp

from tokenmargin.attention import LogisticLoss
from tokenmargin.geometry import Coordinates
from tokenmargin.instances import figure3a, figure3b
from tokenmargin.margin import (
    Constraints,
    MarginSolution,
    label_margin,
    max_margin,
    relaxed_max_margin,
    solve,
    support_inputs,
)
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import angle, attention_weights
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, true
from tokenmargin.theory.instances import ProblemInstance
from tokenmargin.theory.search import best_direction

__all__ = ["CLAIMS"]

REACH = 22.0
"""|p| times the margin of its limit, and |v| times the label margin, at the end of the ridge path: beyond, what p adds
to the logarithm of the risk, about exp(-22), nears its rounding."""


CONTINUE = 1.4
"""Largest factor between two lengths of the head that Newton's method is continued over."""


def best_head(
    features: Float[Array, "k n d"], labels: Float[Array, " n"], norm: float
) -> tuple[Float[Array, " k"], Float[Array, "k d"]]:
    """`min over |v| = norm` of the logarithm of the logistic risk on given features, and its v, for k sets of features.

    Newton's method on the Lagrangian, continued from a short v, where the minimiser is nearly the mean feature. Where
    it does not settle, as on features that no head separates, the risk is given as infinite.
    """
    loss, z = LogisticLoss(), labels[:, None] * features
    k, _, d = z.shape
    v = z.mean(axis=1)
    sizes = np.geomspace(0.1, norm, max(2, int(np.ceil(np.log(norm / 0.1) / np.log(CONTINUE)))))
    v = v / np.linalg.norm(v, axis=1, keepdims=True) * sizes[0]
    multiplier = np.full(k, 1.0)
    for size in [*np.repeat(sizes, 2), *np.repeat(norm, 4)]:
        u = _outputs(z, v)
        log_total = logsumexp(loss.log_value(u), axis=1, keepdims=True)
        slope = -np.exp(loss.log_slope(u) - log_total)
        bend = np.exp(loss.log_slope(u) + loss.log_slope(-u) - log_total)
        gradient = np.einsum("kn,knd->kd", slope, z)
        system = np.zeros((k, d + 1, d + 1))
        system[:, :d, :d] = np.einsum("kn,knd,kne->kde", bend, z, z) - gradient[:, :, None] * gradient[:, None, :]
        system[:, :d, :d] += multiplier[:, None, None] * np.eye(d)
        system[:, :d, d] = system[:, d, :d] = v
        residual = np.concatenate(
            [gradient + multiplier[:, None] * v, ((v**2).sum(axis=1, keepdims=True) - size**2) / 2], axis=1
        )
        move = np.linalg.solve(system, -residual[..., None])[..., 0]
        v, multiplier = v + move[:, :d], multiplier + move[:, d]
    risk = logsumexp(loss.log_value(_outputs(z, v)), axis=1)
    short = np.abs(np.linalg.norm(v, axis=1) - norm) <= 1e-9 * norm
    return np.where(short & np.isfinite(risk), risk, np.inf), v


def _outputs(z: Float[Array, "k n d"], v: Float[Array, "k d"]) -> Float[Array, "k n"]:
    """`Y_i <v, r_i>`, kept finite where Newton's method has gone astray."""
    return np.asarray(np.clip(np.einsum("knd,kd->kn", z, v), -1e8, 1e8))


def ridge_solution(
    x: ProblemInstance, norms: tuple[float, float], *, also: Float[Array, " P"] | None = None
) -> tuple[Float[Array, " V"], Float[Array, " P"]]:
    """Directions of `argmin L(v, p)` over `(|v|, |p|) = norms`: p by search, the best v for each by Newton's method.

    The search begins with random directions and the direction `also`, so that it never ends above that.
    """
    keys, tokens, rng = x.problem.keys, _values(x.problem).tokens, x.rng

    def features(units: Float[Array, "k P"]) -> Float[Array, "k n d"]:
        return np.einsum("knt,ntd->knd", attention_weights(keys, norms[1] * units), tokens)

    def score(units: Float[Array, "k P"]) -> Float[Array, " k"]:
        return best_head(features(units), x.problem.labels, norms[0])[0]

    starts = x.sphere(200, rng)
    starts = starts if also is None else np.concatenate([starts, also[None] / keys.norm(also)])
    p = best_direction(score, starts, lambda u: u / keys.norm(u)[:, None], rng=rng, rounds=30, around=40)
    return best_head(features(p[None]), x.problem.labels, norms[0])[1][0], p


def _values(problem: TokenProblem) -> Coordinates:
    if not isinstance(problem.values, Coordinates):
        raise TypeError("the joint theorems are checked on attention features, which need values in coordinates")
    return problem.values


NO_FALL = 1e-4
"""A sampled nu of less counts as none: attention that all but saturates leaves margins apart by rounding only."""


def _nu(x: ProblemInstance, support: Bool[Array, " n"]) -> float:
    """Assumption C's nu over the inputs in `support`: the least fall of the label margin per unit of attention that
    leaves a selected token, over sampled p."""
    problem, alpha = x.problem, x.alpha
    values = _values(problem)
    whole = _label_margin(values.tokens[np.arange(problem.n), alpha], problem, support)
    falls, rng = [], x.rng
    for radius in (0.3, 1.0, 3.0, 10.0, 30.0, 100.0):
        for p in radius * x.sphere(100, rng):
            s = attention_weights(problem.keys, p)
            lost = (1 - s[np.arange(problem.n), alpha])[support].max()
            if lost == 0:  # rounded: nothing has left
                continue
            features = np.einsum("nt,ntd->nd", s, values.tokens)
            falls.append((whole - _label_margin(features, problem, support)) / lost)
    return float(min(falls))


def _label_margin(features: Float[Array, "n d"], problem: TokenProblem, support: Bool[Array, " n"]) -> float:
    """Margin of the best head on features of the inputs in `support`; zero where labels cannot be separated."""
    inputs = np.flatnonzero(support)
    geometry = Coordinates(features, np.arange(len(features))[:, None])
    token = np.stack([inputs, np.zeros_like(inputs)], axis=1)
    solution = solve(Constraints(geometry, inputs, None, np.ones(len(inputs)), token, problem.labels[inputs]))
    return solution.margin if solution.is_optimal else 0.0


def _ridge_path(
    x: ProblemInstance, head: MarginSolution, prompt: MarginSolution, name: str, *, faster: float = 1.0
) -> tuple[tuple[Slack, ...], tuple[Slack, ...]]:
    """Whether the ridge path selects alpha and settles, and whether both directions converge as claimed.

    |v| and |p|, in units of their margins' inverses, grow in the proportion `faster`.

    A direction that converges like 1/norm turns half as much over each doubling of the norm. One that turns as much as
    before, and by more than a twentieth of its angle to the claimed limit, has not settled within the norms that
    doubles allow, and nothing can be said of its limit.
    """
    values, keys = x.problem.values, x.problem.keys
    ends = faster * REACH / head.margin, REACH / prompt.margin
    found = [ridge_solution(x, (ends[0] / k, ends[1] / k), also=prompt.vector) for k in (4, 2, 1)]
    v = [float(angle(values, u, head.vector)) for u, _ in found]
    p = [float(angle(keys, u, prompt.vector)) for _, u in found]
    turns = [float(angle(keys, one, other)) for (_, one), (_, other) in itertools.pairwise(found)]
    reached = attention_weights(keys, ends[1] * found[-1][1])[np.arange(x.problem.n), x.alpha]
    settled = (
        above("smallest attention on alpha", reached.min(), 0.9),
        below("last turn of p over the one before: it settles", turns[1], max(0.75 * turns[0], p[-1] / 20, 1e-3)),
    )
    converged = (
        below(f"angle of v to the max-margin head at |v| = {ends[0]:.3g}", v[-1], max(0.01, 0.75 * v[-2])),
        below(f"angle of p to {name} at |p| = {ends[1]:.3g}", p[-1], max(0.01, 0.75 * p[-2])),
    )
    return settled, converged


def theorem5(x: ProblemInstance) -> Findings:
    """If the tokens alpha are separable and mixing others in shrinks the label margin (Assumption C), the ridge
    solutions `argmin_{|v| <= r, |p| <= R} L(v, p)` converge in direction to the max-margin head and to the max-margin
    prompt of alpha. (Logistic loss; |v| = |p|.)"""
    problem, alpha = x.problem, x.alpha
    head, prompt = label_margin(problem, alpha), max_margin(problem, alpha)
    hypotheses = (
        true("alpha is separable", prompt.is_optimal),
        above("label margin", head.margin, 0, strict=True),
    )
    if not all(slack.holds for slack in hypotheses):
        return Findings(hypotheses, (true("there are max-margin directions", False),))
    nu = above("Assumption C's nu, sampled", _nu(x, np.ones(problem.n, dtype=bool)), NO_FALL)
    settled, converged = _ridge_path(x, head, prompt, "the max-margin prompt")
    return Findings((*hypotheses, nu, settled[1]), (settled[0], *converged))


def theorem6(x: ProblemInstance) -> Findings:
    """If the ridge solutions come to select the tokens alpha, and mixing others in shrinks the label margin of the
    support inputs (Assumption C over them), then v converges in direction to the max-margin head and p to the solution
    of the relaxed problem (10), which asks for a margin on the support inputs only. (|v| and |p| in proportion.)"""
    return _relaxed(x, faster=1.0)


def theorem6_repaired(x: ProblemInstance) -> Findings:
    """Theorem 6 with |v| growing faster than |p|: |v| times the label margin, times the lead of every other input over
    the support inputs, is at least |p| times the margin of (10). (Twice as much, times `factor`.)"""
    problem, alpha = x.problem, x.alpha
    lead = _lead_of_others(problem, alpha, label_margin(problem, alpha))
    faster = x.factor * max(1.0, 2 / lead)
    found = _relaxed(x, faster=faster)
    enough = above("|v| lead / |p|, in units of the margins", faster * lead, 1)
    return Findings((*found.hypotheses, enough), found.conclusion)


def _lead_of_others(problem: TokenProblem, alpha: Int[Array, " n"], head: MarginSolution) -> float:
    """By how much the inputs that are no support vectors exceed the label margin, relative to it."""
    if not head.is_optimal:
        return np.inf
    outputs = problem.labels * problem.values.logits(head.vector)[np.arange(problem.n), alpha]
    return float((outputs[~support_inputs(problem, alpha)] - 1).min(initial=np.inf))


def _relaxed(x: ProblemInstance, *, faster: float) -> Findings:
    problem, alpha = x.problem, x.alpha
    head = label_margin(problem, alpha)
    if not head.is_optimal:
        return Findings((above("label margin", 0, 0, strict=True),), (true("there is a max-margin head", False),))
    prompt = relaxed_max_margin(problem, alpha)
    if not prompt.is_optimal:
        return Findings((true("alpha is separable", False),), (true("there is a relaxed solution", False),))
    settled, converged = _ridge_path(x, head, prompt, "the relaxed solution", faster=faster)
    nu = _nu(x, support_inputs(problem, alpha))
    return Findings((*settled, above("Assumption C's nu over the support inputs, sampled", nu, NO_FALL)), converged)


def _second(problem: TokenProblem, name: str) -> ProblemInstance:
    return ProblemInstance(problem, name, selected=(1,) * problem.n)


def _smaller_label_margin() -> ProblemInstance:
    """alpha separates the labels by 1; the tokens (1, 2) and (1, -2) do by 2, and the ridge path selects those."""
    keys = [[[1.0, 2.0], [0.0, 1.0]], [[1.0, -2.0], [0.0, -1.0]]]
    return _second(TokenProblem.of(keys, [1, -1], head=[0.0, 1.0]), "better tokens left unselected")


def _nearly_support() -> ProblemInstance:
    """Figure 3 with the third token at (0.5, 1.1): its label margin is 1.1 times that of the support inputs."""
    return _second(figure3a(third=(0.5, 1.1)), "fig3 with (0.5, 1.1)")


SETTLING = {
    "last turn of p over the one before: it settles": "Ours: whether the norms that doubles allow show a limit at all."
}

CLAIMS = (
    Claim(
        "B.theorem5",
        theorem5,
        "sampled",
        about="joint ridge path, all support vectors",
        example=lambda: _second(figure3a(), "fig3a"),
        outside=(lambda: _second(figure3b(), "fig3b"),),
        unneeded={"alpha is separable": NO_SUBJECT, "label margin": NO_SUBJECT, **SETTLING},
    ),
    Claim(
        "B.theorem6",
        theorem6,
        "sampled",
        about="joint ridge path: p to the relaxed problem, |v| and |p| in proportion",
        example=lambda: _second(figure3b(), "fig3b"),
        outside=(_smaller_label_margin,),
        unneeded=SETTLING,
        refutation=_nearly_support,
        note=(
            "The proof drops a factor 1/(2n) between (82) and (81), which counts unless |v| grows exponentially in "
            "|p|. Where they grow in proportion, an input of label margin m > 1 still asks p for a margin: p maximises "
            "the least of the margins plus (m - 1)|v|/|p|, in units. B.theorem6-repaired lets |v| grow faster."
        ),
    ),
    Claim(
        "B.theorem6-repaired",
        theorem6_repaired,
        "sampled",
        about="... |v| growing faster than |p|",
        example=_nearly_support,
        outside=(lambda: replace(_nearly_support(), factor=0.02), _smaller_label_margin),
        unneeded=SETTLING,
    ),
)
