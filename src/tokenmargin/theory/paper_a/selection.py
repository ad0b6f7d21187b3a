"""Paper A's max-margin classes and where gradient flow ends: Theorem 5, Lemmas 3, 6, 19, 20 and 21."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.attention import PromptObjective
from tokenmargin.margin import MarginSolution, class_margin
from tokenmargin.margin.constraints import class_constraints
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, equal
from tokenmargin.theory.instances import EmbeddingInstance
from tokenmargin.theory.paper_a.conditions import concentrated, deviation, lacking, quantile, regime, share

__all__ = ["CLAIMS"]

RESIDUAL = 1e-9
"""Certified solutions have residuals of at most 1e-10; a margin read off one is right to a few times that."""
MISALIGNED = 1e-6
"""The most that a cosine may lack of 1 at the end of the flow, where the angle is still falling like 1/|p|."""


def lemma3(x: EmbeddingInstance) -> Findings:
    """For any p_o other than zero, the max-margin problem (9) of its selection has exactly one solution."""
    residual, uniqueness = 0.0, np.inf
    for k, (problem, chosen) in enumerate(x.posed):
        solution, keys = class_margin(problem, chosen), problem.keys
        residual = max(residual, solution.certificate.residual)
        other = x.point(k) / _smallest_gap(problem, chosen, x.point(k))
        longer = float(keys.norm(other)) ** 2 - float(keys.norm(solution.vector)) ** 2
        apart = float(keys.norm(other - solution.vector)) ** 2
        uniqueness = min(uniqueness, (longer - apart) / float(keys.norm(other)) ** 2)
    return Findings(
        hypotheses=(),
        conclusion=(
            below("KKT residual of the solution found", residual, 1e-10),
            # |p|^2 >= |p^|^2 + |p - p^|^2 for every feasible p, as p_o / tau is: only p^ itself has its length
            above("(|p|^2 - |p^|^2 - |p - p^|^2) / |p|^2 at p = p_o / tau", uniqueness, 0, tolerance=RESIDUAL),
        ),
    )


def _smallest_gap(problem: TokenProblem, chosen: Bool[Array, "n T"], p: Float[Array, " D"]) -> float:
    constraints = class_constraints(problem, chosen)
    logits = problem.keys.project(p)
    gaps = logits[constraints.plus] - logits[constraints.minus]
    return float(gaps[constraints.bound > 0].min(initial=np.inf))


def closed_form(x: EmbeddingInstance) -> Findings:
    """Where `M p = 1` has a solution, M holding the differences of (9), the max-margin vector is `M^+ 1`."""
    unsolved, excess, _ = _pseudo_inverse(x)
    return Findings(
        hypotheses=(below("residual of M p = 1", unsolved, RESIDUAL),),
        conclusion=(below("|M^+ 1| / |p^| - 1", excess, 0, tolerance=RESIDUAL),),
    )


def closed_form_with_signs(x: EmbeddingInstance) -> Findings:
    """Where `M p = 1` has a solution and the multipliers `(M M')^+ 1` are not negative, the max-margin vector is
    `M^+ 1`."""
    unsolved, excess, smallest = _pseudo_inverse(x)
    return Findings(
        hypotheses=(
            below("residual of M p = 1", unsolved, RESIDUAL),
            above("smallest multiplier (M M')^+ 1", smallest, 0, tolerance=RESIDUAL),
        ),
        conclusion=(below("|M^+ 1| / |p^| - 1", excess, 0, tolerance=RESIDUAL),),
    )


def _pseudo_inverse(x: EmbeddingInstance) -> tuple[float, float, float]:
    """Over the draws: residual of `M p = 1`, relative excess of |M^+ 1| over |p^|, smallest multiplier."""
    unsolved, excess, smallest = 0.0, 0.0, np.inf
    for problem, chosen in x.posed:
        M = class_constraints(problem, chosen).rows()
        vector = np.linalg.pinv(M) @ np.ones(len(M))
        unsolved = max(unsolved, float(np.abs(M @ vector - 1).max()))
        excess = max(excess, float(np.linalg.norm(vector)) * class_margin(problem, chosen).margin - 1)
        smallest = min(smallest, float((np.linalg.pinv(M @ M.T) @ np.ones(len(M))).min()))
    return unsolved, excess, smallest


def theorem5(x: EmbeddingInstance) -> Findings:
    """Under Assumption 4 and (10), with probability 1 - delta: gradient flow of p after the first step grows without
    bound, and a limit of its direction selects every completely positive and negative token and is the max-margin
    direction of what it selects."""
    important = x.corpus.important
    misaligned = [lacking(limit.angle) for limit in x.limits]
    slopes = [limit.slope for limit in x.limits]
    return Findings(
        hypotheses=regime(x),
        conclusion=(
            share(f"|p| reaches {x.norm:g}", [limit.path.stop == "norm" for limit in x.limits], x),
            share("all important tokens selected", [bool(limit.chosen[important].all()) for limit in x.limits], x),
            share("aligned with the max-margin direction", [c <= MISALIGNED for c in misaligned], x),
            below("1 - cosine, (1 - delta) quantile", quantile(misaligned, x), MISALIGNED),
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
        worst = max(worst, abs(_smallest_gap(problem, chosen, class_margin(problem, chosen).vector) - 1))
    return Findings((), (equal("furthest smallest gap from 1", worst, 0, tolerance=RESIDUAL),))


def lemma21(x: EmbeddingInstance) -> Findings:
    """Where d is as large as Lemma 19 asks, the max-margin vector that selects the important tokens only has
    |p| <= 4n."""
    n = x.corpus.n
    lengths = [_length(class_margin(problem, x.corpus.important)) for problem, _ in x.posed]
    need = (2 * x.step * (n * deviation(x) + 44 * np.sqrt(2) * n)) ** 4
    return Findings(
        hypotheses=(*concentrated(x), above("d, for E_s nearly orthogonal", x.dimension, need)),
        conclusion=(below("longest |p^|, (1 - delta) quantile", quantile(lengths, x), 4 * n),),
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
    angles = [
        float(angle(problem.keys, limit.path.prompt, class_margin(problem, x.corpus.important).vector))
        for (problem, _), limit in zip(x.posed, x.limits, strict=True)
    ]
    misaligned = [lacking(a) for a in angles]
    exactly = [bool((limit.chosen == x.corpus.important).all()) for limit in x.limits]
    return (
        share("only important tokens selected", exactly, x),
        below("1 - cosine with their direction, (1 - delta) quantile", quantile(misaligned, x), MISALIGNED),
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
            rivals.append(_length(class_margin(problem, chosen & problem.mask)))
    return 1 - _length(class_margin(problem, important)) / min(rivals)


CLAIMS = (
    Claim(
        "A.lemma3",
        lemma3,
        "bounded",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=30, step=20.0, draws=20),
        note="A p_o that ties all tokens has the solution 0, which is unique but has no direction.",
    ),
    Claim(
        "A.lemma3-closed-form",
        closed_form,
        "bounded",
        example=lambda: EmbeddingInstance.of(2, 2, selection="important"),
        refutation=lambda: EmbeddingInstance.of(8, 4, irrelevant=3, dimension=30, selection="important"),
        note=(
            "Part of the proof of Lemma 3. A KKT point also needs multipliers (M M')^+ 1 >= 0; where one is negative, "
            "its constraint is slack and M^+ 1 is too long."
        ),
    ),
    Claim(
        "A.lemma3-closed-form-with-signs",
        closed_form_with_signs,
        "bounded",
        example=lambda: EmbeddingInstance.of(4, 3, selection="important"),
        outside=lambda: EmbeddingInstance.of(8, 4, irrelevant=3, dimension=30, selection="important"),
        note="The repair. With dependent rows the multipliers are not unique and the condition is not necessary.",
    ),
    Claim(
        "A.lemma6",
        lemma6,
        "sampled",
        example=lambda: EmbeddingInstance.of(4, 3, irrelevant=1, draws=5),
    ),
    Claim(
        "A.lemma19",
        lemma19,
        "sampled",
        example=lambda: EmbeddingInstance.of(4, 3, irrelevant=2, draws=5),
        expected="vacuous",
        note=(
            "The hypothesis is never met: tying all sequences of one label and pushing the other along v halves the "
            "norm, so mu is near -1, also for equal alpha_s. The conclusion holds without it: see A.lemma19-without-mu."
        ),
    ),
    Claim(
        "A.lemma19-without-mu",
        lemma19_without_mu,
        "sampled",
        example=lambda: EmbeddingInstance.of(4, 3, draws=5),
        outside=lambda: EmbeddingInstance.of(4, 3, dimension=2, draws=5),
    ),
    Claim(
        "A.lemma20",
        lemma20,
        "bounded",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=30, step=20.0, draws=20),
        refutation=lambda: EmbeddingInstance.of(4, 3, selection="everything"),
        note="A selection of everything leaves no constraint to be tight; the statement needs one token not selected.",
    ),
    Claim(
        "A.lemma21",
        lemma21,
        "bounded",
        example=lambda: EmbeddingInstance.of(4, 3, draws=20),
        outside=lambda: EmbeddingInstance.of(8, 4, dimension=2, draws=5),
        note="Lemma 19 prints 44 n where the proof of Lemma 21 uses 44 sqrt(2) n; the larger is required here.",
    ),
    Claim(
        "A.theorem5",
        theorem5,
        "sampled",
        example=lambda: EmbeddingInstance.of(4, 3, draws=10),
        outside=lambda: EmbeddingInstance.of(4, 3, dimension=2, draws=5),
    ),
)
