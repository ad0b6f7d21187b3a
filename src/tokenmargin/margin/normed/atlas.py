"""The atlas in another norm, and of many classes: selection by selection.

Which selections are feasible does not depend on the norm, their directions and margins do. With many classes a token's
score depends on where attention is: a selection is named by the scores around it, input by input.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray as Array

from tokenmargin.margin.limit_directions import limit_constraints, name_direction, name_global
from tokenmargin.margin.limit_results import Atlas, SelectionTally
from tokenmargin.margin.normed.solve import solve_in_norm
from tokenmargin.margin.single.solver import solve
from tokenmargin.norms import AbstractNorm
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import tokens_of_equal_score


def atlas_in_norm(
    problem: TokenProblem,
    norm: AbstractNorm,
    *,
    budget: int | None = None,
    loss: AbstractLoss | None = None,
    progress: Callable[[int], None] | None = None,
) -> Atlas:
    """Every selection whose max-margin direction in `norm` outscores its neighbours, by a walk through their tree.

    Prefixes are ruled out by the Euclidean problem, whose proofs of infeasibility hold in every norm. Ties of equals
    that training could hold are not searched: they are counted as not looked at. Of many classes the scores are those
    around each selection; where a mixture of tokens is better than all of them, training may end in it instead, with a
    finite part, as `limit_of` says.
    """
    began = time.perf_counter()
    walk = _Walk(problem, norm, math.inf if budget is None else budget, loss)
    for _ in walk.decide_below(np.zeros(0, dtype=np.intp)):
        if progress is not None:
            progress(walk.tally.feasible + walk.tally.infeasible)
    fixed = problem.has_fixed_scores
    ranked = sorted(walk.tally.limits, key=lambda limit: (not limit.is_global, -limit.solution.margin))
    return walk.tally.atlas(
        name_global(problem, walk.tally) if fixed else tuple(ranked),
        began=began,
        ties_left=max(walk.ties, _pairs_of_equals(problem) if fixed and problem.has_ties else 0),
    )


class _Walk:
    """One walk through the tree of selections; what it finds stands in `tally`."""

    def __init__(
        self, problem: TokenProblem, norm: AbstractNorm, budget: int | float, loss: AbstractLoss | None
    ) -> None:
        self.problem, self.norm, self.loss = problem, norm, loss
        own = problem.mask & (problem.keys.first_copies == np.arange(problem.T))
        self.tokens = [
            np.flatnonzero(row)[np.argsort(-s[row], kind="stable")]
            for row, s in zip(own, problem.shared_scores, strict=True)
        ]
        self.tally = SelectionTally([len(tokens) for tokens in self.tokens], budget)
        self.ties = 0

    def decide_below(self, prefix: Int[Array, " j"]) -> Iterator[None]:
        """Decide all selections that begin so; a step for each that was asked about."""
        if self.tally.budget_is_spent:
            return
        j = len(prefix)
        if j == self.problem.n:
            self._decide_selection(prefix)
            yield
            return
        if j and self._is_ruled_out(prefix):
            self.tally.infeasible += self.tally.leaves[j]
            yield
            return
        for token in self.tokens[j]:
            yield from self.decide_below(np.append(prefix, token))

    def _is_ruled_out(self, prefix: Int[Array, " j"]) -> bool:
        """Whether the inputs decided so far cannot be separated together."""
        alpha = np.array([tokens[0] for tokens in self.tokens])
        alpha[: len(prefix)] = prefix
        whole = limit_constraints(self.problem.around(alpha), alpha)
        kept: Bool[Array, " k"] = whole.token[:, 0] < len(prefix)
        if not kept.any():
            return False
        self.tally.solves += 1
        return solve(whole.only(kept)).status == "infeasible"

    def _decide_selection(self, selected: Int[Array, " n"]) -> None:
        """Solve and record one selection."""
        self.tally.solves += 1
        around = self.problem.around(selected)
        solution = solve_in_norm(limit_constraints(around, selected), self.norm)
        if solution.status == "infeasible":
            self.tally.infeasible += 1
            return
        self.tally.record(selected, name_direction(around, selected, solution, self.loss))
        if not self.problem.has_fixed_scores and around.has_ties:
            self.ties = max(self.ties, _pairs_of_equals(around))


def _pairs_of_equals(problem: TokenProblem) -> int:
    """Pairs of tokens of one input, of one score and different keys."""
    first = problem.keys.first_copies == np.arange(problem.T)
    found = 0
    for t in range(problem.T):
        alike = tokens_of_equal_score(problem, np.full(problem.n, t)) & first & first[:, [t]] & problem.mask[:, [t]]
        found += int((alike & problem.mask & (np.arange(problem.T) > t)).sum())
    return found
