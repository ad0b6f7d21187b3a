"""How fast are certified max-margin answers, beside the authors' way (cvxopt, dense, one at a time)?

    python -m benchmarks.margin_speed

Every comparison interleaves the works in many short rounds and takes the best round of each: other work on the machine
disturbs all alike. Ours includes the certificate of every answer; cvxopt runs with its default settings.
"""

from __future__ import annotations

import time

import numpy as np

import tokenmargin as tm
from benchmarks.tools import best_times, by_cvxopt, header, line
from tokenmargin.margin import atlas, max_margin, max_margin_batch
from tokenmargin.margin.constraints import attention_constraints
from tokenmargin.margin.single import proposals


def small_problems() -> None:
    print("\n" + header("n=4, T=6", "cvxopt", "single call", "", "batch", "", "problems/s in the batch", numbers=6))
    rng = np.random.default_rng(0)
    for d, few, many in ((10, 10, 1000), (100, 10, 1000), (500, 1, 200)):
        keys = rng.standard_normal((many, 4, 6, d))
        keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
        selected = rng.integers(0, 6, (many, 4))
        problems = [tm.TokenProblem.of(keys[b], np.ones(4), scores=np.zeros((4, 6))) for b in range(50)]
        rows = [attention_constraints(problem, s).rows() for problem, s in zip(problems, selected, strict=False)]

        def theirs(rows: list[np.ndarray] = rows[:few]) -> None:
            for one in rows:
                by_cvxopt(one)

        def single(problems: list[tm.TokenProblem] = problems, selected: np.ndarray = selected) -> None:
            for problem, s in zip(problems, selected, strict=False):
                max_margin(problem, s)

        def batch(keys: np.ndarray = keys, selected: np.ndarray = selected) -> None:
            max_margin_batch(keys, selected)

        batch()  # compiled code is loaded, or made, at the first call
        t, s, b = best_times(theirs, single, batch)
        t, s, b = t / few, s / len(problems), b / len(keys)
        print(line(f"d={d}", f"{t * 1e6:.0f} us", f"{s * 1e6:.0f} us", f"**{t / s:.1f}x**", f"{b * 1e6:.1f} us",
                   f"**{t / b:.0f}x**", f"{1 / b:.0f}"))  # fmt: skip


def large_problem() -> None:
    rng = np.random.default_rng(0)
    problem = tm.random_problem(200, 20, 200, rng=rng)
    selected = (problem.keys.tokens @ rng.standard_normal(200)).argmax(axis=1)
    constraints = attention_constraints(problem, selected)
    rows = constraints.rows()
    solution = max_margin(problem, selected)
    held = rows[solution.active]

    def floor() -> None:
        """What any method must do: form and factor the Gram matrix of the final active set, check all constraints."""
        np.linalg.cholesky(held @ held.T)
        for _ in range(2):
            rows @ solution.vector

    # CPU time, one thread each: an interval of milliseconds is seldom undisturbed on the wall. In turns with others the
    # floor has to fetch its numbers as they do; by itself it finds all of them in the caches.
    proposals.LOADING = 0.0  # compiled code from the first call on
    max_margin(problem, selected)
    works = (
        lambda: max_margin(problem, selected),
        floor,
        lambda: by_cvxopt(rows),
        lambda: proposals.propose_by_cuts(rows, constraints.bound),
    )
    ours, least, theirs, cuts = (1e3 * seconds for seconds in best_times(*works, clock=time.process_time))
    alone_ours, alone = (1e3 * best_times(work, clock=time.process_time)[0] for work in works[:2])
    names = ("n=200, T=20, d=200 (3800 constraints), CPU", "cvxopt", "by daqp", "ours", "", "floor", "ours / floor")
    print("\n" + header(*names, numbers=6))
    print(f"| {len(solution.active)} active, residual {solution.certificate.residual:.0e} | {theirs:.0f} ms "
          f"| {cuts:.0f} ms | {ours:.1f} ms | **{theirs / ours:.0f}x** | {least:.2f} ms | {ours / least:.0f} |\n"
          f"| each by itself | | | {alone_ours:.1f} ms | | {alone:.2f} ms | {alone_ours / alone:.0f} |")  # fmt: skip


def atlases() -> None:
    print("\n" + header("atlas of n=4, T=6", "selections", "feasible", "limits", "solves", "time", numbers=5))
    for d in (2, 5, 10, 100, 500):
        problem = tm.random_problem(4, 6, d, rng=np.random.default_rng(1))
        found = atlas(problem)
        (seconds,) = best_times(lambda problem=problem: atlas(problem))
        counts = (found.selections, found.feasible, len(found.limits), found.solves)
        print(line(f"d={d}", *counts, f"{seconds * 1e3:.1f} ms"))


def main() -> None:
    small_problems()
    large_problem()
    atlases()


if __name__ == "__main__":
    main()
