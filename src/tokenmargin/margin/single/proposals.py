"""Multipliers that daqp proposes, by itself or inside cutting planes: every call of that solver is here.

Of many constraints most need not be looked at until late; there compiled code is faster, and is loaded when that pays.
A proposal proves nothing; the certificates decide.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import daqp
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

LOADING = 0.6
"""Seconds that compiled code takes to load, once per process."""
_INFINITE = 1e30  # what daqp takes for no bound
_EQUALITY = 5  # daqp's code for an equality row
_ENOUGH = 1e-12  # violations below this are left to the certificate
_PER_DIMENSION, _NUMBERS = (
    8,
    40_000,
)  # constraints per dimension, and numbers in all, from which most constraints can wait
_CUTTING = 6e-9  # seconds that cutting planes take for k rows of r dimensions, over r (r^2 + k)
_FIRST, _MORE = 3, 1  # constraints taken into play at first and in later rounds, as multiples of the dimension


def shortest_vector(
    rows: Float[Array, "k r"], bound: Float[Array, " k"], equality: Bool[Array, " k"] | None = None
) -> Float[Array, " k"] | None:
    """Multipliers of `min |y|, rows y >= bound` (`=` where `equality`); None where daqp finds no solution."""
    if equality is None:
        _, _, flag, info = daqp.solve(None, None, rows, _infinite_bounds(len(bound)), bound)
    else:
        upper, (sense, settings) = np.where(equality, bound, _INFINITE), _ties(equality)
        _, _, flag, info = daqp.solve(None, None, rows, upper, bound, sense, **settings)
    return np.negative(info["lam"]) if flag > 0 else None


def least_distance(
    rows: Float[Array, "k r"], bound: Float[Array, " k"], equality: Bool[Array, " k"] | None = None
) -> Float[Array, " k"] | None:
    """Weights u of Lawson and Hanson's least-distance problem, which is never infeasible; None if daqp gives up.

    `min |[rows'; bound'] u - (0, ..., 0, 1)|` over `u >= 0` has residual zero exactly when `rows y >= bound` has no
    solution, and then u is the proof; otherwise `u / (1 - bound' u)` are the multipliers of the shortest solution.
    daqp is given the dual, `min |x - (0, ..., 0, 1)|` under `[rows, bound] x <= 0`.
    """
    k, r = rows.shape
    cone, towards = np.empty((k, r + 1)), np.zeros(r + 1)
    cone[:, :r], cone[:, r], towards[r] = rows, bound, -1.0
    if equality is None:
        _, _, flag, info = daqp.solve(None, towards, cone, np.zeros(k), -_infinite_bounds(k))
    else:
        lower, (sense, settings) = np.where(equality, 0.0, -_INFINITE), _ties(equality)
        _, _, flag, info = daqp.solve(None, towards, cone, np.zeros(k), lower, sense, **settings)
    return np.asarray(info["lam"]) if flag > 0 else None


def nearest_point(
    target: Float[Array, " r"], cone: Float[Array, "k r"], equality: Bool[Array, " k"]
) -> Float[Array, " r"]:
    """The point nearest to `target` of the cone `cone y >= 0` (`=` where `equality`); the target if daqp gives up."""
    lengths = np.linalg.norm(cone, axis=1)
    kept = lengths > _ENOUGH
    cone, equality = cone[kept] / lengths[kept, None], equality[kept]
    upper, (sense, settings) = np.where(equality, 0.0, _INFINITE), _ties(equality)
    x, _, flag, _ = daqp.solve(np.eye(len(target)), -target, cone, upper, np.zeros(len(cone)), sense, **settings)
    return np.asarray(x) if flag > 0 else target


@cache
def _infinite_bounds(k: int) -> Float[Array, " k"]:
    return np.full(k, _INFINITE)


def _ties(equality: Bool[Array, " k"]) -> tuple[Int[Array, " k"], dict[str, Any]]:
    """How daqp is told which rows are equalities; it must not remove dependent ones, which have multipliers too."""
    return np.where(equality, _EQUALITY, 0).astype(np.intc), {"eq_reduction": -1}


class RestrictedProblem:
    """The constraints in play of a larger problem, re-solved from where the last solve stood.

    Unit rows and bounds in play, the number of each in the whole problem, and the multipliers of the last solve.
    """

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
            None, None, self.rows, _infinite_bounds(len(self)), self.bound / scale,
            (self.multipliers > 0).astype(np.intc), dual_start=-self.multipliers / scale, iter_limit=1_000_000,
        )  # fmt: skip
        self.multipliers = np.maximum(-np.asarray(info["lam"]) * scale, 0.0)
        return bool(flag > 0)

    @property
    def vector(self) -> Float[Array, " d"]:
        """The solution of the last solve."""
        return self.multipliers @ self.rows


def many_can_wait(k: int, r: int) -> bool:
    """Whether a system has so many more constraints than dimensions that most of them should not be in play."""
    return k >= _PER_DIMENSION * r and k * r >= _NUMBERS


_spent = 0.0  # seconds that cutting planes are estimated to have cost this process


def propose_from_many(rows: Float[Array, "k r"], bound: Float[Array, " k"]) -> Float[Array, " k"]:
    """Multipliers of a system with many more constraints than dimensions; zeros when it seems infeasible.

    Compiled code is loaded once cutting planes would have cost as much as that. By an estimate, not by the clock: the
    same calls give the same numbers.
    """
    global _spent
    k, r = rows.shape
    _spent += _CUTTING * r * (r**2 + k)
    if _spent > LOADING:
        from tokenmargin.margin.compiled.exchange import propose_by_exchange

        multipliers = propose_by_exchange(rows, bound)
        if multipliers is not None:
            return multipliers
    return propose_by_cuts(rows, bound)


def propose_by_cuts(rows: Float[Array, "k r"], bound: Float[Array, " k"]) -> Float[Array, " k"]:
    """As `propose_from_many`, by cutting planes alone.

    Only a fraction of the constraints ever come into play, so the solver's steps cost a fraction too.
    """
    k, r = rows.shape
    master = RestrictedProblem(r)
    waiting = np.ones(k, dtype=bool)
    slack = rows @ (bound @ rows)  # along the mean constraint, the least satisfied are the likeliest to be active
    slack -= slack.max()
    multipliers = np.zeros(k)
    while True:
        cuts = np.flatnonzero(waiting)
        if not (slack[cuts] < -_ENOUGH).any():
            break
        # Those that all but hold come along: they are the likeliest to be next, and a solve more costs more.
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
