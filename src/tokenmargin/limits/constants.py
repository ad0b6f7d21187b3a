"""Constants, not only rates: the finite vector beside a max-margin direction, in closed form.

Close to a limit direction p^ minus the gradient is `sum_j a_j exp(-<d_j, p>) d_j` up to smaller terms, where d_j runs
over the differences of selected and other tokens and `a_j = |loss'(gamma_i)| (gamma_i - gamma_it) / n`. So training
settles at `p = p^ log t + w + o(1)`, where w has `a_j exp(-<d_j, w>) = lambda_j` on the active differences:
multipliers, scores and slopes give w, and `angle(p, p^) |p|` tends to the length of w across p^. The proof is in
`docs/results/constants.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from scipy.optimize import linprog

from tokenmargin.dynamics.span import Span
from tokenmargin.margin import Constraints, LimitDirection, limit_constraints, limit_direction
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.token_problem import TokenProblem, checked_problem
from tokenmargin.selection import NEIGHBOUR_TOLERANCE, Selection, copies_of

STRICT = 1e-7
"""A multiplier below this share of the mean one counts as zero: p^ is known to about 1e-9 of its length."""
RANK = 1e-9
"""Singular values above this share of the largest are not zero: their rounding is some 1e-15 of it."""
SMALL = 1 / 8
"""What all terms but the active ones may move a logit by where a limit is proven (docs/results/constants.md, (e))."""
_STEPS, _DECREMENT = 500, 1e-28
"""Most steps of Newton's method, and the squared residual, relative to that of p^, at which rounding is reached."""


class _Terms(NamedTuple):
    """The terms of the gradient close to a selection: one for each difference of a selected and another token.

    - `rows`: the differences, in coordinates of the span.
    - `inputs`: whose they are.
    - `active`, `equal`: those at margin 1; those to a token of the selected one's score.
    - `copies`: how many tokens have the other key, for each that has the selected one.
    - `gaps`: by how much the selected token scores more.
    - `scores`: of the selected tokens.
    """

    rows: Float[Array, "k r"]
    inputs: Int[Array, " k"]
    active: Bool[Array, " k"]
    equal: Bool[Array, " k"]
    copies: Float[Array, " k"]
    gaps: Float[Array, " k"]
    scores: Float[Array, " n"]
    loss: AbstractLoss

    def drift(
        self,
        q: Float[Array, " r"],
        settled: Float[Array, " r"],
        along: Float[Array, " m"],
        far: Float[Array, " m"],
        across: Float[Array, "m r"],
        basis: Float[Array, "rank r"],
    ) -> Float[Array, " m"]:
        """The bound T of (e), from each of m points on: how far all terms but the active ones can move a logit."""
        rows, active, equal, inputs = self.rows, self.active, self.equal, self.inputs
        margins, sizes = rows @ q, np.linalg.norm(rows, axis=1)
        within = rows @ basis.T @ basis - np.outer(margins / float(q @ q), q)
        leads = np.outer(along, margins) + (settled + across) @ rows.T - np.outer(far, np.linalg.norm(within, axis=1))
        others = ~active & ~equal
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            weights = self.copies * np.exp(-leads)  # beside that of the selected token, at most
            mixed, turn, error = self._output_errors(weights, margins)
            slopes = self.loss.log_slope(self.scores)[inputs]
            least = np.logaddexp.reduce((slopes + np.log(self.gaps * self.copies) - rows @ settled)[active])
            size = slopes + np.log(self.copies * (np.abs(self.gaps) + mixed[:, inputs]) * (1 + turn[:, inputs]))
            total = np.exp((size - leads + along[:, None] - least)[:, others]) @ (sizes / (margins - 1))[others]
            total += 2 * weights[:, equal] @ (sizes / margins)[equal]
            total += error * float(sizes[active].max())
            bound = float(q @ q) * float(sizes.max()) * total
        return np.where(np.isfinite(bound) & (along > 0), bound, np.inf)

    def _output_errors(
        self, weights: Float[Array, "m k"], margins: Float[Array, " k"]
    ) -> tuple[Float[Array, "m n"], Float[Array, "m n"], Float[Array, " m"]]:
        """How far the output of each input can be from its selected score, how much this turns the slope of the loss,
        and the largest relative error of an active term, summed over the way.

        The output, the weight of the selected token and the lead in score are not those of the limit while others have
        weight; what is at most `e` at first is at most `e exp(-rho)` when p has gone on by rho p^.
        """
        mixed, turn = (np.zeros((len(weights), len(self.scores))) for _ in range(2))
        most = np.zeros(len(weights))
        for i in np.unique(self.inputs):
            mine = self.inputs == i
            other, alike, active = mine & ~self.equal, mine & self.equal, mine & self.active
            weight = weights[:, other].sum(axis=1)
            mixed[:, i] = weight * np.abs(self.gaps[mine]).max()
            ends = self.scores[i] + np.multiply.outer((-1.0, 0.0, 1.0), mixed[:, i])
            turn[:, i] = np.expm1(mixed[:, i] * np.abs(self.loss.log_slope_derivative(ends)).max(axis=0))
            if active.any():
                level = weights[:, alike] @ (1 / np.minimum(margins[alike], 1.0))
                error = turn[:, i] + weight + level + (1 + turn[:, i]) * mixed[:, i] / self.gaps[active].min()
                most = np.maximum(most, np.where(weight < 0.1, error, np.inf))
        return mixed, turn, most


