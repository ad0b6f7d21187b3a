"""Norms as values: what "short" and "steep" mean for a vector, or for a matrix flattened row by row.

A norm is given by three functions: its value, the value of its dual `|g|_* = max <g, x> over |x| <= 1`, and a vector
that attains that maximum, the direction of steepest ascent. Certificates and methods of descent need no more.

| name | norm | dual | steepest ascent |
|---|---|---|---|
| `l2` | Euclidean (Frobenius, of a matrix) | `l2` | the gradient's direction |
| `l1` | sum of absolute values | `linf` | the coordinate of largest modulus |
| `linf` | largest absolute value | `l1` | the signs |
| `lp:P` | p-th root of the sum of p-th powers, 1 < P < inf | `lp:P/(P-1)` | signed powers |
| `nuclear` | sum of the singular values | `spectral` | the leading pair of singular vectors |
| `spectral` | largest singular value | `nuclear` | the polar factor `U V'` |
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.plugins import PluginError, find

EPS = float(np.finfo(float).eps)
Function: TypeAlias = Callable[[Float[Array, " D"]], float]
Maximiser: TypeAlias = Callable[[Float[Array, " D"]], Float[Array, " D"]]
Proposer: TypeAlias = Callable[[Float[Array, "k D"], Float[Array, " k"]], tuple[Float[Array, " D"], Float[Array, " k"]]]


class AbstractNorm(abc.ABC):
    """A norm on parameters. The last axis of an array is the parameter's; leading axes are a batch."""

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """What `norm_named` calls it."""

    @abc.abstractmethod
    def value(self, x: Float[Array, "... D"]) -> Float[Array, "..."]:
        """`|x|`, without overflow or underflow on the way."""

    @abc.abstractmethod
    def dual_value(self, g: Float[Array, "... D"]) -> Float[Array, "..."]:
        """`|g|_*`, the largest `<g, x>` over `|x| <= 1`."""

    @abc.abstractmethod
    def steepest(self, g: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """An x with `|x| = 1` and `<g, x> = |g|_*`; zero where g is."""

    @abc.abstractmethod
    def rounding(self, dimension: int) -> float:
        """A bound on the relative rounding error of `value` and `dual_value` for parameters of this dimension."""

    def dual_bound(self, sizes: Float[Array, " D"]) -> float:
        """An upper bound on the dual value of every vector whose coordinates are at most `sizes` in modulus."""
        return float(sizes @ self.dual_value(np.eye(len(sizes))))

    def of_shape(self, shape: tuple[int, int] | None) -> AbstractNorm:
        """The same norm, told that parameters are flattened matrices of this shape; norms of vectors ignore it."""
        return self


@dataclass(frozen=True)
class LpNorm(AbstractNorm):
    """`(sum_i |x_i|^p)^(1/p)`, the largest modulus for `p = inf`.

    >>> LpNorm(1.5).name, float(LpNorm(np.inf).dual_value(np.array([3.0, -4.0])))
    ('lp:1.5', 7.0)
    """

    p: float

    def __post_init__(self) -> None:
        if not self.p >= 1:
            raise ValueError(f"the p of an lp norm must be at least 1 (inf included), got {self.p}")
        object.__setattr__(self, "p", float(self.p))

    @property
    def name(self) -> str:
        return {1.0: "l1", 2.0: "l2", np.inf: "linf"}.get(self.p, f"lp:{_written(self.p)}")

    @property
    def dual_p(self) -> float:
        """The q with `1/p + 1/q = 1`."""
        return {1.0: np.inf, np.inf: 1.0}.get(self.p) or self.p / (self.p - 1)

    def value(self, x: Float[Array, "... D"]) -> Float[Array, "..."]:
        return _power_norm(np.asarray(x, dtype=np.float64), self.p)

    def dual_value(self, g: Float[Array, "... D"]) -> Float[Array, "..."]:
        return _power_norm(np.asarray(g, dtype=np.float64), self.dual_p)

    def steepest(self, g: Float[Array, "... D"]) -> Float[Array, "... D"]:
        size = np.abs(g)
        if self.p == 1:
            first = np.zeros_like(size)
            np.put_along_axis(first, size.argmax(axis=-1)[..., None], 1.0, axis=-1)
            return first * np.sign(g)
        powers = (size / _positive(size.max(axis=-1, keepdims=True))) ** (self.dual_p - 1)
        if np.isinf(self.p):
            return np.sign(g)
        return np.sign(g) * powers / _positive(_power_norm(powers, self.p)[..., None])

    def dual_bound(self, sizes: Float[Array, " D"]) -> float:
        return float(self.dual_value(sizes)) * (1 + self.rounding(len(sizes)))

    def rounding(self, dimension: int) -> float:
        # Entries are divided by the largest, raised (p roundings' worth), added, and the p-th root takes p off again.
        return (dimension + 8) * EPS


@dataclass(frozen=True)
class SchattenNorm(AbstractNorm):
    """The lp norm of a matrix's singular values: nuclear for `p = 1`, spectral for `p = inf`, Frobenius for 2.

    Without a `shape` the last two axes of an array are the matrix; with one, its last axis is a matrix flattened row by
    row, as parameters are.

    >>> float(NUCLEAR.value(np.diag([3.0, -4.0]))), float(NUCLEAR.of_shape((2, 2)).dual_value(np.array([3.0, 0, 0, 4])))
    (7.0, 4.0)
    """

    p: float
    shape: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", LpNorm(self.p).p)

    @property
    def name(self) -> str:
        return {1.0: "nuclear", np.inf: "spectral"}.get(self.p, f"schatten:{_written(self.p)}")

    def of_shape(self, shape: tuple[int, int] | None) -> SchattenNorm:
        return replace(self, shape=shape)

    def value(self, x: Float[Array, "... D"]) -> Float[Array, "..."]:
        return LpNorm(self.p).value(np.linalg.svd(self.matrices(x), compute_uv=False))

    def dual_value(self, g: Float[Array, "... D"]) -> Float[Array, "..."]:
        return LpNorm(self.p).dual_value(np.linalg.svd(self.matrices(g), compute_uv=False))

    def steepest(self, g: Float[Array, "... D"]) -> Float[Array, "... D"]:
        matrices = self.matrices(g)
        left, values, right = np.linalg.svd(matrices, full_matrices=False)
        # What rounding leaves of a singular value that is zero has no direction.
        values[values <= max(matrices.shape[-2:]) * EPS * values.max(axis=-1, keepdims=True)] = 0.0
        best = LpNorm(self.p).steepest(values)
        return np.asarray((left * best[..., None, :]) @ right).reshape(np.shape(g))

    def dual_bound(self, sizes: Float[Array, " D"]) -> float:
        # Singular values have the Frobenius norm of the matrix, and q-th powers exceed squares only for q < 2.
        least, q = min(self.matrices(sizes).shape), LpNorm(self.p).dual_p
        return float(np.linalg.norm(sizes)) * least ** max(0.0, 1 / q - 0.5) * (1 + (len(sizes) + 8) * EPS)

    def rounding(self, dimension: int) -> float:
        # LAPACK's singular values are right to a modest multiple of eps of the largest; there are `least` of them.
        least, most = sorted(self.shape or (1, dimension))
        return (10 * most * (1 if np.isinf(self.p) else least) + 8) * EPS

    def matrices(self, x: Float[Array, "... D"]) -> Float[Array, "... q d"]:
        """The parameters as matrices."""
        array = np.asarray(x, dtype=np.float64)
        if self.shape is None:
            if array.ndim < 2:
                raise ValueError(
                    f"the {self.name} norm is one of matrices, got a vector of length {array.size}; say of what "
                    "shape it is: norm.of_shape((rows, columns))"
                )
            return array
        if array.shape[-1:] != (self.shape[0] * self.shape[1],):
            raise ValueError(
                f"the {self.name} norm is for matrices of shape {self.shape}, flattened: the last axis must be "
                f"{self.shape[0] * self.shape[1]} long, got an array of shape {array.shape}"
            )
        return array.reshape(*array.shape[:-1], *self.shape)


@dataclass(frozen=True)
class CustomNorm(AbstractNorm):
    """A norm of your own, from the function and its dual.

    **Attributes**
    - `called`: its name.
    - `norm`, `dual`: of one vector each.
    - `maximiser`: of `<g, x>` over the unit ball, for methods of steepest descent.
    - `propose`: `(rows, bound) -> (vector, multipliers)`, a guess at the shortest vector with `rows @ x >= bound` and
      at the multipliers that prove it. Our own code checks what it returns, so it need not be trusted.
    - `accuracy`: a bound on the relative rounding of the two functions.
    """

    called: str
    norm: Function
    dual: Function
    maximiser: Maximiser | None = None
    propose: Proposer | None = None
    accuracy: float = 1e-12

    @property
    def name(self) -> str:
        return self.called

    def value(self, x: Float[Array, "... D"]) -> Float[Array, "..."]:
        return _map_vectors(self.norm, x, ())

    def dual_value(self, g: Float[Array, "... D"]) -> Float[Array, "..."]:
        return _map_vectors(self.dual, g, ())

    def steepest(self, g: Float[Array, "... D"]) -> Float[Array, "... D"]:
        if self.maximiser is None:
            raise ValueError(
                f"the norm {self.called} has no direction of steepest ascent; give CustomNorm(maximiser=...)"
            )
        return _map_vectors(self.maximiser, g, np.shape(g)[-1:])

    def rounding(self, dimension: int) -> float:
        return self.accuracy


def _written(p: float) -> str:
    """The shortest number that is read as p again: 3, 1.1, 1e+22."""
    return repr(float(p)).removesuffix(".0")


def _power_norm(x: Float[Array, "... D"], p: float) -> Float[Array, "..."]:
    size = np.abs(x)
    if np.isinf(p):
        return np.asarray(size.max(axis=-1, initial=0.0))
    if p == 1:
        return np.asarray(size.sum(axis=-1))
    largest = _positive(size.max(axis=-1, keepdims=True, initial=0.0))
    return np.asarray(largest[..., 0] * ((size / largest) ** p).sum(axis=-1) ** (1 / p)) * (
        size.max(axis=-1, initial=0.0) > 0
    )


def _positive(scale: Float[Array, "..."]) -> Float[Array, "..."]:
    return np.where(scale > 0, scale, 1.0)


def _map_vectors(function: Callable[[Array], object], x: Float[Array, "... D"], shape: tuple[int, ...]) -> Array:
    """A function of one vector, on every vector of an array."""
    array = np.asarray(x, dtype=np.float64)
    flat = array.reshape(-1, array.shape[-1])
    return np.array([function(row) for row in flat], dtype=np.float64).reshape((*array.shape[:-1], *shape))


L1, L2, LINF = LpNorm(1.0), LpNorm(2.0), LpNorm(np.inf)
NUCLEAR, SPECTRAL = SchattenNorm(1.0), SchattenNorm(np.inf)
_OURS: dict[str, AbstractNorm] = {norm.name: norm for norm in (L1, L2, LINF, NUCLEAR, SPECTRAL)}


def as_norm(norm: AbstractNorm | str) -> AbstractNorm:
    """The norm itself, or the one of that name; our own names are found without a look at other packages."""
    if not isinstance(norm, str):
        return norm
    return _OURS[norm] if norm in _OURS else norm_named(norm)


def norm_named(name: str) -> AbstractNorm:
    """A norm by name: l2, l1, linf, lp:P, nuclear, spectral, one that a package adds, or the one at `MODULE:OBJECT`.

    >>> norm_named("lp:1.5")
    LpNorm(p=1.5)
    >>> norm_named("lp:2") == norm_named("l2")
    True
    """
    kind, _, given = name.partition(":")
    if kind.lower() in ("lp", "schatten"):
        try:
            p = float(given)
        except ValueError:
            raise ValueError(
                f"an {kind} norm is named {kind}:P with a number P >= 1, such as {kind}:1.5; got {name!r}"
            ) from None
        return LpNorm(p) if kind.lower() == "lp" else SchattenNorm(p)
    try:
        norm: AbstractNorm = find("norms", name)
    except PluginError as error:
        raise PluginError(f"{error}; lp:P names the lp norm, such as lp:1.5") from error
    return norm
