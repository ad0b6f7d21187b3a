"""What a geometry is: a dictionary of vectors plus an index from (input, position) to its rows.

What the theory needs of the tokens is a linear map to logits, its adjoint, and an inner product:

    logits(p)[i, t] = <k_it, p>,    pullback(w) = sum_it w_it k_it,    inner(p, q) = <p, q>.

`Coordinates` holds the m x d array of vectors; a parameter is a d-vector. `Gram` holds only the m x m inner
products; a parameter is its m coefficients on the dictionary. Every algorithm that asks for no coordinates is
written once, against this interface, so it runs on both, and on dimensions that no array could hold.

A vocabulary shared by all inputs costs its own size and not n x T x d. A dictionary may also hold rows that no
token points to: that is how a start or a head outside the span of the tokens gets a place in a Gram matrix.
"""

from __future__ import annotations

import abc
from copy import copy
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

MaybeArray: TypeAlias = "ArrayLike | None"
"""An array that may be left out."""


def read_only(array: Array) -> Array:
    """A read-only view: geometries are values, and are shared freely."""
    view = array.view()
    view.setflags(write=False)
    return view


def as_array(
    name: str, value: Any, dtype: type | None = None, *, ragged: str = "pad short inputs and give a mask"
) -> Array:
    """The value as an array, or an error in plain words in place of numpy's own.

    `ragged` is the remedy where the lists are of different lengths.
    """
    try:
        return np.asarray(value, dtype)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:  # a tensor that asks for its gradient
        if "inhomogeneous" in str(error):
            why, remedy = "", ragged
        else:
            why, remedy = f" ({' '.join(str(error).split())})", "give an array or lists of numbers"
        raise ValueError(f"{name} must be a rectangular array of numbers{why}; {remedy}") from error


def checked_point(name: str, p: ArrayLike, dimension: int) -> Float[Array, "... D"]:
    """Validate one parameter, or many along the leading axes, and return them as floats."""
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


def checked_numbers(name: str, array: ArrayLike, shape: str) -> Array:
    """Validate a two-dimensional array of finite real numbers and return it as float64."""
    array = as_array(name, array)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{name} must have shape {shape} with no empty axis, got {array.shape}")
    array = array.astype(np.float64, copy=False)
    check_finite(name, array, remedy="; remove or impute that token")
    return array


def check_finite(name: str, array: Float[Array, "..."], *, remedy: str = "") -> None:
    """Refuse numbers that are not finite, and name the first of them."""
    if not np.isfinite(array).all():
        place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        at = place[0] if len(place) == 1 else place
        raise ValueError(f"{name} must be finite, got {array[place]} at {at}{remedy}")


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
        return f"{type(self).__name__}({self.n_vectors} vectors, dimension {self.dimension}, n={self.n}, T={self.T})"

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """Length of the array that holds a parameter."""

    @property
    @abc.abstractmethod
    def n_vectors(self) -> int:
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
    def squared_norms(self) -> Float[Array, " m"]:
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

    @property
    def frame(self) -> Float[Array, "D r"] | None:
        """A matrix that turns parameters into plain vectors, `p @ frame`, with the same inner products; None where they
        are plain vectors already, or where inner products do not tell enough for one.

        A length that is the small difference of long ones keeps all of its digits there; products hold half of them.
        """
        return None

    def _set_tokens(self, index: ArrayLike, mask: ArrayLike | None) -> None:
        """Validate and store index and mask; part of construction."""
        checked_index, checked_mask = _checked_index(index, mask, self.n_vectors)
        object.__setattr__(self, "index", read_only(checked_index))
        object.__setattr__(self, "mask", read_only(checked_mask))

    def at_inputs(self, inputs: Int[Array, " k"]) -> AbstractGeometry:
        """The tokens of some inputs alone. Parameters stay what they were."""
        part = copy(self)
        for name in [name for name in vars(part) if isinstance(getattr(type(self), name, None), cached_property)]:
            del vars(part)[name]  # what is kept of the tokens is of all of them
        part._set_tokens(self.index[inputs], self.mask[inputs])
        return part

    @property
    def n(self) -> int:
        """Number of inputs."""
        return int(self.index.shape[0])

    @property
    def T(self) -> int:
        """Largest number of tokens of an input."""
        return int(self.index.shape[1])

    @cached_property
    def vector_norms(self) -> Float[Array, " m"]:
        """Length of every vector of the dictionary."""
        return np.sqrt(self.squared_norms())

    @cached_property
    def token_norms(self) -> Float[Array, "n T"]:
        """Length of every token; zero where there is none."""
        return np.where(self.mask, self.gather(self.vector_norms), 0.0)

    @cached_property
    def is_full(self) -> bool:
        """Whether every position holds a token."""
        return bool(self.mask.all())

    @cached_property
    def first_positions(self) -> Int[Array, " n"]:
        """Place of the first position of every input in the flattened index."""
        return read_only(np.arange(self.n) * self.T)

    @cached_property
    def _dense(self) -> bool:
        """Every token has its own row, in order: gathering and scattering are reshapes."""
        tokens = self.index.size
        return bool(self.is_full and tokens <= self.n_vectors and (self.index.ravel() == np.arange(tokens)).all())

    @property
    @abc.abstractmethod
    def equal_rows(self) -> Int[Array, " m"]:
        """A number for every row of the dictionary, the same for equal vectors."""

    @cached_property
    def first_copies(self) -> Int[Array, "n T"]:
        """Position of the first token of the same input with the same vector: its own unless it is a copy."""
        first = np.tile(np.arange(self.T), (self.n, 1))
        inputs, positions = self.mask.nonzero()
        vectors = self.equal_rows[self.index[inputs, positions]]
        # `nonzero` lists an input's positions in order, so the first occurrence is the first copy.
        _, seen, which = np.unique(inputs * self.n_vectors + vectors, return_index=True, return_inverse=True)
        first[inputs, positions] = positions[seen][which]
        return read_only(first)

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
            rows = np.zeros((*lead, self.n_vectors))
            rows[..., : self.index.size] = tokens.reshape(*lead, -1)
            return rows
        flat = tokens.reshape(-1, self.index.size)
        where = self.index.ravel()
        sums = [np.bincount(where, weights=row, minlength=self.n_vectors) for row in flat]
        return np.array(sums).reshape(*lead, self.n_vectors)

    @abc.abstractmethod
    def outputs(self, v: Float[Array, "... D"]) -> Float[Array, "... n T"]:
        """`<x_it, v>` for every token. Equal vectors have equal ones, to the last bit, wherever they stand: a product
        of matrices may round them differently, and scores that tie would tie no more."""

    def logits(self, p: Float[Array, "... D"]) -> Float[Array, "... n T"]:
        """`<k_it, p>` for every token; minus infinity where there is none."""
        logits = self.gather(self.project(p))
        return logits if self._dense else np.where(self.mask, logits, -np.inf)

    def pullback(self, weights: Float[Array, "... n T"]) -> Float[Array, "... D"]:
        """`sum_it w_it k_it`, the adjoint of `logits` (hidden positions are ignored)."""
        weights = weights if self._dense else np.where(self.mask, weights, 0.0)
        return self.combine(self.scatter(weights))
