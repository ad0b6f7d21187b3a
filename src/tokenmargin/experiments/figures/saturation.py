"""Saturated is not diverging: where gradient flow rests on random problems, and what it selects where it diverges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmargin._statistics import wilson_interval
from tokenmargin.dynamics import NormalizedGradientDescent, evolve_many
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Scales, Table, tracked
from tokenmargin.experiments.tables import columns
from tokenmargin.limits.by_method import SATURATED
from tokenmargin.limits.limit import Limit, limit_of
from tokenmargin.margin import atlas
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.problem.instances import random_problem
from tokenmargin.problem.token_problem import TokenProblem


@dataclass(frozen=True)
class Saturation(AbstractExperiment):
    """`tokenmargin reproduce saturation`: random problems of growing dimension, flow from p = 0 and from random starts.

    The problems are those of Figure 9 of *Max-Margin Token Selection in Attention Mechanism*: four inputs of six
    random tokens. A path that rests is shown by its balance: the length of the gradient over the summed lengths of its
    terms.
    """

    figure = "saturation"
    source = "A result of our own (docs/results/saturation.md)"
    title = "Saturated is not diverging; how often the limit is global is the size of its basin"
    shows = (
        "in Figure 9b a few saturated runs have a negative score gap, which no direction of convergence has; "
        "the share of global limits grows with the dimension."
    )
    seconds = (40, 300)
    shown_tables = ("dimensions",)
    scales = Scales(quick={"trials": 6, "starts": 8})

    dimensions: tuple[int, ...] = (2, 3, 5, 10, 30, 100)
    trials: int = 40
    starts: int = 16
    reach: float = 1e8
    seed: int = 0

    def run(self, progress: Progress = None) -> Result:
        jobs = [(d, trial) for d in self.dimensions for trial in range(self.trials)]
        runs = columns([self._follow(d, trial) for d, trial in tracked(jobs, progress)])
        table = columns([_summary(d, runs) for d in self.dimensions])
        return Result(self, {"dimensions": table, "runs": runs}, _findings(runs, table))

    def _follow(self, d: int, trial: int) -> dict[str, object]:
        """One problem: the flow from zero, the directions there are, and the share of starts that go to the GMM."""
        rng = np.random.default_rng([self.seed, d, trial])
        problem = random_problem(4, 6, d, rng=rng)
        found = limit_of(problem, until_norm=self.reach)
        listed = atlas(problem)
        best = [entry for entry in listed.limits if entry.kind == "GMM"]
        # The largest logit of a start is of order one in every dimension, as it is of tokens of unit length.
        starts = rng.standard_normal((self.starts, d)) * np.sqrt(d)
        ends = evolve_many([problem], NormalizedGradientDescent(1.0), starts=starts[None], steps=1000)
        settled = ends.saturation[0] >= SATURATED
        optimal = (ends.selected[0] == problem.scores.argmax(axis=1)).all(axis=1)
        return {
            "d": d,
            "trial": trial,
            "ends": _words(found),
            "norm": found.path.norm,
            "saturation": _saturation(problem, found),
            "balance": _balance(problem, found),
            "directions": len(listed.limits),
            "complete": listed.complete,
            "gmm": len(best),
            "gmm_share": float((settled & optimal).mean()) if best else 0.0,
        }


def _words(found: Limit) -> str:
    match found.outcome:
        case "direction":
            return found.kind
        case "bounded":
            return "at rest"
        case _:
            return "undecided"


def _saturation(problem: TokenProblem, found: Limit) -> float:
    """Smallest weight, over the inputs, of an input's largest one at the end."""
    return float(PromptObjective(problem).forward(found.path.final).weights.max(axis=-1).min())


def _balance(problem: TokenProblem, found: Limit) -> float:
    return float(PromptObjective(problem).linearise(found.path.final).balance.max())


def _summary(d: int, runs: Table) -> dict[str, object]:
    here = runs["d"] == d
    ends = runs["ends"][here]
    rests = ends == "at rest"
    low, high = wilson_interval(int(rests.sum()), len(ends))
    return {
        "d": d,
        "trials": len(ends),
        "at_rest": float(rests.mean()),
        "at_rest_low": low,
        "at_rest_high": high,
        "saturated_at_rest": int((rests & (runs["saturation"][here] >= SATURATED)).sum()),
        "largest_balance": float(runs["balance"][here][rests].max(initial=0.0)),
        "LMM": float((ends == "LMM").mean()),
        "GMM": float((ends == "GMM").mean()),
        "undecided": int((ends == "undecided").sum()),
        "directions": float(runs["directions"][here].mean()),
        "gmm_exists": float((runs["gmm"][here] > 0).mean()),
        "gmm_basin": float(runs["gmm_share"][here].mean()),
    }


def _findings(runs: Table, table: Table) -> tuple[Finding, ...]:
    rests = runs["ends"] == "at rest"
    far = np.abs(table["GMM"] - table["gmm_basin"])
    return (
        Finding("largest balance of a path at rest", float(runs["balance"][rests].max(initial=0.0)), high=1e-9,
                source="the gradient's terms cancel to this part of their length"),
        Finding("paths at rest with every input saturated",
                float((rests & (runs["saturation"] >= SATURATED)).sum())),
        Finding("share at rest, largest dimension", float(table["at_rest"][-1]), high=0.0,
                source="for larger d softmax saturates", basis="figure"),
        Finding("share of global limits from p = 0 less the mean size of the GMM's basin, largest", float(far.max())),
    )  # fmt: skip
