"""Very many constraint rows, each the difference of two dictionary rows: products with them, without forming them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

BLOCK = 256
"""Columns of the normal matrix computed at once: only its lower triangle is."""
PIECE = 4096
"""Rows that are formed at a time, where the differences themselves are needed."""


class Proposal(NamedTuple):
    """What a method proposes: multipliers and a vector p, or multipliers that refute the constraints and no vector."""

    multipliers: Float[Array, " k"]
    vector: Float[Array, " d"] | None


class Differences:
    """The k rows `a_j = vectors[plus[j]] - vectors[minus[j]]`.

    With P the incidence matrix of the pairs, `A = P E`, so products cost as much as the dictionary and not as the rows,
    and `A' D A = E' (P' D P) E` with a sparse matrix in the middle: the weighted Laplacian of the graph of pairs.
    """

    def __init__(self, vectors: Float[Array, "m d"], *, plus: Int[Array, " k"], minus: Int[Array, " k"]) -> None:
        used, index = np.unique(np.concatenate([plus, minus]), return_inverse=True)
        self.plus, self.minus = index[: len(plus)], index[len(plus) :]
        self.vectors = vectors if len(used) == len(vectors) else vectors[used]

    def __len__(self) -> int:
        return len(self.plus)

    def only(self, which: Int[Array, " c"]) -> Differences:
        """Some of the rows."""
        return Differences(self.vectors, plus=self.plus[which], minus=self.minus[which])

    def dense(self, which: Int[Array, " c"] | slice) -> Float[Array, "c d"]:
        """Some of the rows, formed."""
        return self.vectors[self.plus[which]] - self.vectors[self.minus[which]]

    def lengths(self) -> Float[Array, " k"]:
        """The norm of each row."""
        return np.concatenate(
            [np.linalg.norm(self.dense(slice(first, first + PIECE)), axis=1) for first in range(0, len(self), PIECE)]
        )

    def combined(self, weights: Float[Array, " k"]) -> Float[Array, " d"]:
        """`A' weights` from the rows themselves: slower than `adjoint`, and exact where tokens nearly coincide."""
        total = np.zeros(self.vectors.shape[1])
        for first in range(0, len(self), PIECE):
            total += weights[first : first + PIECE] @ self.dense(slice(first, first + PIECE))
        return total

    def times(self, q: Float[Array, " d"]) -> Float[Array, " k"]:
        """`A q`."""
        logits = self.vectors @ q
        return logits[self.plus] - logits[self.minus]

    def adjoint(self, weights: Float[Array, " k"]) -> Float[Array, " d"]:
        """`A' weights`."""
        m = len(self.vectors)
        return (np.bincount(self.plus, weights, m) - np.bincount(self.minus, weights, m)) @ self.vectors

    def covariance(self, weights: Float[Array, " k"], mean: Float[Array, " d"] | None = None) -> Float[Array, "d d"]:
        """The lower triangle of `A' diag(weights) A`, less `sum(weights) mean mean'`; the rest is not set."""
        from scipy.sparse import csr_array  # loaded where a corpus needs it: single problems do without

        m, d = self.vectors.shape
        coupling = csr_array((weights, (self.plus, self.minus)), shape=(m, m))
        coupling = coupling + coupling.T
        degree = np.bincount(self.plus, weights, m) + np.bincount(self.minus, weights, m)
        matrix, total = np.empty((d, d)), weights.sum()
        for first in range(0, d, BLOCK):
            block = np.ascontiguousarray(self.vectors[:, first : first + BLOCK])
            flow = degree[:, None] * block - coupling @ block
            matrix[first:, first : first + BLOCK] = self.vectors[:, first:].T @ flow
            if mean is not None:
                matrix[first:, first : first + BLOCK] -= np.outer(total * mean[first:], mean[first : first + BLOCK])
        return matrix

    def gap(self, multipliers: Float[Array, " k"], q: Float[Array, " d"] | None = None) -> float:
        """How far `|p|`, for p along q (by default `A' multipliers`), may lie above the least norm, relatively.

        `|q| / min A q` is the norm of a feasible vector, and none undercuts `sum(multipliers) / |A' multipliers|`.
        """
        combined = self.adjoint(multipliers)
        q = combined if q is None else q
        least = float(self.times(q).min())
        if least <= 0:
            return np.inf
        bound = float(multipliers.sum()) * least
        return max(float(np.linalg.norm(q)) * float(np.linalg.norm(combined)) / bound - 1, 0.0)
