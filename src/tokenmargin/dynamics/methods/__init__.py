"""Methods of descent: how the next point follows from the gradient, and what is remembered from step to step."""

from tokenmargin.dynamics.methods.method import (
    AbstractMethod,
    AbstractStepLength,
    AbstractValue,
    GradientDescent,
    MirrorDescent,
    NormalizedGradientDescent,
    Polyak,
    Schedule,
    State,
    Value,
)
from tokenmargin.dynamics.methods.named import as_method, method_named
from tokenmargin.dynamics.methods.with_memory import Adam, Momentum, SteepestDescent

__all__ = [
    "AbstractMethod",
    "AbstractStepLength",
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
