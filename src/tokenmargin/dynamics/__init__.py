"""Training as dynamics: descent, normalised descent, and the trajectories they leave."""

from tokenmargin.dynamics.evolve import OBSERVABLES, Trajectory, evolve
from tokenmargin.dynamics.first_step import FirstStep, first_step
from tokenmargin.dynamics.methods import AbstractMethod, GradientDescent, NormalizedGradientDescent

__all__ = [
    "OBSERVABLES",
    "AbstractMethod",
    "FirstStep",
    "GradientDescent",
    "NormalizedGradientDescent",
    "Trajectory",
    "evolve",
    "first_step",
]
