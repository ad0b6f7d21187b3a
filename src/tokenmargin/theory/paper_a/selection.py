"""Paper A's max-margin classes and where gradient flow ends: Theorem 5, Lemmas 3, 6 and 20."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.attention import PromptObjective
from tokenmargin.margin import class_margin
from tokenmargin.margin.constraints import class_constraints
from tokenmargin.problem import TokenProblem
from tokenmargin.theory.claim import Claim, Findings, above, below, equal
from tokenmargin.theory.instances import EmbeddingInstance
from tokenmargin.theory.paper_a.conditions import IMPLIED, lacking, quantile, regime, share

__all__ = ["CLAIMS", "MISALIGNED", "OUTSIDE_THE_REGIME", "RESIDUAL"]

RESIDUAL = 1e-9
"""Certified solutions have residuals of at most 1e-10; a margin read off one is right to a few times that."""
SAME_VECTOR = 1e-7
"""Vectors agree to the square root of what is certified of their lengths, at worst."""
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
    unsolved, apart, _ = _pseudo_inverse(x)
    return Findings(
        hypotheses=(below("residual of M p = 1", unsolved, RESIDUAL),),
        conclusion=(below("|M^+ 1 - p^| / |p^|", apart, SAME_VECTOR),),
    )


def closed_form_with_signs(x: EmbeddingInstance) -> Findings:
    """Where `M p = 1` has a solution and the multipliers `(M M')^+ 1` are not negative, the max-margin vector is
    `M^+ 1`."""
    unsolved, apart, smallest = _pseudo_inverse(x)
    return Findings(
        hypotheses=(
            below("residual of M p = 1", unsolved, RESIDUAL),
            above("smallest multiplier (M M')^+ 1", smallest, 0, tolerance=RESIDUAL),
        ),
        conclusion=(below("|M^+ 1 - p^| / |p^|", apart, SAME_VECTOR),),
    )


def _pseudo_inverse(x: EmbeddingInstance) -> tuple[float, float, float]:
    """Over the draws: residual of `M p = 1`, relative distance of `M^+ 1` from p^, smallest multiplier."""
    unsolved, apart, smallest = 0.0, 0.0, np.inf
    for problem, chosen in x.posed:
        M = class_constraints(problem, chosen).rows()
        vector = np.linalg.pinv(M) @ np.ones(len(M))
        unsolved = max(unsolved, float(np.abs(M @ vector - 1).max()))
        solution = class_margin(problem, chosen)
        if not solution.is_optimal:
            return unsolved, np.inf, smallest
        apart = max(apart, float(problem.keys.norm(vector - solution.vector)) * solution.margin)
        smallest = min(smallest, float((np.linalg.pinv(M @ M.T) @ np.ones(len(M))).min()))
    return unsolved, apart, smallest


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
        direction = PromptObjective(problem).descent(p).direction
        for flat in _tying(problem, x.steps[0].after.prompt):
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


def _tying(problem: TokenProblem, p: Float[Array, " D"]) -> list[Float[Array, " D"]]:
    """The part of p that gives all tokens of each sequence equal logits, as a unit vector; none in few dimensions."""
    constraints = class_constraints(problem, problem.mask)
    rows = problem.keys.vectors[constraints.plus] - problem.keys.vectors[constraints.minus]  # type: ignore[attr-defined]
    left = p - np.linalg.pinv(rows) @ (rows @ p)
    length = float(np.linalg.norm(left))
    return [left / length] if length > RESIDUAL * np.linalg.norm(p) else []


def lemma20(x: EmbeddingInstance) -> Findings:
    """At the solution of (9) some constraint is tight: a selected token is ahead of another by exactly 1."""
    worst = 0.0
    for problem, chosen in x.posed:
        worst = max(worst, abs(_smallest_gap(problem, chosen, class_margin(problem, chosen).vector) - 1))
    return Findings((), (equal("furthest smallest gap from 1", worst, 0, tolerance=RESIDUAL),))


def lemma20_repaired(x: EmbeddingInstance) -> Findings:
    """If some token is not selected, then at the solution of (9) some constraint is tight."""
    left = min(int((problem.mask & ~chosen).sum()) for problem, chosen in x.posed)
    return Findings((above("tokens not selected", left, 1),), lemma20(x).conclusion)


OUTSIDE_THE_REGIME = (
    lambda: EmbeddingInstance.of(4, 3, dimension=2, draws=2),
    lambda: EmbeddingInstance.of(4, 3, dimension=300, step=1e-6),  # large enough for such a step, which is too small
    lambda: EmbeddingInstance.on(  # two important tokens in a sequence, of which the more frequent is selected
        ["good great film", "good film film", "bad dull film", "bad film film"], [1, 1, -1, -1]
    ),
)

CLAIMS = (
    Claim(
        "A.lemma3",
        lemma3,
        "bounded",
        about="the max-margin class has one solution",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=30, step=20.0, draws=20),
        unconditional="Any p_o will do. One that ties all tokens has the solution 0: unique, but without a direction.",
    ),
    Claim(
        "A.lemma3-closed-form",
        closed_form,
        "bounded",
        about="the solution is M^+ 1, where M p = 1 is solvable",
        example=lambda: EmbeddingInstance.of(2, 2, selection="important"),
        outside=(lambda: EmbeddingInstance.of(4, 3, dimension=5, selection="important"),),
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
        about="... and the multipliers are not negative",
        example=lambda: EmbeddingInstance.of(4, 3, selection="important"),
        outside=(
            lambda: EmbeddingInstance.of(8, 4, irrelevant=3, dimension=30, selection="important"),
            lambda: EmbeddingInstance.of(4, 3, dimension=5, selection="important"),
        ),
        note="The repair. With dependent rows the multipliers are not unique and the condition is not necessary.",
    ),
    Claim(
        "A.lemma6",
        lemma6,
        "sampled",
        about="the limit never ties everything; one irrelevant token",
        example=lambda: EmbeddingInstance.of(4, 3, irrelevant=1, draws=5),
        outside=(
            lambda: EmbeddingInstance.of(4, 3, irrelevant=1, dimension=20, step=0.1),
            lambda: EmbeddingInstance.on(["good film", "film film", "bad film", "film film"], [1, 1, -1, -1]),
        ),
        unneeded=IMPLIED,
    ),
    Claim(
        "A.lemma20",
        lemma20,
        "bounded",
        about="some constraint of the class is tight",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=30, step=20.0, draws=20),
        refutation=lambda: EmbeddingInstance.of(4, 3, selection="everything"),
        unconditional="Printed without a condition; A.lemma20-repaired has the one it needs.",
        note="A selection of everything leaves no constraint to be tight; the statement needs one token not selected.",
    ),
    Claim(
        "A.lemma20-repaired",
        lemma20_repaired,
        "bounded",
        about="... if some token is not selected",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=30, step=20.0, draws=20),
        outside=(lambda: EmbeddingInstance.of(4, 3, selection="everything"),),
    ),
    Claim(
        "A.theorem5",
        theorem5,
        "sampled",
        about="flow grows, selects the important tokens, maximises their margin",
        example=lambda: EmbeddingInstance.of(4, 3, draws=10),
        outside=OUTSIDE_THE_REGIME,
    ),
)
