"""Trained embeddings: every vector of paper A's model in one dictionary, its risk, its gradient, and the first step.

The model is `f(X) = sum_t q_t <E_{x_t}, v>` with `q = softmax(<E_{x_t}, p>)`. The risk depends on the embeddings only
through `a = E p` and `b = E v`, so its gradient in `E_s` lies in the plane of p and v:

    -dL/dE_s = c_s p + e_s v,    -dL/dp = sum_s c_s E_s,    -dL/dv = sum_s e_s E_s,

with one number `c_s` and one `e_s` per token. A step costs O(m d + n T), in Gram space O(m^2 + n T).

At the start, in dimension d, everything that matters is of size d^(-1/2): 1e-30 where Theorem 5 holds. `e_s` is
therefore never formed as a sum of numbers near 1/(2T); it is kept as `alpha_s / 2` (the signed share, exact), plus a
small rest in which nothing cancels. The first step of training teaches the embeddings how often a token comes with each
label: after it, `E_s = E_s^0 + (eta_0 / 2) alpha_s v + err_s` and `p = p^0 + err_p` (5), with errors of at most
`11 eta_0 d^(-1/4)` with high probability (6).

With k classes the model is `F(X) = sum_t q_t V' E_{x_t}` with a head of k columns `v_c`; the gradient in an embedding
is `c_s p + sum_c e_sc v_c`, and at a start with small overlaps `e_sc` is the *class share*

    alpha_sc = mean_i (1[y_i = c] - 1/k) (share of token s in sequence i),

up to a rest in which nothing cancels. The shares of a token sum to zero over the classes. With two classes
`alpha_s1 = -alpha_s0` is half of (3) of paper A, and `v_1 - v_0` is its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.special import softmax

from tokenmargin._notebook import one_line
from tokenmargin._statistics import Rng, generator
from tokenmargin.objective.losses import LogisticLoss
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.label_problems import checked_classes
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


@dataclass(frozen=True, eq=False)
class FirstStep:
    """The embeddings before and after the first step, and the gradient that moved them."""

    before: Embeddings
    after: Embeddings
    descent: EmbeddingDescent
    eta: float

    def __repr__(self) -> str:
        return f"FirstStep(eta={self.eta:g}, {self.before.corpus!r}, largest error {self.error:.3g})"

    def token_errors(self, beside: Float[Array, " m"] | float = 0.0) -> Float[Array, " m"]:
        """`|err_s|` of the decomposition (5): the length of `eta_0 (c_s p + (rest_s + beside_s) v)`.

        - `beside`: what half of another alpha_s than the gradient's own leaves over.
        """
        c, r = self.eta * self.descent.c, self.eta * (self.descent.rest + beside)
        p, v = self.before.prompt, self.before.head
        inner = self.before.geometry.inner
        squared = c**2 * inner(p, p) + 2 * c * r * inner(p, v) + r**2 * inner(v, v)
        return np.sqrt(np.maximum(squared, 0.0))

    @property
    def prompt_error(self) -> float:
        """`|err_p|` of the decomposition (5): the length of `eta_0 sum_s c_s E_s`."""
        coefficients = np.concatenate([self.eta * self.descent.c, [0.0, 0.0]])
        return float(self.before.geometry.norm(self.before.geometry.combine(coefficients)))

    @property
    def error(self) -> float:
        """The left-hand side of (6)."""
        return max(float(self.token_errors().max()), self.prompt_error)

    def bound(self, d: int | float) -> float:
        """The right-hand side of (6)."""
        return 11 * self.eta * float(d) ** -0.25


def first_step(embeddings: Embeddings, eta: float) -> FirstStep:
    """One gradient step of length `eta` on all tokens and the prompt (4).

    >>> from tokenmargin.problem.instances import selective_corpus
    >>> from tokenmargin.objective.embedding import wishart_embeddings
    >>> rng = np.random.default_rng(0)
    >>> start = wishart_embeddings(selective_corpus(4, 3, rng=rng), 5.4e59, rng=rng)
    >>> step = first_step(start, eta=576.0)
    >>> step.error < 1e-26 < step.bound(5.4e59)
    True
    """
    objective = EmbeddingObjective(embeddings.corpus)
    descent = objective.descent(embeddings)
    return FirstStep(embeddings, embeddings.after_step(eta * descent.c, eta * descent.e), descent, eta)


def class_shares(
    sequences: Sequence[Int[Array, " _"]], classes: Int[Array, " n"], size: int, k: int
) -> Float[Array, "m k"]:
    """`alpha_sc`: how much more of token s stands in sequences of class c than an even share of it.

    >>> class_shares([np.array([0, 1]), np.array([0, 2]), np.array([0, 3])], np.array([0, 1, 2]), 4, 3).round(3) + 0.0
    array([[ 0.   ,  0.   ,  0.   ],
           [ 0.111, -0.056, -0.056],
           [-0.056,  0.111, -0.056],
           [-0.056, -0.056,  0.111]])
    """
    counts = np.zeros((size, k))
    for sequence, label in zip(sequences, classes.tolist(), strict=True):
        counts[:, label] += np.bincount(sequence, minlength=size) / len(sequence)
    counts /= len(sequences)
    return np.asarray(counts - counts.mean(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class ClassFirstStep:
    """The decomposition of one step of length `eta` on all embeddings and the prompt; the heads stay.

    **Attributes**
    - `alpha`: the class shares; the step moves `E_s` by `eta (c_s p + sum_c (alpha_sc + rest_sc) v_c)`.
    - `rest`: what the overlaps of the start add to them.
    - `c`: the coefficients on the prompt; p moves by `eta sum_s c_s E_s`.
    - `tokens`, `prompt`: the vectors after the step.
    """

    eta: float
    alpha: Float[Array, "m k"]
    rest: Float[Array, "m k"]
    c: Float[Array, " m"]
    tokens: Float[Array, "m d"]
    prompt: Float[Array, " d"]
    token_errors: Float[Array, " m"]
    prompt_error: float


def class_first_step(
    sequences: Sequence[Int[Array, " _"]],
    classes: Int[Array, " n"],
    tokens: Float[Array, "m d"],
    prompt: Float[Array, " d"],
    heads: Float[Array, "d k"],
    eta: float,
) -> ClassFirstStep:
    """One gradient step of the mean cross-entropy on all embeddings and the prompt.

    **Arguments**
    - `sequences`: token ids, rows of `tokens`.
    - `classes`: 0..k-1 per sequence, each with an example.
    - `heads`: the head of each class, a column.
    """
    k, m = heads.shape[1], len(tokens)
    chosen = checked_classes(classes, len(sequences), k)
    if any(len(sequence) == 0 for sequence in sequences):
        raise ValueError("a sequence is empty; every sequence needs at least one token")
    a, b = tokens @ prompt, tokens @ heads
    rest, c = np.zeros((m, k)), np.zeros(m)
    for sequence, label in zip(sequences, chosen.tolist(), strict=True):
        q, above = weights_above_uniform(a[sequence])
        F = q @ b[sequence]
        g = (np.arange(k) == label) - softmax(F)
        # g = (1[c = y] - 1/k) + (1/k - softmax(F)), and q = 1/T + above: the first product is alpha's, exactly.
        bend = -weights_above_uniform(F)[1]
        even = (np.arange(k) == label) - 1 / k
        np.add.at(rest, sequence, np.outer(q, bend) + np.outer(above, even))
        np.add.at(c, sequence, q * ((b[sequence] - F) @ g))
    rest, c = rest / len(sequences), c / len(sequences)
    alpha = class_shares(sequences, chosen, m, k)
    errors = eta * (np.outer(c, prompt) + rest @ heads.T)
    drift = eta * (c @ tokens)
    return ClassFirstStep(
        eta, alpha, rest, c, tokens + eta * alpha @ heads.T + errors, prompt + drift,
        np.linalg.norm(errors, axis=1), float(np.linalg.norm(drift)),
    )  # fmt: skip
