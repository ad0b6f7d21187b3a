"""Other parameters than one p or W: factors K and Q of W, and several heads.

W as a product, `W = W0 + Q K'`: the logits are `z' W0 k + <Q' z, K' k>` with r columns in K and in Q. With minus the
gradient in W written as `G`, that in Q is `G K` and that in K is `G' Q`. Both are products with the unit direction of
G, which is known in the log domain at every norm (see `forward`); so they need no guard and no penalty. Along
gradient flow `Q' Q - K' K` does not change.

Several heads, `f(X_i) = sum_h f_h(X_i)`, each with its own prompt or W, its own scores and tokens, stand side by side:
head h's input i is one more input of a single problem, with logits of its own part of the parameter. Only the slope of
the loss couples them, and so does only one term of the Jacobian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.linalg import block_diag

from tokenmargin.norms import SchattenNorm
from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.forward import (
    Attention,
    Descent,
    Linearisation,
    PivotedAttention,
    attend,
    descent_weights,
    join_blocks,
    prompt_block,
    prompt_descent,
)
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.objective.products import ProductObjective, plain_space
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.matrix_geometry import as_matrix
from tokenmargin.problem.token_problem import TokenProblem, checked_problem

LARGEST_RANK = 1 << 16
"""Columns of K and Q."""


@dataclass(frozen=True)
class FactoredObjective(ProductObjective):
    """The risk as a function of K (d x r) and Q (q x r) in `W = W0 + Q K'`; the head is fixed.

    The parameter is K row by row, then Q row by row. `evolve` and `flow` take it; `prompt` and `matrix` give W.

    **Arguments**
    - `problem`: one in a matrix, in coordinates: `self_attention`, `cross_attention`, `with_matrix`.
    - `rank`: r; the smaller side of W by default, which leaves W free.
    - `base`: W0, what is there before training (low-rank adaptation); zero by default.

    >>> from tokenmargin.problem.instances import figure1b
    >>> objective = FactoredObjective(figure1b().with_matrix(np.array([1.0, 2.0])), rank=1)
    >>> key, query = objective.factors(objective.start())
    >>> key.shape, query.shape, objective.matrix(objective.start()).shape
    ((3, 1), (2, 1), (2, 3))
    """

    margin_norm = SchattenNorm(1.0)
    rank: int = field(default=0, kw_only=True)
    base: Float[Array, "q d"] | None = field(default=None, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        if checked_problem(self.problem, type(self).__name__).keys.matrix_shape is None:
            as_matrix(self.problem.keys, self.problem.keys.zero())  # raises with a remedy
        if self.rank == 0:
            object.__setattr__(self, "rank", min(self.shape))
        if not 1 <= self.rank <= LARGEST_RANK:
            raise ValueError(f"rank must be at least 1 and at most {LARGEST_RANK}, got {self.rank}")
        if self.base is not None and (self.base.shape != self.shape or not np.isfinite(self.base).all()):
            raise ValueError(f"base must be finite numbers of shape {self.shape}, as W, got {self.base.shape}")

    @property
    def shape(self) -> tuple[int, int]:
        """Of W: (q, d)."""
        shape = self.problem.keys.matrix_shape
        assert shape is not None, "checked at construction"
        return shape

    @cached_property
    def spaces(self) -> tuple[Coordinates, Coordinates]:
        """Where K and Q live."""
        q, d = self.shape
        return plain_space(d * self.rank), plain_space(q * self.rank)

    def factors(self, theta: Float[Array, "... D"]) -> tuple[Float[Array, "... d r"], Float[Array, "... q r"]]:
        """K and Q."""
        (q, d), lead, cut = self.shape, theta.shape[:-1], self.shape[1] * self.rank
        return theta[..., :cut].reshape(*lead, d, self.rank), theta[..., cut:].reshape(*lead, q, self.rank)

    def point(self, key: Float[Array, "... d r"], query: Float[Array, "... q r"]) -> Float[Array, "... D"]:
        """The parameter that holds K and Q."""
        lead = key.shape[:-2]
        return np.concatenate([key.reshape(*lead, -1), query.reshape(*lead, -1)], axis=-1)

    def matrix(self, theta: Float[Array, "... D"]) -> Float[Array, "... q d"]:
        """`W = W0 + Q K'`."""
        key, query = self.factors(theta)
        product = query @ np.swapaxes(key, -1, -2)
        return product if self.base is None else self.base + product

    def prompt(self, theta: Float[Array, "... D"]) -> Float[Array, "... D_keys"]:
        """W as a parameter of the problem."""
        W = self.matrix(theta)
        return W.reshape(*W.shape[:-2], -1)

    def imbalance(self, theta: Float[Array, "... D"]) -> Float[Array, "... r r"]:
        """`Q' Q - K' K`, which gradient flow conserves."""
        key, query = self.factors(theta)
        return np.swapaxes(query, -1, -2) @ query - np.swapaxes(key, -1, -2) @ key

    def start(self) -> Float[Array, " D"]:
        """The aligned start with |Q K'| = 0.01."""
        return self.aligned_start(0.1)

    def aligned_start(self, scale: float) -> Float[Array, " D"]:
        """A balanced start, `Q' Q = K' K`, with `Q K' = scale^2 D`: D is the direction of descent in W at W0, of unit
        length, cut to its r largest singular values. A small scale is a small start."""
        base = np.zeros(self.shape) if self.base is None else self.base
        unit = as_matrix(self.problem.keys, self.of_product.descent(base.ravel()).direction)
        left, sizes, right = np.linalg.svd(unit, full_matrices=False)
        kept = min(self.rank, len(sizes))
        root = np.zeros(self.rank)
        root[:kept] = scale * np.sqrt(sizes[:kept])
        key, query = np.zeros((self.shape[1], self.rank)), np.zeros((self.shape[0], self.rank))
        key[:, :kept], query[:, :kept] = right[:kept].T, left[:, :kept]
        return self.point(key * root, query * root)

    def pull_back(self, unit: Float[Array, "... D_keys"], theta: Float[Array, "... D"]) -> tuple[Array, Array]:
        """`G' Q` and `G K`."""
        key, query = self.factors(theta)
        G = as_matrix(self.problem.keys, unit)
        flat = (*theta.shape[:-1], -1)
        return (np.swapaxes(G, -1, -2) @ query).reshape(flat), (G @ key).reshape(flat)

    def _derivatives(self, jacobian: Array, unit: Array, theta: Array) -> tuple[Array, Array]:
        """With J the relative Jacobian in W: `d(G K) = J[dQ K' + Q dK'] K + G dK`, and likewise for `G' Q`."""
        key, query = self.factors(theta)
        (q, d), r, G = self.shape, self.rank, as_matrix(self.problem.keys, unit)
        jacobian, one = jacobian.reshape(q, d, q, d), np.eye(r)
        by_key = np.tensordot(jacobian, query, (2, 0))  # a d e n: derivative of G in K
        by_query = np.tensordot(jacobian, key, (3, 0))  # a d b n: derivative of G in Q
        of_key = [np.tensordot(query, part, (0, 0)) for part in (by_key, by_query)]  # m d . n
        of_query = [np.tensordot(key, part, (0, 1)) for part in (by_key, by_query)]  # m a . n
        of_key[1] += np.einsum("bd,mn->mdbn", G, one)
        of_query[0] += np.einsum("ae,mn->maen", G, one)
        first, second = (
            np.hstack([p.transpose(1, 0, 2, 3).reshape(p.shape[1] * r, -1) for p in part])
            for part in (of_key, of_query)
        )
        return first, second

    def reach(self, theta: Float[Array, " D"]) -> float:
        """How far a logit moves, over the longest difference of tokens `z_i k_it'`, when the parameter moves by one."""
        return max(float(np.linalg.norm(factor, 2)) for factor in self.factors(theta))


