"""Ties of equals that training holds: tokens of one score that stay at a finite distance while p diverges.

A tie is held where the function F of `leading_risk` has a local minimum across the direction q. Where every input
leads with one token and no neighbour scores higher, log F is convex. A tie makes it curve down along every vector
across q that is orthogonal to the gradients of all terms of F. So a tie is proven not to be held where its differences
span more dimensions than F has terms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.leading_risk import Verdict, least_known, minimum_across
from tokenmargin.margin.limit_directions import KINDS, constraints_beside_equals, neighbours_beside
from tokenmargin.margin.limit_results import LimitDirection
from tokenmargin.margin.single.solver import solve
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import NEIGHBOUR_TOLERANCE, copies_of, lead_over, tokens_of_equal_score

MOST = 1 << 14
"""Work spent on ties, in convex problems: some seconds."""
SEARCH = 64
"""A search for a minimum of F takes as long as this many convex problems."""


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
    if not problem.has_ties:
        return HeldTies(())
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

    Its kind is "stable" where it is held, "undecided" where that is not known. A tie in inputs without a neighbour
    alone is "not held": nothing pulls at it.
    """
    selected = tied.argmax(axis=1)
    alike = tokens_of_equal_score(problem, selected)
    solution = solve(constraints_beside_equals(problem, tied, alike))
    if not solution.is_optimal:
        verdict: Verdict = "not held" if solution.status == "infeasible" else "unknown"
        return LimitDirection.without_direction(selected, tied, solution), verdict
    logits, near, gaps = neighbours_beside(problem, solution, selected, alike)
    found = LimitDirection(selected, tied, solution, near, gaps, "not locally optimal")
    if (lead_over(logits, selected)[alike & ~tied] <= NEIGHBOUR_TOLERANCE).any():
        return found, "not held"  # another token leads as well: that is another tie
    verdict = _verdict_on_tie(problem, found, loss or LogisticLoss())
    return replace(found, kind=KINDS[verdict]), verdict


class _Ties:
    """The ties of equals, one by one: a set of tokens of one score in each input, not one token in each.

    Sets grow token by token. One is given up where neither a larger one nor a further input can bring a solution back:
    where the differences of its tokens span everything, so that only p = 0 keeps them level; or where provably no p
    keeps them level, not behind their equals, and ahead of the tokens of other scores. `left` is how many ties are
    still to come, at most.
    """

    def __init__(self, problem: TokenProblem, most: int | float) -> None:
        self.problem, self.most, self.solves = problem, most, 0
        self.groups = [_tokens_by_score(problem, i) for i in range(problem.n)]
        # From input i on: the ways to take a set of one score in each, and those with one token in each.
        sets = [sum(2 ** len(g) - 1 for g in groups) for groups in self.groups]
        self.sets_from = [math.prod(sets[i:]) for i in range(problem.n + 1)]
        self.singles_from = [math.prod(sum(map(len, g)) for g in self.groups[i:]) for i in range(problem.n + 1)]
        self.left = self.sets_from[0] - self.singles_from[0]
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
        return self._next_input((), np.zeros((0, self.rows.shape[1])))

    def _next_input(self, chosen: tuple[tuple[int, ...], ...], level: Float[Array, "e r"]) -> Iterator[Array]:
        """The ties that begin with the sets `chosen`, whose tokens are level where the rows `level` vanish."""
        if len(chosen) < self.problem.n:
            for group in self.groups[len(chosen)]:
                yield from self._larger_sets(chosen, (), group, level)
        elif any(len(tokens) > 1 for tokens in chosen):
            self.left -= 1
            yield self._tied_mask(chosen)

    def _larger_sets(
        self, chosen: tuple[tuple[int, ...], ...], tokens: tuple[int, ...], more: list[int], level: Float[Array, "e r"]
    ) -> Iterator[Array]:
        """The ties in which the next input's set is `tokens` and at least one of those of their score that follow."""
        i = len(chosen)
        for place, token in enumerate(more, start=1):
            if self.solves >= self.most:
                return
            larger, later = (*tokens, token), more[place:]
            rows = self.rows[self.where[i, list(larger)]]
            tied = np.concatenate([level, rows[1:] - rows[:1]])
            whole = len(tied) >= self.rank and np.linalg.matrix_rank(tied, tol=self.smallest) >= self.rank
            if whole or self._never_ahead((*chosen, larger)):
                # With this set go all that add some of the `later` tokens to it, whatever sets the later inputs have.
                # Where the sets so far are single tokens, selections of single tokens are among these: they are no
                # ties, and `left` does not count them.
                alone = all(len(s) == 1 for s in (*chosen, larger))
                self.left -= 2 ** len(later) * self.sets_from[i + 1] - alone * self.singles_from[i + 1]
            else:
                yield from self._next_input((*chosen, larger), tied)
                yield from self._larger_sets(chosen, larger, later, level)

    def _tied_mask(self, chosen: tuple[tuple[int, ...], ...]) -> Bool[Array, "j T"]:
        """The sets as a mask, copies with the tokens they are copies of."""
        mask, first = self.problem.mask, self.problem.keys.first_copies
        return np.stack([mask[i] & np.isin(first[i], tokens) for i, tokens in enumerate(chosen)])

    def _never_ahead(self, chosen: tuple[tuple[int, ...], ...]) -> bool:
        """Whether provably no p puts these tokens level, not behind their equals, and ahead of all others."""
        problem, rows = self.problem, []  # input, leading token, another, whether level, whether ahead by 1
        for i, tokens in enumerate(chosen):
            scores, distinct = problem.shared_scores[i], problem.keys.first_copies[i] == np.arange(problem.T)
            lead, others = tokens[0], np.flatnonzero(problem.mask[i] & distinct).tolist()
            rows += [(i, lead, u, u in tokens, scores[u] != scores[lead]) for u in others if u != lead]
        if not any(ahead for *_, ahead in rows):
            return False  # p = 0 does
        inputs, plus, minus, level, ahead = (np.array(column) for column in zip(*rows, strict=True))
        self.solves += 1
        index, token = problem.keys.index, np.stack([inputs, minus], axis=1)
        asked = Constraints(
            problem.keys, index[inputs, plus], index[inputs, minus], ahead.astype(float), token,
            equality=level if level.any() else None,
        )  # fmt: skip
        return solve(asked).status == "infeasible"


def _tokens_by_score(problem: TokenProblem, i: int) -> list[list[int]]:
    """The distinct tokens of an input, those of one score together."""
    scores = problem.shared_scores[i]
    distinct = problem.mask[i] & (problem.keys.first_copies[i] == np.arange(problem.T))
    return [np.flatnonzero(distinct & (scores == score)).tolist() for score in np.unique(scores[distinct])]


def _verdict_on_tie(problem: TokenProblem, tie: LimitDirection, loss: AbstractLoss) -> Verdict:
    """Whether log F has a local minimum across the direction."""
    pulled = tie.neighbours.any(axis=1) & ((tie.chosen & ~copies_of(problem, tie.selected)).any(axis=1))
    return minimum_across(problem, tie, loss) if pulled.any() else "not held"
