"""The two geometries: a dictionary of vectors plus an index from (input, position) to its rows.

What the theory needs of the tokens is a linear map to logits, its adjoint, and an inner product:

    logits(p)[i, t] = <k_it, p>,    pullback(w) = sum_it w_it k_it,    inner(p, q) = <p, q>.

`Coordinates` holds the m x d array of vectors; a parameter is a d-vector. `Gram` holds only the m x m inner
products; a parameter is its m coefficients on the dictionary. Every algorithm of the package is written once,
against this interface, so it runs on both, and on dimensions that no array could hold.

A vocabulary shared by all inputs costs its own size and not n x T x d. A dictionary may also hold rows that no
token points to: that is how a start or a head outside the span of the tokens gets a place in a Gram matrix.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

_UNDERFLOW = 1e-150  # squared lengths below its square may have lost digits, or all, to underflow


def _multiply_exactly(vectors: Float[Array, "m d"]) -> bool:
    """Whether inner products of these vectors, and sums of some, suffer no rounding: few digits, of one size."""
    largest = np.abs(vectors).max()
    if not 1 / 1e140 < largest < 1e140:
        return False
    digits = (50 - int(np.ceil(np.log2(vectors.shape[1])))) // 2
    grid = np.ldexp(1.0, digits - int(np.frexp(largest)[1]))
    return bool((vectors * grid == np.rint(vectors * grid)).all())


def _frozen(array: Array) -> Array:
    """A read-only view: geometries are values, and are shared freely."""
    view = array.view()
    view.setflags(write=False)
    return view


def as_array(name: str, value: ArrayLike, dtype: type | None = None) -> Array:
    """An array of what was given; numpy's own messages speak of inhomogeneous shapes and of C longs."""
    try:
        return np.asarray(value, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{name} must be a rectangular array of numbers ({error}); pad short rows") from error


def checked_point(name: str, p: Float[Array, "... D"], dimension: int) -> Float[Array, "... D"]:
    """Parameters along the last axis."""
    p = as_array(name, p, float)
    if p.ndim < 1 or p.shape[-1] != dimension:
        raise ValueError(f"{name} must have {dimension} numbers in its last axis, got shape {p.shape}")
    return p


def _checked_index(index: ArrayLike, mask: ArrayLike | None, rows: int) -> tuple[Array, Array]:
    """Validate the (n, T) index and mask of a dictionary with `rows` vectors."""
    index = as_array("index", index)
    if index.ndim != 2 or index.size == 0:
        raise ValueError(
            f"index must have shape (n, T) with n, T >= 1, got {index.shape}; pass one row of tokens per input"
        )
    if index.dtype.kind not in "iu":
        raise TypeError(f"index must hold integers (rows of the dictionary), got dtype {index.dtype}")
    mask = np.ones(index.shape, dtype=bool) if mask is None else as_array("mask", mask)
    if mask.shape != index.shape or mask.dtype != bool:
        raise ValueError(
            f"mask must be boolean with the shape of the tokens {index.shape}, got {mask.dtype} {mask.shape}; "
            "True marks a token that is there"
        )
    empty = np.flatnonzero(~mask.any(axis=1))
    if empty.size:
        raise ValueError(f"input {empty[0]} has no token left under the mask; drop it or unmask one of its tokens")
    visible = index[mask]
    if visible.min() < 0 or visible.max() >= rows:
        raise ValueError(
            f"index points outside the dictionary: it must lie in 0..{rows - 1}, got {visible.min()}..{visible.max()}"
        )
    # Hidden positions may hold anything (-1 by habit); point them at row 0 so that gathering never fails.
    return np.where(mask, index, 0).astype(np.intp, copy=False), mask


def _checked_numbers(name: str, array: ArrayLike, shape: str) -> Array:
    """Validate a two-dimensional array of finite real numbers and return it as float64."""
    array = as_array(name, array)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} must have shape {shape} with no empty axis, got {array.shape}")
    array = array.astype(np.float64, copy=False)
    if not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(
            f"{name} must be finite, got {array[tuple(bad)]} at {tuple(bad.tolist())}; remove or impute that token"
        )
    return array


