"""StackResult: what is proven of each system of a stack. Compiled code writes into its arrays.

Compiled code on disk names this module: where it moves, numba cannot read what an earlier version left there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE

UNDECIDED, SOLVED, INFEASIBLE, OUT_OF_RANGE, RAY = 0, 1, 2, 3, 4
"""What compiled code knows of a system; out of range are rows whose squared length is no ordinary number.

A ray is a Farkas vector that only exact arithmetic can judge: its rows span less than the whole space.
"""


class StackResult(NamedTuple):
    """Multipliers and vector of each system, or a Farkas vector, with the residuals that judge them.

    - `codes`: what compiled code found, as above; undecided where it was not asked.
    - `vectors`, `norms`: the vectors that were judged, and their lengths.
    - `residuals`: primal, dual, complementarity and gap in the units of `Certificate`; last that of the Farkas vector,
      which is 0 where it is proven and infinite where there is none.
    - `tolerance`: largest residual with which a vector is called the solution.
    """

    codes: Int[Array, " B"]
    vectors: Float[Array, "B r"]
    norms: Float[Array, " B"]
    multipliers: Float[Array, "B k"]
    farkas: Float[Array, "B k"]
    residuals: Float[Array, "B 5"]
    tolerance: float = TOLERANCE

    @classmethod
    def empty(cls, B: int, k: int, r: int, *, tolerance: float = TOLERANCE) -> StackResult:
        """Nothing decided yet: zeros, and infinite residuals."""
        return cls(
            codes=np.full(B, UNDECIDED, dtype=np.intp),
            vectors=np.zeros((B, r)),
            norms=np.zeros(B),
            multipliers=np.zeros((B, k)),
            farkas=np.zeros((B, k)),
            residuals=np.full((B, 5), np.inf),
            tolerance=tolerance,
        )

    @property
    def optimal(self) -> Bool[Array, " B"]:
        """Which vectors are proven to be the solution."""
        return np.maximum.reduce(self.residuals[:, :4], axis=1) <= self.tolerance

    @property
    def infeasible(self) -> Bool[Array, " B"]:
        """Which systems are proven to have no solution."""
        return self.residuals[:, 4] == 0
