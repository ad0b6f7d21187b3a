"""*Transformers as Support Vector Machines*: convergence from zero, its rate for K and Q, several tokens at once.

The rate is a study of our own. Far out the direction of descent in W is the dual matrix `M = sum_j lambda_j z_j k_j'`
of the max-margin problem, scaled to spectral norm 1. Singular vectors of the solution have singular value 1 in M; along
a pair with a value s < 1 the columns of K and Q obey `dQ = s K`, `dK = s Q` where those of the solution obey it with 1.
So they grow like R^s beside R, and that singular value of W falls like `R^(2 (s - 1))` beside the others: by a power of
the norm, and slowly for s near 1.

Several tokens at once are what a nonlinear head may want: training keeps finite weights on some tokens of an input and
leaves the others behind, `W = W_fin + R W_mm`, where W_mm is the max-margin direction with the kept tokens tied, and
W_fin gives their weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics import FlowSettings, NormalizedGradientDescent, evolve, flow
from tokenmargin.experiments.experiment import (
    AbstractExperiment,
    Curves,
    Finding,
    Progress,
    Result,
    Scales,
    Table,
    track,
)
from tokenmargin.experiments.tables import PAPER_C, columns
from tokenmargin.margin import MarginSolution, class_margin, max_margin
from tokenmargin.margin.constraints import attention_constraints
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.factored import FactoredObjective
from tokenmargin.objective.forward import attend, descent_weights
from tokenmargin.objective.losses import LogisticLoss
from tokenmargin.problem.attention_problems import ReluData, svm_path_data, svm_problem, svm_relu_data
from tokenmargin.problem.geometry import in_coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import select
from tokenmargin.theory.paper_c.several_tokens import shortest_with_logits

SEEDS = (1, 3)
NORMS = {"W": "l2", "KQ": "nuclear"}
CLOSED = 1e-2  # an output below this is at the minimum of the rectified units, 0, up to the step's zigzag
GUARDS = {"printed": float(np.finfo(float).eps), "ours": 0.0}
DIRECTIONS = ("equivalent", "direction", "single")


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
        for seed, trained in track([(seed, trained) for seed in SEEDS for trained in NORMS], progress):
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


LOST, KEPT = 1e-6, 1e-3  # weights at most the first are zero, above the second are kept; a run with others is left out


@dataclass(frozen=True)
class SvmTokens(AbstractExperiment):
    """`tokenmargin reproduce svm-tokens --scale paper`: 500 runs per dimension; W = W_fin + R W_mm."""

    figure = "svm-tokens"
    seconds = (4.4, 500)
    source = PAPER_C
    title = "With a nonlinear head W keeps several tokens: a direction and a finite part"
    shows = (
        "a layer of rectified units after attention, three inputs of four tokens, 500 problems in each of 4, 6, 8 and "
        "10 dimensions: one minus the correlation of W is smallest with W_fin + R W_mm, larger with W_mm alone, "
        "largest with the max-margin direction of single tokens. No numbers are printed."
    )
    differences = (
        "The data are those of its seeds from 1 on, runs are left out by its rules (all labels positive, a weight "
        "between 1e-6 and 1e-3, no weight below, no max-margin direction); its starts are not seeded, ours are drawn "
        "by the same law.",
        "Printed settings divide by |gradient| + eps; ours by |gradient|, from the same starts on the same seeds. The "
        "guard stops the runs that diverge, so that the rules leave out others.",
        "An input of label -1 may come to rest where the attended token closes all units: there its output has the "
        "least value, 0, and the gradient none. Nothing then drives its other tokens away, and W need not turn to "
        "W_mm; such runs are most of the error.",
    )
    shown_tables = ("means",)
    curves = Curves(
        "means", "d", DIRECTIONS, by="settings", x_label="dimension $d$", y_label="1 − correlation of $W$", log="y"
    )
    scales = Scales(quick={"dimensions": (4, 6), "runs": 10})

    dimensions: tuple[int, ...] = (4, 6, 8, 10)
    runs: int = 500
    steps: int = 2001
    step: float = 0.1
    n: int = 3
    T: int = 4
    start_seed: int = 0

    def run(self, progress: Progress = None) -> Result:
        rows: list[dict[str, object]] = []
        for d in track(self.dimensions, progress):
            rows += self._runs(d)
        runs = columns(rows)
        means = columns([_means(runs, settings, d) for settings in GUARDS for d in self.dimensions])
        return Result(self, {"means": means, "runs": runs}, self._findings(means, runs))

    def _runs(self, d: int) -> list[dict[str, object]]:
        """Batches of seeds until enough runs have counted by the printed settings."""
        rng, seeds, rows, counted = np.random.default_rng([self.start_seed, d]), count(1), [], 0
        while counted < self.runs:
            drawn = {seed: svm_relu_data(seed, n=self.n, T=self.T, d=d) for seed in islice(seeds, 5 * self.runs)}
            batch = {seed: data for seed, data in drawn.items() if (data.problem.labels < 0).any()}
            starts = rng.uniform(-1, 1, (len(batch), d * d)) / np.sqrt(d)
            for settings, guard in GUARDS.items():
                ends = _train(self, list(batch.values()), starts, guard)
                found = {seed: _row(data, W) for (seed, data), W in zip(batch.items(), ends, strict=True)}
                good = [{"settings": settings, "d": d, "seed": seed, **row} for seed, row in found.items() if row]
                counted += len(good) * (settings == "printed")
                rows += good
        return rows

    def _findings(self, means: Table, runs: Table) -> tuple[Finding, ...]:
        found = []
        for settings in GUARDS:
            mine = means["settings"] == settings
            for better, worse, what in (
                ("equivalent", "direction", "W_fin + R W_mm over W_mm alone"),
                ("direction", "single", "W_mm over the direction of single tokens"),
            ):
                gain = float((means[worse] - means[better])[mine].min())
                known = {"low": 0.0, "source": "the order of the curves", "basis": "figure"}
                found.append(Finding(f"smallest gain of {what}, {settings}", gain, **known))  # type: ignore[arg-type]
        for closed, where in ((False, "no input rests where all units are closed"), (True, "some input does")):
            for settings in GUARDS:
                error = 1 - runs["equivalent"][(runs["closed"] == closed) & (runs["settings"] == settings)]
                what = f"median 1 - correlation with W_fin + R W_mm where {where}, {settings}"
                found.append(Finding(what, float(np.median(error)) if error.size else np.nan))
        found.append(Finding("share of the runs where some input rests with all units closed", runs["closed"].mean()))
        found.append(Finding("share of the runs that keep several tokens in some input", float(runs["several"].mean())))
        return tuple(found)


def _means(runs: Table, settings: str, d: int) -> dict[str, object]:
    mine = (runs["settings"] == settings) & (runs["d"] == d)
    errors = {name: 1 - float(runs[name][mine].mean()) if mine.any() else np.nan for name in DIRECTIONS}
    return {"settings": settings, "d": d, "runs": int(mine.sum()), **errors}


def _train(
    settings: SvmTokens, family: list[ReluData], W: Float[Array, "runs D"], guard: float
) -> Float[Array, "runs D"]:
    """Normalised descent of all runs together; around the attended x the head acts by its gradient."""
    tokens, values = (np.stack([in_coordinates(geometry) for geometry in part]) for part in
                      ([d.problem.keys for d in family], [d.problem.values for d in family]))  # fmt: skip
    runs, n, T, D = tokens.shape
    flat, labels = tokens.reshape(runs, n * T, D), np.stack([data.problem.labels for data in family])
    units = np.einsum("lntd,lde->lnte", values, np.stack([data.layer for data in family]))
    for _ in range(settings.steps):
        logits = (flat @ W[..., None]).reshape(runs, n, T)
        weights = attend(logits, np.zeros_like(logits)).weights
        hidden = (weights[..., None, :] @ units)[..., 0, :]
        open_ = (hidden > 0).astype(float)
        scores = labels[..., None] * (units @ open_[..., None])[..., 0]
        log_slope = LogisticLoss().log_slope(labels * (hidden * open_).sum(axis=-1))
        coefficients, log_scale = descent_weights(attend(logits, scores), log_slope)
        vector = (coefficients.reshape(runs, 1, n * T) @ flat)[:, 0]
        length = np.linalg.norm(vector, axis=1)
        size = length if guard == 0 else length + guard * n * np.exp(np.minimum(-log_scale, 700.0))
        W = W + settings.step * vector / np.where(length > 0, size, 1.0)[:, None]
    return W


def _row(data: ReluData, W: Float[Array, " D"]) -> dict[str, object] | None:
    """Correlations with the three directions; None for a run that does not count."""
    problem = data.problem
    logits = problem.keys.logits(W)
    weights = attend(logits, np.zeros_like(logits)).weights
    kept = weights > KEPT
    if (kept != (weights > LOST)).any() or kept.all():
        return None
    direction, single = class_margin(problem, kept), max_margin(problem, weights.argmax(axis=1))
    if not (direction.is_optimal and single.is_optimal):
        return None
    finite = shortest_with_logits(problem, logits, kept)
    along = direction.vector @ (W - finite) / (direction.vector @ direction.vector)
    parts = (finite + along * direction.vector, direction.vector, single.vector)
    cosines = (float(W @ part / np.linalg.norm(W) / np.linalg.norm(part)) for part in parts)
    attended = (weights[:, None] @ in_coordinates(problem.values))[:, 0]
    outputs = np.maximum(attended @ data.layer, 0.0).sum(axis=1)
    return {
        **dict(zip(DIRECTIONS, cosines, strict=True)),
        "lost": float(weights[~kept].max()),
        "several": bool((kept.sum(axis=1) > 1).any()),
        "closed": bool((outputs < CLOSED).any()),
    }
