"""The risk beside a direction, which tells whether training stays there when several tokens pull at p.

Near a direction q along which the tokens C_i of each input lead together, ahead of the neighbours N by the same margin,
write `p = R q + w`. Up to smaller terms the risk is then `exp(-R margin) F(w)`, with

    F(w) = sum over (i, u) in N of  a_iu exp(<k_iu, w>) / sum over t in C_i of exp(<k_it, w>),
    a_iu = |loss'(gamma_i)| (gamma_i - gamma_iu),

and moving w along q multiplies F alone. So training holds w, and converges to q from a cone of starts, exactly where
log F has a local minimum across q.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.limit_results import LimitDirection
from tokenmargin.norms import EPS
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import NEIGHBOUR_TOLERANCE

STARTS, STEPS = 8, 40
"""Points from which a local minimum of F is looked for, and steps of Newton's method from each."""
INDEPENDENT = 1e-9
"""Singular values above this share of the largest are not zero: their rounding is some 1e-15 of it."""
FINITE = 60.0
"""Logits further apart than this are no tie: the smaller weight is below rounding."""
_RANGE = 1e290  # multipliers up to this, and down to its reciprocal, have all their digits

Verdict = Literal["held", "not held", "unknown"]


def least_known(keys: AbstractGeometry) -> float:
    """Share of the largest above which a singular value is not zero; inner products know half of the digits."""
    return INDEPENDENT if isinstance(keys, Coordinates) else INDEPENDENT**0.5


class LeadingRisk:
    """The function log F of a tie, its gradient and its Hessian, in coordinates of the span of all its differences.

    Lengths are counted in a unit, the power of two above the largest coordinate; multipliers as shares of the largest.
    """

    def __init__(self, problem: TokenProblem, tie: LimitDirection, loss: AbstractLoss) -> None:
        near, tied, index = tie.neighbours, tie.chosen, problem.keys.index
        pulling = np.asarray(near.any(axis=1))
        own = (near | tied) & pulling[:, None]
        inputs, tokens = own.nonzero()
        self.weights = np.zeros(near.shape)
        largest = float(np.abs(tie.solution.multipliers).max(initial=0.0))
        self.in_range = 1 / _RANGE < largest < _RANGE
        self.weights[tuple(tie.solution.tokens.T)] = tie.solution.multipliers / (largest or 1.0)
        whose, others = np.concatenate([[inputs, tokens], ((self.weights != 0) & ~own).nonzero()], axis=1)
        rows = problem.keys.differences(index[whose, others], index[whose, tie.selected[whose]])
        rows = np.ldexp(rows, -np.frexp(np.abs(rows).max(initial=0.0))[1])
        # Of no term of F, but multipliers are not unique, and the direction may be given by these.
        self.beside = -self.weights[whose, others][len(inputs) :] @ rows[len(inputs) :]
        rows = rows[: len(inputs)]
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
        self.count = self._count_terms(problem, tie)

    def _count_terms(self, problem: TokenProblem, tie: LimitDirection) -> int:
        """Number of terms of F that differ in more than their factor, at most: by the vectors that make them up."""
        vectors = problem.keys.equal_rows[problem.keys.index]
        leading = [
            (int(row[t]), *np.unique(row[set_])) for row, t, set_ in zip(vectors, tie.selected, tie.chosen, strict=True)
        ]
        losing = np.flatnonzero(self.losing).tolist()
        return len({(leading[i], int(vectors[i, t])) for i, t in (self.tokens[j] for j in losing)})

    def direction(self, basis: Float[Array, "k r"]) -> tuple[Float[Array, " r"], bool]:
        """The direction in these coordinates, and whether nothing of it lies outside the span of the rows (`basis`)."""
        within = (basis @ self.beside) @ basis
        q = within - self.weights[tuple(np.array(self.tokens).T)] @ self.rows
        return q, bool(np.linalg.norm(self.beside - within) <= NEIGHBOUR_TOLERANCE * np.linalg.norm(q))

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
        if not total > len(terms) * EPS * np.abs(terms).sum():
            return np.inf, np.zeros_like(w), np.zeros((len(w), len(w)))
        shares = terms / total
        slopes = losing - centres[self.owners]
        slope = shares @ slopes
        masses = np.bincount(self.owners, weights=shares, minlength=len(heights))
        spread = (leading.T * (weights * masses[self.leaders])) @ leading - (centres.T * masses) @ centres
        return float(largest + np.log(total)), slope, (slopes.T * shares) @ slopes - np.outer(slope, slope) - spread


def minimum_across(problem: TokenProblem, at: LimitDirection, loss: AbstractLoss) -> Verdict:
    """Whether log F has a local minimum across the direction, beside neighbours some of which pull."""
    terms = LeadingRisk(problem, at, loss)
    if not terms.in_range:  # doubles do not hold the multipliers, which make up the direction
        return "unknown"
    _, sizes, basis = np.linalg.svd(terms.rows, full_matrices=False)
    rank = int((sizes > least_known(problem.keys) * sizes[0]).sum())
    basis = basis[:rank]
    q, inside = terms.direction(basis)
    if rank > terms.count or not inside:
        return "not held"
    across = np.linalg.svd((basis @ q)[None])[2][1:] @ basis
    if not len(across):  # the tied tokens differ across q by less than can be told
        return "unknown"
    if not (terms.pulls > 0).any() or _falls_for_ever(terms, across) or _never_positive(terms, across):
        return "not held"
    if _never_balanced(terms, across):
        return "not held"
    return "held" if any(_finds_minimum(terms, across, start) for start in _starting_points(len(across))) else "unknown"


