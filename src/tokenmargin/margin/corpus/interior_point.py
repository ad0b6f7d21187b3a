"""An interior point method for the max-margin problem of very many constraints.

The shortest p with `<a_j, p> >= 1` on all rows points to the point of least norm in the convex hull of the rows:

    min |q|^2 / 2 - t   under   <a_j, q> - t >= 0;     dual:   max -|A' lambda|^2 / 2   over   lambda >= 0, sum = 1

Both sides have interior points whatever the rows are, so the iterates always exist. They end with `t = |q|^2 > 0` and
`p = q / t`, or with `t = 0` and a Farkas vector. An iteration costs one product of size `m d^2` and one Cholesky
factorisation, however many constraints there are (see `Differences`).

The last digits are not the method's: the constraints it found to be active are then solved as equations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array
from scipy.linalg import cho_factor, cho_solve

from tokenmargin.margin.certificate import TOLERANCE
from tokenmargin.margin.corpus.pairs import Differences, Proposal
from tokenmargin.margin.corpus.polish import polish_farkas, polish_solution

ITERATIONS = 100
"""Steps after which to stop: from 9 to 35 were seen."""
APART = 1e-8
"""Gap from which active constraints tell themselves from the others."""
_TO_BOUNDARY = 0.995
_CLEAR = float(np.log(1e3))


class State(NamedTuple):
    """A point, or a direction: q, t, the slacks `<a_j, q> - t` and the multipliers."""

    q: Float[Array, " d"]
    t: float
    slack: Float[Array, " k"]
    multipliers: Float[Array, " k"]

    def after_step(self, step: float, direction: State) -> State:
        """The point a step further."""
        return State(
            self.q + step * direction.q,
            self.t + step * direction.t,
            self.slack + step * direction.slack,
            self.multipliers + step * direction.multipliers,
        )

    def reach(self, direction: State) -> float:
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
    state, lengths = _start(rows), rows.lengths()
    for _ in range(ITERATIONS):
        reached = rows.gap(state.multipliers, state.q)
        if progress is not None:
            progress(reached)
        if reached <= min(gap, APART):
            break
        combined = rows.adjoint(state.multipliers)
        if np.linalg.norm(combined) <= TOLERANCE * (state.multipliers @ lengths):
            return polish_farkas(rows, state.multipliers)
        following = _iterate(rows, state, combined)
        if following is None:
            break
        state = following
    if not state.t > 0:
        return polish_farkas(rows, state.multipliers)
    return polish_solution(rows, Proposal(state.multipliers / state.t, state.q / state.t), _active(rows, state))


def _start(rows: Differences) -> State:
    """Equal multipliers, the q they make, and t low enough for all slacks to be of one size."""
    multipliers = np.full(len(rows), 1 / len(rows))
    q = rows.adjoint(multipliers)
    margins = rows.times(q)
    least = float(margins.min())
    t = least - max(float(margins.mean()) - least, 1e-3 * float(np.abs(margins).max()), float(np.finfo(float).tiny))
    return State(q, t, margins - t, multipliers)


def _iterate(rows: Differences, state: State, combined: Float[Array, " d"]) -> State | None:
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

    def direction(change: Float[Array, " k"]) -> State:
        """Newton's step that changes the products of slacks and multipliers so, and takes the residuals away."""
        w = change / state.slack + weights * primal
        rest = total - float(w.sum())
        dq = cho_solve(factor, dual + rows.adjoint(w) + g * (rest / delta), check_finite=False)
        dt = (rest + float(g @ dq)) / delta
        slack = rows.times(dq) - dt - primal
        return State(dq, dt, slack, (change - state.multipliers * slack) / state.slack)

    product = state.slack * state.multipliers
    mean = float(product.mean())
    predictor = direction(-product)
    foreseen = state.after_step(state.reach(predictor), predictor)
    centring = (float((foreseen.slack * foreseen.multipliers).mean()) / mean) ** 3
    corrector = direction(centring * mean - product - predictor.slack * predictor.multipliers)
    following = state.after_step(_TO_BOUNDARY * state.reach(corrector), corrector)
    inside = following.slack.min() > 0 and following.multipliers.min() > 0
    return following if inside and np.isfinite(following.q).all() else None


def _active(rows: Differences, state: State) -> Bool[Array, " k"]:
    """The constraints whose multipliers stay while their slacks vanish: above the widest gap between the ratios."""
    # A multiplier is of the size 1/d where it is not zero, and a slack of the size t.
    ratio = np.log(rows.vectors.shape[1] * state.multipliers) - np.log(state.slack / state.t)
    ordered = np.sort(ratio)
    widths = np.diff(ordered)
    if widths.max(initial=0.0) < _CLEAR:
        return np.asarray(ratio > 0)
    return np.asarray(ratio > ordered[widths.argmax()])
