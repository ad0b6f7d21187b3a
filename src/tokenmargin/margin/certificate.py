"""The residuals that prove an answer, optimal or infeasible, with all rounding counted against the claim.

Systems `min |y|, rows y >= bound` come in stacks of one shape; a single problem is a stack of one. Rows and bounds are
scaled by powers of two, so nothing is rounded on the way in or out: rows have lengths between 1/2 and 1, the largest
bound of a system is between 1/2 and 1, and residuals mean the same in every problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.norms import EPS
from tokenmargin.problem.geometry import KnownProducts

TOLERANCE = 1e-10
"""Largest residual with which an answer is called optimal."""
PRODUCTS_TOLERANCE = 1e-7
"""The same where inner products are all that is known: they hold half the digits."""
_TINY = float(np.finfo(float).tiny)
_SMALLEST = 1e-280  # squared lengths below, and above its reciprocal, may have suffered under- or overflow
_FEW = 8  # rows per active one, from which those that take no part are left unread
_LARGEST_EXPONENT = 1023


class Systems(NamedTuple):
    """A stack of systems with scaled rows, and what undoes the scaling: `multipliers * scale / lengths`.

    - `size`: the unit in which a violation is counted: the bound, or the least of the others where it is 0, taken as
      a bound of this row or as a distance, whichever is less.
    - `lengths`, `scale`: powers of two; a row was divided by its length, the vector is to be multiplied by the scale.
    - `lost`: what rounding took from the rows, so that `rows + lost` are exact; None for nothing, NaN for unknown.
    - `in_range`: which systems doubles can hold.
    - `known`: of a single system whose rows are known by inner products alone, these products; else None.
    """

    rows: Float[Array, "B k r"]
    bound: Float[Array, "B k"]
    equality: Bool[Array, " k"] | None
    size: Float[Array, "B k"]
    lengths: Float[Array, "B k"]
    scale: Float[Array, " B"]
    lost: Float[Array, "B k r"] | None = None
    in_range: Bool[Array, " B"] | None = None
    known: KnownProducts | None = None

    @property
    def tolerance(self) -> float:
        """Largest residual with which an answer is called optimal."""
        return TOLERANCE if self.known is None else PRODUCTS_TOLERANCE

    def one(self, b: int) -> Systems:
        """The stack that holds system `b` alone."""
        if len(self.rows) == 1:
            return self
        return self.some(slice(b, b + 1))

    def some(self, which: slice | Int[Array, " c"]) -> Systems:
        """The stack of the given systems."""
        stacked = {name: part[which] for name, part in self._asdict().items() if _is_stacked(name, part)}
        return self._replace(**stacked)


def _is_stacked(name: str, part: object) -> bool:
    """Whether a field of `Systems` has an entry per system."""
    return isinstance(part, np.ndarray) and name != "equality"


class Residuals(NamedTuple):
    """Residuals of the optimality conditions in the units of `Certificate`, the vector judged, and its norm."""

    primal: float
    dual: float
    complementarity: float
    gap: float
    vector: Float[Array, " r"]
    norm: float

    @property
    def largest(self) -> float:
        """The worst of the four conditions."""
        return max(self[:4])


def normalised_systems(
    plus: Float[Array, "B k r"],
    bound: Float[Array, "#B k"],
    equality: Bool[Array, " k"] | None = None,
    *,
    minus: Float[Array, "B k r"] | None = None,
) -> Systems:
    """The systems with rows `plus` (less `minus`) and bounds, none negative; a row of length zero stays zero."""
    raw, lost = (plus, None) if minus is None else _difference(plus, minus)
    finite = np.isfinite(raw).all(axis=(1, 2))
    if not finite.all():
        raw = np.where(finite[:, None, None], raw, 0.0)
    exponent = _exponents(raw)
    rows = np.ldexp(raw, -exponent[:, :, None])
    underflow = np.ldexp(rows, exponent[:, :, None]) != raw
    if lost is not None:
        lost = np.ldexp(lost, -exponent[:, :, None])
    if underflow.any():
        lost = np.where(underflow, np.nan, 0.0 if lost is None else lost)
    relative, size, scale = _scaled_bounds(np.broadcast_to(bound, exponent.shape), exponent)
    in_range = finite & np.isfinite(scale) & (scale > 0) & ~((relative == 0) & (bound > 0)).any(axis=1)
    return Systems(
        rows=rows,
        bound=relative,
        equality=equality,
        size=size,
        lengths=np.ldexp(1.0, exponent),
        scale=scale,
        lost=lost,
        in_range=None if in_range.all() else in_range,
    )


def joined_systems(parts: Sequence[Systems]) -> Systems:
    """Systems with the constraints of all `parts` together: bounds of 1 where the parts have one, no ties."""
    lengths, bound, rows = (
        np.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("lengths", "bound", "rows")
    )
    asked = bound > 0
    bound, size, scale = _scaled_bounds(asked.astype(float), np.frexp(lengths)[1] - 1)
    in_range = np.all((bound > 0) == asked, axis=1) & np.isfinite(scale) & (scale > 0)
    for part in parts:
        in_range &= True if part.in_range is None else part.in_range
    lost = None
    if any(part.lost is not None for part in parts):
        lost = np.concatenate([np.zeros_like(x.rows) if x.lost is None else x.lost for x in parts], axis=1)
    return Systems(rows, bound, None, size, lengths, scale, lost, None if in_range.all() else in_range)


def _difference(plus: Float[Array, "B k r"], minus: Float[Array, "B k r"]) -> tuple[Array, Array | None]:
    """`plus - minus`, and what the rounding of that took: exactly (Knuth); None where all of it is zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        raw = plus - minus
        back = raw - plus
        lost = (plus - (raw - back)) - (minus + back)
    return raw, lost if lost.any() else None


