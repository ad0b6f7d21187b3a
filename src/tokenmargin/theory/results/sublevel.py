"""R.sublevel and R.theorem5-plus: below a level of the risk, flow goes to the max-margin direction of the best tokens.

No limit is assumed, and no mu. The proofs are in `docs/results/theorem5-plus.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.optimize import brentq

from tokenmargin.dynamics import FlowPath, flow
from tokenmargin.margin import LimitDirection, limit_constraints, limit_direction
from tokenmargin.norms import EPS
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.instances import figure8, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, copies_of, lead_over
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, sampled, seen, true
from tokenmargin.theory.evidence import has_solution
from tokenmargin.theory.paper_a.conditions import selective_conditions, without_subject
from tokenmargin.theory.results.first_step import sharp_dimension
from tokenmargin.theory.settings import EmbeddingInstance, ProblemInstance, enough_step


@dataclass(frozen=True, eq=False)
class Sublevel:
    """What the theorem asks of a start, and the constants of its proof.

    - `named`: the direction p^ of the best tokens.
    - `level`: the risk below which every output stays above the second best score of its input.
    - `risk`: the risk at the start.
    - `rounding`: what `risk` and `level` may be off by.
    - `least`: `f_i^min`, what the outputs never fall below from there.
    - `constant`: C_1 of the proof; NaN where the start is not below the level.
    """

    problem: TokenProblem
    named: LimitDirection
    level: float
    risk: float
    rounding: float
    least: Float[Array, " n"]
    constant: float

    @classmethod
    def of(cls, problem: TokenProblem, start: Float[Array, " D"], loss: AbstractLoss) -> Sublevel:
        """Measure a start."""
        scores = np.where(problem.mask, problem.shared_scores, -np.inf)
        best = scores.argmax(axis=1)
        named = limit_direction(problem, best, loss=loss)
        top = scores.max(axis=1)
        copies = copies_of(problem, best)
        second = np.where(copies, -np.inf, scores).max(axis=1)
        floor = loss.value(top)
        level = float(np.min(loss.value(second) - floor) + floor.sum()) / problem.n
        outputs = PromptObjective(problem, loss).outputs(start)
        risk = float(loss.value(outputs).mean())
        # Outputs are sums of T scores, and matter by the slope there; losses may be below the smallest double.
        sizes = np.where(problem.mask, np.abs(problem.shared_scores), 0.0).max(axis=1)
        parts = np.abs(loss.value(outputs)) + np.abs(floor) + np.exp(loss.log_slope(outputs)) * sizes
        rounding = float(8 * EPS * (problem.n + problem.T) * parts.mean() + np.finfo(float).tiny)
        if not risk < level:
            return cls(problem, named, level, risk, rounding, second, np.nan)
        # the loss of each input never exceeds this
        allowed = problem.n * (risk + rounding) - floor.sum() + floor
        alone = np.isneginf(second)  # all tokens of the input are copies: its output never changes
        least = np.array([_margin_at(loss, *ends) for ends in zip(allowed, second, top, strict=True)])
        slopes = loss.log_slope(np.stack([least, top]))
        lowest = np.where(problem.mask, scores, np.inf).min(axis=1)
        above = np.where(alone, np.inf, least - second)
        # Of one copy of the best token, at least.
        weight = np.where(alone, 1.0, above / np.where(alone, 1.0, top - second)) / copies.sum(axis=1)
        rivals = len(limit_constraints(problem, best))
        # As logarithms: slopes of scores in the hundreds underflow.
        with np.errstate(divide="ignore", over="ignore"):
            most = slopes.max(axis=0) + np.log(top - lowest)
            smallest = slopes.min(axis=0) + np.log(weight * above)
            constant = np.exp(most.max() - smallest.min()) * (rivals - 1) / np.e if rivals > 1 else 0.0
        return cls(problem, named, level, risk, rounding, least, float(constant))

    def weighted_excess(self, p: Float[Array, " D"], loss: AbstractLoss) -> float:
        """`sum_j l_j (<d_j, p> - least of them)`, l_j the shares of the gradient's terms: at most C_1 by the proof."""
        state = PromptObjective(self.problem, loss).forward(p)
        rivals = self.problem.mask & ~copies_of(self.problem, self.named.selected)
        logits = self.problem.keys.logits(p)
        leads = lead_over(logits, self.named.selected)[rivals]
        logs = (loss.log_slope(state.output)[:, None] + state.log_weights + state.log_lead)[rivals]
        shares = np.exp(logs - logs.max())
        return float(shares @ (leads - leads.min()) / shares.sum())

    def least_slack(self, path: FlowPath, arcs: Float[Array, " k"]) -> float:
        """Least room, over |p|, in the proof's `|p| <= r_1 + nu (h - h_1) + (C_1/nu) log(h/h_1)`, h = <p^, p>."""
        keys, nu = self.problem.keys, self.named.solution.margin
        if np.isinf(self.constant):
            return np.inf
        points = path(arcs)
        h, r = keys.inner(points, np.broadcast_to(self.named.solution.vector, points.shape)), keys.norm(points)
        begin = int(np.argmax(h > 0))
        h, r = h[begin:], r[begin:]
        room = r[0] + nu * (h - h[0]) + self.constant / nu * np.log(h / h[0]) - r
        return float(np.min((room / r)[1:]))  # 0 at the first


def _margin_at(loss: AbstractLoss, value: float, low: float, high: float) -> float:
    """The output at which the loss has a value, between two scores."""

    def excess(u: float) -> float:
        return float(loss.value(np.asarray(u))) - value

    return high if np.isneginf(low) or excess(high) >= 0 else float(brentq(excess, low, high, xtol=1e-14))


