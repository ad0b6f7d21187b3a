"""The families of random problems, many of one shape at a time: keys (B, n, T, d) and the selected tokens (B, n).

The same kinds as in `margin_families` and `edge_families`, drawn at the speed of the compiled solver.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Stack = tuple[np.ndarray, np.ndarray]


def _shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(1, 6)), int(rng.integers(2, 6)), int(rng.integers(1, 13))


def _posed(rng: np.random.Generator, keys: np.ndarray) -> Stack:
    """Random tokens, or (half of the time) those that a hidden direction selects, so that both answers occur."""
    B, n, T, d = keys.shape
    size = np.abs(keys).max(axis=(1, 2, 3), keepdims=True)
    hidden = np.einsum("bntd,bd->bnt", keys / np.where(size > 0, size, 1), rng.standard_normal((B, d))).argmax(axis=2)
    return keys, np.where(rng.random((B, 1)) < 0.5, rng.integers(0, T, (B, n)), hidden)


def _from_rows(rng: np.random.Generator, rows: np.ndarray) -> Stack:
    """Two tokens per input, one of them zero, so that the constraints are these rows exactly."""
    B, k, d = rows.shape
    selected, keys = rng.integers(0, 2, (B, k)), np.zeros((B, k, 2, d))
    np.put_along_axis(keys, selected[:, :, None, None], rows[:, :, None], axis=2)
    return keys, selected


def normal(rng: np.random.Generator, B: int) -> Stack:
    return _posed(rng, rng.standard_normal((B, *_shape(rng))))


def integers(rng: np.random.Generator, B: int) -> Stack:
    """Ties, repeats, opposite and dependent rows."""
    return _posed(rng, rng.integers(-2, 3, (B, *_shape(rng))).astype(float))


def _with_copies(rng: np.random.Generator, B: int, near: np.ndarray | float) -> Stack:
    keys = rng.standard_normal((B, *_shape(rng)))
    n, T = keys.shape[1:3]
    where, b, i = rng.integers(0, T, (B, n)), np.arange(B)[:, None], np.arange(n)
    away = near * rng.standard_normal((B, n, keys.shape[3]))
    keys[b, i, where] = keys[b, i, (where + 1) % T] + away
    return _posed(rng, keys)


def duplicates(rng: np.random.Generator, B: int) -> Stack:
    return _with_copies(rng, B, 0.0)


def near_duplicates(rng: np.random.Generator, B: int) -> Stack:
    return _with_copies(rng, B, 10.0 ** rng.uniform(-15, -3, (B, 1, 1)))


def rank_deficient(rng: np.random.Generator, B: int) -> Stack:
    n, T, d = _shape(rng)
    rank = int(rng.integers(1, d + 1))
    return _posed(rng, rng.standard_normal((B, n, T, rank)) @ rng.standard_normal((B, 1, rank, d)))


def scales(rng: np.random.Generator, B: int) -> Stack:
    """All keys of a problem multiplied by one number between 1e-150 and 1e150."""
    keys, selected = normal(rng, B) if rng.random() < 0.5 else integers(rng, B)
    return keys * 10.0 ** rng.uniform(-150, 150, (B, 1, 1, 1)), selected


def token_lengths(rng: np.random.Generator, B: int) -> Stack:
    """Tokens whose lengths differ by up to six orders of magnitude."""
    shape = (B, *_shape(rng))
    return _posed(rng, rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3, (*shape[:3], 1)))


def offset(rng: np.random.Generator, B: int) -> Stack:
    """A vector shared by all tokens, up to 1e8 times as long as their differences."""
    keys = rng.standard_normal((B, *_shape(rng)))
    return _posed(rng, keys + 10.0 ** rng.uniform(0, 8, (B, 1, 1, 1)) * rng.standard_normal((B, 1, 1, keys.shape[3])))


def nearly_parallel(rng: np.random.Generator, B: int) -> Stack:
    """Rows along one line, in both directions, up to 1e-2 to 1e-14 of their length."""
    k, d = int(rng.integers(2, 6)), int(rng.integers(2, 5))
    along = rng.choice([-1.0, 1.0], (B, k, 1)) * rng.uniform(0.5, 2, (B, k, 1)) * rng.standard_normal((B, 1, d))
    return _from_rows(rng, along + 10.0 ** rng.uniform(-14, -2, (B, 1, 1)) * rng.standard_normal((B, k, d)))


def by_a_hair(rng: np.random.Generator, B: int) -> Stack:
    """Rows on one side of a hyperplane by next to nothing, or one of them on the other side by as little."""
    rows = rng.standard_normal((B, int(rng.integers(2, 6)), int(rng.integers(2, 5))))
    hair = 10.0 ** rng.uniform(-18, -1, (B, 1)) * rng.uniform(0.5, 2, rows.shape[:2])
    rows[:, :, 0] = hair * np.where(rng.random(rows.shape[:2]) < 0.2, -1, 1)
    return _from_rows(rng, rows)


FAMILIES: tuple[Callable[[np.random.Generator, int], Stack], ...] = (
    normal, integers, duplicates, near_duplicates, rank_deficient, scales, token_lengths, offset, nearly_parallel,
    by_a_hair,
)  # fmt: skip
