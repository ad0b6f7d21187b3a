"""Definitions 15 and 16 of paper A: the second choices of a vector, and whether it is locally optimal."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.problem.token_problem import TokenProblem


class Choices(NamedTuple):
    """The positions of each sequence in three parts, and how far apart they are.

    - `first`: `S_X(p)` (8), the tokens of largest logit.
    - `second`: `S_X^2(p)` (20), the largest among the others; empty where all are tied.
    - `rest`: `S_X^<(p)` (21).
    - `gap`: the least logit difference from first to second and from second to rest (22); infinite where there are
      no such pairs.
    """

    first: Bool[Array, "n T"]
    second: Bool[Array, "n T"]
    rest: Bool[Array, "n T"]
    gap: float


def choices(problem: TokenProblem, p: Float[Array, " D"], *, tie: float = 0.0) -> Choices:
    """First choices, second choices and the rest of every sequence (Definition 15).

    **Arguments**
    - `tie`: logits closer than this count as equal. The definition means exactly equal; vectors found by a solver tie
      up to its residual.

    >>> problem = TokenProblem.of([[[2.0], [2.0], [1.0], [0.0]]], [1], scores=[[1.0, 0.0, 0.0, 0.0]])
    >>> choices(problem, np.ones(1)).second.tolist()
    [[False, False, True, False]]
    """
    return ranked_choices(np.where(problem.mask, problem.keys.logits(p), -np.inf), tie=tie)


def ranked_choices(logits: Float[Array, "n T"], *, tie: float = 0.0) -> Choices:
    """As `choices`, from logits that are minus infinity where there is no token."""
    visible = np.isfinite(logits)
    top = logits.max(axis=1, keepdims=True)
    first = (logits >= top - tie) & visible
    others = np.where(first, -np.inf, logits)
    best = others.max(axis=1, keepdims=True)
    second = (others >= best - tie) & np.isfinite(others)
    rest = visible & ~first & ~second
    last = np.where(rest, logits, -np.inf).max(axis=1, keepdims=True)
    gaps = np.concatenate(
        [top[np.isfinite(best)] - best[np.isfinite(best)], best[np.isfinite(last)] - last[np.isfinite(last)]]
    )
    return Choices(first, second, rest, float(gaps.min(initial=np.inf)))


def local_optimality(problem: TokenProblem, chosen: Choices) -> float:
    """The largest mu of Definition 16: the least `sum over i in S_X of (gamma_i - gamma_j)`, j a second choice.

    The sum runs over the positions selected, as in the pairs of Lemma 8: two tied tokens lead together, and one of them
    may well score below j. Positive means locally optimal; infinite where every token of every sequence is selected.
    """
    gamma = problem.scores
    total = np.where(chosen.first, gamma, 0.0).sum(axis=1, keepdims=True)
    leads = total - chosen.first.sum(axis=1, keepdims=True) * gamma
    return float(leads[chosen.second].min(initial=np.inf))
