"""How long a step is: a number, a schedule, or any function of the step's number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

StepSize: TypeAlias = "float | Callable[[int], float]"
"""A number, or a function of the step's number, counted from 0."""

StepNumber: TypeAlias = "int | Int[Array, '... 1']"


@dataclass(frozen=True)
class Schedule:
    """Steps that shrink: `step / (t + 1)^power`.

    >>> [round(Schedule(0.3)(t), 3) for t in (0, 3, 8)]
    [0.3, 0.15, 0.1]
    """

    step: float
    power: float = 0.5

    def __post_init__(self) -> None:
        checked_step(self.step)
        if not (np.isfinite(self.power) and self.power >= 0):
            raise ValueError(f"the power of a schedule must be zero or a positive number, got {self.power}")

    def __call__(self, t: int) -> float:
        return self.step / (t + 1) ** self.power


def checked_step(step: StepSize) -> None:
    """A step must be a positive number, or a function that gives one."""
    if not callable(step) and not (np.isfinite(step) and step > 0):
        raise ValueError(f"step must be a positive number, got {step}")


def step_at(step: StepSize, t: StepNumber) -> float | Float[Array, "... 1"]:
    """The size of step number `t`."""
    if not callable(step):
        return step
    if isinstance(t, np.ndarray):
        return np.array([step_at(step, int(number)) for number in t.ravel()]).reshape(t.shape)
    size = float(step(t))
    checked_step(size)
    return size
