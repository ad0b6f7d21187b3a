"""The demonstration: one problem of our own, every direction attention can converge to, and which start finds which."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.experiments.experiment import Finding, Table
from tokenmargin.experiments.prompt_paths import PromptPaths
from tokenmargin.experiments.tables import ALIGNED, columns
from tokenmargin.instances import three_limits
from tokenmargin.margin import max_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import is_globally_optimal, is_locally_optimal

__all__ = ["Demo"]


@dataclass(frozen=True)
class Demo(PromptPaths):
    """`tokenmargin demo`: about 2 s; twelve starts reach three certified limits, each at cosine 0.999 or more."""

    figure: ClassVar[str] = "demo"
    source: ClassVar[str] = "an instance of our own"
    title: ClassVar[str] = "Two inputs, four tokens each: three directions attention can converge to"

    steps: int = 5000
    step: float = 0.05
    circle: int = 12

    def problem(self) -> TokenProblem:
        return three_limits()

    def starts(self) -> Float[Array, "S D"]:
        turn = np.linspace(0, 2 * np.pi, self.circle, endpoint=False)
        return np.stack([3 * np.cos(turn), 3 * np.sin(turn), np.zeros_like(turn)], axis=1).round(12) + 0.0

    def direction_table(self, problem: TokenProblem) -> Table:
        return columns([row for row in selection_rows(problem) if row["direction"] != "infeasible"])

    def selection_counts(self, problem: TokenProblem) -> dict[str, int]:
        """How many of all selections are infeasible, separable but not locally optimal, and limits."""
        kinds = [row["direction"] for row in selection_rows(problem)]
        limits = sum(kind in ("GMM", "LMM") for kind in kinds)
        return {"all": len(kinds), "infeasible": kinds.count("infeasible"), "limits": limits}

    def findings(self, limits: Table) -> tuple[Finding, ...]:
        reached = set(limits["selected"].tolist())
        return (
            Finding("distinct limits reached", float(len(reached)), 3, 3, "the problem has three"),
            Finding(
                "least cosine of a start with its certified limit",
                float(limits["cosine"].min()),
                low=ALIGNED,
                source="Theorem 3",
            ),
            Finding(
                "largest certificate residual",
                float(limits["residual"].max()),
                high=1e-10,
                source="our own KKT check",
            ),
        )


def selection_rows(problem: TokenProblem) -> list[dict[str, object]]:
    """Every selection of one token per input: can a direction pick it, and is it locally optimal?"""
    rows: list[dict[str, object]] = []
    visible: list[list[int]] = [np.flatnonzero(here).tolist() for here in problem.mask]
    for alpha in itertools.product(*visible):
        solution = max_margin(problem, alpha)
        local = solution.is_optimal and is_locally_optimal(problem, solution.vector, alpha)
        kind = ("GMM" if is_globally_optimal(problem, alpha) else "LMM") if local else "separable"
        rows.append(
            {
                "direction": kind if solution.is_optimal else solution.status,
                "selected": " ".join(map(str, alpha)),
                "x": solution.vector[0],
                "y": solution.vector[1],
                "margin": solution.margin,
                "residual": solution.certificate.residual,
            }
        )
    return rows
