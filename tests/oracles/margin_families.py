"""Random max-margin problems of every awkward kind, for the comparison with independent oracles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import tokenmargin as tm
from tokenmargin.margin.constraints import (
    Constraints,
    attention_constraints,
    class_constraints,
    label_constraints,
    relaxed_constraints,
)
from tokenmargin.problem.geometry import Coordinates

NEAR = 1e-9
"""Distance of near-duplicate tokens."""


def _shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(1, 6)), int(rng.integers(2, 6)), int(rng.integers(1, 13))


def _posed(keys: np.ndarray, rng: np.random.Generator) -> tuple[tm.TokenProblem, np.ndarray]:
    n, T, d = keys.shape
    problem = tm.TokenProblem.of(keys, rng.choice([-1.0, 1.0], n), head=rng.standard_normal(d))
    return problem, rng.integers(0, T, n)


def sphere(rng: np.random.Generator) -> Constraints:
    n, T, d = _shape(rng)
    keys = rng.standard_normal((n, T, d))
    return attention_constraints(*_posed(keys / np.linalg.norm(keys, axis=2, keepdims=True), rng))


def planted(rng: np.random.Generator) -> Constraints:
    """Feasible by construction, however many the constraints: the tokens that a hidden vector selects."""
    n, T, d = _shape(rng)
    keys = rng.standard_normal((n, T, d))
    return attention_constraints(_posed(keys, rng)[0], (keys @ rng.standard_normal(d)).argmax(axis=1))


def duplicates(rng: np.random.Generator) -> Constraints:
    """One token of each input repeats another; when the selected one does, nothing separates them."""
    n, T, d = _shape(rng)
    keys = rng.standard_normal((n, T, d))
    keys[np.arange(n), rng.integers(0, T, n)] = keys[np.arange(n), rng.integers(0, T, n)]
    return attention_constraints(*_posed(keys, rng))


def near_duplicates(rng: np.random.Generator) -> Constraints:
    n, T, d = _shape(rng)
    keys = rng.standard_normal((n, T, d))
    copies = rng.integers(0, T, n)
    keys[np.arange(n), copies] = keys[np.arange(n), (copies + 1) % T] + NEAR * rng.standard_normal((n, d))
    return attention_constraints(*_posed(keys, rng))


def rank_deficient(rng: np.random.Generator) -> Constraints:
    n, T, d = _shape(rng)
    rank = int(rng.integers(1, d + 1))
    return attention_constraints(*_posed(rng.standard_normal((n, T, rank)) @ rng.standard_normal((rank, d)), rng))


def one_hot(rng: np.random.Generator) -> Constraints:
    """Tokens of a one-hot vocabulary, shared by all inputs: massively degenerate."""
    n, T, d = _shape(rng)
    index = np.stack([rng.choice(d + T, size=T, replace=False) for _ in range(n)])
    problem = tm.TokenProblem(Coordinates(np.eye(d + T), index), np.ones(n), scores=rng.random((n, T)))
    return attention_constraints(problem, rng.integers(0, T, n))


def scales(rng: np.random.Generator) -> Constraints:
    """Tokens whose lengths differ by up to six orders of magnitude."""
    n, T, d = _shape(rng)
    keys = rng.standard_normal((n, T, d)) * 10.0 ** rng.uniform(-3, 3, (n, T, 1))
    return attention_constraints(*_posed(keys, rng))


def gram(rng: np.random.Generator) -> Constraints:
    n, T, d = _shape(rng)
    problem, selected = _posed(rng.standard_normal((n, T, d)), rng)
    return attention_constraints(problem.as_gram(), selected)


def tied(rng: np.random.Generator) -> Constraints:
    """Selection classes: several tokens selected in an input, with equal logits."""
    n, T, d = _shape(rng)
    problem, selected = _posed(rng.standard_normal((n, T, d)), rng)
    selection = rng.random((n, T)) < 0.25
    selection[np.arange(n), selected] = True
    return class_constraints(problem, selection)


def relaxed(rng: np.random.Generator) -> Constraints:
    n, T, d = _shape(rng)
    problem, selected = _posed(rng.standard_normal((n, T, d)), rng)
    return relaxed_constraints(problem, selected, rng.random(n) < 0.5)


def heads(rng: np.random.Generator) -> Constraints:
    n, T, d = _shape(rng)
    return label_constraints(*_posed(rng.standard_normal((n, T, d)), rng))


def wide(rng: np.random.Generator) -> Constraints:
    n, T, _ = _shape(rng)
    return attention_constraints(*_posed(rng.standard_normal((n, T, int(rng.integers(30, 120)))), rng))


def choice(rng: np.random.Generator) -> tuple[tm.TokenProblem, np.ndarray]:
    """Several optimal tokens per input, one of which must win: a problem and its sets, no input without a rival."""
    n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(1, 7))
    problem, selected = _posed(rng.standard_normal((n, T, d)), rng)
    sets = rng.random((n, T)) < 0.4
    sets[np.arange(n), selected] = True
    sets[np.arange(n), (selected + 1) % T] = False
    return problem, sets


FAMILIES: tuple[Callable[[np.random.Generator], Constraints], ...] = (
    sphere, planted, duplicates, near_duplicates, rank_deficient, one_hot, scales, gram, tied, relaxed, heads, wide,
)  # fmt: skip
