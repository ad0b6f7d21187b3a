"""Figure 4 of *Max-Margin Token Selection in Attention Mechanism*: saturation and norm along training."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from tokenmargin.dynamics import GradientDescent, NormalizedGradientDescent, evolve
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Table, tracked
from tokenmargin.experiments.tables import PAPER_B
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.problem.instances import figure1c


@dataclass(frozen=True)
class _Growth(AbstractExperiment):
    """Normalised descent against plain descent on the data of Figure 1c, from p = 0."""

    source = PAPER_B
    seconds = (0.4, 0.4)

    steps: int = 1000
    normalized_step: float = 0.1
    plain_step: float = 1.0

    @abc.abstractmethod
    def findings(self, table: Table) -> tuple[Finding, ...]:
        """What the figure claims, measured."""

    def run(self, progress: Progress = None) -> Result:
        objective = PromptObjective(figure1c())
        methods = {"ngd": NormalizedGradientDescent(self.normalized_step), "gd": GradientDescent(self.plain_step)}
        table: dict[str, Array] = {"step": np.arange(self.steps + 1)}
        for name, method in tracked(list(methods.items()), progress):
            path = evolve(objective, method, steps=self.steps, keep=("saturation", "norm"))
            table |= {f"saturation_{name}": path["saturation"], f"norm_{name}": path["norm"][:, 0]}
        return Result(self, {"curves": table}, self.findings(table))


class Figure4a(_Growth):
    """`tokenmargin reproduce fig4a`: about 0.4 s; normalised descent has mean weight 0.999 after 66 steps."""

    figure = "fig4a"
    title = "Softmax saturates sooner under normalised descent"
    shows = (
        "on the data of Figure 1c the largest softmax weight rises to 1 under both, sooner under normalised descent "
        "(step 0.1) than under gradient descent (step 1). No numbers are printed."
    )

    def findings(self, table: Table) -> tuple[Finding, ...]:
        def first(name: str) -> float:
            above = np.flatnonzero(table[name] >= 0.999)
            return float(above[0]) if above.size else np.inf

        return (
            Finding("step at which normalised descent has mean weight 0.999", first("saturation_ngd")),
            Finding("mean weight of plain descent at the end", float(table["saturation_gd"][-1])),
            Finding("mean weight of normalised descent at the end", float(table["saturation_ngd"][-1]), low=1 - 1e-5,
                    source="saturated, as the paper defines it for Figure 9", basis="printed"),
            Finding("plain descent is behind at every step after the first ten, by at least",
                    float((table["saturation_ngd"] - table["saturation_gd"])[10:].min()), low=0.0,
                    source="normalised descent gets there quicker", basis="printed"),
        )  # fmt: skip


class Figure4b(_Growth):
    """`tokenmargin reproduce fig4b`: about 0.4 s; the norm grows linearly, or like a logarithm under plain descent."""

    figure = "fig4b"
    title = "The norm of attention grows linearly or logarithmically"
    shows = (
        "the norm of p grows without bound under both: in a straight line under normalised descent, ever more slowly "
        "under gradient descent. No numbers are printed."
    )

    def findings(self, table: Table) -> tuple[Finding, ...]:
        half = self.steps // 2
        late = {name: table[f"norm_{name}"][-1] - table[f"norm_{name}"][half] for name in ("ngd", "gd")}
        return (
            Finding("normalised descent, norm gained in the second half per step taken",
                    float(late["ngd"] / (self.normalized_step * (self.steps - half))), 0.99, 1.0,
                    "a straight line has 1; the share that may be missing is our choice"),
            # A logarithm gains log 2 / log(steps) of its final value in the last halving; 1.5 allows for the offset.
            Finding("plain descent, share of the final norm gained in the second half",
                    float(late["gd"] / table["norm_gd"][-1]), high=float(1.5 * np.log(2) / np.log(self.steps)),
                    source="a logarithm gains log 2 / log(steps) of its value; half as much more is our choice"),
        )  # fmt: skip
