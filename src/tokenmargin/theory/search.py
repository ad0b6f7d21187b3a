"""The shortest path to a witness: minimise a function of unit vectors by looking, without its gradient.

The limit theorems on regularisation paths say which direction has the least risk at a given length. A search that only
compares values knows nothing of the dynamics or of the max-margin solver, so its answer is evidence for both.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

__all__ = ["best_direction", "vanishing"]

from tokenmargin.theory.claim import Slack, below

Score = Callable[[Float[Array, "k D"]], Float[Array, " k"]]


def best_direction(
    score: Score,
    directions: Float[Array, "k D"],
    normalise: Callable[[Float[Array, "k D"]], Float[Array, "k D"]],
    *,
    rng: np.random.Generator,
    rounds: int = 45,
    around: int = 40,
) -> Float[Array, " D"]:
    """The best of `directions`, improved by looking around it ever closer.

    **Arguments**
    - `score`: to be minimised; takes many directions at once.
    - `directions`: where to begin, spread over all that are allowed.
    - `normalise`: brings a point back to the allowed directions.
    - `rounds`, `around`: how often the neighbourhood shrinks by 0.7, and how many neighbours are tried each time.
    """
    scores = score(directions)
    best, least = directions[int(np.argmin(scores))], float(scores.min())
    mixing = directions[rng.integers(len(directions), size=(rounds, around))]
    width = 0.5
    for others in mixing:
        tried = normalise(best + width * rng.standard_normal((around, 1)) * others)
        scores = score(tried)
        if scores.min() < least:
            best, least = tried[int(np.argmin(scores))], float(scores.min())
        width *= 0.7
    return best


def vanishing(name: str, angles: tuple[float, float], *, norm: float, most: float = 1e-2) -> tuple[Slack, Slack]:
    """An angle that goes to zero: small at `norm`, and falling like a power of the norm over the decade before.

    - `angles`: at a tenth of the norm, and at the norm. Where the first is already below 1e-7 (what a search can
      resolve) the power counts as 1.
    """
    earlier, late = angles
    exponent = float(np.log10(late / earlier)) if earlier > 1e-7 else -1.0
    return (
        below(f"angle to {name} at norm {norm:g}", late, most),
        below("its exponent in the norm, last decade", exponent, -0.8),
    )
