"""The random data of *Transformers as Support Vector Machines*, by the law and the seeds of its public code.

They are drawn in single precision in the order v, Y, X, Z (or V, X, Y, Z), each vector divided by its length, and then
taken for doubles: `TorchNormals` draws the same numbers without torch.

Torch's generator is the Mersenne twister, seeded by a word. Sixteen numbers or more are drawn in single precision, by
Box and Muller's transform of blocks of eight pairs; fewer one after another in double precision, where the second of a
pair waits for the next call. The two agree with torch's to the rounding of single precision (its logarithm and cosine
are those of the processor's vector unit).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.problem.attention_problems import cross_attention
from tokenmargin.problem.token_problem import TokenProblem

_BLOCK = 16


class TorchNormals:
    """`torch.Generator().manual_seed(seed)`, asked for normal numbers.

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
        values = np.array([self._one() for _ in range(size)]) if size < _BLOCK else self._many(size)
        return values.astype(np.float32).reshape(shape)

    def _words(self, count: int) -> Int[Array, " count"]:
        return self._twister.random_raw(count).astype(np.int64)

    def _one(self) -> float:
        if self._waiting is not None:
            value, self._waiting = self._waiting, None
            return value
        high, low = self._words(4).reshape(2, 2).T
        turn, share = (((high << 32) | low) & (2**53 - 1)) / 2.0**53
        radius = np.sqrt(-2 * np.log1p(-share))
        self._waiting = float(radius * np.sin(2 * np.pi * turn))
        return float(radius * np.cos(2 * np.pi * turn))

    def _many(self, size: int) -> Float[Array, " size"]:
        values = self._uniform(size)
        whole = size - size % _BLOCK
        values[:whole] = _box_muller(values[:whole])
        if size % _BLOCK:  # the last block is drawn anew, and overlaps the one before
            values[-_BLOCK:] = _box_muller(self._uniform(_BLOCK))
        return values

    def _uniform(self, size: int) -> Float[Array, " size"]:
        return ((self._words(size) & (2**24 - 1)) / 2.0**24).astype(np.float32)


def _box_muller(uniform: Float[Array, " size"]) -> Float[Array, " size"]:
    pairs = uniform.reshape(-1, 2, _BLOCK // 2)
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
