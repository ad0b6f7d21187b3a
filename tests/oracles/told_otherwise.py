"""A problem told otherwise: scaled, shifted, turned, reordered, every input twice. Its limits must be the same.

Shared by `tests/limits/test_invariance.py` and `benchmarks/invariance.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tokenmargin.limits.limit import limit_of
from tokenmargin.margin import atlas
from tokenmargin.problem.token_problem import TokenProblem


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.random.Generator]:
    """Keys and scores, in turn small integers (ties, repeats) and any numbers, and a start."""
    rng = np.random.default_rng([77, seed])
    n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(1, 4))
    keys = rng.integers(-2, 3, (n, T, d)) + 0.0 if seed % 2 else rng.normal(size=(n, T, d))
    scores = rng.integers(0, 3, (n, T)) + 0.0 if seed % 3 else rng.normal(size=(n, T))
    return keys, scores, rng.normal(size=d), rng


def told_otherwise(
    keys: np.ndarray, scores: np.ndarray, start: np.ndarray, rng: np.random.Generator
) -> Iterator[tuple[Any, ...]]:
    """Name, keys, scores, start, and the way back of a direction."""
    n, T, d = keys.shape
    turned, inputs, tokens = np.linalg.qr(rng.normal(size=(d, d)))[0], rng.permutation(n), rng.permutation(T)
    scale = float(rng.choice([1e-30, 1e-8, 1e8, 1e20]))
    yield "scaled", keys * scale, scores, start / scale, np.eye(d)
    yield "shifted", keys + rng.integers(-5, 6, (n, 1, d)), scores, start, np.eye(d)
    yield "turned", keys @ turned, scores, start @ turned, turned.T
    yield "reordered", keys[inputs][:, tokens], scores[inputs][:, tokens], start, np.eye(d)
    yield "twice", np.concatenate([keys, keys]), np.concatenate([scores, scores]), start, np.eye(d)


def answers(
    keys: np.ndarray, scores: np.ndarray, start: np.ndarray, back: np.ndarray | None = None
) -> tuple[bool, list[tuple[str, np.ndarray]], Any, np.ndarray]:
    """Whether the atlas is complete, its kinds and unit directions; the limit from a start, and its direction."""
    problem = TokenProblem.of(keys, np.ones(len(keys)), scores=scores)
    limit, found = limit_of(problem, start), atlas(problem)
    back = np.eye(keys.shape[2]) if back is None else back
    listed = [(entry.kind, unit(entry.solution.vector) @ back) for entry in found.limits]
    return found.complete, listed, limit, unit(limit.solution.vector) @ back


def unit(vector: np.ndarray) -> np.ndarray:
    """The vector at length one, whatever its scale; zero where there is none."""
    vector = vector / (np.abs(vector).max() or 1.0)
    return vector / (np.linalg.norm(vector) or 1.0)


def same(listed: list[tuple[str, np.ndarray]], others: list[tuple[str, np.ndarray]]) -> bool:
    """Whether two lists hold the same kinds and directions. Certified vectors are within 1e-9 of their length."""
    near = [[kind == other and np.linalg.norm(u - v) <= 1e-7 for other, v in others] for kind, u in listed]
    return len(listed) == len(others) and all(sum(row) == 1 for row in near)


def contradictions(seed: int) -> list[str]:
    """What a problem told otherwise says that it does not say itself."""
    keys, scores, start, rng = drawn(seed)
    complete, listed, limit, direction = answers(keys, scores, start)
    found = []
    for name, *others in told_otherwise(keys, scores, start, rng):
        other_complete, other_listed, other, other_direction = answers(*others)
        if complete and other_complete and not same(listed, other_listed):
            found.append(f"{name}: the atlas lists other limits")
        # Of what is undecided, the kinds of the directions that were compared are undecided too.
        if other.outcome != limit.outcome or (limit.outcome != "undecided" and other.kind != limit.kind):
            found.append(f"{name}: {limit} becomes {other}")
        # Both are certified to 1e-9 of their length.
        elif limit.outcome == "direction" and np.abs(other_direction - direction).max() > 1e-7:
            found.append(f"{name}: {direction} becomes {other_direction}")
    return found
