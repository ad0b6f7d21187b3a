"""Max-margin in other norms: how fast beside cvxpy, and the ranks of *Transformers as SVMs*.

    python -m benchmarks.norms speed                # our certified answers and cvxpy's default solver, same problems
    python -m benchmarks.norms ranks --runs 100     # the rank study of the public notebook svm_rank.ipynb, its seeds

`speed` interleaves the works in rounds and takes the best round of each. `ranks` draws the notebook's data by its
generator (torch, seeds 0, 1, ...) and, for the first `--peer` seeds, also solves as the notebook does: cvxpy with its
default solver, `matrix_rank(W, tol=1e-7)`.
"""

from __future__ import annotations

import time
from typing import Literal

import numpy as np

import tokenmargin as tm
from benchmarks.tools import best_times, header, line, run_main
from tokenmargin.margin.constraints import attention_constraints

VECTORS = ("l1", "linf", "lp:1.5", "lp:3")
MATRICES = ("nuclear", "spectral")


def by_cvxpy(name: str, rows: np.ndarray, shape: tuple[int, ...]) -> tuple[float, np.ndarray]:
    """The least norm and its vector, as one would write it, with cvxpy's default solver."""
    import cvxpy as cp

    x = cp.Variable(shape)
    flat = x if len(shape) == 1 else cp.vec(x, order="C")
    order = {"l1": 1, "linf": "inf", "nuclear": "nuc", "spectral": 2, "frobenius": "fro"}.get(name)
    length = cp.norm(x, order) if order is not None else cp.pnorm(x, float(name.removeprefix("lp:")))
    posed = cp.Problem(cp.Minimize(length), [rows @ flat >= 1])
    posed.solve()
    return float(posed.value), np.asarray(x.value)


def feasible_problems(
    rng: np.random.Generator, d: int, count: int, *, matrix: bool
) -> list[tuple[tm.TokenProblem, list[int]]]:
    """n = 6 inputs of T = 8 tokens on the sphere; the selections that can be separated."""
    found: list[tuple[tm.TokenProblem, list[int]]] = []
    while len(found) < count:
        problem = tm.random_problem(n=6, T=8, d=d, rng=rng)
        if matrix:
            queries = rng.standard_normal((6, d))
            problem = problem.with_matrix(queries / np.linalg.norm(queries, axis=1, keepdims=True))
        selected = problem.scores.argmax(axis=1).tolist()
        if tm.max_margin(problem, selected).is_optimal:
            found.append((problem, selected))
    return found


def speed(seconds: float, only: str | None) -> None:
    names = ("norm", "problem", "ours, ms", "in a batch", "cvxpy, ms", "ratio", "in a batch", "largest gap")
    print(header(*names, "error of cvxpy", numbers=7))
    rng = np.random.default_rng(0)
    for name in (*VECTORS, *MATRICES) if only is None else (only,):
        for d in (10, 50):
            matrix = name in MATRICES
            slow = matrix and d == 50
            cases = feasible_problems(rng, d, 1 if slow else 10, matrix=matrix)
            systems = [attention_constraints(problem, selected).rows() for problem, selected in cases]
            shape = (d, d) if matrix else (d,)
            ours = [tm.max_margin(problem, selected, norm=name) for problem, selected in cases]
            assert all(one.is_optimal for one in ours), [one.status for one in ours]
            values = [by_cvxpy(name, rows, shape)[0] for rows in systems]
            error = max(abs(value * one.margin - 1) for value, one in zip(values, ours, strict=True))
            works = [
                lambda cases=cases, name=name: [tm.max_margin(p, s, norm=name) for p, s in cases],
                lambda systems=systems, name=name, shape=shape: [by_cvxpy(name, rows, shape) for rows in systems],
            ]
            if not matrix:
                keys, chosen = np.stack([p.keys.tokens for p, _ in cases]), np.array([s for _, s in cases])
                assert tm.max_margin_batch(keys, chosen, norm=name).optimal.all()
                works.append(lambda keys=keys, chosen=chosen, name=name: tm.max_margin_batch(keys, chosen, norm=name))
            own, theirs, *batch = (
                1e3 * t / len(cases) for t in best_times(*works, seconds=seconds, clock=time.process_time)
            )
            gap = max(one.certificate.gap for one in ours)
            what = f"W, {d} x {d}" if matrix else f"p, d = {d}"
            stack, ratio = (f"{batch[0]:.2f}", f"{theirs / batch[0]:.0f}") if batch else ("", "")
            times = (f"{own:.2f}", stack, f"{theirs:.1f}", f"{theirs / own:.0f}", ratio)
            print(line(name, what, *times, f"{gap:.0e}", f"{error:.0e}"), flush=True)


