"""StackBuffers: the arrays into which many systems are answered at once.

Compiled code on disk names this module: where it moves, numba cannot read what an earlier version left there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

UNDECIDED, SOLVED, INFEASIBLE, OUT_OF_RANGE, RAY = 0, 1, 2, 3, 4
"""What is known of a system; out of range are rows whose squared length is no ordinary number.

A ray is a Farkas vector that only exact arithmetic can judge: its rows span less than the whole space.
"""


class StackBuffers(NamedTuple):
    """What is written for each problem: multipliers and vector, or a Farkas vector of sum 1, with the residuals.

    The first four columns of `residuals` are those of `ResidualTable`, the last is of the Farkas vector: 0 if proven.
    """

    codes: Int[Array, " B"]
    vectors: Float[Array, "B r"]
    norms: Float[Array, " B"]
    multipliers: Float[Array, "B k"]
    farkas: Float[Array, "B k"]
    residuals: Float[Array, "B 5"]

    @classmethod
    def empty(cls, B: int, k: int, r: int) -> StackBuffers:
        """Nothing decided yet: zeros, and infinite residuals."""
        return cls(
            codes=np.full(B, UNDECIDED, dtype=np.intp),
            vectors=np.zeros((B, r)),
            norms=np.zeros(B),
            multipliers=np.zeros((B, k)),
            farkas=np.zeros((B, k)),
            residuals=np.full((B, 5), np.inf),
        )