def _exponents(raw: Float[Array, "B k r"]) -> Int[Array, "B k"]:
    """The power of two above the length of every row; a row of zeros takes the least of its system."""
    squared = np.einsum("bkr,bkr->bk", raw, raw)
    if squared.min(initial=1.0) > _SMALLEST and squared.max(initial=1.0) < 1 / _SMALLEST:
        return np.frexp(np.sqrt(squared))[1]
    largest = np.frexp(np.abs(raw).max(axis=2, initial=0.0))[1]
    unit = np.ldexp(raw, -largest[:, :, None])
    exponent = largest + np.frexp(np.sqrt(np.einsum("bkr,bkr->bk", unit, unit)))[1]
    zero = np.logical_not(raw.any(axis=2))
    least = np.where(zero, np.iinfo(exponent.dtype).max, exponent).min(axis=1, initial=np.iinfo(exponent.dtype).max)
    exponent = np.where(zero, np.where(np.all(zero, axis=1), 0, least)[:, None], exponent)
    return np.minimum(exponent, _LARGEST_EXPONENT)


def _scaled_bounds(bound: Float[Array, "B k"], exponent: Int[Array, "B k"]) -> tuple[Array, Array, Array]:
    """`bound` over `2**exponent`, divided by a power of two so that the largest is at most 1; the unit in which the
    violation of each constraint is counted; and that power."""
    asked = bound > 0
    least = np.where(asked, exponent, _LARGEST_EXPONENT + 1).min(axis=1, initial=_LARGEST_EXPONENT + 1)
    least = np.where(asked.any(axis=1), least, 0)
    relative = np.ldexp(bound, least[:, None] - exponent)
    mantissa, top = np.frexp(relative.max(axis=1, initial=0.0))
    top = top - (mantissa == 0.5)
    relative = np.ldexp(relative, -top[:, None])
    size, smallest = relative, np.finfo(float).tiny
    if not asked.all():
        one = bound.min(axis=1, where=asked, initial=np.inf, keepdims=True)
        one = np.where(np.isfinite(one), one, 1.0)
        with np.errstate(over="ignore"):
            of_row = np.ldexp(one, (least - top)[:, None] - exponent)
        distance = relative.min(axis=1, where=asked, initial=1.0, keepdims=True)
        size = np.where(asked, relative, np.maximum(np.minimum(of_row, distance), smallest))
    with np.errstate(over="ignore"):
        return relative, size, np.ldexp(1.0, top - least)