def drawn(seed: int, n: int, T: int, d: int) -> tuple[tm.TokenProblem, list[int]]:
    """The notebook's data: keys, queries and head on the sphere, labels by a sign, the tokens of highest score."""
    import torch

    source = torch.Generator().manual_seed(seed)
    head = torch.randn(d, generator=source)
    head /= torch.norm(head)
    labels = 2 * torch.ones(n) * (torch.randn(n, generator=source) > 0) - 1
    keys = torch.randn((n, T, d), generator=source)
    keys /= torch.norm(keys, dim=-1, keepdim=True)
    queries = torch.randn((n, d), generator=source)
    queries /= torch.norm(queries, dim=-1, keepdim=True)
    scores = (keys @ head) * labels.view(-1, 1)
    problem = tm.TokenProblem.of(keys.double().numpy(), labels.double().numpy(), scores=scores.double().numpy())
    return problem.with_matrix(queries.double().numpy()), scores.argmax(dim=-1).tolist()


def rank(matrix: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(matrix, tol=1e-7))


def ranks(runs: int, peer: int, wide: bool) -> None:
    names = ("n", "T", "d", "separable", "Frobenius", "nuclear", "undecided", "cvxpy", "its Frobenius", "nuclear")
    print(header(*names, "ours", "nuclear", numbers=12))
    for n, T in ((5, 5), (10, 5), (15, 5), (5, 10), (5, 15)) if wide else ((5, 5),):
        for d in (1, 2, 3, 4, 5, 10, 15, 20):
            own, theirs, beside, undecided = [], [], [], 0
            for seed in range(runs):
                problem, selected = drawn(seed, n, T, d)
                frobenius = tm.max_margin(problem, selected)
                if not frobenius.is_optimal:
                    continue
                nuclear = tm.max_margin(problem, selected, norm="nuclear")
                undecided += not nuclear.is_optimal
                own.append((rank(frobenius.matrix), rank(nuclear.matrix)))
                if len(theirs) < peer:
                    rows = attention_constraints(problem, selected).rows()
                    theirs.append(
                        (rank(by_cvxpy("frobenius", rows, (d, d))[1]), rank(by_cvxpy("nuclear", rows, (d, d))[1]))
                    )
                    beside.append(own[-1])
            means = [np.mean(table, axis=0) if table else np.full(2, np.nan) for table in (own, theirs, beside)]
            ours, cvxpys, there = ([f"{rank:.2f}" for rank in mean] for mean in means)
            row = (f"{len(own)} of {runs}", *ours, undecided, len(theirs), *cvxpys, *there)
            print(line(n, T, d, *row), flush=True)


def main(
    what: Literal["speed", "ranks"],
    /,
    *,
    seconds: float = 6.0,
    norm: str | None = None,
    runs: int = 100,
    peer: int = 3,
    wide: bool = False,
) -> None:
    """Seconds per comparison of speed, of one norm alone if given; seeds per size of the rank study, those of them
    that cvxpy solves as well, and whether all sizes of the notebook are drawn or n = T = 5 alone."""
    if what == "speed":
        speed(seconds, norm)
    else:
        ranks(runs, peer, wide)


if __name__ == "__main__":
    run_main(main, __doc__)
