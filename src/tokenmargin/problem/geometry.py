"""The two geometries: vectors given by coordinates, or known by their inner products alone."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from tokenmargin.norms import EPS
from tokenmargin.problem.abstract_geometry import (
    AbstractGeometry,
    MaybeArray,
    as_array,
    checked_numbers,
    read_only,
)

_BLOCK = 128  # differences are formed so many at a time, which keeps the rows they are made of in the caches
_RESOLVED = 1e3  # a squared distance so many times what rounding leaves in its place is a direction of its own
_UNDERFLOW = 1e-150  # squared lengths below its square may have lost digits, or all, to underflow


def _multiply_exactly(vectors: Float[Array, "m d"]) -> bool:
    """Whether inner products of these vectors are exact in doubles: their coordinates have few digits of one size."""
    largest = np.abs(vectors).max()
    if not 1 / 1e140 < largest < 1e140:
        return False
    digits = (50 - int(np.ceil(np.log2(vectors.shape[1])))) // 2
    grid = np.ldexp(1.0, digits - int(np.frexp(largest)[1]))
    return bool((vectors * grid == np.rint(vectors * grid)).all())


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Coordinates(AbstractGeometry):
    """Vectors given by coordinates; a parameter is a d-vector.

    >>> tokens = Coordinates.of([[[0.0, 1.0], [1.0, 0.0]]])
    >>> tokens.logits(np.array([2.0, 3.0]))
    array([[3., 2.]])
    """

    vectors: Float[Array, "m d"]
    index: Int[Array, "n T"]
    mask: Bool[Array, "n T"]

    def __init__(
        self,
        vectors: ArrayLike,
        index: ArrayLike,
        mask: MaybeArray = None,
        *,
        matrix_shape: tuple[int, int] | None = None,
    ) -> None:
        checked = checked_numbers("vectors", vectors, "(m, d)")
        object.__setattr__(self, "vectors", read_only(checked))
        if matrix_shape is not None and matrix_shape[0] * matrix_shape[1] != checked.shape[1]:
            raise ValueError(f"matrices of shape {matrix_shape} do not flatten to vectors of length {checked.shape[1]}")
        object.__setattr__(self, "matrix_shape", matrix_shape)
        self._set_tokens(index, mask)

    @classmethod
    def of(cls, tokens: ArrayLike, mask: MaybeArray = None) -> Coordinates:
        """One vector per token: `tokens` has shape (n, T, d)."""
        array = as_array("tokens", tokens)
        if array.ndim != 3 or 0 in array.shape:
            raise ValueError(f"tokens must have shape (n, T, d) with n, T, d >= 1, got {array.shape}")
        n, T, d = array.shape
        there = None if mask is None or array.dtype.kind not in "fiub" else as_array("mask", mask)
        if there is not None and there.shape == (n, T) and there.dtype.kind == "b":
            # Padding often holds NaN; it is never read, but the dictionary must be finite.
            array = np.where(there[..., None], array, 0)
        return cls(array.reshape(n * T, d), np.arange(n * T).reshape(n, T), mask)

    def at_inputs(self, inputs: Int[Array, " k"]) -> Coordinates:
        """The tokens of some inputs, with the vectors that they use, in the order in which they use them."""
        rows, first, place = np.unique(self.index[inputs], return_index=True, return_inverse=True)
        order = np.argsort(first)
        index = np.argsort(order)[place.reshape(-1, self.T)]
        return Coordinates(self.vectors[rows[order]], index, self.mask[inputs], matrix_shape=self.matrix_shape)

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def n_vectors(self) -> int:
        return int(self.vectors.shape[0])

    @cached_property
    def vector_norms(self) -> Float[Array, " m"]:
        """Length of every vector, also where its square overflows or underflows."""
        return self.norm(self.vectors)

    @cached_property
    def tokens(self) -> Float[Array, "n T d"]:
        """The vectors laid out per token, zeros where there is none: n x T x d numbers, made when first asked for."""
        return read_only(np.where(self.mask[..., None], self.vectors[self.index], 0.0))

    def project(self, p: Float[Array, "... D"]) -> Float[Array, "... m"]:
        return p @ self.vectors.T

    def combine(self, coefficients: Float[Array, "... m"]) -> Float[Array, "... D"]:
        return coefficients @ self.vectors

    def inner(self, p: Float[Array, "... D"], q: Float[Array, "... D"]) -> Float[Array, "..."]:
        return np.asarray(np.einsum("...d,...d->...", p, q))

    def squared_norms(self) -> Float[Array, " m"]:
        return np.einsum("md,md->m", self.vectors, self.vectors)

    def gram_of(self, rows: Int[Array, " k"]) -> Float[Array, "k k"]:
        chosen = self.vectors[rows]
        return chosen @ chosen.T

    def differences(self, plus: Int[Array, " k"], minus: Int[Array, " k"] | None) -> Float[Array, "k r"]:
        if minus is None:
            return self.vectors.take(plus, axis=0)  # much faster than indexing where there are few
        rows = np.empty((len(plus), self.dimension))
        # Differences beyond the range of doubles become infinite, without a warning: the caller sees them.
        with nullcontext() if self._differences_are_finite else np.errstate(over="ignore"):
            for start in range(0, len(plus), _BLOCK):
                part = slice(start, start + _BLOCK)
                first, second = self.vectors.take(plus[part], axis=0), self.vectors.take(minus[part], axis=0)
                np.subtract(first, second, out=rows[part])
        return rows

    @cached_property
    def _differences_are_finite(self) -> bool:
        return bool(np.abs(self.vectors).max(initial=0.0) < np.finfo(float).max / 2)

    @cached_property
    def equal_rows(self) -> Int[Array, " m"]:
        # Adding zero turns -0 into 0; equal vectors then have equal bytes.
        whole = np.ascontiguousarray(self.vectors + 0.0).view(f"V{8 * self.dimension}").ravel()
        return read_only(np.unique(whole, return_inverse=True)[1].ravel())

    def outputs(self, v: Float[Array, "... d"]) -> Float[Array, "... n T"]:
        return self.gather(np.einsum("...d, md -> ...m", v, self.vectors))  # sums every row in one and the same order

    @property
    def noise(self) -> float:
        return 8 * EPS

    def as_gram(self, extra: Float[Array, "k d"] | None = None) -> Gram:
        """The same tokens known by inner products alone; `extra` vectors get the rows m, m+1, ... of the dictionary.

        Inner products of differences are formed relative to the first token, so that an offset common to all tokens
        costs no digits. The result knows which vectors are equal and how many dimensions there are.
        """
        vectors = self.vectors if extra is None else np.concatenate([self.vectors, np.atleast_2d(extra)])
        first = self.index[0, self.mask[0].argmax()]
        with np.errstate(over="ignore"):
            centred = np.clip(vectors - vectors[first], -np.finfo(float).max, np.finfo(float).max)
            products = centred @ centred.T
        _, representative, equal = np.unique(vectors, axis=0, return_index=True, return_inverse=True)
        exact = _multiply_exactly(vectors) and _multiply_exactly(centred)
        return Gram(
            vectors @ vectors.T,
            self.index,
            self.mask,
            centred=products if np.isfinite(products).all() else None,
            accuracy=0.0 if exact else (self.dimension + 4) * EPS,
            rank=self.dimension,
            equal=representative[equal.ravel()],
        )


def in_coordinates(geometry: AbstractGeometry) -> Float[Array, "n T r"]:
    """The tokens as an array, for derivatives of the field."""
    if not isinstance(geometry, Coordinates):
        raise TypeError("the Jacobian of the field is taken in coordinates; reduce a Gram geometry to its span first")
    return geometry.tokens


class KnownProducts(NamedTuple):
    """Inner products of differences of vectors, with how well they are known.

    - `noise`: the product of differences i and j is right up to `noise_i noise_j`.
    - `terms`: the summed lengths of the two vectors that a difference is made of. A combination of differences is
      stored as coefficients on the dictionary; rounding of these moves it in proportion to `terms`.
    - `rank`: how many dimensions the differences span at most, where known.
    """

    products: Float[Array, "k k"]
    noise: Float[Array, " k"]
    terms: Float[Array, " k"]
    rank: int | None


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Gram(AbstractGeometry):
    """Vectors known by their inner products alone; a parameter is its coefficients on the dictionary.

    When the vectors are dependent a parameter has several sets of coefficients, but every quantity of the theory has
    one value. What the inner products cannot tell is never guessed, so it matters how well they are known:

    **Attributes**
    - `matrix`: the inner products.
    - `accuracy`: they are right up to this share of the product of the two lengths; 16 eps unless said otherwise, 0 for
      exact ones.
    - `centred`: inner products of the vectors less one of the tokens, with the same accuracy, where known: tokens far
      from the origin differ by what their own products have no digits for.
    - `rank`: dimensions of the space, where known. Rounding could hide one, and in a hidden dimension every selection
      is separable, so without it there is no proof that one is not.
    - `equal`: for every row of the dictionary, the first that holds the same vector; by default rows of equal products.
    """

    matrix: Float[Array, "m m"]
    index: Int[Array, "n T"]
    mask: Bool[Array, "n T"]
    accuracy: float
    centred: Float[Array, "m m"] | None
    rank: int | None
    equal: Int[Array, " m"] | None

    def __init__(
        self,
        matrix: ArrayLike,
        index: ArrayLike,
        mask: MaybeArray = None,
        *,
        accuracy: float = 16 * EPS,
        centred: Float[Array, "m m"] | None = None,
        rank: int | None = None,
        equal: Int[Array, " m"] | None = None,
    ) -> None:
        checked = checked_numbers("matrix", matrix, "(m, m)")
        if checked.shape[0] != checked.shape[1]:
            raise ValueError(
                f"matrix must be square (inner products of the dictionary with itself), got {checked.shape}"
            )
        largest = np.abs(checked).max()
        if np.abs(checked - checked.T).max() > 1e-12 * largest:
            raise ValueError("matrix must be symmetric: it holds inner products; symmetrise it with (G + G.T) / 2")
        # Rounding in a product of m terms leaves negative eigenvalues up to about m eps |G|; more is not a Gram matrix.
        values, rounding = np.linalg.eigvalsh(checked), 1e-12 * len(checked) * largest + _UNDERFLOW**2
        if values[0] < -rounding:
            raise ValueError("matrix must be positive semidefinite: it holds inner products of real vectors")
        if rank is not None and not 1 <= rank >= (values > rounding).sum():
            raise ValueError(
                f"rank must be the number of dimensions, at least {max(1, (values > rounding).sum())} by the inner "
                f"products, got {rank}"
            )
        for name, value in (("matrix", checked), ("centred", centred), ("equal", equal)):
            object.__setattr__(self, name, None if value is None else read_only(value))
        object.__setattr__(self, "accuracy", accuracy)
        object.__setattr__(self, "rank", rank)
        self._set_tokens(index, mask)

    @property
    def dimension(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def n_vectors(self) -> int:
        return int(self.matrix.shape[0])

    def unit(self, row: int) -> Float[Array, " m"]:
        """The dictionary vector `row` itself, as a parameter."""
        return np.eye(1, self.n_vectors, row)[0]

    def project(self, p: Float[Array, "... D"]) -> Float[Array, "... m"]:
        return p @ self.matrix

    def combine(self, coefficients: Float[Array, "... m"]) -> Float[Array, "... D"]:
        return coefficients

    def inner(self, p: Float[Array, "... D"], q: Float[Array, "... D"]) -> Float[Array, "..."]:
        return np.asarray(np.einsum("...d,...d->...", p @ self.matrix, q))

    def squared_norms(self) -> Float[Array, " m"]:
        return np.maximum(self.matrix.diagonal(), 0.0)

    def gram_of(self, rows: Int[Array, " k"]) -> Float[Array, "k k"]:
        return self.matrix[np.ix_(rows, rows)]

    def differences(self, plus: Int[Array, " k"], minus: Int[Array, " k"] | None) -> Float[Array, "k r"]:
        products = self.products(plus, minus).products
        if not len(products):
            return np.zeros((0, 0))
        if not np.isfinite(products).all():
            return np.full((len(products), 1), np.inf)  # beyond doubles, as in coordinates
        # Of rows of length about 1, as powers of two make them: short rows would be lost beside long ones.
        squares = products.diagonal()
        lengths = np.ldexp(1.0, np.frexp(np.sqrt(np.where(squares > 0, squares, 1.0)))[1])[:, None]
        products = products / lengths / lengths.T
        values, vectors = np.linalg.eigh((products + products.T) / 2)
        # Directions below rounding carry no information: the eigenvalues there are noise of either sign.
        kept = values > len(values) * EPS * values.max(initial=0.0)
        if self.rank is not None:
            kept[: max(0, len(values) - self.rank)] = False
        rows = lengths * vectors[:, kept] * np.sqrt(values[kept])
        rows[squares <= 0] = 0.0  # equal vectors differ by exactly nothing
        return rows

    def products(self, plus: Int[Array, " k"], minus: Int[Array, " k"] | None) -> KnownProducts:
        """Inner products among the vectors `e_plus[j] - e_minus[j]` (or `e_plus[j]`), and how well they are known.

        Each is a sum of up to four, so its error is the accuracy, and four roundings, times the sums of the lengths.
        """
        matrix = self.matrix if minus is None or self.centred is None else self.centred
        lengths = np.sqrt(np.maximum(matrix.diagonal(), 0.0))
        plus, minus = self.equal_rows[plus], None if minus is None else self.equal_rows[minus]
        rows, sums = matrix[plus], lengths[plus]
        if minus is None:
            products = rows[:, plus]
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                rows, sums = rows - matrix[minus], sums + lengths[minus]
                products = rows[:, plus] - rows[:, minus]
        noise = np.zeros(len(plus))
        if self.accuracy > 0:
            noise = np.sqrt(self.accuracy + 4 * EPS) * sums + _UNDERFLOW
        if minus is not None:
            noise[plus == minus] = 0.0
        terms = self.vector_norms[plus] if minus is None else self.vector_norms[plus] + self.vector_norms[minus]
        return KnownProducts(products, noise, terms, self.rank)

    @cached_property
    def equal_rows(self) -> Int[Array, " m"]:
        """As given; otherwise vectors are equal when all their inner products are, the matrix taken at its word."""
        if self.equal is not None:
            return self.equal
        _, first, same = np.unique(self.matrix + 0.0, axis=0, return_index=True, return_inverse=True)
        return read_only(first[same.ravel()])

    def outputs(self, v: Float[Array, "... m"]) -> Float[Array, "... n T"]:
        rows = self.project(v)
        return self.gather(rows if self.equal is None else rows[..., self.equal])

    @property
    def noise(self) -> float:
        return float(np.sqrt(8 * EPS))  # a squared length is known to a few eps of its terms

    @cached_property
    def frame(self) -> Float[Array, "m rank"] | None:
        if (self.matrix.diagonal() < _UNDERFLOW**2).any(where=self.matrix.diagonal() > 0):
            return None
        # Of unit vectors: lengths of very different size would hide the directions of the short ones.
        lengths = np.where(self.vector_norms > 0, self.vector_norms, 1.0)
        unit = self.matrix / lengths / lengths[:, None]
        m = len(unit)
        resolved = _RESOLVED * m * max(self.accuracy, EPS)
        if self.rank is None or self.rank >= m:
            return _triangle(unit, resolved, lengths)
        # Cholesky, the vector farthest from those before it first: of few dimensions, much faster than eigenvectors.
        columns, left = np.zeros((m, self.rank)), unit.diagonal().copy()
        for j in range(self.rank):
            pivot = left.argmax()
            if not left[pivot] > resolved:
                return None
            columns[:, j] = (unit[pivot] - columns[:, :j] @ columns[pivot, :j]) / np.sqrt(left[pivot])
            left -= columns[:, j] ** 2
        return lengths[:, None] * columns if left.max() <= resolved else None


def _triangle(unit: Float[Array, "m m"], resolved: float, lengths: Float[Array, " m"]) -> Float[Array, "m m"] | None:
    """Vectors with the given inner products and lengths, where these tell that they are independent."""
    try:
        columns = np.linalg.cholesky(unit)
    except np.linalg.LinAlgError:
        return None
    return lengths[:, None] * columns if columns.diagonal().min() ** 2 > resolved else None
