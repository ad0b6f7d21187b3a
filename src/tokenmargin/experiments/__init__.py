"""The figures of the papers as experiments, their records, and sweeps over their settings.

To add an experiment: write its module, and one line in `EXPERIMENT_PLACES`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tokenmargin.engines import AbstractEngine, LocalEngine, RayEngine
from tokenmargin.experiments.experiment import AbstractExperiment, Basis, Curves, Finding, Result, Table, Verdict
from tokenmargin.experiments.records import Run, find_runs, record, runs_in
from tokenmargin.experiments.settings import Axis, Grid, command, parse_axis, with_settings
from tokenmargin.experiments.sweeps import sweep

__all__ = [
    "EXPERIMENTS",
    "AbstractEngine",
    "AbstractExperiment",
    "Axis",
    "Basis",
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

EXPERIMENT_PLACES = (
    "embeddings:FigureA1",
    "embeddings:FigureA2",
    "embeddings:FigureA3Imdb",
    "embeddings:FigureA3Yelp",
    "embeddings:FigureA4",
    "sharpness:FirstStepError",
    "sharpness:Theorem5Sharpness",
    "claims:ClaimsA",
    "prompt_paths:Figure1a",
    "prompt_paths:Figure1b",
    "prompt_paths:Figure1c",
    "local_cone:Figure2",
    "joint_paths:Figure3a",
    "joint_paths:Figure3b",
    "joint_paths:Figure3c",
    "growth:Figure4a",
    "growth:Figure4b",
    "loss_bias:Figure5",
    "vision:Figure6",
    "vision:Figure7",
    "prompt_paths:Figure8",
    "overparameterisation:Figure9a",
    "overparameterisation:Figure9b",
    "overparameterisation:Figure10",
    "claims:ClaimsB",
)
"""Everything there is to reproduce, in the order of the report: module of `figures`, and class."""


def _load(place: str) -> type[AbstractExperiment]:
    module, _, name = place.partition(":")
    found: type[AbstractExperiment] = getattr(import_module(f"{__name__}.figures.{module}"), name)
    return found


if TYPE_CHECKING:
    EXPERIMENTS: tuple[type[AbstractExperiment], ...]
    """The classes at those places."""


def __getattr__(name: str) -> tuple[type[AbstractExperiment], ...]:
    """`EXPERIMENTS` is loaded when it is first asked for: the figures take as long to import as all the rest."""
    if name != "EXPERIMENTS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = tuple(map(_load, EXPERIMENT_PLACES))
    return found
