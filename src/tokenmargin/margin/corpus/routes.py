"""Two ways to propose the solution of very many constraints: cutting planes, and an interior point method.

Cutting planes: the constraints that matter enter a restricted problem, which daqp re-solves from where it stood.

Interior points: the shortest p with `<a_j, p> >= 1` on all rows points to the point of least norm in the convex hull of
the rows:

    min |q|^2 / 2 - t   under   <a_j, q> - t >= 0;     dual:   max -|A' lambda|^2 / 2   over   lambda >= 0, sum = 1

Both sides have interior points whatever the rows are, so the iterates always exist. They end with `t = |q|^2 > 0` and
`p = q / t`, or with `t = 0` and a Farkas vector. An iteration costs one product of size `m d^2` and one Cholesky
factorisation, however many constraints there are (see `Differences`).

The last digits are not the methods': the constraints they found to be active are then solved as equations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from scipy.linalg import cho_factor, cho_solve

from tokenmargin.margin.certificate import TOLERANCE, normalised_systems
from tokenmargin.margin.compiled.systems import solve_systems
from tokenmargin.margin.corpus.pairs import Differences, Proposal
from tokenmargin.margin.corpus.polish import polish_farkas, polish_solution
from tokenmargin.margin.single.proposals import RestrictedProblem

CUTS = 3
"""Constraints added in a round, as a multiple of the dimension."""
PER_TOKEN = 2
"""Constraints of one selected token added in a round: more of the same hardly turn the solution."""
MASTER = 12
"""Largest master problem, as a multiple of the dimension, before slack constraints are dropped."""


def cutting_planes(
    rows: Differences,
    *,
    start: Float[Array, " d"] | None = None,
    gap: float,
    progress: Callable[[float], None] | None = None,
) -> Proposal:
    """Multipliers of the solution or of a refutation.

    **Arguments**
    - `start`: a vector whose tightest constraints are taken first.
    - `gap`: relative gap in the norm at which to stop.
    - `progress`: called in every round with the gap reached (infinite until a feasible vector is known).
    """
    master = RestrictedProblem(rows.vectors.shape[1])
    p = rows.vectors[np.unique(rows.plus)].mean(axis=0) if start is None else start
    best, least = Proposal(np.zeros(len(rows)), p), np.inf
    while True:
        margins = rows.times(p)
        if len(master):
            guess = Proposal(_scatter_multipliers(master, rows), p)
            reached = rows.gap(guess.multipliers, p)
            if reached <= least:
                best, least = guess, reached
        if progress is not None:
            progress(least)
        cuts = _most_violated(margins, rows, master)
        if least <= gap or not len(cuts):
            return polish_solution(rows, best, best.multipliers > 0)
        _take_into_play(master, rows, cuts)
        if not master.solve():
            return _refutation(master, rows)
        p = master.vector


def _take_into_play(master: RestrictedProblem, rows: Differences, cuts: Int[Array, " c"]) -> None:
    """Take constraints into play, and let idle ones go when there are many."""
    raw = rows.dense(cuts)
    if len(master) + len(cuts) > MASTER * raw.shape[1]:
        master.forget_idle()
    lengths = np.sqrt(np.einsum("kd,kd->k", raw, raw))
    lengths[lengths == 0] = 1.0
    master.add(cuts, raw / lengths[:, None], 1 / lengths)


def _scatter_multipliers(master: RestrictedProblem, rows: Differences) -> Float[Array, " k"]:
    """The master's multipliers, scaled to the given rows and put at the rows' places; zero elsewhere."""
    multipliers = np.zeros(len(rows))
    multipliers[master.numbers] = master.multipliers * master.bound
    return multipliers


def _refutation(master: RestrictedProblem, rows: Differences) -> Proposal:
    """The Farkas vector of a master problem that has no solution, where one is found."""
    systems = normalised_systems(master.rows[None], master.bound[None])
    found = solve_systems(systems)
    if found.residuals[0, 4] < np.inf:
        master.multipliers = found.farkas[0] / systems.lengths[0]
    return Proposal(_scatter_multipliers(master, rows), None)


def _most_violated(margins: Float[Array, " k"], rows: Differences, master: RestrictedProblem) -> Int[Array, " c"]:
    """The most violated constraints not in play yet, few of one selected token; in the first round the tightest."""
    number = CUTS * rows.vectors.shape[1]
    candidates = np.flatnonzero(margins < 1 - TOLERANCE) if len(master) else np.arange(len(margins))
    # Sorting all would cost more than the rounds: a selection first, twenty times what is wanted since most of it may
    # be in play already or share its selected token.
    if len(candidates) > 20 * number:
        candidates = candidates[np.argpartition(margins[candidates], 20 * number)[: 20 * number]]
    candidates = candidates[~np.isin(candidates, master.numbers)]
    candidates = candidates[np.argsort(margins[candidates], kind="stable")]
    selected = rows.plus[candidates]
    by_selected = np.argsort(selected, kind="stable")
    in_order = selected[by_selected]
    # Candidates are sorted by margin, and the sort by token is stable: the distance to the first of one's own token
    # (which searchsorted finds) is one's rank among them, 0 for the most violated.
    rank = np.empty(len(selected), dtype=np.intp)
    rank[by_selected] = np.arange(len(selected)) - np.searchsorted(in_order, in_order)
    return candidates[rank < PER_TOKEN][:number]


ITERATIONS = 100
"""Steps after which to stop: from 9 to 35 were seen."""
APART = 1e-8
"""Gap from which active constraints tell themselves from the others."""
_TO_BOUNDARY = 0.995
_CLEAR = float(np.log(1e3))


class InteriorPoint(NamedTuple):
    """A point, or a direction: q, t, the slacks `<a_j, q> - t` and the multipliers."""

    q: Float[Array, " d"]
    t: float
    slack: Float[Array, " k"]
    multipliers: Float[Array, " k"]

    def after_step(self, step: float, direction: InteriorPoint) -> InteriorPoint:
        """The point a step further."""
        return InteriorPoint(
            self.q + step * direction.q,
            self.t + step * direction.t,
            self.slack + step * direction.slack,
            self.multipliers + step * direction.multipliers,
        )

    def reach(self, direction: InteriorPoint) -> float:
        """The longest step, at most 1, that keeps slacks and multipliers non-negative."""
        longest = 1.0
        for here, there in ((self.slack, direction.slack), (self.multipliers, direction.multipliers)):
            falling = there < 0
            longest = min(longest, float((-here[falling] / there[falling]).min(initial=1.0)))
        return longest


def interior_point(rows: Differences, *, gap: float, progress: Callable[[float], None] | None = None) -> Proposal:
    """Multipliers of the solution or of a refutation: Mehrotra's predictor and corrector, then the active set.

    **Arguments**
    - `gap`: relative gap in the norm at which the multipliers are good enough.
    - `progress`: called in every iteration with the gap reached (infinite until `A q > 0`).
    """
    state, lengths = _first_point(rows), rows.lengths()
    for _ in range(ITERATIONS):
        reached = rows.gap(state.multipliers, state.q)
        if progress is not None:
            progress(reached)
        if reached <= min(gap, APART):
            break
        combined = rows.adjoint(state.multipliers)
        if np.linalg.norm(combined) <= TOLERANCE * (state.multipliers @ lengths):
            return polish_farkas(rows, state.multipliers)
        following = _newton_step(rows, state, combined)
        if following is None:
            break
        state = following
    if not state.t > 0:
        return polish_farkas(rows, state.multipliers)
    return polish_solution(
        rows, Proposal(state.multipliers / state.t, state.q / state.t), _active_constraints(rows, state)
    )


def _first_point(rows: Differences) -> InteriorPoint:
    """Equal multipliers, the q they make, and t low enough for all slacks to be of one size."""
    multipliers = np.full(len(rows), 1 / len(rows))
    q = rows.adjoint(multipliers)
    margins = rows.times(q)
    least = float(margins.min())
    t = least - max(float(margins.mean()) - least, 1e-3 * float(np.abs(margins).max()), float(np.finfo(float).tiny))
    return InteriorPoint(q, t, margins - t, multipliers)


def _newton_step(rows: Differences, state: InteriorPoint, combined: Float[Array, " d"]) -> InteriorPoint | None:
    """One step, or None where the normal matrix has lost its digits.

    With `D = multipliers / slack` the Newton equations reduce to `(I + A' D A - g g' / delta) dq = ...`, where
    `g = A' D 1` and `delta = 1' D 1`: the identity and a weighted covariance of the rows.
    """
    weights = state.multipliers / state.slack
    delta, g = float(weights.sum()), rows.adjoint(weights)
    matrix = rows.covariance(weights, g / delta)
    matrix[np.diag_indices_from(matrix)] += 1.0
    try:
        factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    except np.linalg.LinAlgError:
        return None
    dual, total = combined - state.q, 1 - float(state.multipliers.sum())
    primal = state.slack + state.t - rows.times(state.q)

    def direction(change: Float[Array, " k"]) -> InteriorPoint:
        """Newton's step that changes the products of slacks and multipliers so, and takes the residuals away."""
        w = change / state.slack + weights * primal
        rest = total - float(w.sum())
        dq = cho_solve(factor, dual + rows.adjoint(w) + g * (rest / delta), check_finite=False)
        dt = (rest + float(g @ dq)) / delta
        slack = rows.times(dq) - dt - primal
        return InteriorPoint(dq, dt, slack, (change - state.multipliers * slack) / state.slack)

    product = state.slack * state.multipliers
    mean = float(product.mean())
    predictor = direction(-product)
    foreseen = state.after_step(state.reach(predictor), predictor)
    centring = (float((foreseen.slack * foreseen.multipliers).mean()) / mean) ** 3
    corrector = direction(centring * mean - product - predictor.slack * predictor.multipliers)
    following = state.after_step(_TO_BOUNDARY * state.reach(corrector), corrector)
    inside = following.slack.min() > 0 and following.multipliers.min() > 0
    return following if inside and np.isfinite(following.q).all() else None


def _active_constraints(rows: Differences, state: InteriorPoint) -> Bool[Array, " k"]:
    """The constraints whose multipliers stay while their slacks vanish: above the widest gap between the ratios."""
    # A multiplier is of the size 1/d where it is not zero, and a slack of the size t.
    ratio = np.log(rows.vectors.shape[1] * state.multipliers) - np.log(state.slack / state.t)
    ordered = np.sort(ratio)
    widths = np.diff(ordered)
    if widths.max(initial=0.0) < _CLEAR:
        return np.asarray(ratio > 0)
    return np.asarray(ratio > ordered[widths.argmax()])
