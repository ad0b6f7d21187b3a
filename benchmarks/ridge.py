"""The joint ridge path of Figure 3 for several couplings of |v| = r and |p| = R: `python -m benchmarks.ridge`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokenmargin.dynamics import ridge_path
from tokenmargin.margin import MarginSolution, max_margin, relaxed_max_margin
from tokenmargin.objective.attention import JointObjective
from tokenmargin.problem.instances import NAMED_PROBLEMS
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle

RADII = (11.0, 22.0, 44.0, 88.0)


def show(name: str, coupling: str, pairs: list[tuple[float, float]], limit: Callable[..., MarginSolution]) -> None:
    problem: TokenProblem = NAMED_PROBLEMS[name]()
    path = ridge_path(JointObjective(problem), pairs, rng=np.random.default_rng(0), starts=1)
    off = np.asarray(angle(problem.keys, path.prompts, limit(problem, [1, 1, 1]).vector))
    cells = [f"{R:.4g}: {a:.4f} ({a * R:.4f})" for (_, R), a in zip(pairs, off.tolist(), strict=True)]
    print(f"{name}  {coupling:16} " + ", ".join(cells))


if __name__ == "__main__":
    print("R: angle of p to its claimed limit (times R); fig3a to p^mm, fig3b to p^relax")
    show("fig3a", "r = R", [(R, R) for R in RADII], max_margin)
    for ratio in (2.0, 1.0, 0.5, 0.25):
        show("fig3b", f"r = {ratio:g} R", [(ratio * R, R) for R in RADII], relaxed_max_margin)
    grown = [(r, 5 * np.log(1 + r)) for r in (4.0, 8.0, 16.0, 30.0, 100.0)]
    show("fig3b", "R = 5 log(1 + r)", grown, relaxed_max_margin)
