"""Which margin each method maximises, over 100 random problems (n=4, T=6, d=10): `python -m benchmarks.methods`.

For every method: the norm reached at four looks, the least and the median share of its own norm's certified margin, and
the share of the problems whose margin rose since the look before. `--problems 20` takes fewer, `--seed 1` others,
names of methods only those. `speed` compares how fast Adam's gradient falls with what its two means allow,
`minibatches` shows where normalised steps on some of the inputs go, `diagonal` where flow of diagonal K and Q does.
"""

from __future__ import annotations

import time

import numpy as np
from scipy.optimize import brentq

import tokenmargin as tm
from benchmarks.tools import run_main
from tokenmargin.dynamics import AbstractMethod, Adam
from tokenmargin.experiments.figures.methods import MethodMargins
from tokenmargin.limits.by_method import margin_share
from tokenmargin.margin import limit_direction
from tokenmargin.objective.products import DiagonalObjective

SETTLED = {  # steps short enough to settle, and enough of them
    "ngd": (0.1, 0.0, 16_000),
    "momentum": (0.03, 0.0, 64_000),
    "mirror:1.5": (0.3, 0.0, 16_000),
    "mirror:3": (0.1, 0.0, 64_000),
    "sign": (0.03, 0.0, 64_000),
    "coordinate": (0.1, 0.0, 256_000),
    "adam:0.95": (0.02, 0.0, 128_000),
    "spectral": (0.03, 0.0, 32_000),
}
OPEN = {  # where the theory is silent, or asks for steps that shrink
    "sign": (0.3, 0.0, 16_000),
    "sign, 1/sqrt t": (1.0, 0.5, 64_000),
    "momentum": (0.3, 0.0, 16_000),
    "adam:0.95, 1/sqrt t": (1.0, 0.5, 64_000),
    "adam": (0.01, 0.0, 1_024_000),
    "adam, 1/sqrt t": (1.0, 0.5, 64_000),
}


def show(label: str, step: float, decay: float, steps: int, problems: int, seed: int) -> None:
    begun = time.process_time()
    method = label.partition(",")[0]
    result = MethodMargins(method, step, decay, steps, problems, seed=seed).run()
    looks = result.tables["looks"]
    for k in range(len(looks["step"])):
        row = f"{looks['step'][k]:7d} {looks['norm'][k]:9.4g} {looks['least'][k]:8.4f} {looks['median'][k]:8.4f}"
        print(f"{label if k == 0 else '':20} {step:5g} {row} {looks['rose'][k]:6.2f}")
    print(f"{'':20} {time.process_time() - begun:.0f} s of CPU", flush=True)


def speed(problems: int) -> None:
    """How fast the gradient falls under Adam with a constant step, from step 10,000 to step 20,000.

    Where it falls like exp(-r t), m / sqrt(v) is c(r) in every coordinate, so that r = step margin c(r); and c(r) is 0
    at r = -log(beta2) / 2, whatever the step.
    """
    posed = MethodMargins(problems=problems).random_problems()
    print(f"{'beta2':>6} {'step':>6} {'settled':>8} {'limit':>9}  r over the limit      r over the prediction")
    for beta2 in (0.999, 0.99, 0.95):
        for step in (0.01, 0.1):
            method = Adam(step, beta2=beta2)
            half = tm.evolve_many(posed, method, steps=10_000)
            whole = half.resume(steps=20_000)
            limit, falls = -np.log(beta2) / 2, []
            for j, problem in enumerate(posed):
                first, last, chosen = half.finals[j][0], whole.finals[j][0], whole.selected[j, 0]
                if (half.selected[j, 0] != chosen).any() or whole.saturation[j, 0] < 1 - 1e-5:
                    continue
                fall = np.diff([float(tm.PromptObjective(problem).descent(p).log_norm[0]) for p in (last, first)])[0]
                logits = problem.keys.logits(last - first)
                lead = logits[np.arange(problem.n), chosen][:, None] - logits
                lead[np.arange(problem.n), chosen] = np.inf
                margin = float(lead.min() / np.abs(last - first).max())
                if margin <= 0:  # it goes back and forth instead
                    continue
                falls.append((fall / 10_000 / limit, fall / 10_000 / _predicted(method, margin)))
            cells = [f"{np.min(c):.4f} {np.median(c):.4f} {np.max(c):.4f}" for c in zip(*falls, strict=True)]
            print(f"{beta2:6g} {step:6g} {len(falls):8d} {limit:9.3e}  " + "  ".join(cells), flush=True)


def _predicted(method: Adam, margin: float) -> float:
    """The r with `r = step margin c(r)`."""
    assert isinstance(method.step, float)
    size = method.step * margin

    def excess(r: float) -> float:
        means = (1 - method.beta1) / (1 - method.beta1 * np.exp(r))
        return float(r - size * means * np.sqrt(max(1 - method.beta2 * np.exp(2 * r), 0.0) / (1 - method.beta2)))

    highest = min(-np.log(method.beta2) / 2, -np.log(method.beta1))
    return float(brentq(excess, 0.0, highest)) if excess(highest) > 0 > excess(0.0) else float(highest)


