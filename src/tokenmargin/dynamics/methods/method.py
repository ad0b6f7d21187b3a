"""What a method of descent is: a rule for the next point, with whatever it remembers; and how long its steps are."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.norms import L2, AbstractNorm
from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.forward import Descent
from tokenmargin.problem.geometry import Coordinates

State: TypeAlias = Mapping[str, Array]
"""What a method remembers, by name; the leading axes are those of the points."""


class AbstractValue(abc.ABC):
    """The risk where a step begins. Nothing is computed before it is asked for."""

    @property
    @abc.abstractmethod
    def risk(self) -> Float[Array, "..."]:
        """The training risk."""

    @property
    @abc.abstractmethod
    def log_excess(self) -> Float[Array, "..."]:
        """Logarithm of the risk above its infimum: finite where the difference itself has underflowed."""


@dataclass(frozen=True, eq=False)
class Value(AbstractValue):
    """The risk of an objective at a point."""

    objective: AbstractObjective
    theta: Float[Array, "... D"]

    @cached_property
    def risk(self) -> Float[Array, "..."]:
        return self.objective.value(self.theta)

    @cached_property
    def log_excess(self) -> Float[Array, "..."]:
        return self.objective.excess(self.theta)[0]


class AbstractMethod(abc.ABC):
    """A rule for the next point.

    - `coordinates`: whether it looks at single coordinates, so that a Gram matrix is not enough for it.
    """

    coordinates: ClassVar[bool] = False

    def prepared(self, objective: AbstractObjective) -> AbstractMethod:
        """The same method with everything that depends on the objective settled, once per run."""
        if self.coordinates and not all(isinstance(geometry, Coordinates) for _, geometry in objective.blocks):
            raise ValueError(
                f"{type(self).__name__} looks at coordinates, and a Gram matrix has none: give the keys as vectors, or "
                "use ngd, gd, heavy-ball, nesterov or polyak"
            )
        return self

    def initial(self, theta: Float[Array, "... D"]) -> State:
        """What it remembers before its first step."""
        return {}

    @abc.abstractmethod
    def advance(
        self, theta: Float[Array, "... D"], descent: Descent, value: AbstractValue, t: StepNumber, state: State
    ) -> tuple[Float[Array, "... D"], State]:
        """The next point, and what to remember.

        **Arguments**
        - `theta`: the point, or many along the leading axes. Of an objective with several blocks, one block: each is
          stepped by itself.
        - `descent`: minus the gradient as a unit direction, and the logarithm of its length, shape (..., 1).
        - `value`: the risk, computed if asked for.
        - `t`: steps taken before; where the runs have taken different numbers, an array of shape (..., 1).
        - `state`: what was remembered.
        """

    @property
    def margin_norm(self) -> AbstractNorm:
        """The norm by whose margin its limit is named."""
        return L2


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
