"""Theorems 1, 2 and 5 and Lemmas 12 to 15: gradient descent with -log goes to `R W_svm + W_fin`."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.special import logsumexp, softmax

from tokenmargin.limits.tied_choice import tied_choice
from tokenmargin.margin.graph_margin import svm_subspace, unit_rows
from tokenmargin.norms import EPS
from tokenmargin.objective.losses import CorrelationLoss, LogLoss
from tokenmargin.selection import angle, attention_weights
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, sampled, searched, seen, true
from tokenmargin.theory.evidence import falls_to_zero
from tokenmargin.theory.paper_d.instance import (
    NextTokenInstance,
    beside_a_tie,
    head_of_1,
    log_loss,
    one_ring,
    some_order,
    tied_pair,
    twice_forced,
)
from tokenmargin.theory.paper_d.risk import ASSUMPTION1, cyclic_minimum

FLOW = "following descent itself: its norm grows like the logarithm of the number of steps"
NOT_INDEPENDENT = (
    "Where embeddings are dependent and (Graph-SVM) is feasible all the same, W still goes there; where it is not, "
    "there is no W_svm for the statement to speak of (then training goes to `next_token_limit`, with further ties)."
)
STEPS = 200
"""Of gradient descent, where a statement is about its steps."""
DRAWN = 10
"""Directions drawn at random, where others are tried beside them."""
PIS = (0.1, 1.0)
"""Values of pi at which Lemma 15 is tried."""


def _goes_to_zero(name: str, value: float) -> Slack:
    return seen(below(name, value, 1e-6), FLOW)


def _step_size(x: NextTokenInstance) -> Slack:
    return below("step, over 1/L", x.factor, 1)


def _descent_points(x: NextTokenInstance, steps: int) -> Float[Array, "steps D"]:
    """Gradient descent with the instance's step."""
    eta, W = x.factor / (x.smoothness() or 1.0), np.zeros(x.objective.dimension) if x.start is None else x.start
    path = [W]
    for _ in range(steps):
        path.append(path[-1] - eta * x.objective.gradient(path[-1]))
    return np.stack(path)


def theorem1(x: NextTokenInstance) -> Findings:
    """(Informal.) Descent takes W to `C W_hard + W_soft`: as C grows, C W_hard gives all the weight to the tokens of
    the component that nothing in the sequence is ahead of (hard retrieval), and W_soft shares it among them, none of
    them without some (soft composition). (Weights at the end of gradient flow, |W| = 10^5.)"""
    hypotheses = (head_of_1(x), log_loss(x))
    if not x.has_risk:
        return Findings(hypotheses)
    posed = x.objective.problem
    weights = np.where(posed.mask, attention_weights(posed.keys, x.flow_limit.point), 0.0)
    outside = float(np.where(x.tied, 0.0, weights).sum(axis=1).max())
    soft = softmax(np.where(x.tied, posed.keys.logits(x.limit.finite.point), -np.inf), axis=1)
    off = float(np.abs(np.where(x.tied, weights - soft, 0.0)).max())
    return Findings(
        hypotheses,
        (
            _goes_to_zero("largest weight outside that component", outside),
            _goes_to_zero("largest difference of a weight inside it from that of W_soft", off),
            above("smallest weight of W_soft inside it", float(soft[x.tied].min()), 0, strict=True),
        ),
    )


def _bounded_descent(x: NextTokenInstance) -> float:
    """Where nothing is ordered, descent with a step of at most 1/L never leaves the ball around the minimum that it
    starts on the edge of, the risk being convex and smooth: `|W| <= |W*| + |W(0) - W*|`."""
    start = np.zeros(x.objective.dimension) if x.start is None else x.start
    best = x.limit.finite.point + x.across_cyclic(start)
    return float(np.linalg.norm(best) + np.linalg.norm(start - best) + x.limit.finite.distance)


def _projection_converges(x: NextTokenInstance) -> Slack:
    if x.factor <= 1:
        return _goes_to_zero(
            "distance of the projection to W_fin", float(np.linalg.norm(_from_fin(x, x.flow_limit.point)))
        )
    late = np.linalg.norm([_from_fin(x, W) for W in _descent_points(x, STEPS)[-2:]], axis=1)
    return _goes_to_zero(f"distance of the projection to W_fin, last two of {STEPS} steps", float(late.max()))