def _check_flow(problem: TokenProblem, start: Float[Array, " D"], loss: AbstractLoss, norm: float) -> tuple[Slack, ...]:
    """The flow from there: the direction, the outputs, the inequality."""
    found = Sublevel.of(problem, start, loss)
    if not found.named.solution.is_optimal or not found.named.solution.vector.any():
        return ()
    objective = PromptObjective(problem, loss)
    far = norm / found.named.solution.margin
    path = flow(objective, start=start, until_norm=far)
    off = float(angle(problem.keys, path.prompt, found.named.solution.vector)) if path.stop == "norm" else np.inf
    near = seen(below(f"angle to the best tokens' direction at {norm:g} |p^|", off, 1e-2))
    if np.isnan(found.constant):  # a start above the level: the proof's bounds have no constants
        return (near,)
    arcs = np.concatenate([[0.0], np.geomspace(1e-3, 1, 60)]) * path.arcs[-1]
    lowest = float((objective.outputs(path(arcs)) - found.least).min())
    spreads = [found.weighted_excess(point, loss) for point in path(arcs)]
    # The flow's error in a step is a share of |p|, and |p| grows: those of a hundred steps count, earlier ones no more.
    error = 100 * path.settings.tolerance
    outputs = error * float(np.abs(problem.scores[problem.mask]).max())
    return (
        near,
        sampled(above("least output above f_i^min on the way", lowest, 0, tolerance=outputs)),
        sampled(below("largest spread of the leads in the gradient", max(spreads), found.constant)),
        sampled(above("least room in the bound on |p|, over |p|", found.least_slack(path, arcs), 0, tolerance=error)),
    )


def sublevel(x: ProblemInstance) -> Findings:
    """Let the best token of every input be the only one of its score (copies count as one) and let some p select them
    all. If the risk at the start is below `min_i [loss(gamma_i2) + sum over k != i of loss(gamma_k1)]/n`, gamma_i1 and
    gamma_i2 the two best scores of input i, gradient flow diverges and p_t/|p_t| converges to the max-margin direction
    p^ of the best tokens; with h = <p^, p> and nu = 1/|p^|, `|p| <= r_1 + nu (h - h_1) + (C_1/nu) log(h/h_1)`. (Any
    decreasing convex loss; ours, proof in docs/results/theorem5-plus.md.)"""
    start = x.problem.keys.zero() if x.p is None else x.p
    found = Sublevel.of(x.problem, start, x.loss)
    separable = has_solution("the best tokens are separable", found.named.solution)
    if not found.named.solution.is_optimal:
        return Findings((separable,))
    hypotheses = (
        separable,
        true("there are others", bool(found.named.solution.vector.any())),
        below("risk at the start", found.risk, found.level, strict=True, tolerance=found.rounding),
    )
    return Findings(hypotheses, _check_flow(x.problem, start, x.loss, 1e4))


def theorem5_plus(x: EmbeddingInstance) -> Findings:
    """Under Assumption 4, eta_0 >= 4 n^2 T^2 and the dimension of R.first-step-conditions (which (10) implies), with
    probability 1 - delta, p_t/|p_t| converges, and its limit is the max-margin direction of the important tokens alone:
    Theorem 5 without assuming that a limit exists, and Lemma 19 without mu. (Ours; proof in
    docs/results/theorem5-plus.md.)"""
    hypotheses = (
        *selective_conditions(x),
        above("eta_0", x.step, enough_step(x.corpus)),
        above("d, of order eta_0^4", float(x.dimension), sharp_dimension(x.corpus.size, x.step, x.delta)),
    )
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    after = x.steps[0].after
    loss = PromptObjective(after.problem()).loss
    found = Sublevel.of(after.problem(), after.prompt, loss)
    important = bool((found.named.chosen == x.corpus.important).all())
    return Findings(
        hypotheses,
        (
            true("the best tokens are the important ones", important),
            below(
                "risk after the first step, against the level",
                found.risk,
                found.level,
                strict=True,
                tolerance=found.rounding,
            ),
            *_check_flow(after.problem(), after.prompt, loss, 1e4),
        ),
    )


def _near_best(far: float) -> ProblemInstance:
    """A random problem whose best tokens are separable, from a start in their direction."""
    problem = random_problem(3, 4, 8, rng=np.random.default_rng(5))
    best = problem.scores.argmax(axis=1)
    return ProblemInstance(problem, "random n=3 T=4 d=8", p=far * limit_direction(problem, best).solution.vector)


def _embeddings(seed: int = 0, dimension: float | None = None) -> EmbeddingInstance:
    """A corpus with unequal frequencies, at the dimension of the sharp condition unless told."""
    x = EmbeddingInstance.of(4, 3, varied=True, seed=seed)
    least = float(np.ceil(sharp_dimension(x.corpus.size, x.step, x.delta)))
    return EmbeddingInstance.with_corpus(x.corpus, dimension=least if dimension is None else dimension, seed=seed)


CLAIMS = (
    Claim("R.sublevel", sublevel, "sampled",
        about="below a level of the risk, flow goes to the GMM direction from every start",
        example=lambda: _near_best(4.0),
        outside=(lambda: ProblemInstance(figure8(), "fig8", p=np.array([4.0, 0.0])),),
        unneeded={"the best tokens are separable": NO_SUBJECT, "there are others": NO_SUBJECT}),
    Claim("R.theorem5-plus", theorem5_plus, "sampled", about="Theorem 5 without assuming a limit, Lemma 19 without mu",
        example=_embeddings, outside=(lambda: _embeddings(3, 32.0),)),
)  # fmt: skip
