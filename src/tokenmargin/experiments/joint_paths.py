"""Figure 3 of *Max-Margin Token Selection in Attention Mechanism*: head and attention vector trained together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy import ndarray as Array

from tokenmargin.attention import JointObjective
from tokenmargin.dynamics import NormalizedGradientDescent, Trajectory, evolve
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Result, Table
from tokenmargin.experiments.tables import ALIGNED, PAPER_B, token_table
from tokenmargin.instances import figure3a, figure3b
from tokenmargin.margin import MarginSolution, label_margin, max_margin, relaxed_max_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import cosine

__all__ = ["Figure3a", "Figure3b", "Figure3c"]

OPTIMAL = (1, 1, 1)  # the second token of each input


@dataclass(frozen=True)
class _Joint(AbstractExperiment):
    """Normalised descent on v and p, each by its own gradient norm, from v = (-1, 0) and p = (0, -1)."""

    source: ClassVar[str] = PAPER_B

    steps: int = 1000
    step: float = 0.1

    def problem(self) -> TokenProblem:
        """The figure's data."""
        return figure3a()

    def findings(self, path: Trajectory, solutions: dict[str, MarginSolution]) -> tuple[Finding, ...]:
        """What the figure claims, measured."""
        raise AssertionError("each figure gives its findings")

    def run(self, progress: Callable[[float], None] | None = None) -> Result:
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
            "directions": _direction_table(solutions),
            "paths": _path_table(path),
        }
        return Result(self, tables, self.findings(path, solutions))


def _direction_table(solutions: dict[str, MarginSolution]) -> Table:
    return {
        "direction": np.array(list(solutions)),
        "x": np.array([solution.vector[0] for solution in solutions.values()]),
        "y": np.array([solution.vector[1] for solution in solutions.values()]),
        "margin": np.array([solution.margin for solution in solutions.values()]),
        "residual": np.array([solution.certificate.residual for solution in solutions.values()]),
    }


def _path_table(path: Trajectory) -> Table:
    points = path["point"]
    return {
        "step": path.at,
        "v_x": points[:, 0],
        "v_y": points[:, 1],
        "p_x": points[:, 2],
        "p_y": points[:, 3],
        "softmax_probability": path["saturation"],
        "logistic_probability": _logistic_probability(path["output"]),
    }


def _logistic_probability(outputs: Array) -> Array:
    """Mean over the inputs of `1 / (1 + exp(-Y f))`."""
    return np.asarray(np.exp(-np.logaddexp(0.0, -outputs)).mean(axis=1))


def _cosines(path: Trajectory, solutions: dict[str, MarginSolution]) -> dict[str, float]:
    problem, parts = path.objective.problem, path.objective.split(path.final)
    prompt, head = parts["prompt"], parts["head"]
    return {
        "p_mm": float(cosine(problem.keys, prompt, solutions["p_mm"].vector)),
        "p_relax": float(cosine(problem.keys, prompt, solutions["p_relax"].vector)),
        "v_mm": float(cosine(problem.values, head, solutions["v_mm"].vector)),
    }


@dataclass(frozen=True)
class Figure3a(_Joint):
    """`tokenmargin reproduce fig3a`: about 0.3 s; p and v at cosine 0.9999 with their max-margin directions."""

    figure: ClassVar[str] = "fig3a"
    title: ClassVar[str] = (
        "All selected tokens are support vectors: p and v reach their max-margin directions (Theorem 5)"
    )
    seconds: ClassVar[tuple[float | None, float | None]] = (0.3, 0.3)
    shows: ClassVar[str] = (
        "head v and attention vector p trained together on three inputs of two tokens, all selected tokens support "
        "vectors of the classifier: v turns to v^mm and p to p^mm. No numbers are printed."
    )

    def findings(self, path: Trajectory, solutions: dict[str, MarginSolution]) -> tuple[Finding, ...]:
        measured = _cosines(path, solutions)
        return (
            Finding("cosine of p with p^mm", measured["p_mm"], low=ALIGNED, source="Theorem 5"),
            Finding("cosine of v with v^mm", measured["v_mm"], low=ALIGNED, source="Theorem 5"),
        )


@dataclass(frozen=True)
class Figure3b(_Joint):
    """`tokenmargin reproduce fig3b`: about 0.3 s; p at cosine 0.9999 with p^relax, 0.98 with p^mm."""

    figure: ClassVar[str] = "fig3b"
    title: ClassVar[str] = "One token is no support vector: p reaches the relaxed direction instead (Theorem 6)"
    seconds: ClassVar[tuple[float | None, float | None]] = (0.3, 0.3)
    shows: ClassVar[str] = (
        "the same with one selected token that is no support vector: p turns away from p^mm to the solution p^relax "
        "of the problem that asks nothing but non-negative margins of that input. No numbers are printed."
    )

    def problem(self) -> TokenProblem:
        return figure3b()

    def findings(self, path: Trajectory, solutions: dict[str, MarginSolution]) -> tuple[Finding, ...]:
        measured = _cosines(path, solutions)
        between = float(cosine(path.objective.problem.keys, solutions["p_mm"].vector, solutions["p_relax"].vector))
        return (
            Finding("cosine of p with p^relax", measured["p_relax"], low=ALIGNED, source="Theorem 6"),
            Finding(
                "cosine of p with p^mm, which it must leave",
                measured["p_mm"],
                between - 0.002,
                between + 0.002,
                f"p^mm and p^relax are at cosine {between:.4f}",
            ),
            Finding("cosine of v with v^mm", measured["v_mm"], low=ALIGNED, source="Theorem 6"),
        )


@dataclass(frozen=True)
class Figure3c(_Joint):
    """`tokenmargin reproduce fig3c`: about 0.3 s; both probabilities reach 1."""

    figure: ClassVar[str] = "fig3c"
    title: ClassVar[str] = "Softmax and output probabilities in the run of Figure 3a"
    seconds: ClassVar[tuple[float | None, float | None]] = (0.3, 0.3)
    shows: ClassVar[str] = (
        "in the run of Figure 3a the softmax probability of the selected tokens and the logistic probability of the "
        "labels both rise to 1. No numbers are printed."
    )

    def findings(self, path: Trajectory, solutions: dict[str, MarginSolution]) -> tuple[Finding, ...]:
        logistic = _logistic_probability(path["output"])
        return (
            Finding("mean softmax probability of the selected tokens", float(path["saturation"][-1]), low=1 - 1e-6),
            Finding("mean logistic probability of the labels", float(logistic[-1]), low=1 - 1e-6),
            Finding("logistic probability at the start", float(logistic[0]), high=0.6, source="it starts undecided"),
        )
