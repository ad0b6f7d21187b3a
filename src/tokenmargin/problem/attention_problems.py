"""Self-attention and cross-attention as problems in the matrix W: `f = sum_t softmax(z' W k_t) <v, x_t>`.

Every output is an input of the problem: a sequence read from several positions, or by several queries, gives as many,
all with the same tokens. `problem.as_matrix` makes matrices of what is found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from tokenmargin.problem.abstract_geometry import MaybeArray, as_array
from tokenmargin.problem.bilinear import bilinear
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem


def cross_attention(
    tokens: ArrayLike,
    queries: ArrayLike,
    labels: ArrayLike,
    *,
    head: MaybeArray = None,
    scores: MaybeArray = None,
    values: MaybeArray = None,
    mask: MaybeArray = None,
) -> TokenProblem:
    """Train W in the logits `z' W k_t` of given queries.

    **Arguments**
    - `tokens`: the keys, shape (n, T, d); also the values, unless those are given.
    - `queries`: one for all inputs (q,), one per input (n, q), or several per input (n, P, q). The problem then has n P
      inputs, in the order of `queries.reshape(n * P, q)`.
    - `labels`: -1 or +1, shape (n,) or (n, P).
    - `head`: the vector v; or `scores`, shape (n, T) or (n, P, T).
    - `values`: shape (n, T, e).
    - `mask`: which tokens are there, shape (n, T) or, where the queries see different ones, (n, P, T).

    >>> problem = cross_attention([[[0.0, 1.0], [1.0, 0.0]]], [[1.0, 1.0, 0.0]], [1], head=[1.0, 0.0])
    >>> from tokenmargin.margin import max_margin
    >>> problem.as_matrix(max_margin(problem, [1]).vector).round(6) + 0.0
    array([[ 0.25, -0.25],
           [ 0.25, -0.25],
           [ 0.  ,  0.  ]])
    """
    tokens, queries = as_array("tokens", tokens), as_array("queries", queries)
    if tokens.ndim != 3 or 0 in tokens.shape or tokens.dtype.kind not in "fiub":
        raise ValueError(
            f"tokens must be numbers of shape (n, T, d) with n, T, d >= 1, got {tokens.dtype} {tokens.shape}"
        )
    n, T, _ = tokens.shape
    if queries.ndim not in (1, 2, 3) or (queries.ndim > 1 and len(queries) != n) or 0 in queries.shape:
        raise ValueError(f"queries must have shape (q,), (n, q) or (n, P, q) with n = {n}, got {queries.shape}")
    outputs = queries.shape[1] if queries.ndim == 3 else 1
    visible = _per_output("mask", np.ones((n, T), dtype=bool) if mask is None else mask, (n, outputs), (T,))
    index = np.repeat(np.arange(n * T).reshape(n, T), outputs, axis=0)

    def laid_out(vectors: Array) -> Coordinates:
        seen = np.asarray(visible.reshape(n, outputs, T).any(axis=1))  # what nobody sees may be anything
        return Coordinates(np.where(seen[..., None], vectors, 0).reshape(n * T, -1), index, visible)

    keys = laid_out(tokens)
    given = None if values is None else as_array("values", values)
    if given is not None and given.shape[:2] != (n, T):
        raise ValueError(f"values must have shape (n, T, e) = ({n}, {T}, e), as the tokens, got {given.shape}")
    return TokenProblem(
        bilinear(keys, queries if queries.ndim == 1 else queries.reshape(n * outputs, -1)),
        _per_output("labels", labels, (n, outputs), ()),
        keys if given is None else laid_out(given),
        head=head,
        scores=None if scores is None else _per_output("scores", scores, (n, outputs), (T,)),
    )


def self_attention(
    tokens: ArrayLike,
    labels: ArrayLike,
    *,
    position: int | Sequence[int] | None = -1,
    causal: bool = False,
    head: MaybeArray = None,
    scores: MaybeArray = None,
    mask: MaybeArray = None,
) -> TokenProblem:
    """Train W in the logits `x_s' W x_t` of one sequence of tokens with itself.

    **Arguments**
    - `tokens`: keys and values, shape (n, T, d).
    - `labels`: -1 or +1, shape (n,), or one per output, (n, P).
    - `position`: where the query s stands, counted among the tokens that are there: the last (-1) by default, as in
      next-token prediction; several positions for several outputs P; None for every position. The problem then has n P
      inputs, sequence after sequence; under a mask, one for each token that is there.
    - `causal`: whether a query sees only the tokens up to its own.
    - `head`: the vector v; or `scores`, shape (n, T) or (n, P, T).
    - `mask`: which tokens are there, shape (n, T).

    >>> sequences = np.random.default_rng(0).standard_normal((5, 4, 3))
    >>> self_attention(sequences, [1, -1, 1, -1, 1], head=[1.0, 0.0, 0.0]).keys.matrix_shape
    (3, 3)
    >>> self_attention(sequences, [1, -1, 1, -1, 1], head=[1.0, 0.0, 0.0], position=None).n
    20
    """
    tokens = as_array("tokens", tokens)
    if tokens.ndim != 3 or 0 in tokens.shape:
        raise ValueError(f"tokens must have shape (n, T, d) with n, T, d >= 1, got {tokens.shape}")
    n, T = tokens.shape[:2]
    there = np.ones((n, T), dtype=bool) if mask is None else as_array("mask", mask)
    if there.shape != (n, T) or there.dtype != bool:
        raise ValueError(f"mask must be boolean of shape (n, T) = ({n}, {T}), got {there.dtype} {there.shape}")
    inputs, places, outputs = _query_places(there, position)
    each = (n, T if position is None else np.size(position))

    def of_query(name: str, array: ArrayLike, tail: tuple[int, ...]) -> Array:
        return _per_output(name, array, each, tail).reshape(*each, *tail)[inputs, outputs]

    return cross_attention(
        tokens[inputs],
        tokens[inputs, places],
        of_query("labels", labels, ()),
        head=head,
        scores=None if scores is None else of_query("scores", scores, (T,)),
        mask=there[inputs] & (np.arange(T) <= places[:, None]) if causal else there[inputs],
    )


def _query_places(
    there: Bool[Array, "n T"], position: int | Sequence[int] | None
) -> tuple[Int[Array, " m"], Int[Array, " m"], Int[Array, " m"]]:
    """Sequence, place and number of every query."""
    if position is None:
        inputs, places = there.nonzero()
        return inputs, places, places
    wanted = np.atleast_1d(np.asarray(position))
    lengths = there.sum(axis=1)
    if wanted.dtype.kind not in "iu" or (wanted >= lengths.min()).any() or (wanted < -lengths.min()).any():
        raise ValueError(
            f"position must hold integers from {-lengths.min()} to {lengths.min() - 1} (the shortest sequence has "
            f"{lengths.min()} tokens), got {position}; None asks for every position"
        )
    inputs = np.repeat(np.arange(len(there)), len(wanted))
    outputs = np.tile(np.arange(len(wanted)), len(there))
    order = np.argsort(~there, axis=1, kind="stable")  # the tokens that are there come first
    places = order[inputs, wanted[outputs] % lengths[inputs]]
    return inputs, places, outputs


def _per_output(name: str, array: ArrayLike, outputs: tuple[int, int], tail: tuple[int, ...]) -> Array:
    """One entry of shape `tail` per output: given so, (n, P, ...), or per input, (n, ...)."""
    given, (n, each) = as_array(name, array), outputs
    if given.shape == (n, *tail):
        return np.repeat(given, each, axis=0)
    if given.shape != (n, each, *tail):
        shapes = " or ".join(dict.fromkeys((str((n, *tail)), str((n, each, *tail)))))
        raise ValueError(f"{name} must have shape {shapes}, got {given.shape}; one entry per input or per query")
    return given.reshape(n * each, *tail)
