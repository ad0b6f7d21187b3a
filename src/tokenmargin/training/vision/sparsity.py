"""How sparse attention is: measures of any attention weights, and the size of the weights that make it so.

Attention weights are probability vectors along the last axis; the axes before it (layers, inputs, heads) are kept.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array


def soft_sparsity(weights: Float[Array, "*axes T"]) -> Float[Array, "*axes"]:
    """Effective number of tokens attended to, `|s|_1 / |s|_2^2`: T for uniform weights, 1 for a single token.

    Scaled weights need no care: `|s|_1^2 / |s|_2^2` is computed, which is the same when they sum to one.

    >>> soft_sparsity(np.array([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]]))
    array([4., 1.])

    *Reference*: Max-Margin Token Selection in Attention Mechanism, section 4.
    """
    weights = np.asarray(weights, dtype=float)
    return weights.sum(axis=-1) ** 2 / (weights**2).sum(axis=-1)


def attention_entropy(weights: Float[Array, "*axes T"]) -> Float[Array, "*axes"]:
    """`-sum_t s_t log s_t` in nats: log T for uniform weights, 0 for a single token.

    >>> float(attention_entropy(np.array([0.5, 0.5, 0.0])) / np.log(2))
    1.0
    """
    weights = np.asarray(weights, dtype=float)
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(axis=-1) + 0.0


def top_mass(weights: Float[Array, "*axes T"], k: int) -> Float[Array, "*axes"]:
    """Mass of the k largest weights.

    >>> float(top_mass(np.array([0.1, 0.6, 0.3]), 2).round(12))
    0.9
    """
    weights = np.asarray(weights, dtype=float)
    if not 1 <= k <= weights.shape[-1]:
        raise ValueError(f"k must lie in 1..{weights.shape[-1]}, the number of tokens, got {k}")
    return np.partition(weights, weights.shape[-1] - k, axis=-1)[..., -k:].sum(axis=-1)


def without_token(weights: Float[Array, "*axes T"], token: int = 0) -> Float[Array, "*axes U"]:
    """The weights on all other tokens, made to sum to one: attention of [CLS] to the patches alone.

    NaN where the token attends to nothing but itself.

    >>> without_token(np.array([0.5, 0.25, 0.25]))
    array([0.5, 0.5])
    """
    rest = np.delete(np.asarray(weights, dtype=float), token, axis=-1)
    total = rest.sum(axis=-1, keepdims=True)
    return np.divide(rest, total, out=np.full_like(rest, np.nan), where=total > 0)


def key_query_norms(
    query: Float[Array, "out d"], key: Float[Array, "out d"], *, heads: int
) -> tuple[Float[Array, " heads"], float]:
    """Frobenius norms of the key-query product: `|Q_h' K_h|_F` of every head, and `|Q' K|_F` of all heads together.

    The logits of head h are `x' Q_h' K_h y / sqrt(out / heads)`, where `Q_h` is the h-th block of rows of Q. The
    products, of shape (d, d), are not formed: `|Q' K|_F^2 = <Q Q', K K'>`.

    **Arguments**
    - `query`, `key`: the weights of two linear layers, as torch keeps them (outputs first); biases have no part.
    - `heads`: how many.
    """
    query, key = np.asarray(query, dtype=float), np.asarray(key, dtype=float)
    if query.shape != key.shape or query.ndim != 2 or len(query) % heads:
        raise ValueError(
            f"query and key weights must have one shape (outputs, d) with outputs a multiple of the {heads} heads, "
            f"got {query.shape} and {key.shape}"
        )
    grams = query @ query.T, key @ key.T
    squares = grams[0] * grams[1]
    size = len(query) // heads
    blocks = squares.reshape(heads, size, heads, size)
    per_head = np.array([blocks[h, :, h, :].sum() for h in range(heads)])
    return np.sqrt(np.maximum(per_head, 0.0)), float(np.sqrt(max(squares.sum(), 0.0)))
