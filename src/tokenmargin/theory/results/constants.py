"""R.constants: the limit of `angle(p, p^) |p|`, and the inequalities of its proof (`docs/results/constants.md`)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics import flow
from tokenmargin.dynamics.paths.ball import minimum_along
from tokenmargin.limits import LimitConstants, limit_constants
from tokenmargin.margin import limit_constraints
from tokenmargin.norms import EPS
from tokenmargin.problem.instances import figure1b, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import attention_weights
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, equal, sampled, seen, true
from tokenmargin.theory.evidence import has_solution
from tokenmargin.theory.settings import ProblemInstance

FAR = 1e6
"""Where limits are read off, in units of |p^|: what is left there is of order 1/FAR^2, and logits round at 1e-10."""
FOUR_DIGITS = 5e-5


def off_leading_terms(x: ProblemInstance, p: Float[Array, " D"]) -> float:
    """Lemma 1 at a point: the distance between minus the gradient and the sum of `a_j exp(-<d_j, p>) d_j`, over the
    bound on it and what rounding adds.

    In logarithms, and relative to the largest term: far out all are below the smallest double.
    """
    problem, alpha, keys = x.problem, x.alpha, x.problem.keys
    constraints = limit_constraints(problem, alpha)
    rows, inputs = constraints.rows(), constraints.token[:, 0]
    gamma = problem.scores[np.arange(problem.n), alpha]
    gap = gamma[inputs] - problem.scores[tuple(constraints.token.T)]
    reach = np.abs(gamma[:, None] - problem.scores).max(axis=1, where=problem.mask, initial=0.0)
    span = np.linspace(problem.scores[problem.mask].min(), problem.scores[problem.mask].max(), 101)
    others = problem.mask & (np.arange(problem.T) != alpha[:, None])
    lost = (attention_weights(keys, p) * others).sum(axis=1)
    bend = float(np.abs(x.loss.log_slope_derivative(span)).max()) * lost * reach
    margins, lengths = rows @ p, np.linalg.norm(rows, axis=1)
    weight = x.loss.log_slope(gamma)[inputs] - np.log(problem.n) - margins
    with np.errstate(divide="ignore"):
        terms = weight + np.log(np.abs(gap))
        bounds = (1 - (1 - lost) * np.exp(-bend))[inputs] * np.abs(gap) + (lost * reach)[inputs]
        bounds = weight + bend[inputs] + np.log(bounds)
    top = max(float(terms.max()), float(bounds.max()))
    direction, log_norm = x.objective.descent(p)
    apart = direction * np.exp(log_norm[0] - top) - (np.sign(gap) * np.exp(terms - top)) @ rows
    sizes, allowed = (float(np.exp(part - top) @ lengths) for part in (terms, bounds))
    # Logits and margins are sums of D products, logarithms are rounded to their size, and there are n T terms.
    logits = 3 * keys.dimension * float(keys.vector_norms.max() * keys.norm(p))
    rounding = EPS * (logits + abs(top) + problem.n * problem.T + 16) * (sizes + allowed)
    return float(np.linalg.norm(apart)) / (allowed + rounding)


def _lemmas_of_proof(x: ProblemInstance, found: LimitConstants) -> tuple[Slack, ...]:
    """Lemma 1 along p^ log t + w, and the slope of Phi along rays from w."""
    direction = found.named.solution.vector
    length = float(np.linalg.norm(direction))  # the unit of all distances
    worst = np.max(
        [
            off_leading_terms(x, scale * direction + found.vector + aside)
            for scale in (2.0, 4.0, 8.0)
            for aside in 0.3 * length * x.sphere(5, x.rng)
        ]
    )
    rows = limit_constraints(x.problem, found.named.selected).rows()
    active = found.multipliers > 0
    rays = x.rng.normal(size=(50, active.sum())) @ rows[active]
    rays = rays[np.linalg.norm(rays, axis=1) > 0]
    rays /= np.linalg.norm(rays, axis=1)[:, None]
    far = length * np.array([1.0, 2.0, 4.0])
    # <u, grad Phi(w + r u)> = <p^, u> - sum_j lambda_j exp(-r <d_j, u>) <d_j, u>
    leads = rays @ rows[active].T
    steep = np.exp(np.minimum(-far[:, None, None] * leads, 500.0))  # beyond, the sign alone matters
    pulls = found.multipliers[active] * leads * steep
    slopes = (rays @ direction)[:, None] - pulls.sum(axis=2).T
    rounding = (leads.shape[1] + 8) * EPS * (length + np.abs(pulls).sum(axis=2).T)
    growth, off = np.diff(slopes, axis=1), rounding[:, 1:] + rounding[:, :-1]
    worst_ray = (growth + off).min(axis=1).argmin()
    k = (growth + off)[worst_ray].argmin()
    leading = sampled(below("Lemma 1: the gradient off its leading terms, over the bound", worst, 1.0))
    copied = (x.problem.keys.first_copies != np.arange(x.problem.T))[x.problem.mask].any()
    least = float(slopes[:, 0].min())
    return (
        *(() if copied else (leading,)),  # it is written for tokens that differ: a copy counts in every weight
        sampled(above("Lemma 2: least slope of Phi at distance |p^| from w", least, 0, strict=True)),
        sampled(
            above("Lemma 2: least growth of that slope farther out", float(growth[worst_ray, k]), 0,
                  tolerance=float(off[worst_ray, k]))
        ),
    )  # fmt: skip


def constants(x: ProblemInstance) -> Findings:
    """Let p^ be the max-margin vector of alpha, let every neighbour score lower than the selected token, and let some
    multipliers be positive on every active difference d_j. Put `a_j = |loss'(gamma_i)| (gamma_i - gamma_it) / n` and
    let w be the minimiser of `sum_j a_j exp(-<d_j, w>) + <p^, w>` in their span. Then on the regularisation path
    `p_R - R p^/|p^|` tends to the part of w across p^, whose length c is the limit of `R angle(p_R, p^)`; gradient flow
    and descent that converge to p^ in direction have `p_t = p^ log t + w + z + o(1)` with z orthogonal to the active
    differences, so that `|p_t| angle(p_t, p^)` tends to `sqrt(c^2 + |z|^2)`. Where the d_j are independent,
    `c^2 = b' G^-1 b - (lambda' b)^2/|p^|^2` with `b_j = log(a_j/lambda_j)` and G the matrix of inner products. (Ours;
    proof in docs/results/constants.md.)"""
    found = limit_constants(x.problem, x.alpha, loss=x.loss)
    named, keys = found.named, x.problem.keys
    separable = has_solution("alpha is separable", named.solution)
    if not named.solution.is_optimal:
        return Findings((separable,))
    hypotheses = (
        separable,
        above("smallest lead in score over a neighbour", float(np.nan_to_num(named.gaps).min()), 0, strict=True),
        true("some multipliers are positive on all active differences", "multiplier" not in found.reason),
        true("there are others", bool(named.solution.vector.any())),
    )
    if not named.solution.vector.any():
        return Findings(hypotheses)
    direction = named.solution.vector
    radius = FAR * float(keys.norm(direction))
    point = minimum_along(x.objective, direction, radius)
    expected = found.constant if found.reason else found.constant - found.correction / radius
    statement: tuple[Slack, ...] = (
        _equal_to_four_digits("R angle(p_R, p^) on the regularisation path", found.product(point), expected),
    )
    if found.reason:
        return Findings(hypotheses, statement)
    start = (200 + 30 * found.constant / float(keys.norm(direction))) * direction + float(
        keys.norm(direction)
    ) * x.sphere(1, x.rng)[0]
    path = flow(x.objective, start=start, until_norm=radius)
    measured = found.product(path.prompt) if path.stop == "norm" else np.nan
    statement += (_equal_to_four_digits("|p_t| angle(p_t, p^) on the flow", measured, found.of_flow(path.prompt)),)
    return Findings(hypotheses, (*statement, *_lemmas_of_proof(x, found)))


def _equal_to_four_digits(name: str, measured: float, expected: float) -> Slack:
    """Four digits; a constant below 1e-3 is compared to 5e-8."""
    tolerance = FOUR_DIGITS * max(abs(expected), 1e-3) if np.isfinite(expected) else 0.0
    return seen(equal(name, measured, expected, tolerance=tolerance))


def _without_multiplier() -> ProblemInstance:
    """p^ = (1, 0) is held by (1, 0) alone; (1, 1) is at margin 1 as well, and p drifts away from it as log |p|."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 0.0], [0.0, -1.0]]], [1], scores=[[1.0, 0.0, 0.0]])
    return ProblemInstance(problem, "an active difference without a multiplier", selected=(0,))


CLAIMS = (
    Claim("R.constants", constants, "sampled",
        about="angle(p, p^) |p| has a limit, known from multipliers, scores and the loss",
        example=lambda: ProblemInstance(random_problem(3, 4, 6, rng=np.random.default_rng(3)), "random n=3 T=4 d=6"),
        outside=(_without_multiplier, lambda: ProblemInstance(figure1b(), "fig1b", selected=(2,))),
        unneeded={"alpha is separable": NO_SUBJECT, "there are others": NO_SUBJECT},
        note=(
            "Normalised descent settles at the same w for steps below 2 |p^| over the largest eigenvalue of the sum "
            "of lambda_j d_j d_j' across p^, and goes back and forth above."
        )),
)  # fmt: skip
