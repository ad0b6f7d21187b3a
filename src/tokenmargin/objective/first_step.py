"""The first step of paper A: one gradient step on all embeddings teaches them the signed frequencies.

After it, `E_s = E_s^0 + (eta_0 / 2) alpha_s v + err_s` and `p = p^0 + err_p` (5), with errors of at most
`11 eta_0 d^(-1/4)` with high probability (6). Sequences of different lengths are allowed: alpha_s is then the
`signed_share` of the corpus.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.objective.embedding import EmbeddingGradient, EmbeddingObjective, Embeddings


@dataclass(frozen=True, eq=False)
class FirstStep:
    """The embeddings before and after the first step, and the gradient that moved them."""

    before: Embeddings
    after: Embeddings
    gradient: EmbeddingGradient
    eta: float

    def __repr__(self) -> str:
        return f"FirstStep(eta={self.eta:g}, {self.before.corpus!r}, largest error {self.error:.3g})"

    def token_errors(self, beside: Float[Array, " m"] | float = 0.0) -> Float[Array, " m"]:
        """`|err_s|` of the decomposition (5): the length of `eta_0 (c_s p + (rest_s + beside_s) v)`.

        - `beside`: what half of another alpha_s than the gradient's own leaves over.
        """
        c, r = self.eta * self.gradient.c, self.eta * (self.gradient.rest + beside)
        p, v = self.before.prompt, self.before.head
        inner = self.before.geometry.inner
        squared = c**2 * inner(p, p) + 2 * c * r * inner(p, v) + r**2 * inner(v, v)
        return np.sqrt(np.maximum(squared, 0.0))

    @property
    def prompt_error(self) -> float:
        """`|err_p|` of the decomposition (5): the length of `eta_0 sum_s c_s E_s`."""
        coefficients = np.concatenate([self.eta * self.gradient.c, [0.0, 0.0]])
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

    >>> from tokenmargin.problem.corpus_generators import selective_corpus
    >>> from tokenmargin.objective.embedding import wishart_embeddings
    >>> rng = np.random.default_rng(0)
    >>> start = wishart_embeddings(selective_corpus(4, 3, rng=rng), 5.4e59, rng=rng)
    >>> step = first_step(start, eta=576.0)
    >>> step.error < 1e-26 < step.bound(5.4e59)
    True
    """
    objective = EmbeddingObjective(embeddings.corpus)
    gradient = objective.gradient(embeddings)
    return FirstStep(embeddings, embeddings.moved(eta * gradient.c, eta * gradient.e), gradient, eta)