def minibatches(problems: int) -> None:
    """Normalised descent on some of the four inputs: the share of the largest margin after 2,000 and 8,000 steps."""
    print(f"{'inputs':>6} {'step':>6} {'least':>8} {'median':>8} {'least':>8} {'median':>8}")
    for batch, step in ((4, 0.1), (3, 0.1), (2, 0.1), (2, 0.03), (1, 0.1), (1, 0.03)):
        shares = []
        for j, problem in enumerate(MethodMargins(problems=problems).random_problems()):
            rng, method = np.random.default_rng(j), tm.NormalizedGradientDescent(step)
            half = tm.evolve(problem, method, steps=2000, batch=batch, rng=rng)
            more = {"start": half.final, "memory": half.memory, "batch": batch, "rng": rng}
            whole = tm.evolve(problem, method, steps=6000, **more)
            shares.append([_share(problem, method, path.final, path.selected) for path in (half, whole)])
        least, median = np.min(shares, axis=0), np.median(shares, axis=0)
        print(f"{batch:6d} {step:6g} {least[0]:8.4f} {median[0]:8.4f} {least[1]:8.4f} {median[1]:8.4f}", flush=True)


def diagonal(problems: int) -> None:
    """Flow of diagonal K and Q in self-attention: shares of the largest l1 and l2 margins, drift of `q^2 - k^2`."""
    print(f"{'start':>6} {'|(k, q)|':>8} {'least':>8} {'median':>8} {'above 0.98':>10} {'l2, median':>10} {'drift':>8}")
    for scale in (0.1, 0.01):
        rows: dict[float, list[tuple[float, float, float]]] = {norm: [] for norm in (1e2, 1e3, 1e4)}
        for seed in range(problems):
            objective = _diagonal_problem(seed)
            path = tm.flow(objective, start=objective.small_start(scale), until_norm=1e4)
            points = path(path.arcs)
            lengths, begun = np.linalg.norm(points, axis=1), objective.imbalance(points[0])
            for norm, row in rows.items():
                theta = points[min(np.searchsorted(lengths, norm * (1 - 1e-9)), len(points) - 1)]
                shares = []
                for name in ("l1", "l2"):
                    named = limit_direction(objective.problem, path.selected, norm=name)
                    shares.append(margin_share(objective.problem, objective.prompt(theta), named))
                row.append((*shares, float(np.abs(objective.imbalance(theta) - begun).max() / (theta @ theta))))
        for norm, row in rows.items():
            l1, l2, drift = np.array(row).T
            print(f"{scale:6g} {norm:8g} {l1.min():8.4f} {np.median(l1):8.4f} {(l1 >= 0.98).sum():10d} "
                  f"{np.median(l2):10.4f} {drift.max():8.0e}", flush=True)  # fmt: skip
    predicted, measured = vanishing(_diagonal_problem(1))
    print("exponents of the coordinates that vanish, second problem: by the dual", predicted.round(4), sep="\n")
    print("measured from 1e4 to 1e5", measured.round(4), sep="\n")


def _diagonal_problem(seed: int) -> DiagonalObjective:
    rng = np.random.default_rng([9, seed])
    X, labels, head = rng.standard_normal((4, 6, 10)), rng.choice([-1, 1], 4), rng.standard_normal(10)
    return DiagonalObjective.of(tm.self_attention(X, labels, head=head))


def vanishing(objective: DiagonalObjective) -> tuple[np.ndarray, np.ndarray]:
    """By which power of |(k, q)| the coordinates that the l1 solution does not have leave p: predicted and measured."""
    path = tm.flow(objective, start=objective.small_start(0.1), until_norm=1e5)
    solution = tm.max_margin(objective.problem, path.selected, norm="l1")
    weights, (inputs, others) = np.zeros(objective.problem.scores.shape), solution.tokens.T
    np.add.at(weights, (inputs, others), -solution.multipliers)
    np.add.at(weights, (inputs, path.selected[inputs]), solution.multipliers)
    dual, gone = np.abs(objective.problem.keys.pullback(weights)), solution.vector == 0
    lengths, shares = [], []
    for theta in (path.at_norm(1e4), path.final):
        lengths.append(np.linalg.norm(theta))
        shares.append(np.abs(objective.prompt(theta))[gone] / lengths[-1] ** 2)
    return 2 * (dual[gone] / dual.max() - 1), np.log(shares[1] / shares[0]) / np.log(lengths[1] / lengths[0])


def _share(problem: tm.TokenProblem, method: AbstractMethod, p: np.ndarray, selected: np.ndarray) -> float:
    return margin_share(problem, p, limit_direction(problem, selected, norm=method.margin_norm))


def main(*asked: str, problems: int = 100, seed: int = 0) -> None:
    others = {"speed": speed, "minibatches": minibatches, "diagonal": diagonal}
    if len(asked) == 1 and asked[0] in others:
        return others[asked[0]](problems)
    print(f"{'method':20} {'step':>5} {'steps':>7} {'norm':>9} {'least':>8} {'median':>8} {'rose':>6}")
    for table in (SETTLED, OPEN):
        for label, (step, decay, steps) in table.items():
            if not asked or label in asked:
                show(label, step, decay, steps, problems, seed)
    return None


if __name__ == "__main__":
    run_main(main, __doc__)
