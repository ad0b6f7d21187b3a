"""The local convergence of *Transformers as Support Vector Machines*: W, and K and Q, on its own data.

Its code trains with automatic differentiation, divides gradients by `|gradient| + eps` and, for K and Q, adds
`eps (|K|^2 + |Q|^2)` to the loss, with the eps of doubles, "because the gradient is treated as zero". Here both are
trained twice from the same starts: by those settings, and without any of them.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics import FlowSettings, NormalizedGradientDescent, evolve, evolve_many, flow
from tokenmargin.experiments.experiment import AbstractExperiment, Curves, Finding, Progress, Result, Scales, Table
from tokenmargin.experiments.tables import PAPER_C, columns
from tokenmargin.margin import LimitDirection, MarginSolution, limit_direction, max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.factored import FactoredObjective, ManyFactored
from tokenmargin.problem.attention_problems import svm_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import leads, saturation, select

EPS = float(np.finfo(float).eps)
KEPT = 20  # points of each run that are looked at
Settings = Literal["printed", "ours"]
Points = Float[Array, "kept problems D_keys"]


@dataclass(frozen=True)
class _Local(AbstractExperiment):
    """Six inputs of eight unit tokens in ten dimensions, a query for each; normalised descent with step 0.1."""

    source = PAPER_C
    shown_tables = ("means",)
    curves = Curves(
        "means", "step", ("frobenius", "nuclear"), by="settings", y_label="correlation with the limit in its norm"
    )
    scales = Scales(quick={"runs": 10, "followed": 1})

    runs: int = 100
    steps: int = 2000
    step: float = 0.1
    n: int = 6
    T: int = 8
    d: int = 10
    start_seed: int = 0
    followed: int = 2

    @cached_property
    def problems(self) -> list[TokenProblem]:
        """The data of the seeds 0, 1, ..."""
        return [svm_problem(seed, n=self.n, T=self.T, d=self.d) for seed in range(self.runs)]

    def starts(self, numbers: int) -> Float[Array, "runs numbers"]:
        """The law of torch's linear layer: uniform, up to 1 / sqrt(d)."""
        rng = np.random.default_rng(self.start_seed)
        return rng.uniform(-1, 1, (self.runs, numbers)) / np.sqrt(self.d)

    @abc.abstractmethod
    def train(self, settings: Settings) -> Points:
        """W of every run at equal distances along the training."""

    @abc.abstractmethod
    def follow(self) -> Table:
        """Gradient flow of the first runs, far out."""

    @abc.abstractmethod
    def findings(self, runs: Table) -> tuple[Finding, ...]:
        """What is claimed of the runs, measured."""

    @abc.abstractmethod
    def flow_findings(self, flows: Table) -> tuple[Finding, ...]:
        """What is claimed of the flows, measured."""

    def run(self, progress: Progress = None) -> Result:
        tell = progress if progress is not None else lambda _share: None
        rows, means, known = [], [], _KnownDirections(self.problems)
        for k, settings in enumerate(("printed", "ours")):
            points = self.train(settings)  # type: ignore[arg-type]  # one of the two
            tell((2 * k + 1) / 5)
            found = [known.row(seed, points[:, seed]) for seed in range(self.runs)]
            rows += [{"settings": settings, "seed": seed, **row} for seed, (row, _) in enumerate(found)]
            cosines = np.stack([path for _, path in found])  # runs, norms, kept
            for j in range(len(points)):
                average = dict(zip(("frobenius", "nuclear"), np.nanmean(cosines[..., j], axis=0), strict=True))
                means.append({"settings": settings, "step": j * self.steps // KEPT, **average})
            tell((2 * k + 2) / 5)
        tables = {"means": columns(means), "runs": columns(rows)}
        findings = self.findings(tables["runs"])
        if self.followed:
            tables["flows"] = self.follow()
            findings += self.flow_findings(tables["flows"])
        tell(1.0)
        return Result(self, tables, findings)


class _KnownDirections:
    """Certified directions of the selections that occur, each solved once."""

    def __init__(self, problems: list[TokenProblem]) -> None:
        self.problems = problems
        self._found: dict[tuple[int, ...], tuple[LimitDirection, MarginSolution]] = {}

    def directions(self, seed: int, selected: Array) -> tuple[LimitDirection, MarginSolution]:
        """Of least Frobenius norm, and of least nuclear norm."""
        key = (seed, *selected.tolist())
        if key not in self._found:
            problem = self.problems[seed]
            self._found[key] = limit_direction(problem, selected), max_margin(problem, selected, norm="nuclear")
        return self._found[key]

    def row(self, seed: int, path: Float[Array, "kept D_keys"]) -> tuple[dict[str, object], Float[Array, "2 kept"]]:
        """What became of a run, and its correlation with both directions along the way."""
        problem, W = self.problems[seed], path[-1]
        selected = select(problem.keys, W)
        frobenius, nuclear = self.directions(seed, selected)
        cosines = np.stack([_cosines(path, solution) for solution in (frobenius.solution, nuclear)])
        margin = float(leads(problem.keys, W, selected).min())
        sizes = np.linalg.svd(problem.as_matrix(W), compute_uv=False)
        row = {
            "kind": frobenius.kind,
            "saturation": float(saturation(problem.keys, W)),
            "norm": float(np.linalg.norm(W)),
            "frobenius": cosines[0, -1],
            "nuclear": cosines[1, -1],
            "frobenius_margin": margin / np.linalg.norm(W) / frobenius.solution.margin,
            "nuclear_margin": margin / sizes.sum() / nuclear.margin,
            "rank": int((sizes > 1e-2 * sizes[0]).sum()),
            "frobenius_rank": _rank(problem.as_matrix(frobenius.solution.vector)),
            "nuclear_rank": _rank(problem.as_matrix(nuclear.vector)),
            "nuclear_gap": nuclear.certificate.gap,
        }
        return row, cosines


def _cosines(path: Float[Array, "kept D"], solution: MarginSolution) -> Float[Array, " kept"]:
    if not solution.is_optimal:
        return np.full(len(path), np.nan)
    lengths = np.linalg.norm(path, axis=1) * np.linalg.norm(solution.vector)
    return np.asarray(path @ solution.vector / np.where(lengths > 0, lengths, 1.0))


def _rank(W: Float[Array, "q d"]) -> int:
    sizes = np.linalg.svd(W, compute_uv=False)
    return int((sizes > 1e-4 * sizes[0]).sum())  # the gap of a certificate, 1e-8, is the square of an error


def _mean(runs: Table, settings: Settings, column: str) -> float:
    return float(np.nanmean(runs[column][runs["settings"] == settings]))


class SvmW(_Local):
    """`tokenmargin reproduce svm-w --scale paper`: W to the direction of least Frobenius norm, 100 seeds."""

    figure = "svm-w"
    seconds = (1.1, None)
    title = "Training W selects tokens by the margin in the Frobenius norm"
    shows = (
        "softmax weights rise to one, and the correlation of W with the max-margin direction of the selected tokens in "
        "the Frobenius norm approaches one, averaged over 100 random problems. No numbers are printed."
    )
    differences = (
        "The data are those of its seeds; its starts are not seeded, ours are drawn by the same law.",
        "Printed settings divide by |gradient| + eps; ours by |gradient|.",
    )

    def train(self, settings: Settings) -> Points:
        method = NormalizedGradientDescent(self.step, guard=EPS if settings == "printed" else 0.0)
        run = evolve_many(self.problems, method, steps=0, starts=[start[None] for start in self.starts(self.d**2)])
        points = [np.concatenate(run.finals)]
        for k in range(1, KEPT + 1):
            run = run.resume(steps=k * self.steps // KEPT)
            points.append(np.concatenate(run.finals))
        return np.stack(points)

    def follow(self) -> Table:
        rows, known = [], _KnownDirections(self.problems)
        for seed, start in enumerate(self.starts(self.d**2)[: self.followed]):
            path = flow(PromptObjective(self.problems[seed]), start=start, settings=FlowSettings(tolerance=1e-8))
            row, _ = known.row(seed, path.final[None])
            cosine = float(row["frobenius"])  # type: ignore[arg-type]
            rows.append({"seed": seed, "stop": path.stop, "norm": path.norm, "angle": np.arccos(min(cosine, 1.0))})
        return columns(rows)

    def findings(self, runs: Table) -> tuple[Finding, ...]:
        ours = runs["settings"] == "ours"
        return (
            Finding(
                "mean correlation with the Frobenius direction, printed settings", _mean(runs, "printed", "frobenius")
            ),
            Finding("mean correlation with the Frobenius direction, ours", _mean(runs, "ours", "frobenius")),
            Finding("mean correlation with the nuclear direction, ours", _mean(runs, "ours", "nuclear")),
            Finding("mean norm of W, printed settings", _mean(runs, "printed", "norm")),
            Finding("mean norm of W, ours", _mean(runs, "ours", "norm")),
            Finding(
                "share of runs with a certified direction, ours", float(np.isfinite(runs["frobenius"][ours]).mean())
            ),
            Finding("share of runs that select every optimal token, ours", float((runs["kind"][ours] == "GMM").mean())),
            Finding(
                "mean share of the largest Frobenius margin that W has, ours", _mean(runs, "ours", "frobenius_margin")
            ),
        )

    def flow_findings(self, flows: Table) -> tuple[Finding, ...]:
        return (
            Finding("largest angle of the flows to their direction", float(flows["angle"].max()), high=1e-4,
                    source="convergence in direction; at |W| = 1e8, and cosines round to 1e-8", basis="theorem"),
        )  # fmt: skip


class SvmKQ(_Local):
    """`tokenmargin reproduce svm-kq --scale paper`: K and Q to the least nuclear norm, 100 seeds."""

    figure = "svm-kq"
    seconds = (3.5, None)
    title = "Training K and Q selects tokens by the margin in the nuclear norm"
    shows = (
        "softmax weights rise to one, and the correlation of K Q' with the max-margin direction of the selected tokens "
        "in the nuclear norm approaches one, averaged over 100 random problems. No numbers are printed."
    )
    differences = (
        "The data are those of its seeds; its starts are not seeded, ours are drawn by the same law.",
        "Printed settings divide each gradient by its length + eps, and add eps (|K|^2 + |Q|^2) to the loss; ours do "
        "neither.",
        "Past |W| of about 1000 a step of 0.1 moves logits by ten: descent zigzags, and rounding decides its details.",
    )

    @cached_property
    def objective(self) -> ManyFactored:
        """The risks of all runs in K and Q, as one objective."""
        return ManyFactored.of(self.problems)

    def train(self, settings: Settings) -> Points:
        theta, objective = self.starts(self.objective.dimension), self.objective
        points = [objective.prompt(theta)]
        for _ in range(KEPT):
            steps = self.steps // KEPT
            if settings == "ours":
                theta = evolve(objective, NormalizedGradientDescent(self.step), steps=steps, start=theta).final
            else:
                for _ in range(steps):
                    theta = _penalised_step(objective, theta, self.step)
            points.append(objective.prompt(theta))
        return np.stack(points)

    def follow(self) -> Table:
        rows, known = [], _KnownDirections(self.problems)
        for seed, problem in enumerate(self.problems[: self.followed]):
            objective = FactoredObjective(problem)
            start, settings = objective.aligned_start(0.1), FlowSettings(tolerance=1e-8, solver="Radau")
            path = flow(objective, start=start, until_norm=1e4, settings=settings)
            row, _ = known.row(seed, objective.prompt(path.final)[None])
            drift = np.abs(objective.imbalance(path.final) - objective.imbalance(start)).max() / path.norm**2
            names = ("frobenius", "nuclear", "nuclear_margin", "rank", "nuclear_rank")
            rows.append({"seed": seed, "stop": path.stop, "norm": path.norm, "imbalance": drift}
                        | {name: row[name] for name in names})  # fmt: skip
        return columns(rows)

    def findings(self, runs: Table) -> tuple[Finding, ...]:
        ours = runs["settings"] == "ours"
        lead = _mean(runs, "ours", "nuclear") - _mean(runs, "ours", "frobenius")
        return (
            Finding("mean correlation with the nuclear direction, printed settings", _mean(runs, "printed", "nuclear")),
            Finding("mean correlation with the nuclear direction, ours", _mean(runs, "ours", "nuclear")),
            Finding("by how much it exceeds that with the Frobenius direction", lead, low=0.0,
                    source="the bias is in the nuclear norm", basis="theorem"),
            Finding("mean norm of W, printed settings", _mean(runs, "printed", "norm")),
            Finding("mean norm of W, ours", _mean(runs, "ours", "norm")),
            Finding("share of runs with a certified direction, ours", float(np.isfinite(runs["nuclear"][ours]).mean())),
            Finding("mean share of the largest nuclear margin that W has, ours", _mean(runs, "ours", "nuclear_margin")),
            Finding("mean rank of W (singular values over 1 % of the largest), ours", _mean(runs, "ours", "rank")),
            Finding("mean rank of the nuclear directions", _mean(runs, "ours", "nuclear_rank")),
            Finding("mean rank of the Frobenius directions", _mean(runs, "ours", "frobenius_rank")),
        )  # fmt: skip

    def flow_findings(self, flows: Table) -> tuple[Finding, ...]:
        return (
            Finding(
                "largest change of Q'Q - K'K along the flows, over |K|^2 + |Q|^2",
                float(flows["imbalance"].max()), high=1e-9,
                source="gradient flow conserves it", basis="theorem",
            ),
            Finding(
                "smallest share of the largest nuclear margin that the flows reach",
                float(flows["nuclear_margin"].min()), low=0.98,
                source="the margin converges before the direction does; how near it is at |(K, Q)| = 1e4 is our choice",
            ),
        )  # fmt: skip


def _penalised_step(objective: ManyFactored, theta: Float[Array, "runs D"], step: float) -> Float[Array, "runs D"]:
    """The printed update: the gradient of the loss and of `eps (|K|^2 + |Q|^2)`, each block over its length + eps."""
    gradient = objective.gradient(theta) + 2 * EPS * theta
    return np.asarray(theta - step * gradient / objective.expand(objective.norms(gradient) + EPS))
