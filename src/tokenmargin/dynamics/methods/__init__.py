"""Methods of descent: how the next point follows from the gradient, what is remembered, and methods by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from tokenmargin.dynamics.methods.method import AbstractMethod as AbstractMethod
from tokenmargin.dynamics.methods.method import AbstractStepLength as AbstractStepLength
from tokenmargin.dynamics.methods.method import AbstractValue as AbstractValue
from tokenmargin.dynamics.methods.method import GradientDescent as GradientDescent
from tokenmargin.dynamics.methods.method import MirrorDescent as MirrorDescent
from tokenmargin.dynamics.methods.method import NormalizedGradientDescent as NormalizedGradientDescent
from tokenmargin.dynamics.methods.method import Polyak as Polyak
from tokenmargin.dynamics.methods.method import Schedule as Schedule
from tokenmargin.dynamics.methods.method import State as State
from tokenmargin.dynamics.methods.method import StepSize
from tokenmargin.dynamics.methods.method import Value as Value
from tokenmargin.dynamics.methods.with_memory import Adam as Adam
from tokenmargin.dynamics.methods.with_memory import Momentum as Momentum
from tokenmargin.dynamics.methods.with_memory import SteepestDescent as SteepestDescent
from tokenmargin.norms import L1, L2, LINF, SPECTRAL, AbstractNorm, norm_named
from tokenmargin.plugins import PluginError, find, kind_in_words, names

BETA = 0.9
Preset: TypeAlias = Callable[..., AbstractMethod]


def _preset(kind: Callable[..., AbstractMethod], *norm: AbstractNorm, step: float = 0.1, **settings: Any) -> Preset:
    """What makes a method of one kind: its settings are fixed, and its step may be given."""

    def make(step: StepSize = step) -> AbstractMethod:
        return kind(*norm, step=step, **settings)

    return make


momentum = _preset(SteepestDescent, L2, momentum=BETA)  # normalised descent along a velocity
nesterov = _preset(Momentum, beta=BETA, nesterov=True)  # with the gradient's own length
sign = _preset(SteepestDescent, LINF)  # the signs of the gradient
coordinate = _preset(SteepestDescent, L1)  # the coordinate of the largest slope
spectral = _preset(SteepestDescent, SPECTRAL)  # the polar factor of the gradient of a matrix
muon = _preset(SteepestDescent, SPECTRAL, momentum=0.95, nesterov=True)  # that of Nesterov's velocity
adamw = _preset(Adam, step=0.01, weight_decay=0.01)  # torch's default of a weight decay


def method_named(name: str, step: float | None = None, *, decay: float = 0.0) -> AbstractMethod:
    """A method by its name (`gd`, `sign`, ...; `mirror:P`, `steepest:NORM` and `adam:BETA2` with what they take), one
    that another package adds, or the one at `MODULE:CLASS`.

    A step is given to the class as `step`; without one the class decides. With a `decay` the steps are
    `step / (t + 1)^decay`.

    >>> method_named("ngd", 0.5)
    NormalizedGradientDescent(step=0.5, guard=0.0)
    >>> method_named("mirror:1.5").margin_norm.name
    'lp:1.5'
    """
    kind = _maker(name)
    if step is not None and "step" not in inspect.signature(kind).parameters:
        raise ValueError(f"the method {name} has no step to set; leave the step out")
    if decay:
        if step is None:
            raise ValueError("steps that decay begin with one: give the step as well")
        return kind(step=Schedule(step, decay))
    return kind() if step is None else kind(step=step)


def as_method(given: AbstractMethod | str) -> AbstractMethod:
    """A method, or the one of that name."""
    if isinstance(given, str):
        return method_named(given)
    if isinstance(given, AbstractMethod):
        return given
    known = ", ".join(names("methods"))
    raise TypeError(
        f"method must be a method, such as NormalizedGradientDescent(0.1), or a name ({known}); "
        f"got {kind_in_words(given)}"
    )


def _maker(name: str) -> Callable[..., AbstractMethod]:
    """What makes the method; of `mirror:P` and `steepest:NORM`, with the second half of the name settled."""
    head, _, given = name.partition(":")
    if head == "steepest":
        if not given:
            raise PluginError("steepest descent is in a norm: name it as in steepest:lp:1.5 or steepest:linf")
        return partial(SteepestDescent, norm_named(given))
    if head == "mirror":
        return partial(MirrorDescent, _number(given, name, "mirror descent is named mirror:P", "mirror:1.5"))
    if head == "adam" and given:
        return partial(Adam, beta2=_number(given, name, "Adam with another beta2 is named adam:BETA2", "adam:0.95"))
    kind: Callable[..., AbstractMethod] = find("methods", name)
    return kind


def _number(given: str, name: str, rule: str, example: str) -> float:
    try:
        return float(given)
    except ValueError:
        raise PluginError(f"{rule} with a number, such as {example}; got {name!r}") from None