def _from_fin(x: NextTokenInstance, W: Float[Array, " D"]) -> Float[Array, " s"]:
    return np.asarray(x.cyclic_basis @ (W - x.limit.finite.point))


def _direction_converges(x: NextTokenInstance) -> tuple[Slack, ...]:
    path, keys = x.flow_limit.path, x.objective.problem.keys
    if path.stop != "norm":
        return (seen(below("angle to W_svm", np.inf, 0), FLOW),)
    ends = tuple(float(angle(keys, path.at_norm(norm), x.svm)) for norm in (x.norm / 10, x.norm * (1 - 1e-9)))
    grown = seen(above("|W| at the end of the flow", float(np.linalg.norm(path.prompt)), x.norm / 2), FLOW)
    return (grown, *falls_to_zero("W_svm", (ends[0], ends[1]), norm=x.norm))


def theorem2_repaired(x: NextTokenInstance) -> Findings:
    """Under Assumptions 1 and 2 with -log, from any start with a constant step of at most 1/L, descent has its
    projection onto the cyclic subspace converge to W_fin, (2). Where W_svm is not zero, |W| grows without bound and its
    direction converges to that of W_svm; where it is zero, the part across the cyclic subspace stays as it was.
    (Gradient flow to |W| = 10^5, where rounding moves a projection by eps |W|; 200 steps for a step beyond 1/L.)"""
    hypotheses = (head_of_1(x), log_loss(x), _step_size(x))
    if not x.has_risk or not x.graph_solution.is_optimal:
        return Findings(hypotheses)
    if some_order(x).holds:
        return Findings(hypotheses, (_projection_converges(x), *_direction_converges(x)))
    gradients = x.objective.gradient(x.points())
    left = float(np.abs(x.across_cyclic(gradients)).max()) / (x.longest or 1.0)
    still = sampled(below("largest entry of a gradient across the cyclic subspace", left, 0, tolerance=1e-9))
    return Findings(hypotheses, (_projection_converges(x), still))


def theorem2(x: NextTokenInstance) -> Findings:
    """As `D.theorem2-repaired`, with |W| growing without bound whatever W_svm is. (Where W_svm = 0: the bound of a ball
    that descent never leaves.)"""
    found = theorem2_repaired(x)
    if not found.conclusion or some_order(x).holds:
        return found
    limit = above("bound on |W(t)| for all t", _bounded_descent(x), np.inf)
    return Findings(found.hypotheses, (*found.conclusion, limit if x.factor <= 1 else seen(limit, FLOW)))


def theorem5_repaired(x: NextTokenInstance) -> Findings:
    """In the setting of Theorem 2 with W_svm not zero, the gradient is zero at no finite W, and descent with a step of
    at most 1/L has its part in the SVM subspace grow without bound. (W_svm is a direction of descent everywhere, since
    every margin is at least 1; gradient flow to |W| = 10^5.)"""
    return theorem5(x).given(some_order(x))


def theorem5(x: NextTokenInstance) -> Findings:
    """As `D.theorem5-repaired`, whatever W_svm is. (Where W_svm = 0, W_fin is stationary: its gradient proves it.)"""
    hypotheses = (head_of_1(x), log_loss(x), _step_size(x))
    if not x.has_risk or not x.graph_solution.is_optimal:
        return Findings(hypotheses)
    margin = float((x.rows_behind @ x.svm).min()) if len(x.rows_behind) else 0.0
    steepest = above("smallest margin of W_svm, so -<dL, W_svm> > 0", margin, 0.5)
    if not len(x.rows_behind) and not np.isfinite(x.limit.finite.distance):
        steepest = seen(steepest)
    inside, end = svm_subspace(x.problem), x.flow_limit.point
    far = seen(above("part of W in the SVM subspace, at the end of the flow",
                     float(np.linalg.norm(inside @ end)) if len(inside) else 0.0, x.norm / 2), FLOW)  # fmt: skip
    return Findings(hypotheses, (steepest, far))


