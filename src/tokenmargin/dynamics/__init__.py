"""Training as dynamics: descent, normalised descent, and the trajectories they leave."""

from tokenmargin.dynamics.evolve import OBSERVABLES, Trajectory, evolve
from tokenmargin.dynamics.methods import AbstractMethod, GradientDescent, NormalizedGradientDescent

__all__ = ["OBSERVABLES", "AbstractMethod", "GradientDescent", "NormalizedGradientDescent", "Trajectory", "evolve"]
