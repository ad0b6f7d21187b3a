"""Global convergence in *Transformers as Support Vector Machines*: two problems in the plane, from a start at zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics import NormalizedGradientDescent, evolve
from tokenmargin.experiments.experiment import AbstractExperiment, Curves, Finding, Progress, Result, tracked
from tokenmargin.experiments.tables import PAPER_C, columns
from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.factored import FactoredObjective
from tokenmargin.problem.svm_data import svm_path_data
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
