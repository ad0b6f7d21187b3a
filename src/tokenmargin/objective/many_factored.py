"""Many problems in K and Q at once: the leading axis of the parameter counts the problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.objective.factored import FactoredObjective
from tokenmargin.objective.forward import Attention, Descent, attend, descent_weights
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem


@dataclass(frozen=True)
class ManyFactored(FactoredObjective):
    """As many problems of one shape, without masks, as the parameter has rows; `evolve` trains all of them together.

    What asks for a single problem (selections, `flow`) is asked of `FactoredObjective` with the row in question.
    """

    family: tuple[TokenProblem, ...] = field(kw_only=True)
    _tokens: Float[Array, "problems nT D_keys"] = field(kw_only=True, repr=False, compare=False)

    @classmethod
    def of(cls, family: Sequence[TokenProblem], loss: AbstractLoss | None = None, *, rank: int = 0) -> ManyFactored:
        """From a list of problems."""
        shapes = {(problem.n, problem.T, problem.keys.matrix_shape, problem.keys.is_full) for problem in family}
        if len(shapes) != 1 or not next(iter(shapes))[-1]:
            raise ValueError("the problems must have one shape and no masked tokens; train others one by one")
        keys = [problem.keys.laid_out for problem in family if isinstance(problem.keys, Coordinates)]
        tokens = np.stack(keys).reshape(len(family), family[0].n * family[0].T, -1)
        loss = LogisticLoss() if loss is None else loss
        return cls(family[0], loss, rank=rank, family=tuple(family), _tokens=tokens)

    def outputs(self, theta: Float[Array, "problems D"]) -> Float[Array, "problems n"]:
        return self._forward(theta).output

    def descent(self, theta: Float[Array, "problems D"]) -> Descent:
        state = self._forward(theta)
        coefficients, log_scale = descent_weights(state, self.loss.log_slope(state.output))
        vector = (coefficients.reshape(len(theta), 1, -1) @ self._tokens)[:, 0]
        length = np.linalg.norm(vector, axis=-1, keepdims=True)
        with np.errstate(divide="ignore"):
            log_norm = log_scale[:, None] + np.log(length) - np.log(self.problem.n)
        return self._from_matrix(theta, Descent(vector / np.where(length > 0, length, 1.0), log_norm))

    def _forward(self, theta: Float[Array, "problems D"]) -> Attention:
        if theta.shape[:-1] != (len(self.family),):
            raise ValueError(f"give one row per problem, {len(self.family)} of them, got shape {theta.shape}")
        logits = (self._tokens @ self.prompt(theta)[..., None]).reshape(len(theta), self.problem.n, self.problem.T)
        return attend(logits, self._scores)

    @cached_property
    def _scores(self) -> Float[Array, "problems n T"]:
        return np.stack([problem.scores for problem in self.family])
