"""The figures of the papers as experiments. To add one: write its module, add its class to `EXPERIMENTS`."""

from tokenmargin.experiments.embeddings import FigureA1, FigureA2, FigureA3Imdb, FigureA3Yelp, FigureA4
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Result, Table
from tokenmargin.experiments.growth import Figure4a, Figure4b
from tokenmargin.experiments.joint_paths import Figure3a, Figure3b, Figure3c
from tokenmargin.experiments.loss_bias import Figure5
from tokenmargin.experiments.overparameterisation import Figure9a, Figure9b, Figure10
from tokenmargin.experiments.prompt_paths import Figure1a, Figure1b, Figure1c, Figure8
from tokenmargin.experiments.sharpness import FirstStepError, Theorem5Sharpness

__all__ = ["EXPERIMENTS", "AbstractExperiment", "Finding", "Result", "Table"]

EXPERIMENTS: tuple[type[AbstractExperiment], ...] = (
    Figure1a,
    Figure1b,
    Figure1c,
    Figure3a,
    Figure3b,
    Figure3c,
    Figure4a,
    Figure4b,
    Figure5,
    Figure8,
    Figure9a,
    Figure9b,
    Figure10,
    FigureA1,
    FigureA2,
    FigureA3Imdb,
    FigureA3Yelp,
    FigureA4,
    FirstStepError,
    Theorem5Sharpness,
)
