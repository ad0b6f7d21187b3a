"""Self-attention and cross-attention as problems in the matrix W: `f = sum_t softmax(z' W k_t) <v, x_t>`.

Every output is an input of the problem: a sequence read from several positions, or by several queries, gives as many,
all with the same tokens. `problem.as_matrix` turns solutions into matrices.

The random data of *Transformers as Support Vector Machines* are here too, by the law and the seeds of its public code.
They are drawn in single precision in the order v, Y, X, Z (or V, X, Y, Z), each vector divided by its length, and then
taken for doubles: `TorchNormals` draws the same numbers without torch.

Torch's generator is the Mersenne twister, seeded by a word. Sixteen numbers or more are drawn in single precision, by
Box and Muller's transform of blocks of eight pairs; fewer one after another in double precision, where the second of a
pair waits for the next call. The two agree with torch's to the rounding of single precision (its logarithm and cosine
are those of the processor's vector unit).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from tokenmargin.problem.abstract_geometry import MaybeArray, as_array
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.matrix_geometry import bilinear
from tokenmargin.problem.token_problem import TokenProblem

_BLOCK = 16


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


class TorchNormals:
    """The normal numbers of `torch.Generator().manual_seed(seed)`.

    >>> TorchNormals(0).draw(2).round(4)
    array([ 1.541 , -0.2934], dtype=float32)
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**32:
            raise ValueError(f"seed must lie in 0..{2**32 - 1}, got {seed}")
        key = np.empty(624, dtype=np.uint32)
        key[0] = seed
        for j in range(1, 624):
            before = int(key[j - 1])
            key[j] = (1812433253 * (before ^ before >> 30) + j) & 0xFFFFFFFF
        self._twister = np.random.MT19937()
        self._twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
        self._waiting: float | None = None

    def draw(self, *shape: int) -> Float[Array, "..."]:
        """The next numbers, as `torch.randn(shape)` in single precision."""
        size = int(np.prod(shape))
        values = (
            np.array([self._next_normal() for _ in range(size)]) if size < _BLOCK else self._blocks_of_normals(size)
        )
        return values.astype(np.float32).reshape(shape)

    def _words(self, count: int) -> Int[Array, " count"]:
        """The next words of the twister, of 32 bits each."""
        return self._twister.random_raw(count).astype(np.int64)

    def _next_normal(self) -> float:
        if self._waiting is not None:
            value, self._waiting = self._waiting, None
            return value
        # Two words make a number of 64 bits, the first its upper half, of which torch takes the lower 53: a double.
        high, low = self._words(4).reshape(2, 2).T
        turn, share = (((high << 32) | low) & (2**53 - 1)) / 2.0**53
        radius = np.sqrt(-2 * np.log1p(-share))
        self._waiting = float(radius * np.sin(2 * np.pi * turn))
        return float(radius * np.cos(2 * np.pi * turn))

    def _blocks_of_normals(self, size: int) -> Float[Array, " size"]:
        values = self._uniform(size)
        whole = size - size % _BLOCK
        values[:whole] = _box_muller(values[:whole])
        if size % _BLOCK:  # the last block is drawn anew, and overlaps the one before
            values[-_BLOCK:] = _box_muller(self._uniform(_BLOCK))
        return values

    def _uniform(self, size: int) -> Float[Array, " size"]:
        """One word a number: of its 32 bits the lower 24, which single precision holds exactly."""
        return ((self._words(size) & (2**24 - 1)) / 2.0**24).astype(np.float32)


def _box_muller(uniform: Float[Array, " size"]) -> Float[Array, " size"]:
    pairs = uniform.reshape(-1, 2, _BLOCK // 2)  # of each block, the first half for radii, the second for turns
    radius, turn = np.sqrt(-2 * np.log(1 - pairs[:, 0])), np.float32(2 * np.pi) * pairs[:, 1]
    return np.stack([radius * np.cos(turn), radius * np.sin(turn)], axis=1).ravel()


def _unit(vectors: Float[Array, "... d"]) -> Float[Array, "... d"]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def svm_problem(seed: int, *, n: int = 6, T: int = 8, d: int = 10) -> TokenProblem:
    """Cross-attention on unit tokens, unit queries and a unit head, all uniform on the sphere; random labels.

    >>> problem = svm_problem(0)
    >>> problem.n, problem.T, problem.keys.matrix_shape
    (6, 8, (10, 10))
    """
    draw = TorchNormals(seed).draw
    head = _unit(draw(d))
    labels = np.where(draw(n) > 0, 1.0, -1.0)
    tokens, queries = _unit(draw(n, T, d)), _unit(draw(n, d))
    return cross_attention(*(a.astype(float) for a in (tokens, queries, labels)), head=head.astype(float))


class ReluData(NamedTuple):
    """Cross-attention before a layer of rectified units: `f = sum_j relu(x V)_j` of the attended token x."""

    problem: TokenProblem
    layer: Float[Array, "d d"]


def svm_relu_data(seed: int, *, n: int = 3, T: int = 4, d: int = 4) -> ReluData:
    """The data of its experiment on several tokens; the problem's scores are those of its tokens attended alone."""
    draw = TorchNormals(seed).draw
    layer = draw(d, d)
    layer /= np.linalg.norm(layer)
    tokens = _unit(draw(n, T, d)).astype(float)
    labels = np.where(draw(n) > 0, 1.0, -1.0)
    queries = _unit(draw(n, d)).astype(float)
    layer = layer.astype(float)
    scores = labels[:, None] * np.maximum(tokens @ layer, 0.0).sum(axis=-1)
    return ReluData(cross_attention(tokens, queries, labels, scores=scores), layer)


def svm_path_data(seed: int) -> TokenProblem:
    """The problems in the plane of its pictures of global convergence: seed 1 (n = 2, T = 3) or 3 (n = 2, T = 5)."""
    if seed not in (1, 3):
        raise ValueError(f"the pictures have the seeds 1 and 3, got {seed}")
    draw = TorchNormals(seed).draw
    head = _unit(draw(2)).astype(float)
    if seed == 1:
        tokens = np.float32(0.3) * draw(2, 3, 2)
        tokens += np.array([[[-1, 0]], [[1, 0]]], dtype=np.float32)
    else:
        tokens = np.float32(0.5) * draw(2, 5, 2)
        tokens[:, 0] = [[1, 0.5], [1, -0.5]]
        tokens[:, 1:] += np.array([-1, 0], dtype=np.float32)
    return cross_attention(tokens.astype(float), _unit(draw(2, 2)).astype(float), [1, 1], head=head)
