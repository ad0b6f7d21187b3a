"""The first gradient step on all embeddings: it teaches them how often a token comes with each label (paper A).

After it, `E_s = E_s^0 + (eta_0 / 2) alpha_s v + err_s` and `p = p^0 + err_p` (5), with errors of at most
`11 eta_0 d^(-1/4)` with high probability (6). Sequences of different lengths are allowed: alpha_s is then the
`signed_share` of the corpus.

With k classes the model is `F(X) = sum_t q_t V' E_{x_t}` with `q = softmax(<E_{x_t}, p>)` and a head of k columns
`v_c`. Its gradient in an embedding lies in the span of p and the heads,

    -dL/dE_s = c_s p + sum_c e_sc v_c,    -dL/dp = sum_s c_s E_s,

and at a start with small overlaps `e_sc` is the *class share*

    alpha_sc = mean_i (1[y_i = c] - 1/k) (share of token s in sequence i),

up to a rest in which nothing cancels. The shares of a token sum to zero over the classes. With two classes
`alpha_s1 = -alpha_s0` is half of (3) of paper A, and `v_1 - v_0` is its head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.special import softmax

from tokenmargin.objective.embedding import EmbeddingDescent, EmbeddingObjective, Embeddings, weights_above_uniform
from tokenmargin.problem.label_problems import checked_classes


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
