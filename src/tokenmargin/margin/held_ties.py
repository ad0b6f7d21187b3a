"""Ties of equals that training holds: tokens of one score that stay at a finite distance while p diverges.

Near a direction q along which the tokens C_i of each input lead together, ahead of the neighbours N by the same margin,
write `p = R q + w`. Up to smaller terms the risk is then `exp(-R margin) F(w)`, with

    F(w) = sum over (i, u) in N of  a_iu exp(<k_iu, w>) / sum over t in C_i of exp(<k_it, w>),
    a_iu = |loss'(gamma_i)| (gamma_i - gamma_iu),

and moving w along q multiplies F alone. So training holds w, and converges to q from a cone of starts, exactly where
log F has a local minimum across q. Where every C_i is one token log F is convex; a tie makes it curve down along the
vectors across q that no term of F changes along. Hence a proof that a tie is not held: its differences do not all lie
in the span of the gradients of the terms, which are as many as the terms of F.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.limit_directions import constraints_beside_equals
from tokenmargin.margin.limit_results import LimitDirection
from tokenmargin.margin.single.solver import solve
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import NEIGHBOUR_TOLERANCE, copies_of, equals, gaps_over, near_tokens

MOST = 2048
"""Work spent on ties, in convex problems."""
NARROW = 1e-6
"""A Farkas residual rho says that no margin is over rho of the rows; a tie so narrow is not counted. Where keys are
known by inner products, which hold half of the digits, equalities are not refuted more sharply."""
SEARCH = 64
"""A search for a minimum of F takes as long as this many convex problems."""
STARTS, STEPS = 8, 40
"""Points from which a local minimum of F is looked for, and steps of Newton's method from each."""
INDEPENDENT = 1e-9
"""Singular values above this share of the largest are not zero: their rounding is some 1e-15 of it."""
FINITE = 60.0
"""Logits further apart than this are no tie: the smaller weight is below rounding."""

