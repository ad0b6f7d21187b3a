"""Where gradient flow ends: Theorem 5 of paper A with its three parts, Lemmas 13, 14 and 18; Lemma 6; descent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.constraints import class_constraints
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, sampled, seen
from tokenmargin.theory.evidence import FollowedFlow
from tokenmargin.theory.paper_a.conditions import (
    IMPLIED,
    assumption4,
    concentration,
    one_length,
    quantile_of_draws,
    selecting_conditions,
    selective_conditions,
    theorem5_conditions,
    true_of_most_draws,
    without_subject,
)
from tokenmargin.theory.settings import EmbeddingInstance

MISALIGNED = 1e-5
"""The most that a cosine may lack of 1 at the end of the flow, where the angle is still falling like 1/|p|."""
VANISHING = -0.8
"""The exponent of an angle that goes to zero like 1/|p|, over a decade in which slower terms may still be seen."""
FLOW_ERROR = 1e-6
"""What the integration of the flow, 1e-8 a step, may leave of a component that the flow does not move."""
NEAR_FLOW = 1e-2
"""How far descent may be from the flow, as a share of the way, before its steps are called too large."""
STEPS = 1000
"""Steps of gradient descent that are compared with the flow."""


def one_minus_cosine(angle: float) -> float:
    """`1 - cos(angle)` without cancellation; 2, its largest value, where there is no angle."""
    return float(2 * np.sin(angle / 2) ** 2) if np.isfinite(angle) else 2.0


def seen_in_the_limit(name: str, facts: list[bool], x: EmbeddingInstance) -> Slack:
    """A fact about a limit that is promised with probability 1 - delta, seen at a finite norm."""
    slack = true_of_most_draws(name, facts, x)
    return seen(slack, f"more draws, or a larger norm than {x.norm:g}")


def _norm_grows(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """That |p| grows, as far as it was followed."""
    return (seen_in_the_limit(f"|p| reaches {x.norm:g}", [limit.path.stop == "norm" for limit in x.limits], x),)


def _selects_important(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """That every important token is selected in the limit."""
    facts = [bool(limit.chosen[x.corpus.important].all()) for limit in x.limits]
    return (seen_in_the_limit("every important token is selected", facts, x),)


def _aligns_with_margin(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """That p takes the max-margin direction of what it selects."""
    misaligned = [one_minus_cosine(limit.angle) for limit in x.limits]
    slopes = [limit.slope for limit in x.limits]
    return (
        seen_in_the_limit(
            "p has the max-margin direction of what it selects", [c <= MISALIGNED for c in misaligned], x
        ),
        quantile_of_draws("1 - cosine", misaligned, MISALIGNED, x),
        seen(below("exponent of the angle in |p|, median", np.median(slopes), VANISHING)),
    )


def lemma13(x: EmbeddingInstance) -> Findings:
    """Under Assumption 4, for `d >= 256`, `d >= (2 log(|S|^2/delta))^2` and `d >= |S| + 3`, with probability 1 - delta
    gradient flow of p after the first step grows without bound. No condition on eta_0."""
    hypotheses = (
        *selective_conditions(x),
        *concentration(x),
        above("d, beyond the vocabulary", x.dimension, x.corpus.size + 3),
    )
    return without_subject(x, hypotheses) or Findings(hypotheses, _norm_grows(x))


def lemma14(x: EmbeddingInstance) -> Findings:
    """Under Assumption 4 and (10) but for d > |S| + 2, with probability 1 - delta: if the direction of gradient flow
    has a limit, then in every sequence the limit selects the completely positive or negative token."""
    hypotheses = (assumption4(x), one_length(x), *selecting_conditions(x))
    return without_subject(x, hypotheses) or Findings(hypotheses, _selects_important(x))


def lemma18(x: EmbeddingInstance) -> Findings:
    """Under Assumption 4 and (10) but for d > |S| + 2, with probability 1 - delta: if the direction of gradient flow
    has a limit, it is the max-margin direction (9) of what it selects."""
    hypotheses = (*selective_conditions(x), *selecting_conditions(x))
    if x.corpus.T == 1:  # (9) has no constraint, and its solution 0 no direction
        return Findings(hypotheses)
    return without_subject(x, hypotheses) or Findings(hypotheses, _aligns_with_margin(x))


def theorem5(x: EmbeddingInstance) -> Findings:
    """Under Assumption 4 and (10), with probability 1 - delta: gradient flow of p after the first step grows without
    bound, and a limit of its direction selects every completely positive and negative token and is the max-margin
    direction of what it selects."""
    hypotheses = theorem5_conditions(x)
    return without_subject(x, hypotheses) or Findings(
        hypotheses, (*_norm_grows(x), *_selects_important(x), *_aligns_with_margin(x))
    )


def length_reached(limits: Sequence[FollowedFlow], norm: float) -> Slack:
    """That |p_t| grows without bound: seen up to `norm`, refuted where the gradient vanishes."""
    least = min(limit.path.norm for limit in limits)
    slack = above("|p_t| reached", least, norm, tolerance=1e-6 * norm)
    return slack if any(limit.path.stop == "stationary" for limit in limits) else seen(slack)


def lemma6(x: EmbeddingInstance) -> Findings:
    """If |p_t| grows without bound and its direction has a limit, the limit is not a vector that selects all tokens of
    every sequence. (The gradient has no part along such vectors, so what p_t has of them stays what it was at the
    start: over |p_t| it is at most |p_1| / |p_t|.)"""
    left, drift, kept = 0.0, 0.0, 0.0
    for (problem, _), limit, step in zip(x.problems_and_choices, x.limits, x.steps, strict=True):
        norm = float(problem.keys.norm(limit.path.prompt))
        before, after = (_tying_part(problem, p) for p in (step.after.prompt, limit.path.prompt))
        left = max(left, float(np.linalg.norm(after)) / norm)
        kept = max(kept, float(np.linalg.norm(before)) / norm)
        drift = max(drift, float(np.linalg.norm(after - before)) / norm)
    return Findings(
        hypotheses=(length_reached(x.limits, x.norm),),
        conclusion=(
            seen(below("part of p_t that ties everything / |p_t|", left, min(2 * kept + FLOW_ERROR, 0.5))),
            seen(below("its change since the start / |p_t|", drift, FLOW_ERROR)),
        ),
    )


def one_irrelevant(x: EmbeddingInstance) -> Findings:
    """Under Theorem 5's conditions, with one irrelevant token in the vocabulary, only important tokens are selected
    (the application of Lemma 6)."""
    number = int((x.corpus.sole_label == 0).sum())
    hypotheses = (*theorem5_conditions(x), below("irrelevant tokens in the vocabulary", number, 1))
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    only = [bool((limit.chosen == x.corpus.important).all()) for limit in x.limits]
    return Findings(hypotheses, (seen_in_the_limit("only important tokens are selected", only, x),))


def _tying_part(problem: TokenProblem, p: Float[Array, " D"]) -> Float[Array, " D"]:
    """The part of p that gives all tokens of each sequence equal logits."""
    constraints = class_constraints(problem, problem.mask)
    if not len(constraints):
        return p
    rows = problem.keys.vectors[constraints.plus] - problem.keys.vectors[constraints.minus]  # type: ignore[attr-defined]
    return np.asarray(p - np.linalg.pinv(rows) @ (rows @ p))


def descent_follows_flow(x: EmbeddingInstance) -> Findings:
    """The results extend to gradient descent with small enough steps (the remark after (7)): under Theorem 5's
    conditions, with steps of 1/L, L a Lipschitz constant of the gradient, the risk falls at every step, and p goes
    where the flow goes: after the same way it is at the same place."""
    hypotheses = theorem5_conditions(x)
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    problem, limit = x.problems_and_choices[0][0], x.limits[0]
    objective = PromptObjective(problem)
    p, risks, way = x.steps[0].after.prompt, [], 0.0
    smoothness = objective.smoothness()
    if not smoothness > 0:  # slopes below the smallest double: every step is too short
        return Findings(
            hypotheses, (seen(above("L, a Lipschitz constant", smoothness, 0, strict=True), "more digits"),)
        )
    for _ in range(STEPS):
        direction, log_norm = objective.descent(p)
        way += (length := float(np.exp(log_norm[0])) / smoothness)
        p = p + length * direction
        risks.append(objective.value(p))
    followed = limit.path.stop == "norm" and way > 0  # steps may be below the smallest double
    apart = float(problem.keys.norm(p - limit.path(way))) / way if followed else np.inf
    return Findings(
        hypotheses,
        (
            sampled(below("largest rise of the risk in a step", float(np.diff(risks).max()), 0, tolerance=1e-15)),
            seen(below("distance to the flow after the same way / way", apart, NEAR_FLOW), "smaller steps"),
        ),
    )


@cache  # the flows of an instance are kept with it, and several claims look at the same ones
def no_longer_flat() -> EmbeddingInstance:
    """Everything of (10) but the dimension for flat attention: some important tokens are turned away from."""
    return EmbeddingInstance.of(8, 4, dimension=300, draws=10, norm=1e3)


@cache
def too_small_a_step() -> EmbeddingInstance:
    """Everything of (10) but eta_0 >= 4 n^2 T^2: what tokens score is the start's noise."""
    return EmbeddingInstance.of(4, 3, dimension=300, step=1e-6, delta=0.5, draws=6)


