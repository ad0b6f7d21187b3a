"""The one-layer model with embeddings of few dimensions: `[a b] = E [p v_1 ... v_k]` has rank d at most.

The decision depends on the embeddings only through a and b, and training keeps the values of a token over all classes
at mean zero. So embeddings of K dimensions, K the number of classes, attain every a and b that training can reach, and
a dimension of K or more restricts nothing. Below K, training goes on in the factors from the nearest matrix of rank d.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

__all__ = ["LowRank", "factor"]


def factor(
    logits: Float[Array, " m"], values: Float[Array, "m k"], d: int
) -> tuple[Float[Array, "m d"], Float[Array, " d"], Float[Array, "d k"]]:
    """E, p and v of dimension d with `E p` and `E v` nearest to logits and values; zeros fill what is not needed.

    >>> E, p, v = factor(np.array([1.0, 2.0]), np.array([[0.5], [-0.5]]), 3)
    >>> E.shape, (E @ p).round(12).tolist(), (E @ v).round(12).tolist()
    ((2, 3), [1.0, 2.0], [[0.5], [-0.5]])
    """
    U, S, W = np.linalg.svd(np.column_stack([logits, values]), full_matrices=False)
    rank = min(d, len(S))
    E, heads = np.zeros((len(logits), d)), np.zeros((d, values.shape[1] + 1))
    E[:, :rank], heads[:rank] = U[:, :rank] * S[:rank], W[:rank]
    return E, heads[:, 0], heads[:, 1:]


@dataclass(frozen=True, eq=False)
class LowRank:
    """The map from factors (E, p, v) to the flat unknowns of the solver: change of logits, values, and the sink's.

    **Attributes**
    - `base`: the logits that the change is counted from. `k`: columns of values. `d`: the dimension.
    """

    base: Float[Array, " m"]
    k: int
    d: int

    def _parts(self, factors: Array) -> tuple[Array, Array, Array, Array]:
        m, k, d = len(self.base), self.k, self.d
        E, p, v, sink = np.split(factors, np.cumsum([m * d, d, d * k]))
        return E.reshape(m, d), p, v.reshape(d, k), sink

    def start(self, flat: Array) -> Array:
        """The factors nearest to some unknowns."""
        m = len(self.base)
        change, values, sink = np.split(flat, [m, m + m * self.k])
        E, p, v = factor(self.base + change, values.reshape(m, self.k), self.d)
        return np.concatenate([E.ravel(), p, v.ravel(), sink])

    def lift(self, factors: Array) -> Array:
        """The unknowns that some factors stand for."""
        E, p, v, sink = self._parts(factors)
        return np.concatenate([E @ p - self.base, (E @ v).ravel(), sink])

    def through(self, objective: Callable[[Array], tuple[float, Array]], factors: Array) -> tuple[float, Array]:
        """An objective of the unknowns, and its gradient, at some factors."""
        m = len(self.base)
        E, p, v, _ = self._parts(factors)
        loss, slope = objective(self.lift(factors))
        along, across, sink = np.split(slope, [m, m + m * self.k])
        across = across.reshape(m, self.k)
        return loss, np.concatenate(
            [(np.outer(along, p) + across @ v.T).ravel(), E.T @ along, (E.T @ across).ravel(), sink]
        )
