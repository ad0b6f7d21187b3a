"""What a number of draws can say of a probability: exact binomial intervals, and the slacks made of them."""

from __future__ import annotations

import math
from dataclasses import replace

from scipy.stats import beta

from tokenmargin.theory.claim import Slack, below

CONFIDENCE = 0.95
"""How sure the interval of a report is of holding the true probability."""
REFUTING = 1 - 1e-9
"""How sure the interval must be before a statement is said to fail: one false refutation in a thousand million."""


def binomial_interval(events: int, draws: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Clopper and Pearson's interval for a probability: exact, so never narrower than the confidence asks.

    >>> low, high = binomial_interval(0, 59)
    >>> low, round(high, 4)
    (0.0, 0.0606)
    """
    if not 0 <= events <= draws or draws < 1:
        raise ValueError(f"events: between 0 and the number of draws, which is at least 1; got {events} of {draws}")
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, events, draws - events + 1)) if events > 0 else 0.0
    high = float(beta.isf(tail, events + 1, draws - events)) if events < draws else 1.0
    return low, high


def enough_draws(delta: float) -> int:
    """The fewest draws without an event that show `P(event) <= delta`: `(1 - delta)^draws` is at most the tail.

    >>> enough_draws(0.05), enough_draws(0.25)
    (72, 13)
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta: a probability between 0 and 1, got {delta:g}")
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log1p(-delta))


def rarely(name: str, events: int, draws: int, delta: float) -> Slack:
    """`P(event) <= delta`, from independent draws.

    Met when the whole interval lies below delta, which takes about 3.7/delta draws without the event; refuted when an
    interval of the confidence `REFUTING` lies above it; open in between, as it is for fewer draws than 1/delta.
    """
    low, high = binomial_interval(events, draws)
    sure, _ = binomial_interval(events, draws, REFUTING)
    shown = f"{name}, {events} of {draws} draws: probability {low:.2g} to {high:.2g}"
    decide = f"more draws: {draws} leave the probability between {low:.2g} and {high:.2g}"
    return replace(below(shown, high, delta), conclusive="if broken" if sure > delta else "never", decide=decide)
