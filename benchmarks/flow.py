"""Gradient flow to |p| = 1e8: time, angle to the certified direction, and its rate: `python -m benchmarks.flow`."""

from __future__ import annotations

import time

import numpy as np

from tokenmargin.dynamics import NormalizedGradientDescent, evolve, flow
from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.problem.instances import NAMED_PROBLEMS, random_problem
from tokenmargin.selection import angle

NORMS = np.logspace(4, 8, 17)


def main() -> None:
    problems = {name: NAMED_PROBLEMS[name]() for name in ("fig1a", "fig1b", "fig1c", "fig8")}
    problems |= {f"random {k}": random_problem(4, 6, 10, rng=np.random.default_rng(k)) for k in range(10)}
    print("problem     seconds processor  steps  angle at 1e8    slope  descent off by")
    for name, problem in problems.items():
        objective = PromptObjective(problem)
        began, busy = time.perf_counter(), time.process_time()
        path = flow(objective, until_norm=1e8)
        seconds, work = time.perf_counter() - began, time.process_time() - busy
        solution = max_margin(problem, path.selected)
        assert path.stop == "norm", path.stop
        assert solution.is_optimal
        angles = np.array([float(angle(problem.keys, path.at_norm(norm), solution.vector)) for norm in NORMS])
        slope = np.polyfit(np.log(NORMS), np.log(angles), 1)[0]
        small = evolve(objective, NormalizedGradientDescent(0.001), steps=5000)
        off = float(problem.keys.norm(small.final - path(5.0)))
        print(f"{name:<10} {seconds:8.3f} {work:9.3f} {path.steps:6d} {angles[-1]:13.2e} {slope:8.4f} {off:15.2e}")


if __name__ == "__main__":
    main()
