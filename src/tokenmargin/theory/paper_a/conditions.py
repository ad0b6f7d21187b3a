"""The conditions that paper A's statements share, as slacks."""

from __future__ import annotations

import numpy as np

from tokenmargin.theory.claim import Slack, above, below
from tokenmargin.theory.instances import EmbeddingInstance, enough_step

__all__ = [
    "IMPLIED",
    "assumption4",
    "concentrated",
    "deviation",
    "flat_attention",
    "lacking",
    "quantile",
    "regime",
    "share",
]


IMPLIED = {
    "d, beyond the vocabulary": "Implied by the condition for flat attention, as |S| <= n T and eta_0 >= 4 n^2 T^2."
}


def deviation(x: EmbeddingInstance) -> float:
    """`sqrt(2 log(|S|^2 / delta))`: how many standard deviations (14) allows."""
    return float(np.sqrt(2 * np.log(x.corpus.size**2 / x.delta)))


def concentrated(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """`d >= 256` and `d >= (2 log(|S|^2/delta))^2`: inner products at the start are at most d^(-1/4)."""
    return above("d", x.dimension, 256), above("d, for inner products <= d^(-1/4)", x.dimension, deviation(x) ** 4)


def flat_attention(x: EmbeddingInstance) -> Slack:
    """`d >= (88 eta^2 + 111 eta + 2)^8`: attention is still near uniform after the first step."""
    return above("d, for flat attention", x.dimension, (88 * x.step**2 + 111 * x.step + 2) ** 8)


def assumption4(x: EmbeddingInstance) -> Slack:
    """Assumption 4, by the number of sequences that break it."""
    return below("sequences that break Assumption 4", len(x.corpus.assumption4().offending), 0)


def regime(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """Assumption 4 and the conditions (10) of Theorem 5."""
    return (
        assumption4(x),
        above("eta_0", x.step, enough_step(x.corpus)),
        *concentrated(x),
        flat_attention(x),
        above("d, beyond the vocabulary", x.dimension, x.corpus.size + 3),
    )


def lacking(angle: float) -> float:
    """`1 - cos(angle)` without cancellation; 2, its largest value, where there is no angle."""
    return float(2 * np.sin(angle / 2) ** 2) if np.isfinite(angle) else 2.0


def quantile(values: list[float], x: EmbeddingInstance) -> float:
    """The least value that draws exceed with a probability of at most delta."""
    order = np.argsort(values)[::-1]
    beyond = np.cumsum(x.weights[order]) / x.draws  # how probable it is to reach each value, largest first
    return float(
        np.asarray(values)[
            order[np.searchsorted(beyond, x.delta * (1 + 1e-12), side="right").clip(max=len(values) - 1)]
        ]
    )


def share(name: str, facts: list[bool], x: EmbeddingInstance) -> Slack:
    """The share of draws of which a fact is true, against the promised `1 - delta`."""
    return above(f"share of draws: {name}", float(np.mean(facts)), 1 - x.delta)
