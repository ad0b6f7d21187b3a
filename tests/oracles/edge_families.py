"""Small max-margin problems at the edges of double precision: keys (n, T, d), selected tokens, few enough for exact
arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Posed = tuple[np.ndarray, np.ndarray]
Family = Callable[[np.random.Generator], Posed]


def _shape(rng: np.random.Generator, *, d: int | None = None) -> tuple[int, int, int]:
    return int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(1, 5)) if d is None else d


def _selected(rng: np.random.Generator, keys: np.ndarray) -> np.ndarray:
    """Random tokens, or (half of the time) those that a hidden direction selects, so that both answers occur."""
    if rng.random() < 0.5:
        return rng.integers(0, keys.shape[1], len(keys))
    return (keys / (np.abs(keys).max() or 1.0) @ rng.standard_normal(keys.shape[2])).argmax(axis=1)


def _posed(rng: np.random.Generator, keys: np.ndarray) -> Posed:
    return keys, _selected(rng, keys)


def _from_rows(rows: np.ndarray, rng: np.random.Generator) -> Posed:
    """Problems of two tokens per input whose constraints are these rows, exactly: the other token is zero."""
    keys = np.zeros((len(rows), 2, rows.shape[1]))
    selected = rng.integers(0, 2, len(rows))
    keys[np.arange(len(rows)), selected] = rows
    return keys, selected


def plain(rng: np.random.Generator) -> Posed:
    return _posed(rng, rng.standard_normal(_shape(rng)))


def integers(rng: np.random.Generator) -> Posed:
    """Ties, repeats, opposite and dependent rows."""
    return _posed(rng, rng.integers(-2, 3, _shape(rng)).astype(float))


def duplicates(rng: np.random.Generator) -> Posed:
    n, T, d = _shape(rng)
    keys = rng.standard_normal((n, T, d))
    keys[np.arange(n), rng.integers(0, T, n)] = keys[np.arange(n), rng.integers(0, T, n)]
    return _posed(rng, keys)


def near_duplicates(rng: np.random.Generator) -> Posed:
    n, T, d = _shape(rng)
    keys = rng.standard_normal((n, T, d))
    copies = rng.integers(0, T, n)
    near = 10.0 ** rng.uniform(-15, -3)
    keys[np.arange(n), copies] = keys[np.arange(n), (copies + 1) % T] + near * rng.standard_normal((n, d))
    return _posed(rng, keys)


def nearly_parallel(rng: np.random.Generator) -> Posed:
    """Rows along one line, in both directions, up to a little."""
    k, d = int(rng.integers(2, 6)), int(rng.integers(2, 5))
    line = rng.standard_normal(d)
    rows = rng.choice([-1.0, 1.0], (k, 1)) * rng.uniform(0.5, 2, (k, 1)) * line
    return _from_rows(rows + 10.0 ** rng.uniform(-17, -2) * rng.standard_normal((k, d)), rng)


def by_a_hair(rng: np.random.Generator) -> Posed:
    """Rows on one side of a hyperplane by next to nothing, or one of them on the other side by as little."""
    k, d = int(rng.integers(2, 6)), int(rng.integers(2, 5))
    rows = rng.standard_normal((k, d))
    hair = 10.0 ** rng.uniform(-18, -1)
    rows[:, 0] = hair * rng.uniform(0.5, 2, k) * np.where(rng.random(k) < 0.2, -1, 1)
    return _from_rows(rows, rng)


def tiny_margins(rng: np.random.Generator) -> Posed:
    """A row that is minus a combination of the others, one of them with a weight of next to nothing or less."""
    d = int(rng.integers(1, 5))
    rows = rng.standard_normal((d + 1, d))
    weights = rng.uniform(0.1, 1, d)
    weights[0] = rng.choice([-1, 1]) * 10.0 ** rng.uniform(-18, -1)
    rows[-1] = -weights @ rows[:-1]
    return _from_rows(rows, rng)


def scales(rng: np.random.Generator) -> Posed:
    """All keys multiplied by one number between 1e-300 and 1e300."""
    keys, selected = plain(rng) if rng.random() < 0.5 else integers(rng)
    return keys * 10.0 ** rng.uniform(-300, 300), selected


def lengths(rng: np.random.Generator) -> Posed:
    """Rows whose lengths differ by up to 1e20."""
    k, d = int(rng.integers(2, 6)), int(rng.integers(1, 5))
    return _from_rows(rng.standard_normal((k, d)) * 10.0 ** rng.uniform(0, 20, (k, 1)), rng)


def token_lengths(rng: np.random.Generator) -> Posed:
    """Tokens whose lengths differ by up to 1e12: their differences are rounded."""
    shape = _shape(rng)
    return _posed(rng, rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 6, (*shape[:2], 1)))


def coordinates(rng: np.random.Generator) -> Posed:
    """Coordinates of very different size."""
    shape = _shape(rng)
    return _posed(rng, rng.standard_normal(shape) * 10.0 ** rng.uniform(-8, 8, shape))


def one_token(rng: np.random.Generator) -> Posed:
    n, _, d = _shape(rng)
    return rng.standard_normal((n, 1, d)), np.zeros(n, dtype=int)


def one_dimension(rng: np.random.Generator) -> Posed:
    return _posed(rng, rng.standard_normal(_shape(rng, d=1)) * 10.0 ** rng.uniform(-5, 5))


def offset(rng: np.random.Generator) -> Posed:
    """A vector shared by all tokens, up to 1e8 times as long as their differences."""
    keys = rng.standard_normal(_shape(rng))
    return _posed(rng, keys + 10.0 ** rng.uniform(0, 8) * rng.standard_normal(keys.shape[2]))


def subspace(rng: np.random.Generator) -> Posed:
    """Tokens in fewer dimensions than coordinates, but for rounding."""
    n, T, d = _shape(rng, d=int(rng.integers(2, 5)))
    rank = int(rng.integers(1, d))
    return _posed(rng, rng.standard_normal((n, T, rank)) @ rng.standard_normal((rank, d)))


FAMILIES: tuple[Family, ...] = (
    plain, integers, duplicates, near_duplicates, nearly_parallel, by_a_hair, tiny_margins, scales, lengths,
    token_lengths, coordinates, one_token, one_dimension, offset, subspace,
)  # fmt: skip
