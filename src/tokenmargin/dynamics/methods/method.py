"""What a method of descent is: a rule for the next point, with whatever it remembers."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics.methods.step_size import StepNumber
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
