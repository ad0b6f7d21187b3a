"""The figures of the papers as experiments, their records, and sweeps over their settings.

A figure of the papers is a module in `figures` and a line in `EXPERIMENT_PLACES`. Other packages add experiments of
their own as entry points: see `tokenmargin.plugins`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, cast

from tokenmargin.engines import AbstractEngine, LocalEngine, RayEngine
from tokenmargin.experiments.experiment import AbstractExperiment, Basis, Curves, Finding, Result, Table, Verdict
from tokenmargin.experiments.records import Run, find_runs, record, runs_in
from tokenmargin.experiments.settings import Axis, Grid, command, parse_axis, with_settings
from tokenmargin.experiments.sweeps import sweep
from tokenmargin.plugins import added_names, find, load_added

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
    "experiment_named",
    "find_runs",
    "parse_axis",
    "record",
    "runs_in",
    "sweep",
    "with_settings",
]

_FIGURES = (
    ("embeddings", "FigureA1 FigureA2 FigureA3Imdb FigureA3Yelp FigureA4"),
    ("word_pairs", "Pairs"),
    ("theorem5", "FirstStepError Theorem5Sharpness"),
    ("claims", "ClaimsA"),
    ("prompt_paths", "Figure1a Figure1b Figure1c Figure2"),
    ("joint_paths", "Figure3a Figure3b Figure3c"),
    ("along_training", "Figure4a Figure4b Figure5"),
    ("vision", "Figure6 Figure7"),
    ("prompt_paths", "Figure8"),
    ("overparameterisation", "Figure9a Figure9b Figure10"),
    ("claims", "ClaimsB"),
    ("next_token", "NextTokenGlobal NextTokenLocal"),
    ("claims", "ClaimsD"),
    ("svm_paths", "SvmPaths"),
    ("svm_local", "SvmW SvmKQ"),
    ("svm_paths", "SvmTokens KQRate"),
    ("claims", "ClaimsC"),
    ("limits", "Constants Saturation"),
    ("methods", "MethodMargins"),
    ("joint_phase", "JointPhase"),
    ("single_location", "SingleLocationCurves"),
    ("theorem5", "FirstStepSharp Theorem5Plus"),
)
EXPERIMENT_PLACES = tuple(f"{module}:{name}" for module, names in _FIGURES for name in names.split())
"""Our own experiments, in the order of the report: module of `figures`, and class."""


def _load(place: str) -> type[AbstractExperiment]:
    module, _, name = place.partition(":")
    found: type[AbstractExperiment] = getattr(import_module(f"{__name__}.figures.{module}"), name)
    return found


if TYPE_CHECKING:
    EXPERIMENTS: tuple[type[AbstractExperiment], ...]
    """The classes at those places, and those that other packages add."""


def __getattr__(name: str) -> tuple[type[AbstractExperiment], ...]:
    """`EXPERIMENTS` is loaded when it is first asked for: the figures take as long to import as all the rest."""
    if name != "EXPERIMENTS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    own = tuple(map(_load, EXPERIMENT_PLACES))
    added = load_added("experiments", taken=(experiment.figure for experiment in own))
    globals()[name] = found = (*own, *added.values())
    return found


def experiment_named(name: str) -> type[AbstractExperiment]:
    """The class of a name such as "fig1b", one that another package adds, or the one at `MODULE:CLASS`."""
    if ":" in name:
        return cast("type[AbstractExperiment]", find("experiments", name))
    own, added = {known.figure: known for known in map(_load, EXPERIMENT_PLACES)}, added_names("experiments")
    if name in own:
        return own[name]
    if name in added:
        return cast("type[AbstractExperiment]", find("experiments", name))
    raise ValueError(f"no figure {name!r}; choose from {', '.join((*own, *added))}")
