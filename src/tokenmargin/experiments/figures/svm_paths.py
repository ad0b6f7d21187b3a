"""Global convergence in *Transformers as Support Vector Machines*, from zero; and how slowly K and Q get there.

The second is a study of our own. Far out the direction of descent in W is the dual matrix `M = sum_j lambda_j z_j k_j'`
of the max-margin problem, scaled to spectral norm 1. Singular vectors of the solution have singular value 1 in M; along
a pair with a value s < 1 the columns of K and Q obey `dQ = s K`, `dK = s Q` where those of the solution obey it with 1.
So they grow like R^s beside R, and that singular value of W falls like `R^(2 (s - 1))` beside the others: by a power of
the norm, and slowly for s near 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics import FlowSettings, NormalizedGradientDescent, evolve, flow
from tokenmargin.experiments.experiment import AbstractExperiment, Curves, Finding, Progress, Result, tracked
from tokenmargin.experiments.tables import PAPER_C, columns
from tokenmargin.margin import MarginSolution, max_margin
from tokenmargin.margin.constraints import attention_constraints
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.factored import FactoredObjective
from tokenmargin.problem.svm_data import svm_path_data, svm_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import select

SEEDS = (1, 3)
NORMS = {"W": "l2", "KQ": "nuclear"}


@dataclass(frozen=True)
class SvmPaths(AbstractExperiment):
    """`tokenmargin reproduce svm-paths`: about 1 s; from zero W and (K, Q) go to the global directions."""

    figure = "svm-paths"
    source = PAPER_C
    title = "From zero, W and (K, Q) select the optimal tokens"
    shows = (
        "two problems in the plane, two inputs of three and of five tokens: the paths of W z_i approach the lines of "
        "the global max-margin directions, in the Frobenius norm for W and the nuclear norm for (K, Q). No numbers are "
        "printed."
    )
    differences = (
        "The data are those of its seeds 1 and 3. W and Q start at zero; its K is drawn without a seed, ours by the "
        "same law (normal, 0.1). Without its guard and its penalty.",
        "Drawn is one minus the correlation with the certified direction, not the plane.",
    )
    seconds = (1, 1)
    shown_tables = ("ends",)
    curves = Curves(
        "along", "step", ("error",), by="run", y_label="1 − correlation with its global direction", log="xy"
    )

    steps: int = 2000
    step: float = 0.1
    start_seed: int = 0

    def run(self, progress: Progress = None) -> Result:
        ends, along = [], []
        for seed, trained in tracked([(seed, trained) for seed in SEEDS for trained in NORMS], progress):
            problem = svm_path_data(seed)
            points = self._train(problem, trained)
            direction = max_margin(problem, problem.scores.argmax(axis=1), norm=NORMS[trained])
            W, chosen = points[-1], select(problem.keys, points[-1])
            kept = np.unique(np.geomspace(1, self.steps, 60).astype(int))
            lengths = np.linalg.norm(points[kept], axis=1) * np.linalg.norm(direction.vector)
            cosines = points[kept] @ direction.vector / lengths
            along += [{"run": f"{trained}, seed {seed}", "step": at, "error": 1 - cosine}
                      for at, cosine in zip(kept.tolist(), cosines.tolist(), strict=True)]  # fmt: skip
            ends.append({"seed": seed, "trained": trained, "norm": np.linalg.norm(W), "correlation": cosines[-1],
                         "optimal": bool((chosen == problem.scores.argmax(axis=1)).all()),
                         "certified": direction.is_optimal})  # fmt: skip
        return Result(self, {"along": columns(along), "ends": columns(ends)}, self._findings(ends))

    def _train(self, problem: TokenProblem, trained: str) -> Float[Array, "kept D_keys"]:
        method = NormalizedGradientDescent(self.step)
        if trained == "W":
            return evolve(PromptObjective(problem), method, steps=self.steps, keep=("point",))["point"]
        objective = FactoredObjective(problem)
        key = 0.1 * np.random.default_rng(self.start_seed).standard_normal((2, 2))
        start = objective.point(key, np.zeros((2, 2)))
        run = evolve(objective, method, steps=self.steps, start=start, keep=("point",))
        return objective.prompt(run["point"])

    def _findings(self, ends: list[dict[str, object]]) -> tuple[Finding, ...]:
        found = [
            Finding("runs that end with the optimal tokens", float(sum(bool(end["optimal"]) for end in ends)), 4, 4,
                    "paths to the global directions", basis="figure"),
        ]  # fmt: skip
        for end in ends:
            what = f"correlation of {end['trained']} with its global direction, seed {end['seed']}"
            found.append(Finding(what, float(end["correlation"])))  # type: ignore[arg-type]
        return tuple(found)


def dual_singular_values(problem: TokenProblem, selected: Array, solution: MarginSolution) -> Float[Array, " k"]:
    """Singular values of the dual matrix of a nuclear-norm problem, the largest being 1."""
    dual = attention_constraints(problem, selected).combine(solution.multipliers)
    sizes = np.linalg.svd(problem.as_matrix(dual), compute_uv=False)
    return np.asarray(sizes / sizes[0])


@dataclass(frozen=True)
class KQRate(AbstractExperiment):
    """`tokenmargin reproduce kq-rate`: singular values of Q K' along gradient flow, and their exponents."""

    figure = "kq-rate"
    source = "a study of our own, on the data of Transformers as Support Vector Machines"
    title = "K and Q forget a singular value by a power of their norm"
    shows = "nothing; the exponent and its reason are ours."
    seconds = (6, 6)
    shown_tables = ("exponents",)
    curves = Curves(
        "spectrum",
        "norm",
        ("share",),
        by="value",
        x_label=r"norm of $(K, Q)$",
        y_label="singular value over their sum",
        log="xy",
    )

    seed: int = 2
    rank: int = 5
    start_scale: float = 0.1
    norm: float = 1e4

    def run(self, progress: Progress = None) -> Result:
        problem = svm_problem(self.seed)
        objective = FactoredObjective(problem, rank=self.rank)
        tell = None if progress is None else lambda at: progress(min(at / self.norm, 1.0))
        path = flow(
            objective, start=objective.aligned_start(self.start_scale), until_norm=self.norm, progress=tell,
            settings=FlowSettings(tolerance=1e-8, solver="Radau"),
        )  # fmt: skip
        solution = max_margin(problem, path.selected, norm="nuclear")
        dual = dual_singular_values(problem, path.selected, solution)[: self.rank]
        norms = np.geomspace(1.0, path.norm, 41)[:-1]
        points = np.stack([path.at_norm(norm) for norm in norms])
        sizes = np.linalg.svd(objective.matrix(points), compute_uv=False)[:, : self.rank]
        shares = sizes / sizes.sum(axis=1, keepdims=True)
        late = norms >= path.norm / 10
        slopes = np.polyfit(np.log(norms[late]), np.log(shares[late]), 1)[0]
        exponents = {
            "singular_value": np.arange(1, self.rank + 1),
            "dual": dual,
            "predicted": 2 * (dual - 1),
            "measured": slopes,
        }
        rows = [{"value": f"{j + 1}: dual {dual[j]:.3f}", "norm": norm, "share": share[j]}
                for j in range(self.rank) for norm, share in zip(norms, shares, strict=True)]  # fmt: skip
        beyond = int(np.flatnonzero(dual < 1 - 1e-4)[0]) if (dual < 1 - 1e-4).any() else -1
        return Result(self, {"spectrum": columns(rows), "exponents": exponents}, _findings(exponents, beyond, solution))


def _findings(exponents: dict[str, Array], beyond: int, solution: MarginSolution) -> tuple[Finding, ...]:
    return (
        Finding("gap of the certificate of the nuclear direction", solution.certificate.gap, high=1e-8),
        Finding("first singular value of the dual below 1", float(exponents["dual"][beyond])),
        Finding("exponent of that singular value of W, by the dual", float(exponents["predicted"][beyond])),
        Finding("the same, measured over the last decade", float(exponents["measured"][beyond])),
        Finding("measured over predicted", float(exponents["measured"][beyond] / exponents["predicted"][beyond]), 0.99,
                1.01, "the law above; a per cent is our choice"),
    )  # fmt: skip