@cache
def two_important_tokens() -> EmbeddingInstance:
    """Everything of (10) but Assumption 4: of two important tokens in a sequence the more frequent is selected."""
    sequences = ["good great film", "good film film", "bad dull film", "bad film film"]
    return EmbeddingInstance.on(sequences, [1, 1, -1, -1], delta=0.5, draws=6)


@cache
def one_token() -> EmbeddingInstance:
    """One token in each sequence: nothing depends on p."""
    return EmbeddingInstance.on(["good", "bad"], [1, -1], delta=0.5, draws=6)


@cache
def unequal_lengths() -> EmbeddingInstance:
    """Everything but one length: *a* stands three times under each label, yet the short sequences weigh more in the
    first step, and in them it comes to score higher than their own words."""
    return EmbeddingInstance.on(["good a a a", "bad a", "dull a", "poor a"], [1, -1, -1, -1], delta=0.5, draws=6)


OUTSIDE_THE_REGIME = (no_longer_flat, too_small_a_step, two_important_tokens, unequal_lengths)


@cache
def in_the_regime() -> EmbeddingInstance:
    """A corpus with unequal frequencies and a token twice in a sequence, in the dimension of (10)."""
    return EmbeddingInstance.of(4, 3, varied=True, seed=2, delta=0.5, draws=6)


