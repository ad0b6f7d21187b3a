"""The direction that belongs to a selection, what it is, and the atlas of those in which attention can converge.

Training prefers a token to another by score alone. So the selected token of an input must be ahead by 1 of the tokens
of other scores, and need only not be behind its equals, the tokens of its own score. Copies of one key have equal
weights whatever p is; they are selected together and count as one token of their mean score. Where no two scores of an
input are equal this is ATT-SVM of *Max-Margin Token Selection in Attention Mechanism*, with Definitions 1 and 2; where
they are, it is one choice of ATT-SVM' of its appendix D.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Drawn, Tabular
from tokenmargin.margin.constraints import Constraints, attention_constraints, class_constraints
from tokenmargin.margin.normed.solve import solve_in_norm
from tokenmargin.margin.several_optima import SAME_NORM, choice_margin
from tokenmargin.margin.single.solver import solve
from tokenmargin.margin.solution import MarginSolution
from tokenmargin.norms import AbstractNorm
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import (
    NEIGHBOUR_TOLERANCE,
    Selection,
    checked_selection,
    copies_of,
    equals,
    gaps_over,
    named_sets,
    near_tokens,
    spelled,
)

Kind = Literal["GMM", "LMM", "stable", "finite part", "not locally optimal", "infeasible", "inaccurate"]

MANY = 1 << 24
"""Numbers that the differences of all pairs may hold to be compared with one another."""
CHOICES = 256
"""Choices among tokens that tie in score and in logit which are compared before the answer is "inaccurate"."""


@dataclass(frozen=True, eq=False)
class LimitDirection(Tabular):
    """The max-margin direction of a selection, and what it is to the problem.

    **Attributes**
    - `selected`: one token of each input; of a set, the first.
    - `chosen`: all selected tokens: copies of the selected one, and tokens of its score that it does not leave behind.
    - `solution`: direction, margin, multipliers and certificate.
    - `neighbours`: the tokens of other scores at margin exactly 1.
    - `gaps`: score of the selected token less the best score among its neighbours; infinite without neighbours.
    - `kind`: "LMM" where the selected tokens outscore their neighbours, so that training converges to it (Theorem 3);
      "GMM" where besides no token scores higher, and no choice among equals has a larger margin; "stable" where some
      neighbour scores higher, but inputs that share its difference to the selected token (words of one vocabulary) pull
      the other way, and more, or where training holds a tie of equals although some of them alone have a larger
      margin: training converges to it as well, though it is no LMM; "finite part" where tokens of different scores are
      kept tied; else why it is none of them.
    """

    selected: Int[Array, " n"]
    chosen: Bool[Array, "n T"]
    solution: MarginSolution
    neighbours: Bool[Array, "n T"]
    gaps: Float[Array, " n"]
    kind: Kind

    @property
    def is_global(self) -> bool:
        """Whether this is the GMM."""
        return self.kind == "GMM"

    @property
    def is_limit(self) -> bool:
        """Whether training converges to it from a cone of starts."""
        return self.kind in ("GMM", "LMM", "stable")

    @property
    def names(self) -> list[int | list[int]]:
        """The token of each input, or the list of them where a set is selected."""
        return named_sets(self.chosen)

    def __repr__(self) -> str:
        solved = f"margin={self.solution.margin:.6g}, " if self.solution.is_optimal else ""
        return f"LimitDirection({self.kind}, {spelled(self.chosen)}, {solved}{self.solution.status})"

    def _columns(self) -> dict[str, Array]:
        return limit_table((self,))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        return {
            "selected": self.names,
            "margin": self.solution.margin,
            "direction": self.solution.vector.tolist(),
            "neighbours": np.argwhere(self.neighbours).tolist(),
            "score_gaps": [gap if math.isfinite(gap) else None for gap in self.gaps.tolist()],
            "gmm": self.is_global,
            "residual": self.solution.certificate.residual,
        }


@dataclass(frozen=True, eq=False)
class Atlas(Tabular, Drawn):
    """What was found, and how much of the tree was seen.

    **Attributes**
    - `limits`: the locally optimal selections, the GMM first, then by margin.
    - `selections`: number of selections: the product of the numbers of distinct keys of the inputs.
    - `feasible`, `infeasible`: how many were proven to be so.
    - `undecided`: selections whose status could not be proven in double precision.
    - `ties_undecided`, `ties_left`: ties of equals that are neither listed nor proven not to be held, and those that
      were not looked at (`held_ties`).
    - `solves`: max-margin problems solved on the way.
    - `seconds`: time taken.
    """

    limits: tuple[LimitDirection, ...]
    selections: int
    feasible: int
    infeasible: int
    undecided: tuple[tuple[int, ...], ...]
    solves: int
    seconds: float
    ties_undecided: int = 0
    ties_left: int = 0

    @property
    def complete(self) -> bool:
        """Whether every selection and every tie of equals was decided: `docs/limits.md` says what is then proven."""
        decided = self.feasible + self.infeasible == self.selections
        return decided and not self.ties_undecided and not self.ties_left

    @property
    def unsearched(self) -> str:
        """What was not decided, in words; empty when the atlas is complete."""
        left = self.selections - self.feasible - self.infeasible - len(self.undecided)
        parts = []
        if left:
            parts.append(f"{_number(left)} of {_number(self.selections)} selections not looked at: the budget is spent")
        if self.undecided:
            count = len(self.undecided)
            parts.append(f"{count} selection{'s are' if count > 1 else ' is'} too close to call in double precision")
        if self.ties_left:
            parts.append(f"{_number(self.ties_left)} ties of equals not looked at")
        if self.ties_undecided:
            count = self.ties_undecided
            parts.append(f"{count} tie{'s' if count > 1 else ''} of equals neither found to be held nor excluded")
        return "; ".join(parts)

    @property
    def gmm(self) -> LimitDirection | None:
        """The globally optimal direction, when it is feasible."""
        return next((limit for limit in self.limits if limit.is_global), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON."""
        return {
            "complete": self.complete,
            "unsearched": self.unsearched,
            "selections": self.selections,
            "feasible": self.feasible,
            "infeasible": self.infeasible,
            "undecided": [list(selected) for selected in self.undecided],
            "solves": self.solves,
            "seconds": self.seconds,
            "limits": [limit.to_dict() for limit in self.limits],
        }

    def _columns(self) -> dict[str, Array]:
        return limit_table(self.limits)

    def __repr__(self) -> str:
        seen = "complete" if self.complete else f"partial: {self.unsearched}"
        count = _number(self.selections)
        return f"Atlas({len(self.limits)} limits, {self.feasible} feasible of {count} selections, {seen})"


