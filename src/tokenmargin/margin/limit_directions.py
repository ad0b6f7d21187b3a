"""The direction that belongs to a selection, solved and named: is it a limit of training, and the global one?

Training prefers a token to another by score alone. So the selected token of an input must be ahead by 1 of the tokens
of other scores, and need only not be behind its equals, the tokens of its own score. Copies of one key have equal
weights whatever p is; they are selected together and count as one token of their mean score. Where no two scores of an
input are equal this is ATT-SVM of *Max-Margin Token Selection in Attention Mechanism*, with Definitions 1 and 2; where
they are, it is one choice of ATT-SVM' of its appendix D.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import TOLERANCE
from tokenmargin.margin.constraints import Constraints, attention_constraints, class_constraints
from tokenmargin.margin.leading_risk import Verdict, least_known, minimum_across
from tokenmargin.margin.limit_results import Kind, LimitDirection, SelectionTally
from tokenmargin.margin.normed.solve import solve_in_norm
from tokenmargin.margin.several_optima import choice_margin, same_share
from tokenmargin.margin.single.solver import solve
from tokenmargin.margin.solution import MarginSolution
from tokenmargin.norms import EPS, L2, AbstractNorm
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.objective.shared_pulls import SharedPulls, shared_differences, shared_pulls
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem, checked_problem
from tokenmargin.selection import (
    NEIGHBOUR_TOLERANCE,
    Selection,
    checked_selection,
    copies_of,
    gaps_over,
    lead_over,
    near_tokens,
    relative_logits,
    tokens_of_equal_score,
)

COMPARED = 1 << 24
"""Numbers that the differences of all pairs may hold to be compared with one another."""
KINDS: dict[Verdict, Kind] = {"held": "stable", "not held": "not locally optimal", "unknown": "undecided"}
"""What a direction is, by whether training holds it."""
CHOICES = 256
"""Choices among tokens that tie in score and in logit which are compared before the answer is "inaccurate"."""


def limit_constraints(problem: TokenProblem, selected: Selection, *, equal: bool = True) -> Constraints:
    """The selected token of every input ahead by 1 of the tokens of other scores, and not behind its equals.

    Without `equal` its equals are not asked about: what is left decides where training goes.
    """
    alpha = checked_selection(problem, selected)
    every = attention_constraints(problem, alpha)
    if not problem.has_ties:
        return every
    inputs, positions = every.token.T
    tied = tokens_of_equal_score(problem, alpha)[inputs, positions]
    first = problem.keys.first_copies  # a vector is asked about once, and never the selected one itself
    once = (first[inputs, positions] == positions) & (first[inputs, alpha[inputs]] != positions)
    kept = once if equal else once & ~tied
    return replace(every.only(kept), bound=np.where(tied, 0.0, 1.0)[kept])


def limit_direction(
    problem: TokenProblem, selected: Selection, *, loss: AbstractLoss | None = None, norm: AbstractNorm | str = "l2"
) -> LimitDirection:
    """The direction of a selection, solved, certified and named.

    The `loss` (logistic by default) matters where a neighbour scores higher and differences of keys are shared or
    depend on one another linearly, and beside ties of equals: it says how much each input pulls. The `norm` is the one
    in which the direction is shortest: l2 for gradient descent.

    >>> line = TokenProblem.of([[[1.0], [-1.0], [0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    >>> limit_direction(line, [1]).solution.vector, limit_direction(line, [1]).kind
    (array([-1.]), 'GMM')
    """
    alpha = checked_selection(checked_problem(problem, "limit_direction"), selected)
    problem = problem.around(alpha)
    found = name_direction(problem, alpha, solve_in_norm(limit_constraints(problem, alpha), norm), loss)
    if found.kind == "LMM" and problem.has_ties and all_best(problem, alpha):
        best = choice_margin(problem, _best_tokens(problem), norm=norm)
        if best.is_optimal and found.solution.margin >= best.margin * (1 - same_share(problem.keys, norm)):
            return replace(found, kind="GMM")
    return found


def name_direction(
    problem: TokenProblem, selected: Int[Array, " n"], solution: MarginSolution, loss: AbstractLoss | None = None
) -> LimitDirection:
    """What the solution of `limit_constraints` is; with ties, an "LMM" may be the GMM: the other choices tell."""
    alike = tokens_of_equal_score(problem, selected)
    logits, near, gaps = neighbours_beside(problem, solution, selected, alike)
    if not solution.is_optimal:
        return LimitDirection.without_direction(selected, np.arange(problem.T) == selected[:, None], solution)
    # Copies have the first one's logit, whatever the rounding of their own.
    lead = np.where(alike, np.take_along_axis(logits, problem.keys.first_copies, axis=1), -np.inf)
    chosen = lead >= lead.max(axis=1, keepdims=True) - NEIGHBOUR_TOLERANCE
    kind: Kind = "LMM" if problem.has_ties or not all_best(problem, selected) else "GMM"
    found = LimitDirection(chosen.argmax(axis=1), chosen, solution, near, gaps, kind)
    if not (gaps > 0).all():
        surely = near & _surely_near(problem, solution, logits, selected)
        if (gaps_over(problem.shared_scores, selected, surely) > 0).all():
            return replace(found, kind="inaccurate")  # those that score higher may be neighbours, or just not
        alone = replace(found, selected=selected, chosen=copies_of(problem, selected))
        kind = _kind_beside_higher_scores(problem, alone, loss or LogisticLoss())
        tied = (chosen & ~alone.chosen).any()  # what equals that lead together do is for `held_ties` to say
        found = replace(found, kind=kind if kind == "stable" or not tied else "not locally optimal")
    if problem.has_ties and found.is_limit:
        found = replace(found, kind=_kind_among_equals(problem, chosen, solution, found.kind))
    return found


def neighbours_beside(
    problem: TokenProblem, solution: MarginSolution, selected: Int[Array, " n"], alike: Bool[Array, "n T"]
) -> tuple[Float[Array, "n T"], Bool[Array, "n T"], Float[Array, " n"]]:
    """The logits at a solution, the neighbours of the selected tokens but for those `alike`, and the score gaps."""
    logits = relative_logits(problem.keys, solution.vector)
    near = near_tokens(logits, selected) | near_by_rounding(problem.keys, solution.vector, logits, selected)
    near &= problem.mask & ~alike
    return logits, near, gaps_over(problem.shared_scores, selected, near)


def constraints_beside_equals(
    problem: TokenProblem, tied: Bool[Array, "n T"], alike: Bool[Array, "n T"]
) -> Constraints:
    """The tied tokens level, and ahead by 1 of the others; those that are `alike` beside them are not asked about."""
    every = class_constraints(problem, tied)
    inputs, positions = every.token.T
    first = problem.keys.first_copies  # a vector is asked about once, and never the leading one itself
    once = (first[inputs, positions] == positions) & (positions != tied.argmax(axis=1)[inputs])
    return every.only(once & (tied | ~alike)[inputs, positions])


def tied_direction(problem: TokenProblem, tied: Bool[Array, "n T"], *, scored: bool = True) -> LimitDirection:
    """The direction along which tokens of different scores stay tied, ahead by 1 of all others: (9) of *Attention with
    Trained Embeddings*. Its neighbours are the tokens at margin 1; a score gap is not defined.

    In an input whose tied tokens have one score, others of that score do not pull: they may stay level, or fall behind.
    Where the loss is not of `scored` tokens (a head of one's own, classes, targets) no two are alike.
    """
    selected = tied.argmax(axis=1)
    alike = tokens_of_equal_score(problem, selected) & scored
    alike &= ~(tied & ~alike).any(axis=1, keepdims=True)
    solution = solve(constraints_beside_equals(problem, tied, alike))
    if not solution.is_optimal:
        return LimitDirection.without_direction(selected, tied, solution)
    logits, near, _ = neighbours_beside(problem, solution, selected, alike | tied)
    tied = tied | (alike & (lead_over(logits, selected) <= NEIGHBOUR_TOLERANCE))
    return LimitDirection(selected, tied, solution, near, np.full(problem.n, np.nan), "finite part")


def near_by_rounding(
    keys: AbstractGeometry,
    vectors: Float[Array, "... D"],
    logits: Float[Array, "... n T"],
    selected: Int[Array, "... n"],
) -> Bool[Array, "... n T"]:
    """Tokens of which rounding decides whether they are neighbours: beside vectors 1e7 times as long as they ask for.

    An inner product is known to `(d + 4) eps |row| |p|`, and refinement may have moved p inwards by twice as much. In
    Gram space certificates count rounding in all constraints, and are within the tolerance for neighbours.
    """
    if not isinstance(keys, Coordinates):
        return np.zeros(logits.shape, dtype=bool)
    with np.errstate(over="ignore", invalid="ignore"):
        first = keys.vectors[keys.index[np.arange(keys.n), keys.mask.argmax(axis=1)]]
        away = keys.norm(keys.vectors[keys.index] - first[:, None])
        lengths = lead_over(away, selected) + 2 * away  # of the selected token and the other one, together
        rounding = 4 * (keys.dimension + 4) * EPS * keys.norm(vectors)[..., None, None] * lengths
        return np.asarray((rounding > NEIGHBOUR_TOLERANCE) & (np.abs(lead_over(logits, selected) - 1) <= rounding))


def _surely_near(
    problem: TokenProblem, solution: MarginSolution, logits: Array, selected: Int[Array, " n"]
) -> Bool[Array, "n T"]:
    """Tokens whose margin is told from more than 1 by no more than what a certificate leaves open, or that hold p."""
    known = isinstance(problem.keys, Coordinates)
    near = near_tokens(logits, selected, tolerance=TOLERANCE if known else NEIGHBOUR_TOLERANCE)
    near &= ~near_by_rounding(problem.keys, solution.vector, logits, selected)
    near[tuple(solution.tokens[solution.multipliers > 0].T)] = True
    return near


def _kind_beside_higher_scores(problem: TokenProblem, found: LimitDirection, loss: AbstractLoss) -> Kind:
    """What a direction is of which some neighbour scores higher: do the other neighbours pull more?

    Along a difference that inputs share their pulls add. Where all these sums pull to the selected side the direction
    is a limit. Where differences are linearly independent, one that pulls to the other side makes training leave: its
    coordinate is moved by no other term. Where they are not, the risk beside the direction tells.
    """
    pulls = shared_pulls(problem, found.selected, found.neighbours, loss)
    if pulls.cancel.any():
        return "balanced"
    if (pulls.sums > 0).all():
        return "stable"
    if _pulls_are_independent(problem, found.selected, pulls):
        return "not locally optimal"
    if found.solution.norm != L2:
        return "undecided"
    return KINDS[minimum_across(problem, found, loss)]


def _pulls_are_independent(problem: TokenProblem, selected: Int[Array, " n"], pulls: SharedPulls) -> bool:
    """Whether the differences along which the neighbours pull are linearly independent."""
    index, (inputs, tokens) = problem.keys.index, pulls.pairs
    rows = problem.keys.differences(index[inputs, selected[inputs]], index[inputs, tokens])
    rows = rows / np.abs(rows).max(axis=1, keepdims=True)  # lengths do not matter, nor may they underflow
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    sizes = np.linalg.svd(rows, compute_uv=False)
    return len(sizes) == len(rows) and bool(sizes[-1] > least_known(problem.keys) * sizes[0])


def shares_differences(problem: TokenProblem) -> bool:
    """Whether two inputs have a difference of two keys in common, so that their pulls along it add."""
    if problem.n * problem.T**2 * problem.keys.dimension > COMPARED:
        return True  # too many to compare: taken to be so
    inputs, plus, minus = (problem.mask[:, :, None] & problem.mask[:, None, :]).nonzero()
    kept = problem.keys.first_copies[inputs, plus] != problem.keys.first_copies[inputs, minus]
    inputs, plus, minus = inputs[kept], plus[kept], minus[kept]
    which = shared_differences(problem, inputs, plus, minus)
    seen = np.unique(np.stack([which, inputs]), axis=1)[0]
    return len(np.unique(seen)) < len(seen)


def _kind_among_equals(problem: TokenProblem, chosen: Bool[Array, "n T"], solution: MarginSolution, kind: Kind) -> Kind:
    """The kind where the vector is a local minimum among equals: where no choice of one leading equal in every input,
    the others not asked about, allows a shorter vector."""
    first = chosen & (problem.keys.first_copies == np.arange(problem.T))
    options = [np.flatnonzero(row).tolist() for row in first]
    asked = tokens_of_equal_score(problem, chosen.argmax(axis=1))[tuple(solution.tokens.T)]
    if all(len(row) == 1 for row in options) and not solution.multipliers[asked].any():
        return kind  # no equal ties with the leader or holds the vector: it is the solution without them
    if math.prod(len(row) for row in options) > CHOICES:
        return "inaccurate"
    same = same_share(problem.keys, solution.norm)
    for choice in itertools.product(*options):
        freed = solve_in_norm(limit_constraints(problem, choice, equal=False), solution.norm)
        if freed.status == "inaccurate":
            return "inaccurate"
        if not freed.is_optimal or freed.margin > solution.margin * (1 + same):
            return "not locally optimal"
    return kind


def name_global(
    problem: TokenProblem, tally: SelectionTally, held: Iterable[LimitDirection] = ()
) -> tuple[LimitDirection, ...]:
    """All limits of a problem, the GMM first and then by margin: of largest margin among tokens of highest score.

    Where several tokens of an input score highest, none is called the GMM before all choices among them are decided.
    The `held` ties are limits, but never the GMM: some choice among their tokens has a larger margin.
    """
    listed = tally.limits
    best = [limit.solution.margin if all_best(problem, limit.selected) else -np.inf for limit in listed]
    largest = max(best, default=np.inf)
    several = (_best_tokens(problem) & (problem.keys.first_copies == np.arange(problem.T))).sum(axis=1).max() > 1
    if several and (tally.left or any(all_best(problem, np.array(selected)) for selected in tally.undecided)):
        largest = np.inf
    same = same_share(problem.keys, listed[0].solution.norm) if listed else 0.0
    named = [
        replace(limit, kind="GMM") if margin > 0 and margin >= largest * (1 - same) else limit
        for limit, margin in zip(listed, best, strict=True)
    ]
    return tuple(sorted([*named, *held], key=lambda limit: (not limit.is_global, -limit.solution.margin)))


def _best_tokens(problem: TokenProblem) -> Bool[Array, "n T"]:
    scores = np.where(problem.mask, problem.shared_scores, -np.inf)
    return np.asarray(scores == scores.max(axis=1, keepdims=True))


def all_best(problem: TokenProblem, selected: Int[Array, " n"]) -> bool:
    """Whether no token of its input scores higher than a selected one; copies count with their mean score."""
    return bool(_best_tokens(problem)[np.arange(problem.n), selected].all())
