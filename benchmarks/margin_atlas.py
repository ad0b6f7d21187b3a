"""Is the atlas complete? Brute force on small problems, and descent from many starts.

    python -m benchmarks.margin_atlas [--problems 100] [--starts 1000]

- n <= 3, T <= 4, distinct scores and differences of keys: the atlas against a certified solve of every selection.
  (Ties, copies and shared differences have limits that are no selections: `benchmarks.limits_audit` has those.)
- Theorem 3: every limit it lists attracts gradient flow started near it.
- Converse: the limits seen from 1000 random starts per problem are all on the list. A run counts as settled when
  attention has saturated (mean largest weight at least 1 - 1e-5) and p lies within a cosine of 0.999 of the max-margin
  direction of the tokens it selects; runs still on their way are counted apart. A stationary point far out looks like
  that too: where the list lacks a selection, gradient flow says whether its runs come to rest.
"""

from __future__ import annotations

import itertools
import time

import numpy as np

import tokenmargin as tm
from benchmarks.tools import run_main
from tokenmargin.margin import LimitDirection, atlas, max_margin
from tokenmargin.selection import is_locally_optimal


def brute_force(problem: tm.TokenProblem) -> set[tuple[int, ...]]:
    """Locally optimal selections, by solving every one."""
    limits = set()
    for selected in itertools.product(range(problem.T), repeat=problem.n):
        solution = max_margin(problem, selected)
        if solution.is_optimal and is_locally_optimal(problem, solution.vector, selected):
            limits.add(selected)
    return limits


def random_shapes(rng: np.random.Generator, count: int) -> list[tm.TokenProblem]:
    """Random tokens, and integer ones, with distinct scores and differences, of all shapes up to n=3, T=4."""
    problems: list[tm.TokenProblem] = []
    while len(problems) < count:
        n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(2, 6))
        if len(problems) % 2 == 0:
            problems.append(tm.random_problem(n, T, d, rng=rng))
            continue
        keys = rng.integers(-9, 10, (n, T, d)).astype(float)
        differences = (keys[:, :, None] - keys[:, None])[:, ~np.eye(T, dtype=bool)].reshape(-1, d)
        if len(np.unique(differences, axis=0)) == n * T * (T - 1):
            problems.append(
                tm.TokenProblem.of(keys, np.ones(n), scores=rng.permuted(np.tile(np.arange(T), (n, 1)), axis=1))
            )
    return problems


def attracts(problem: tm.TokenProblem, limit: LimitDirection, rng: np.random.Generator) -> bool:
    """Whether gradient flow from three points near a limit, far out, goes to it.

    There the selected tokens lead by 300; off the direction the points are by so much that logits change by about 3.
    """
    direction = limit.solution.vector * limit.solution.margin
    noise = rng.standard_normal((3, len(direction)))
    reached = [tm.limit_of(problem, 300 / limit.solution.margin * direction + 3 * one) for one in noise]
    return all(end.outcome == "direction" and end.selected.tolist() == limit.selected.tolist() for end in reached)


def missing(problem: tm.TokenProblem, starts: int, rng: np.random.Generator) -> tuple[int, int, int]:
    """Settled runs, distinct limits seen, and those of them that the atlas does not list."""
    known = {tuple(limit.selected.tolist()) for limit in atlas(problem).limits}
    start = 2 * rng.standard_normal((starts, problem.keys.dimension))
    path = tm.evolve(tm.PromptObjective(problem), tm.NormalizedGradientDescent(0.1), steps=4000, start=start)
    seen, settled = set(), 0
    for selected in {tuple(row) for row in path.selected.tolist()}:
        solution = max_margin(problem, selected)
        if not solution.is_optimal:
            continue
        runs = (path.selected == selected).all(axis=1) & (path.saturation >= 1 - 1e-5)
        runs &= tm.cosine(problem.keys, path.final, solution.vector) > 0.999
        if runs.any() and selected not in known and tm.limit_of(problem, path.final[runs][0]).outcome == "bounded":
            continue
        settled += int(runs.sum())
        seen |= {selected} if runs.any() else set()
    return settled, len(seen), len(seen - known)


def main(*, problems: int = 200, starts: int = 1000) -> int:
    rng = np.random.default_rng(0)
    began = time.perf_counter()
    shapes = random_shapes(rng, problems)
    wrong = sum({tuple(x.selected.tolist()) for x in atlas(p).limits} != brute_force(p) for p in shapes)
    print(f"brute force: {problems} problems, {wrong} atlases differ ({time.perf_counter() - began:.0f} s)")
    listed = attracted = lost = 0
    for n, T, d in ((1, 3, 2), (2, 3, 2), (3, 4, 3), (3, 4, 5)):
        problem = tm.random_problem(n, T, d, rng=rng)
        limits = atlas(problem).limits
        listed += len(limits)
        attracted += sum(attracts(problem, limit, rng) for limit in limits)
        settled, seen, unknown = missing(problem, starts, rng)
        lost += unknown
        print(f"n={n}, T={T}, d={d}: {len(limits)} limits; {settled} of {starts} starts settled, "
              f"in {seen} limits, {unknown} not in the atlas ({time.perf_counter() - began:.0f} s)")  # fmt: skip
    print(f"{attracted} of {listed} listed limits attract flow started near them; {lost} limits missing")
    return int(wrong + lost + listed - attracted > 0)


if __name__ == "__main__":
    run_main(main, __doc__)
