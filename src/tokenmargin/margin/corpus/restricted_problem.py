"""The master problem of the cutting planes: the constraints in play, re-solved from where the last solve stood."""

from __future__ import annotations

import daqp
import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

__all__ = ["RestrictedProblem", "propose_by_cuts"]

_INFINITE = 1e30
_ENOUGH = 1e-12  # violations below this are left to the certificate
_FIRST, _MORE = 3, 1  # constraints taken into play at first and in later rounds, as multiples of the dimension


class RestrictedProblem:
    """Unit rows and bounds in play, the number of each in the whole problem, and the multipliers of the last solve."""

    def __init__(self, dimension: int) -> None:
        self.rows = np.zeros((0, dimension))
        self.bound, self.multipliers = np.zeros(0), np.zeros(0)
        self.numbers = np.zeros(0, dtype=np.intp)

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, numbers: Int[Array, " c"], rows: Float[Array, "c d"], bound: Float[Array, " c"]) -> None:
        """Take new constraints in."""
        self.rows = np.concatenate([self.rows, rows])
        self.bound = np.concatenate([self.bound, bound])
        self.multipliers = np.concatenate([self.multipliers, np.zeros(len(numbers))])
        self.numbers = np.concatenate([self.numbers, numbers])

    def forget_idle(self) -> None:
        """Drop the constraints that do not hold the solution."""
        held = np.flatnonzero(self.multipliers)
        self.rows, self.bound = self.rows[held], self.bound[held]
        self.multipliers, self.numbers = self.multipliers[held], self.numbers[held]

    def solve(self) -> bool:
        """Re-solve from the last active set; False when the constraints in play have no solution."""
        scale = self.bound.max()
        _, _, flag, info = daqp.solve(
            None, None, self.rows, np.full(len(self), _INFINITE), self.bound / scale,
            (self.multipliers > 0).astype(np.intc), dual_start=-self.multipliers / scale, iter_limit=1_000_000,
        )  # fmt: skip
        self.multipliers = np.maximum(-np.asarray(info["lam"]) * scale, 0.0)
        return bool(flag > 0)

    @property
    def vector(self) -> Float[Array, " d"]:
        """The solution of the last solve."""
        return self.multipliers @ self.rows


def propose_by_cuts(rows: Float[Array, "k r"], bound: Float[Array, " k"]) -> Float[Array, " k"]:
    """Multipliers of a system with many more constraints than dimensions; zeros when it seems infeasible.

    Only a fraction of the constraints ever come into play, so the solver's steps cost a fraction too.
    """
    k, r = rows.shape
    master = RestrictedProblem(r)
    waiting = np.ones(k, dtype=bool)
    slack = rows @ (bound @ rows)  # along the mean constraint, the least satisfied are the likeliest to be active
    slack -= slack.max()
    multipliers = np.zeros(k)
    while True:
        cuts = np.flatnonzero(waiting & (slack < -_ENOUGH))
        if not len(cuts):
            break
        number = (_MORE if len(master) else _FIRST) * r
        if len(cuts) > number:
            cuts = cuts[np.argpartition(slack[cuts], number)[:number]]
        master.add(cuts, rows[cuts], bound[cuts])
        waiting[cuts] = False
        if not master.solve():
            return multipliers
        slack = rows @ master.vector - bound
    multipliers[master.numbers] = master.multipliers
    return multipliers