def _lacks_conditions(reasons: dict[str, str]) -> dict[str, str]:
    """The reasons for hypotheses that Lemmas 14 and 18 have: no condition beyond the vocabulary."""
    return {name: why for name, why in reasons.items() if name != "d, beyond the vocabulary"}


CLAIMS = (
    Claim("A.lemma13", lemma13, "sampled", about="|p| grows without bound, whatever the first step",
        example=lambda: EmbeddingInstance.of(4, 3, varied=True, seed=2, dimension=300, step=1.0, delta=0.5, draws=6),
        outside=(one_token,),
        note=(
            "The proof takes an important token to score eta_0/(4nT), which these hypotheses do not give: at "
            "eta_0 = 1e-6 and d = 300 scores are noise. Flow grows there too, in all that was tried. With T = 1 "
            "nothing depends on p."
        )),
    Claim("A.lemma14", lemma14, "sampled", about="a limit selects the important token of every sequence",
        example=in_the_regime, outside=OUTSIDE_THE_REGIME, unneeded=_lacks_conditions(IMPLIED)),
    Claim("A.lemma18", lemma18, "sampled", about="a limit is the max-margin direction of what it selects",
        example=in_the_regime, unneeded=_lacks_conditions(IMPLIED)),
    Claim("A.theorem5", theorem5, "sampled", about="flow grows, selects the important tokens, maximises their margin",
        example=in_the_regime, outside=(*OUTSIDE_THE_REGIME, one_token), unneeded=IMPLIED),
    Claim("A.gradient-descent", descent_follows_flow, "sampled", about="small steps of descent go where the flow goes",
        example=lambda: EmbeddingInstance.of(2, 2),
        note="A remark of the paper. Descent moves p by the logarithm of its steps, so no limit is reached here."),
    Claim("A.lemma6", lemma6, "sampled", about="a limit does not select every token", example=in_the_regime,
        outside=(one_token,),
        note=(
            "Printed without hypotheses; that |p_t| grows is taken from Theorem 5 before it. Where p comes to rest, as "
            "with one token in each sequence, its direction may well tie everything."
        )),
    Claim("A.one-irrelevant-token", one_irrelevant, "sampled",
        about="one irrelevant token: only important ones are selected",
        example=lambda: EmbeddingInstance.of(4, 3, irrelevant=1, delta=0.5, draws=6), unneeded=IMPLIED),
)  # fmt: skip
