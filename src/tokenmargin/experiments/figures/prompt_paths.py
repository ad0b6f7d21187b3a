"""Figures 1, 2 and 8 of *Max-Margin Token Selection in Attention Mechanism*: the path of p from each start.

Beside them the demonstration: a problem of our own, with every direction that attention can converge to.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics import AbstractMethod, GradientDescent, NormalizedGradientDescent, evolve
from tokenmargin.experiments.experiment import AbstractExperiment, Basis, Finding, Progress, Result, Table
from tokenmargin.experiments.tables import (
    ALIGNED,
    PAPER_B,
    columns,
    direction_row,
    direction_table,
    limit_table,
    path_table,
    planar_angle,
    token_table,
)
from tokenmargin.limits.limit import limit_of
from tokenmargin.margin import atlas, max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.problem.instances import NAMED_PROBLEMS, figure8, three_limits
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import ConeConstants, cone_constants, selection_text

KEPT_POINTS = 1000
FLOW_POINTS = 100
SIX_STARTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)


@dataclass(frozen=True)
class PromptPaths(AbstractExperiment):
    """Runs from several starts on one problem in the plane."""

    source = PAPER_B
    seconds = (0.7, 0.7)
    directions: ClassVar[tuple[tuple[str, tuple[int, ...]], ...]] = ()
    first_points: ClassVar[tuple[tuple[float, ...], ...]] = tuple((0.0, y, 0.0) for y in SIX_STARTS)
    hyperplane: ClassVar[bool] = False  # whether the figure shows the hyperplane that separates the selected tokens
    followed: ClassVar[bool] = True  # whether gradient flow is followed from every start, too

    steps: int = 1000
    step: float = 0.1

    def problem(self) -> TokenProblem:
        """The figure's data."""
        return NAMED_PROBLEMS[self.figure]()

    def starts(self) -> Float[Array, "S D"]:
        """First points, one row each."""
        return np.array(self.first_points)

    def method(self) -> AbstractMethod:
        """How it is trained."""
        return NormalizedGradientDescent(self.step)

    def direction_table(self, problem: TokenProblem) -> Table:
        """The certified directions to draw."""
        return direction_table(problem, self.directions, levels=self.hyperplane)

    @abc.abstractmethod
    def findings(self, limits: Table, paths: Table) -> tuple[Finding, ...]:
        """What the figure claims, measured."""

    def run(self, progress: Progress = None) -> Result:
        problem, starts = self.problem(), self.starts()
        path = evolve(
            PromptObjective(problem),
            self.method(),
            steps=self.steps,
            start=starts,
            keep=("point",),
            every=max(self.steps // KEPT_POINTS, 1),
            progress=None if progress is None else lambda done: progress(done / self.steps),
        )
        limits = limit_table(problem, starts, path.final, path.selected)
        tables = {
            "tokens": token_table(problem, [alpha for _, alpha in self.directions]),
            "directions": self.direction_table(problem),
            "paths": path_table(path, limits),
            "limits": limits,
        }
        if self.followed:
            found, tables["flow"] = _follow_flow(problem, starts)
            tables["limits"] = limits = {**limits, **found}
        return Result(self, tables, self.findings(limits, tables["paths"]), self.notes())

    def notes(self) -> tuple[str, ...]:
        """What should be said of every run."""
        return ()


def _follow_flow(problem: TokenProblem, starts: Float[Array, "S D"]) -> tuple[Table, Table]:
    """Where gradient flow goes from the same starts, followed to a norm of 1e8, and its course there."""
    limits = [limit_of(problem, start) for start in starts]
    found = {
        "flow_outcome": np.array([limit.outcome for limit in limits]),
        "flow_limit": np.array([limit.kind for limit in limits]),
        "flow_angle": np.array([limit.angle for limit in limits]),
        "flow_rate": np.array([limit.rate for limit in limits]),
    }
    courses = [limit.path(np.geomspace(1.0, limit.path.arcs[-1], FLOW_POINTS)) for limit in limits]
    points = np.stack(courses)
    directions = np.stack([limit.solution.vector for limit in limits])[:, None]
    course = {
        "start": np.repeat(np.arange(len(limits)), FLOW_POINTS),
        "norm": np.linalg.norm(points, axis=-1).ravel(),
        "angle": planar_angle(points[..., :2], directions[..., :2]).ravel(),
    }
    return found, course


def _find_alignment(limits: Table) -> tuple[Finding, ...]:
    """Every start is close to its own limit, and gradient flow from there reaches the same one."""
    same = (limits["flow_outcome"] == "direction") & (limits["flow_limit"] == limits["limit"])
    return (
        Finding(
            "least cosine with its own limit", float(limits["cosine"].min()), low=ALIGNED,
            source="the cosine goes to 1; this is a run of finite length",
        ),
        Finding(
            f"starts from which gradient flow reaches the same limit, of {len(same)}", float(same.sum()), len(same),
            len(same), "two methods, one limit: the flow is within 1e-6 of it at norm 1e8",
        ),
        Finding("that flow: largest angle to its limit at norm 1e8", float(limits["flow_angle"].max())),
    )  # fmt: skip


def _count_reaching(limits: Table, kind: str) -> float:
    return float((limits["limit"] == kind).sum())


def _rises_from(paths: Table) -> float:
    """The step from which the cosine of every start with its limit rises; the origin has no cosine."""
    last = 0
    for start in np.unique(paths["start"]):
        here = (paths["start"] == start) & (paths["norm"] > 0)
        falls = np.flatnonzero(np.diff(paths["angle"][here]) > 0)
        last = max(last, int(paths["step"][here][falls[-1] + 1])) if falls.size else last
    return float(last)


def _all_global(limits: Table, paths: Table, source: str, basis: Basis, rises: str) -> tuple[Finding, ...]:
    """Every start reaches the GMM, and from some step on turns to it without turning back."""
    return (
        Finding("starts that reach the GMM, of 6", _count_reaching(limits, "GMM"), 6, 6, source, basis=basis),
        *_find_alignment(limits),
        Finding("step from which the cosine with the GMM rises for every start", _rises_from(paths), source=rises),
    )


class Figure1a(PromptPaths):
    """`tokenmargin reproduce fig1a`: about 0.7 s; every start at cosine 0.9997 or more with the GMM."""

    figure = "fig1a"
    title = "Equal scores among the others: every start reaches the global direction (Theorem 2)"
    shows = (
        "one input of three tokens, the two that are not optimal with equal scores: from six starts p turns to the "
        "direction of the max-margin solution of the optimal token, the GMM. No numbers are printed."
    )
    directions = (("GMM", (0,)),)

    def findings(self, limits: Table, paths: Table) -> tuple[Finding, ...]:
        rises = "the text says that it consistently increases; two starts begin close to the GMM"
        return _all_global(limits, paths, "Theorem 2: every start", "theorem", rises)


class Figure1b(PromptPaths):
    """`tokenmargin reproduce fig1b`: about 0.7 s; four starts reach the GMM, two the LMM, all at cosine 0.9999."""

    figure = "fig1b"
    title = "Unequal scores: some starts reach a locally optimal direction (Theorem 3)"
    shows = (
        "the same tokens with unequal scores: some of the six starts turn to the GMM, others to the max-margin "
        "direction of a token that is only locally optimal, the LMM. No numbers are printed."
    )
    differences = (
        "Gradients are summed in pairs in the log domain. The textbook form loses the direction to cancellation once "
        "the softmax saturates: after 1000 normalised steps it leaves four of the six runs at a cosine of 0.55 to 0.57 "
        "with the limit of what they select and two at 0.98, and none near another limit (a test repeats it).",
    )
    directions = (("GMM", (0,)), ("LMM", (1,)))

    def findings(self, limits: Table, paths: Table) -> tuple[Finding, ...]:
        return (
            Finding("starts that reach the GMM, of 6", _count_reaching(limits, "GMM")),
            Finding("starts that reach the LMM, of 6", _count_reaching(limits, "LMM")),
            Finding(
                "kinds of limit reached", float(len({*limits["limit"].tolist()} & {"GMM", "LMM"})), 2, 2,
                "Theorem 3: the LMM when properly started", basis="figure",
            ),
            *_find_alignment(limits),
        )  # fmt: skip


class Figure1c(PromptPaths):
    """`tokenmargin reproduce fig1c`: about 0.7 s; every start at cosine 0.9997 or more with the GMM."""

    figure = "fig1c"
    title = "Three inputs, one separating direction"
    shows = (
        "three inputs of seven tokens: from six starts p turns to the one max-margin direction that separates the "
        "optimal token of every input from its others. No numbers are printed."
    )
    directions = (("GMM", (0, 0, 0)),)
    first_points = tuple((x, 0.0, 0.0) for x in SIX_STARTS)
    hyperplane = True

    def findings(self, limits: Table, paths: Table) -> tuple[Finding, ...]:
        rises = "before, the paths cross the ray; the text says gradual alignment"
        return _all_global(limits, paths, "the text: from various starts", "printed", rises)


@dataclass(frozen=True)
class Figure8(PromptPaths):
    """`tokenmargin reproduce fig8`: about 4 s; two starts of plain gradient descent, two limits."""

    figure = "fig8"
    title = "Two inputs: gradient descent from two starts reaches two limits"
    seconds = (4, 4)
    shows = (
        "two inputs of two tokens: gradient descent from one start turns to the GMM, from another to an LMM, so "
        "Theorem 2 needs its condition n = 1. No numbers are printed."
    )
    directions = (("GMM", (0, 0)), ("LMM", (0, 1)))
    first_points = ((0.0, 3.0), (3.0, 0.0))

    steps: int = 40_000
    # The printed 1 / L_p of (24) is 0.0163 here; 1 / objective.smoothness(), from the line before it in the proof of
    # Lemma 6 and all that the descent needs, is 0.1905.
    step: float = 0.05

    def method(self) -> AbstractMethod:
        return GradientDescent(self.step)

    def findings(self, limits: Table, paths: Table) -> tuple[Finding, ...]:
        kinds = set(limits["limit"].tolist()) & {"GMM", "LMM"}
        return (
            Finding(
                "distinct limits of two starts", float(len(kinds)), 2, 2, "the red and the blue line", basis="figure"
            ),
            *_find_alignment(limits),
        )

    def notes(self) -> tuple[str, ...]:
        return ("The paper prints n = T = d = 2 and no data; the instance is our own (see instances.figure8).",)


CONE_TOKENS = (0, 1)  # the locally optimal direction of the instance of Figure 8


@dataclass(frozen=True)
class Figure2(PromptPaths):
    """`tokenmargin reproduce fig2`: about 1 s; no path leaves the cone, and all turn to its axis."""

    figure = "fig2"
    title = "Started in the cone of a locally optimal direction, p stays there and turns to it (Theorem 3)"
    seconds = (1, 1)
    shows = "a sketch: gradient descent started inside the cone around a locally optimal direction p^mm. No numbers."
    differences = (
        "The sketch has no data; ours are those of Figure 8, around its LMM. The cone's width and the norm it begins "
        "at are those of the proof, with one step mended (cone_constants).",
        "Theorem 3 is about gradient descent with small steps; normalised descent in small steps follows the same "
        "curve in fewer of them.",
    )
    directions: ClassVar[tuple[tuple[str, tuple[int, ...]], ...]] = (("LMM", CONE_TOKENS),)

    steps: int = 2000
    step: float = 0.05

    def problem(self) -> TokenProblem:
        return figure8()

    def cone(self) -> ConeConstants:
        """Width and least norm of the cone."""
        problem = self.problem()
        return cone_constants(problem, max_margin(problem, CONE_TOKENS).vector, CONE_TOKENS)

    def starts(self) -> Float[Array, "S D"]:
        """Just beyond the least norm: near both edges of the cone, half-way, and near the axis."""
        cone = self.cone()
        axis = max_margin(self.problem(), CONE_TOKENS).vector
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
            [
                {**direction_row(limit.kind, limit.solution), "selected": selection_text(limit.chosen)}
                for limit in limits
            ]
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
