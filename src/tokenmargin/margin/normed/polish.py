"""Makes proposals exact: reads off which constraints hold and which coordinates are free, and solves the equations."""

from __future__ import annotations

import contextlib

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.norms import LpNorm

_CLOSE = 0.05  # slack, of constraints whose bounds are at most 1
_VANISHED = 1e-13  # share of the largest coordinate that is rounding
_STEPS = 4  # of Newton's method, from a proposal that is right to some digits


def holding_constraints(
    rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"],
    x: Float[Array, " r"], m: Float[Array, " k"], power: int = 1,
) -> Bool[Array, " k"]:  # fmt: skip
    """The constraints that hold the solution: their multiplier is larger, relatively, than their slack to a power."""
    slack = np.abs(rows @ x - bound)
    return tied | (m / max(m.max(), 1e-300) > slack**power)


def stiff_coordinates(norm: LpNorm, x: Float[Array, " r"], g: Float[Array, " r"]) -> Bool[Array, " r"]:
    """l1: coordinates that may differ from zero, where `|g_i|` is largest. linf: those at the bound, where g is not."""
    size, pull = np.abs(x) / np.abs(x).max(), np.abs(g) / np.abs(g).max()
    return size > 1 - pull if norm.p == 1 else pull > 1 - size


def trim_proposal(
    norm: LpNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"],
    x: Float[Array, " r"], m: Float[Array, " k"],
) -> tuple[Float[Array, " r"], Float[Array, " k"]]:  # fmt: skip
    """The proposal without what interior points leave: multipliers of idle constraints, coordinates that vanish."""
    if not (x.any() and m.any()):
        return x, m
    m = np.where(holding_constraints(rows, bound, tied, x, m), m, 0.0)
    g = m @ rows
    if norm.p == 1 and g.any():
        x = np.where(stiff_coordinates(norm, x, g), x, 0.0)
    if np.isinf(norm.p) and g.any():
        x = np.where(stiff_coordinates(norm, x, g), np.sign(x) * np.abs(x).max(), x)
    return x, m


def polish_proposal(
    norm: LpNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"],
    x: Float[Array, " r"], m: Float[Array, " k"], power: int = 1,
) -> tuple[Float[Array, " r"], Float[Array, " k"]] | None:  # fmt: skip
    """The proposal with the equations of its active set solved, by the smallest change; None where that cannot be.

    A `power` of 2 reads more constraints as active.
    """
    m = np.where(tied, m, np.maximum(m, 0.0))
    if not (x.any() and m.any() and np.isfinite(x).all() and np.isfinite(m).all()):
        return None
    active = np.flatnonzero(holding_constraints(rows, bound, tied, x, m, power))
    kept, asked = rows[active], bound[active]
    pull = norm.dual_value(m @ rows)
    if pull == 0:  # the multipliers cancel: they prove that nothing is feasible, or nothing at all
        return None
    with np.errstate(all="ignore"):
        weights = m[active] / pull
        try:
            if 1 < norm.p < np.inf:
                y, weights = _newton(norm.p, kept, asked, x, m[active])
            else:
                y, weights = _solve_active_set(norm, kept, asked, x, weights)
        except np.linalg.LinAlgError:
            return None
    multipliers = np.zeros_like(m)
    multipliers[active] = weights
    return y, multipliers


def polish_at_vertex(
    norm: LpNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], tied: Bool[Array, " k"],
    x: Float[Array, " r"], m: Float[Array, " k"],
) -> tuple[Float[Array, " r"], Float[Array, " k"]]:  # fmt: skip
    """lp: the vector as its active constraints determine it, and the multipliers by its gradient.

    For p < 2 and a coordinate that vanishes, x is a double root as a function of the multipliers, and Newton's method
    halves the error only; but there x often is where constraints cross, and they tell.
    """
    active = np.flatnonzero(holding_constraints(rows, bound, tied, x, m))
    inverse = np.linalg.pinv(rows[active], rcond=1e-11)
    y = x + inverse @ (bound[active] - rows[active] @ x)
    y[np.abs(y) < _VANISHED * np.abs(y).max(initial=0.0)] = 0.0
    length = float(norm.value(y))
    gradient = length * np.sign(y) * np.abs(y / length) ** (norm.p - 1)
    multipliers = np.zeros_like(m)
    multipliers[active] = m[active] + inverse.T @ (gradient - m[active] @ rows[active])
    return y, multipliers


