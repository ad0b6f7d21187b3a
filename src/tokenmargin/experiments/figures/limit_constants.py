"""The constants of a limit: angle times norm along two paths, against the closed form. A result of our own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmargin.dynamics import FlowPath, flow
from tokenmargin.dynamics.paths.ball import minimum_along
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Scales, Table, tracked
from tokenmargin.experiments.tables import columns
from tokenmargin.limits import LimitConstants, limit_constants
from tokenmargin.objective.attention import PromptObjective
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
        for name, problem in tracked(named, progress):
            path = flow(PromptObjective(problem), until_norm=1.01 * float(NORMS[-1]))
            found = limit_constants(problem, path.selected)
            if path.stop == "norm" and not found.reason:
                rows = _products(name, found, path)
                curves += rows
                summary.append(_summary(name, found, rows[-1]))
        table = columns(summary)
        return Result(self, {"constants": table, "curves": columns(curves)}, _findings(table))


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


def _summary(name: str, found: LimitConstants, last: dict[str, object]) -> dict[str, object]:
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


def _findings(table: Table) -> tuple[Finding, ...]:
    radius = float(NORMS[-1])
    path = np.abs(table["path"] - (table["constant"] - table["correction"] / radius)) / table["constant"]
    along = np.abs(table["flow"] - table["constant_of_flow"]) / table["constant_of_flow"]
    digits = "four digits; what is left is of order 1/R^2"
    return (
        Finding("regularisation path, largest relative difference", float(path.max()), high=5e-5, source=digits),
        Finding("gradient flow, largest relative difference", float(along.max()), high=5e-5, source=digits),
    )
