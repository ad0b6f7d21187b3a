"""Ties together: each may be kept to rounding by a vector that is far from every vector that keeps them all.

A constraint with a margin is kept by lengthening the vector a little; a tie, or a margin of zero, is not. Where the
differences of tied tokens nearly depend on one another, what is left of them decides how long the solution is, or
whether there is one. So the vector found is corrected until all of them are level, and the correction is counted
against it; and where rounding hides whether they depend on one another, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import Systems
from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.single.exact import exact_products, exact_rank
from tokenmargin.norms import EPS, L2, AbstractNorm
from tokenmargin.problem.geometry import KnownProducts

_TOLD = 64  # a direction is told from rounding where it is so many times as long


def distance_from_ties(
    constraints: Constraints,
    systems: Systems,
    multipliers: Float[Array, " k"],
    vector: Float[Array, " r"],
    *,
    norm: AbstractNorm = L2,
) -> float:
    """How far, as a share of its length or of the margins that it costs, the vector is from those that keep the ties,
    and the rows of margin zero that it is not surely within, level; infinite where that is not known."""
    if systems.known is not None:
        return _distance_by_products(constraints, systems, systems.known, multipliers)
    rows, bound = systems.rows[0], systems.bound[0]
    surplus = rows @ vector - _rounding(rows, vector)
    level = _level(systems, multipliers, surplus) & rows.any(axis=1)
    if level.sum() < 2:
        return 0.0
    most = partial(constraints.rank_at_most, level)
    lost = None if systems.lost is None else systems.lost[0][level]
    tied = np.zeros(len(rows), dtype=bool) if systems.equality is None else systems.equality
    for exactly in (False, True):
        found = correction_to_level(rows[level], vector, tied[level], lost=lost, rank_at_most=most, exactly=exactly)
        if found is not None:
            longer = found.length / np.linalg.norm(vector)
            longer = max(longer, norm.value(found.vector) / norm.value(vector))
            share = _share(rows @ found.vector + found.error_along(rows), bound, float(longer))
            if exactly or share <= systems.tolerance:
                return share
    return np.inf


class Correction(NamedTuple):
    """The shortest vector that makes rows level, for inner products that are off by at most `rounding` each.

    - `inverse`: what makes it of these products.
    """

    vector: Float[Array, " r"]
    inverse: Float[Array, "r q"]
    rounding: float

    @property
    def length(self) -> float:
        """Its length, and how much longer it may be."""
        worst = float(np.abs(self.inverse.T @ self.inverse).sum()) ** 0.5
        return float(np.linalg.norm(self.vector)) + self.rounding * worst

    def error_along(self, rows: Float[Array, "k r"]) -> Float[Array, " k"]:
        """By how much its inner products with rows may be off."""
        return self.rounding * np.abs(rows @ self.inverse).sum(axis=1)


def correction_to_level(
    rows: Float[Array, "q r"],
    vector: Float[Array, " r"],
    tied: Bool[Array, " q"],
    *,
    rank_at_most: Callable[[], int],
    lost: Float[Array, "q r"] | None = None,
    exactly: bool = False,
) -> Correction | None:
    """What makes up the inner products of `rows + lost` with a vector; None where that is not known.

    Nothing where the rows are kept exactly as they should be: those that are `tied` at zero, the others not below.
    """
    reached: Array = rows @ vector
    rounding = _rounding(rows, vector)
    if exactly:
        products = exact_products(rows, vector, lost)
        if products is None:
            return None
        if all(x == 0 or (x > 0 and not tie) for x, tie in zip(products, tied.tolist(), strict=True)):
            return Correction(np.zeros_like(vector), np.zeros_like(rows.T), 0.0)
        reached, rounding = np.array([float(x) for x in products]), 0.0
    left, sizes, ways = np.linalg.svd(rows, full_matrices=False)
    told = sizes > _TOLD * max(rows.shape) * EPS * sizes[0]
    if told.sum() < min(rows.shape) and told.sum() < rank_at_most() and told.sum() != exact_rank(rows, lost):
        return None
    inverse = (ways[told].T / sizes[told]) @ left[:, told].T
    return Correction(inverse @ reached, inverse, rounding)


def _rounding(rows: Float[Array, "q r"], vector: Float[Array, " r"]) -> float:
    """By how much the inner products of rows of length at most 1 with a vector are off, at most."""
    return float((rows.shape[1] + 4) * EPS * np.linalg.norm(vector))


def _distance_by_products(
    constraints: Constraints, systems: Systems, known: KnownProducts, multipliers: Float[Array, " k"]
) -> float:
    """As `distance_from_ties`, where inner products of the rows are all that is known."""
    products, noise, weights = known.products, known.noise, np.abs(multipliers)
    reached, lengths = products @ multipliers, np.sqrt(np.maximum(products.diagonal(), 0.0))
    unknown = noise @ weights * noise + (len(noise) + 4) * EPS * (known.terms @ weights) * lengths
    level = _level(systems, multipliers, reached - unknown) & ((lengths > 0) | (noise > 0))
    if level.sum() < 2:
        return 0.0
    inner = products[np.ix_(level, level)]
    values, ways = np.linalg.eigh(inner)
    blur = noise[level] @ noise[level] + len(values) * EPS
    told = values > 2 * blur
    may_hide = not told.all() and told.sum() < constraints.rank_at_most(level)
    if may_hide and (noise[level].any() or told.sum() != exact_rank(inner)):
        return np.inf
    values, ways = values[told] - blur, ways[:, told]
    inverse, off, error = (ways / values) @ ways.T, reached[level], unknown[level]
    along = products[:, level] @ inverse
    reach = np.sqrt(max(0.0, off @ inverse @ off)) + np.sqrt(error @ np.abs(inverse) @ error)
    return _share(along @ off + np.abs(along) @ error, systems.bound[0], float(reach / np.sqrt(multipliers @ reached)))


def _level(systems: Systems, multipliers: Float[Array, " k"], surplus: Float[Array, " k"]) -> Bool[Array, " k"]:
    """The ties, and the rows of margin zero that hold the vector or that it violates but for rounding."""
    near = (multipliers != 0) | (surplus < 0)
    return (systems.bound[0] == 0) & (near if systems.equality is None else near | systems.equality)


def _share(lost: Float[Array, " k"], bound: Float[Array, " k"], reach: float) -> float:
    """What a correction takes: a share of the vector's length, or of a margin where that is more."""
    asked = bound > 0
    return max(float((lost[asked] / bound[asked]).max(initial=0.0)), float(reach))
