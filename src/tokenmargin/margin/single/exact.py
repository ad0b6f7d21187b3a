"""Exact arithmetic on the doubles given: the last word where rounding could decide.

A double is an integer times a power of two, so sums and products of doubles are integers at a common exponent, and
Python's integers have no bounds. Only the few rows that a claim rests on are looked at.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from numpy import ndarray as Array

from tokenmargin.margin.certificate import Residuals, Systems
from tokenmargin.norms import EPS
from tokenmargin.problem.geometry import KnownProducts

_MOST = 60_000  # multiplications of an elimination up to which it is done in integers
_MOST_PRODUCTS = 200_000  # and of a certificate
_MOST_OF_RANK = 200_000_000  # and of an elimination that keeps remainders alone
_PRIMES = (2_147_483_647, 2_147_483_629)  # products of remainders fit into 64 bits
_FLOORS = (0.0, 1e-12, 1e-8, 1e-5)  # shares of the largest weight below which one may be noise


def proven_infeasible(
    rows: Float[Array, "k r"],
    bound: Float[Array, " k"],
    weights: Float[Array, " k"],
    *,
    lost: Float[Array, "k r"] | None = None,
    equality: Bool[Array, " k"] | None = None,
) -> Float[Array, " k"] | None:
    """Weights close to some `u >= 0` with `(rows + lost)' u = 0` exactly and `bound' u > 0`, near those given, or None.

    Two ways to know that such a u exists. In r dimensions r independent rows span everything, so another row is some
    combination of them; an error bound on the one that was computed, if its weights exceed it, proves its signs
    (`surely_positive`). Otherwise the rows of the support are eliminated in integers.
    """
    for floor in _FLOORS:
        support = np.flatnonzero(np.abs(weights) > floor * np.abs(weights).max(initial=0.0))
        if not len(support):
            return None
        chosen, lows = rows[support], None if lost is None else lost[support]
        if lows is not None and not np.isfinite(lows).all():
            return None
        free = np.zeros(len(support), dtype=bool) if equality is None else equality[support]
        kept = weights[support] / np.abs(weights[support]).max()
        if not (not free.any() and surely_positive(chosen, kept)):
            kept = _exact_weights(chosen, lows, bound[support], kept, free)
        if kept is not None:
            proven = np.zeros_like(weights)
            proven[support] = kept
            return proven
    return None


def surely_positive(rows: Float[Array, "s r"], weights: Float[Array, " s"]) -> bool:
    """Whether r + 1 rows in r dimensions, none longer than 1, have a positive combination that is zero: a proof.

    With the heaviest row set aside, the others form a square matrix A. If u are the weights and rho their combination,
    the exact weights of the others are `u - A'^-1 rho`, so they are positive when `min u > |rho| / sigma_min(A)`.
    Rounding of rho is at most `(s + 4) eps sum u`; that of singular values, and of the rows, some eps of the largest.
    """
    s, r = rows.shape
    if s != r + 1:
        return False
    heaviest = weights.argmax()
    others = np.delete(np.arange(s), heaviest)
    values = np.linalg.svd(rows[others], compute_uv=False)
    least = values[-1] - 10 * r * EPS * values[0]
    rho = np.linalg.norm(weights @ rows) + (s + 4) * EPS * weights.sum()
    return bool(least > 0 and weights[others].min() * least > rho)


def _exact_weights(
    rows: Float[Array, "s r"],
    lost: Float[Array, "s r"] | None,
    bound: Float[Array, " s"],
    weights: Float[Array, " s"],
    free: Bool[Array, " s"],
) -> Float[Array, " s"] | None:
    """The u, rounded, with `(rows + lost)' u = 0` exactly, no negative entry and `bound' u > 0`; None if this has none.

    The rows that depend on others keep their weights as they are, read as rationals; the others follow exactly.
    """
    s, r = rows.shape
    if s * r * min(s, r) > _MOST:
        return None
    order = np.argsort(np.abs(weights), kind="stable")  # the heaviest are likeliest to stay as they are
    matrix = [list(column) for column in _integers(rows, lost)[0][order].T]
    pivots = _eliminate(matrix)
    rest = [j for j in range(s) if j not in pivots]
    if not rest:
        return None
    # Elimination leaves one number, the last pivot, on the whole diagonal: times it, all weights are integers.
    diagonal = matrix[len(pivots) - 1][pivots[-1]] if pivots else 1
    size, _ = _integers(weights[order[rest]])
    u = [0] * s
    for j, n in zip(rest, size.tolist(), strict=True):
        u[j] = n * abs(diagonal)
    for i, j in enumerate(pivots):
        u[j] = -sum(matrix[i][f] * n for f, n in zip(rest, size.tolist(), strict=True)) * (1 if diagonal > 0 else -1)
    if any(u[j] < 0 and not free[order[j]] for j in range(s)):
        return None
    gains, _ = _integers(bound[order])
    if not sum(n * b for n, b in zip(u, gains.tolist(), strict=True)) > 0:
        return None
    largest = max(map(abs, u))
    rounded = np.empty(s)
    rounded[order] = [n / largest for n in u]
    return rounded


def _eliminate(matrix: list[list[int]]) -> list[int]:
    """Gauss-Jordan elimination without fractions (Bareiss), in place: row i has its pivot in column `pivots[i]`."""
    pivots: list[int] = []
    before = 1
    for column in range(len(matrix[0]) if matrix else 0):
        rank = len(pivots)
        found = next((i for i in range(rank, len(matrix)) if matrix[i][column]), None)
        if found is None:
            continue
        matrix[rank], matrix[found] = matrix[found], matrix[rank]
        pivot, top = matrix[rank][column], matrix[rank]
        for i, row in enumerate(matrix):
            if i != rank:
                factor = row[column]
                matrix[i] = [(pivot * x - factor * y) // before for x, y in zip(row, top, strict=True)]
        before = pivot
        pivots.append(column)
        if len(pivots) == len(matrix):
            break
    return pivots


def exact_rank(
    rows: Float[Array, "k r"], lost: Float[Array, "k r"] | None = None, *, times: Float[Array, "k s"] | None = None
) -> int | None:
    """How many of the vectors `rows + lost` are independent, whatever rounding hides; None where this would take long.

    With `times`, of their outer products with these. A combination that is zero is zero in remainders too. That
    independent rows have dependent remainders for both primes takes an accident of one in 10^18.
    """
    (k, r), s = rows.shape, 1 if times is None else times.shape[1]
    if k * r * s * min(k, r * s) > _MOST_OF_RANK or not np.isfinite(rows if lost is None else rows + lost).all():
        return None
    integers, factors = _integers(rows, lost)[0], None if times is None else _integers(times)[0]
    ranks = []
    for prime in _PRIMES:
        matrix = (integers % prime).astype(np.int64)
        if factors is not None:
            other = (factors % prime).astype(np.int64)
            matrix = (other[:, :, None] * matrix[:, None, :] % prime).reshape(k, -1)
        ranks.append(_rank_in_remainders(matrix, prime))
    return max(ranks)


def exact_products(
    rows: Float[Array, "k r"], vector: Float[Array, " r"], lost: Float[Array, "k r"] | None = None
) -> list[Fraction] | None:
    """The inner products of the vectors `rows + lost` with another; None as for `exact_rank`."""
    if rows.size > _MOST_PRODUCTS or not np.isfinite(rows if lost is None else rows + lost).all():
        return None
    (matrix, of_rows), (y, of_y) = _integers(rows, lost), _integers(vector)
    return [x * _power(of_rows + of_y) for x in matrix.dot(y).tolist()]


def _rank_in_remainders(matrix: Int[Array, "k r"], prime: int) -> int:
    """Gauss elimination modulo a prime, in place."""
    rank = 0
    for column in range(matrix.shape[1]):
        if rank == len(matrix):
            break
        found = np.flatnonzero(matrix[rank:, column])
        if not len(found):
            continue
        matrix[[rank, rank + found[0]]] = matrix[[rank + found[0], rank]]
        top = matrix[rank, column:] * pow(int(matrix[rank, column]), -1, prime) % prime
        below = matrix[rank + 1 :, column:]
        below -= below[:, :1] * top % prime
        below %= prime
        rank += 1
    return rank


def _rows_near_their_bound(
    one: Systems, multipliers: Float[Array, " k"], vector: Float[Array, " r"], norm: float
) -> Int[Array, " looked"]:
    """Constraints with a multiplier, ties, and those without room for all rounding."""
    near = one.rows[0] @ vector - one.bound[0] < (len(vector) + 4) * EPS * norm
    return np.flatnonzero((multipliers != 0) | near | (False if one.equality is None else one.equality))


def exact_residuals(one: Systems, multipliers: Float[Array, " k"], vector: Float[Array, " r"]) -> Residuals | None:
    """`kkt_residuals` in exact arithmetic, rounded at the end; None where the rows are not known exactly or too many.

    Constraints that hold with room for all rounding are not looked at again.
    """
    rows, bound, size = one.rows[0], one.bound[0], one.size[0]
    norm = float(np.linalg.norm(vector))
    if not 0 < norm < np.inf or not np.isfinite(multipliers).all() or not multipliers.any():
        return None
    looked = _rows_near_their_bound(one, multipliers, vector, norm)
    lost = None if one.lost is None else one.lost[0][looked]
    if len(looked) * rows.shape[1] > _MOST_PRODUCTS or (lost is not None and not np.isfinite(lost).all()):
        return None
    matrix, of_rows = _integers(rows[looked], lost)
    y, of_y = _integers(vector)
    u, of_u = _integers(multipliers[looked])
    built = u.dot(matrix)
    squared, reach = y.dot(y), built.dot(built)
    gained = sum((Fraction(b) * x for b, x in zip(bound[looked].tolist(), u.tolist(), strict=True)), start=Fraction(0))
    if not reach or not gained > 0:
        return None
    slack = [
        x * _power(of_rows + of_y) - Fraction(b) for x, b in zip(matrix.dot(y), bound[looked].tolist(), strict=True)
    ]
    tied = [False] * len(looked) if one.equality is None else one.equality[looked].tolist()
    short = [abs(x) if t else -x for x, t in zip(slack, tied, strict=True)]
    violation = max(_rounded(x / Fraction(s)) for x, s in zip(short, size[looked].tolist(), strict=True))
    signed = np.where(tied, 0.0, multipliers[looked])
    # lower / |y| squared: the powers of two of the rows and of y are left, those of the multipliers cancel.
    ratio = _rounded(gained**2 / (reach * squared) / _power(2 * (of_rows + of_y)))
    length = Fraction(squared) * _power(2 * of_y)
    products = (abs(x * s) * _power(of_u) for x, s in zip(u.tolist(), slack, strict=True))
    return Residuals(
        primal=max(0.0, violation),
        dual=max(0.0, -signed.min().item()) / np.abs(multipliers).max().item(),
        complementarity=max(_rounded(x / length) for x in products),
        gap=abs(1 - ratio**0.5) + EPS,
        vector=vector,
        norm=norm,
    )


def _power(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


def _rounded(x: Fraction) -> float:
    """A rational number as a double, infinite beyond their range."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def _integers(array: Float[Array, "..."], lost: Float[Array, "..."] | None = None) -> tuple[Shaped[Array, "..."], int]:
    """Python integers n and an exponent e with `array + lost = n * 2**e`, exactly."""
    mantissa, exponent = np.frexp(array if lost is None else np.stack([array, lost]))
    used = mantissa != 0
    least = int(exponent[used].min()) if used.any() else 0
    shift = np.where(used, exponent - least, 0).astype(object)
    integers = np.left_shift(np.ldexp(mantissa, 53).astype(np.int64).astype(object), shift)
    return (integers if lost is None else integers[0] + integers[1]), least - 53


