"""ATT-SVM': several optimal tokens per input. Not convex; solved exactly, all global minima returned.

The problem is to find the shortest p with `max_{a in O_i} min_{b not in O_i} <k_ia - k_ib, p> >= 1` for every input
(appendix D of *Max-Margin Token Selection in Attention Mechanism*). Choosing a token `a_i` in every `O_i` leaves a
convex problem. Branch and bound over the choices: the norm of a partial choice's solution bounds all its completions
from below, and a solution that satisfies the inputs not yet decided closes its branch, being the only minimiser there.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE, TOLERANCE
from tokenmargin.margin.constraints import Constraints, choice_constraints
from tokenmargin.margin.normed.solve import gap_tolerance, solve_in_norm
from tokenmargin.margin.solution import Certificate, MarginSolution
from tokenmargin.norms import L2, AbstractNorm, as_norm
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem, checked_problem
from tokenmargin.selection import checked_token_sets, optimal_tokens, relative_logits

SAME_NORM = 1e-9
"""Lengths within this share of the least are equal, unless certificates leave more open: see `same_share`."""


def same_share(keys: AbstractGeometry, norm: AbstractNorm | str) -> float:
    """Lengths within this share of the least are equal; vectors within this share of their norm are the same minimum.

    A certificate leaves the length of a solution open by its tolerance, so two equal ones may differ by twice that.
    """
    known_to = TOLERANCE if isinstance(keys, Coordinates) else PRODUCTS_TOLERANCE
    return max(SAME_NORM, 2 * (known_to if as_norm(norm) == L2 else gap_tolerance(as_norm(norm))))


def choice_margin(
    problem: TokenProblem,
    optimal: Bool[Array, "n T"] | None = None,
    *,
    norm: AbstractNorm | str = "l2",
    budget: int = 100_000,
) -> MarginSolution:
    """The shortest p that puts some token of `O_i` ahead of every token outside `O_i` by 1, in every input.

    The answer is one of the global minima; `minima` are all of them, distinct, each certified on the constraints of its
    `choice`. It is "infeasible" when every branch was refuted by a Farkas vector, and "inaccurate" when the budget ran
    out or a branch could not be decided in double precision.

    **Arguments**
    - `optimal`: the sets `O_i`; the tokens of highest score by default.
    - `norm`: in which p is short. Where minimisers of one choice are not unique (l1, linf, nuclear), `minima` has one
      of each choice that attains the minimum.
    - `budget`: largest number of convex problems to solve.

    >>> line = TokenProblem.of([[[1.0], [-1.0], [0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    >>> sorted(float(minimum.vector[0]) for minimum in choice_margin(line).minima)
    [-1.0, 1.0]
    """
    began, problem = time.perf_counter(), checked_problem(problem, "choice_margin")
    sets = checked_token_sets(problem, optimal_tokens(problem) if optimal is None else optimal)
    search = _Search(problem, sets, norm)
    proven = search.run(budget)
    minima = _distinct_minima(problem, search.minima(), search.same)
    if minima:
        # A minimum is certified already; what the search says is whether it is global, and whether there are others.
        answer = replace(minima[0], status=minima[0].status if proven else "inaccurate", parts=tuple(minima))
    else:
        answer = _no_minimum(problem, search.refuted if proven else [])
    return replace(answer, solves=search.solves, seconds=time.perf_counter() - began)


class _Search:
    """Branch and bound over the choices: what was found, what was refuted, and what doubles did not decide."""

    def __init__(self, problem: TokenProblem, sets: Bool[Array, "n T"], norm: AbstractNorm | str) -> None:
        self.problem, self.sets, self.norm = problem, sets, norm
        self.same = same_share(problem.keys, norm)
        self.least, self.solves = np.inf, 0
        self.doubtful: list[float] = []  # lower bounds of the lengths of choices that doubles do not decide
        self.refuted: list[MarginSolution] = []
        self.found: list[tuple[float, dict[int, int], MarginSolution]] = []
        self.order = itertools.count()  # ties in the bound: first come, first served
        self.heap: list[tuple[float, int, dict[int, int]]] = [(0.0, next(self.order), {})]

    def run(self, budget: int) -> bool:
        """Go through the choices, the most promising first; whether all others are then excluded."""
        while self.heap and self.heap[0][0] <= self._bound:
            if self.solves >= budget:
                return False
            self._branch(heapq.heappop(self.heap)[2])
        return all(length > self._bound for length in self.doubtful)

    @property
    def _bound(self) -> float:
        """Lengths up to this are those of minima."""
        return self.least * (1 + self.same)

    def minima(self) -> list[tuple[float, dict[int, int], MarginSolution]]:
        """Length, choice and solution of every minimum, equal ones among them; in front those that look shortest."""
        found = [entry for entry in self.found if entry[0] <= self._bound]
        return sorted(found, key=lambda entry: entry[0] > self.least * (1 + SAME_NORM))

    def _branch(self, choices: dict[int, int]) -> None:
        """Solve with the choices made so far: a minimum, or an input that it does not satisfy is branched on."""
        solution = self._solve(choices)
        if solution.status == "infeasible":
            self.refuted.append(solution)
            return
        length = _shortest_possible(choice_constraints(self.problem, self.sets, choices), solution)
        if length > self._bound:
            return
        leads = _leads_of_optimal(self.problem, self.sets, solution.vector)
        others = [i for i in range(self.problem.n) if i not in choices]
        if all(leads[i].max() >= 1 - SAME_NORM for i in others):
            # As far as logits tell, that is: whether a choice for the others makes it no longer, its own solution says.
            choice = dict(enumerate(leads.argmax(axis=1).tolist())) | choices
            sure = solution.is_optimal
            whole = self._solve(choice) if others else solution
            if not sure:
                self.doubtful.append(length)
            if whole.is_optimal or (not sure and whole.margin > 0):
                self.least = min(self.least, 1 / whole.margin)
                self.found.append((1 / whole.margin, choice, whole))
            if not sure or (whole.is_optimal and 1 / whole.margin <= length * (1 + SAME_NORM)):
                return
        worst = min(others, key=lambda i: float(leads[i].max()))
        for token in np.flatnonzero(self.sets[worst]).tolist():
            heapq.heappush(self.heap, (length, next(self.order), choices | {worst: token}))

    def _solve(self, choices: dict[int, int]) -> MarginSolution:
        self.solves += 1
        return solve_in_norm(choice_constraints(self.problem, self.sets, choices), self.norm)


def _shortest_possible(constraints: Constraints, solution: MarginSolution) -> float:
    """A lower bound of the lengths of all vectors that satisfy the constraints; the length itself where it is known."""
    if solution.is_optimal:
        return 1 / solution.margin
    certificate = solution.certificate
    bound = max(0.0, 1 - certificate.gap) / solution.margin if solution.margin > 0 else 0.0
    if solution.norm != L2 or not certificate.farkas < np.inf:
        return bound
    rows = constraints.rows()
    longest = float(np.abs(rows).max(initial=0.0)) * math.sqrt(rows.shape[1])
    return max(bound, 1 / (certificate.farkas * longest)) if 0 < longest < np.inf else bound


def _no_minimum(problem: TokenProblem, refuted: list[MarginSolution]) -> MarginSolution:
    """No minimum: infeasible when all branches are refuted, else not known."""
    proof = max((branch.certificate.farkas for branch in refuted), default=np.inf)
    return MarginSolution(
        status="infeasible" if refuted else "inaccurate",
        vector=problem.keys.zero(),
        margin=0.0,
        multipliers=np.zeros(0),
        tokens=np.zeros((0, 2), dtype=np.intp),
        certificate=Certificate(farkas=proof),
        parts=tuple(refuted),
        choice=(),
    )


def _leads_of_optimal(problem: TokenProblem, sets: Bool[Array, "n T"], p: Float[Array, " D"]) -> Float[Array, "n T"]:
    """For every optimal token, how far it is ahead of the best token outside its set; minus infinity for the others."""
    logits = relative_logits(problem.keys, p)
    rival = np.where(problem.mask & ~sets, logits, -np.inf).max(axis=1, keepdims=True)
    # Only where asked: tokens that are not there have logit minus infinity, and an input may have no rival at all.
    return np.subtract(logits, rival, out=np.full(logits.shape, -np.inf), where=sets)


def _distinct_minima(
    problem: TokenProblem, found: list[tuple[float, dict[int, int], MarginSolution]], same: float
) -> list[MarginSolution]:
    """One solution per minimiser, certified on the constraints of all inputs."""
    kept: list[MarginSolution] = []
    for _, choices, solution in found:
        if all(_is_apart(problem.keys, solution.vector, other.vector, same) for other in kept):
            kept.append(replace(solution, choice=tuple(choices[i] for i in range(problem.n))))
    return kept


def _is_apart(keys: AbstractGeometry, p: Float[Array, " D"], q: Float[Array, " D"], same: float) -> bool:
    """Whether two parameters differ by more than rounding; by inner products a small length is known to `noise`."""
    known_to = 0.0 if isinstance(keys, Coordinates) else keys.noise * float(np.abs(p - q) @ keys.vector_norms)
    return bool(keys.norm(p - q) > max(same * keys.norm(p), known_to))
