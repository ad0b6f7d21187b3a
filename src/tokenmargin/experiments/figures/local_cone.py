"""Figure 2 of *Max-Margin Token Selection in Attention Mechanism*: starts in the cone of an LMM direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.experiments.experiment import Finding, Progress, Result, Table
from tokenmargin.experiments.figures.prompt_paths import PromptPaths
from tokenmargin.experiments.tables import ALIGNED
from tokenmargin.margin import max_margin
from tokenmargin.problem.instances import figure8
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import ConeConstants, cone_constants

SELECTED = (0, 1)  # the locally optimal direction of the instance of Figure 8


@dataclass(frozen=True)
class Figure2(PromptPaths):
    """`tokenmargin reproduce fig2`: about 1 s; no path leaves the cone, and all turn to its axis."""

    figure = "fig2"
    title = "Started in the cone of a locally optimal direction, p stays there and turns to it (Theorem 3)"
    seconds = (1, 1)
    shows = "a sketch: gradient descent started inside the cone around a locally optimal direction p^mm. No numbers."
    differences = (
        "The sketch has no data; ours are those of Figure 8, around its LMM. The cone's width and the norm it begins "
        "at are those of the proof, as cone_constants computes them.",
        "Theorem 3 is about gradient descent with small steps; normalised descent in small steps follows the same "
        "curve in fewer of them.",
    )
    directions: ClassVar[tuple[tuple[str, tuple[int, ...]], ...]] = (("LMM", SELECTED),)

    steps: int = 2000
    step: float = 0.05

    def problem(self) -> TokenProblem:
        return figure8()

    def cone(self) -> ConeConstants:
        """Width and least norm of the cone."""
        problem = self.problem()
        return cone_constants(problem, max_margin(problem, SELECTED).vector, SELECTED)

    def starts(self) -> Float[Array, "S D"]:
        """Just beyond the least norm: near both edges of the cone, half-way, and near the axis."""
        cone = self.cone()
        axis = max_margin(self.problem(), SELECTED).vector
        turn = np.arctan2(axis[1], axis[0]) + np.arccos(1 - cone.mu) * np.array([-0.95, -0.5, 0.05, 0.5, 0.95])
        return 1.02 * cone.radius * np.stack([np.cos(turn), np.sin(turn)], axis=1)

    def findings(self, limits: Table, paths: Table) -> tuple[Finding, ...]:
        cone = self.cone()
        width = float(np.arccos(1 - cone.mu))
        return (
            Finding(
                "starts inside the cone, of 5",
                float(((paths["angle"] <= width) & (paths["norm"] >= cone.radius))[paths["step"] == 0].sum()),
                5, 5, "as in the sketch", basis="figure",
            ),
            Finding(
                "largest angle to p^mm at any step, over the half-width of the cone",
                float(paths["angle"].max() / width), high=1.0, source="Theorem 3: p stays in the cone", basis="theorem",
            ),
            Finding("least norm at any step, over that of the cone", float(paths["norm"].min() / cone.radius), low=1.0,
                    source="Theorem 3: p stays in the cone", basis="theorem"),
            Finding("least cosine with p^mm at the end", float(limits["cosine"].min()), low=ALIGNED,
                    source="the cosine goes to 1; this is a run of finite length"),
            Finding("half-width of the cone, radians", width),
            Finding("norm at which the cone begins", cone.radius),
        )  # fmt: skip

    def run(self, progress: Progress = None) -> Result:
        result, cone = super().run(progress), self.cone()
        table = {"half_width": np.array([np.arccos(1 - cone.mu)]), "norm": np.array([cone.radius])}
        return Result(self, {**result.tables, "cone": table}, result.findings, result.notes)
