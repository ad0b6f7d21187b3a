"""Results of our own about limits: the constant that angle times norm tends to, and where flow rests instead.

Angle times norm is followed along two paths, beside its closed form. Saturated is not diverging: on random problems,
where gradient flow rests, and what it selects where it diverges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmargin._statistics import wilson_interval
from tokenmargin.dynamics import FlowPath, NormalizedGradientDescent, evolve_many, flow
from tokenmargin.dynamics.paths.ball import minimum_along
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Scales, Table, track
from tokenmargin.experiments.tables import columns
from tokenmargin.limits import LimitConstants, limit_constants
from tokenmargin.limits.limit import limit_of
from tokenmargin.margin import atlas
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.shared_pulls import SATURATED
from tokenmargin.problem.instances import figure1c, random_problem

NORMS = 10.0 ** np.arange(1.0, 7.01, 0.25)


@dataclass(frozen=True)
class Constants(AbstractExperiment):
    """`tokenmargin reproduce constants`: about 10 s; both products agree with the closed form to 1e-6.

    Angle to the max-margin direction times norm, along gradient flow and along the regularisation path, on Figure 1c of
    *Max-Margin Token Selection in Attention Mechanism* and on random problems. Expected: the constants of
    `docs/results/constants.md`, computed from multipliers, scores and slopes alone.
    """

    figure = "constants"
    source = "A result of our own (docs/results/constants.md)"
    title = "Angle times norm tends to a constant that multipliers, scores and the loss give"
    shows = "rates without constants (Theorem 3's log t); the constants are ours."
    seconds = (10, 60)
    shown_tables = ("constants",)
    scales = Scales(paper={"problems": 24})

    problems: int = 6
    seed: int = 0

    def run(self, progress: Progress = None) -> Result:
        rng = np.random.default_rng(self.seed)
        named = [
            ("fig1c", figure1c()),
            *((f"random {k}", random_problem(3, 4, 5, rng=rng)) for k in range(1, self.problems)),
        ]
        summary: list[dict[str, object]] = []
        curves: list[dict[str, object]] = []
        for name, problem in track(named, progress):
            path = flow(PromptObjective(problem), until_norm=1.01 * float(NORMS[-1]))
            found = limit_constants(problem, path.selected)
            if path.stop == "norm" and not found.reason:
                rows = _products(name, found, path)
                curves += rows
                summary.append(_constants_row(name, found, rows[-1]))
        table = columns(summary)
        return Result(self, {"constants": table, "curves": columns(curves)}, _constant_findings(table))


def _products(name: str, found: LimitConstants, path: FlowPath) -> list[dict[str, object]]:
    """Angle times norm at growing norms, on the flow from p = 0 and on the regularisation path."""
    direction = found.named.solution.vector
    return [
        {
            "problem": name,
            "norm": norm,
            "flow": found.product(path.at_norm(norm)),
            "path": found.product(minimum_along(path.objective, direction, norm)),
            "closed_form": found.constant,
            "closed_form_flow": found.of_flow(path.prompt),
        }
        for norm in NORMS.tolist()
    ]


def _constants_row(name: str, found: LimitConstants, last: dict[str, object]) -> dict[str, object]:
    return {
        "problem": name,
        "active": int((found.multipliers > 0).sum()),
        "rank": found.rank,
        "constant": found.constant,
        "correction": found.correction,
        "path": last["path"],
        "constant_of_flow": last["closed_form_flow"],
        "flow": last["flow"],
        "critical_step": found.critical_step,
    }


def _constant_findings(table: Table) -> tuple[Finding, ...]:
    radius = float(NORMS[-1])
    path = np.abs(table["path"] - (table["constant"] - table["correction"] / radius)) / table["constant"]
    along = np.abs(table["flow"] - table["constant_of_flow"]) / table["constant_of_flow"]
    digits = "four digits; what is left is of order 1/R^2"
    return (
        Finding("regularisation path, largest relative difference", float(path.max()), high=5e-5, source=digits),
        Finding("gradient flow, largest relative difference", float(along.max()), high=5e-5, source=digits),
    )


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
        runs = columns([self._follow(d, trial) for d, trial in track(jobs, progress)])
        table = columns([_dimension_row(d, runs) for d in self.dimensions])
        return Result(self, {"dimensions": table, "runs": runs}, _saturation_findings(runs, table))

    def _follow(self, d: int, trial: int) -> dict[str, object]:
        """One problem: the flow from zero, the directions there are, and the share of starts that go to the GMM."""
        rng = np.random.default_rng([self.seed, d, trial])
        problem = random_problem(4, 6, d, rng=rng)
        found = limit_of(problem, until_norm=self.reach)
        objective, end = PromptObjective(problem), found.path.final
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
            "ends": {"direction": found.kind, "bounded": "at rest"}.get(found.outcome, "undecided"),
            "norm": found.path.norm,
            "saturation": float(objective.forward(end).weights.max(axis=-1).min()),  # the least of all inputs
            "balance": float(objective.linearise(end).balance.max()),
            "directions": len(listed.limits),
            "complete": listed.complete,
            "gmm": len(best),
            "gmm_share": float((settled & optimal).mean()) if best else 0.0,
        }


def _dimension_row(d: int, runs: Table) -> dict[str, object]:
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


def _saturation_findings(runs: Table, table: Table) -> tuple[Finding, ...]:
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
