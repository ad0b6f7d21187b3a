"""Integrals of functions known by their logarithms, which may be far beyond the largest double."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

__all__ = ["log_integral"]

_BEND = 1e-5  # largest departure of the logarithm from a straight line between two nodes
_SPLITS = 30


def log_integral(
    log_f: Callable[[Float[Array, " k"]], Float[Array, " k"]], knots: Float[Array, " knots"]
) -> Float[Array, " knots"]:
    """`log` of the integral of `exp(log_f)` from the first knot to each knot (minus infinity at the first).

    Intervals are halved until `log_f` is straight on each of them; the exponential of a straight line is integrated
    exactly.

    >>> log_integral(lambda x: 1000 * x, np.array([0.0, 1.0, 2.0])).round(3)
    array([    -inf,  993.092, 1993.092])
    """
    nodes, values = knots, log_f(knots)
    open_ = np.ones(len(knots) - 1, dtype=bool)
    for _ in range(_SPLITS):
        where = np.flatnonzero(open_)
        if where.size == 0:
            break
        middle = (nodes[where] + nodes[where + 1]) / 2
        at_middle = log_f(middle)
        bent = np.abs(at_middle - (values[where] + values[where + 1]) / 2) > _BEND
        nodes = np.insert(nodes, where + 1, middle)
        values = np.insert(values, where + 1, at_middle)
        open_ = np.zeros(len(nodes) - 1, dtype=bool)
        left = where + np.arange(where.size)  # where the halves lie now
        open_[left] = open_[left + 1] = bent
    pieces = np.append(-np.inf, np.logaddexp.accumulate(_log_pieces(nodes, values)))
    return pieces[np.searchsorted(nodes, knots)]


def _log_pieces(nodes: Float[Array, " k"], values: Float[Array, " k"]) -> Float[Array, " pieces"]:
    """`log(h exp(a) (exp(b - a) - 1) / (b - a))` for every interval, from its larger end so that nothing overflows."""
    fall = np.abs(np.diff(values))
    flat = fall < 1e-6
    share = np.where(flat, 1 - fall / 2, -np.expm1(-fall) / np.where(flat, 1.0, fall))
    return np.asarray(np.log(np.diff(nodes)) + np.maximum(values[1:], values[:-1]) + np.log(share))