def limit_table(limits: Sequence[LimitDirection]) -> dict[str, Array]:
    """A row a direction: what it is, its tokens, its margin and its proof."""
    return {
        "kind": np.array([one.kind for one in limits], dtype=str),
        "tokens": np.array([spelled(one.chosen) for one in limits], dtype=str),
        "margin": np.array([one.solution.margin for one in limits]),
        "score_gap": np.array([one.gaps.min() for one in limits]),
        "neighbours": np.array([one.neighbours.sum() for one in limits], dtype=int),
        "residual": np.array([one.solution.certificate.residual for one in limits]),
    }


def _number(count: int) -> str:
    """A count to be read: its order of magnitude when it is beyond counting."""
    return str(count) if count < 10**15 else f"10^{len(str(count)) - 1}"


def limit_constraints(problem: TokenProblem, selected: Selection, *, equal: bool = True) -> Constraints:
    """The selected token of every input ahead by 1 of the tokens of other scores, and not behind its equals.

    Without `equal` its equals are not asked about: what is left decides where training goes.
    """
    alpha = checked_selection(problem, selected)
    every = attention_constraints(problem, alpha)
    if not problem.has_ties:
        return every
    inputs, positions = every.token.T
    tied = equals(problem, alpha)[inputs, positions]
    first = problem.keys.first_copies  # a vector is asked about once, and never the selected one itself
    once = (first[inputs, positions] == positions) & (first[inputs, alpha[inputs]] != positions)
    kept = once if equal else once & ~tied
    return replace(
        every,
        plus=every.plus[kept],
        minus=None if every.minus is None else every.minus[kept],
        bound=np.where(tied, 0.0, 1.0)[kept],
        token=every.token[kept],
    )


def limit_direction(
    problem: TokenProblem,
    selected: Selection,
    *,
    loss: AbstractLoss | None = None,
    norm: AbstractNorm | str = "l2",
) -> LimitDirection:
    """The direction of a selection, solved, certified and named.

    The `loss` (logistic by default) matters only where several inputs share a difference of two keys: it says how much
    each of them pulls. The `norm` is the one in which the direction is shortest: l2 for gradient descent.

    >>> line = TokenProblem.of([[[1.0], [-1.0], [0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    >>> limit_direction(line, [1]).solution.vector, limit_direction(line, [1]).kind
    (array([-1.]), 'GMM')
    """
    alpha = checked_selection(problem, selected)
    problem = problem.around(alpha)
    found = read_direction(problem, alpha, solve_in_norm(limit_constraints(problem, alpha), norm), loss)
    if found.kind == "LMM" and problem.has_ties and all_best(problem, alpha):
        best = choice_margin(problem, _best(problem), norm=norm)
        if best.is_optimal and found.solution.margin >= best.margin * (1 - SAME_NORM):
            return replace(found, kind="GMM")
    return found


