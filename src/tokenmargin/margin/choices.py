"""ATT-SVM': several optimal tokens per input. Not convex; solved exactly, all global minima returned.

The problem is to find the shortest p with `max_{a in O_i} min_{b not in O_i} <k_ia - k_ib, p> >= 1` for every input
(appendix D of *Max-Margin Token Selection in Attention Mechanism*). Choosing a token `a_i` in every `O_i` leaves a
convex problem. Branch and bound over the choices: the norm of a partial choice's solution bounds all its completions
from below, and a solution that satisfies the inputs not yet decided closes its branch, being the only minimiser there.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.constraints import choice_constraints
from tokenmargin.margin.solution import MarginSolution, Status
from tokenmargin.margin.solver import solve
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import checked_token_sets, optimal_tokens

__all__ = ["ChoiceSolution", "choice_margin"]

SAME_NORM = 1e-9
"""Norms within this share of the least are equal; vectors within this share of their norm are the same minimum."""


@dataclass(frozen=True, eq=False)
class ChoiceSolution:
    """All global minima of ATT-SVM'.

    **Attributes**
    - `status`: "optimal", "infeasible" (every choice was refuted by a Farkas vector), or "inaccurate" when the budget
      ran out or a branch could not be decided in double precision.
    - `minima`: the distinct minimisers, each certified on the constraints of its choice.
    - `choices`: for each minimum, the chosen token of every input.
    - `nodes`: convex problems solved.
    - `seconds`: time taken.
    """

    status: Status
    minima: tuple[MarginSolution, ...]
    choices: tuple[tuple[int, ...], ...]
    nodes: int
    seconds: float

    @property
    def margin(self) -> float:
        """The common margin `1 / |p|` of the minima; zero when there are none."""
        return self.minima[0].margin if self.minima else 0.0


def choice_margin(
    problem: TokenProblem,
    optimal: Bool[Array, "n T"] | None = None,
    *,
    budget: int = 100_000,
    progress: Callable[[int], None] | None = None,
) -> ChoiceSolution:
    """All shortest p that put some token of `O_i` ahead of every token outside `O_i` by 1, in every input.

    **Arguments**
    - `optimal`: the sets `O_i`; the tokens of highest score by default.
    - `budget`: largest number of convex problems to solve.
    - `progress`: called with the number of problems solved.

    >>> line = TokenProblem.of([[[1.0], [-1.0], [0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    >>> sorted(float(minimum.vector[0]) for minimum in choice_margin(line).minima)
    [-1.0, 1.0]
    """
    began = time.perf_counter()
    sets = checked_token_sets(problem, optimal_tokens(problem) if optimal is None else optimal)
    least, nodes, proven = np.inf, 0, True
    found: list[tuple[float, dict[int, int], MarginSolution]] = []
    order = itertools.count()  # ties in the bound: first come, first served
    heap: list[tuple[float, int, dict[int, int]]] = [(0.0, next(order), {})]
    while heap and heap[0][0] <= least * (1 + SAME_NORM):
        if nodes >= budget:
            proven = False
            break
        _, _, choices = heapq.heappop(heap)
        solution = solve(choice_constraints(problem, sets, choices))
        nodes += 1
        if progress is not None:
            progress(nodes)
        proven &= solution.status != "inaccurate"
        if solution.status == "infeasible":
            continue
        norm = 1 / solution.margin
        if norm > least * (1 + SAME_NORM):
            continue
        leads = _leads(problem, sets, solution.vector)
        undecided = [i for i in range(problem.n) if i not in choices and leads[i].max() < 1 - SAME_NORM]
        if not undecided:
            least = min(least, norm)
            found.append((norm, dict(enumerate(leads.argmax(axis=1).tolist())) | choices, solution))
            continue
        worst = min(undecided, key=lambda i: float(leads[i].max()))
        for token in np.flatnonzero(sets[worst]).tolist():
            heapq.heappush(heap, (norm, next(order), choices | {worst: token}))
    minima = _distinct(problem, sets, [entry for entry in found if entry[0] <= least * (1 + SAME_NORM)])
    status: Status = "inaccurate" if not proven else "optimal" if minima else "infeasible"
    return ChoiceSolution(
        status=status,
        minima=tuple(solution for _, solution in minima),
        choices=tuple(tuple(choices[i] for i in range(problem.n)) for choices, _ in minima),
        nodes=nodes,
        seconds=time.perf_counter() - began,
    )


def _leads(problem: TokenProblem, sets: Bool[Array, "n T"], p: Float[Array, " D"]) -> Float[Array, "n T"]:
    """For every optimal token, how far it is ahead of the best token outside its set; minus infinity for the others."""
    logits = problem.keys.logits(p)
    rival = np.where(problem.mask & ~sets, logits, -np.inf).max(axis=1, keepdims=True)
    return np.where(sets, logits - rival, -np.inf)


def _distinct(
    problem: TokenProblem, sets: Bool[Array, "n T"], found: list[tuple[float, dict[int, int], MarginSolution]]
) -> list[tuple[dict[int, int], MarginSolution]]:
    """One entry per minimiser, certified on the constraints of all inputs."""
    kept: list[tuple[dict[int, int], MarginSolution]] = []
    for norm, choices, solution in found:
        distances = (problem.keys.norm(solution.vector - other.vector) for _, other in kept)
        if all(distance > SAME_NORM * norm for distance in distances):
            kept.append((choices, solve(choice_constraints(problem, sets, choices))))
    return kept
