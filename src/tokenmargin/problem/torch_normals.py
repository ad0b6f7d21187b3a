"""The normal numbers that `torch.randn` draws on a CPU, in numpy: data that others made by a seed, without their tools.

Torch's generator is the Mersenne twister, seeded by a word. Sixteen numbers or more are drawn in single precision, by
Box and Muller's transform of blocks of eight pairs; fewer one after another in double precision, where the second of a
pair waits for the next call. The two agree with torch's to the rounding of single precision (its logarithm and cosine
are those of the processor's vector unit).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

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
