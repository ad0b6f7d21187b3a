"""Many max-margin problems in one call, of any kind, shape and geometry: those of one shape are solved as a stack."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tokenmargin.geometry import Coordinates
from tokenmargin.margin.certificate import normalised
from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.solution import MarginSolution
from tokenmargin.margin.solver import concluded, solve, unresolved
from tokenmargin.margin.system import FEW, MANY, solve_systems

__all__ = ["solve_many"]


def solve_many(problems: Sequence[Constraints]) -> list[MarginSolution]:
    """`solve` for each of `problems`, with the same certificates.

    Large problems, those with ties, and a mere handful are solved one by one. For ATT-SVM on arrays of tokens,
    `max_margin_batch` is faster still: it makes no object per problem.

    >>> from tokenmargin.instances import figure3a, figure3b
    >>> from tokenmargin.margin.constraints import attention_constraints
    >>> posed = [attention_constraints(problem, [1, 1, 1]) for problem in (figure3a(), figure3b())]
    >>> [solution.vector.round(6).tolist() for solution in solve_many(posed)]
    [[1.333333, 0.333333], [1.25, 0.25]]
    """
    shapes: defaultdict[tuple[int, int, bool], list[int]] = defaultdict(list)
    rows = [constraints.rows() for constraints in problems]
    for number, (constraints, matrix) in enumerate(zip(problems, rows, strict=True)):
        k, r = matrix.shape
        if constraints.equality is None and 0 < k <= MANY and constraints.bound.any():
            shapes[k, r, isinstance(constraints.geometry, Coordinates)].append(number)
    solutions: dict[int, MarginSolution] = {}
    if sum(map(len, shapes.values())) < FEW:
        shapes.clear()
    for (_, _, in_coordinates), numbers in shapes.items():
        began = time.perf_counter()
        systems = normalised(np.stack([rows[j] for j in numbers]), np.stack([problems[j].bound for j in numbers]))
        verdicts = solve_systems(systems, by_multipliers=not in_coordinates, few=1)
        share = (time.perf_counter() - began) / len(numbers)
        for b, j in enumerate(numbers):
            if not unresolved(problems[j], systems.lengths[b]):
                solutions[j] = concluded(problems[j], systems, verdicts, b, seconds=share)
    return [solutions[j] if j in solutions else solve(problems[j]) for j in range(len(problems))]
