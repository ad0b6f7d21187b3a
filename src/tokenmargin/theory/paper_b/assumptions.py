"""Assumptions A to D of paper B, and the general position of its Theorem 7, each as a function.

"For all p" can be proven only by an argument. Where there is one (Assumptions A, B and C, general position), the answer
is exact or a certificate; where points were tried instead (Assumption D with any head), the slack says so.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from scipy.optimize import linprog
from scipy.special import logsumexp

from tokenmargin.margin import MarginSolution, max_margin, solve
from tokenmargin.margin.constraints import attention_constraints, row_constraints
from tokenmargin.norms import EPS
from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.losses import AbstractLoss, CustomLoss
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import attention_weights
from tokenmargin.theory.claim import Slack, above, below, sampled, seen

MOST = 3000
"""Subsets of keys, or choices of tokens, that are gone through one by one."""
CERTIFIED = 1e-9
"""Two margins that differ by no more than this share may be one: each is certified to 1e-10."""
INDEPENDENT = 1e-9
"""Singular values or distances above this share are not rounding, which is a few hundred EPS; below it they may be."""
SLOWER = 1e-4
"""By which share an input must be slower than another, where linear programs meet their constraints to 1e-7."""
OF_MULTIPLIERS = 1e-6
"""What multipliers, whose equations hold to 1e-7, leave open of a fall of the label margin, as a share of it. An input
without a multiplier has a fall of zero, and rounding does not make it more."""


def assumption_a(loss: AbstractLoss, problem: TokenProblem) -> Slack:
    """Assumption A on the interval that outputs can reach: the loss falls strictly.

    That its slope is bounded and Lipschitz on a bounded interval is true of every differentiable loss that the package
    knows (`AbstractLoss.constants` gives M0 and M1), so the slope's sign is what is left. The slope is taken at 200
    points between the smallest and the largest score: outputs are averages of scores.
    """
    visible = problem.scores[problem.mask]
    outputs = np.linspace(float(visible.min()), float(visible.max()), 200)
    with np.errstate(all="ignore"):
        slope = 0.0 - np.exp(loss.log_slope(outputs))  # a slope that underflows is 0, not -0
    slack = below("Assumption A: largest slope of the loss", float(slope.max()), 0, strict=True)
    if isinstance(loss, CustomLoss):
        return sampled(slack)
    return slack if slack.holds else seen(slack, "slopes that doubles hold: this loss falls everywhere")


def assumption_b(problem: TokenProblem) -> tuple[Slack, Slack]:
    """Assumption B: in each input the other tokens score alike, and less than the optimal one."""
    lead, spread = np.inf, 0.0
    for scores, here in zip(problem.scores, problem.mask, strict=True):
        ordered = np.sort(scores[here])
        if len(ordered) > 1:
            lead = min(lead, float(ordered[-1] - ordered[-2]))
            spread = max(spread, float(ordered[-2] - ordered[0]))
    return above("lead of the optimal score", lead, 0, strict=True), below("spread of the other scores", spread, 0)


@dataclass(frozen=True)
class AssumptionC:
    """Assumption C's nu: for all p, the label margin is at most `Gamma - nu max_i (1 - s_{i alpha_i})`.

    - `margin`: Gamma, the label margin when alpha is selected.
    - `at_least`: nu is at least this, by a certificate; not positive where the certificate shows nothing.
    - `at_most`: no nu larger than this serves, by a p that was tried, or by a direction along which every nu fails.
    """

    margin: float
    at_least: float
    at_most: float

    def slack(self, where: str = "") -> Slack:
        """`nu > 0`: proven by the certificate, refuted by a point or a direction, or tried on points."""
        name = f"Assumption C's nu{where}"
        if self.at_least > 0:
            return above(name, self.at_least, 0, strict=True)
        return sampled(above(name, self.at_most, 0, strict=True), "a certificate that nu is positive")


def assumption_c(
    problem: TokenProblem,
    alpha: Int[Array, " n"],
    points: Float[Array, "k D"],
    support: Bool[Array, " n"] | None = None,
) -> AssumptionC:
    """Assumption C for the tokens `alpha`, over the inputs of `support` (all by default).

    The certificate: with multipliers lambda of the SVM at alpha, the label margin of attention features r is at most
    `|sum_i lambda_i Y_i r_i|`, which is convex in the attention and equals Gamma at alpha. So it falls from Gamma at
    least as fast as along the chord to the worst choice of single tokens that leaves alpha in the input which loses the
    most. Where multipliers are not unique, those that weigh that input most are taken.
    """
    kept = np.ones(problem.n, dtype=bool) if support is None else support
    tokens, inputs = values_of(problem).tokens, np.flatnonzero(kept)
    signed = problem.labels[:, None] * tokens[np.arange(problem.n), alpha]
    head = _max_margin_head(signed[inputs])
    if not head.is_optimal:
        return AssumptionC(0.0, -np.inf, -np.inf if head.status == "infeasible" else np.inf)
    at_least = _certified_fall(problem, alpha, inputs, head)
    at_most = np.inf
    if at_least <= 0:
        at_most = (
            0.0 if _others_may_lag(problem, alpha, inputs, head) else _smallest_fall(problem, alpha, inputs, points)
        )
    return AssumptionC(head.margin, at_least, at_most)


def values_of(problem: TokenProblem) -> Coordinates:
    """The values as coordinates: attention features are averages of them."""
    if not isinstance(problem.values, Coordinates):
        raise TypeError(
            "label margins of attention features need values in coordinates; give tokens, not inner products"
        )
    return problem.values


def _max_margin_head(signed: Float[Array, "k d"]) -> MarginSolution:
    """The max-margin head of vectors `Y_i r_i`."""
    return solve(row_constraints(signed))


def _certified_fall(
    problem: TokenProblem, alpha: Int[Array, " n"], inputs: Int[Array, " k"], head: MarginSolution
) -> float:
    """The least, over inputs that may lose most, of Gamma minus the longest `|sum lambda Y x|` without alpha there."""
    tokens = values_of(problem).tokens
    choices = [np.flatnonzero(problem.mask[i]) for i in inputs]
    if np.prod([float(len(choice)) for choice in choices]) > MOST:
        return -np.inf
    grid = np.array(list(itertools.product(*choices)), dtype=np.intp)
    signed = problem.labels[inputs, None] * tokens[inputs, grid]  # (choice, input, d)
    dual = _all_multipliers(problem.labels[inputs, None] * tokens[inputs, alpha[inputs]], head)
    lengths = np.linalg.norm(np.einsum("lk,ckd->lcd", dual, signed), axis=2)
    leaves = grid != alpha[inputs]
    if not leaves.any():
        return np.inf
    falls = head.margin - np.stack([lengths[:, left].max(axis=1) for left in leaves.T if left.any()], axis=1)
    # Of the other choices, which keep alpha there and leave it in inputs that lose no more, none may gain either.
    error = OF_MULTIPLIERS * head.margin
    serving = falls[falls.min(axis=1) >= -error]
    least = float(serving.max(axis=0).min()) if len(serving) else -np.inf
    return least - (1 + len(inputs)) * error


def _all_multipliers(signed: Float[Array, "k d"], head: MarginSolution) -> Float[Array, "l k"]:
    """Multipliers of the SVM, summing to one: the solver's, those largest in each input, and the mean of these."""
    first = head.multipliers / head.multipliers.sum()
    tight = signed @ head.vector <= 1 + 1e-7
    signed = signed / np.abs(signed).max()  # HiGHS takes numbers below 1e-9 for zero
    target = first @ signed
    found = [first]
    for j in np.flatnonzero(tight):
        answer = linprog(
            -np.eye(len(signed))[j],
            A_eq=np.vstack([signed.T, np.ones(len(signed))]),
            b_eq=np.append(target, 1.0),
            bounds=[(0, None if near else 0) for near in tight],
        )
        if answer.success:
            found.append(answer.x)
    return np.stack([*found, np.mean(found, axis=0)])


