"""The figures of the papers as experiments. To add one: write its module, add its class to `EXPERIMENTS`."""

from tokenmargin.experiments.claims import ClaimsA, ClaimsB
from tokenmargin.experiments.embeddings import FigureA1, FigureA2, FigureA3Imdb, FigureA3Yelp, FigureA4
from tokenmargin.experiments.engines import AbstractEngine, LocalEngine, RayEngine
from tokenmargin.experiments.experiment import AbstractExperiment, Curves, Finding, Result, Table, Verdict
from tokenmargin.experiments.growth import Figure4a, Figure4b
from tokenmargin.experiments.joint_paths import Figure3a, Figure3b, Figure3c
from tokenmargin.experiments.loss_bias import Figure5
from tokenmargin.experiments.overparameterisation import Figure9a, Figure9b, Figure10
from tokenmargin.experiments.prompt_paths import Figure1a, Figure1b, Figure1c, Figure8
from tokenmargin.experiments.records import Run, find_runs, record, runs_in
from tokenmargin.experiments.settings import Axis, Grid, command, parse_axis, with_settings
from tokenmargin.experiments.sharpness import FirstStepError, Theorem5Sharpness
from tokenmargin.experiments.sweeps import sweep

__all__ = [
    "EXPERIMENTS",
    "AbstractEngine",
    "AbstractExperiment",
    "Axis",
    "Curves",
    "Finding",
    "Grid",
    "LocalEngine",
    "RayEngine",
    "Result",
    "Run",
    "Table",
    "Verdict",
    "command",
    "find_runs",
    "parse_axis",
    "record",
    "runs_in",
    "sweep",
    "with_settings",
]

EXPERIMENTS: tuple[type[AbstractExperiment], ...] = (
    FigureA1,
    FigureA2,
    FigureA3Imdb,
    FigureA3Yelp,
    FigureA4,
    FirstStepError,
    Theorem5Sharpness,
    ClaimsA,
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
    ClaimsB,
)
"""Everything there is to reproduce, in the order of the report."""