def read_direction(
    problem: TokenProblem, selected: Int[Array, " n"], solution: MarginSolution, loss: AbstractLoss | None = None
) -> LimitDirection:
    """What the solution of `limit_constraints` is; with ties, an "LMM" may be the GMM: the other choices tell."""
    logits = problem.keys.logits(solution.vector)
    alike = equals(problem, selected)
    near = near_tokens(logits, selected) & problem.mask & ~alike
    gaps = gaps_over(problem.shared_scores, selected, near)
    if not solution.is_optimal:
        near = np.zeros_like(near)
        only = np.arange(problem.T) == selected[:, None]
        status: Kind = "infeasible" if solution.status == "infeasible" else "inaccurate"
        return LimitDirection(selected, only, solution, near, np.full(problem.n, np.nan), status)
    # Copies have the first one's logit, whatever the rounding of their own.
    lead = np.where(alike, np.take_along_axis(logits, problem.keys.first_copies, axis=1), -np.inf)
    chosen = lead >= lead.max(axis=1, keepdims=True) - NEIGHBOUR_TOLERANCE
    kind: Kind = "LMM" if problem.has_ties or not all_best(problem, selected) else "GMM"
    if not (gaps > 0).all():
        kind = "stable" if _pulled(problem, selected, near, loss or LogisticLoss()) else "not locally optimal"
    if problem.has_ties and kind != "not locally optimal":
        kind = _among_equals(problem, chosen, solution, kind)
    return LimitDirection(chosen.argmax(axis=1), chosen, solution, near, gaps, kind)


def constraints_beside_equals(
    problem: TokenProblem, tied: Bool[Array, "n T"], alike: Bool[Array, "n T"]
) -> Constraints:
    """The tied tokens level, and ahead by 1 of the others; those that are `alike` beside them are not asked about."""
    every = class_constraints(problem, tied)
    inputs, positions = every.token.T
    first = problem.keys.first_copies  # a vector is asked about once, and never the leading one itself
    once = (first[inputs, positions] == positions) & (positions != tied.argmax(axis=1)[inputs])
    kept = once & (tied | ~alike)[inputs, positions]
    assert every.minus is not None, "these constraints are on differences"
    return replace(
        every,
        plus=every.plus[kept],
        minus=every.minus[kept],
        bound=every.bound[kept],
        token=every.token[kept],
        equality=None if every.equality is None else every.equality[kept],
    )


def tied_direction(problem: TokenProblem, tied: Bool[Array, "n T"], *, scored: bool = True) -> LimitDirection:
    """The direction along which tokens of different scores stay tied, ahead by 1 of all others: (9) of *Attention with
    Trained Embeddings*. Its neighbours are the tokens at margin 1; a score gap is not defined.

    In an input whose tied tokens have one score, others of that score do not pull: they may stay level, or fall behind.
    Where the loss is not of `scored` tokens (a head of one's own, classes, targets) no two are alike.
    """
    selected = tied.argmax(axis=1)
    alike = equals(problem, selected) & scored
    alike &= ~(tied & ~alike).any(axis=1, keepdims=True)
    solution = solve(constraints_beside_equals(problem, tied, alike))
    logits = problem.keys.logits(solution.vector)
    if solution.is_optimal:
        level = np.take_along_axis(logits, selected[:, None], axis=1) - logits <= NEIGHBOUR_TOLERANCE
        tied = tied | (alike & level)
    near = near_tokens(logits, selected) & problem.mask & ~tied & ~alike
    kind: Kind = "finite part"
    if not solution.is_optimal:
        kind = "infeasible" if solution.status == "infeasible" else "inaccurate"
    return LimitDirection(selected, tied, solution, near, np.full(problem.n, np.nan), kind)


