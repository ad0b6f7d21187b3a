"""Attention parameters that are products of two factors: what all of them share, and products by coordinates.

With minus the gradient in the product written as `g`, the chain rule gives that in each factor: a product with the
other factor. The unit direction of g is known in the log domain at every norm (see `forward`), so the factors need no
guard and no penalty either. K and Q with rows and columns are in `factored`.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin._statistics import Rng, generator
from tokenmargin.norms import EPS, L1, AbstractNorm
from tokenmargin.objective.attention import AbstractObjective, PromptObjective
from tokenmargin.objective.forward import Descent, Linearisation
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss, LogSigned
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.matrix_geometry import as_matrix
from tokenmargin.problem.token_problem import TokenProblem

_NOISE = 8 * EPS  # a product below this share of its factors cannot be told from rounding


@dataclass(frozen=True)
class ProductObjective(AbstractObjective):
    """The risk as a function of two factors whose product is the attention parameter: the key's, then the query's.

    `margin_norm` is the norm of the product that corresponds to the Euclidean length of the factors: the least
    `(|K|^2 + |Q|^2) / 2` over all factors of a product. Descent and flow maximise the margin in this norm.
    """

    margin_norm: ClassVar[AbstractNorm]

    @property
    def merged(self) -> AbstractObjective:
        return replace(self, problem=self.problem.merged)

    @property
    @abc.abstractmethod
    def spaces(self) -> tuple[Coordinates, Coordinates]:
        """Where the two factors live."""

    @abc.abstractmethod
    def factors(self, theta: Float[Array, "... D"]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """The two factors."""

    @abc.abstractmethod
    def pull_back(self, unit: Float[Array, "... D_keys"], theta: Float[Array, "... D"]) -> tuple[Array, Array]:
        """The chain rule: what a direction of the product is for each factor, flat."""

    @abc.abstractmethod
    def _derivatives(self, jacobian: Array, unit: Array, theta: Array) -> tuple[Array, Array]:
        """The derivatives of `pull_back` in the parameter, given that of the direction in the product."""

    @abc.abstractmethod
    def reach(self, theta: Float[Array, " D"]) -> float:
        """How far the product moves, at most, when the parameter moves by one."""

    @property
    def of_product(self) -> PromptObjective:
        """The same risk as a function of the product."""
        return PromptObjective(self.problem, self.loss)

    @property
    def blocks(self) -> tuple[tuple[str, AbstractGeometry], ...]:
        key, query = self.spaces
        return ("key", key), ("query", query)

    @property
    def constant_scores(self) -> Float[Array, "n T"] | None:
        return self.problem.shared_scores

    @property
    def degree(self) -> int:
        return 2

    def random_start(self, scale: float, *, rng: Rng) -> Float[Array, " D"]:
        """Independent normal entries of standard deviation `scale`."""
        rng = generator(rng)
        return scale * rng.standard_normal(self.dimension)

    def outputs(self, theta: Float[Array, "... D"]) -> Float[Array, "... n"]:
        return self.of_product.outputs(self.prompt(theta))

    def excess(self, theta: Float[Array, "... D"], selected: Int[Array, " n"] | None = None) -> LogSigned:
        return self.of_product.excess(self.prompt(theta), selected)

    def descent(self, theta: Float[Array, "... D"]) -> Descent:
        return self._from_product(theta, self.of_product.descent(self.prompt(theta)))

    def _from_product(self, theta: Float[Array, "... D"], of_product: Descent) -> Descent:
        """The descent in both factors from that in their product; what cancels down to rounding is zero."""
        parts = self.split(theta)
        directions, logs = [], []
        for product, other in zip(self.pull_back(of_product.direction, theta), ("query", "key"), strict=True):
            length, known = (np.linalg.norm(flat, axis=-1, keepdims=True) for flat in (product, parts[other]))
            length = np.where(length > _NOISE * known, length, 0.0)
            directions.append(np.where(length > 0, product, 0.0) / np.where(length > 0, length, 1.0))
            with np.errstate(divide="ignore"):
                logs.append(of_product.log_norm + np.log(length))
        return Descent(np.concatenate(directions, axis=-1), np.concatenate(logs, axis=-1))

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        whole = self.of_product.linearise(self.prompt(theta))
        rows = self._derivatives(whole.jacobian, whole.descent.direction, theta)
        descent = self._from_product(theta, whole.descent)
        with np.errstate(over="ignore", invalid="ignore"):
            lengths = np.exp(descent.log_norm - whole.descent.log_norm)
        lengths[~(lengths > 0)] = 1.0  # where the product has no gradient, its factors have none
        # The terms of the gradient in one factor are those of the product, each at most as long as the other factor.
        balance = np.zeros(2)
        parts = self.split(theta)
        sizes = np.array([np.linalg.norm(parts["query"]), np.linalg.norm(parts["key"])])
        np.divide(lengths * whole.balance, sizes, out=balance, where=(descent.log_norm > -np.inf) & (sizes > 0))
        return Linearisation(descent, np.vstack([row / n for row, n in zip(rows, lengths, strict=True)]), balance)


@dataclass(frozen=True)
class DiagonalObjective(ProductObjective):
    """The risk as a function of k and q in `p = q * k`, coordinate by coordinate: K and Q that are diagonal.

    With diagonal K and Q the logits are `sum_i q_i k_i z_i x_i`: attention by a prompt `p_i = q_i k_i` on tokens
    `z_i x_i`. Along gradient flow every `q_i^2 - k_i^2` stays as it is; the least `(|k|^2 + |q|^2) / 2` of a p is its
    l1 norm, so that the margin that grows is that of l1. The parameter is k, then q.

    >>> from tokenmargin.problem.instances import figure1b
    >>> objective = DiagonalObjective.of(figure1b().with_matrix(np.array([1.0, 2.0, -1.0])))
    >>> objective.matrix(objective.point(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 1.0]))).diagonal()
    array([2., 4., 3.])
    """

    margin_norm = L1

    def __post_init__(self) -> None:
        if not isinstance(self.problem.keys, Coordinates) or self.problem.keys.matrix_shape is not None:
            raise ValueError(
                "a product coordinate by coordinate needs a problem for a vector, in coordinates; "
                "of a problem for W make one by DiagonalObjective.of(problem)"
            )

    @classmethod
    def of(cls, problem: TokenProblem, loss: AbstractLoss | None = None) -> DiagonalObjective:
        """Of a problem for a square W, its diagonal; of a problem for p, p itself."""
        loss, keys = LogisticLoss() if loss is None else loss, problem.keys
        if keys.matrix_shape is None:
            return cls(problem, loss)
        if not isinstance(keys, Coordinates) or len(set(keys.matrix_shape)) > 1:
            raise ValueError(f"only a square W has diagonal factors, and this one is {keys.matrix_shape}")
        vectors = as_matrix(keys, keys.vectors).diagonal(axis1=-2, axis2=-1)
        return cls(problem.with_keys(Coordinates(vectors, keys.index, keys.mask)), loss)

    @cached_property
    def spaces(self) -> tuple[Coordinates, Coordinates]:
        return (plain_space(self.problem.keys.dimension),) * 2

    def factors(self, theta: Float[Array, "... D"]) -> tuple[Float[Array, "... d"], Float[Array, "... d"]]:
        """k and q."""
        d = self.problem.keys.dimension
        return theta[..., :d], theta[..., d:]

    def point(self, key: Float[Array, "... d"], query: Float[Array, "... d"]) -> Float[Array, "... D"]:
        """The parameter that holds k and q."""
        return np.concatenate([key, query], axis=-1)

    def prompt(self, theta: Float[Array, "... D"]) -> Float[Array, "... d"]:
        """`p = q * k`, the diagonal of W."""
        key, query = self.factors(theta)
        return query * key

    def matrix(self, theta: Float[Array, "... D"]) -> Float[Array, "... d d"]:
        """W, which is diagonal."""
        return self.prompt(theta)[..., None] * np.eye(self.problem.keys.dimension)

    def imbalance(self, theta: Float[Array, "... D"]) -> Float[Array, "... d"]:
        """`q^2 - k^2`, which gradient flow conserves."""
        key, query = self.factors(theta)
        return (query - key) * (query + key)

    def start(self) -> Float[Array, " D"]:
        """The small start of 0.1."""
        return self.small_start(0.1)

    def small_start(self, scale: float) -> Float[Array, " D"]:
        """`k = scale`, `q = 0`: p is zero, and every coordinate may take either sign.

        Where k and q have equal size at the start they keep equal sizes, and their product never changes its sign.
        """
        d = self.problem.keys.dimension
        return self.point(np.full(d, scale), np.zeros(d))

    def pull_back(self, unit: Float[Array, "... D_keys"], theta: Float[Array, "... D"]) -> tuple[Array, Array]:
        """`g * q` and `g * k`."""
        key, query = self.factors(theta)
        return unit * query, unit * key

    def _derivatives(self, jacobian: Array, unit: Array, theta: Array) -> tuple[Array, Array]:
        """With J the relative Jacobian in p: `d(g * q) = q * J[q * dk + k * dq] + g * dq`, and likewise for `g * k`."""
        key, query = self.factors(theta)
        by_key, by_query, own = jacobian * query, jacobian * key, np.diag(unit)
        return (
            np.hstack([query[:, None] * by_key, query[:, None] * by_query + own]),
            np.hstack([key[:, None] * by_key + own, key[:, None] * by_query]),
        )

    def reach(self, theta: Float[Array, " D"]) -> float:
        return float(np.abs(theta).max())


def plain_space(dimension: int) -> Coordinates:
    """Euclidean space of a dimension, as the geometry of a parameter that has no tokens of its own."""
    return Coordinates(np.zeros((1, dimension)), np.zeros((1, 1), dtype=np.intp))
