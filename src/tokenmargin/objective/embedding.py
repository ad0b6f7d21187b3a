"""Trained embeddings: every vector of paper A's model in one dictionary, its risk, and its gradient of rank two.

The model is `f(X) = sum_t q_t <E_{x_t}, v>` with `q = softmax(<E_{x_t}, p>)`. The risk depends on the embeddings only
through `a = E p` and `b = E v`, so its gradient in `E_s` lies in the plane of p and v:

    -dL/dE_s = c_s p + e_s v,    -dL/dp = sum_s c_s E_s,    -dL/dv = sum_s e_s E_s,

with one number `c_s` and one `e_s` per token. A step costs O(m d + n T), in Gram space O(m^2 + n T).

At the start, in dimension d, everything that matters is of size d^(-1/2): 1e-30 where Theorem 5 holds. `e_s` is
therefore never formed as a sum of numbers near 1/(2T); it is kept as `alpha_s / 2` (the signed share, exact), plus a
small rest in which nothing cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin._notebook import one_line
from tokenmargin._statistics import Rng, generator
from tokenmargin.objective.losses import LogisticLoss
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.token_problem import TokenProblem


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The vectors `E_1, ..., E_m, p, v` of a corpus, as rows of one dictionary in this order.

    - `corpus`: the sequences; its vocabulary has m tokens.
    - `geometry`: Coordinates or Gram, with m + 2 rows.
    """

    corpus: TokenCorpus
    geometry: AbstractGeometry

    __repr__ = one_line

    def __post_init__(self) -> None:
        if self.geometry.n_vectors != self.corpus.size + 2:
            raise ValueError(
                f"the dictionary must hold the {self.corpus.size} tokens, then the prompt p, then the head v; "
                f"got {self.geometry.n_vectors} rows"
            )

    @classmethod
    def of(
        cls, corpus: TokenCorpus, tokens: Float[Array, "m d"], prompt: Float[Array, " d"], head: Float[Array, " d"]
    ) -> Embeddings:
        """From coordinates."""
        return cls(corpus, Coordinates(np.vstack([tokens, prompt, head]), corpus.index, corpus.mask))

    def as_gram(self) -> Embeddings:
        """The same vectors known by inner products alone."""
        if not isinstance(self.geometry, Coordinates):
            raise TypeError("these embeddings are in Gram space already")
        return Embeddings(self.corpus, self.geometry.as_gram())

    def row(self, j: int) -> Float[Array, " D"]:
        """The dictionary's vector `j` as a parameter."""
        return self.geometry.combine(np.eye(1, self.geometry.n_vectors, j)[0])

    @property
    def prompt(self) -> Float[Array, " D"]:
        """The vector p."""
        return self.row(self.corpus.size)

    @property
    def head(self) -> Float[Array, " D"]:
        """The vector v."""
        return self.row(self.corpus.size + 1)

    @property
    def overlaps(self) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """`a_s = <E_s, p>` and `b_s = <E_s, v>`."""
        m = self.corpus.size
        return self.geometry.project(self.prompt)[:m], self.geometry.project(self.head)[:m]

    def problem(self) -> TokenProblem:
        """The problem of training p alone: the embeddings are keys and values, the head is v."""
        return TokenProblem(self.geometry, self.corpus.labels, head=self.head)

    def after_step(self, c: Float[Array, " m"], e: Float[Array, " m"]) -> Embeddings:
        """`E_s + c_s p + e_s v` and `p + sum_s c_s E_s`: one step of training, v kept."""
        m = self.corpus.size
        left, right = np.zeros((m + 2, 3)), np.zeros((3, m + 2))
        left[:m, 0], left[:m, 1], left[m, 2] = c, e, 1.0
        right[0, m], right[1, m + 1], right[2, :m] = 1.0, 1.0, c
        old = self.geometry
        if isinstance(old, Coordinates):
            return Embeddings(self.corpus, Coordinates(old.vectors + left @ (right @ old.vectors), old.index, old.mask))
        assert isinstance(old, Gram)
        cross = left @ (right @ old.matrix)
        matrix = old.matrix + (cross + cross.T) + left @ (right @ old.matrix @ right.T) @ left.T
        return Embeddings(self.corpus, Gram((matrix + matrix.T) / 2, old.index, old.mask))


class EmbeddingDescent(NamedTuple):
    """Minus the gradient: `c_s p + (alpha_s / 2 + rest_s) v` in `E_s`, and `sum_s c_s E_s` in p.

    - `alpha`: the corpus's `signed_share`, which is (3) where all sequences have one length.
    """

    c: Float[Array, " m"]
    alpha: Float[Array, " m"]
    rest: Float[Array, " m"]

    @property
    def e(self) -> Float[Array, " m"]:
        """The coefficient on v."""
        return self.alpha / 2 + self.rest


