"""Random problems in the plane, of kinds that a page to play with meets: plain, tied, repeated, symmetric, extreme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Inputs = list[dict[str, Any]]
"""As the page knows a problem: a list of inputs, each with a label and tokens of x, y and score."""

__all__ = ["PLANE_FAMILIES", "Inputs"]


def _inputs(rows: list[tuple[np.ndarray, np.ndarray]]) -> Inputs:
    return [
        {
            "label": 1,
            "tokens": [
                {"x": float(x), "y": float(y), "score": float(score)}
                for (x, y), score in zip(keys, scores, strict=True)
            ],
        }
        for keys, scores in rows
    ]


def _sizes(rng: np.random.Generator) -> list[int]:
    """Tokens per input: one to four inputs of one to six tokens, at least one with a choice."""
    sizes = rng.integers(1, 7, size=rng.integers(1, 5)).tolist()
    return [*sizes[:-1], max(sizes[-1], 2)]


def plain(rng: np.random.Generator) -> Inputs:
    """Keys and scores in general position."""
    return _inputs([(rng.standard_normal((T, 2)), rng.standard_normal(T)) for T in _sizes(rng)])


def on_the_circle(rng: np.random.Generator) -> Inputs:
    """Keys on the unit circle, scores of a linear head: the data of Figure 9."""
    turns = [rng.uniform(0, 2 * np.pi, T) for T in _sizes(rng)]
    head = rng.standard_normal(2)
    keys = [np.stack([np.cos(turn), np.sin(turn)], axis=1) for turn in turns]
    return _inputs([(row, rng.choice([-1.0, 1.0]) * row @ head) for row in keys])


def on_a_grid(rng: np.random.Generator) -> Inputs:
    """Keys on a grid of quarters, without repeats in an input: many directions tie. Scores are distinct."""
    grid = np.stack(np.meshgrid(np.arange(-4, 5), np.arange(-4, 5)), axis=-1).reshape(-1, 2) / 4
    return _inputs([(grid[rng.choice(81, T, replace=False)], rng.permutation(T) / 8) for T in _sizes(rng)])


def tied_scores(rng: np.random.Generator) -> Inputs:
    """Scores 0 or 1: several best tokens in most inputs."""
    return _inputs([(rng.standard_normal((T, 2)), rng.integers(0, 2, T).astype(float)) for T in _sizes(rng)])


def repeated_tokens(rng: np.random.Generator) -> Inputs:
    """Tokens drawn from a dictionary of five with a score each: the same word twice in an input."""
    words, scores = rng.standard_normal((5, 2)), rng.standard_normal(5)
    drawn = [rng.integers(0, 5, T) for T in _sizes(rng)]
    return _inputs([(words[row], scores[row]) for row in drawn])


def symmetric(rng: np.random.Generator) -> Inputs:
    """Every token has its mirror image across the first axis, of the same score."""
    rows = []
    for T in _sizes(rng):
        half = max(T // 2, 1)
        keys, scores = np.round(rng.standard_normal((half, 2)), 2), np.round(rng.standard_normal(half), 2)
        rows.append((np.concatenate([keys, keys * [1, -1]]), np.concatenate([scores, scores])))
    return _inputs(rows)


def on_a_line(rng: np.random.Generator) -> Inputs:
    """Keys on one axis: p moves along it, and rests where pulls cancel."""
    axis = np.array([[1.0, 0.0], [0.0, 1.0]])[rng.integers(2)]
    drawn = [(rng.integers(-3, 4, T) / 2, rng.integers(0, 4, T) / 4) for T in _sizes(rng)]
    return _inputs([(places[:, None] * axis, scores) for places, scores in drawn])


def of_any_size(rng: np.random.Generator) -> Inputs:
    """Keys a thousand times smaller to a thousand times larger, far from the origin."""
    scale = 10 ** rng.uniform(-3, 3)
    return _inputs(
        [
            (scale * (rng.standard_normal((T, 2)) + rng.standard_normal(2) * 5), rng.standard_normal(T))
            for T in _sizes(rng)
        ]
    )


PLANE_FAMILIES: tuple[Callable[[np.random.Generator], Inputs], ...] = (
    plain,
    on_the_circle,
    on_a_grid,
    tied_scores,
    repeated_tokens,
    symmetric,
    on_a_line,
    of_any_size,
)
