"""The ordinary case, fast: one system without ties, well scaled, whose first proposal passes.

The conditions are those of `certificate.judge`, on plain vectors; what does not pass here is not refused but handed
to the general path. A single small problem is solved and certified in the time of some twenty array operations.
"""

from __future__ import annotations

import daqp
import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE
from tokenmargin.margin.solution import Certificate

__all__ = ["solve_ordinary"]

_INFINITE = 1e30  # what daqp takes for no bound
_LARGEST = 10_000  # numbers in the rows: beyond, the general path's ways with large systems win
_WIDE = 6  # dimensions per constraint beyond which the general path narrows the rows first


def solve_ordinary(
    rows: Float[Array, "k r"], bound: Float[Array, " k"]
) -> tuple[Float[Array, " k"], Float[Array, " r"], Certificate] | None:
    """Multipliers, vector and certificate of `min |y|, rows y >= bound`; None unless proven optimal at once."""
    k, r = rows.shape
    if rows.size > _LARGEST or r > _WIDE * k or not bound.all():
        return None
    lengths = np.sqrt(np.einsum("kr,kr->k", rows, rows))
    if not lengths.all():
        return None
    unit = rows / lengths[:, None]
    relative = bound / lengths
    scale = relative.max()
    relative /= scale
    _, _, flag, info = daqp.solve(None, None, unit, np.full(k, _INFINITE), relative)
    if flag < 1:
        return None
    multipliers = -info["lam"]
    y = multipliers @ unit
    squared = float(y @ y)
    slack = unit @ y - relative
    products = multipliers * slack
    largest = float(multipliers.max())
    if not largest > 0:
        return None
    certificate = Certificate(
        primal=max(0.0, -float((slack / relative).min())),
        dual=max(0.0, -float(multipliers.min()) / largest),
        complementarity=max(float(products.max()), -float(products.min())) / squared,
        gap=abs(float(products.sum())) / squared,
    )
    if certificate.residual > TOLERANCE:
        return None
    return multipliers * (scale / lengths), y * scale, certificate
