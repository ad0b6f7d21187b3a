"""Training as dynamics: descent, gradient flow to any norm, thousands of runs at once, and regularisation paths."""

from tokenmargin.dynamics.batch import BatchResult, evolve_many
from tokenmargin.dynamics.events import (
    AngleReached,
    Crossing,
    NormReached,
    Saturated,
    SelectionChanged,
    WhenTrue,
    whole_runs,
)
from tokenmargin.dynamics.evolve import OBSERVABLES, Memory, Trajectory, evolve
from tokenmargin.dynamics.flow import FlowPath, flow
from tokenmargin.dynamics.integrate import FlowSettings
from tokenmargin.dynamics.methods import (
    AbstractMethod,
    AbstractStepLength,
    Adam,
    GradientDescent,
    MirrorDescent,
    Momentum,
    NormalizedGradientDescent,
    Polyak,
    Schedule,
    SteepestDescent,
    as_method,
    method_named,
)
from tokenmargin.dynamics.paths.ball import RegularisationPath, regularisation_path
from tokenmargin.dynamics.paths.cone import ConePath, cone_path
from tokenmargin.dynamics.paths.joint import RidgePath, ridge_path
from tokenmargin.dynamics.rest import FinitePart
from tokenmargin.dynamics.rounding import Rounding

__all__ = [
    "OBSERVABLES",
    "AbstractMethod",
    "AbstractStepLength",
    "Adam",
    "AngleReached",
    "BatchResult",
    "ConePath",
    "Crossing",
    "FinitePart",
    "FlowPath",
    "FlowSettings",
    "GradientDescent",
    "Memory",
    "MirrorDescent",
    "Momentum",
    "NormReached",
    "NormalizedGradientDescent",
    "Polyak",
    "RegularisationPath",
    "RidgePath",
    "Rounding",
    "Saturated",
    "Schedule",
    "SelectionChanged",
    "SteepestDescent",
    "Trajectory",
    "WhenTrue",
    "as_method",
    "cone_path",
    "evolve",
    "evolve_many",
    "flow",
    "method_named",
    "regularisation_path",
    "ridge_path",
    "whole_runs",
]
