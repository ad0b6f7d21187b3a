"""Statistics that several rooms need: an interval for a share, rank correlation, random numbers."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from numpy.random import Generator

Rng = Generator | int
"""Where random numbers come from: a generator, or a seed for a new one."""

Z = 1.959964  # the 97.5% point of the normal distribution


def generator(rng: Rng) -> Generator:
    """The generator given, or a new one from a seed: the same seed, the same numbers.

    >>> float(generator(0).random()) == float(np.random.default_rng(0).random())
    True
    """
    if isinstance(rng, Generator):
        return rng
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise TypeError(f"rng must be a seed (an integer from 0) or a numpy.random.Generator, got {rng!r}")


def wilson_interval(count: int | float, total: int) -> tuple[float, float]:
    """Wilson's 95% confidence interval of the share `count / total`; all of [0, 1] when nothing was counted.

    >>> [round(end, 3) for end in wilson_interval(8, 10)]
    [0.49, 0.943]
    """
    if total == 0:
        return 0.0, 1.0
    share = count / total
    centre = (share + Z**2 / (2 * total)) / (1 + Z**2 / total)
    half = Z / (1 + Z**2 / total) * np.sqrt(share * (1 - share) / total + Z**2 / (4 * total**2))
    return float(max(centre - half, 0.0)), float(min(centre + half, 1.0))


def spearman(x: Float[Array, "*rows n"], y: Float[Array, "*rows n"]) -> Float[Array, "*rows"]:
    """Spearman's rank correlation along the last axis, ties at their mean rank; NaN where one of the two is constant.

    >>> float(spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0])))
    0.5
    """
    from scipy.stats import rankdata  # takes half a second to load

    middle = (x.shape[-1] + 1) / 2
    x, y = (rankdata(values, axis=-1) - middle for values in (x, y))
    scale = np.sqrt((x * x).sum(axis=-1) * (y * y).sum(axis=-1))
    return np.divide((x * y).sum(axis=-1), scale, out=np.full(scale.shape, np.nan), where=scale > 0)