@dataclass(frozen=True, eq=False)
class LimitConstants:
    """What training adds to the direction p^ of a selection: `p = p^ log t + w + (a part of the start) + o(1)`.

    **Attributes**
    - `named`: the direction p^, solved with its certificate, and what it is.
    - `reason`: why there are no constants; empty where there are. The numbers are then infinite or NaN.
    - `constant`: `c = |w - its part along p^|`: the limit of `angle(p, p^) |p|` on the regularisation path, and of
      gradient flow and descent where `spans` is true.
    - `vector`: w, in the span of the active differences, a parameter of the geometry.
    - `correction`: on the regularisation path `angle(p_R, p^) R = c - correction / R + o(1/R)`.
    - `multipliers`: the multipliers that training selects, one for each row of `limit_constraints`: of all
      non-negative ones the nearest to the a_j in relative entropy. They are the only ones where the active differences
      are independent.
    - `critical_step`: normalised descent with a longer step than this does not settle at w but goes back and forth.
    - `spans`: whether the active differences span all differences. Where they do not, flow and descent keep what the
      start has across them (`length_across`), beside w.
    """

    named: LimitDirection
    reason: str
    constant: float
    vector: Float[Array, " D"]
    correction: float
    multipliers: Float[Array, " k"]
    critical_step: float
    spans: bool
    _span: Span
    _active: Float[Array, "rank r"]
    _terms: _Terms

    @property
    def rank(self) -> int:
        """Number of independent active differences."""
        return len(self._active)

    def length_across(self, p: Float[Array, " D"]) -> float:
        """Length of the part of `p` that is orthogonal to every active difference; it converges along the flow.

        What `p` has outside of the span of the tokens, which training never moves, is a part of it.
        """
        y = self._span.reduce(p)
        inside = float(np.linalg.norm(y - self._active.T @ (self._active @ y)))
        outside = float(self._span.geometry.norm(p - self._span.lift(y)))
        return float(np.hypot(inside, outside))

    def product(self, p: Float[Array, " D"]) -> float:
        """`angle(p, p^) |p|`, in coordinates of the span: inner products alone know angles to half the digits."""
        y, direction = self._span.reduce(p), self._span.reduce(self.named.solution.vector)
        unit = direction / np.linalg.norm(direction)
        along, beside = float(unit @ y), y - (unit @ y) * unit
        off = float(np.hypot(np.linalg.norm(beside), self._span.geometry.norm(p - self._span.lift(y))))
        return float(np.arctan2(off, along) * np.hypot(off, along))

    def attracts(self, points: Float[Array, "m D"]) -> Bool[Array, " m"]:
        """Whether gradient flow from each of the points is proven to converge to p^ (`docs/results/constants.md`, (e)).

        False says nothing: the bound asks that every term but the active ones be too small, from there on, to move p by
        an eighth of the length over which a logit changes by one.
        """
        if self.reason:
            return np.zeros(len(points), dtype=bool)
        y, q, w = (self._span.reduce(p) for p in (points, self.named.solution.vector, self.vector))
        size = float(q @ q)
        along = np.asarray(y @ q / size)
        inside = y @ self._active.T @ self._active - along[:, None] * q
        settled = w - (w @ q / size) * q
        far = np.linalg.norm(inside - settled, axis=1)
        across = y - y @ self._active.T @ self._active
        return self._terms.drift(q, settled, along, far, across, self._active) <= SMALL

    def of_flow(self, p: Float[Array, " D"]) -> float:
        """The limit of `angle(p_t, p^) |p_t|` for the flow that has come to `p`, far out: `sqrt(c^2 + across^2)`."""
        return float(np.hypot(self.constant, self.length_across(p)))


