"""Which flows are decided by rounding: `python -m benchmarks.rounding [--random 300] [--symmetric 50]`.

Ordinary problems (random tokens, random starts) must not be called; of problems that are exactly symmetric, followed
from their axis, those must be whose two sides lead to different ends. The sides are followed from 1e-9 off the axis.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy import ndarray as Array

from benchmarks.tools import run_main
from tokenmargin.dynamics import flow
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.problem.instances import random_problem
from tokenmargin.problem.token_problem import TokenProblem


def symmetric(seed: int) -> tuple[TokenProblem, Array]:
    """Pairs of tokens mirrored in the last axis, of equal scores, and tokens without it; a start without it.

    All numbers are eighths, so that mirrored terms cancel exactly wherever the order of the sum allows.
    """
    rng = np.random.default_rng(seed)
    n, d, pairs, single = (int(rng.integers(low, high)) for low, high in ((1, 4), (2, 4), (1, 3), (1, 3)))
    keys, scores = [], []
    for _ in range(n):
        one = np.round(8 * rng.standard_normal((pairs, d))) / 8
        other, on_axis = one.copy(), np.round(8 * rng.standard_normal((single, d))) / 8
        other[:, -1] *= -1
        on_axis[:, -1] = 0
        high, low = (np.round(8 * rng.standard_normal(k)) / 8 for k in (pairs, single))
        keys.append(np.concatenate([one, other, on_axis]))
        scores.append(np.concatenate([high, high, low]))
    start = rng.standard_normal(d)
    start[-1] = 0
    return TokenProblem.of(np.array(keys), np.ones(n), scores=np.array(scores)), start


def ordinary(count: int) -> None:
    growths, called, stops = [], [], Counter[str]()
    for seed in range(count):
        rng = np.random.default_rng(1000 + seed)
        n, T, d = (int(rng.integers(low, high)) for low, high in ((1, 5), (2, 7), (1, 7)))
        problem = random_problem(n, T, d, rng=rng)
        path = flow(PromptObjective(problem), start=2 * rng.standard_normal(d))
        growths.append(path.rounding.log_growth)
        stops[path.stop] += 1
        if path.decided_by_rounding:
            called.append(seed)
    print(f"{count} random problems: {dict(stops)}; called: {called or 'none'}; largest growth exp({max(growths):.2f})")


def mirrored(count: int) -> None:
    table: Counter[tuple[bool, bool]] = Counter()
    for seed in range(count):
        problem, start = symmetric(seed)
        objective = PromptObjective(problem)
        path = flow(objective, start=start)
        off = 1e-9 * np.eye(len(start))[-1]
        ends = [flow(objective, start=start + side * off).final[-1] for side in (1, -1)]
        apart = bool(abs(ends[0] - ends[1]) > 1e-4)
        table[path.decided_by_rounding, apart] += 1
        if path.decided_by_rounding != apart:
            print(
                f"symmetric {seed}: called {path.decided_by_rounding}, sides apart {apart}, "
                f"{path.stop} at {path.norm:.3g}"
            )
    print(
        f"{count} symmetric problems: called and sides apart {table[True, True]}, neither {table[False, False]}, ",
        end="",
    )
    print(f"called alone {table[True, False]}, sides apart alone {table[False, True]}")


def main(*, random: int = 300, symmetric: int = 50) -> None:
    ordinary(random)
    mirrored(symmetric)


if __name__ == "__main__":
    run_main(main, __doc__)
