"""The logarithm of an integral whose integrand is known by its logarithm, however large or small."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.norms import EPS

_BEND = 1e-5  # largest departure of the logarithm from a straight line between two nodes
_SPLITS = 30
_KNOWN = 64 * EPS  # values are known to about this share of their size: a bend below it is rounding
# Pieces this far below what is added up to the next knot are not halved: 2^30 of them make less than 1e-9 of it.
_NEGLIGIBLE = 42.0


def log_integral(
    log_f: Callable[[Float[Array, " k"]], Float[Array, " k"]], knots: Float[Array, " knots"]
) -> Float[Array, " knots"]:
    """`log` of the integral of `exp(log_f)` from the first knot to each knot (minus infinity at the first).

    Intervals are halved until `log_f` is straight on each of them, to 1e-5 or to the rounding of its own values; the
    exponential of a straight line is integrated exactly. Where `log_f` rises by millions, all but the last stretch of
    an interval is nothing beside the rest, and is left as it is.

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
        bend = np.abs(at_middle - (values[where] + values[where + 1]) / 2)
        bent = bend > np.maximum(_BEND, _KNOWN * np.abs(at_middle))
        nodes = np.insert(nodes, where + 1, middle)
        values = np.insert(values, where + 1, at_middle)
        left = where + np.arange(where.size)  # where the halves lie now
        open_ = np.zeros(len(nodes) - 1, dtype=bool)
        open_[left] = open_[left + 1] = bent
        most = np.full(len(nodes) - 1, -np.inf)  # what a half can hold at most, as it bends like its whole
        ends = np.maximum(values[1:], values[:-1])
        most[left], most[left + 1] = bend + ends[left], bend + ends[left + 1]
        up_to = _at_knots(nodes, values, knots)[np.searchsorted(knots, nodes[1:])]  # the knot that ends the stretch
        open_ &= most + _log_lengths(nodes) > up_to - _NEGLIGIBLE
    return _at_knots(nodes, values, knots)


def _at_knots(
    nodes: Float[Array, " k"], values: Float[Array, " k"], knots: Float[Array, " knots"]
) -> Float[Array, " knots"]:
    """The logarithm of the integral up to each knot, which is one of the nodes."""
    total = np.append(-np.inf, np.logaddexp.accumulate(_log_pieces(nodes, values)))
    return np.asarray(total[np.searchsorted(nodes, knots)])


def _log_lengths(nodes: Float[Array, " k"]) -> Float[Array, " pieces"]:
    """Of every interval; minus infinity where doubles cannot divide it any more."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.diff(nodes)))


def _log_pieces(nodes: Float[Array, " k"], values: Float[Array, " k"]) -> Float[Array, " pieces"]:
    """`log(h exp(a) (exp(b - a) - 1) / (b - a))` for every interval, from its larger end so that nothing overflows."""
    fall = np.abs(np.diff(values))
    flat = fall < 1e-6
    share = np.where(flat, 1 - fall / 2, -np.expm1(-fall) / np.where(flat, 1.0, fall))
    return np.asarray(_log_lengths(nodes) + np.maximum(values[1:], values[:-1]) + np.log(share))
