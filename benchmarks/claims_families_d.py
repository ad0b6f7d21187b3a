"""Random next-token problems that no shipped instance belongs to: repeats, rings, dependence, scales, d = 1, n = 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tokenmargin.objective.losses import AbstractLoss, CorrelationLoss, ExponentialLoss, LogisticLoss
from tokenmargin.problem.next_token import NextTokenProblem
from tokenmargin.theory.paper_d import NextTokenInstance
from tokenmargin.theory.paper_d.instance import FlatLoss

__all__ = ["FAMILIES", "OF_CLAIM"]

Family = Callable[[np.random.Generator], NextTokenInstance]


def _instance(
    rng: np.random.Generator,
    name: str,
    *,
    rows: np.ndarray,
    n: int | None = None,
    queries: int = 2,
    ranked: bool = False,
) -> NextTokenInstance:
    """Sequences of one to six tokens over the rows' vocabulary; the start is random, or zero. Next tokens are drawn, or
    the first of their sequence by a ranking that each last token has."""
    size = len(rows)
    sequences = [rng.integers(size, size=rng.integers(1, 7)) for _ in range(n or int(rng.integers(2, 9)))]
    for row in sequences:
        row[-1] = rng.integers(min(queries, size))
    ranks = rng.permuted(np.tile(np.arange(size), (size, 1)), axis=1)
    labels = [int(row[ranks[row[-1]][row].argmax()]) if ranked else int(rng.choice(row)) for row in sequences]
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


def ranked(rng: np.random.Generator) -> NextTokenInstance:
    """No cycles."""
    size = int(rng.integers(2, 6))
    return _instance(rng, "ranked", rows=rng.standard_normal((size, size + int(rng.integers(2)))), ranked=True)


def one_hot(rng: np.random.Generator) -> NextTokenInstance:
    """Unit vectors, with cycles or without."""
    return _instance(
        rng, "one-hot", rows=np.eye(int(rng.integers(2, 6))), n=int(rng.integers(1, 12)), ranked=rng.random() < 0.3
    )


def other_loss(rng: np.random.Generator) -> NextTokenInstance:
    return replace(gaussian(rng), name="correlation loss", loss=CorrelationLoss())


def other_head(rng: np.random.Generator) -> NextTokenInstance:
    """A head of positive scores, those of next tokens the largest, or not."""
    made = gaussian(rng)
    scores = rng.uniform(0.1, 2, (made.problem.size, made.problem.size)) + rng.integers(2) * 2 * np.eye(
        made.problem.size
    )
    return replace(made, name="another head", head=scores @ np.linalg.pinv(made.embeddings).T)


def _falling(make: Family) -> Family:
    """The same with a loss whose slope is bounded."""

    def family(rng: np.random.Generator) -> NextTokenInstance:
        losses: tuple[AbstractLoss, ...] = (ExponentialLoss(), LogisticLoss(), FlatLoss())
        loss = losses[int(rng.integers(len(losses)))]
        made = make(rng)
        return replace(made, loss=loss, name=f"{made.name}, {type(loss).__name__}")

    family.__name__ = f"falling_{make.__name__}"
    return family


def _with_head(rng: np.random.Generator) -> NextTokenInstance:
    """No cycles, and a head of Assumption 3 with best scores of 1 and others."""
    made = ranked(rng)
    size = made.problem.size
    scores = rng.uniform(-1, 0.4, (size, size))
    np.fill_diagonal(scores, rng.choice([0.5, 1.0, 2.0], size))
    return replace(made, name="ranked, another head", head=scores @ np.linalg.pinv(made.embeddings).T)


FAMILIES: tuple[Family, ...] = (
    *(gaussian, unit_vectors, dependent, integers, scaled, single, busy, ranked, other_loss, other_head),
)
_FALLING: tuple[Family, ...] = (
    *map(_falling, (gaussian, unit_vectors, dependent, integers, single, ranked, busy, _with_head)),
    *(ranked, scaled),
)
OF_CLAIM: dict[str, tuple[Family, ...]] = {
    **{
        f"D.{name}{end}": _FALLING
        for name in ("lemma3", "lemma16", "theorem3", "theorem4")
        for end in ("", "-repaired")
    },
    "D.lemma7": (*_FALLING, gaussian, busy),
    "D.lemma11": (one_hot, one_hot, unit_vectors, gaussian, other_loss),
}
