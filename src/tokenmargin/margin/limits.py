"""LimitDirection and Atlas: the directions in which attention can converge, as found by `atlas`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.solution import MarginSolution

__all__ = ["Atlas", "LimitDirection"]


@dataclass(frozen=True, eq=False)
class LimitDirection:
    """One locally optimal max-margin direction (LMM).

    **Attributes**
    - `selected`: the token of each input.
    - `solution`: direction, margin, multipliers and certificate.
    - `neighbours`: the SVM-neighbours, margin exactly 1.
    - `gaps`: score of the selected token less the best score among its neighbours; infinite without neighbours.
    - `is_global`: whether the selected tokens are the optimal ones: this is the GMM.
    """

    selected: Int[Array, " n"]
    solution: MarginSolution
    neighbours: Bool[Array, "n T"]
    gaps: Float[Array, " n"]
    is_global: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        return {
            "selected": self.selected.tolist(),
            "margin": self.solution.margin,
            "direction": self.solution.vector.tolist(),
            "neighbours": np.argwhere(self.neighbours).tolist(),
            "score_gaps": [gap if math.isfinite(gap) else None for gap in self.gaps.tolist()],
            "gmm": self.is_global,
            "residual": self.solution.certificate.residual,
        }


@dataclass(frozen=True, eq=False)
class Atlas:
    """What was found, and how much of the tree was seen.

    **Attributes**
    - `limits`: the locally optimal selections, the GMM first, then by margin.
    - `selections`: number of selections, T^n.
    - `feasible`, `infeasible`: how many were proven to be so.
    - `undecided`: selections whose status could not be proven in double precision.
    - `solves`: max-margin problems solved on the way.
    - `seconds`: time taken.
    """

    limits: tuple[LimitDirection, ...]
    selections: int
    feasible: int
    infeasible: int
    undecided: tuple[tuple[int, ...], ...]
    solves: int
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether every selection was decided."""
        return self.feasible + self.infeasible == self.selections

    @property
    def gmm(self) -> LimitDirection | None:
        """The globally optimal direction, when it is feasible."""
        return next((limit for limit in self.limits if limit.is_global), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        return {
            "complete": self.complete,
            "selections": self.selections,
            "feasible": self.feasible,
            "infeasible": self.infeasible,
            "undecided": [list(selected) for selected in self.undecided],
            "solves": self.solves,
            "seconds": self.seconds,
            "limits": [limit.to_dict() for limit in self.limits],
        }

    def __repr__(self) -> str:
        seen = "complete" if self.complete else f"partial ({self.feasible + self.infeasible} decided)"
        return f"Atlas({len(self.limits)} limits, {self.feasible} feasible of {self.selections} selections, {seen})"