@dataclass(frozen=True)
class ManyFactored(FactoredObjective):
    """Many problems of one shape, without masks, that `evolve` trains together: a row of the parameter for each.

    For selections and `flow`, which are of one problem, use `FactoredObjective` with the row of that problem.
    """

    family: tuple[TokenProblem, ...] = field(kw_only=True)
    _tokens: Float[Array, "problems nT D_keys"] = field(kw_only=True, repr=False, compare=False)

    @property
    def merged(self) -> AbstractObjective:
        return replace(self, problem=self.problem.merged, family=tuple(one.merged for one in self.family))

    @classmethod
    def of(cls, family: Sequence[TokenProblem], loss: AbstractLoss | None = None, *, rank: int = 0) -> ManyFactored:
        """From a list of problems."""
        shapes = {(problem.n, problem.T, problem.keys.matrix_shape, problem.keys.is_full) for problem in family}
        if len(shapes) != 1 or not next(iter(shapes))[-1]:
            raise ValueError("the problems must have one shape and no masked tokens; train others one by one")
        keys = [problem.keys.tokens for problem in family if isinstance(problem.keys, Coordinates)]
        tokens = np.stack(keys).reshape(len(family), family[0].n * family[0].T, -1)
        loss = LogisticLoss() if loss is None else loss
        return cls(family[0], loss, rank=rank, family=tuple(family), _tokens=tokens)

    def outputs(self, theta: Float[Array, "problems D"]) -> Float[Array, "problems n"]:
        return self._forward(theta).output

    def descent(self, theta: Float[Array, "problems D"]) -> Descent:
        state = self._forward(theta)
        coefficients, log_scale = descent_weights(state, self.loss.log_slope(state.output))
        vector = (coefficients.reshape(len(theta), 1, -1) @ self._tokens)[:, 0]
        length = np.linalg.norm(vector, axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            log_norm = log_scale[:, None] + np.log(length) - np.log(self.problem.n)
        return self._from_product(theta, Descent(vector / np.where(length > 0, length, 1.0), log_norm))

    def _forward(self, theta: Float[Array, "problems D"]) -> Attention:
        if theta.shape[:-1] != (len(self.family),):
            raise ValueError(f"give one row per problem, {len(self.family)} of them, got shape {theta.shape}")
        logits = (self._tokens @ self.prompt(theta)[..., None]).reshape(len(theta), self.problem.n, self.problem.T)
        return attend(logits, self._scores)

    @cached_property
    def _scores(self) -> Float[Array, "problems n T"]:
        return np.stack([problem.scores for problem in self.family])


def side_by_side(problems: Sequence[TokenProblem]) -> TokenProblem:
    """Several problems as one: their inputs one after another, their parameters in orthogonal spaces.

    The logits of each are those of its own part of the parameter, and the shortest vector that separates all selections
    is the shortest of each, side by side.

    >>> problem = TokenProblem.of(keys=[[[0.0, 1.0], [1.0, 0.0]]], labels=[1], head=[1.0, 0.0])
    >>> side_by_side([problem, problem]).keys.logits(np.array([1.0, 2.0, 3.0, 4.0]))
    array([[2., 1.],
           [4., 3.]])
    """
    if not problems:
        raise ValueError("give at least one problem to put side by side")
    T = max(problem.T for problem in problems)
    before = np.cumsum([0, *(problem.keys.n_vectors for problem in problems)])
    parts = list(zip(problems, before, strict=False))
    index = np.concatenate([_pad_tokens(problem.keys.index + int(first), T) for problem, first in parts])
    mask = np.concatenate([_pad_tokens(problem.mask, T) for problem in problems])
    return TokenProblem(
        _direct_sum([problem.keys for problem in problems], index, mask, before),
        np.concatenate([problem.labels for problem in problems]),
        scores=np.concatenate([_pad_tokens(problem.scores, T) for problem in problems]),
    )


def _pad_tokens(array: Array, T: int) -> Array:
    return np.pad(array, ((0, 0), (0, T - array.shape[1])))


def _direct_sum(parts: list[AbstractGeometry], index: Array, mask: Array, before: Array) -> AbstractGeometry:
    """The geometry in which the parts are orthogonal; the vectors of part j have the numbers from `before[j]` on."""
    coordinates = [part for part in parts if isinstance(part, Coordinates)]
    if len(coordinates) == len(parts):
        return Coordinates(block_diag(*(part.vectors for part in coordinates)), index, mask)
    grams = [part for part in parts if isinstance(part, Gram)]
    if len(grams) < len(parts):
        raise TypeError("the problems must all be in coordinates or all in Gram space; call as_gram() on the others")
    ranks = [part.rank for part in grams if part.rank is not None]
    equal = [part.equal + int(first) for part, first in zip(grams, before, strict=False) if part.equal is not None]
    return Gram(
        block_diag(*(part.matrix for part in grams)),
        index,
        mask,
        accuracy=max(part.accuracy for part in grams),
        rank=sum(ranks) if len(ranks) == len(grams) else None,
        equal=np.concatenate(equal) if len(equal) == len(grams) else None,
    )


@dataclass(frozen=True)
class MultiHeadObjective(AbstractObjective):
    """The risk of a sum of attention heads, as a function of all their prompts (or matrices) together.

    **Attributes**
    - `problem`: the heads side by side: its input `h n + i` is input i as head h sees it. Use it, or the problem of one
      head, for selections, margins and limit directions.
    - `heads`: the problems of the heads.

    >>> from tokenmargin.problem.instances import figure1a, figure1b
    >>> objective = MultiHeadObjective.of([figure1a(), figure1b()])
    >>> objective.dimension, objective.outputs(objective.start()).shape
    (6, (1,))
    """

    heads: tuple[TokenProblem, ...] = field(kw_only=True)

    @property
    def merged(self) -> AbstractObjective:
        return replace(self, problem=self.problem.merged)

    @classmethod
    def of(cls, heads: Sequence[TokenProblem], loss: AbstractLoss | None = None) -> MultiHeadObjective:
        """From one problem per head: the same inputs and labels, the head's own keys, values and scores."""
        if not heads or any((head.labels.shape != heads[0].labels.shape) for head in heads):
            raise ValueError("heads must be a non-empty list of problems with the same inputs")
        if any((head.labels != heads[0].labels).any() for head in heads):
            raise ValueError("all heads see the same inputs, so their labels must agree")
        return cls(side_by_side(heads), LogisticLoss() if loss is None else loss, heads=tuple(heads))

    def parts(self, theta: Float[Array, "... D"]) -> tuple[Float[Array, "... d"], ...]:
        """The parameter of every head."""
        ends = np.cumsum([head.keys.dimension for head in self.heads])[:-1]
        return tuple(np.split(theta, ends, axis=-1))

    def outputs(self, theta: Float[Array, "... D"]) -> Float[Array, "... n"]:
        return self._sum_over_heads(self._forward(theta).output)

    def descent(self, theta: Float[Array, "... D"]) -> Descent:
        state = self._forward(theta)
        log_slope = self._to_heads(self.loss.log_slope(self._sum_over_heads(state.output)))
        direction, log_norm = prompt_descent(self.problem.keys, state, log_slope)
        return Descent(direction, log_norm + np.log(len(self.heads)))  # a mean over n inputs, not over n heads

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        state = self._forward(theta)
        state = state._replace(output=self._to_heads(self._sum_over_heads(state.output)))
        seen = PivotedAttention.of(self.problem.keys, state, self.loss)
        apart = seen.slope.reshape(len(self.heads), -1, self.dimension)
        slope = np.tile(apart.sum(axis=0), (len(self.heads), 1))
        return join_blocks((prompt_block(seen, slope=slope),), self.problem.n // len(self.heads))

    def _forward(self, theta: Float[Array, "... D"]) -> Attention:
        logits = self.problem.keys.logits(theta)
        return attend(logits, np.broadcast_to(self.problem.scores, logits.shape))

    def _sum_over_heads(self, of_heads: Float[Array, "... hn"]) -> Float[Array, "... n"]:
        return np.asarray(of_heads.reshape(*of_heads.shape[:-1], len(self.heads), -1).sum(axis=-2))

    def _to_heads(self, of_inputs: Float[Array, "... n"]) -> Float[Array, "... hn"]:
        return np.concatenate([of_inputs] * len(self.heads), axis=-1)