def _others_may_lag(
    problem: TokenProblem, alpha: Int[Array, " n"], inputs: Int[Array, " k"], head: MarginSolution
) -> bool:
    """Whether some direction selects alpha and is slower in an input that is no support vector than in all that are.

    Along it that input's lost attention is exponentially larger than what the support inputs lose, and only these
    lower the label margin: no nu > 0 serves. Where the max-margin direction exists, a little of it turns leads of zero
    into positive ones, so it is enough to ask of each lead of those inputs how small it can be while the support
    inputs lead by 1 and nothing lags behind: a linear program.
    """
    signed = problem.labels[inputs, None] * values_of(problem).tokens[inputs, alpha[inputs]]
    tight = np.zeros(problem.n, dtype=bool)
    tight[inputs] = signed @ head.vector <= 1 + 1e-7
    if tight[inputs].all() or not max_margin(problem, alpha).is_optimal:
        return False
    constraints = attention_constraints(problem, alpha)
    constraints = constraints.only(np.isin(constraints.token[:, 0], inputs))
    rows, of = constraints.rows(), constraints.token[:, 0]
    rows = rows / np.abs(rows).max()
    limits = {"A_ub": -rows, "b_ub": -tight[of].astype(float), "bounds": (None, None)}
    answers = (linprog(row, **limits) for row in rows[~tight[of]])
    return any(answer.success and answer.fun < 1 - SLOWER for answer in answers)


