"""What a method of descent is: a rule for the next point, with whatever it remembers; and those that remember nothing.

They go along the gradient by steps of several lengths, or are mirror descent, which with the lp potential takes its
steps in the gradient of the potential, not in p itself.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.special import expit

from tokenmargin.norms import L2, AbstractNorm, LpNorm
from tokenmargin.objective.attention import AbstractObjective, PromptObjective
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

    def for_objective(self, objective: AbstractObjective) -> AbstractMethod:
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


class AbstractStepLength(AbstractMethod):
    """A rule for the length of a step alone. Thousands of such runs go on at once without coordinates."""

    @abc.abstractmethod
    def step_lengths(self, descent: Descent, value: AbstractValue, t: StepNumber) -> Float[Array, "... blocks"]:
        """How far to move along the unit direction."""

    def advance(
        self, theta: Float[Array, "... D"], descent: Descent, value: AbstractValue, t: StepNumber, state: State
    ) -> tuple[Float[Array, "... D"], State]:
        return theta + self.step_lengths(descent, value, t) * descent.direction, state


@dataclass(frozen=True)
class GradientDescent(AbstractStepLength):
    """`p(t+1) = p(t) - step * gradient`.

    Without a step it is `1 / objective.smoothness()`: as safe as the printed `1 / L_p` of (24), by the same proof, and
    never shorter. `1 / objective.printed_smoothness()` is the printed one.
    """

    step: StepSize | None = None

    def __post_init__(self) -> None:
        if self.step is not None:
            checked_step(self.step)

    def for_objective(self, objective: AbstractObjective) -> GradientDescent:
        if self.step is not None:
            return self
        if not isinstance(objective, PromptObjective):
            raise ValueError(
                "the step-size rule 1 / smoothness is stated for the prompt alone; give GradientDescent(step=...)"
            )
        smoothness = objective.smoothness()
        if smoothness == 0:
            raise ValueError(
                "the smoothness is zero: keys or scores are all zero and nothing depends on p; give a step"
            )
        return replace(self, step=1 / smoothness)

    def step_lengths(self, descent: Descent, value: AbstractValue, t: StepNumber) -> Float[Array, "... blocks"]:
        assert self.step is not None, "for_objective settles the step"
        return np.asarray(step_at(self.step, t) * np.exp(descent.log_norm))


@dataclass(frozen=True)
class NormalizedGradientDescent(AbstractStepLength):
    """`p(t+1) = p(t) - step * gradient / |gradient|`, each block by its own norm.

    A block whose gradient is exactly zero stays where it is.

    **Attributes**
    - `step`: length of a step.
    - `guard`: added to the norm, `gradient / (|gradient| + guard)`, as many implementations do to avoid a division by
        zero. A run with a guard slows down once the gradient is smaller than it, and in effect stops at a finite norm.
    """

    step: StepSize = 0.1
    guard: float = 0.0

    def __post_init__(self) -> None:
        checked_step(self.step)
        if not (np.isfinite(self.guard) and self.guard >= 0):
            raise ValueError(f"guard must be zero or a positive number, got {self.guard}")

    def step_lengths(self, descent: Descent, value: AbstractValue, t: StepNumber) -> Float[Array, "... blocks"]:
        step = step_at(self.step, t)
        if self.guard == 0:
            return np.full(descent.log_norm.shape, step)
        return np.asarray(step * expit(descent.log_norm - np.log(self.guard)))


@dataclass(frozen=True)
class Polyak(AbstractStepLength):
    """Polyak's steps, `step * (risk - infimum) / |gradient|` long: about `1 / margin` each once softmax has saturated.

    The excess over the infimum is known as a logarithm, so the quotient is right when both have underflowed.

    **Attributes**
    - `step`: factor before the quotient; 1 is Polyak's.
    - `longest`: no step is longer. A path that comes to rest, or selects tokens that are not the best, never reaches
      the infimum, and the quotient grows without bound.
    - `infimum`: of the risk; by default that of attending to the best tokens alone.
    """

    step: StepSize = 1.0
    longest: float = 10.0
    infimum: float | None = None

    def __post_init__(self) -> None:
        checked_step(self.step)
        checked_step(self.longest)

    def for_objective(self, objective: AbstractObjective) -> Polyak:
        if len(objective.blocks) > 1:
            raise ValueError("Polyak's step is one length for one gradient; train the prompt alone")
        if self.infimum is None:
            try:
                objective.excess(objective.start())
            except TypeError as error:
                raise ValueError(f"{error}: give Polyak(infimum=...)") from None
        return self

    def step_lengths(self, descent: Descent, value: AbstractValue, t: StepNumber) -> Float[Array, "... blocks"]:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            log_excess = value.log_excess if self.infimum is None else np.log(np.maximum(value.risk - self.infimum, 0))
            quotient = np.exp(np.asarray(log_excess)[..., None] - descent.log_norm)
        return np.where(np.isneginf(descent.log_norm), 0.0, np.fmin(step_at(self.step, t) * quotient, self.longest))


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
