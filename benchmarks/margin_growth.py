"""How does the time of a certified solve grow with n, T, d and the number of constraints?

    python -m benchmarks.margin_growth

Selections are planted (the argmax tokens of a hidden vector), so every problem is feasible whatever its size. Slopes
are fitted to the logarithms over two decades.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

import tokenmargin as tm
from benchmarks.margin_corpus import LENGTH, as_corpus
from benchmarks.tools import header, line, slope
from tokenmargin.margin import argmax_pairs, corpus_margin, max_margin


def seconds_of_solve(n: int, T: int, d: int) -> float:
    """Best time over a few problems of this shape, each solved a few times."""
    times = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        problem = tm.random_problem(n, T, d, rng=rng)
        selected = (problem.keys.tokens @ rng.standard_normal(d)).argmax(axis=1)
        rounds = []
        for _ in range(3):
            began = time.perf_counter()
            solution = max_margin(problem, selected)
            rounds.append(time.perf_counter() - began)
        if not solution.is_optimal:
            raise RuntimeError(f"n={n}, T={T}, d={d}: {solution}")
        times.append(min(rounds))
    return float(np.median(times))


def seconds_of_corpus(constraints: int, *, vocabulary: int = 4000, d: int = 128) -> tuple[float, int]:
    """Time to collect and solve a corpus with this many token occurrences, and the distinct constraints."""
    rng = np.random.default_rng(0)
    vectors, planted = rng.standard_normal((vocabulary, d)) / np.sqrt(d), rng.standard_normal(d)
    corpus = as_corpus(rng.integers(0, vocabulary, constraints // LENGTH * LENGTH), vocabulary)
    began = time.perf_counter()
    pairs = argmax_pairs(corpus, vectors @ planted)
    corpus_margin(vectors, pairs, start=planted)
    return time.perf_counter() - began, len(pairs)


def row(what: str, sizes: Sequence[int], seconds: Sequence[float]) -> str:
    times = ", ".join(f"{s}: {1e3 * t:.2g} ms" for s, t in zip(sizes, seconds, strict=True))
    return line(what, times, f"{slope(sizes, seconds):.2f}", f"{slope(sizes[-3:], seconds[-3:]):.2f}")


def main() -> None:
    print(header("growing", "size: time", "slope", "slope of the last three", numbers=2))
    sizes = (4, 12, 40, 120, 400)
    print(row("n (T=6, d=20)", sizes, [seconds_of_solve(n, 6, 20) for n in sizes]))
    print(row("T (n=4, d=20)", sizes, [seconds_of_solve(4, T, 20) for T in sizes]))
    print(row("d (n=20, T=6)", sizes, [seconds_of_solve(20, 6, d) for d in sizes]))
    counts = (50_000, 150_000, 500_000, 1_500_000, 5_000_000)
    measured = [seconds_of_corpus(count) for count in counts]
    print(row("constraints of a corpus (4000 tokens, d=128)", counts, [seconds for seconds, _ in measured]))
    print("\ndistinct constraints in the last row: " + ", ".join(str(distinct) for _, distinct in measured))


if __name__ == "__main__":
    main()
