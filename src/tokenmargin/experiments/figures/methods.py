"""Which margin a method of descent maximises: its own norm's, over random problems."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics import AbstractMethod, BatchResult, evolve_many, method_named
from tokenmargin.experiments.experiment import AbstractExperiment, Curves, Finding, Progress, Result, Scales, track
from tokenmargin.limits.by_method import margin_share, size_in
from tokenmargin.margin import LimitDirection, limit_direction
from tokenmargin.norms import SchattenNorm
from tokenmargin.problem.instances import random_problem
from tokenmargin.problem.token_problem import TokenProblem

LOOKS = 4  # at the end, and at a quarter, a sixteenth and a 64th of the steps
CERTIFIED = 1e-7  # the largest margins are right to 1e-8 or better, and so no share is above 1 by more


@dataclass(frozen=True)
class MethodMargins(AbstractExperiment):
    """`tokenmargin reproduce methods`: about 2 s; sign descent comes to the largest margin in the norm linf.

    `--method mirror:1.5`, `adam:0.95`, `spectral` and so on run another one; `tokenmargin sweep methods --over
    method=sign,coordinate,mirror:1.5` several.
    """

    figure = "methods"
    source = "a study of our own"
    title = "Each method comes to the margin of its own norm"
    seconds = (2.0, 30.0)
    shows = (
        "steepest descent in a norm, and mirror descent with its potential, tend to the largest margin in that norm: "
        "theorems for linear models, and for attention by mirror descent. No numbers are printed."
    )
    curves = Curves(
        "looks",
        "norm",
        ("least", "median"),
        x_label="norm of $p$ in the method's own norm",
        y_label="share of the largest margin",
        log="x",
    )
    scales = Scales(paper={"steps": 64_000, "problems": 100, "within": 0.02})

    method: str = "sign"
    step: float = 0.03
    decay: float = 0.0
    steps: int = 4000
    problems: int = 10
    n: int = 4
    T: int = 6
    d: int = 10
    seed: int = 0
    within: float = 0.1

    def random_problems(self) -> list[TokenProblem]:
        """Random problems; for a norm of matrices, each with a random query of d numbers per input."""
        rng = np.random.default_rng(self.seed)
        problems = [random_problem(self.n, self.T, self.d, rng=rng) for _ in range(self.problems)]
        if not isinstance(self.rule.margin_norm, SchattenNorm):
            return problems
        return [problem.with_matrix(rng.standard_normal((self.n, self.d))) for problem in problems]

    @property
    def rule(self) -> AbstractMethod:
        """The method of descent that the settings name."""
        return method_named(self.method, self.step, decay=self.decay)

    def run(self, progress: Progress = None) -> Result:
        problems, named = self.random_problems(), dict[tuple[int, bytes], LimitDirection]()
        runs: BatchResult | None = None
        at = sorted({max(self.steps // 4**k, 1) for k in range(LOOKS)})
        norms, shares = [], []
        for steps in track(at, progress):
            runs = evolve_many(problems, self.rule, steps=steps) if runs is None else runs.resume(steps=steps)
            found = [_share(problem, runs, j, named) for j, problem in enumerate(problems)]
            norms.append([size for size, _ in found])
            shares.append([share for _, share in found])
        return Result(
            self, self._tables(np.array(at), np.array(norms), np.array(shares)), self._findings(np.array(shares))
        )

    def _tables(self, at: Array, norms: Array, shares: Float[Array, "looks problems"]) -> dict[str, dict[str, Array]]:
        rises = np.diff(shares, axis=0)
        rose = np.append(np.nan, (rises > 0).sum(axis=1) / np.maximum(np.isfinite(rises).sum(axis=1), 1))
        looks = {
            "step": at,
            "norm": np.median(norms, axis=1),
            "least": np.nanmin(shares, axis=1),
            "median": np.nanmedian(shares, axis=1),
            "rose": rose,
        }
        ends = {"problem": np.arange(self.problems), "norm": norms[-1], "share": shares[-1]}
        return {"looks": looks, "problems": ends}

    def _findings(self, shares: Float[Array, "looks problems"]) -> tuple[Finding, ...]:
        norm = self.rule.margin_norm.name
        return (
            Finding(f"least share of the largest {norm} margin at the end", float(np.nanmin(shares[-1])),
                    low=1 - self.within,
                    source="the margin tends to the largest in the method's own norm; how near is our choice"),
            Finding(f"largest share of the largest {norm} margin", float(np.nanmax(shares)), high=1 + CERTIFIED,
                    source="no direction has more than the certified margin", basis="theorem"),
            Finding("median share at the end", float(np.nanmedian(shares[-1]))),
            Finding("problems whose largest margin is not certified", float(np.isnan(shares[-1]).sum())),
        )  # fmt: skip


def _share(
    problem: TokenProblem, runs: BatchResult, j: int, known: dict[tuple[int, bytes], LimitDirection]
) -> tuple[float, float]:
    """Norm of the end of a run, and its margin over the certified one of the tokens it selects."""
    selected, p, norm = runs.selected[j, 0], runs.finals[j][0], runs.method.margin_norm
    key = (j, selected.tobytes())
    if key not in known:
        known[key] = limit_direction(problem, selected, norm=norm)
    return float(size_in(norm, problem, p)), margin_share(problem, p, known[key])
