"""Theorem 5 of paper A without assuming a limit: the flow from below the level, and the proof's bound. Our own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmargin.dynamics import flow
from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Scales, Table
from tokenmargin.experiments.tables import PAPER_A, columns
from tokenmargin.margin import limit_direction
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import LogisticLoss
from tokenmargin.problem.instances import random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory import EmbeddingInstance
from tokenmargin.theory.results.first_step import sharp_dimension
from tokenmargin.theory.results.sublevel import Sublevel

NORMS = 10.0 ** np.arange(0.5, 5.01, 0.25)  # in units of |p^|


@dataclass(frozen=True)
class Theorem5Plus(AbstractExperiment):
    """`tokenmargin reproduce theorem5-plus`: about 20 s; every flow from below the level goes to the best tokens.

    Left: 1 - cosine with the max-margin direction of the important tokens along the flow, on corpora with unequal
    frequencies after their first step, and the bound of the proof. Right: random problems from random starts, by the
    risk at the start over the level. Expected: below 1 every start reaches the direction of the best tokens.
    """

    figure = "theorem5-plus"
    source = f"A result of our own (docs/results/theorem5-plus.md) on {PAPER_A}"
    title = "Below a level of the risk every flow goes to the max-margin direction of the best tokens"
    shows = "a limit direction that is assumed to exist (Theorem 5), selecting only important tokens if mu > 0."
    seconds = (20, 120)
    shown_tables = ("starts",)
    scales = Scales(paper={"corpora": 20, "problems": 100})

    corpora: int = 4
    problems: int = 12
    starts: int = 6
    seed: int = 0

    def run(self, progress: Progress = None) -> Result:
        curves = [row for seed in range(self.corpora) for row in _curve(seed)]
        rng = np.random.default_rng(self.seed)
        starts: list[dict[str, object]] = []
        while len(starts) < self.problems * self.starts:
            starts += _starts(random_problem(2, 3, 2, rng=rng), self.starts, rng)
            if progress is not None:
                progress(len(starts) / (self.problems * self.starts))
        tables = {"curves": columns(curves), "starts": columns(starts)}
        return Result(self, tables, _findings(tables["curves"], tables["starts"]))


def _findings(curves: Table, starts: Table) -> tuple[Finding, ...]:
    below, reached = starts["share"] < 1, starts["reached"].astype(bool)
    count, last = float(below.sum()), curves["norm"] == NORMS[-1]
    ratio = float(np.max(curves["lacking"] / curves["bound"]))
    product = float((curves["angle"] * curves["norm"])[last].max())
    met = float(reached[below].sum())
    return (
        Finding("starts below the level", count),
        Finding("of them, reached the best tokens' direction", met, count, count, "R.sublevel", basis="theorem"),
        Finding("share of the starts above the level that did not", float(1 - reached[~below].mean())),
        Finding("corpora: largest 1 - cosine over the proof's bound", ratio, high=1.0, source="R.theorem5-plus",
                basis="theorem"),
        Finding("corpora: largest angle times |p|/|p^| at the end", product),
    )  # fmt: skip


def _curve(seed: int) -> list[dict[str, object]]:
    """The flow after the first step of a varied corpus, at the dimension of the sharp condition."""
    x = EmbeddingInstance.of(4, 3, varied=True, seed=seed)
    d = np.ceil(sharp_dimension(x.corpus.size, x.step, x.delta))
    after = EmbeddingInstance.about(x.corpus, dimension=float(d), seed=seed).steps[0].after
    problem = after.problem()
    found = Sublevel.of(problem, after.prompt, LogisticLoss())
    direction, nu = found.named.solution.vector, found.named.solution.margin
    path = flow(PromptObjective(problem), start=after.prompt, until_norm=1.01 * float(NORMS[-1]) / nu)
    points = [path.at_norm(norm / nu) for norm in NORMS.tolist()]
    h = np.array([float(problem.keys.inner(direction, p)) for p in points])
    r = NORMS / nu
    spread = max(found.spread(p, LogisticLoss()) for p in points)  # in the place of C_1, which is far larger
    beyond = r[0] - nu * h[0] + spread / nu * np.log(h / h[0])
    angles = np.array([float(angle(problem.keys, p, direction)) for p in points])
    return [
        {"corpus": seed, "norm": norm, "angle": a, "lacking": 2 * np.sin(a / 2) ** 2, "bound": b / length}
        for norm, a, b, length in zip(NORMS.tolist(), angles, beyond, r, strict=True)
    ][1:]


def _starts(problem: TokenProblem, count: int, rng: np.random.Generator) -> list[dict[str, object]]:
    """Random starts about the best tokens' direction, at several lengths; nothing where it does not exist."""
    best = limit_direction(problem, problem.scores.argmax(axis=1))
    if not best.solution.is_optimal:
        return []
    rows: list[dict[str, object]] = []
    floor = float(LogisticLoss().value(problem.scores.max(axis=1)).mean())
    for _ in range(count):
        start = rng.uniform(-1, 3) * best.solution.vector + rng.normal(size=problem.keys.dimension) * rng.uniform(0, 6)
        found = Sublevel.of(problem, start, LogisticLoss())
        path = flow(PromptObjective(problem), start=start, until_norm=1e5)
        off = float(angle(problem.keys, path.prompt, best.solution.vector)) if path.stop == "norm" else np.inf
        rows.append({"share": (found.risk - floor) / (found.level - floor), "angle": off, "reached": off < 1e-2})
    return rows
