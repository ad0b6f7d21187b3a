"""One certificate for every norm: a feasible vector, multipliers, and the gap between the bounds that the two give.

`min |x|` under `rows x >= bound` is at least `bound' m / |rows' m|_*` for every `m >= 0`, whatever the norm: for a
feasible x, `bound' m <= <rows' m, x> <= |rows' m|_* |x|`. So a feasible vector is an upper bound, multipliers are a
lower one, and where the two meet both are optimal, whoever proposed them. Rounding is counted against the claim.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE, Systems
from tokenmargin.norms import EPS, AbstractNorm, SchattenNorm

GAP = 1e-9
"""Largest relative gap with which an answer is called optimal."""
MATRIX_GAP = 1e-8
"""The same for norms of singular values."""


class CertifiedVector(NamedTuple):
    """A vector and multipliers with `|rows' multipliers|_* = |vector|`, and what they prove.

    - `gap`: no feasible vector is shorter by more than this share, in exact arithmetic; infinite if nothing is proven.
    - `primal`: largest violation of a constraint that scaling cannot help: an equality, or one whose bound is zero.
    """

    vector: Float[Array, " r"]
    multipliers: Float[Array, " k"]
    norm: float
    gap: float
    primal: float

    @property
    def residual(self) -> float:
        """What decides between two proposals."""
        return max(self.gap, self.primal)

    def passes(self, norm: AbstractNorm) -> bool:
        """Whether this is called optimal."""
        return self.gap <= gap_tolerance(norm) and self.primal <= TOLERANCE


def gap_tolerance(norm: AbstractNorm) -> float:
    """Largest relative gap with which an answer in this norm is called optimal."""
    return MATRIX_GAP if isinstance(norm, SchattenNorm) else GAP


def judge_proposal(
    one: Systems, norm: AbstractNorm, vector: Float[Array, " r"], multipliers: Float[Array, " k"]
) -> CertifiedVector:
    """What a proposal proves about the first system of a stack, once scaled.

    An inner product of r terms, each a rounded difference times a rounded number, is off by at most `(r + 4) eps` times
    the sum of its terms' sizes; a combination of a rows, coordinate by coordinate, by `(a + 4) eps` times theirs.
    """
    rows, bound = one.rows[0], one.bound[0]
    k, r = rows.shape
    tied = np.zeros(k, dtype=bool) if one.equality is None else one.equality
    nothing = CertifiedVector(np.zeros(r), np.zeros(k), 0.0, np.inf, np.inf)
    if not (np.isfinite(vector).all() and np.isfinite(multipliers).all() and vector.any()):
        return nothing
    size = np.abs(rows)
    reached = rows @ vector
    surely = reached - (r + 4) * EPS * (size @ np.abs(vector))
    asks = (bound > 0) & ~tied
    if not (asks.any() and (surely[asks] > 0).all()):
        return nothing
    factor = float((bound[asks] / surely[asks]).max()) * (1 + 4 * EPS)
    x, reached, surely = vector * factor, reached * factor, surely * factor
    upper = float(norm.value(x)) * (1 + norm.rounding(r))
    short = np.where(tied, np.abs(reached - bound) + (reached - surely), np.where(asks, 0.0, -surely))
    primal = max(0.0, float((short / one.size[0]).max()))
    m = np.where(tied, multipliers, np.maximum(multipliers, 0.0))
    weights = np.abs(m)
    blur = (np.count_nonzero(m) + 4) * EPS * (weights @ size)
    dual = float(norm.dual_value(m @ rows)) * (1 + norm.rounding(r)) + norm.dual_bound(blur)
    gained = float(bound @ m) - (k + 2) * EPS * float(bound @ weights)
    if not (0 < dual < np.inf and gained > 0 and 0 < upper < np.inf):
        return CertifiedVector(x, np.zeros(k), upper, np.inf, primal)
    return CertifiedVector(x, m * (upper / dual), upper, abs(1 - gained / dual / upper), primal)
