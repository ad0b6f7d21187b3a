"""Random instances of paper B that no shipped instance belongs to: sizes, ties, repeats, scales, d = 1, n = 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tokenmargin.objective.local_scores import NonlinearHead
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.theory import ProblemInstance

__all__ = ["FAMILIES", "OF_CLAIM"]

Family = Callable[[np.random.Generator], ProblemInstance]


def _shape(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(1, 4)), int(rng.integers(2, 6)), int(rng.integers(1, 6))


def _instance(problem: TokenProblem, rng: np.random.Generator, name: str) -> ProblemInstance:
    """With the optimal tokens selected, or random ones, or those that a random direction selects."""
    alpha: tuple[int, ...] | None = None
    match int(rng.integers(3)):
        case 1:
            alpha = tuple(int(rng.integers(here.sum())) for here in problem.mask)
        case 2:
            p = rng.standard_normal(problem.keys.dimension)
            alpha = tuple(int(t) for t in problem.keys.logits(p).argmax(axis=1))
    return ProblemInstance(problem, name, selected=alpha, seed=int(rng.integers(1 << 30)))


def _scores(keys: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal(keys.shape[:2])


def gaussian(rng: np.random.Generator) -> ProblemInstance:
    keys = rng.standard_normal(_shape(rng))
    return _instance(TokenProblem.of(keys, np.ones(len(keys)), scores=_scores(keys, rng)), rng, "gaussian")


def integers(rng: np.random.Generator) -> ProblemInstance:
    """Small integers: equal scores, equal keys, opposite keys."""
    keys = rng.integers(-2, 3, _shape(rng)).astype(float)
    scores = rng.integers(-1, 3, keys.shape[:2]).astype(float)
    return _instance(TokenProblem.of(keys, np.ones(len(keys)), scores=scores), rng, "integers")


def repeats(rng: np.random.Generator) -> ProblemInstance:
    """A token of each input is there twice, with the same score half of the time."""
    keys = rng.standard_normal(_shape(rng))
    scores = _scores(keys, rng)
    keys[:, -1] = keys[:, 0]
    if rng.random() < 0.5:
        scores[:, -1] = scores[:, 0]
    return _instance(TokenProblem.of(keys, np.ones(len(keys)), scores=scores), rng, "repeats")


def alike(rng: np.random.Generator) -> ProblemInstance:
    """Assumption B: one token leads, the others score alike, each input by itself."""
    n, T, d = _shape(rng)
    best, lead = rng.standard_normal((n, 1)), rng.exponential(size=(n, 1))
    scores = np.repeat(best - lead, T, axis=1)
    scores[np.arange(n), rng.integers(0, T, n)] = best[:, 0]
    problem = TokenProblem.of(rng.standard_normal((n, T, d)), np.ones(n), scores=scores)
    return ProblemInstance(problem, "alike", seed=int(rng.integers(1 << 30)))


def alone(rng: np.random.Generator) -> ProblemInstance:
    """One input under Assumption B."""
    _, T, d = _shape(rng)
    scores = np.full((1, T), rng.standard_normal())
    scores[0, int(rng.integers(T))] += rng.exponential()
    problem = TokenProblem.of(rng.standard_normal((1, T, d)), [1], scores=scores)
    return ProblemInstance(problem, "alone", seed=int(rng.integers(1 << 30)))


def line(rng: np.random.Generator) -> ProblemInstance:
    n, T, _ = _shape(rng)
    keys = rng.standard_normal((n, T, 1))
    return _instance(TokenProblem.of(keys, np.ones(n), scores=_scores(keys, rng)), rng, "line")


def unequal(rng: np.random.Generator) -> ProblemInstance:
    """Inputs of different lengths, one of a single token at times; keys of lengths from 0.1 to 10."""
    n, T, d = int(rng.integers(2, 4)), int(rng.integers(3, 6)), int(rng.integers(2, 5))
    sizes = rng.integers(1, T + 1, n)
    sizes[0] = T
    mask = np.arange(T) < sizes[:, None]
    keys = rng.standard_normal((n, T, d)) * 10 ** rng.uniform(-1, 1, (n, T, 1))
    problem = TokenProblem.of(keys, np.ones(n), mask=mask, scores=np.where(mask, _scores(keys, rng), 0.0))
    return _instance(problem, rng, "unequal")


def mapped(rng: np.random.Generator) -> ProblemInstance:
    """Keys `W x` with a random W, scores from a head, all labels +1 or random ones."""
    n, T, d = _shape(rng)
    values, W = rng.standard_normal((n, T, d)), rng.standard_normal((d, d))
    if rng.random() < 0.3:
        W[:, 0] = 0.0
    labels = np.ones(n) if rng.random() < 0.6 else rng.choice([-1.0, 1.0], n)
    problem = TokenProblem.of(values @ W.T, labels, values=values, head=rng.standard_normal(d))
    return _instance(problem, rng, "mapped")


def labelled(rng: np.random.Generator) -> ProblemInstance:
    """Selected tokens `Y_i a` plus noise, others shorter: near the example below Assumption C."""
    n, T, d = int(rng.integers(2, 4)), int(rng.integers(2, 4)), int(rng.integers(2, 5))
    a, labels = rng.standard_normal(d), np.resize([1.0, -1.0], n)
    values = 0.5 * np.linalg.norm(a) * rng.uniform(-1, 1, (n, T, d)) / np.sqrt(d)
    values[:, 0] = labels[:, None] * a + rng.choice([0.0, 0.2]) * rng.standard_normal((n, d))
    keys = values if rng.random() < 0.5 else rng.standard_normal((n, T, d))
    problem = TokenProblem.of(keys, labels, values=values, head=a)
    ratio = float(2 ** rng.uniform(-2, 2))
    return ProblemInstance(problem, "labelled", selected=(0,) * n, factor=ratio, seed=int(rng.integers(1 << 30)))


def bent(rng: np.random.Generator) -> ProblemInstance:
    """A head tanh(<a, x>) + <b, x>, increasing along both, on random tokens."""
    x = labelled(rng)
    a, b = rng.standard_normal((2, x.problem.values.dimension))

    def function(v: np.ndarray) -> np.ndarray:
        return np.asarray(np.tanh(v @ a) + v @ b)

    def gradient(v: np.ndarray) -> np.ndarray:
        return np.asarray(np.cosh(v @ a)[..., None] ** -2 * a + b)

    return replace(x, name="bent", head=NonlinearHead(function, gradient), selected=None)


FAMILIES: tuple[Family, ...] = (gaussian, integers, repeats, alike, alone, line, unequal, mapped)
"""What every claim of paper B is tried on."""

OF_CLAIM: dict[str, tuple[Family, ...]] = {
    "B.theorem5": (labelled, mapped),
    "B.theorem6": (labelled, mapped),
    "B.theorem6-repaired": (labelled, mapped),
    "B.theorem6-phases": (labelled, mapped),
    "B.lemma12": (labelled, mapped),
    "B.lemma13": (labelled, mapped),
    "B.lemma14-nonlinear": (bent,),
    "B.theorem8-nonlinear": (bent,),
    "B.lemma2": (mapped,),
    "B.lemma11": (mapped,),
    "B.lemma5": (alone,),
    "B.theorem2-direction": (alone, alike),
}
"""Families of a claim's own, where the general ones would be outside its hypotheses almost always."""
