"""Figure 3 of *Max-Margin Token Selection in Attention Mechanism*: head and attention vector trained together."""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np

from tokenmargin.dynamics import NormalizedGradientDescent, Trajectory, evolve
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Table
from tokenmargin.experiments.tables import ALIGNED, PAPER_B, columns, direction_row, planar_angle, token_table
from tokenmargin.margin import MarginSolution, label_margin, max_margin, relaxed_max_margin
from tokenmargin.objective.attention import JointObjective
from tokenmargin.problem.instances import figure3a, figure3b
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import attention_weights

OPTIMAL = (1, 1, 1)  # the second token of each input


@dataclass(frozen=True)
class _Joint(AbstractExperiment):
    """Normalised descent on v and p, each by its own gradient norm, from v = (-1, 0) and p = (0, -1)."""

    source = PAPER_B
    seconds = (0.3, 0.3)

    steps: int = 1000
    step: float = 0.1

    def problem(self) -> TokenProblem:
        """The figure's data."""
        return figure3a()

    @abc.abstractmethod
    def findings(self, paths: Table, solutions: dict[str, MarginSolution]) -> tuple[Finding, ...]:
        """What the figure claims, measured."""

    def run(self, progress: Progress = None) -> Result:
        problem = self.problem()
        path = evolve(
            JointObjective(problem),
            NormalizedGradientDescent(self.step),
            steps=self.steps,
            start=np.array([-1.0, 0.0, 0.0, -1.0]),
            keep=("point", "saturation", "output"),
            progress=None if progress is None else lambda done: progress(done / self.steps),
        )
        solutions = {
            "p_mm": max_margin(problem, OPTIMAL),
            "p_relax": relaxed_max_margin(problem, OPTIMAL),
            "v_mm": label_margin(problem, OPTIMAL),
        }
        tables = {
            "tokens": {**token_table(problem), "optimal": np.tile([False, True], problem.n)},
            "labels": {"input": np.arange(problem.n), "label": problem.labels},
            "directions": columns([direction_row(*named) for named in solutions.items()]),
            "paths": _path_table(path, problem, solutions),
        }
        return Result(self, tables, self.findings(tables["paths"], solutions))


def _path_table(path: Trajectory, problem: TokenProblem, solutions: dict[str, MarginSolution]) -> Table:
    """Points of v and p, their angles to the three directions, and the probabilities of Figure 3c.

    `optimal_probability` is that of the optimal tokens, as in the caption; `largest_probability` is the mean of the
    largest weight, as the formula in the text has it. They part while another token has the larger weight.
    """
    head, prompt = path["point"][:, :2], path["point"][:, 2:]
    weights = attention_weights(problem.keys, prompt)
    angles = {
        f"angle_{name}": planar_angle(head if name == "v_mm" else prompt, solution.vector)
        for name, solution in solutions.items()
    }
    return {
        "step": path.at,
        **{f"v_{axis}": head[:, k] for k, axis in enumerate("xy")},
        **{f"p_{axis}": prompt[:, k] for k, axis in enumerate("xy")},
        "v_norm": np.linalg.norm(head, axis=1),
        "p_norm": np.linalg.norm(prompt, axis=1),
        **angles,
        "optimal_probability": weights[:, np.arange(problem.n), list(OPTIMAL)].mean(axis=1),
        "largest_probability": path["saturation"],
        "logistic_probability": np.exp(-np.logaddexp(0.0, -path["output"])).mean(axis=1),  # of 1 / (1 + exp(-Y f))
    }  # fmt: skip


def _last_cosine(paths: Table, name: str) -> float:
    return float(np.cos(paths[f"angle_{name}"][-1]))


FINITE = "the cosine goes to 1; this is a run of finite length"


def _still_falls(paths: Table, name: str) -> Finding:
    """Whether p goes on turning to a direction: an angle that stops falling has another limit, however small it is."""
    half = len(paths["step"]) // 2
    angles, norms = paths[f"angle_{name}"], paths["p_norm"]
    return Finding(
        "exponent with which that angle of p falls with its norm, second half of the run",
        float(np.log(angles[-1] / angles[half]) / np.log(norms[-1] / norms[half])),
        high=-0.9,
        source="-1 is an angle of c / norm, 0 one that has stopped falling",
    )


