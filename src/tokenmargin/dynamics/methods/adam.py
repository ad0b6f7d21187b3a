"""Adam and AdamW without a guard in the denominator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics.methods.method import AbstractMethod, AbstractValue, State
from tokenmargin.dynamics.methods.momentum import checked_decay
from tokenmargin.dynamics.methods.step_size import StepNumber, StepSize, checked_step, step_at
from tokenmargin.norms import LINF, AbstractNorm
from tokenmargin.objective.forward import Descent


@dataclass(frozen=True)
class Adam(AbstractMethod):
    """Adam, and AdamW with a weight decay: the numbers of torch's, where gradients are large enough for those.

    With m the mean of past gradients and v that of their squares, `m / sqrt(v)` and `log sqrt(v)` are remembered,
    each by coordinate. The first is of order one and the second a moderate number at any size of the gradient, so no
    guard is needed: `eps` is 0. A coordinate whose gradients were all exactly zero stays.

    **Attributes**
    - `step`: about how far each coordinate moves, at most.
    - `beta1`, `beta2`: shares kept of the two means.
    - `eps`: added to `sqrt(v)`; a run with one stops once the gradient is below it.
    - `weight_decay`: AdamW's; p is multiplied by `1 - step weight_decay` first.
    """

    step: StepSize = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 0.0
    weight_decay: float = 0.0

    coordinates = True

    def __post_init__(self) -> None:
        checked_step(self.step)
        checked_decay("beta1", self.beta1)
        checked_decay("beta2", self.beta2)
        for name in ("eps", "weight_decay"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be zero or a positive number, got {getattr(self, name)}")

    def initial(self, theta: Float[Array, "... D"]) -> State:
        return {"ratio": np.zeros_like(theta), "log_scale": np.full_like(theta, -np.inf)}

    def advance(
        self, theta: Float[Array, "... D"], descent: Descent, value: AbstractValue, t: StepNumber, state: State
    ) -> tuple[Float[Array, "... D"], State]:
        step, count = step_at(self.step, t), t + 1
        with np.errstate(divide="ignore", over="ignore"):
            log_gradient = np.log(np.abs(descent.direction)) + descent.log_norm
            kept, new = np.log([self.beta2, 1 - self.beta2])
            log_scale = np.logaddexp(kept + 2 * state["log_scale"], new + 2 * log_gradient) / 2
            shift = np.where(np.isneginf(log_scale), 0.0, log_scale)
            ratio = self.beta1 * state["ratio"] * np.exp(state["log_scale"] - shift)
            ratio += (1 - self.beta1) * np.sign(descent.direction) * np.exp(log_gradient - shift)
            guard = self.eps * np.exp(-shift) if self.eps else 0.0
        # Both means start at zero, so they fall short of those of the gradients seen by these factors.
        short1, short2 = 1 - self.beta1**count, 1 - self.beta2**count
        move = step / short1 * ratio / (1 / np.sqrt(short2) + guard)
        kept_point = theta * (1 - step * self.weight_decay) if self.weight_decay else theta
        return kept_point + move, {"ratio": ratio, "log_scale": log_scale}

    @property
    def margin_norm(self) -> AbstractNorm:
        return LINF