def proven_by_products(
    known: KnownProducts,
    bound: Float[Array, " k"],
    weights: Float[Array, " k"],
    *,
    equality: Bool[Array, " k"] | None = None,
) -> Float[Array, " k"] | None:
    """As `proven_infeasible`, for rows of which only inner products are known, that of i and j up to `noise_i noise_j`.

    Products without noise are exact, and a combination whose products with all rows are zero is zero. Otherwise a
    little noise could hide a dimension in which all rows are independent, so there is a proof only where the number of
    dimensions is known: `rank` rows span them, by the least eigenvalue of their products, and the argument of
    `surely_positive` applies.
    """
    products, noise, rank = known.products, known.noise, known.rank
    if not noise.any():
        return proven_infeasible(products, bound, weights, equality=equality)
    support = np.flatnonzero(weights)
    if rank is None or len(support) != rank + 1 or equality is not None:
        return None
    u, blur, inner = weights[support], noise[support], products[np.ix_(support, support)]
    heaviest = u.argmax()
    others = np.delete(np.arange(len(u)), heaviest)
    values = np.linalg.eigvalsh(inner[np.ix_(others, others)])
    least = values[0] - 10 * len(u) * EPS * values[-1] - (blur[others] ** 2).sum()
    rounding = (len(u) + 2) * EPS * (u @ np.sqrt(np.maximum(inner.diagonal(), 0.0))) ** 2
    squared = max(u @ inner @ u, 0.0) + (u @ blur) ** 2 + rounding
    return weights if least > 0 and u[others].min() ** 2 * least > squared else None
