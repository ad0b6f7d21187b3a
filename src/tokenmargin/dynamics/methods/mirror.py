"""Mirror descent with the lp potential: steps are taken in the gradient of the potential, not in p itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics.methods.method import (
    AbstractMethod,
    AbstractValue,
    State,
    StepNumber,
    StepSize,
    checked_step,
    step_at,
)
from tokenmargin.norms import AbstractNorm, LpNorm
from tokenmargin.objective.forward import Descent


@dataclass(frozen=True)
class MirrorDescent(AbstractMethod):
    """Mirror descent with the potential `|w|_p^p / p`: `z = sign(w) |w|^(p-1)` takes the step, by coordinate.

    Normalised steps are of length `step (p - 1) max(|w|_p, 1)^(p - 2)` in z (in the dual norm), which moves w by about
    `step` whatever its norm is: with steps of one length in z the norm would grow like `t^(1/(p-1))`.

    **Attributes**
    - `p`: of the potential, above 1; 2 is (normalised) gradient descent.
    - `step`: about how far w moves; without normalisation, the factor before the gradient.
    - `normalized`: whether the gradient's length is taken out.
    """

    p: float
    step: StepSize = 0.1
    normalized: bool = True

    coordinates = True

    def __post_init__(self) -> None:
        checked_step(self.step)
        if not (np.isfinite(self.p) and self.p > 1):
            raise ValueError(f"the p of mirror descent must be above 1 and finite, got {self.p}")

    def advance(
        self, theta: Float[Array, "... D"], descent: Descent, value: AbstractValue, t: StepNumber, state: State
    ) -> tuple[Float[Array, "... D"], State]:
        step = step_at(self.step, t)
        if self.normalized:
            size = np.maximum(self.margin_norm.value(theta), 1.0)[..., None]
            dual = self.margin_norm.dual_value(descent.direction)[..., None]
            length = step * (self.p - 1) * size ** (self.p - 2) / np.where(dual > 0, dual, 1.0)
        else:
            length = step * np.exp(descent.log_norm)
        mirrored = signed_power(theta, self.p - 1) + length * descent.direction
        return signed_power(mirrored, 1 / (self.p - 1)), state

    @property
    def margin_norm(self) -> AbstractNorm:
        return LpNorm(self.p)


def signed_power(x: Float[Array, "... D"], power: float) -> Float[Array, "... D"]:
    """`sign(x) |x|^power`."""
    return np.asarray(np.sign(x) * np.abs(x) ** power)
