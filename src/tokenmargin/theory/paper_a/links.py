"""The inequalities of the proofs of Theorem 5 and Lemma 19, one by one. Many are far sharper than what is stated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin import class_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.embedding import EmbeddingObjective, FirstStep
from tokenmargin.objective.losses import LogisticLoss
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.theory.claim import Claim, Findings, Slack, below, seen
from tokenmargin.theory.evidence import TIE, FollowedFlow
from tokenmargin.theory.paper_a.conditions import theorem5_conditions, true_of_most_draws, without_subject
from tokenmargin.theory.paper_a.first_step import promised_margins, risk_bound, rounding_of_margins, rounding_of_risk
from tokenmargin.theory.paper_a.flow import OUTSIDE_THE_REGIME, in_the_regime, seen_in_the_limit
from tokenmargin.theory.paper_a.leading_pairs import Pairs, choices, local_optimality
from tokenmargin.theory.paper_a.only_important import aligned_start, largest_mu
from tokenmargin.theory.settings import EmbeddingInstance

FAR = 30.0
"""How many times the max-margin vector of a rival (D1) and (D2) are compared at."""
Links = dict[str, tuple[float, float]]
"""Name of an inequality: its left side, and the right side that must not be less."""


def after_first_step(x: EmbeddingInstance, step: FirstStep) -> Links:
    """The links that need only the first step: the proofs of Lemmas 12, 13 and 14, and (12), (19)."""
    corpus, d, eta = x.corpus, float(x.dimension), x.step
    n, T = corpus.n, corpus.T
    objective, loss = EmbeddingObjective(corpus), LogisticLoss()
    a, _ = step.after.overlaps
    _, above_uniform = objective.attention(step.after)
    gamma = corpus.labels[:, None] * objective.values(step.after)
    star, others = corpus.important, corpus.mask & ~corpus.important
    spread = (1 + 11 * eta) * d**-0.25
    margins = objective.outputs(step.after)
    promised = promised_margins(x) - 1 / (22 * eta)
    gap = np.where(star, gamma, -np.inf).max(axis=1, keepdims=True) - np.where(others, gamma, -np.inf)
    risk = float(loss.value(margins).mean())
    short = float((promised - margins).max())
    unselected = float(loss.value(np.array([0.75 * d**-0.125]))[0]) / n
    return {
        "|<p^1, E_s - E_t>| <= d^(-1/8)": (float(np.ptp(a)), d**-0.125),
        "T |q - 1/T| <= 2 d^(-1/8)": (float(np.abs(above_uniform * T).max()), 2 * d**-0.125),
        "mean (eta_0/2) y alpha - 1/(22 eta_0) - y f <= 0, to rounding": (short, rounding_of_margins(step)),
        "risk at p^1 <= the bound of Lemma 12": (risk, risk_bound(x) + rounding_of_risk(step, risk)),
        "risk at p^1 <= log(1 + exp(-eta_0/(4nT^2)))": (risk, float(loss.value(np.array([eta / (4 * n * T**2)]))[0])),
        "eta_0/(4nT) <= lead of an important token's gamma": (
            eta / (4 * n * T),
            float(gap[others].min(initial=np.inf)),
        ),
        "|gamma| of irrelevant tokens <= (1 + 11 eta_0) d^(-1/4)": (
            float(np.abs(gamma[others]).max(initial=0)),
            spread,
        ),
        "|gamma_i - gamma_j| of irrelevant ones <= 22 eta_0 d^(-1/4)": (
            _largest_difference(corpus, gamma),
            22 * eta * d**-0.25,
        ),
        "(19): risk at p^1 <= that of missing an important token": (risk, min(unselected, 1 / (2 * n))),
    }


def _largest_difference(corpus: TokenCorpus, gamma: Float[Array, "n T"]) -> float:
    """The largest difference of two irrelevant scores in a sequence."""
    others = corpus.mask & ~corpus.important
    high = np.where(others, gamma, -np.inf).max(axis=1)
    low = np.where(others, gamma, np.inf).min(axis=1)
    return float((high - low)[others.any(axis=1)].max(initial=0.0))


def at_the_limit(x: EmbeddingInstance, step: FirstStep, limit: FollowedFlow) -> Links:
    """The links that look at where flow goes: local optimality, (27) and (26)."""
    corpus, eta = x.corpus, x.step
    problem, p = step.after.problem(), limit.path.prompt
    chosen = choices(problem, p / problem.keys.norm(p), tie=TIE)
    slopes = LogisticLoss().log_slope(PromptObjective(problem).outputs(p))
    direction = PromptObjective(problem).descent(p).direction
    keys, unit = problem.keys, limit.solution.vector * limit.solution.margin
    ratio = float(keys.inner(direction, unit) * keys.norm(p) / keys.inner(direction, p))
    return {
        "eta_0/(4nT) <= mu of Definition 16, at the limit": (
            eta / (4 * corpus.n * corpus.T),
            local_optimality(problem, chosen),
        ),
        "(27): log of largest g over smallest <= log(1 + e^eta_0)": (
            float(np.ptp(slopes)),
            float(np.logaddexp(0, eta)),
        ),
        "(26): 1 - ratio of the gradient along p^ to that along p": (1 - ratio, 1e-3),
    }


def _slacks(
    x: EmbeddingInstance, found: list[Links], name: str, judge: Callable[[str, list[bool], EmbeddingInstance], Slack]
) -> tuple[Slack, ...]:
    """One slack with the evidence, and one per link with its worst draw."""
    facts = [all(left <= right for left, right in links.values()) for links in found]
    names = dict.fromkeys(key for links in found for key in links)  # (D2) is there only where mu > 0
    worst = {
        key: max((links[key] for links in found if key in links), key=lambda pair: pair[0] - pair[1]) for key in names
    }
    return (judge(name, facts, x), *(seen(below(key, *pair)) for key, pair in worst.items()))


def proof_of_theorem5(x: EmbeddingInstance) -> Findings:
    """The proof of Theorem 5, inequality by inequality, with probability 1 - delta under its conditions: attention
    stays flat, important tokens score, the risk is below what missing one of them would cost, and where flow goes is
    locally optimal, with slopes within (27) of each other and (26) in the limit."""
    hypotheses = theorem5_conditions(x)
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    early = [after_first_step(x, step) for step in x.steps]
    reached = [(s, lim) for s, lim in zip(x.steps, x.limits, strict=True) if np.isfinite(lim.angle)]
    late = [at_the_limit(x, step, limit) for step, limit in reached]
    conclusion = _slacks(x, early, "all links after the first step", true_of_most_draws)
    if late:
        conclusion += _slacks(x, late, "all links at the limit", seen_in_the_limit)
    return Findings(hypotheses, conclusion)


def proof_of_lemma19(x: EmbeddingInstance) -> Findings:
    """The proof of Lemma 19, inequality by inequality, with probability 1 - delta under Theorem 5's conditions:
    under the max-margin vector p^ of the important tokens these lead by at least 1, and no two logits of a sequence
    differ by more than 16 n (1 + 2 eta_0); |(D2)| <= (mu/2) (D1) for p near a rival selection, where mu > 0."""
    hypotheses = theorem5_conditions(x)
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    found = [_lemma19_links(x, step) for step in x.steps]
    return Findings(hypotheses, _slacks(x, found, "all links of Lemma 19", true_of_most_draws))


def _lemma19_links(x: EmbeddingInstance, step: FirstStep) -> Links:
    """The inequalities of one draw."""
    corpus = x.corpus
    problem = step.after.problem()
    solution = class_margin(problem, corpus.important)
    ahead = np.where(corpus.mask, problem.keys.logits(solution.vector), 0.0)
    others = corpus.mask & ~corpus.important
    top = np.where(corpus.important, ahead, -np.inf).max(axis=1, keepdims=True)
    spread = np.where(corpus.mask, ahead, -np.inf).max(axis=1) - np.where(corpus.mask, ahead, np.inf).min(axis=1)
    links = {
        "1 <= lead of an important token under p^": (1 - 1e-9, float((top - ahead)[others].min(initial=np.inf))),
        "|a_i - a_j| under p^ <= 16 n (1 + 2 eta_0)": (float(spread.max()), 16 * corpus.n * (1 + 2 * x.step)),
    }
    mu = largest_mu(problem, corpus.important) if corpus.assumption4().holds else -np.inf
    tied = _one_tied(corpus)
    rival = class_margin(problem, tied)
    if mu > 0 and rival.is_optimal and np.isfinite(rival.margin):
        pairs, left = Pairs(problem, FAR * rival.vector), corpus.mask & ~tied
        first = pairs.total(ahead, corpus.important[:, :, None] & left[:, None, :])
        second = pairs.total(ahead, (tied & ~corpus.important)[:, :, None] & left[:, None, :])
        links["|(D2)| <= (mu/2) (D1)"] = abs(second), mu / 2 * first
    return links


def _one_tied(corpus: TokenCorpus) -> Bool[Array, "n T"]:
    """A rival selection: positive sequences with two irrelevant tokens tie the commonest with the important one."""
    irrelevant = corpus.mask & ~corpus.important & (corpus.labels > 0)[:, None]
    counts = np.bincount(corpus.index[irrelevant], minlength=corpus.size)
    tied = irrelevant & (corpus.index == counts.argmax())
    beside = (irrelevant & ~tied).any(axis=1, keepdims=True)
    return np.asarray(corpus.important | (tied & beside))


CLAIMS = (
    Claim("A.theorem5-proof", proof_of_theorem5, "sampled", about="the inequalities of Theorem 5's proof, one by one",
        example=in_the_regime, outside=OUTSIDE_THE_REGIME[:1],
        note=(
            "Not statements of the paper but what it uses on the way. |gamma_i - gamma_j| <= 22 eta_0 d^(-1/4) leaves "
            "out the 2 d^(-1/4) of the start, for which the measured numbers have room."
        )),
    Claim("A.lemma19-proof", proof_of_lemma19, "sampled", about="the inequalities of Lemma 19's proof, one by one",
        example=lambda: aligned_start(" so")),  # a second irrelevant token in every sequence: mu = 0.469
)  # fmt: skip
