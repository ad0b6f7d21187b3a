"""The numerical heart: stacks of systems `min |y|, rows y >= bound`, their multipliers, and their residuals.

Everything here works on a stack of B systems of one shape; a single problem is a stack of one. Rows have unit length
and the largest bound of a system is 1, so residuals mean the same in every problem. daqp proposes multipliers; no
word of it is taken: `judge` measures the optimality conditions, and what fails is rescued one by one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import daqp
import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from scipy.optimize import nnls

__all__ = [
    "TOLERANCE",
    "Farkas",
    "Residuals",
    "Systems",
    "Verdicts",
    "farkas_residual",
    "judge",
    "normalised",
    "propose",
    "solve_systems",
]

TOLERANCE = 1e-10
"""Largest residual with which an answer is called optimal or infeasible."""
UNRESOLVED = 1e-3
"""A violation hidden by rounding counts as such up to this share of its bound, and as a violation beyond."""
_EPS = float(np.finfo(float).eps)
_TINY = float(np.finfo(float).tiny)
_INFINITE = 1e30  # what daqp takes for no bound
_VANISHED = 1e-13  # a remainder at the level of rounding
_EQUALITY = 5  # daqp's code for an equality row


class Systems(NamedTuple):
    """A stack of systems with unit rows, and what undoes the scaling: `multipliers * scale / lengths`.

    `size` is the unit in which a violation is counted: the bound, or the largest bound of the system where it is 0.
    """

    rows: Float[Array, "B k r"]
    bound: Float[Array, "B k"]
    equality: Bool[Array, " k"] | None
    size: Float[Array, "B k"]
    lengths: Float[Array, "B k"]
    scale: Float[Array, " B"]

    def one(self, b: int) -> Systems:
        """The stack that holds system `b` alone."""
        s = slice(b, b + 1)
        return Systems(self.rows[s], self.bound[s], self.equality, self.size[s], self.lengths[s], self.scale[s])


class Residuals(NamedTuple):
    """Residuals of the optimality conditions, one entry per system; see `Certificate` for their units.

    With them, the vectors that were judged and their norms.
    """

    primal: Float[Array, " B"]
    dual: Float[Array, " B"]
    complementarity: Float[Array, " B"]
    gap: Float[Array, " B"]
    norm: Float[Array, " B"]
    vectors: Float[Array, "B r"]

    @property
    def largest(self) -> Float[Array, " B"]:
        """The worst of the four conditions."""
        return np.maximum(np.maximum(self.primal, self.dual), np.maximum(self.complementarity, self.gap))


class Farkas(NamedTuple):
    """Proofs of infeasibility with their residuals; zeros and infinity for the systems that have none."""

    weights: Float[Array, "B k"]
    residual: Float[Array, " B"]


class Verdicts(NamedTuple):
    """What is proven of each system: multipliers where `residuals.largest` is small, or a Farkas vector."""

    multipliers: Float[Array, "B k"]
    residuals: Residuals
    farkas: Farkas | None


def normalised(
    raw: Float[Array, "B k r"], bound: Float[Array, "#B k"], equality: Bool[Array, " k"] | None = None
) -> Systems:
    """Unit rows, and bounds (none negative) of at most 1; a row of length zero stays zero."""
    lengths = np.sqrt(np.einsum("bkr,bkr->bk", raw, raw))
    if np.minimum.reduce(lengths, axis=None, initial=np.inf) == 0:
        lengths[lengths == 0] = 1.0
    relative = bound / lengths
    scale = _largest(relative)
    relative /= scale[:, None]
    size = relative
    if np.minimum.reduce(bound, axis=None, initial=np.inf) == 0:
        size = np.where(relative > 0, relative, 1.0)
    return Systems(raw / lengths[:, :, None], relative, equality, size, lengths, scale)


def solve_systems(systems: Systems, *, by_multipliers: bool = False) -> Verdicts:
    """Multipliers and residuals of every system; Farkas vectors for those that have no solution.

    **Arguments**
    - `by_multipliers`: the vectors will be stored as their multipliers, so they must be `rows' multipliers` to the
      last digit. Otherwise hard cases get vectors that meet the constraints better than any rounded multipliers do.
    """
    multipliers = propose(systems)
    residuals = judge(systems, multipliers)
    failed = residuals.largest > TOLERANCE
    if not failed.any():
        return Verdicts(multipliers, residuals, None)
    farkas = Farkas(np.zeros_like(multipliers), np.full(len(multipliers), np.inf))
    for b in failed.nonzero()[0].tolist():
        one = systems.one(b)
        rescued = _rescue(one, multipliers[b], by_multipliers=by_multipliers)
        if isinstance(rescued, Farkas):
            farkas.weights[b], farkas.residual[b] = rescued
            multipliers[b], residuals.vectors[b], residuals.norm[b], residuals.primal[b] = 0.0, 0.0, 0.0, np.inf
            continue
        multipliers[b], y = rescued
        for array, value in zip(residuals, judge(one, multipliers[b : b + 1], y), strict=True):
            array[b] = value[0]
    return Verdicts(multipliers, residuals, farkas)


def propose(systems: Systems) -> Float[Array, "B k"]:
    """Multipliers from daqp, one system after the other (threads lose: the solver holds the lock half the time)."""
    rows, bound, equality = systems[:3]
    rows = _narrow(rows)
    multipliers = np.zeros(bound.shape)
    upper = np.full(bound.shape[1], _INFINITE)
    if equality is None:
        for b in range(len(rows)):
            _, _, flag, info = daqp.solve(None, None, rows[b], upper, bound[b])
            if flag > 0:
                multipliers[b] = info["lam"]
        return np.negative(multipliers, out=multipliers)
    sense = np.where(equality, _EQUALITY, 0).astype(np.intc)
    for b in range(len(rows)):
        upper = np.where(equality, bound[b], _INFINITE)
        _, _, flag, info = daqp.solve(None, None, rows[b], upper, bound[b], sense, eq_reduction=-1)
        if flag > 0:
            multipliers[b] = info["lam"]
    return np.negative(multipliers, out=multipliers)


def _narrow(rows: Float[Array, "B k r"]) -> Float[Array, "B k s"]:
    """Rows with the same inner products in at most k dimensions, by Cholesky where the rows are independent.

    Squaring the rows costs digits, but a proposal is judged against the rows themselves.
    """
    _, k, r = rows.shape
    if r <= k:
        return rows
    try:
        return np.linalg.cholesky(np.matmul(rows, rows.transpose(0, 2, 1)))
    except np.linalg.LinAlgError:
        return _rotated(rows)


def _rotated(rows: Float[Array, "B k r"]) -> Float[Array, "B k s"]:
    """Rows with the same inner products in at most k dimensions, to full accuracy: R' of their QR factorisation."""
    _, k, r = rows.shape
    if r <= k:
        return rows
    triangle = np.asarray(np.linalg.qr(rows.transpose(0, 2, 1), mode="r"))
    return np.ascontiguousarray(triangle.transpose(0, 2, 1))