def lemma12(x: NextTokenInstance) -> Findings:
    """With -log under Assumptions 1 and 2, descent from any start with a step `eta <= 1/L`, L of (22), has `L(W(t + 1))
    - L(W(t)) <= -eta |dL(W(t))|^2 / 2` at every step, so the squared gradients have a finite sum and go to zero. (200
    steps from two starts; the sum is at most 2 L(W(0)) / eta, the risk being positive.)"""
    hypotheses = (head_of_1(x), log_loss(x), _step_size(x))
    if not x.has_risk:
        return Findings(hypotheses)
    eta, worst, total = x.factor / (x.smoothness() or 1.0), -np.inf, -np.inf
    for start in (np.zeros(x.objective.dimension) if x.start is None else x.start, x.points(1)[0]):
        W, squares = start, 0.0
        for _ in range(STEPS):
            gradient = x.objective.gradient(W)
            after = W - eta * gradient
            squares += float(gradient @ gradient)
            rise = float(x.objective.value(after) - x.objective.value(W)) + eta / 2 * float(gradient @ gradient)
            worst, W = max(worst, rise), after
        total = max(total, squares * eta / 2 - float(x.objective.value(start)))
    known = 64 * EPS * (1 + float(np.abs(x.objective.value(x.points(1)[0]))))
    return Findings(
        hypotheses,
        (
            sampled(below("largest L(W(t + 1)) - L(W(t)) + eta |dL|^2 / 2", worst, 0, tolerance=known)),
            sampled(below("eta/2 times the sum of |dL|^2, less L(W(0))", total, 0, tolerance=known * STEPS)),
        ),
    )


def lemma13(x: NextTokenInstance) -> Findings:
    """With -log under Assumptions 1 and 2, where W_svm is not zero, `<dL(W), W_svm> < 0` at every finite W, of dL and
    of its part in the SVM subspace alike. (At 20 points, and by the margins, whose mean it is.)"""
    hypotheses = (head_of_1(x), log_loss(x), some_order(x))
    if not x.has_direction:
        return Findings(hypotheses)
    inside, length = svm_subspace(x.problem), float(np.linalg.norm(x.svm))
    steepest = -np.inf
    for W in x.points():
        gradient = x.objective.gradient(W)
        size = float(np.linalg.norm(inside @ gradient)) or 1.0
        steepest = max(steepest, float((inside @ gradient) @ (inside @ x.svm)) / size / length)
    slope = below("largest cosine of W_svm and the gradient's part in the SVM subspace", steepest, 0, strict=True)
    margin = above("smallest margin of W_svm", float((x.rows_behind @ x.svm).min()), 1, tolerance=1e-8)
    return Findings(hypotheses, (sampled(slope) if steepest > 1e-6 else seen(slope, "more digits"), margin))


def lemma14(x: NextTokenInstance) -> Findings:
    """In the setting of Theorem 2, W_fin is unique and finite. (With -log the minimum is bracketed: its distance is
    bounded by gradient and least curvature. With other losses one is searched for within logits of 30.)"""
    hypotheses = (head_of_1(x), log_loss(x))
    if not x.has_risk:
        return Findings(hypotheses)
    if isinstance(x.loss, LogLoss) and x.head is None:
        soft = tied_choice(x.problem, x.problem.graph).minimum()
        found = below(
            "proven distance of the minimum from the point found, in its unit", soft.distance / soft.unit, 1e-6
        )
        return Findings(hypotheses, (searched(found),))
    return Findings(hypotheses, (searched(true("a finite minimum was found", cyclic_minimum(x).inside)),))


def _log_excess(x: NextTokenInstance, W: Float[Array, " D"]) -> float:
    """`log(L(W) - L_cyc(W))` with -log: the mean over the sequences of `log(1 + weights behind / weights tied)`."""
    logits = np.where(x.problem.mask, x.objective.problem.keys.logits(W), -np.inf)
    away = x.problem.mask & ~x.tied
    some = away.any(axis=1)
    ratio = logsumexp(np.where(away, logits, -np.inf)[some], axis=1) - logsumexp(
        np.where(x.tied, logits, -np.inf)[some], axis=1
    )
    # log(log(1 + e^r)) is r - e^r / 2 and a term of e^2r below r = -20.
    small = np.minimum(ratio, -20.0)
    sizes = np.where(ratio < -20, small, np.log(np.logaddexp(0.0, np.maximum(ratio, -20.0))))
    return float(logsumexp(sizes) - np.log(x.problem.n))


