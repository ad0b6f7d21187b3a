"""Paper A's max-margin classes and where gradient flow ends: Theorem 5, Lemmas 3, 6, 19, 20 and 21."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.attention import PromptObjective
from tokenmargin.margin import MarginSolution
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import cosine
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, equal
from tokenmargin.theory.instances import EmbeddingInstance
from tokenmargin.theory.limits import class_constraints, class_max_margin
from tokenmargin.theory.paper_a.conditions import concentrated, deviation, regime, share

__all__ = ["CLAIMS"]

RESIDUAL = 1e-9
"""Certified solutions have residuals of at most 1e-10; a margin read off one is right to a few times that."""
ALIGNED = 1 - 1e-6
"""What a cosine must reach at the end of the flow, where the angle is still falling like 1/|p|."""


def lemma3(x: EmbeddingInstance) -> Findings:
    """For any p_o other than zero, the max-margin problem (9) of its selection has exactly one solution."""
    residual, excess, uniqueness = 0.0, np.inf, np.inf
    for problem, chosen in x.posed:
        constraints = class_constraints(problem, chosen)
        solution = class_max_margin(problem, chosen)
        residual = max(residual, solution.certificate.residual)
        feasible = _feasible(problem, chosen, constraints.equality, solution)
        length, best = float(problem.keys.norm(feasible)) ** 2, float(problem.keys.norm(solution.vector)) ** 2
        excess = min(excess, length - best)
        apart = float(problem.keys.norm(feasible - solution.vector)) ** 2
        uniqueness = min(uniqueness, (length - best - apart) / length)
    return Findings(
        hypotheses=(),
        conclusion=(
            below("KKT residual of the solution found", residual, 1e-10),
            above("another feasible point is longer by", excess, 0, strict=True),
            # |p|^2 >= |p^|^2 + |p - p^|^2 for every feasible p: only p^ itself has its length
            above("|p|^2 - |p^|^2 - |p - p^|^2, relative", uniqueness, 0, tolerance=RESIDUAL),
        ),
    )


def _feasible(
    problem: TokenProblem, chosen: Bool[Array, "n T"], equality: Bool[Array, " k"] | None, solution: MarginSolution
) -> Float[Array, " D"]:
    """A feasible point other than the solution: `p_o` scaled to margin 1, or twice the solution under ties."""
    return 2 * solution.vector


def closed_form(x: EmbeddingInstance) -> Findings:
    """Where `M p = 1` has a solution, M holding the differences of (9), the max-margin vector is `M^+ 1`."""
    solvable, difference, smallest = 0.0, 0.0, np.inf
    for problem, chosen in x.posed:
        constraints = class_constraints(problem, chosen)
        M = constraints.rows()
        vector = np.linalg.pinv(M) @ np.ones(len(M))
        solvable = max(solvable, float(np.abs(M @ vector - 1).max()))
        lengths = float(np.linalg.norm(vector)), 1 / class_max_margin(problem, chosen).margin
        difference = max(difference, lengths[0] / lengths[1] - 1)
        smallest = min(smallest, float((np.linalg.pinv(M @ M.T) @ np.ones(len(M))).min()))
    return Findings(
        hypotheses=(below("residual of M p = 1", solvable, RESIDUAL),),
        conclusion=(
            above("smallest multiplier (M M')^+ 1", smallest, 0, tolerance=RESIDUAL),
            below("|M^+ 1| / |p^| - 1", difference, 0, tolerance=RESIDUAL),
        ),
    )


def theorem5(x: EmbeddingInstance) -> Findings:
    """Under Assumption 4 and (10), with probability 1 - delta: gradient flow of p after the first step grows without
    bound, and a limit of its direction selects every completely positive and negative token and is the max-margin
    direction of what it selects."""
    important = x.corpus.important
    cosines = [
        float(cosine(problem.keys, limit.path.prompt, limit.solution.vector)) if limit.solution.is_optimal else -1.0
        for (problem, _), limit in zip(x.posed, x.limits, strict=True)
    ]
    slopes = [limit.slope for limit in x.limits]
    return Findings(
        hypotheses=regime(x),
        conclusion=(
            share(f"|p| reaches {x.norm:g}", [limit.path.stop == "norm" for limit in x.limits], x),
            share("all important tokens selected", [bool(limit.chosen[important].all()) for limit in x.limits], x),
            share("aligned with the max-margin direction", [c >= ALIGNED for c in cosines], x),
            above("cosine, delta quantile", np.quantile(cosines, x.delta), ALIGNED),
            below("exponent of the angle in |p|, median", np.median(slopes), -0.9),
        ),
    )


def lemma6(x: EmbeddingInstance) -> Findings:
    """A direction that ties all tokens of every sequence is never the limit: the risk does not change along it. With
    one irrelevant token in the vocabulary, only important tokens are selected."""
    drift, least, irrelevant = 0.0, np.inf, 0
    for (problem, _), limit in zip(x.posed, x.limits, strict=True):
        keys, p = problem.keys, limit.path.prompt
        flat = _tying(problem, x.steps[0].after.prompt)
        direction = PromptObjective(problem).descent(p).direction
        drift = max(drift, abs(float(keys.inner(flat, direction))))
        logits = np.where(problem.mask, keys.logits(p), np.inf)
        largest = np.where(problem.mask, keys.logits(p), -np.inf).max(axis=1)
        least = min(least, float((largest - logits.min(axis=1)).max() / keys.norm(p)))
        irrelevant += int((limit.chosen & ~x.corpus.important).sum())
    one = (x.corpus.completely == 0).sum() == 1
    return Findings(
        hypotheses=regime(x),
        conclusion=(
            below("|<tying direction, gradient>| / |gradient|", drift, RESIDUAL),
            above("widest gap / |p| at the end: not all tied", least, 0.1),
            *((below("irrelevant tokens selected", irrelevant, 0),) if one else ()),
        ),
    )


def _tying(problem: TokenProblem, p: Float[Array, " D"]) -> Float[Array, " D"]:
    """The part of p that gives all tokens of each sequence equal logits, as a unit vector."""
    constraints = class_constraints(problem, problem.mask)
    rows = problem.keys.vectors[constraints.plus] - problem.keys.vectors[constraints.minus]  # type: ignore[attr-defined]
    left = p - np.linalg.pinv(rows) @ (rows @ p)
    return np.asarray(left / np.linalg.norm(left))


def lemma20(x: EmbeddingInstance) -> Findings:
    """At the solution of (9) some constraint is tight: a selected token is ahead of another by exactly 1."""
    worst = 0.0
    for problem, chosen in x.posed:
        constraints = class_constraints(problem, chosen)
        logits = problem.keys.project(class_max_margin(problem, chosen).vector)
        gaps = (logits[constraints.plus] - logits[constraints.minus])[constraints.bound > 0]
        worst = max(worst, abs(float(gaps.min(initial=np.inf)) - 1))
    return Findings((), (equal("furthest smallest gap from 1", worst, 0, tolerance=RESIDUAL),))


def lemma21(x: EmbeddingInstance) -> Findings:
    """Where d is as large as Lemma 19 asks, the max-margin vector that selects the important tokens only has
    |p| <= 4n."""
    n = x.corpus.n
    lengths = [_length(class_max_margin(problem, x.corpus.important)) for problem, _ in x.posed]
    need = (2 * x.step * (n * deviation(x) + 44 * np.sqrt(2) * n)) ** 4
    return Findings(
        hypotheses=(*concentrated(x), above("d, for E_s nearly orthogonal", x.dimension, need)),
        conclusion=(below("longest |p^|, (1 - delta) quantile", np.quantile(lengths, 1 - x.delta), 4 * n),),
    )


def lemma19(x: EmbeddingInstance) -> Findings:
    """Under Theorem 5's conditions, if the max-margin vector that selects the important tokens only is shorter than
    that of every other selection by a factor 1 - mu, and d is large enough in mu, then gradient flow converges to its
    direction. (Other selections must contain the important tokens and not be everything: Theorem 5 and Lemma 6
    exclude the rest.)"""
    mu = min(_mu(problem, x.corpus.important) for problem, _ in x.posed)
    n, T = x.corpus.n, x.corpus.T
    need = (2816 * T * n**2 * (1 + 2 * x.step) / mu) ** 4 if mu > 0 else np.inf
    need = max(need, (2 * x.step * (n * deviation(x) + 44 * n)) ** 4)
    hypotheses = (*regime(x), above("mu", mu, 0, strict=True), above("d, in mu", x.dimension, need))
    return Findings(hypotheses, _only_important(x))


def lemma19_without_mu(x: EmbeddingInstance) -> Findings:
    """Under Theorem 5's conditions gradient flow converges to the max-margin direction that selects the important
    tokens only. (Lemma 19 without its hypothesis on mu.)"""
    return Findings(regime(x), _only_important(x))


def _only_important(x: EmbeddingInstance) -> tuple[Slack, ...]:
    cosines = [
        float(cosine(problem.keys, limit.path.prompt, class_max_margin(problem, x.corpus.important).vector))
        for (problem, _), limit in zip(x.posed, x.limits, strict=True)
    ]
    exactly = [bool((limit.chosen == x.corpus.important).all()) for limit in x.limits]
    return (
        share("only important tokens selected", exactly, x),
        above("cosine with the important tokens' direction, delta quantile", np.quantile(cosines, x.delta), ALIGNED),
    )


def _length(solution: MarginSolution) -> float:
    return 1 / solution.margin if solution.is_optimal else np.inf


def _mu(problem: TokenProblem, important: Bool[Array, "n T"]) -> float:
    """`1 - |p^| / min |p^'|` over selections p^' that tie irrelevant tokens with the important ones.

    A tie depends on the two tokens alone, so a selection is a set of tied (important, irrelevant) pairs. All sets are
    tried up to 12 pairs; beyond, only those that tie one label's sequences completely: an upper bound on mu.
    """
    index = problem.keys.index
    owner = index[important]
    pairs = sorted({(int(owner[i]), int(t)) for i in range(problem.n) for t in index[i] if t != owner[i]})
    sides = dict(zip(owner.tolist(), problem.labels.tolist(), strict=True))
    patterns = (
        itertools.product((False, True), repeat=len(pairs))
        if len(pairs) <= 12
        else ([sides[s] == y for s, _ in pairs] for y in (-1.0, 1.0))
    )
    rivals = [np.inf]
    for pattern in patterns:
        tied = dict(zip(pairs, pattern, strict=True))
        if any(pattern) and not all(pattern):
            chosen = np.array([[tied.get((s, t), True) for t in row] for s, row in zip(owner, index, strict=True)])
            rivals.append(_length(class_max_margin(problem, chosen & problem.mask)))
    return 1 - _length(class_max_margin(problem, important)) / min(rivals)


_THEOREM = {"draws": 5}

CLAIMS = (
    Claim(
        "A.lemma3",
        lemma3,
        "bounded",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=30, step=20.0, draws=20),
        note="A p_o that ties everything gives the solution 0, which has no direction.",
    ),
)