def judge(systems: Systems, multipliers: Float[Array, "B k"], vectors: Float[Array, "B r"] | None = None) -> Residuals:
    """Residuals of the optimality conditions at `vectors`, by default `rows' multipliers`; infinite at zero.

    A violation is counted in units of its own bound (of the largest bound for `>= 0`), less the rounding of the inner
    product itself: with |row| = 1 no vector of doubles meets a constraint better than `r eps |y|`.
    """
    rows, bound, equality = systems[:3]
    y = np.matmul(multipliers[:, None, :], rows) if vectors is None else vectors[:, None, :]
    column = y.transpose(0, 2, 1)
    squared = np.matmul(y, column)[:, 0, 0]
    slack = np.matmul(rows, column)[:, :, 0] - bound
    shortfall, negative = -slack, -multipliers
    if equality is not None:
        shortfall = np.where(equality, np.abs(slack), shortfall)
        negative = np.where(equality, 0.0, negative)
    primal = _largest(shortfall / systems.size)
    norm = np.sqrt(squared)
    if np.maximum.reduce(primal) > TOLERANCE:
        rounding = (rows.shape[2] * _EPS * norm)[:, None]
        primal = _largest((shortfall - np.minimum(rounding, UNRESOLVED * systems.size)) / systems.size)
    divisor = np.maximum(squared, _TINY)
    slack *= multipliers
    dual = _largest(negative) / _largest(np.abs(multipliers))
    if vectors is not None:
        stationarity = vectors - np.matmul(multipliers[:, None, :], rows)[:, 0]
        dual = np.maximum(dual, np.linalg.norm(stationarity, axis=1) / np.maximum(norm, _TINY))
    residuals = Residuals(
        primal=primal,
        dual=dual,
        complementarity=_largest(np.abs(slack)) / divisor,
        gap=np.abs(slack.sum(axis=1)) / divisor,  # multipliers' slack = |y|^2 - bound' multipliers
        norm=norm,
        vectors=y[:, 0],
    )
    if np.minimum.reduce(squared) == 0:
        residuals.primal[squared == 0] = np.inf
    return residuals


def _largest(values: Float[Array, "B k"]) -> Float[Array, " B"]:
    """The largest entry of each row, at least a hair above zero so that it may divide."""
    return np.maximum.reduce(values, axis=1, initial=_TINY)


def farkas_residual(systems: Systems, witness: Float[Array, " k"]) -> float:
    """`|rows' u|` relative to `sum |u|`, for `u >= 0` with `bound' u > 0`: zero proves that no y exists."""
    rows, bound, equality = systems.rows[0], systems.bound[0], systems.equality
    gain = bound @ witness
    signed = witness if equality is None else witness[~equality]
    if not gain > 0 or (signed < 0).any():
        return np.inf
    return float(np.linalg.norm(witness @ rows) / max(gain, np.abs(witness).sum()))