def _radius_of_31(x: NextTokenInstance, part: Float[Array, " D"], pi: float) -> float:
    """R_pi of (31) for a projection, with the worst i and j, and d_i where the proof's second term prints d_j."""
    logits, theta = x.objective.problem.keys.logits(part), 1 / float(np.linalg.norm(x.svm))
    away = x.problem.mask & ~x.tied
    some = away.any(axis=1)
    d = logsumexp(np.where(x.tied, logits, -np.inf)[some], axis=1)
    b = float(np.abs(logits[away]).max())
    first = (np.log(2 * x.problem.n * x.problem.T) + float(np.ptp(d)) + 2 * b) / (pi * theta)
    return max(first, -(float(d.min()) + b) / theta, 1e-9)


def _tried_directions(x: NextTokenInstance) -> Float[Array, "k D"]:
    """Unit directions across the cyclic subspace: at random, near W_svm, and the best for single sequences."""
    inside = svm_subspace(x.problem)
    drawn = unit_rows(x.rng.standard_normal((DRAWN, len(inside))) @ inside)
    svm = x.svm / np.linalg.norm(x.svm)
    owner = x.problem.sequence[~x.problem.with_label]
    single = np.stack([x.across_cyclic(x.rows_behind[owner == i].sum(axis=0)) for i in np.unique(owner)])
    rows = np.concatenate([drawn, svm + 0.1 * drawn, svm + 1e-3 * drawn, single])
    return unit_rows(rows[np.linalg.norm(rows, axis=1) > 0])


def lemma15_repaired(x: NextTokenInstance) -> Findings:
    """In the setting of Theorem 2 with W_svm not zero: for any pi > 0 and any projection onto the cyclic subspace there
    is R_pi, such that no W with this projection whose part across is longer than R_pi has a lower risk than `(1 + pi)
    |part across| W_svm / |W_svm|` and the projection. (R_pi by (31); pi = 0.1 and 1, three projections, 30 and more
    directions at 1.01 and 10 R_pi, as logarithms of the excess.)"""
    hypotheses = (head_of_1(x), log_loss(x), some_order(x))
    if not x.has_direction:
        return Findings(hypotheses)
    unit, worst = x.svm / np.linalg.norm(x.svm), np.inf
    for pi in PIS:
        for part in (
            np.zeros_like(x.svm),
            *((W @ x.cyclic_basis.T) @ x.cyclic_basis for W in (x.limit.finite.point, x.points(1)[0])),
        ):
            for far in (1.01, 10.0):
                length = far * _radius_of_31(x, part, pi)
                compared = _log_excess(x, (1 + pi) * length * unit + part)
                tried = min(_log_excess(x, length * u + part) for u in _tried_directions(x))
                # Logits of size |W| are known to eps of it.
                worst = min(worst, tried - compared + 64 * EPS * length * (1 + pi) * x.longest)
    return Findings(hypotheses, (sampled(above("smallest lead of W_svm in log excess risk", worst, 0)),))


def _slope_at_infinity(x: NextTokenInstance, W: Float[Array, " D"]) -> float:
    """`lim L(t W) / t`: of each sequence, by how much the largest logit is ahead of the next token's."""
    logits = np.where(x.problem.mask, x.objective.problem.keys.logits(W), -np.inf)
    label = (x.problem.index == x.problem.labels[:, None]) & x.problem.mask
    own = np.where(label, logits, -np.inf).max(axis=1)
    return float((logits.max(axis=1) - own).mean())


def lemma15(x: NextTokenInstance) -> Findings:
    """As printed: R_pi is chosen before W, and serves for all projections of finite length. (As
    `D.lemma15-repaired`, and along rays on which the projection grows with the part across it: where `lim L(t W) / t`
    is lower than that of the comparison, no R_pi serves. pi = 0.1.)"""
    found = lemma15_repaired(x)
    if not found.conclusion or not len(x.cyclic_basis):
        return found
    unit, lead = x.svm / np.linalg.norm(x.svm), np.inf
    for u in _tried_directions(x):
        for V in (*x.cyclic_basis, *-x.cyclic_basis):
            for size in (1.0, 4.0):
                grown = size * V
                lead = min(lead, _slope_at_infinity(x, u + grown) - _slope_at_infinity(x, (1 + PIS[0]) * unit + grown))
    slack = above("smallest lead of W_svm in L(t W) / t, as t grows", lead / x.longest, 0, tolerance=1e-9)
    return Findings(found.hypotheses, (*found.conclusion, sampled(slack)))


def _one_tie() -> NextTokenInstance:
    """After a 0 the tokens 1 and 2 tie ahead of 0 in every sequence: one order, so W_svm is best for each."""
    return NextTokenInstance.of([[1, 2, 0], [1, 2, 0]], [1, 2], np.eye(3), "one tie, one order")


