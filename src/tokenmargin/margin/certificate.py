"""What makes an answer true: systems `min |y|, rows y >= bound` in stacks, and the residuals that judge a claim.

Everything works on a stack of B systems of one shape; a single problem is a stack of one. Rows have unit length and
the largest bound of a system is 1, so residuals mean the same in every problem.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

__all__ = ["TOLERANCE", "Residuals", "Systems", "farkas_residual", "judge", "normalised"]

TOLERANCE = 1e-10
"""Largest residual with which an answer is called optimal or infeasible."""
UNRESOLVED = 1e-3
"""A violation hidden by rounding counts as such up to this share of its bound, and as a violation beyond."""
_EPS = float(np.finfo(float).eps)
_TINY = float(np.finfo(float).tiny)
_SMALLEST = 1e-280  # squared lengths below, and above its reciprocal, may have suffered under- or overflow


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
        return self.some(slice(b, b + 1))

    def some(self, which: slice | Int[Array, " c"]) -> Systems:
        """The stack of the given systems."""
        rows, bound, equality, size, lengths, scale = self
        return Systems(rows[which], bound[which], equality, size[which], lengths[which], scale[which])


class Residuals(NamedTuple):
    """Residuals of the optimality conditions, with the vectors that were judged and their norms.

    The columns of `table` are primal, dual, complementarity and gap, in the units of `Certificate`.
    """

    table: Float[Array, "B 4"]
    norm: Float[Array, " B"]
    vectors: Float[Array, "B r"]

    @property
    def largest(self) -> Float[Array, " B"]:
        """The worst of the four conditions."""
        return np.maximum.reduce(self.table, axis=1)


def normalised(
    raw: Float[Array, "B k r"], bound: Float[Array, "#B k"], equality: Bool[Array, " k"] | None = None
) -> Systems:
    """Unit rows, and bounds (none negative) of at most 1; a row of length zero stays zero."""
    lengths = _lengths(raw)
    relative = bound / lengths
    scale = np.maximum.reduce(relative, axis=1, initial=_TINY)
    relative /= scale[:, None]
    size = relative if bound.all() else np.where(relative > 0, relative, 1.0)
    return Systems(raw / lengths[:, :, None], relative, equality, size, lengths, scale)


def _lengths(raw: Float[Array, "B k r"]) -> Float[Array, "B k"]:
    """Length of every row, 1 for rows of length zero."""
    squared = np.einsum("bkr,bkr->bk", raw, raw)
    if squared.min(initial=1.0) > _SMALLEST and squared.max(initial=1.0) < 1 / _SMALLEST:
        return np.sqrt(squared)
    largest = np.abs(raw).max(axis=2, initial=0.0)
    largest[largest == 0] = 1.0
    lengths = largest * np.sqrt(((raw / largest[:, :, None]) ** 2).sum(axis=2))
    lengths[lengths == 0] = 1.0
    return lengths


def judge(systems: Systems, multipliers: Float[Array, "B k"], vectors: Float[Array, "B r"] | None = None) -> Residuals:
    """Residuals of the optimality conditions at `vectors`, by default `rows' multipliers`; infinite at zero.

    A violation is counted in units of its own bound (of the largest bound for `>= 0`), less the rounding of the inner
    product itself: with |row| = 1 no vector of doubles meets a constraint better than `r eps |y|`.
    """
    rows, bound, equality, size = systems[:4]
    y = np.matmul(multipliers[:, None, :], rows) if vectors is None else vectors[:, None, :]
    column = y.transpose(0, 2, 1)
    squared = np.matmul(y, column)[:, 0, 0]
    slack = np.matmul(rows, column)[:, :, 0] - bound
    norm = np.sqrt(squared)
    surplus, signed = slack, multipliers
    if equality is not None:
        surplus = np.where(equality, -np.abs(slack), slack)
        signed = np.where(equality, 0.0, multipliers)
    table = np.empty((len(norm), 4))
    primal, dual, complementarity, gap = table.T
    primal[:] = -np.minimum.reduce(surplus / size, axis=1, initial=0.0)
    dual[:] = -np.minimum.reduce(signed, axis=1, initial=0.0)
    if primal.max() > TOLERANCE:
        hidden = np.minimum((rows.shape[2] * _EPS * norm)[:, None], UNRESOLVED * size)
        primal[:] = -np.minimum.reduce((surplus + hidden) / size, axis=1, initial=0.0)
    if dual.any():
        dual /= np.maximum.reduce(np.abs(multipliers), axis=1, initial=_TINY)
    if vectors is not None:
        stationarity = np.linalg.norm(vectors - np.matmul(multipliers[:, None, :], rows)[:, 0], axis=1)
        np.maximum(dual, stationarity / np.maximum(norm, _TINY), out=dual)
    slack *= multipliers
    np.maximum.reduce(np.abs(slack), axis=1, initial=0.0, out=complementarity)
    gap[:] = np.abs(np.add.reduce(slack, axis=1))  # |y|^2 - bound' multipliers
    if squared.all():
        table[:, 2:] /= squared[:, None]
    else:
        table[:, 2:] /= np.maximum(squared, _TINY)[:, None]
        primal[squared == 0] = np.inf
    return Residuals(table, norm, y[:, 0])


def farkas_residual(systems: Systems, witness: Float[Array, " k"]) -> float:
    """`|rows' u|` relative to `sum |u|`, for `u >= 0` with `bound' u > 0`: zero proves that no y exists."""
    rows, bound, equality = systems.rows[0], systems.bound[0], systems.equality
    gain = bound @ witness
    signed = witness if equality is None else witness[~equality]
    if not gain > 0 or (signed < 0).any():
        return np.inf
    return float(np.linalg.norm(witness @ rows) / max(gain, np.abs(witness).sum()))
