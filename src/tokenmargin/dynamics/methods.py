"""Descent methods: how far to go along the direction of steepest descent."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.special import expit

from tokenmargin.objective.attention import AbstractObjective, Descent, PromptObjective
from tokenmargin.plugins import find

__all__ = ["AbstractMethod", "GradientDescent", "NormalizedGradientDescent", "method_named"]


def _checked_step(step: float) -> None:
    if not (np.isfinite(step) and step > 0):
        raise ValueError(f"step must be a positive number, got {step}")


class AbstractMethod(abc.ABC):
    """A rule for the length of a step."""

    @abc.abstractmethod
    def prepared(self, objective: AbstractObjective) -> AbstractMethod:
        """The same method with everything that depends on the objective settled, once per run."""

    @abc.abstractmethod
    def lengths(self, descent: Descent) -> Float[Array, "... blocks"]:
        """How far to move each block along its unit direction."""


@dataclass(frozen=True)
class GradientDescent(AbstractMethod):
    """`p(t+1) = p(t) - step * gradient`.

    Without a step it is `1 / objective.smoothness()`: as safe as the printed `1 / L_p` of (24), by the same proof, and
    never shorter. `1 / objective.printed_smoothness()` is the printed one.
    """

    step: float | None = None

    def __post_init__(self) -> None:
        if self.step is not None:
            _checked_step(self.step)

    def prepared(self, objective: AbstractObjective) -> GradientDescent:
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
        return GradientDescent(step=1 / smoothness)

    def lengths(self, descent: Descent) -> Float[Array, "... blocks"]:
        assert self.step is not None, "prepared() settles the step"
        return np.asarray(self.step * np.exp(descent.log_norm))


@dataclass(frozen=True)
class NormalizedGradientDescent(AbstractMethod):
    """`p(t+1) = p(t) - step * gradient / |gradient|`, each block by its own norm.

    A block whose gradient is exactly zero stays where it is.

    **Attributes**
    - `step`: length of a step.
    - `guard`: added to the norm, as codes do that fear a division by zero: `gradient / (|gradient| + guard)`. A run
        with a guard slows down once the gradient is smaller than it and in effect stops at a finite norm.
    """

    step: float = 0.1
    guard: float = 0.0

    def __post_init__(self) -> None:
        _checked_step(self.step)
        if not (np.isfinite(self.guard) and self.guard >= 0):
            raise ValueError(f"guard must be zero or a positive number, got {self.guard}")

    def prepared(self, objective: AbstractObjective) -> NormalizedGradientDescent:
        return self

    def lengths(self, descent: Descent) -> Float[Array, "... blocks"]:
        if self.guard == 0:
            return np.full(descent.log_norm.shape, self.step)
        return np.asarray(self.step * expit(descent.log_norm - np.log(self.guard)))


def method_named(name: str, step: float | None = None) -> AbstractMethod:
    """Descent by name (gd, ngd), a method that another package adds, or the one at `MODULE:CLASS`.

    A step is given to the class as `step`; without one the class decides.

    >>> method_named("ngd", 0.5)
    NormalizedGradientDescent(step=0.5, guard=0.0)
    """
    kind: Callable[..., AbstractMethod] = find("methods", name)
    if step is not None and "step" not in inspect.signature(kind).parameters:
        raise ValueError(f"the method {name} has no step to set; leave the step out")
    return kind() if step is None else kind(step=step)