def _falls_for_ever(terms: LeadingRisk, across: Float[Array, "s r"]) -> bool:
    """Whether along some vector across q that keeps the tie level no term of F grows, and a negative one falls.

    A term of a token that scores higher is negative, and falls where its exponent grows. Where positive terms alone
    change they may vanish on the way, and what is left decides.
    """
    from scipy.optimize import linprog  # it takes half a second to load, and few selections need it

    higher = terms.pulls < 0
    if not higher.any():
        return False  # q is a combination of the terms' differences, with multipliers of one sign
    signed = (np.sign(terms.pulls)[:, None] * terms.rows[terms.losing]) @ across.T
    level = terms.rows[terms.leading] @ across.T
    largest = max(float(np.abs(signed).max()), float(np.abs(level).max(initial=0.0)))
    signed, level = signed / (largest or 1.0), level / (largest or 1.0)  # HiGHS takes numbers below 1e-9 for zero
    answer = linprog(
        -signed[higher].sum(axis=0), A_ub=-signed, b_ub=np.zeros(len(signed)), A_eq=level, b_eq=np.zeros(len(level)),
        bounds=(-1, 1),
    )  # fmt: skip
    return bool(answer.status == 0 and (signed[higher] @ answer.x).sum() > 1e-6 * np.abs(signed).max())


def _never_positive(terms: LeadingRisk, across: Float[Array, "s r"]) -> bool:
    """Whether F is nowhere positive because its positive terms are means of negative ones: each exponent is a mean of
    exponents of higher scores, with weights that together do not exceed their pulls (an exponential of a mean is at
    most the mean of the exponentials). Asked where one token leads in every input."""
    from scipy.optimize import linprog

    lower, higher = terms.pulls > 0, terms.pulls < 0
    if terms.rows[terms.leading].any() or not higher.any():
        return False
    rows = terms.rows[terms.losing] @ across.T
    rows = rows / (float(np.abs(rows).max()) or 1.0)
    count, most = int(lower.sum()), -terms.pulls[higher]
    means = np.kron(np.eye(count), np.column_stack([rows[higher], np.ones(len(most))]).T)
    wanted = np.column_stack([rows[lower], np.ones(count)]).ravel()
    taken = np.kron(terms.pulls[lower], np.eye(len(most)))
    answer = linprog(np.zeros(taken.shape[1]), A_ub=taken / most.max(), b_ub=most / most.max(), A_eq=means, b_eq=wanted)
    return bool(answer.status == 0)


def _never_balanced(terms: LeadingRisk, across: Float[Array, "s r"]) -> bool:
    """Whether no terms of these signs, whatever their sizes, balance across q with F positive and curved upwards.

    Asked where one token leads in every input. Sizes m with `sum m_j x_j = 0` across q, `sum m_j = 1` and a positive
    semidefinite `sum m_j x_j x_j'` are looked for by linear programs, a vector along which the last one curves down
    being added each time. A term that vanishes on the way has size zero.
    """
    from scipy.optimize import linprog

    if terms.rows[terms.leading].any():
        return False  # a tie curves down by itself
    rows = terms.rows[terms.losing] @ across.T
    rows = rows / (float(np.abs(rows).max()) or 1.0)
    signs = np.sign(terms.pulls)
    balanced = np.column_stack([signs[:, None] * rows, signs]).T
    curves = np.zeros((0, len(rows)))
    for _ in range(STEPS):
        answer = linprog(
            np.ones(len(rows)), A_ub=-curves, b_ub=np.zeros(len(curves)), A_eq=balanced, b_eq=np.eye(len(balanced))[-1],
        )  # fmt: skip
        if answer.status != 0 or answer.x is None:
            return bool(answer.status == 2)
        bends, axes = np.linalg.eigh((rows.T * (signs * answer.x)) @ rows)
        if bends[0] > -1e-6 * answer.x.max():
            return False
        curves = np.vstack([curves, signs * (rows @ axes[:, 0]) ** 2])
    return False


def _starting_points(dimension: int) -> Iterator[Float[Array, " s"]]:
    """The middle of the tie, then points around it, always the same."""
    rng = np.random.default_rng(0)
    yield np.zeros(dimension)
    for j in range(STARTS - 1):
        yield (1.0, 3.0)[j % 2] * rng.standard_normal(dimension)


def _finds_minimum(terms: LeadingRisk, across: Float[Array, "s r"], start: Float[Array, " s"]) -> bool:
    """Whether Newton's method, made to descend, ends at a strict local minimum across q, at finite logits."""
    scale = float(np.abs(terms.rows @ across.T).max(initial=0.0))
    if not scale:
        return True
    y = start / scale
    value, slope, curve = _derivatives_across(terms, across, y)
    for _ in range(STEPS):
        if not np.isfinite(value) or np.ptp((terms.rows @ (y @ across))[terms.leading]) > FINITE:
            return False
        bends, axes = np.linalg.eigh(curve)
        if np.linalg.norm(slope) <= 1e-10 * scale:
            return bool(bends[0] > 1e-6 * scale**2)  # told from zero by more than the square root of the slope
        step = -axes @ ((axes.T @ slope) / np.maximum(np.abs(bends), 1e-3 * scale**2))
        step *= min(1.0, 2 / (scale * float(np.linalg.norm(step))))
        for _ in range(40):
            ahead = _derivatives_across(terms, across, y + step)
            if ahead[0] <= value + 1e-4 * float(slope @ step) + 1e-15 * abs(value):
                break
            step = step / 2
        y, (value, slope, curve) = y + step, ahead
    return False


def _derivatives_across(
    terms: LeadingRisk, across: Float[Array, "s r"], y: Float[Array, " s"]
) -> tuple[float, Float[Array, " s"], Float[Array, "s s"]]:
    """log F with its derivatives in the coordinates of the space `across`."""
    value, slope, curve = terms.at(y @ across)
    return value, across @ slope, across @ curve @ across.T