def _pulled(problem: TokenProblem, selected: Int[Array, " n"], near: Bool[Array, "n T"], loss: AbstractLoss) -> bool:
    """Whether along every active difference the inputs that share it, together, pull to the selected side.

    Close to the limit the risk is `sum |loss'(gamma_i)| (gamma_i - gamma_it) exp(-margin_it) / copies_i` over the
    neighbours, and terms of one difference have one margin for ever.
    """
    scores, (inputs, tokens) = problem.shared_scores, near.nonzero()
    leading = scores[np.arange(problem.n), selected]
    slopes = loss.log_slope(leading) - np.log(copies_of(problem, selected).sum(axis=1))
    with np.errstate(invalid="ignore"):  # -log has an infinite slope at a score of 0: nothing is said of such a pull
        weights = np.exp(slopes - slopes.max())
    pulls = weights[inputs] * (leading[inputs] - scores[inputs, tokens])
    which = _differences(problem, inputs, selected[inputs], tokens)
    sums, sizes = np.bincount(which, weights=pulls), np.bincount(which, weights=np.abs(pulls))
    return bool((sums > len(pulls) * np.finfo(float).eps * sizes).all())


def _differences(
    problem: TokenProblem, inputs: Int[Array, " k"], plus: Int[Array, " k"], minus: Int[Array, " k"]
) -> Int[Array, " k"]:
    """A number for each difference of two keys of an input, the same for equal differences."""
    keys, (one, other) = problem.keys, (problem.keys.index[inputs, t] for t in (plus, minus))
    if isinstance(keys, Coordinates):
        rows = keys.vectors[one] - keys.vectors[other] + 0.0
        return np.asarray(np.unique(rows, axis=0, return_inverse=True)[1].ravel())
    pairs = keys.equal_rows[one] * keys.rows + keys.equal_rows[other]
    return np.asarray(np.unique(pairs, return_inverse=True)[1].ravel())


def shares_differences(problem: TokenProblem) -> bool:
    """Whether two inputs have a difference of two keys in common, so that their pulls along it add."""
    if problem.n * problem.T**2 * problem.keys.dimension > MANY:
        return True  # too many to compare: taken to be so
    inputs, plus, minus = (problem.mask[:, :, None] & problem.mask[:, None, :]).nonzero()
    kept = problem.keys.first_copies[inputs, plus] != problem.keys.first_copies[inputs, minus]
    inputs, plus, minus = inputs[kept], plus[kept], minus[kept]
    which = _differences(problem, inputs, plus, minus)
    seen = np.unique(np.stack([which, inputs]), axis=1)[0]
    return len(np.unique(seen)) < len(seen)


def _among_equals(problem: TokenProblem, chosen: Bool[Array, "n T"], solution: MarginSolution, kind: Kind) -> Kind:
    """Whether no choice among the leading equals, freed from the others, allows a shorter vector: a local minimum."""
    first = chosen & (problem.keys.first_copies == np.arange(problem.T))
    options = [np.flatnonzero(row).tolist() for row in first]
    asked = equals(problem, chosen.argmax(axis=1))[tuple(solution.tokens.T)]
    if all(len(row) == 1 for row in options) and not solution.multipliers[asked].any():
        return kind  # no equal ties with the leader or holds the vector: it is the solution without them
    if math.prod(len(row) for row in options) > CHOICES:
        return "inaccurate"
    for choice in itertools.product(*options):
        freed = solve_in_norm(limit_constraints(problem, choice, equal=False), solution.norm)
        if freed.status == "inaccurate":
            return "inaccurate"
        if not freed.is_optimal or freed.margin > solution.margin * (1 + SAME_NORM):
            return "not locally optimal"
    return kind


def name_global(
    problem: TokenProblem, limits: Iterable[LimitDirection], held: Iterable[LimitDirection] = ()
) -> tuple[LimitDirection, ...]:
    """All limits of a problem, the GMM first and then by margin: of largest margin among tokens of highest score.

    The `held` ties are limits, but never the GMM: some choice among their tokens has a larger margin.
    """
    listed = list(limits)
    best = [limit.solution.margin if all_best(problem, limit.selected) else -np.inf for limit in listed]
    largest = max(best, default=np.inf)
    named = [
        replace(limit, kind="GMM") if margin > 0 and margin >= largest * (1 - SAME_NORM) else limit
        for limit, margin in zip(listed, best, strict=True)
    ]
    return tuple(sorted([*named, *held], key=lambda limit: (not limit.is_global, -limit.solution.margin)))


def _best(problem: TokenProblem) -> Bool[Array, "n T"]:
    scores = np.where(problem.mask, problem.shared_scores, -np.inf)
    return np.asarray(scores == scores.max(axis=1, keepdims=True))


def all_best(problem: TokenProblem, selected: Int[Array, " n"]) -> bool:
    """Whether no token of its input scores higher than a selected one; copies count with their mean score."""
    return bool(_best(problem)[np.arange(problem.n), selected].all())