def fit_multipliers_nearby(
    norm: LpNorm, rows: Float[Array, "k r"], bound: Float[Array, " k"], x: Float[Array, " r"]
) -> tuple[Float[Array, " r"], Float[Array, " k"]]:
    """The vector with other multipliers: non-negative ones of constraints close by that make up its gradient best.

    For p > 2 interior points find x to more digits than multipliers, and which constraints hold may not be clear.
    """
    from scipy.optimize import nnls  # it takes half a second to load, and is needed by the hardest cases alone

    length = float(norm.value(x))
    gradient = length * np.sign(x) * np.abs(x / length) ** (norm.p - 1)
    close = np.flatnonzero(rows @ x - bound < _CLOSE)
    m = np.zeros(len(bound))
    with contextlib.suppress(RuntimeError):  # no convergence: no proposal
        if len(close):  # of no columns at all, scipy 1.17 frees memory twice, which ends the process
            m[close] = nnls(rows[close].T, gradient)[0]
    return x, m


def _solve_active_set(
    norm: LpNorm, rows: Float[Array, "a r"], bound: Float[Array, " a"], x: Float[Array, " r"], m: Float[Array, " a"]
) -> tuple[Float[Array, " r"], Float[Array, " a"]]:
    """l1: `rows x = bound` on the free coordinates, `rows' m` equal to the signs there. linf: t in the place of all
    that are at the bound, `rows' m` zero on the others and signs' combination equal to one."""
    stiff, signs = stiff_coordinates(norm, x, m @ rows), np.sign(x)
    if norm.p == 1:
        columns, start = rows[:, stiff], x[stiff]
        target = signs[stiff]
    else:
        columns = np.column_stack([rows[:, stiff] @ signs[stiff], rows[:, ~stiff]])
        start = np.r_[np.abs(x).max(), x[~stiff]]
        target = np.r_[1.0, np.zeros((~stiff).sum())]
    inverse = np.linalg.pinv(columns, rcond=1e-11)
    for _ in range(2):
        start = start + inverse @ (bound - columns @ start)
        m = m + inverse.T @ (target - columns.T @ m)
    y = np.zeros_like(x)
    if norm.p == 1:
        y[stiff] = start
    else:
        y[stiff], y[~stiff] = start[0] * signs[stiff], start[1:]
    return y, m


def _newton(
    p: float, rows: Float[Array, "a r"], bound: Float[Array, " a"], x: Float[Array, " r"], m: Float[Array, " a"]
) -> tuple[Float[Array, " r"], Float[Array, " a"]]:
    """`rows x = bound` with x the gradient of `|g|_q^2 / 2` at `g = rows' m`: Newton's method in the multipliers."""
    q = p / (p - 1)
    m = m * ((bound @ m) / float(LpNorm(q).value(m @ rows)) ** 2)
    for _ in range(_STEPS):
        g = m @ rows
        norm = float(LpNorm(q).value(g))
        u = np.abs(g / norm)
        y = np.sign(g) * u ** (q - 1)
        curved = (rows * ((q - 1) * np.maximum(u, 1e-13) ** (q - 2))) @ rows.T + (2 - q) * np.outer(rows @ y, rows @ y)
        missing = bound - norm * (rows @ y)
        if not (np.isfinite(curved).all() and np.isfinite(missing).all()):  # the iterates had run away
            raise np.linalg.LinAlgError("numbers beyond the doubles")
        m = m + np.linalg.lstsq(curved, missing, rcond=1e-13)[0]
    g = m @ rows
    norm = float(LpNorm(q).value(g))
    return norm * np.sign(g) * np.abs(g / norm) ** (q - 1), m
