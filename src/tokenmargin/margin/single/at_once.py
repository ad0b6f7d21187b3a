"""The ordinary case, fast: one system without ties, well scaled, whose first proposal passes.

What does not pass here is not refused but handed to the general path. A single small problem is solved and certified
in the time of some twenty array operations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE, kkt_residuals
from tokenmargin.margin.single.exact import surely_positive
from tokenmargin.margin.single.proposals import least_distance, many_can_wait, propose_from_many, shortest_vector
from tokenmargin.margin.solution import Certificate

_LARGEST = 10_000  # numbers in the rows, beyond which the general path wins unless most constraints can wait
_WIDE = 6  # dimensions per constraint beyond which the general path narrows the rows first
_SPREAD = 1e3  # ratio of lengths, and of bounds, up to which rows need no scaling of their own
_RANGE = 1e140  # lengths up to this, and down to its reciprocal, have squares


class Solved(NamedTuple):
    """A vector that is proven to be the solution."""

    multipliers: Float[Array, " k"]
    vector: Float[Array, " r"]
    margin: float
    certificate: Certificate


def solve_at_once(rows: Float[Array, "k r"], bound: Float[Array, " k"]) -> Solved | Float[Array, " k"] | None:
    """The solution of `min |y|, rows y >= bound`, or a Farkas vector; None unless either is proven at once.

    The residuals are ratios that do not change when a row is scaled together with its bound, all but one: how negative
    a multiplier is beside the largest. So rows are left as they are, and negative multipliers to the general path.
    """
    k, r = rows.shape
    large = rows.size > _LARGEST
    if not rows.size or r > _WIDE * k or (large and not many_can_wait(k, r)):
        return None
    squares = np.einsum("kr,kr->k", rows, rows)
    shortest, longest = squares.item(squares.argmin()) ** 0.5, squares.item(squares.argmax()) ** 0.5
    least, most = bound.item(bound.argmin()), bound.item(bound.argmax())
    if not (1 / _RANGE < longest <= _SPREAD * shortest and longest < _RANGE and 0 < most <= _SPREAD * least):
        return None
    scale = shortest / most  # the solver's tolerances are for vectors of length about 1
    scaled = bound * scale
    multipliers = propose_from_many(rows, scaled) if large else shortest_vector(rows, scaled)
    if multipliers is None:
        return _farkas_vector(rows, bound, longest) if k > r else None
    if not multipliers.any():
        return None
    reached = kkt_residuals(rows, scaled, multipliers, length=longest)
    if reached.dual > 0 or not reached.largest <= TOLERANCE:
        return None
    margin = scale / reached.norm
    if not 0 < margin < math.inf:
        return None
    return Solved(multipliers / scale, reached.vector / scale, margin, Certificate(*reached[:4]))


def _farkas_vector(rows: Float[Array, "k r"], bound: Float[Array, " k"], longest: float) -> Float[Array, " k"] | None:
    """A Farkas vector with `bound' u = 1`, where r + 1 rows in r dimensions give one beyond all rounding."""
    rows = rows * 2.0 ** -math.frexp(longest)[1]  # to lengths of at most 1, exactly
    u = least_distance(rows, bound / bound.item(bound.argmax()))
    if u is None:
        return None
    support = u.nonzero()[0]
    kept = u.take(support)
    if len(support) != rows.shape[1] + 1 or not surely_positive(rows.take(support, axis=0), kept):
        return None
    return u / u.dot(bound)