class Figure3a(_Joint):
    """`tokenmargin reproduce fig3a`: about 0.3 s; p and v at cosine 0.9999 with their max-margin directions."""

    figure = "fig3a"
    title = "All selected tokens are support vectors: p and v reach their max-margin directions (Theorem 5)"
    shows = (
        "head v and attention vector p trained together on three inputs of two tokens, all selected tokens support "
        "vectors of the classifier: v turns to v^mm and p to p^mm. No numbers are printed."
    )

    def findings(self, paths: Table, solutions: dict[str, MarginSolution]) -> tuple[Finding, ...]:
        return (
            Finding("cosine of p with p^mm", _last_cosine(paths, "p_mm"), low=ALIGNED, source=f"Theorem 5: {FINITE}"),
            Finding("cosine of v with v^mm", _last_cosine(paths, "v_mm"), low=ALIGNED, source=f"Theorem 5: {FINITE}"),
            _still_falls(paths, "p_mm"),
        )


class Figure3b(_Joint):
    """`tokenmargin reproduce fig3b`: about 0.3 s; p at cosine 0.9999 with p^relax, 0.98 with p^mm."""

    figure = "fig3b"
    title = "One token is no support vector: p reaches the relaxed direction instead (Theorem 6)"
    shows = (
        "the same with one selected token that is no support vector: p turns away from p^mm to the solution p^relax "
        "of the problem that asks nothing but non-negative margins of that input. No numbers are printed."
    )

    def problem(self) -> TokenProblem:
        return figure3b()

    def findings(self, paths: Table, solutions: dict[str, MarginSolution]) -> tuple[Finding, ...]:
        apart = float(planar_angle(solutions["p_mm"].vector, solutions["p_relax"].vector))
        source = f"Theorem 6: {FINITE}"
        return (
            Finding("cosine of p with p^relax", _last_cosine(paths, "p_relax"), low=ALIGNED, source=source),
            Finding("angle of p to p^relax over its angle to p^mm",
                    float(paths["angle_p_relax"][-1] / paths["angle_p_mm"][-1]), high=0.1,
                    source=f"p leaves p^mm, which is {apart:.3f} rad from p^relax"),
            Finding("cosine of v with v^mm", _last_cosine(paths, "v_mm"), low=ALIGNED, source=source),
            _still_falls(paths, "p_relax"),
            Finding("norm of v over norm of p at the end", float(paths["v_norm"][-1] / paths["p_norm"][-1]),
                    source="which direction p has in the limit depends on it, and the theorem names no ratio"),
        )  # fmt: skip


class Figure3c(_Joint):
    """`tokenmargin reproduce fig3c`: about 0.3 s; both probabilities reach 1."""

    figure = "fig3c"
    title = "Softmax and output probabilities in the run of Figure 3a"
    shows = (
        "in the run of Figure 3a the softmax probability of the optimal tokens and the logistic probability of the "
        "labels both rise to 1. No numbers are printed."
    )
    differences = (
        "The caption names the probability of the optimal tokens, the formula in the text the largest one of each "
        "input; they part at first. Drawn is the caption's; the table has both.",
    )

    def findings(self, paths: Table, solutions: dict[str, MarginSolution]) -> tuple[Finding, ...]:
        start = float(paths["optimal_probability"][0])
        logits = np.array([-1.0, 1.0, -1.0])  # of the optimal tokens along p = (0, -1), against 0 of the others
        exact = float((1 / (1 + np.exp(-logits))).mean())
        return (
            Finding(
                "mean softmax probability of the optimal tokens at the start", start, exact - 1e-12, exact + 1e-12,
                "its closed form at p = (0, -1)",
            ),
            Finding("the same at the end", float(paths["optimal_probability"][-1]), low=1 - 1e-6,
                    source="it rises to 1: to six digits"),
            Finding("mean logistic probability of the labels at the end", float(paths["logistic_probability"][-1]),
                    low=1 - 1e-6, source="it rises to 1: to six digits"),
            Finding("the same at the start", float(paths["logistic_probability"][0])),
        )  # fmt: skip