Verdict = Literal["held", "not held", "unknown"]


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

    Its kind is "stable" where it is held. A tie in inputs without a neighbour alone is "not held": nothing pulls at it.
    """
    selected = tied.argmax(axis=1)
    alike = equals(problem, selected)
    solution = solve(constraints_beside_equals(problem, tied, alike))
    if not solution.is_optimal:
        verdict: Verdict = "not held" if solution.certificate.farkas <= NARROW else "unknown"
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

    Sets grow token by token. What has no solution stays without one as sets grow and inputs are added: ties whose
    differences span everything, which leave only p = 0, and sets that no p puts level with one another, not behind
    their equals, and ahead of the tokens of other scores. `left` is how many ties are still to come, at most.
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
        self.smallest = _least_known(keys) * float(np.abs(self.rows).max(initial=0.0))
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
            yield self._mask(chosen)

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
                alone = all(len(s) == 1 for s in (*chosen, larger))
                self.left -= 2 ** len(later) * self.sets_from[i + 1] - alone * self.singles_from[i + 1]
            else:
                yield from self._next_input((*chosen, larger), tied)
                yield from self._larger_sets(chosen, larger, later, level)

    def _mask(self, chosen: tuple[tuple[int, ...], ...]) -> Bool[Array, "j T"]:
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


def _least_known(keys: AbstractGeometry) -> float:
    """Share of the largest above which a singular value is not zero; inner products know half of the digits."""
    return INDEPENDENT if isinstance(keys, Coordinates) else INDEPENDENT**0.5


class _Terms:
    """The function log F of a tie, its gradient and its Hessian, in coordinates of the span of all its differences."""

    def __init__(self, problem: TokenProblem, tie: LimitDirection, loss: AbstractLoss) -> None:
        near, tied, index = tie.neighbours, tie.chosen, problem.keys.index
        pulling = np.asarray(near.any(axis=1))
        inputs, tokens = ((near | tied) & pulling[:, None]).nonzero()
        rows = problem.keys.differences(index[inputs, tokens], index[inputs, tie.selected[inputs]])
        lead = problem.shared_scores[np.arange(problem.n), tie.selected]
        self.rows, self.leading = rows, tied[inputs, tokens]
        self.losing = ~self.leading
        # Tokens come input by input: where those that lead begin, and whose each of both kinds is.
        number = np.unique(inputs, return_inverse=True)[1].ravel()
        self.leaders, self.owners = number[self.leading], number[self.losing]
        self.begins = np.searchsorted(self.leaders, np.arange(number.max() + 1))
        slopes = loss.log_slope(lead)
        gap = lead[inputs] - problem.shared_scores[inputs, tokens]
        self.pulls = (np.exp(slopes[inputs] - slopes[pulling].max()) * gap)[self.losing]
        self.tokens = list(zip(inputs.tolist(), tokens.tolist(), strict=True))
        self.count = self._distinct(problem, tie)

    def _distinct(self, problem: TokenProblem, tie: LimitDirection) -> int:
        """Number of terms of F that differ in more than their factor, at most: by the vectors that make them up."""
        vectors = problem.keys.equal_rows[problem.keys.index]
        leading = [
            (int(row[t]), *np.unique(row[set_])) for row, t, set_ in zip(vectors, tie.selected, tie.chosen, strict=True)
        ]
        losing = np.flatnonzero(self.losing).tolist()
        return len({(leading[i], int(vectors[i, t])) for i, t in (self.tokens[j] for j in losing)})

    def direction(self, tie: LimitDirection) -> tuple[Float[Array, " r"], bool]:
        """The direction in these coordinates, and whether nothing of it lies outside the span of the rows."""
        weights = dict(zip(map(tuple, tie.solution.tokens.tolist()), tie.solution.multipliers.tolist(), strict=True))
        q = -np.array([weights.get(name, 0.0) for name in self.tokens]) @ self.rows
        length = np.linalg.norm(q) * tie.solution.margin
        return q, bool(abs(length - 1) <= NEIGHBOUR_TOLERANCE)

    def at(self, w: Float[Array, " r"]) -> tuple[float, Float[Array, " r"], Float[Array, "r r"]]:
        """log F with its derivatives; infinite where F is not positive."""
        logits = self.rows @ w
        leading, losing = self.rows[self.leading], self.rows[self.losing]
        heights = np.logaddexp.reduceat(logits[self.leading], self.begins)
        weights = np.exp(logits[self.leading] - heights[self.leaders])
        centres = np.add.reduceat(weights[:, None] * leading, self.begins, axis=0)
        exponents = logits[self.losing] - heights[self.owners]
        largest = exponents.max()
        terms = self.pulls * np.exp(exponents - largest)
        total = terms.sum()
        if not total > len(terms) * np.finfo(float).eps * np.abs(terms).sum():
            return np.inf, np.zeros_like(w), np.zeros((len(w), len(w)))
        shares = terms / total
        slopes = losing - centres[self.owners]
        slope = shares @ slopes
        masses = np.bincount(self.owners, weights=shares, minlength=len(heights))
        spread = (leading.T * (weights * masses[self.leaders])) @ leading - (centres.T * masses) @ centres
        return float(largest + np.log(total)), slope, (slopes.T * shares) @ slopes - np.outer(slope, slope) - spread


def _verdict(problem: TokenProblem, tie: LimitDirection, loss: AbstractLoss) -> Verdict:
    """Whether log F has a local minimum across the direction."""
    pulled = tie.neighbours.any(axis=1) & ((tie.chosen & ~copies_of(problem, tie.selected)).any(axis=1))
    if not pulled.any():
        return "not held"
    terms = _Terms(problem, tie, loss)
    _, sizes, basis = np.linalg.svd(terms.rows, full_matrices=False)
    rank = int((sizes > _least_known(problem.keys) * sizes[0]).sum())
    q, inside = terms.direction(tie)
    if rank > terms.count or not inside:
        return "not held"
    basis = basis[:rank]
    across = np.linalg.svd((basis @ q)[None])[2][1:] @ basis
    if not len(across):  # the tied tokens differ across q by less than can be told
        return "unknown"
    if not (terms.pulls > 0).any() or _slopes_always(terms, across):
        return "not held"
    return "held" if any(_rests(terms, across, start) for start in _starts(len(across))) else "unknown"


def _slopes_always(terms: _Terms, across: Float[Array, "s r"]) -> bool:
    """Whether some vector across q that keeps the tie level makes every term of F grow, or stay: F has no minimum.

    A term of a token that scores higher is negative, and grows where its exponent falls.
    """
    from scipy.optimize import linprog  # it takes half a second to load, and few selections need it

    if (terms.pulls > 0).all():
        return False  # q is a combination of the terms' differences, with multipliers of one sign
    signed = (np.sign(terms.pulls)[:, None] * terms.rows[terms.losing]) @ across.T
    level = terms.rows[terms.leading] @ across.T
    largest = max(float(np.abs(signed).max()), float(np.abs(level).max(initial=0.0)))
    signed, level = signed / (largest or 1.0), level / (largest or 1.0)  # HiGHS takes numbers below 1e-9 for zero
    answer = linprog(
        -signed.sum(axis=0), A_ub=-signed, b_ub=np.zeros(len(signed)), A_eq=level, b_eq=np.zeros(len(level)),
        bounds=(-1, 1),
    )  # fmt: skip
    return bool(answer.status == 0 and (signed @ answer.x).sum() > 1e-6 * np.abs(signed).max())


def _starts(dimension: int) -> Iterator[Float[Array, " s"]]:
    """The middle of the tie, then points around it, always the same."""
    rng = np.random.default_rng(0)
    yield np.zeros(dimension)
    for j in range(STARTS - 1):
        yield (1.0, 3.0)[j % 2] * rng.standard_normal(dimension)


def _rests(terms: _Terms, across: Float[Array, "s r"], start: Float[Array, " s"]) -> bool:
    """Whether Newton's method, made to descend, ends at a strict local minimum across q, at finite logits."""
    scale = float(np.abs(terms.rows @ across.T).max(initial=0.0))
    if not scale:
        return True
    y = start / scale
    value, slope, curve = _across(terms, across, y)
    for _ in range(STEPS):
        if not np.isfinite(value) or np.ptp((terms.rows @ (y @ across))[terms.leading]) > FINITE:
            return False
        bends, axes = np.linalg.eigh(curve)
        if np.linalg.norm(slope) <= 1e-10 * scale:
            return bool(bends[0] > 1e-6 * scale**2)  # told from zero by more than the square root of the slope
        step = -axes @ ((axes.T @ slope) / np.maximum(np.abs(bends), 1e-3 * scale**2))
        step *= min(1.0, 2 / (scale * float(np.linalg.norm(step))))
        for _ in range(40):
            ahead = _across(terms, across, y + step)
            if ahead[0] <= value + 1e-4 * float(slope @ step) + 1e-15 * abs(value):
                break
            step = step / 2
        y, (value, slope, curve) = y + step, ahead
    return False


def _across(
    terms: _Terms, across: Float[Array, "s r"], y: Float[Array, " s"]
) -> tuple[float, Float[Array, " s"], Float[Array, "s s"]]:
    """log F with its derivatives in the coordinates of the space `across`."""
    value, slope, curve = terms.at(y @ across)
    return value, across @ slope, across @ curve @ across.T
