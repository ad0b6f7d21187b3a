"""Minibatches: the risk of some of the inputs, as a loss that does not see the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.losses import AbstractLoss

AnyObjective = TypeVar("AnyObjective", bound=AbstractObjective)


@dataclass(frozen=True, eq=False)
class WeightedInputs(AbstractLoss):
    """A loss times a weight for each input: the last axis of what it is given counts the inputs."""

    loss: AbstractLoss
    log_weights: Float[Array, " n"]

    def value(self, u: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return np.asarray(self.loss.value(u) * np.exp(self.log_weights))

    def log_slope(self, u: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return np.asarray(self.loss.log_slope(u) + self.log_weights)

    def log_slope_derivative(self, u: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return self.loss.log_slope_derivative(u)

    def log_excess(self, best: Float[Array, "... n"], log_gap: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return np.asarray(self.loss.log_excess(best, log_gap) + self.log_weights)

    def constants(self, low: float, high: float) -> tuple[float, float]:
        m0, m1 = self.loss.constants(low, high)
        largest = float(np.exp(self.log_weights.max()))
        return m0 * largest, m1 * largest


def on_inputs(objective: AnyObjective, inputs: Int[Array, " batch"], n: int) -> AnyObjective:
    """The mean risk of some of the n inputs alone, in the parameters of all."""
    log_weights = np.full(n, -np.inf)
    log_weights[inputs] = np.log(n / len(inputs))
    try:
        return replace(objective, loss=WeightedInputs(objective.loss, log_weights))
    except TypeError:
        raise TypeError(
            f"{type(objective).__name__} has a loss of its own, which does not weigh inputs: train it on all of them"
        ) from None
