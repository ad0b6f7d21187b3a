"""Figure 9 complete, against the usual way on a sample of the same trials: `python -m benchmarks.figure9`.

The usual way takes one trial at a time: 1000 normalised steps with automatic differentiation in float32, then cvxopt
for the max-margin direction. Here all trials of a dimension are trained at once, and every direction has a certificate.
The second table asks what the arithmetic does to the correlation: the textbook gradient in float32 and float64 against
the pivoted one, on the same problems; and what a guard does in the normalisation, `gradient / (|gradient| + guard)`.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks.tools import by_cvxopt, run_main
from tokenmargin.dynamics import NormalizedGradientDescent, evolve_many
from tokenmargin.experiments.figures.overparameterisation import Figure9a
from tokenmargin.margin import max_margin_batch
from tokenmargin.problem.token_problem import TokenProblem


def usual_way(problem: TokenProblem, steps: int) -> float:
    """One trial by automatic differentiation and cvxopt; the correlation of p with the max-margin direction."""
    keys = torch.tensor(problem.keys.tokens, dtype=torch.float32)
    head = torch.tensor(problem.head, dtype=torch.float32)
    labels = torch.tensor(problem.labels, dtype=torch.float32)
    p = torch.zeros(keys.shape[-1], requires_grad=True)
    for _ in range(steps):
        weights = torch.softmax(keys @ p, dim=1)
        outputs = ((keys @ head) * weights).sum(dim=1)
        loss = torch.log(1 + torch.exp(-labels * outputs)).mean()
        loss.backward()
        with torch.no_grad():
            p -= p.grad / p.grad.norm()
        p.grad = None
    chosen = (keys @ p).argmax(dim=1)
    rows = torch.cat(
        [keys[i, chosen[i]] - keys[i, np.arange(len(keys[i])) != int(chosen[i])] for i in range(len(keys))]
    )
    direction, final = by_cvxopt(rows.double().numpy()), p.detach().double().numpy()
    return float(direction @ final / np.linalg.norm(direction) / np.linalg.norm(final))


GUARDS = (0.0, 1e-12, 1e-9)


def textbook(problems: list[TokenProblem], steps: int, dtype: type, guard: float) -> tuple[np.ndarray, np.ndarray]:
    """Normalised descent with the gradient coded as `s (gamma - f)`: final points and saturation."""
    keys = np.stack([pose.keys.tokens for pose in problems]).astype(dtype)
    scores = np.stack([pose.scores for pose in problems]).astype(dtype)
    p = np.zeros((len(problems), keys.shape[-1]), dtype)
    for _ in range(steps):
        logits = np.einsum("bntd,bd->bnt", keys, p)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        f = (weights * scores).sum(-1, keepdims=True)
        slope = 1 / (1 + np.exp(f))
        gradient = np.einsum("bnt,bntd->bd", slope * weights * (scores - f), keys)
        length = np.linalg.norm(gradient, axis=1, keepdims=True) + dtype(guard)
        p += np.where(length > 0, gradient / np.where(length > 0, length, 1), 0).astype(dtype)
    return p.astype(float), weights.max(-1).mean(-1)


def correlations(problems: list[TokenProblem], p: np.ndarray, saturation: np.ndarray) -> tuple[float, float]:
    """Share of saturated runs, and their mean correlation with the direction of what they select."""
    keys = np.stack([pose.keys.tokens for pose in problems])
    saturated = saturation >= 1 - 1e-5
    selected = np.einsum("bntd,bd->bnt", keys, p).argmax(-1)
    solution = max_margin_batch(keys[saturated], selected[saturated])
    p = p[saturated]
    lengths = np.linalg.norm(p, axis=1) * np.linalg.norm(solution.vectors, axis=1)
    good = solution.optimal & (lengths > 0)
    return float(saturated.mean()), float(
        (np.einsum("bd,bd->b", p, solution.vectors) / np.where(good, lengths, 1))[good].mean()
    )


def main(*, trials: int = 1000, sample: int = 3, arithmetic: int = 200) -> None:
    """Trials per dimension: of our run, of those done the usual way, and of the second table."""
    experiment = Figure9a(trials=trials)
    began, busy = time.perf_counter(), time.process_time()
    result = experiment.run()
    ours, our_work = time.perf_counter() - began, time.process_time() - busy
    usual, their_work = {}, 0.0
    for d in experiment.dimensions:
        some = experiment.problems(d)[:sample]
        usual_way(some[0], 10)  # warm up
        began, busy = time.perf_counter(), time.process_time()
        for problem in some:
            usual_way(problem, experiment.steps)
        usual[d] = (time.perf_counter() - began) / len(some)
        their_work += (time.process_time() - busy) / len(some) * trials
    theirs = sum(usual.values()) * trials
    print(f"ours: {ours:.1f} s for {trials} trials in each of {len(usual)} dimensions, classified and certified")
    print("usual way, seconds a trial: " + ", ".join(f"d={d} {seconds:.3f}" for d, seconds in usual.items()))
    print(f"usual way, whole figure: {theirs:.0f} s; ratio {theirs / ours:.0f}x")
    print(f"processor time: ours {our_work:.1f} s, usual way {their_work:.0f} s; ratio {their_work / our_work:.0f}x")
    runs = result.tables["runs"]
    print("\n    d  saturated     GMM     LMM  not LMM  mean cosine  least cosine")
    for d in experiment.dimensions:
        here = runs["d"] == d
        share = [float((runs["kind"][here] == kind).mean()) for kind in ("GMM", "LMM", "not locally optimal")]
        cosines = runs["cosine"][here & np.isfinite(runs["cosine"])]
        print(f"{d:5d}  {len(cosines) / here.sum():9.3f}  {share[0]:6.3f}  {share[1]:6.3f}  {share[2]:7.3f}"
              f"  {cosines.mean():11.6f}  {cosines.min():12.6f}")  # fmt: skip
    if arithmetic:
        compare_arithmetic(experiment, arithmetic)


def compare_arithmetic(experiment: Figure9a, trials: int) -> None:
    """The mean correlation of saturated runs by arithmetic and guard, per dimension and over all."""
    print("\nmean cosine of saturated runs\n" + f"{'':30}" + "".join(f"{f'd={d}':>9}" for d in experiment.dimensions)
          + "      all")  # fmt: skip
    for guard in GUARDS:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("float32", "float64", "pivoted")}
        for d in experiment.dimensions:
            problems = experiment.problems(d)[:trials]
            path = evolve_many(problems, NormalizedGradientDescent(1.0, guard=guard), steps=experiment.steps)
            ends = np.stack([final[0] for final in path.finals])
            found["pivoted"].append(correlations(problems, ends, path.saturation[:, 0]))
            for name, dtype in (("float32", np.float32), ("float64", np.float64)):
                found[name].append(correlations(problems, *textbook(problems, experiment.steps, dtype, guard)))
        for name, cells in found.items():
            mean = sum(share * cosine for share, cosine in cells) / sum(share for share, _ in cells)
            print(f"guard {guard:<7g} {name:16}" + "".join(f"{cosine:9.4f}" for _, cosine in cells) + f"{mean:9.4f}")


if __name__ == "__main__":
    run_main(main, __doc__)