class AbstractGeometry(abc.ABC):
    """A dictionary of vectors and the tokens that point into it.

    **Attributes**
    - `index`: row of the dictionary for token `t` of input `i`.
    - `mask`: which positions hold a token; inputs shorter than T are padded.
    - `matrix_shape`: shape of the matrix that a parameter is, flattened row by row; None where it is a vector.
    """

    index: Int[Array, "n T"]
    mask: Bool[Array, "n T"]
    matrix_shape: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.rows} vectors, dimension {self.dimension}, n={self.n}, T={self.T})"

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """Length of the array that holds a parameter."""

    @property
    @abc.abstractmethod
    def rows(self) -> int:
        """Number of vectors in the dictionary."""

    @abc.abstractmethod
    def project(self, p: Float[Array, "... D"]) -> Float[Array, "... m"]:
        """Inner product of `p` with every vector of the dictionary."""

    @abc.abstractmethod
    def combine(self, coefficients: Float[Array, "... m"]) -> Float[Array, "... D"]:
        """The parameter `sum_j coefficients_j e_j`: the adjoint of `project`."""

    @abc.abstractmethod
    def inner(self, p: Float[Array, "... D"], q: Float[Array, "... D"]) -> Float[Array, "..."]:
        """Inner product of two parameters."""

    @abc.abstractmethod
    def squared_lengths(self) -> Float[Array, " m"]:
        """`<e_j, e_j>` for every vector of the dictionary."""

    @abc.abstractmethod
    def gram_of(self, rows: Int[Array, " k"]) -> Float[Array, "k k"]:
        """Inner products among the given rows of the dictionary."""

    @abc.abstractmethod
    def differences(self, plus: Int[Array, " k"], minus: Int[Array, " k"] | None) -> Float[Array, "k r"]:
        """Rows `a_j` of a Euclidean space with the inner products of `e_plus[j] - e_minus[j]` (or of `e_plus[j]`)."""

    @property
    @abc.abstractmethod
    def noise(self) -> float:
        """Length of `sum_j c_j e_j`, relative to `sum_j |c_j| |e_j|`, below which it cannot be told from rounding."""

    def _set_tokens(self, index: ArrayLike, mask: ArrayLike | None) -> None:
        """Validate and store index and mask; part of construction."""
        checked_index, checked_mask = _checked_index(index, mask, self.rows)
        object.__setattr__(self, "index", _frozen(checked_index))
        object.__setattr__(self, "mask", _frozen(checked_mask))

    @property
    def n(self) -> int:
        """Number of inputs."""
        return int(self.index.shape[0])

    @property
    def T(self) -> int:
        """Largest number of tokens of an input."""
        return int(self.index.shape[1])

    @cached_property
    def lengths(self) -> Float[Array, " m"]:
        """Length of every vector of the dictionary."""
        return np.sqrt(self.squared_lengths())

    @cached_property
    def token_lengths(self) -> Float[Array, "n T"]:
        """Length of every token; zero where there is none."""
        return np.where(self.mask, self.gather(self.lengths), 0.0)

    @cached_property
    def is_full(self) -> bool:
        """Whether every position holds a token."""
        return bool(self.mask.all())

    @cached_property
    def starts(self) -> Int[Array, " n"]:
        """Place of the first position of every input in the flattened index."""
        return _frozen(np.arange(self.n) * self.T)

    @cached_property
    def _dense(self) -> bool:
        """Every token has its own row, in order: gathering and scattering are reshapes."""
        tokens = self.index.size
        return bool(self.is_full and tokens <= self.rows and (self.index.ravel() == np.arange(tokens)).all())

    @abc.abstractmethod
    def _equal_rows(self) -> Int[Array, " m"]:
        """A number for every row of the dictionary, the same for equal vectors."""

    @cached_property
    def equal_rows(self) -> Int[Array, " m"]:
        """A number for every row of the dictionary, the same for equal vectors."""
        return _frozen(self._equal_rows())

    @cached_property
    def first_copies(self) -> Int[Array, "n T"]:
        """Position of the first token of the same input with the same vector: its own unless it is a copy."""
        first = np.tile(np.arange(self.T), (self.n, 1))
        inputs, positions = self.mask.nonzero()
        vectors = self.equal_rows[self.index[inputs, positions]]
        # `nonzero` lists an input's positions in order, so the first occurrence is the first copy.
        _, seen, which = np.unique(inputs * self.rows + vectors, return_index=True, return_inverse=True)
        first[inputs, positions] = positions[seen][which]
        return _frozen(first)

    @cached_property
    def has_copies(self) -> bool:
        """Whether some input holds a vector twice."""
        return bool((self.first_copies != np.arange(self.T)).any())

    def zero(self) -> Float[Array, " D"]:
        """The zero parameter."""
        return np.zeros(self.dimension)

    def norm(self, p: Float[Array, "... D"]) -> Float[Array, "..."]:
        """Length of a parameter, without overflow or underflow on the way."""
        scale = np.abs(p).max(axis=-1, keepdims=True)
        scale[scale == 0] = 1.0
        unit = p / scale
        return np.asarray(scale[..., 0] * np.sqrt(np.maximum(self.inner(unit, unit), 0.0)))

    def gather(self, rows: Float[Array, "... m"]) -> Float[Array, "... n T"]:
        """Values per dictionary row, laid out per token."""
        if self._dense:
            return rows[..., : self.index.size].reshape(*rows.shape[:-1], *self.index.shape)
        return rows[..., self.index]

    def scatter(self, tokens: Float[Array, "... n T"]) -> Float[Array, "... m"]:
        """Sum of token values per dictionary row: the adjoint of `gather`. Hidden positions must hold zero."""
        lead = tokens.shape[:-2]
        if self._dense:
            rows = np.zeros((*lead, self.rows))
            rows[..., : self.index.size] = tokens.reshape(*lead, -1)
            return rows
        flat = tokens.reshape(-1, self.index.size)
        where = self.index.ravel()
        sums = [np.bincount(where, weights=row, minlength=self.rows) for row in flat]
        return np.array(sums).reshape(*lead, self.rows)

    def logits(self, p: Float[Array, "... D"]) -> Float[Array, "... n T"]:
        """`<k_it, p>` for every token; minus infinity where there is none."""
        logits = self.gather(self.project(p))
        return logits if self._dense else np.where(self.mask, logits, -np.inf)

    def pullback(self, weights: Float[Array, "... n T"]) -> Float[Array, "... D"]:
        """`sum_it w_it k_it`, the adjoint of `logits` (hidden positions are ignored)."""
        weights = weights if self._dense else np.where(self.mask, weights, 0.0)
        return self.combine(self.scatter(weights))


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
        mask: ArrayLike | None = None,
        *,
        matrix_shape: tuple[int, int] | None = None,
    ) -> None:
        checked = _checked_numbers("vectors", vectors, "(m, d)")
        object.__setattr__(self, "vectors", _frozen(checked))
        if matrix_shape is not None and matrix_shape[0] * matrix_shape[1] != checked.shape[1]:
            raise ValueError(f"matrices of shape {matrix_shape} do not flatten to vectors of length {checked.shape[1]}")
        object.__setattr__(self, "matrix_shape", matrix_shape)
        self._set_tokens(index, mask)

    @classmethod
    def of(cls, tokens: ArrayLike, mask: ArrayLike | None = None) -> Coordinates:
        """One vector per token: `tokens` has shape (n, T, d)."""
        array = as_array("tokens", tokens)
        if array.ndim != 3 or 0 in array.shape:
            raise ValueError(f"tokens must have shape (n, T, d) with n, T, d >= 1, got {array.shape}")
        n, T, d = array.shape
        if mask is not None and (there := as_array("mask", mask)).shape == (n, T) and there.dtype.kind == "b":
            # Padding often holds NaN; it is never read, but the dictionary must be finite.
            array = np.where(there[..., None], array, 0)
        return cls(array.reshape(n * T, d), np.arange(n * T).reshape(n, T), mask)

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def rows(self) -> int:
        return int(self.vectors.shape[0])

    @property
    def tokens(self) -> Float[Array, "n T d"]:
        """The vectors laid out per token (a copy of size n x T x d; zeros where there is no token)."""
        return np.where(self.mask[..., None], self.vectors[self.index], 0.0)

    @cached_property
    def laid_out(self) -> Float[Array, "n T d"]:
        """As `tokens`, kept: for algorithms that read all coordinates of every token at each step."""
        return _frozen(self.tokens)

    def project(self, p: Float[Array, "... D"]) -> Float[Array, "... m"]:
        return p @ self.vectors.T

    def combine(self, coefficients: Float[Array, "... m"]) -> Float[Array, "... D"]:
        return coefficients @ self.vectors

    def inner(self, p: Float[Array, "... D"], q: Float[Array, "... D"]) -> Float[Array, "..."]:
        return np.asarray(np.einsum("...d,...d->...", p, q))

    def squared_lengths(self) -> Float[Array, " m"]:
        return np.einsum("md,md->m", self.vectors, self.vectors)

    def gram_of(self, rows: Int[Array, " k"]) -> Float[Array, "k k"]:
        chosen = self.vectors[rows]
        return chosen @ chosen.T

    def differences(self, plus: Int[Array, " k"], minus: Int[Array, " k"] | None) -> Float[Array, "k r"]:
        rows = self.vectors.take(plus, axis=0)  # much faster than indexing where there are few
        if minus is None:
            return rows
        if self._differences_are_finite:
            rows -= self.vectors.take(minus, axis=0)
            return rows
        with np.errstate(over="ignore"):  # what is beyond doubles is infinite, and whoever asked sees it
            rows -= self.vectors.take(minus, axis=0)
        return rows

    @cached_property
    def _differences_are_finite(self) -> bool:
        return bool(np.abs(self.vectors).max(initial=0.0) < np.finfo(float).max / 2)

    def _equal_rows(self) -> Int[Array, " m"]:
        # Adding zero turns -0 into 0; equal vectors then have equal bytes.
        whole = np.ascontiguousarray(self.vectors + 0.0).view(f"V{8 * self.dimension}").ravel()
        return np.asarray(np.unique(whole, return_inverse=True)[1].ravel())

    @property
    def noise(self) -> float:
        return 8 * float(np.finfo(float).eps)

    def as_gram(self, extra: Float[Array, "k d"] | None = None) -> Gram:
        """The same tokens known by inner products alone; `extra` vectors get the rows m, m+1, ... of the dictionary.

        Inner products of differences are taken from the first token, where an offset of all tokens cancels before it
        costs digits; and it is passed on which vectors are equal, and how many dimensions there are.
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
            accuracy=0.0 if exact else (self.dimension + 4) * float(np.finfo(float).eps),
            rank=self.dimension,
            equal=representative[equal.ravel()],
        )


class KnownProducts(NamedTuple):
    """Inner products of differences: that of i and j is known up to `noise_i noise_j`; they span at most `rank`.

    `terms` are the lengths of the vectors that a difference is made of, added up: a combination of differences is
    stored as its coefficients on the dictionary, whose rounding moves it by so much.
    """

    products: Float[Array, "k k"]
    noise: Float[Array, " k"]
    terms: Float[Array, " k"]
    rank: int | None


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Gram(AbstractGeometry):
    """Vectors known by their inner products alone; a parameter is its coefficients on the dictionary.

    Coefficients are not unique when the vectors are dependent; every quantity of the theory is. What inner products
    cannot tell is never guessed, so it matters how well they are known:

    **Attributes**
    - `matrix`: the inner products.
    - `accuracy`: they are right up to this share of the product of the two lengths; 16 eps unless said otherwise, 0 for
      exact ones.
    - `centred`: inner products of the vectors less one of the tokens, with the same accuracy, where known: tokens far
      from the origin differ by what their own products have no digits for.
    - `rank`: dimensions of the space, where known. Rounding could hide one, and in a hidden dimension every selection
      is separable, so without it there is no proof that one is not.
    - `equal`: for every row of the dictionary, the first that holds the same vector.
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
        mask: ArrayLike | None = None,
        *,
        accuracy: float = 16 * float(np.finfo(float).eps),
        centred: Float[Array, "m m"] | None = None,
        rank: int | None = None,
        equal: Int[Array, " m"] | None = None,
    ) -> None:
        checked = _checked_numbers("matrix", matrix, "(m, m)")
        if checked.shape[0] != checked.shape[1]:
            raise ValueError(
                f"matrix must be square (inner products of the dictionary with itself), got {checked.shape}"
            )
        largest = np.abs(checked).max()
        if np.abs(checked - checked.T).max() > 1e-12 * largest:
            raise ValueError("matrix must be symmetric: it holds inner products; symmetrise it with (G + G.T) / 2")
        # Rounding in a product of m terms leaves negative eigenvalues up to about m eps |G|; more is not a Gram matrix.
        if np.linalg.eigvalsh(checked)[0] < -1e-12 * len(checked) * largest - _UNDERFLOW**2:
            raise ValueError("matrix must be positive semidefinite: it holds inner products of real vectors")
        for name, value in (("matrix", checked), ("centred", centred), ("equal", equal)):
            object.__setattr__(self, name, None if value is None else _frozen(value))
        object.__setattr__(self, "accuracy", accuracy)
        object.__setattr__(self, "rank", rank)
        self._set_tokens(index, mask)

    @property
    def dimension(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def rows(self) -> int:
        return int(self.matrix.shape[0])

    def unit(self, row: int) -> Float[Array, " m"]:
        """The dictionary vector `row` itself, as a parameter."""
        return np.eye(1, self.rows, row)[0]

    def project(self, p: Float[Array, "... D"]) -> Float[Array, "... m"]:
        return p @ self.matrix

    def combine(self, coefficients: Float[Array, "... m"]) -> Float[Array, "... D"]:
        return coefficients

    def inner(self, p: Float[Array, "... D"], q: Float[Array, "... D"]) -> Float[Array, "..."]:
        return np.asarray(np.einsum("...d,...d->...", p @ self.matrix, q))

    def squared_lengths(self) -> Float[Array, " m"]:
        return np.maximum(self.matrix.diagonal(), 0.0)

    def gram_of(self, rows: Int[Array, " k"]) -> Float[Array, "k k"]:
        return self.matrix[np.ix_(rows, rows)]

    def differences(self, plus: Int[Array, " k"], minus: Int[Array, " k"] | None) -> Float[Array, "k r"]:
        products = self.products(plus, minus).products
        if not len(products):
            return np.zeros((0, 0))
        values, vectors = np.linalg.eigh((products + products.T) / 2)
        # Directions below rounding carry no information: the eigenvalues there are noise of either sign.
        kept = values > len(values) * np.finfo(float).eps * values.max(initial=0.0)
        rows = vectors[:, kept] * np.sqrt(values[kept])
        rows[products.diagonal() <= 0] = 0.0  # equal vectors differ by exactly nothing
        return rows

    def products(self, plus: Int[Array, " k"], minus: Int[Array, " k"] | None) -> KnownProducts:
        """Inner products among the vectors `e_plus[j] - e_minus[j]` (or `e_plus[j]`), and how well they are known.

        Each is a sum of up to four, so its error is the accuracy, and four roundings, times the sums of the lengths.
        """
        matrix = self.matrix if minus is None or self.centred is None else self.centred
        lengths = np.sqrt(np.maximum(matrix.diagonal(), 0.0))
        if self.equal is not None:
            plus, minus = self.equal[plus], None if minus is None else self.equal[minus]
        rows, sums = matrix[plus], lengths[plus]
        if minus is None:
            products = rows[:, plus]
        else:
            rows, sums = rows - matrix[minus], sums + lengths[minus]
            products = rows[:, plus] - rows[:, minus]
        noise = np.zeros(len(plus))
        if self.accuracy > 0:
            noise = np.sqrt(self.accuracy + 4 * np.finfo(float).eps) * sums + _UNDERFLOW
        if minus is not None:
            noise[plus == minus] = 0.0
        terms = self.lengths[plus] if minus is None else self.lengths[plus] + self.lengths[minus]
        return KnownProducts(products, noise, terms, self.rank)

    def _equal_rows(self) -> Int[Array, " m"]:
        """Where it is not known which vectors are equal, those are that inner products cannot tell apart."""
        if self.equal is not None:
            return self.equal
        squared = self.squared_lengths()
        together = squared[:, None] + squared
        return np.asarray((together - 2 * self.matrix <= 8 * np.finfo(float).eps * together).argmax(axis=1))

    @property
    def noise(self) -> float:
        return float(np.sqrt(8 * np.finfo(float).eps))  # a squared length is known to a few eps of its terms