def rescale_exactly(
    values: Float[Array, "..."], *, times: Float[Array, "..."] | float = 1.0, over: Float[Array, "..."] | float = 1.0
) -> Float[Array, "..."]:
    """`values * times / over` for powers of two, without rounding; beyond the range of doubles, the end of it.

    A number that is not zero does not become zero: which multipliers are positive is not lost.
    """
    with np.errstate(over="ignore"):
        scaled = np.ldexp(values, np.frexp(times)[1] - np.frexp(over)[1])
    scaled = np.clip(scaled, -np.finfo(float).max, np.finfo(float).max)
    vanished = (scaled == 0) & (values != 0)
    return np.where(vanished, np.copysign(np.nextafter(0.0, 1.0), values), scaled) if vanished.any() else scaled


@lru_cache(maxsize=64)
def cached_ones(k: int) -> Float[Array, " k"]:
    """An array of ones that is shared, and so read-only."""
    ones = np.ones(k)
    ones.setflags(write=False)
    return ones


def kkt_residuals(
    rows: Float[Array, "k r"],
    bound: Float[Array, " k"],
    multipliers: Float[Array, " k"],
    vector: Float[Array, " r"] | None = None,
    *,
    size: Float[Array, " k"] | None = None,
    equality: Bool[Array, " k"] | None = None,
    length: float = 1.0,
) -> Residuals:
    """Residuals of the optimality conditions of `min |y|, rows y >= bound` at `vector`, by default `rows' multipliers`.

    The two that make the proof count rounding against the claim:

    - primal: the largest violation in units of its own `size`, plus `(r + 4) eps length |y|`, which bounds the error
      of an inner product in r dimensions, of the difference that made the row, and of the vector when it is scaled;
    - gap: `1 - lower / |y|`, where no solution is shorter than `lower = bound' multipliers / |rows' multipliers|`,
      plus `(a + 4) eps length sum |multipliers| / |y|`, which bounds the error of that combination of a rows.

    `length` is that of the longest row. Residuals are infinite at zero.
    """
    r = rows.shape[1]
    a = np.count_nonzero(multipliers)
    if _FEW * a < len(rows):  # most rows take no part: do not read them
        active = multipliers.nonzero()[0]
        built = multipliers.take(active).dot(rows.take(active, axis=0))
    else:
        built = multipliers.dot(rows)
    y = built if vector is None else vector
    squared = y.dot(y).item()
    reach = squared if vector is None else built.dot(built).item()
    if not (_TINY < squared < 1 / _TINY and _TINY < reach < 1 / _TINY):
        return Residuals(np.inf, np.inf, np.inf, np.inf, y, squared**0.5)
    norm, reach = squared**0.5, reach**0.5
    slack = rows.dot(y)
    slack -= bound
    # On small arrays `x.item(x.argmax())` and `x.dot(y)` take a quarter of the time of `x.max()` and `x @ y`.
    products = multipliers * slack
    complementarity = max(products.item(products.argmax()), -products.item(products.argmin())) / squared
    signed = multipliers if equality is None else np.where(equality, 0.0, multipliers)
    least = signed.item(signed.argmin())
    weights = multipliers if least >= 0 and equality is None else np.abs(multipliers)
    total = weights.dot(cached_ones(len(weights))).item()
    dual = -least / weights.item(weights.argmax()) if least < 0 else 0.0
    rounding = (a + 4) * EPS * length * total / reach + (a + 2 * r + 4) * EPS
    gap = abs(1 - bound.dot(multipliers).item() / (reach * norm)) + rounding
    if equality is not None:
        slack = np.where(equality, -np.abs(slack), slack)
    slack -= (r + 4) * EPS * length * norm
    slack /= bound if size is None else size
    primal = max(0.0, -slack.item(slack.argmin()))
    return Residuals(primal, dual, complementarity, gap, y, norm)


