"""Ties of equals that training holds: tokens of one score that stay at a finite distance while p diverges.

`leading_risk` beside has the function F that decides. Where every input leads with one token and no neighbour scores
higher log F is convex; a tie makes it curve down along the vectors across q that no term of F changes along. Hence a
proof that a tie is not held: its differences do not all lie in the span of the gradients of the terms, which are as
many as the terms of F.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.leading_risk import Verdict, least_known, minimum_across
from tokenmargin.margin.limit_directions import constraints_beside_equals
from tokenmargin.margin.limit_results import LimitDirection
from tokenmargin.margin.single.solver import solve
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import NEIGHBOUR_TOLERANCE, copies_of, equals, gaps_over, near_tokens

MOST = 2048
"""Work spent on ties, in convex problems."""
SEARCH = 64
"""A search for a minimum of F takes as long as this many convex problems."""
LISTED = 1 << 16
"""With more ties than this none is looked at."""


@dataclass(frozen=True, eq=False)
class HeldTies:
    """The ties of equals of a problem.

    - `held`: those that training converges to.
    - `unknown`: number of ties with neither a proof against them nor a minimum that was found.
    - `left`: number of ties that were not looked at.
    - `solves`: max-margin problems solved.
    """

    held: tuple[LimitDirection, ...]
    unknown: int = 0
    left: int = 0
    solves: int = 0


def held_ties(
    problem: TokenProblem,
    loss: AbstractLoss | None = None,
    *,
    listed: Iterable[LimitDirection] = (),
    most: int | float = MOST,
) -> HeldTies:
    """The ties of tokens of equal score that training holds, beside those `listed`.

    As much work is begun as `most` convex problems take.
    """
    count = _count(problem)
    if not 0 < count <= LISTED:
        return HeldTies((), left=count)
    known = {limit.chosen.tobytes() for limit in listed}
    held, unknown = [], 0
    ties = _Ties(problem, min(most, MOST))
    for tied in ties:
        if tied.tobytes() not in known:
            found, verdict = tie_of_equals(problem, tied, loss)
            ties.solves += 1
            if found.solution.is_optimal and verdict != "not held":
                ties.most -= SEARCH
            unknown += verdict == "unknown"
            if verdict == "held":
                held.append(found)
    return HeldTies(tuple(held), unknown, ties.left, ties.solves)


def tie_of_equals(
    problem: TokenProblem, tied: Bool[Array, "n T"], loss: AbstractLoss | None = None
) -> tuple[LimitDirection, Verdict]:
    """The direction along which the tokens of equal score in `tied` lead together, and whether training holds it.

    Its kind is "stable" where it is held. A tie in inputs without a neighbour alone is "not held": nothing pulls at it.
    """
    selected = tied.argmax(axis=1)
    alike = equals(problem, selected)
    solution = solve(constraints_beside_equals(problem, tied, alike))
    if not solution.is_optimal:
        verdict: Verdict = "not held" if solution.status == "infeasible" else "unknown"
        return LimitDirection.unsolved(selected, tied, solution), verdict
    logits = problem.keys.logits(solution.vector)
    near = near_tokens(logits, selected) & problem.mask & ~alike
    gaps = gaps_over(problem.shared_scores, selected, near)
    found = LimitDirection(selected, tied, solution, near, gaps, "not locally optimal")
    behind = logits[np.arange(problem.n), selected][:, None] - logits
    if (behind[alike & ~tied] <= NEIGHBOUR_TOLERANCE).any():
        return found, "not held"  # another token leads as well: that is another tie
    verdict = _verdict(problem, found, loss or LogisticLoss())
    return (replace(found, kind="stable") if verdict == "held" else found), verdict


class _Ties:
    """The ties of equals, one by one: a set of tokens of one score in each input, not one token in each.

    Ties whose differences span everything leave only p = 0, and so do all that tie more; those are passed over, as are
    all that begin with sets of tokens that no p puts ahead. `left` is how many are still to come, at most.
    """

    def __init__(self, problem: TokenProblem, most: int | float) -> None:
        self.problem, self.most, self.solves = problem, most, 0
        self.options = [_sets(problem, i) for i in range(problem.n)]
        self.left = self._ties_below(())
        keys = problem.keys
        inputs, tokens = problem.mask.nonzero()
        self.where = np.full(problem.mask.shape, -1)
        self.where[inputs, tokens] = np.arange(len(inputs))
        # Differences to the first token of the input: those of a tie are differences of these.
        first = keys.index[inputs, problem.mask.argmax(axis=1)[inputs]]
        self.rows = keys.differences(keys.index[inputs, tokens], first)
        self.smallest = least_known(keys) * float(np.abs(self.rows).max(initial=0.0))
        self.rank = int(np.linalg.matrix_rank(self.rows, tol=1e-3 * self.smallest)) if self.rows.size else 0

    def __iter__(self) -> Iterator[Bool[Array, "n T"]]:
        return self._extended((), np.zeros((0, self.rows.shape[1])))

    def _extended(self, chosen: tuple[tuple[int, ...], ...], differences: Float[Array, "e r"]) -> Iterator[Array]:
        i = len(chosen)
        if i == self.problem.n:
            if any(len(tokens) > 1 for tokens in chosen):
                self.left -= 1
                yield self._mask(chosen)
            return
        for tokens in self.options[i]:
            if self.solves >= self.most:
                return
            rows, longer = self.rows[self.where[i, list(tokens)]], (*chosen, tokens)
            tied = np.concatenate([differences, rows[1:] - rows[:1]])
            whole = len(tied) >= self.rank and np.linalg.matrix_rank(tied, tol=self.smallest) >= self.rank
            if whole or self._never_ahead(longer):
                self.left -= self._ties_below(longer)
            else:
                yield from self._extended(longer, tied)

    def _ties_below(self, chosen: tuple[tuple[int, ...], ...]) -> int:
        """Number of ties that begin with these sets."""
        rest = self.options[len(chosen) :]
        single = 0 if any(len(s) > 1 for s in chosen) else math.prod(sum(len(s) == 1 for s in o) for o in rest)
        return math.prod(map(len, rest)) - single

    def _mask(self, chosen: tuple[tuple[int, ...], ...]) -> Bool[Array, "j T"]:
        """The sets as a mask, copies with the tokens they are copies of."""
        mask, first = self.problem.mask, self.problem.keys.first_copies
        return np.stack([mask[i] & np.isin(first[i], tokens) for i, tokens in enumerate(chosen)])

    def _never_ahead(self, chosen: tuple[tuple[int, ...], ...]) -> bool:
        """Whether provably no p puts all these tokens ahead of those of other scores, as a tie of them does."""
        problem, index = self.problem, self.problem.keys.index
        pairs = []
        for i, tokens in enumerate(chosen):
            scores, distinct = problem.shared_scores[i], problem.keys.first_copies[i] == np.arange(problem.T)
            others = np.asarray(problem.mask[i] & distinct & (scores != scores[tokens[0]]))
            pairs += [(i, t, u) for t in tokens for u in np.flatnonzero(others).tolist()]
        if not pairs:
            return False
        self.solves += 1
        inputs, plus, minus = np.array(pairs).T
        token = np.stack([inputs, minus], axis=1)
        rows = Constraints(problem.keys, index[inputs, plus], index[inputs, minus], np.ones(len(pairs)), token)
        return solve(rows).status == "infeasible"


def _count(problem: TokenProblem) -> int:
    """Number of ties of equals."""
    if not problem.has_ties:
        return 0
    distinct = problem.mask & (problem.keys.first_copies == np.arange(problem.T))
    sizes = [np.unique(problem.shared_scores[i][distinct[i]], return_counts=True)[1].tolist() for i in range(problem.n)]
    return math.prod(sum(2**k - 1 for k in row) for row in sizes) - math.prod(map(sum, sizes))


def _sets(problem: TokenProblem, i: int) -> list[tuple[int, ...]]:
    """The sets of distinct tokens of one score in an input."""
    scores = problem.shared_scores[i]
    distinct = problem.mask[i] & (problem.keys.first_copies[i] == np.arange(problem.T))
    groups = [np.flatnonzero(distinct & (scores == score)).tolist() for score in np.unique(scores[distinct])]
    return [s for g in groups for k in range(1, len(g) + 1) for s in itertools.combinations(g, k)]


def _verdict(problem: TokenProblem, tie: LimitDirection, loss: AbstractLoss) -> Verdict:
    """Whether log F has a local minimum across the direction."""
    pulled = tie.neighbours.any(axis=1) & ((tie.chosen & ~copies_of(problem, tie.selected)).any(axis=1))
    return minimum_across(problem, tie, loss) if pulled.any() else "not held"
