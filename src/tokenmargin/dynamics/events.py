"""What happens along a run: events of a flow, and Ctrl-C.

An event gives every point a label, and happens where the label changes.

Ctrl-C ends a single run early, and the run returns what it has reached. A figure, a claim or a record made of many runs
must not take such a run for a whole one: within `whole_runs` the interrupt is raised again and ends everything.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.selection import angle, saturation, select


@dataclass(frozen=True)
class Crossing:
    """An event that happened.

    - `event`: which.
    - `arc`: arc length at which its label changed.
    - `before`, `after`: the labels.
    """

    event: AbstractEvent
    arc: float
    before: Hashable
    after: Hashable


class AbstractEvent(abc.ABC):
    """A label for every point; `stops` says whether the flow ends where the label changes."""

    stops: bool

    @abc.abstractmethod
    def label(self, objective: AbstractObjective, theta: Float[Array, " D"]) -> Hashable:
        """The label of a point."""


@dataclass(frozen=True)
class NormReached(AbstractEvent):
    """The length of the whole parameter reaches `norm`."""

    norm: float
    stops: bool = True

    def label(self, objective: AbstractObjective, theta: Float[Array, " D"]) -> bool:
        return bool(np.linalg.norm(objective.norms(theta)) >= self.norm)


@dataclass(frozen=True, eq=False)
class AngleReached(AbstractEvent):
    """The angle between the prompt and `direction` falls to `radians`."""

    direction: Float[Array, " D"]
    radians: float
    stops: bool = True

    def label(self, objective: AbstractObjective, theta: Float[Array, " D"]) -> bool:
        return bool(angle(objective.problem.keys, objective.prompt(theta), self.direction) <= self.radians)


@dataclass(frozen=True)
class Saturated(AbstractEvent):
    """The mean selected softmax weight reaches `level`; tokens that training cannot tell apart count together."""

    level: float = 1 - 1e-5
    stops: bool = True

    def label(self, objective: AbstractObjective, theta: Float[Array, " D"]) -> bool:
        weight = saturation(objective.problem.keys, objective.prompt(theta), objective.constant_scores)
        return bool(weight >= self.level)


@dataclass(frozen=True)
class SelectionChanged(AbstractEvent):
    """The token of largest weight changes in some input."""

    stops: bool = False

    def label(self, objective: AbstractObjective, theta: Float[Array, " D"]) -> tuple[int, ...]:
        return tuple(select(objective.problem.keys, objective.prompt(theta)).tolist())


@dataclass(frozen=True)
class WhenTrue(AbstractEvent):
    """A condition of your own on (objective, point)."""

    condition: Callable[[AbstractObjective, Array], bool]
    stops: bool = True

    def label(self, objective: AbstractObjective, theta: Float[Array, " D"]) -> bool:
        return bool(self.condition(objective, theta))


def first_change(
    event: AbstractEvent, objective: AbstractObjective, point: Callable[[float], Array], ends: tuple[float, float]
) -> Crossing:
    """Where the label first differs from the one at the left end, by bisection to the resolution of a double."""
    low, high = ends
    before, after = (event.label(objective, point(end)) for end in ends)
    while (middle := (low + high) / 2) not in (low, high):
        label = event.label(objective, point(middle))
        if label == before:
            low = middle
        else:
            high, after = middle, label
    return Crossing(event, high, before, after)


_WHOLE: ContextVar[bool] = ContextVar("whole_runs", default=False)


@contextmanager
def whole_runs() -> Iterator[None]:
    """Within it, Ctrl-C ends everything: `evolve`, `flow` and the other runs raise it instead of returning early."""
    token = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def note_interrupt() -> bool:
    """True, for a run that was interrupted and returns what it has; within `whole_runs`, raise the interrupt again."""
    if _WHOLE.get():
        raise KeyboardInterrupt
    return True
