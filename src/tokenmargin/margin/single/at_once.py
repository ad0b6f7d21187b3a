"""The ordinary case, fast: one system without ties, well scaled, whose first proposal passes.

What does not pass here is not refused but handed to the general path. A single small problem is solved and certified
in the time of some twenty array operations.
"""

from __future__ import annotations

from functools import cache

import daqp
import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE, kkt_residuals
from tokenmargin.margin.solution import Certificate

__all__ = ["solve_at_once"]

_INFINITE = 1e30  # what daqp takes for no bound
_LARGEST = 10_000  # numbers in the rows: beyond, the general path's ways with large systems win
_WIDE = 6  # dimensions per constraint beyond which the general path narrows the rows first
_SPREAD = 1e3  # ratio of lengths, and of bounds, up to which rows need no scaling of their own
_RANGE = 1e140  # lengths up to this, and down to its reciprocal, have squares


@cache
def _unbounded(k: int) -> Float[Array, " k"]:
    return np.full(k, _INFINITE)


def solve_at_once(
    rows: Float[Array, "k r"], bound: Float[Array, " k"]
) -> tuple[Float[Array, " k"], Float[Array, " r"], Certificate] | None:
    """Multipliers, vector and certificate of `min |y|, rows y >= bound`; None unless proven optimal at once.

    The residuals are ratios that do not change when a row is scaled together with its bound, all but one: how negative
    a multiplier is beside the largest. So rows are left as they are, and negative multipliers to the general path.
    """
    k, r = rows.shape
    if not 0 < rows.size <= _LARGEST or r > _WIDE * k:
        return None
    squares = np.einsum("kr,kr->k", rows, rows)
    shortest, longest = squares.item(squares.argmin()) ** 0.5, squares.item(squares.argmax()) ** 0.5
    least, most = bound.item(bound.argmin()), bound.item(bound.argmax())
    if not (1 / _RANGE < longest <= _SPREAD * shortest and longest < _RANGE and 0 < most <= _SPREAD * least):
        return None
    scale = shortest / most  # the solver's tolerances are for vectors of length about 1
    scaled = bound * scale
    _, _, flag, info = daqp.solve(None, None, rows, _unbounded(k), scaled)
    if flag < 1:
        return None
    multipliers = np.negative(info["lam"])
    if multipliers.item(multipliers.argmin()) < 0:
        return None
    reached = kkt_residuals(rows, scaled, multipliers, length=longest)
    if not reached.largest <= TOLERANCE:
        return None
    return multipliers / scale, reached.vector / scale, Certificate(*reached[:4])