def _smallest_fall(
    problem: TokenProblem, alpha: Int[Array, " n"], inputs: Int[Array, " k"], points: Float[Array, "p D"]
) -> float:
    """The least fall of the label margin per unit of attention that leaves alpha, over the points."""
    tokens, falls = values_of(problem).tokens, [np.inf]
    whole = _max_margin_head(problem.labels[inputs, None] * tokens[inputs, alpha[inputs]]).margin
    for p in points:
        s = attention_weights(problem.keys, p)
        lost = float((1 - s[np.arange(problem.n), alpha])[inputs].max())
        features = problem.labels[inputs, None] * np.einsum("nt,ntd->nd", s, tokens)[inputs]
        solution = _max_margin_head(features)
        fall = whole - (solution.margin if solution.is_optimal else 0.0)
        if lost >= 1e-6 and abs(fall) > CERTIFIED * whole:  # smaller ones may be the solver's residuals
            falls.append(fall / lost)
    return float(min(falls))


def assumption_d(
    risk: AbstractObjective, optimal: Bool[Array, "n T"], points: Float[Array, "k D"]
) -> tuple[Slack, Slack]:
    """Assumption D by its usual reason: the risk exceeds that of O_i by between C_- and C_+ times q_max, the largest
    attention elsewhere (the proof of Lemma 14; rho = -2 (1 + 1/Delta) log(C_+/C_-)).

    One point with less risk than O_i alone refutes it, where O_i can be selected: every p near enough to O_i is better
    by the assumption and worse by its risk. That the ratio stays bounded is seen on the points, not proven.
    """
    log_q, alpha = log_outside(risk.problem, points, optimal), optimal.argmax(axis=1)
    excess = [risk.excess(p, alpha) for p in points]
    ratios = np.array([sign * np.exp(min(size - q, 700.0)) for (size, sign), q in zip(excess, log_q, strict=True)])
    return (
        sampled(above(f"least (L - L_star) / q_max, {len(points)} points", ratios.min(), 0, strict=True)),
        sampled(below("largest", ratios.max(), np.inf, strict=True)),
    )


def log_outside(problem: TokenProblem, points: Float[Array, "k D"], optimal: Bool[Array, "n T"]) -> Float[Array, " k"]:
    """`log q_max`: the largest attention on tokens outside O_i, over the inputs."""
    logits = problem.keys.logits(points)
    others = logsumexp(np.where(problem.mask & ~optimal, logits, -np.inf), axis=-1)
    return np.asarray((others - logsumexp(logits, axis=-1)).max(axis=-1))


def rank_of_vectors(geometry: AbstractGeometry) -> int:
    """The dimension of the span of a geometry's vectors."""
    return int(np.linalg.matrix_rank(geometry.differences(np.arange(geometry.n_vectors), None)))


