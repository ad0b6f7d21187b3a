"""The demonstration: one problem of our own, every direction attention can converge to, and which start finds which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.experiments.experiment import Finding, Table
from tokenmargin.experiments.figures.prompt_paths import PromptPaths
from tokenmargin.experiments.tables import ALIGNED, columns, direction_row
from tokenmargin.margin import atlas
from tokenmargin.problem.instances import three_limits
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import spelled


@dataclass(frozen=True)
class Demo(PromptPaths):
    """`tokenmargin demo`: about 2 s; twelve starts reach three certified limits, each at cosine 0.999 or more."""

    figure = "demo"
    source = "an instance of our own"
    seconds = (2, 2)
    title = "Two inputs, four tokens each: three directions attention can converge to"
    followed: ClassVar[bool] = False

    steps: int = 5000
    step: float = 0.05
    circle: int = 12

    def problem(self) -> TokenProblem:
        return three_limits()

    def starts(self) -> Float[Array, "S D"]:
        turn = np.linspace(0, 2 * np.pi, self.circle, endpoint=False)
        return np.stack([3 * np.cos(turn), 3 * np.sin(turn), np.zeros_like(turn)], axis=1).round(12) + 0.0

    def direction_table(self, problem: TokenProblem) -> Table:
        limits = atlas(problem).limits
        return columns(
            [{**direction_row(limit.kind, limit.solution), "selected": spelled(limit.chosen)} for limit in limits]
        )

    def selection_counts(self, problem: TokenProblem) -> dict[str, int]:
        """How many selections there are, how many no direction can pick, and how many are limits."""
        found = atlas(problem)
        return {"all": found.selections, "infeasible": found.infeasible, "limits": len(found.limits)}

    def findings(self, limits: Table, paths: Table) -> tuple[Finding, ...]:
        reached = set(limits["selected"].tolist())
        return (
            Finding("distinct limits reached", float(len(reached)), 3, 3, "the atlas of this problem has three"),
            Finding("least cosine of a start with its certified limit", float(limits["cosine"].min()), low=ALIGNED,
                    source="Theorem 3, after a run of finite length"),
            Finding("largest certificate residual", float(limits["residual"].max()), high=1e-10,
                    source="our own KKT check"),
        )  # fmt: skip