def kkt_residuals_by_products(
    known: KnownProducts,
    bound: Float[Array, " k"],
    multipliers: Float[Array, " k"],
    *,
    size: Float[Array, " k"],
    equality: Bool[Array, " k"] | None = None,
) -> Residuals:
    """As `kkt_residuals` at `y = rows' multipliers`, where inner products of the rows are all that is known.

    Product (i, j) is known up to `noise_i noise_j`, so the inner product of row i with y up to
    `noise_i noise' |multipliers|`, and |y|^2 up to the square of the last factor. The vector is stored as coefficients
    on the dictionary: their rounding, and that of sums, moves it by at most `(k + 4) eps terms' |multipliers|`.
    """
    products, noise, weights = known.products, known.noise, np.abs(multipliers)
    lengths = np.sqrt(np.maximum(products.diagonal(), 0.0))
    slack = products.dot(multipliers)
    squared = multipliers.dot(slack).item()
    blur, moved = noise.dot(weights).item(), (len(bound) + 4) * EPS * known.terms.dot(weights).item()
    unknown = blur * blur + moved * (lengths.dot(weights).item() + 2 * max(squared, 0.0) ** 0.5 + moved)
    nothing = np.zeros(0)
    hidden = (bound == 0) & (noise > 0) & (products.diagonal() <= noise**2)  # a tie between tokens not told apart
    if not squared - unknown > _TINY or hidden.any():
        return Residuals(np.inf, np.inf, np.inf, np.inf, nothing, max(squared, 0.0) ** 0.5)
    slack -= bound
    signed = multipliers if equality is None else np.where(equality, 0.0, multipliers)
    surplus = slack if equality is None else np.where(equality, -np.abs(slack), slack)
    # Of a row of unknown length it is not known either how large a violation is beside it.
    least = np.sqrt(np.maximum(products.diagonal() - noise**2, _TINY))
    size = np.where((bound > 0) | (noise == 0), size, size * least)
    surplus = (surplus - blur * noise - moved * lengths) / size
    return Residuals(
        primal=max(0.0, -surplus.min().item()),
        dual=max(0.0, -signed.min().item()) / weights.max().item(),
        complementarity=np.abs(multipliers * slack).max().item() / squared,
        gap=abs(1 - bound.dot(multipliers).item() / squared) + unknown / (squared - unknown),
        vector=nothing,
        norm=squared**0.5,
    )


def farkas_residual(
    rows: Float[Array, "k r"],
    bound: Float[Array, " k"],
    weights: Float[Array, " k"],
    equality: Bool[Array, " k"] | None = None,
) -> float:
    """`rho = |rows' u|` over `sum_j u_j |row_j|`, rounding counted, for `u >= 0` with `bound' u > 0`; else infinity.

    No direction p has `<row_j, p> > rho |row_j| |p|` in all constraints of the support. That there is no solution at
    all takes a combination that is exactly zero: see `exact.proven_infeasible`.
    """
    signed = weights if equality is None else weights[~equality]
    if not bound.dot(weights) > 0 or (signed < 0).any():
        return np.inf
    total = np.abs(weights).dot(np.sqrt(np.einsum("kr,kr->k", rows, rows))).item()
    if total == 0:
        return 0.0
    return float(np.linalg.norm(weights.dot(rows))) / total + (np.count_nonzero(weights) + 4) * EPS


def farkas_residual_by_products(
    known: KnownProducts,
    bound: Float[Array, " k"],
    weights: Float[Array, " k"],
    equality: Bool[Array, " k"] | None = None,
) -> float:
    """As `farkas_residual`, where inner products of the rows are all that is known, as `kkt_residuals_by_products`."""
    signed = weights if equality is None else weights[~equality]
    if not bound.dot(weights) > 0 or (signed < 0).any():
        return np.inf
    products, noise, size = known.products, known.noise, np.abs(weights)
    total = size.dot(np.sqrt(np.maximum(products.diagonal() - noise**2, 0.0))).item()
    rounding = (len(noise) + 2) * EPS * size.dot(np.sqrt(np.maximum(products.diagonal(), 0.0))) ** 2
    squared = max(weights.dot(products).dot(weights), 0.0) + size.dot(noise) ** 2 + rounding
    return float(squared**0.5 / total) if total > 0 else np.inf