def general_position(problem: TokenProblem, alpha: Int[Array, " n"]) -> Slack:
    """Theorem 7's general position of keys of dimension d: any d of the differences `k_it - k_{i alpha_i}` are
    independent, all of them where there are fewer, and the vector of ones is not in the range of any d + 1.

    Read with alpha one fixed choice of tokens, as everywhere in the paper; were alpha_i free, `k_t - k_a` and `k_a -
    k_t` would both be rows, and no data would be in general position. Printed of d differences alone, the first
    condition would allow two tokens with one key wherever there are fewer; the proof inverts what it has. All subsets
    are gone through, or the first 3000. Where singular values are too small for rounding, exact fractions decide; keys
    known by inner products leave it open."""
    others = problem.mask.copy()
    others[np.arange(problem.n), alpha] = False
    token = np.argwhere(others)
    index = problem.keys.index
    rows = problem.keys.differences(index[token[:, 0], token[:, 1]], index[token[:, 0], alpha[token[:, 0]]])
    d = problem.keys.dimension if isinstance(problem.keys, Coordinates) else int(np.linalg.matrix_rank(rows))
    exact = _exact_differences(problem.keys, index[tuple(token.T)], index[token[:, 0], alpha[token[:, 0]]])
    numbers = range(len(rows))
    few, more = (itertools.combinations(numbers, size) for size in (min(d, len(rows)), d + 1))
    subsets = [(list(chosen), False) for chosen in itertools.islice(few, MOST)]
    subsets += [(list(chosen), True) for chosen in itertools.islice(more, MOST)]
    name, least = "general position: least singular value or distance", np.inf
    for chosen, ones in subsets:
        size = _independence(rows[chosen], ones=ones)
        if size < INDEPENDENT and exact is None:
            return seen(above(name, size, INDEPENDENT), "keys in coordinates")
        if size < INDEPENDENT and exact is not None:
            size = max(size, np.finfo(float).tiny) if _independent([exact[j] for j in chosen], ones=ones) else 0.0
        least = min(least, size)
        if least == 0:
            break
    slack = above(name, least, 0, strict=True)
    return sampled(slack, "all subsets of keys") if len(subsets) >= MOST else slack


def _independence(rows: Float[Array, "k d"], *, ones: bool) -> float:
    """The least singular value of rows over the largest; or, with `ones`, how far the vector of ones is from their
    range, less what rounding can add to that: some hundred EPS over that ratio."""
    sizes = np.linalg.svd(rows, compute_uv=False)
    ratio = float(sizes[-1] / max(sizes[0], np.finfo(float).tiny))
    if not ones:
        return ratio
    distance = float(np.abs(rows @ np.linalg.pinv(rows) @ np.ones(len(rows)) - 1).max())
    return distance - 100 * EPS / max(ratio, EPS)


def _exact_differences(
    keys: AbstractGeometry, plus: Int[Array, " k"], minus: Int[Array, " k"]
) -> list[list[Fraction]] | None:
    """Differences of keys as fractions, where they are coordinates."""
    if not isinstance(keys, Coordinates):
        return None
    exact = [[Fraction(float(part)) for part in key] for key in keys.vectors]
    return [[a - b for a, b in zip(exact[j], exact[k], strict=True)] for j, k in zip(plus, minus, strict=True)]


def _independent(rows: list[list[Fraction]], *, ones: bool) -> bool:
    """Whether the rows are independent; or, with `ones`, whether the vector of ones is outside their range."""
    if ones:
        return _rank([[*row, Fraction(1)] for row in rows]) > _rank(rows)
    return _rank(rows) == len(rows)


def _rank(rows: list[list[Fraction]]) -> int:
    """By Gauss's elimination."""
    left, rank = [list(row) for row in rows], 0
    while left and left[0]:
        pivot = next((row for row in left if row[0]), None)
        if pivot is not None:
            left.remove(pivot)
            rank += 1
            left = [[a - row[0] / pivot[0] * b for a, b in zip(row, pivot, strict=True)] for row in left]
        left = [row[1:] for row in left]
    return rank