def limit_constants(problem: TokenProblem, selected: Selection, *, loss: AbstractLoss | None = None) -> LimitConstants:
    """The constants of training close to the direction of a selection.

    They exist where the selection is a limit, no equal of a selected token ties with it, and some multipliers are
    positive on every active difference (strict complementarity).

    **Arguments**
    - `problem`: in either geometry.
    - `selected`: one token of each input.
    - `loss`: logistic by default; only its slope at the selected scores counts.

    >>> from tokenmargin.problem.instances import figure5
    >>> round(limit_constants(figure5(2.0), [1, 1]).constant, 6)  # log((1 + e^2) / (2 (1 + e))) / 2
    0.06026
    """
    loss = LogisticLoss() if loss is None else loss
    named = limit_direction(checked_problem(problem, "limit_constants"), selected, loss=loss)
    constraints, span = limit_constraints(problem, named.selected), Span.of(problem.keys, exact=True)
    terms = _terms_beside(problem, named, constraints, span, loss)
    reason, active = _active_differences(problem, named, constraints, terms, span)
    inputs = terms.inputs[active]
    found = None
    if not reason:
        pulls = terms.gaps[active] * terms.copies[active] / problem.n
        found = _solve_constants(terms.rows[active], loss.log_slope(terms.scores)[inputs] + np.log(pulls))
        reason = (
            "" if found else "an active difference has no multiplier: the distance to it grows without bound, slowly"
        )
    multipliers = np.full(len(constraints), np.nan)
    if found is None:
        vector, empty = np.full(problem.keys.dimension, np.nan), np.zeros((0, span.dimension))
        return LimitConstants(
            named, reason, np.inf, vector, np.nan, multipliers, np.nan, False, span, empty, terms
        )  # fmt: skip
    w, direction, weights, basis = found
    multipliers[:], multipliers[active] = 0.0, weights
    constant, correction, critical_step = _closed_forms(terms.rows[active], w, direction, weights, basis)
    rank = np.linalg.matrix_rank(terms.rows, tol=RANK * np.linalg.norm(terms.rows, 2))
    return LimitConstants(
        named, "", constant, span.lift(w), correction, multipliers, critical_step, bool(rank == len(basis)), span,
        basis, terms._replace(active=active),
    )  # fmt: skip


def _terms_beside(
    problem: TokenProblem, named: LimitDirection, constraints: Constraints, span: Span, loss: AbstractLoss
) -> _Terms:
    """The terms of the gradient close to a direction, none of them said to be active yet."""
    laid, scores, (inputs, positions) = span.tokens.tokens, problem.shared_scores, constraints.token.T
    rows = np.asarray(laid[inputs, named.selected[inputs]] - laid[inputs, positions])
    leading = scores[np.arange(problem.n), named.selected]
    first = problem.keys.first_copies
    same: Bool[Array, "k T"] = problem.mask[inputs] & (first[inputs] == first[inputs, positions][:, None])
    copies = same.sum(axis=1) / copies_of(problem, named.selected).sum(axis=1)[inputs]
    gaps = leading[inputs] - scores[inputs, positions]
    return _Terms(rows, inputs, np.zeros(len(rows), bool), constraints.bound == 0, copies, gaps, leading, loss)


