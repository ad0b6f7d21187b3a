"""Small problems with ties at the edges of double precision: keys (n, T, d) and sets of tokens that are to be level."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tests.oracles.edge_families import FAMILIES

Tied = tuple[np.ndarray, np.ndarray]
TiedFamily = Callable[[np.random.Generator], Tied]


def _rotated(rng: np.random.Generator, keys: np.ndarray) -> np.ndarray:
    """Turned, or by decimals, so that what depends on one another does so but for rounding; or as it is."""
    way, d = rng.integers(3), keys.shape[-1]
    if way == 0:
        return keys
    return keys / 10.0 if way == 1 else keys @ np.linalg.qr(rng.standard_normal((d, d)))[0]


def any_sets(rng: np.random.Generator) -> Tied:
    """Keys of every family of problems without ties, some of them copied, and random sets."""
    keys = FAMILIES[rng.integers(len(FAMILIES))](rng)[0].copy()
    n, T, _ = keys.shape
    if rng.random() < 0.4:
        keys[np.arange(n), rng.integers(0, T, n)] = keys[np.arange(n), rng.integers(0, T, n)]
    chosen = rng.random((n, T)) < rng.choice([0.2, 0.5])
    chosen[np.arange(n), rng.integers(0, T, n)] = True
    return keys, chosen


def _dependent(rng: np.random.Generator, near: float) -> Tied:
    """Tied tokens that differ along few directions, up to a little; the others stand beside them or behind."""
    n, d = int(rng.integers(1, 3)), int(rng.integers(2, 5))
    tied, others = int(rng.integers(3, 5)), int(rng.integers(1, 3))
    directions = rng.integers(-2, 3, (int(rng.integers(1, d)), d)).astype(float)
    level = rng.integers(-2, 3, (n, tied, len(directions))) @ directions + rng.integers(-1, 2, (n, 1, d))
    behind = rng.integers(-2, 3, (n, others, d)).astype(float)
    keys = _rotated(rng, np.concatenate([level, behind], axis=1))
    keys[:, :tied] += near * rng.standard_normal((n, tied, d)) * (rng.random((n, tied, 1)) < 0.5)
    chosen = np.zeros((n, tied + others), dtype=bool)
    chosen[:, :tied] = True
    return keys, chosen


def dependent_ties(rng: np.random.Generator) -> Tied:
    """Differences of tied tokens that depend on one another exactly, or but for rounding."""
    return _dependent(rng, 0.0)


def ties_that_nearly_agree(rng: np.random.Generator) -> Tied:
    return _dependent(rng, 10.0 ** rng.uniform(-18, -2))


def ties_of_differing_lengths(rng: np.random.Generator) -> Tied:
    keys, chosen = _dependent(rng, 10.0 ** rng.uniform(-18, -2))
    return keys * 10.0 ** rng.uniform(-6, 6, (*keys.shape[:2], 1)), chosen


TIED_FAMILIES: tuple[TiedFamily, ...] = (any_sets, dependent_ties, ties_that_nearly_agree, ties_of_differing_lengths)
