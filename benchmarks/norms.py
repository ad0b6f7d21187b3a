"""Max-margin in other norms: how fast beside cvxpy, how often decided, and the ranks of *Transformers as SVMs*.

    python -m benchmarks.norms speed                # our certified answers and cvxpy's default solver, same problems
    python -m benchmarks.norms oracle --count 400   # random problems per norm: statuses, gaps, linear programs beside
    python -m benchmarks.norms ranks --runs 100     # the rank study of the public notebook svm_rank.ipynb, its seeds

`speed` interleaves the works in rounds and takes the best round of each. `ranks` draws the notebook's data by its
generator (torch, seeds 0, 1, ...) and, for the first `--peer` seeds, also solves as the notebook does: cvxpy with its
default solver, `matrix_rank(W, tol=1e-7)`.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
from scipy.optimize import linprog

import tokenmargin as tm
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


def best_times(seconds: float, *works: Callable[[], object]) -> list[float]:
    """Best CPU time of each work over interleaved rounds, at least two."""
    times, rounds, end = [np.inf] * len(works), 0, time.perf_counter() + seconds
    while rounds < 2 or time.perf_counter() < end:
        for j, work in enumerate(works):
            began = time.process_time()
            work()
            times[j] = min(times[j], time.process_time() - began)
        rounds += 1
    return times


def speed(seconds: float, only: str | None) -> None:
    print("| norm | problem | ours, ms | in a batch | cvxpy, ms | ratio | in a batch | largest gap | error of cvxpy |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
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
            own, theirs, *batch = (1e3 * t / len(cases) for t in best_times(seconds, *works))
            gap = max(one.certificate.gap for one in ours)
            what = f"W, {d} x {d}" if matrix else f"p, d = {d}"
            stack, ratio = (f"{batch[0]:.2f}", f"{theirs / batch[0]:.0f}") if batch else ("", "")
            print(
                f"| {name} | {what} | {own:.2f} | {stack} | {theirs:.1f} | {theirs / own:.0f} | {ratio} | {gap:.0e} "
                f"| {error:.0e} |",
                flush=True,
            )


def least_by_linprog(rows: np.ndarray, *, common: bool) -> float:
    k, r = rows.shape
    eye, ones = np.eye(r), -np.ones((r, 1)) if common else -np.eye(r)
    most = np.block([[-rows, np.zeros((k, ones.shape[1]))], [eye, ones], [-eye, ones]])
    cost = np.r_[np.zeros(r), np.ones(ones.shape[1])]
    found = linprog(cost, most, np.r_[-np.ones(k), np.zeros(2 * r)], bounds=[(None, None)] * len(cost))
    return float(found.fun) if found.status == 0 else np.inf


def oracle(count: int, seed: int) -> int:
    """Random problems of random shape, a third with integer keys; l1 and linf beside HiGHS, all beside l2's status."""
    print("| norm | problems | optimal | infeasible | inaccurate | largest gap | false |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    wrong = 0
    for name in (*VECTORS, "lp:1.1", "lp:8", *MATRICES):
        rng = np.random.default_rng(seed)
        statuses: Counter[str] = Counter()
        largest, false = 0.0, 0
        for _ in range(count if name not in MATRICES else count // 4):
            n, T, d = (int(rng.integers(1, most)) for most in (5, 6, 8))
            keys = rng.standard_normal((n, T, d))
            if rng.random() < 0.3:
                keys = rng.integers(-2, 3, size=(n, T, d)).astype(float)
            problem = tm.TokenProblem.of(keys, np.ones(n), scores=rng.standard_normal((n, T)))
            if name in MATRICES:
                problem = problem.with_matrix(rng.standard_normal((n, int(rng.integers(1, 5)))))
            selected = rng.integers(0, T, size=n).tolist()
            found, euclidean = tm.max_margin(problem, selected, norm=name), tm.max_margin(problem, selected)
            statuses[found.status] += 1
            if found.status != "inaccurate" and euclidean.status != "inaccurate":
                false += found.status != euclidean.status
            if found.is_optimal and np.isfinite(found.margin):
                largest = max(largest, found.certificate.gap)
                if name in ("l1", "linf"):
                    rows = attention_constraints(problem, selected).rows()
                    false += abs(least_by_linprog(rows, common=name == "linf") * found.margin - 1) > 1e-6
        wrong += false
        counts = " | ".join(str(statuses[status]) for status in ("optimal", "infeasible", "inaccurate"))
        print(f"| {name} | {statuses.total()} | {counts} | {largest:.0e} | {false} |", flush=True)
    return wrong


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
    print(
        "| n | T | d | separable | Frobenius | nuclear | undecided | cvxpy | its Frobenius | nuclear | ours | nuclear |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
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
            ours, cvxpys, there = (f"{mean[0]:.2f} | {mean[1]:.2f}" for mean in means)
            counts = f"{len(own)} of {runs} | {ours} | {undecided} | {len(theirs)} | {cvxpys} | {there}"
            print(f"| {n} | {T} | {d} | {counts} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "oracle", "ranks"))
    parser.add_argument("--seconds", type=float, default=6.0, help="per comparison of speed")
    parser.add_argument("--norm", help="speed of this norm alone")
    parser.add_argument("--count", type=int, default=400, help="problems per norm of the oracle")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=100, help="seeds per size of the rank study")
    parser.add_argument("--peer", type=int, default=3, help="seeds per size that cvxpy solves as well")
    parser.add_argument("--wide", action="store_true", help="all sizes of the notebook, not n = T = 5 alone")
    given = parser.parse_args()
    if given.what == "speed":
        speed(given.seconds, given.norm)
    elif given.what == "ranks":
        ranks(given.runs, given.peer, given.wide)
    else:
        return 1 if oracle(given.count, given.seed) else 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
