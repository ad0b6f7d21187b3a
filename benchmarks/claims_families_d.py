"""Random next-token problems that no shipped instance belongs to: repeats, rings, dependence, scales, d = 1, n = 1."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokenmargin.objective.losses import CorrelationLoss
from tokenmargin.problem.next_token import NextTokenProblem
from tokenmargin.theory.paper_d import NextTokenInstance

__all__ = ["FAMILIES", "OF_CLAIM"]

Family = Callable[[np.random.Generator], NextTokenInstance]


def _instance(
    rng: np.random.Generator, name: str, *, rows: np.ndarray, n: int | None = None, queries: int = 2
) -> NextTokenInstance:
    """Sequences of two to six tokens over the rows' vocabulary; the start is random, or zero."""
    size = len(rows)
    sequences = [rng.integers(size, size=rng.integers(2, 7)) for _ in range(n or int(rng.integers(2, 9)))]
    for row in sequences:
        row[-1] = rng.integers(min(queries, size))
    labels = [int(rng.choice(row)) for row in sequences]
    problem = NextTokenProblem.of(sequences, labels, embeddings=rows)
    start = rng.standard_normal(rows.shape[1] ** 2) / 3 if rng.random() < 0.5 else None
    return NextTokenInstance(problem, name, start=start, seed=int(rng.integers(1 << 30)))


def gaussian(rng: np.random.Generator) -> NextTokenInstance:
    size = int(rng.integers(2, 6))
    return _instance(rng, "gaussian", rows=rng.standard_normal((size, size + int(rng.integers(3)))))


def unit_vectors(rng: np.random.Generator) -> NextTokenInstance:
    return _instance(rng, "unit vectors", rows=np.eye(int(rng.integers(2, 6))))


def dependent(rng: np.random.Generator) -> NextTokenInstance:
    """More tokens than dimensions: the graph problem may be infeasible, and further tokens tie."""
    return _instance(rng, "dependent", rows=rng.standard_normal((int(rng.integers(4, 7)), int(rng.integers(1, 4)))))


def integers(rng: np.random.Generator) -> NextTokenInstance:
    """Small integers: equal, opposite and zero embeddings."""
    return _instance(rng, "integers", rows=rng.integers(-1, 2, (int(rng.integers(3, 6)), 4)).astype(float))


def scaled(rng: np.random.Generator) -> NextTokenInstance:
    """Lengths over four decades."""
    size = int(rng.integers(2, 5))
    rows = rng.standard_normal((size, size)) * 10 ** rng.uniform(-2, 2, (size, 1))
    return _instance(rng, "scaled", rows=rows)


def single(rng: np.random.Generator) -> NextTokenInstance:
    """One sequence."""
    size = int(rng.integers(2, 5))
    return _instance(rng, "one sequence", rows=rng.standard_normal((size, size)), n=1)


def busy(rng: np.random.Generator) -> NextTokenInstance:
    """Many sequences with one last token: large components."""
    size = int(rng.integers(3, 6))
    return _instance(rng, "busy", rows=rng.standard_normal((size, size)), n=20, queries=1)


def other_loss(rng: np.random.Generator) -> NextTokenInstance:
    made = gaussian(rng)
    return NextTokenInstance(made.problem, "correlation loss", loss=CorrelationLoss(), start=made.start, seed=made.seed)


FAMILIES: tuple[Family, ...] = (gaussian, unit_vectors, dependent, integers, scaled, single, busy, other_loss)
OF_CLAIM: dict[str, tuple[Family, ...]] = {}
