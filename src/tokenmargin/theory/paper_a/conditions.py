"""The conditions that paper A's statements share, as slacks."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from tokenmargin.theory.claim import Findings, Slack, above, below, equal, seen
from tokenmargin.theory.evidence import rare_event
from tokenmargin.theory.settings import EmbeddingInstance, enough_step, log_of_union

LARGE = 20_000
"""Tokens in a corpus beyond which a broken hypothesis is answer enough: the conclusion would take hours."""
_FLAT = "Implied by the condition for flat attention, with eta_0 >= 4 n^2 T^2 and |S| <= n T."
IMPLIED = {
    "d": _FLAT,
    "d, for inner products <= d^(-1/4)": (
        "Implied by the condition for flat attention unless delta is below |S|^2 exp(-sqrt(d)/2), which no draws "
        "resolve."
    ),
    "d, beyond the vocabulary": _FLAT,
}


def allowed_deviations(x: EmbeddingInstance) -> float:
    """`sqrt(2 log(|S|^2 / delta))`: how many standard deviations (14) allows."""
    return float(np.sqrt(2 * log_of_union(x.corpus.size, x.delta)))


def concentration(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """`d >= 256` and `d >= (2 log(|S|^2/delta))^2`: inner products at the start are at most d^(-1/4)."""
    return above("d", x.dimension, 256), above(
        "d, for inner products <= d^(-1/4)", x.dimension, allowed_deviations(x) ** 4
    )


def flat_attention(x: EmbeddingInstance) -> Slack:
    """`d >= (88 eta^2 + 111 eta + 2)^8`: attention is still near uniform after the first step."""
    step = Fraction(x.step)  # rounded once, as the dimension is: the smallest one allowed stays allowed
    try:
        enough = float((88 * step**2 + 111 * step + 2) ** 8)
    except OverflowError:
        enough = np.inf
    return above("d, for flat attention", x.dimension, enough)


def assumption4(x: EmbeddingInstance) -> Slack:
    """Assumption 4, by the number of sequences that break it."""
    return below("sequences that break Assumption 4", len(x.corpus.assumption4().offending), 0)


def one_length(x: EmbeddingInstance) -> Slack:
    """The paper's sequences all have T tokens."""
    return equal("longest sequence minus shortest", x.corpus.T - x.corpus.lengths.min(), 0, tolerance=0)


def selective_conditions(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """The data that Assumption 4 speaks of: one length, something to select, one important token in each sequence."""
    return assumption4(x), one_length(x), above("T", x.corpus.T, 2)


def selecting_conditions(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """What (10) asks of eta_0 and d for the first step to show which tokens are important."""
    return above("eta_0", x.step, enough_step(x.corpus)), *concentration(x), flat_attention(x)


def theorem5_conditions(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """Assumption 4 and the conditions (10) of Theorem 5."""
    vocabulary = above("d, beyond the vocabulary", x.dimension, x.corpus.size + 3)
    return (*selective_conditions(x), *selecting_conditions(x), vocabulary)


def without_subject(x: EmbeddingInstance, hypotheses: tuple[Slack, ...]) -> Findings | None:
    """Findings without a conclusion, where a broken hypothesis leaves no important token to select in some sequence,
    or a corpus is so large that nobody would wait for a conclusion that is not claimed; None otherwise."""
    unclaimed = any(slack.refuted for slack in hypotheses)
    nothing = not x.corpus.important.any(axis=1).all()
    return Findings(hypotheses) if unclaimed and (nothing or len(x.corpus.tokens) > LARGE) else None


def true_of_most_draws(name: str, facts: Sequence[bool], x: EmbeddingInstance) -> Slack:
    """A fact promised with probability 1 - delta, from the draws of which it is true."""
    return rare_event(f"not so: {name}", len(facts) - sum(map(bool, facts)), len(facts), x.delta)


def quantile_of_draws(
    name: str, values: Sequence[float], bound: float, x: EmbeddingInstance, *, tolerance: float = 0.0
) -> Slack:
    """The value that a share delta of the draws exceeds, beside its bound. It proves nothing by itself."""
    quantile = np.quantile(values, 1 - min(x.delta, 1.0), method="higher")
    shown = f"{name}, (1 - delta) quantile of the draws"
    return seen(below(shown, float(quantile), bound, tolerance=tolerance), "more draws")
