"""MarginSolution: the answer to a max-margin problem, with the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

__all__ = ["Certificate", "MarginSolution", "Status"]

Status = Literal["optimal", "infeasible", "inaccurate"]


class Certificate(NamedTuple):
    """Residuals of the optimality conditions, each relative to the problem's own scale.

    - `primal`: largest violation of a constraint, in units of the margin.
    - `dual`: most negative multiplier of an inequality, relative to the largest; or `|p - M' multipliers|` over |p|.
    - `complementarity`: largest product of multiplier and slack, relative to |p|^2.
    - `gap`: duality gap, relative to |p|^2.
    - `farkas`: |M' farkas| over `sum_j farkas_j |row_j|`, for infeasible problems (else infinity).

    Violations that rounding hides (see `certificate.judge`) are none: no vector of doubles does better.
    """

    primal: float = np.inf
    dual: float = np.inf
    complementarity: float = np.inf
    gap: float = np.inf
    farkas: float = np.inf

    @property
    def residual(self) -> float:
        """The largest residual of the claim made: of optimality, or of infeasibility where that is proven better."""
        return min(max(self.primal, self.dual, self.complementarity, self.gap), self.farkas)


@dataclass(frozen=True, eq=False)
class MarginSolution:
    """The solution of `min |p|` under linear constraints, and why to believe it.

    **Attributes**
    - `status`: "optimal", "infeasible", or "inaccurate" when neither could be proven to tolerance.
    - `vector`: the minimiser, a parameter of the problem's geometry; zeros when infeasible.
    - `margin`: `1 / |p|`; zero when infeasible, infinity when there is nothing to separate.
    - `multipliers`: one per constraint.
    - `active`: constraints with a positive multiplier.
    - `tokens`: (input, position) of each constraint; of a corpus, (selected row, other row) of those that hold p.
    - `farkas`: `lambda >= 0` with `M' lambda = 0` and `bound' lambda = 1`, proving infeasibility; None otherwise.
    - `certificate`: the residuals.
    - `seconds`: time taken.
    - `solves`: convex problems solved on the way.

    ATT-SVM' is not convex. Its solution is one of the global minima, and has besides:

    - `choice`: the chosen token of every input.
    - `parts`: all global minima, or for an infeasible problem the refuted branches of the search, each with the Farkas
      vector of its choice. The solution's own residuals are then the largest among them.
    """

    status: Status
    vector: Float[Array, " D"]
    margin: float
    multipliers: Float[Array, " k"]
    tokens: Int[Array, "k 2"]
    certificate: Certificate
    farkas: Float[Array, " k"] | None = None
    seconds: float = 0.0
    solves: int = 1
    choice: tuple[int, ...] | None = None
    parts: tuple[MarginSolution, ...] = ()

    @property
    def minima(self) -> tuple[MarginSolution, ...]:
        """All global minima: the solution itself where the problem is convex, none where it is infeasible."""
        if self.status == "infeasible":
            return ()
        return self.parts if self.choice is not None else (self,)

    @property
    def active(self) -> Int[Array, " a"]:
        """Indices of the constraints that hold the solution: those with a non-zero multiplier."""
        return np.flatnonzero(self.multipliers)

    @property
    def is_optimal(self) -> bool:
        """Whether the vector is proven to be the minimiser."""
        return self.status == "optimal"

    def __repr__(self) -> str:
        return (
            f"MarginSolution({self.status}, margin={self.margin:.6g}, active={len(self.active)} of {len(self.tokens)}, "
            f"residual={self.certificate.residual:.1e})"
        )
