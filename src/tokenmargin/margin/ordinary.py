"""The ordinary case, fast: one system without ties, well scaled, whose first proposal passes.

The conditions are those of `certificate.judge`, on plain vectors; what does not pass here is not refused but handed
to the general path. A single small problem is solved and certified in the time of some twenty array operations.
"""

from __future__ import annotations

from functools import cache

import daqp
import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE
from tokenmargin.margin.solution import Certificate

__all__ = ["solve_ordinary"]

_INFINITE = 1e30  # what daqp takes for no bound
_LARGEST = 10_000  # numbers in the rows: beyond, the general path's ways with large systems win
_SHORTEST = 1e-140  # lengths and bounds that are zero, or so small that squares underflow
_WIDE = 6  # dimensions per constraint beyond which the general path narrows the rows first


@cache
def _unbounded(k: int) -> Float[Array, " k"]:
    return np.full(k, _INFINITE)


def solve_ordinary(
    rows: Float[Array, "k r"], bound: Float[Array, " k"]
) -> tuple[Float[Array, " k"], Float[Array, " r"], Certificate] | None:
    """Multipliers, vector and certificate of `min |y|, rows y >= bound`; None unless proven optimal at once."""
    k, r = rows.shape
    if not 0 < rows.size <= _LARGEST or r > _WIDE * k:
        return None
    # Extremes by their place: a reduction of a small array takes four times as long.
    lengths = np.sqrt(np.einsum("kr,kr->k", rows, rows))
    if not lengths[lengths.argmin()] > _SHORTEST:
        return None
    unit = rows / lengths[:, None]
    relative = bound / lengths
    if not relative[relative.argmin()] > _SHORTEST:
        return None
    scale = relative[relative.argmax()]
    relative /= scale
    _, _, flag, info = daqp.solve(None, None, unit, _unbounded(k), relative)
    if flag < 1:
        return None
    multipliers = np.negative(info["lam"])
    largest = multipliers[multipliers.argmax()]
    if not largest > 0:
        return None
    y = multipliers @ unit
    squared = y @ y
    slack = unit @ y
    slack -= relative
    products = multipliers * slack
    gap = np.add.reduce(products)
    np.abs(products, out=products)
    slack /= relative
    certificate = Certificate(
        primal=max(0.0, -float(slack[slack.argmin()])),
        dual=max(0.0, -float(multipliers[multipliers.argmin()] / largest)),
        complementarity=float(products[products.argmax()] / squared),
        gap=float(abs(gap) / squared),
    )
    if not certificate.residual <= TOLERANCE:
        return None
    lengths /= scale
    multipliers /= lengths
    y *= scale
    return multipliers, y, certificate