def _active_differences(
    problem: TokenProblem, named: LimitDirection, constraints: Constraints, terms: _Terms, span: Span
) -> tuple[str, Bool[Array, " k"]]:
    """Why there are no constants, empty where there may be; and the differences at margin 1."""
    nothing = np.zeros(len(constraints), dtype=bool)
    if not named.is_limit:
        return f"the selection is {named.kind}: training does not converge to it", nothing
    if not np.isfinite(named.solution.margin) or not span.geometry.norm(named.solution.vector):
        return "no token has to be left behind: there is no direction", nothing
    near = terms.rows @ span.reduce(named.solution.vector) - constraints.bound <= NEIGHBOUR_TOLERANCE
    if (near & terms.equal).any():
        return "a token of the selected one's score ties with it", nothing
    active = near & (constraints.bound == 1)
    if not (terms.gaps[active] * terms.copies[active] / problem.n > 0).all():
        return "inputs that share a difference pull at it both ways", nothing
    return "", active


def _closed_forms(
    rows: Float[Array, "k r"],
    w: Float[Array, " r"],
    direction: Float[Array, " r"],
    weights: Float[Array, " k"],
    basis: Float[Array, "rank r"],
) -> tuple[float, float, float]:
    """The constant, its correction and the critical step, from the active differences."""
    length = float(np.linalg.norm(direction))
    unit = direction / length
    across = w - (unit @ w) * unit
    c = float(np.linalg.norm(across))
    bend = (basis @ rows.T * weights) @ rows @ basis.T  # sum lambda_j d_j d_j', on the active span
    turned = basis @ across
    fall = float(turned @ np.linalg.solve(bend, turned)) * length
    # p^ is an eigenvector, of eigenvalue 1: what is left curves across it.
    steepest = float(np.linalg.eigvalsh(bend - np.outer(basis @ unit, basis @ unit))[-1])
    return c, fall / c if c > 0 else 0.0, 2 * length / steepest if steepest > RANK else np.inf


def _solve_constants(
    rows: Float[Array, "k r"], log_pulls: Float[Array, " k"]
) -> tuple[Float[Array, " r"], Float[Array, " r"], Float[Array, " k"], Float[Array, "rank r"]] | None:
    """w, p^, the multipliers and a basis of the active span; None where some multiplier must be zero.

    w is the minimiser of the convex `sum_j a_j exp(-<d_j, w>) + <p^, w>`: its gradient is zero where
    `lambda_j = a_j exp(-<d_j, w>)` are multipliers of p^.
    """
    left, sizes, right = np.linalg.svd(rows, full_matrices=False)
    kept = sizes > RANK * sizes[0]
    basis, inverse = right[kept], (left[:, kept] / sizes[kept]).T  # inverse: from leads to coordinates in the basis
    flat = rows @ basis.T
    direction = inverse @ np.ones(len(rows))
    positive = _positive_multipliers(flat, direction)
    if positive is None:
        return None
    y = inverse @ (log_pulls - np.log(positive))  # the answer itself where the differences are independent
    weights = positive
    for _ in range(_STEPS):
        weights = np.exp(log_pulls - flat @ y)
        gradient = direction - weights @ flat
        step = np.linalg.solve((flat.T * weights) @ flat, gradient)
        if float(gradient @ step) <= _DECREMENT * float(direction @ direction):
            break
        y = y - step / max(1.0, float(np.abs(flat @ step).max()))  # no exponent moves by more than 1: it descends
    return y @ basis, direction @ basis, weights, basis


def _positive_multipliers(flat: Float[Array, "k rank"], direction: Float[Array, " rank"]) -> Array | None:
    """Multipliers of p^ of which the least is as large as can be; None where it is zero."""
    k = len(flat)
    if k == flat.shape[1]:
        found = np.linalg.solve(flat.T, direction)
    else:
        cost = np.append(np.zeros(k), -1.0)
        above = np.hstack([-np.eye(k), np.ones((k, 1))])
        tied = np.hstack([flat.T, np.zeros((flat.shape[1], 1))])
        sizes = float(np.abs(flat).max()), float(np.abs(direction).max())  # HiGHS takes numbers below 1e-9 for zero
        answer = linprog(
            cost, above, np.zeros(k), tied / sizes[0], direction / sizes[1], bounds=[(None, None)] * (k + 1)
        )
        if answer.x is None:
            return None
        found = answer.x[:k] * (sizes[1] / sizes[0])
    return found if found.min() > STRICT * float(np.abs(found).mean()) else None
