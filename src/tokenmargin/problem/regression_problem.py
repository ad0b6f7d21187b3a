"""RegressionProblem: real labels, to which the attended predictions `f_i = sum_t s_it <v, x_it>` are fitted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from tokenmargin.problem.abstract_geometry import AbstractGeometry, MaybeArray
from tokenmargin.problem.token_problem import TokenProblem, checked_vector


@dataclass(frozen=True, eq=False, init=False, repr=False)
class RegressionProblem(TokenProblem):
    """Inputs, keys, values and real targets.

    As a `TokenProblem` it has the label +1 everywhere, and its scores are the tokens' own predictions `<v, x_it>`.

    **Arguments**
    - `keys`, `values`, `head`: as of a `TokenProblem`.
    - `targets`: a real number `y_i` per input.
    - `scores`: the predictions of the tokens, when no head is given.

    >>> problem = RegressionProblem.of([[[0.0, 1.0], [1.0, 0.0]]], [0.3], head=[1.0, 0.0])
    >>> problem.scores, problem.around(np.array([0])).scores  # the second token's prediction is on the target's side
    (array([[0., 1.]]), array([[-0.3,  0.7]]))
    """

    targets: Float[Array, " n"]

    def __init__(
        self,
        keys: AbstractGeometry,
        targets: ArrayLike,
        values: AbstractGeometry | None = None,
        *,
        head: MaybeArray = None,
        scores: MaybeArray = None,
    ) -> None:
        wanted = checked_vector("targets", targets, keys.n, "one real number per input")
        super().__init__(keys, np.ones(keys.n), values, head=head, scores=scores)
        wanted.setflags(write=False)
        object.__setattr__(self, "targets", wanted)

    def _answers(self) -> Array:
        return self.targets

    @property
    def has_fixed_scores(self) -> bool:
        return False

    def with_keys(self, keys: AbstractGeometry, values: AbstractGeometry | None = None) -> RegressionProblem:
        return RegressionProblem(keys, self.targets, values, scores=self.scores)

    @cached_property
    def merged(self) -> RegressionProblem:
        """The same training problem with one prediction for all copies of a key, the mean of theirs."""
        return RegressionProblem(self.keys, self.targets, self.values, scores=self.shared_scores)

    def around(self, chosen: Int[Array, " n"] | Float[Array, "n T"]) -> TokenProblem:
        """The problem with fixed scores that this one is to first order where attention has these weights.

        Its scores are `side_i (prediction_it - y_i)`, where the side is that on which the target lies: the mean score
        of an input is minus its distance to the target. An input that meets its target exactly prefers the tokens by
        their distance to it.
        """
        given = np.asarray(chosen)
        weights = given if given.ndim == 2 else (np.arange(self.T) == given[:, None]).astype(np.float64)
        off = np.where(self.mask, self.scores - self.targets[:, None], 0.0)
        side = -np.sign((weights * off).sum(axis=1))
        return self.seen_from(np.where(side == 0, np.nan, side))

    def seen_from(self, side: Float[Array, " n"]) -> TokenProblem:
        """The same, given the sides; NaN where the target is met exactly."""
        off = self.scores - self.targets[:, None]
        scores = np.where(np.isnan(side)[:, None], -np.abs(off), np.nan_to_num(side)[:, None] * off)
        return TokenProblem(self.keys, self.labels, self.values, scores=np.where(self.mask, scores, 0.0))

    def fields(self) -> dict[str, Array]:
        arrays = super().fields()
        del arrays["labels"]
        return arrays | {"targets": self.targets}
