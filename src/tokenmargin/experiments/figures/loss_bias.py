"""Figure 5 of *Max-Margin Token Selection in Attention Mechanism*: how loss and score bend the path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from tokenmargin.dynamics import NormalizedGradientDescent, evolve
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Table, tracked
from tokenmargin.experiments.tables import PAPER_B, columns, token_table
from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import LOSSES, AbstractLoss
from tokenmargin.problem.instances import figure5
from tokenmargin.selection import angle


def _predicted_height(loss: AbstractLoss, score: float) -> float:
    """Where the path of Figure 5 levels off: the height y at which the two inputs pull equally.

    At p = (x, y) with x large the gradients are `|l'(C)| C exp(-x-y)` along (1, 1) and `|l'(1)| exp(-x+y)` along
    (1, -1); they balance at `y = log(C |l'(C)| / |l'(1)|) / 2`.
    """
    slopes = loss.log_slope(np.array([score, 1.0]))
    return float((np.log(score) + slopes[0] - slopes[1]) / 2)


@dataclass(frozen=True)
class Figure5(AbstractExperiment):
    """`tokenmargin reproduce fig5`: about 4 s; correlation loss bends towards the high score, logistic to the low."""

    figure = "fig5"
    source = PAPER_B
    title = "How loss and score bend the path before the limit"
    seconds = (4, 4)
    shows = (
        "two inputs, one with a token of score C = 1 to 10, or 100 (dashed): with correlation loss the path of p bends "
        "towards the input of the larger score, with logistic loss towards the other, and both end at p^mm = (1, 0)."
    )

    steps: int = 1000
    step: float = 0.1
    scores: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 100.0)

    def run(self, progress: Progress = None) -> Result:
        rows: list[dict[str, object]] = []
        paths: dict[str, list[Array]] = {name: [] for name in ("loss", "score", "step", "x", "y")}
        losses = [(name, loss) for name, loss in LOSSES if name in ("correlation", "logistic")]
        for score in tracked(self.scores, progress):
            problem = figure5(score)
            for name, loss in losses:
                path = evolve(
                    PromptObjective(problem, loss),
                    NormalizedGradientDescent(self.step),
                    steps=self.steps,
                    keep=("point",),
                )
                points = path["point"]
                solution = max_margin(problem, path.selected)
                for column, values in (
                    ("loss", np.full(len(points), name)),
                    ("score", np.full(len(points), float(score))),
                    ("step", path.at),
                    ("x", points[:, 0]),
                    ("y", points[:, 1]),
                ):
                    paths[column].append(values)
                # The limit is (1, 0), so the height that remains is the bias: up is the token of score C.
                rows.append(
                    {
                        "loss": name,
                        "score": float(score),
                        "height": float(points[-1, 1]),
                        "predicted": _predicted_height(loss, float(score)),
                        "angle": float(angle(problem.keys, path.final, solution.vector)),
                        "residual": solution.certificate.residual,
                    }
                )
        summary = columns(rows)
        tables = {
            "tokens": token_table(figure5(1.0)),
            "paths": {name: np.concatenate(columns) for name, columns in paths.items()},
            "bias": summary,
        }
        return Result(self, tables, self._findings(summary, tables["paths"]))

    def _findings(self, bias: Table, paths: Table) -> tuple[Finding, ...]:
        uneven = bias["score"] > 1
        height = {name: bias["height"][uneven & (bias["loss"] == name)] for name in ("correlation", "logistic")}
        known = paths["score"] <= 10
        half, end = (paths["y"][known & (paths["step"] == step)] for step in (self.steps // 2, self.steps))
        return (
            Finding("correlation loss: least height at the end, C > 1", float(height["correlation"].min()), low=0.0,
                    source="the path bends to the high score", basis="figure"),
            Finding("logistic loss: greatest height at the end, C > 1", float(height["logistic"].max()), high=0.0,
                    source="the path bends to the low score", basis="figure"),
            Finding("largest distance of a height from the closed form",
                    float(np.abs(bias["height"] - bias["predicted"]).max()), high=1e-9,
                    source="the two inputs' gradients balance there; it is approached exponentially"),
            # A height that stays while the norm grows is an angle that goes to zero.
            Finding("largest change of a height in the second half of the run, C up to 10",
                    float(np.abs(end - half).max(initial=0.0)), high=1e-9, source="so the direction goes to (1, 0)"),
            Finding("largest angle to (1, 0) at the end, C up to 10", float(bias["angle"][bias["score"] <= 10].max())),
        )  # fmt: skip
