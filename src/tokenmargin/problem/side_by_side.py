"""Several problems as one: their inputs one after another, their parameters in orthogonal spaces.

The logits of each are those of its own part of the parameter, and the shortest vector that separates all selections is
the shortest of each, side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy import ndarray as Array
from scipy.linalg import block_diag

from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.token_problem import TokenProblem


def side_by_side(problems: Sequence[TokenProblem]) -> TokenProblem:
    """The inputs of all problems, each with a part of the parameter of its own.

    >>> problem = TokenProblem.of(keys=[[[0.0, 1.0], [1.0, 0.0]]], labels=[1], head=[1.0, 0.0])
    >>> side_by_side([problem, problem]).keys.logits(np.array([1.0, 2.0, 3.0, 4.0]))
    array([[2., 1.],
           [4., 3.]])
    """
    if not problems:
        raise ValueError("give at least one problem to put side by side")
    T = max(problem.T for problem in problems)
    before = np.cumsum([0, *(problem.keys.rows for problem in problems)])
    parts = list(zip(problems, before, strict=False))
    index = np.concatenate([_wider(problem.keys.index + int(first), T) for problem, first in parts])
    mask = np.concatenate([_wider(problem.mask, T) for problem in problems])
    return TokenProblem(
        _direct_sum([problem.keys for problem in problems], index, mask, before),
        np.concatenate([problem.labels for problem in problems]),
        scores=np.concatenate([_wider(problem.scores, T) for problem in problems]),
    )


def _wider(array: Array, T: int) -> Array:
    return np.pad(array, ((0, 0), (0, T - array.shape[1])))


def _direct_sum(parts: list[AbstractGeometry], index: Array, mask: Array, before: Array) -> AbstractGeometry:
    coordinates = [part for part in parts if isinstance(part, Coordinates)]
    if len(coordinates) == len(parts):
        return Coordinates(block_diag(*(part.vectors for part in coordinates)), index, mask)
    grams = [part for part in parts if isinstance(part, Gram)]
    if len(grams) < len(parts):
        raise TypeError("the problems must all be in coordinates or all in Gram space; call as_gram() on the others")
    ranks = [part.rank for part in grams if part.rank is not None]
    equal = [part.equal + int(first) for part, first in zip(grams, before, strict=False) if part.equal is not None]
    return Gram(
        block_diag(*(part.matrix for part in grams)),
        index,
        mask,
        accuracy=max(part.accuracy for part in grams),
        rank=sum(ranks) if len(ranks) == len(grams) else None,
        equal=np.concatenate(equal) if len(equal) == len(grams) else None,
    )