@dataclass(frozen=True)
class EmbeddingObjective:
    """The logistic risk (2) of a corpus as a function of all its embeddings.

    >>> from tokenmargin.problem.instances import selective_corpus
    >>> rng = np.random.default_rng(0)
    >>> corpus = selective_corpus(4, 3, rng=rng)
    >>> objective = EmbeddingObjective(corpus)
    >>> start = wishart_embeddings(corpus, 5.4e59, rng=rng)
    >>> bool(abs(objective.descent(start).rest).max() < 1e-29)  # the small terms are not lost to rounding
    True
    """

    corpus: TokenCorpus

    def outputs(self, embeddings: Embeddings) -> Float[Array, " n"]:
        """`y f(X)` per sequence."""
        q, _ = self.attention(embeddings)
        return np.asarray(self.corpus.labels * (q * self.values(embeddings)).sum(axis=1))

    def value(self, embeddings: Embeddings) -> float:
        """The risk."""
        return float(LogisticLoss().value(self.outputs(embeddings)).mean())

    def descent(self, embeddings: Embeddings) -> EmbeddingDescent:
        """Minus the gradient in E and p, in its form of rank two (Lemma 7)."""
        q, above_uniform = self.attention(embeddings)
        values = self.values(embeddings)
        f = (q * values).sum(axis=1, keepdims=True)
        y = self.corpus.labels[:, None]
        bend = -np.tanh(y * f / 2) / 2  # g - 1/2, where g = 1 / (1 + exp(y f))
        c = y * (0.5 + bend) * q * (values - f)
        rest = y * (bend * q + above_uniform / 2)  # g q - 1/(2T)
        return EmbeddingDescent(self.per_token(c), self.corpus.signed_share, self.per_token(rest))

    def attention(self, embeddings: Embeddings) -> tuple[Float[Array, "n T"], Float[Array, "n T"]]:
        """Softmax weights q, and `q - 1/T` to full relative precision."""
        a, _ = embeddings.overlaps
        return weights_above_uniform(np.where(self.corpus.mask, a[self.corpus.index], -np.inf))

    def step(self, embeddings: Embeddings, eta: float) -> Embeddings:
        """One step of gradient descent on all embeddings and the prompt (4)."""
        descent = self.descent(embeddings)
        return embeddings.after_step(eta * descent.c, eta * descent.e)

    def values(self, embeddings: Embeddings) -> Float[Array, "n T"]:
        """`<E_{x_t}, v>` per position; zero where there is no token."""
        _, b = embeddings.overlaps
        return np.where(self.corpus.mask, b[self.corpus.index], 0.0)

    def per_token(self, positions: Float[Array, "n T"]) -> Float[Array, " m"]:
        """Mean over the sequences of the sum over a token's positions."""
        weights = positions[self.corpus.mask]
        return np.bincount(self.corpus.tokens, weights=weights, minlength=self.corpus.size) / self.corpus.n


def weights_above_uniform(logits: Float[Array, "... T"]) -> tuple[Float[Array, "... T"], Float[Array, "... T"]]:
    """Softmax weights q, and `q - 1/T` to full relative precision; minus infinity in `logits` is no token."""
    there = np.isfinite(logits)
    count = there.sum(axis=-1, keepdims=True)
    x = np.where(there, np.expm1(logits - logits.max(axis=-1, keepdims=True)), 0.0)
    mean = x.sum(axis=-1, keepdims=True) / count
    above = np.where(there, (x - mean) / (count * (1 + mean)), 0.0)
    return np.where(there, 1 / count + above, 0.0), above


def gaussian_embeddings(corpus: TokenCorpus, d: int, *, rng: Rng) -> Embeddings:
    """The start of paper A in coordinates: `E_s, p ~ N(0, I/d)` independently, v the first unit vector."""
    rng = generator(rng)
    if d < 1:
        raise ValueError(f"d must be at least 1, got {d}")
    vectors = rng.standard_normal((corpus.size + 1, d)) / np.sqrt(d)
    return Embeddings.of(corpus, vectors[:-1], vectors[-1], np.eye(1, d)[0])


def wishart_embeddings(corpus: TokenCorpus, d: int | float, *, rng: Rng) -> Embeddings:
    """The start of paper A in any dimension, drawn exactly by its Gram matrix and written in m + 2 coordinates.

    The components along v are independent N(0, 1/d). What is orthogonal to v has a Wishart matrix with d - 1 degrees of
    freedom, whose triangular factor is drawn by Bartlett's decomposition: chi variates on the diagonal, normals below.
    The factor's rows are the vectors themselves in an orthonormal frame (v, then p, then the tokens), so entries near 1
    and entries near d^(-1/2) stand side by side and neither drowns the other.

    **Arguments**
    - `d`: the dimension, an integer or a float up to 1e300, at least m + 2.
    """
    rng = generator(rng)
    m = corpus.size
    if not m + 2 <= d <= 10**300:
        raise ValueError(f"d must lie between |S| + 2 = {m + 2} and 1e300, got {d}; below, use gaussian_embeddings")
    scale = np.sqrt(float(d))
    freedom = float(d) - 1 - np.arange(m + 1)
    factor = np.tril(rng.standard_normal((m + 1, m + 1)), -1)
    factor[np.diag_indices(m + 1)] = np.sqrt(rng.chisquare(freedom))
    along = rng.standard_normal(m + 1)
    rows = np.column_stack([along, factor]) / scale  # the prompt first, then the tokens
    return Embeddings.of(corpus, rows[1:], rows[0], np.eye(1, m + 2)[0])