def _rescue(
    one: Systems, proposal: Float[Array, " k"], *, by_multipliers: bool
) -> Farkas | tuple[Float[Array, " k"], Float[Array, "1 r"] | None]:
    """A Farkas vector, or the best multipliers (and vector) found, for a system whose proposal did not pass."""
    best: tuple[Array, Array | None] = proposal, None
    least = np.inf
    for u, remainder in itertools.chain([(proposal, 1.0)] if proposal.any() else [], _homogeneous(one)):
        # The likelier claim first: proving either ends the search.
        likely_infeasible = remainder < _VANISHED
        for claim in ("infeasible", "optimal") if likely_infeasible else ("optimal", "infeasible"):
            if claim == "infeasible":
                witness, proof = _best_witness(one, u)
                if proof <= TOLERANCE:
                    return Farkas(witness, np.asarray(proof))
                continue
            multipliers = u if likely_infeasible else u / remainder
            refined, y = _refined(one, multipliers)
            for candidate in ((multipliers, None), (refined, None if by_multipliers else y)):
                residual = float(judge(one, candidate[0][None], candidate[1]).largest[0])
                if residual < least:
                    best, least = candidate, residual
                if residual <= TOLERANCE:
                    return candidate
    return best


def _refined(one: Systems, multipliers: Float[Array, " k"]) -> tuple[Float[Array, " k"], Float[Array, "1 r"] | None]:
    """Solve the active constraints as equations, with iterative refinement: multipliers, and the vector itself."""
    active = np.flatnonzero(multipliers)
    if active.size == 0:
        return multipliers, None
    rows, bound = one.rows[0][active], one.bound[0][active]
    # y = A^+ b is the shortest vector on the active constraints; its multipliers solve A' mu = y.
    inverse = np.linalg.pinv(rows, rcond=len(active) * _EPS)
    y, mu = np.zeros(rows.shape[1]), np.zeros(len(active))
    for _ in range(3):
        y += inverse @ (bound - rows @ y)
    for _ in range(3):
        mu += inverse.T @ (y - mu @ rows)
    refined = np.zeros_like(multipliers)
    refined[active] = mu
    return refined, y[None]


def _homogeneous(one: Systems) -> Iterator[tuple[Float[Array, " k"], float]]:
    """Candidates u with their remainder `1 - bound' u`, from Lawson and Hanson's least-distance problem.

    `min |[rows'; bound'] u - (0, ..., 0, 1)|` over `u >= 0` has residual zero exactly when the system is infeasible,
    and then u is the proof; otherwise `u / remainder` are the multipliers. Its dual, `min |x - (0, ..., 0, 1)|` under
    `[rows, bound] x <= 0`, is never infeasible itself, so daqp answers; NNLS gives a second opinion.
    """
    rows, bound, equality = one.rows[0], one.bound[0], one.equality
    cone = np.column_stack([rows, bound])
    target = np.zeros(cone.shape[1])
    target[-1] = 1.0
    lower, sense, settings = np.full(len(cone), -_INFINITE), np.zeros(len(cone), dtype=np.intc), {}
    if equality is not None:
        lower[equality], sense[equality], settings = 0.0, _EQUALITY, {"eq_reduction": -1}
    _, _, flag, info = daqp.solve(None, -target, cone, np.zeros(len(cone)), lower, sense, **settings)
    if flag > 0:
        u = np.asarray(info["lam"])
        yield u, float(1.0 - bound @ u)
    # An equality is a pair of inequalities: u enters with both signs.
    paired = cone if equality is None else np.concatenate([cone, -cone[equality]])
    try:
        weights, _ = nnls(paired.T, target, maxiter=30 * len(paired))
    except RuntimeError:  # iteration limit: no second opinion
        return
    u = weights[: len(cone)].copy()
    if equality is not None:
        u[equality] -= weights[len(cone) :]
    yield u, float(1.0 - bound @ u)


def _best_witness(one: Systems, u: Float[Array, " k"]) -> tuple[Float[Array, " k"], float]:
    """`u` as a Farkas vector, or the weights on its support closest to `rows' u = 0`, `bound' u = 1`, if better."""
    proof = farkas_residual(one, u)
    support = np.flatnonzero(u)
    if proof <= TOLERANCE or support.size == 0:
        return u, proof
    matrix = np.column_stack([one.rows[0][support], one.bound[0][support]]).T
    target = np.zeros(len(matrix))
    target[-1] = 1.0
    inverse = np.linalg.pinv(matrix, rcond=len(matrix) * _EPS)
    weights = inverse @ target
    weights += inverse @ (target - matrix @ weights)
    refined = np.zeros_like(u)
    refined[support] = weights
    better = farkas_residual(one, refined)
    return (refined, better) if better < proof else (u, proof)
