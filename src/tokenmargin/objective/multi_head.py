"""Several attention heads: `f(X_i) = sum_h f_h(X_i)`, each head with its own prompt or W, its own scores and tokens.

The heads stand side by side: head h's input i is one more input of a single problem, with logits of its own part of the
parameter. Only the slope of the loss couples them, and so does only one term of the Jacobian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.linalg import block_diag

from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.forward import (
    Attention,
    Descent,
    Linearisation,
    attend,
    differences_from_pivot,
    linearisation,
    prompt_block,
    prompt_descent,
)
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.token_problem import TokenProblem


def side_by_side(problems: Sequence[TokenProblem]) -> TokenProblem:
    """Several problems as one: their inputs one after another, their parameters in orthogonal spaces.

    The logits of each are those of its own part of the parameter, and the shortest vector that separates all selections
    is the shortest of each, side by side.

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


@dataclass(frozen=True)
class MultiHeadObjective(AbstractObjective):
    """The risk of a sum of attention heads, as a function of all their prompts (or matrices) together.

    **Attributes**
    - `problem`: the heads side by side: its input `h n + i` is input i as head h sees it. Selections, margins and limit
      directions are asked of it, or of a head's own problem.
    - `heads`: the problems of the heads.

    >>> from tokenmargin.problem.instances import figure1a, figure1b
    >>> objective = MultiHeadObjective.of([figure1a(), figure1b()])
    >>> objective.dimension, objective.outputs(objective.start()).shape
    (6, (1,))
    """

    heads: tuple[TokenProblem, ...] = field(kw_only=True)

    @classmethod
    def of(cls, heads: Sequence[TokenProblem], loss: AbstractLoss | None = None) -> MultiHeadObjective:
        """From one problem per head: the same inputs and labels, the head's own keys, values and scores."""
        if not heads or any((head.labels.shape != heads[0].labels.shape) for head in heads):
            raise ValueError("heads must be a non-empty list of problems with the same inputs")
        if any((head.labels != heads[0].labels).any() for head in heads):
            raise ValueError("all heads see the same inputs, so their labels must agree")
        return cls(side_by_side(heads), LogisticLoss() if loss is None else loss, heads=tuple(heads))

    def parts(self, theta: Float[Array, "... D"]) -> tuple[Float[Array, "... d"], ...]:
        """The parameter of every head."""
        ends = np.cumsum([head.keys.dimension for head in self.heads])[:-1]
        return tuple(np.split(theta, ends, axis=-1))

    def outputs(self, theta: Float[Array, "... D"]) -> Float[Array, "... n"]:
        return self._summed(self._forward(theta).output)

    def descent(self, theta: Float[Array, "... D"]) -> Descent:
        state = self._forward(theta)
        log_slope = self._to_heads(self.loss.log_slope(self._summed(state.output)))
        direction, log_norm = prompt_descent(self.problem.keys, state, log_slope)
        return Descent(direction, log_norm + np.log(len(self.heads)))  # a mean over n inputs, not over n heads

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        state = self._forward(theta)
        state = state._replace(output=self._to_heads(self._summed(state.output)))
        seen = differences_from_pivot(self.problem.keys, state, self.loss)
        apart = seen.slope.reshape(len(self.heads), -1, self.dimension)
        slope = np.tile(apart.sum(axis=0), (len(self.heads), 1))
        return linearisation((prompt_block(seen, slope=slope),), self.problem.n // len(self.heads))

    def _forward(self, theta: Float[Array, "... D"]) -> Attention:
        logits = self.problem.keys.logits(theta)
        return attend(logits, np.broadcast_to(self.problem.scores, logits.shape))

    def _summed(self, of_heads: Float[Array, "... hn"]) -> Float[Array, "... n"]:
        return np.asarray(of_heads.reshape(*of_heads.shape[:-1], len(self.heads), -1).sum(axis=-2))

    def _to_heads(self, of_inputs: Float[Array, "... n"]) -> Float[Array, "... hn"]:
        return np.concatenate([of_inputs] * len(self.heads), axis=-1)
