"""Figures 4 and 5 of *Max-Margin Token Selection in Attention Mechanism*: saturation, norm and bias along training."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from tokenmargin.dynamics import GradientDescent, NormalizedGradientDescent, evolve
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Table, track
from tokenmargin.experiments.tables import PAPER_B, columns, token_table
from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import LOSSES, AbstractLoss
from tokenmargin.problem.instances import figure1c, figure5
from tokenmargin.selection import angle


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
        for name, method in track(list(methods.items()), progress):
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
        for score in track(self.scores, progress):
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