BEYOND = "With longer steps descent may still grow, or oscillate, as `D.theorem2-repaired` shows around W_fin."
SAME = (
    "Descent on other losses selects tokens of its own, often the same; no instance that breaks this alone is shipped."
)
CLAIMS = (
    Claim("D.theorem1", theorem1, "sampled", about="informal: hard retrieval, soft composition",
        example=tied_pair, outside=(twice_forced, lambda: tied_pair(CorrelationLoss())),
        note="Read through Theorem 2, whose hypotheses are asked for."),
    Claim("D.theorem2", theorem2, "sampled", about="descent: projection to W_fin, direction of W_svm, |W| unbounded",
        example=tied_pair, outside=(lambda: tied_pair(CorrelationLoss()),), refutation=one_ring,
        unneeded={ASSUMPTION1: NOT_INDEPENDENT},
        note="Where all tokens of a graph are on one cycle, W_svm = 0 and W converges: its projection does, the rest "
        "stays. So |W| grows only where W_svm is not zero (`D.theorem2-repaired`). The step is read as in Lemma 12: "
        "with large ones descent oscillates around W_fin."),
    Claim("D.theorem2-repaired", theorem2_repaired, "sampled", about="... |W| unbounded where W_svm is not zero",
        example=tied_pair, outside=(lambda: tied_pair(CorrelationLoss()), lambda: one_ring(300.0)),
        unneeded={ASSUMPTION1: NOT_INDEPENDENT}),
    Claim("D.theorem5", theorem5, "sampled", about="no stationary W; the part in the SVM subspace grows without bound",
        example=tied_pair, refutation=one_ring,
        unneeded={ASSUMPTION1: NOT_INDEPENDENT, "the loss is -log": SAME, "step, over 1/L": BEYOND},
        note="Where W_svm = 0, W_fin is stationary, and the SVM subspace is zero: Lemma 13, which the proof uses, asks "
        "for W_svm not zero (`D.theorem5-repaired`)."),
    Claim("D.theorem5-repaired", theorem5_repaired, "sampled", about="... where W_svm is not zero",
        example=tied_pair, outside=(one_ring,),
        unneeded={ASSUMPTION1: NOT_INDEPENDENT, "the loss is -log": SAME, "step, over 1/L": BEYOND}),
    Claim("D.lemma12", lemma12, "sampled", about="descent lemma: every step of at most 1/L lowers the risk",
        example=tied_pair, outside=(lambda: one_ring(300.0),),
        unneeded={ASSUMPTION1: "The risk is as smooth with dependent embeddings."}),
    Claim("D.lemma13", lemma13, "sampled", about="W_svm is a direction of descent everywhere", example=tied_pair,
        unneeded={"pairs of components in order": NO_SUBJECT, ASSUMPTION1: NOT_INDEPENDENT,
            "the loss is -log": "Other falling losses of these scores fall along W_svm as well."}),
    Claim("D.lemma14", lemma14, "bounded", about="W_fin is unique and finite", example=tied_pair,
        outside=(lambda: tied_pair(CorrelationLoss()),),
        unneeded={ASSUMPTION1: "A direction of the cyclic subspace that moves no difference of tied logits is zero, "
            "and every other one runs against some edge of a cycle: independent or not."}),
    Claim("D.lemma15", lemma15, "sampled", about="far out nothing has a lower risk than W_svm, for all projections",
        example=_one_tie, refutation=beside_a_tie,
        unneeded={"pairs of components in order": NO_SUBJECT, ASSUMPTION1: NOT_INDEPENDENT, "the loss is -log": SAME},
        note="R_pi is printed before W; the proof's, (31), depends on the projection of W, and no R_pi serves for all: "
        "a projection that grows with R can make one sequence matter more than the rest, and its own best direction is "
        "then better than W_svm. Theorem 2 needs it for bounded projections, for which it is true "
        "(`D.lemma15-repaired`)."),
    Claim("D.lemma15-repaired", lemma15_repaired, "sampled", about="... R_pi depending on the projection",
        example=tied_pair,
        unneeded={"pairs of components in order": NO_SUBJECT, ASSUMPTION1: NOT_INDEPENDENT, "the loss is -log": SAME},
        note="The second term of (31) prints d_j where the step before needs d_i; the check takes the worst of both."),
)  # fmt: skip
