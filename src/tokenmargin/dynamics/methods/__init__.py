"""Methods of descent: how the next point follows from the gradient, and what is remembered from step to step."""

from tokenmargin.dynamics.methods.along import AbstractLengths, GradientDescent, NormalizedGradientDescent, Polyak
from tokenmargin.dynamics.methods.method import AbstractMethod, AbstractValue, Schedule, State, Value
from tokenmargin.dynamics.methods.mirror import MirrorDescent
from tokenmargin.dynamics.methods.momentum import Adam, Momentum, SteepestDescent
from tokenmargin.dynamics.methods.named import as_method, method_named

__all__ = [
    "AbstractLengths",
    "AbstractMethod",
    "AbstractValue",
    "Adam",
    "GradientDescent",
    "MirrorDescent",
    "Momentum",
    "NormalizedGradientDescent",
    "Polyak",
    "Schedule",
    "State",
    "SteepestDescent",
    "Value",
    "as_method",
    "method_named",
]
