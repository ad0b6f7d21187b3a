"""Lemmas 3 and 5 to 7, and (18), (20), (22): the risk, what it is in the limit, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics.paths.newton import minimise
from tokenmargin.margin.graph_margin import node_vectors
from tokenmargin.norms import EPS
from tokenmargin.objective.losses import CorrelationLoss, ExponentialLoss, LogLoss
from tokenmargin.selection import attention_weights
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, equal, sampled
from tokenmargin.theory.paper_d.convexity import risk_hessian
from tokenmargin.theory.paper_d.instance import (
    NextTokenInstance,
    assumption3,
    beside_a_tie,
    decreasing_loss,
    head_of_1,
    labels_alone,
    log_loss,
    tied_pair,
    tied_pair_with_head,
    two_chains,
)

ASSUMPTION1 = "Assumption 1: largest |<c_y, e_k> - [k = y]|"
SURELY = 60.0
"""What a token that is behind by this has is less than 1e-26 of the weight."""
RISK_ERROR = 1e-6
"""Of a risk at R W_svm: ties hold to 1e-10 relative, logits are some hundreds, slopes of -log at most e^20."""


def _lemma3_hypotheses(x: NextTokenInstance) -> tuple[Slack, ...]:
    several = int((x.problem.graph.sizes > 1).sum())
    return (below("components of several tokens", several, 0), assumption3(x.embeddings, x.head), *decreasing_loss(x))


def lemma3(x: NextTokenInstance) -> Findings:
    """Without a cycle, under Assumptions 2 and 3 with a strictly decreasing loss of bounded slope, every finite W has a
    risk above `L* = mean loss(<c_y, e_y>)`; and for every W that satisfies the constraints of (Acyc-SVM), where there
    is one, L(R W) goes to L*. (At 20 points; at W_svm and four others, where the excess is below its bound.)"""
    hypotheses = _lemma3_hypotheses(x)
    if not x.has_risk:
        return Findings(hypotheses)
    label = (x.problem.index == x.problem.labels[:, None]) & x.problem.mask
    _, signs = x.objective.excess(x.points(), label.argmax(axis=1))
    above_all = sampled(above("smallest sign of L(W) - L*", float(np.min(signs)), 0, strict=True))
    if not x.graph_solution.is_optimal:
        return Findings(hypotheses, (above_all,))
    posed = x.objective.problem
    spread = float(np.ptp(posed.scores[posed.mask]))
    worst = -np.inf
    for W in (x.svm, *(_push_into_cone(x, V) for V in x.points(4))):
        size, sign = x.objective.excess(SURELY * W)
        worst = max(worst, float(size) if float(sign) > 0 else -np.inf)
    # The weight off the next token is at most T exp(-R): (46). W_svm has its margins to 1e-10.
    slope = max(float(hypotheses[-1].measured), 1e-300)
    bound = np.log(slope * max(spread, 1e-300) * posed.T) - SURELY * (1 - 1e-8)
    return Findings(hypotheses, (above_all, below(f"largest log(L(R W) - L*), R = {SURELY:g}", worst, bound + 1e-6)))


def _push_into_cone(x: NextTokenInstance, V: Float[Array, " D"]) -> Float[Array, " D"]:
    """V and enough of W_svm to satisfy every constraint."""
    if not len(x.rows_behind):
        return V
    return np.asarray(V + max(1.0, 1.0 - float((x.rows_behind @ V).min())) * x.svm)


def lemma3_repaired(x: NextTokenInstance) -> Findings:
    """As Lemma 3, where some sequence holds another token than its next one."""
    others = int((x.problem.tokens != x.problem.labels[x.problem.sequence]).sum())
    return lemma3(x).given(above("tokens other than next tokens", others, 1))


def _limit_risk(x: NextTokenInstance, W: Float[Array, " D"]) -> float:
    """`lim L(W + R W_svm)`: at an R at which everything behind has lost its weight."""
    reach = SURELY + 2 * float(np.abs(x.objective.problem.keys.logits(W)[x.problem.mask]).max())
    return float(x.objective.value(W + reach * x.svm))


def lemma5(x: NextTokenInstance) -> Findings:
    """The risk of the cyclic subdataset depends on the part of W in the cyclic subspace alone. (At 20 points.)"""
    off = 0.0
    if x.has_risk:
        off = max(abs(x.cyclic_risk(W) - x.cyclic_risk((W @ x.cyclic_basis.T) @ x.cyclic_basis)) for W in x.points())
    return Findings((), (sampled(equal("largest |L_cyc(W) - L_cyc(projection)|", off, 0, tolerance=1e-9)),))


def lemma6(x: NextTokenInstance) -> Findings:
    """Under Assumptions 1 and 2 with -log, `lim L(W + R W_svm)` over R is the risk of the cyclic subdataset, at every
    W. (At 20 points.)"""
    hypotheses = (head_of_1(x), log_loss(x))
    if not x.graph_solution.is_optimal or not x.has_risk:
        return Findings(hypotheses)
    off = max(abs(_limit_risk(x, W) - x.cyclic_risk(W)) for W in x.points())
    return Findings(hypotheses, (sampled(equal("largest |lim L - L_cyc|", off, 0, tolerance=RISK_ERROR)),))


@dataclass(frozen=True, eq=False)
class CyclicMinimum:
    """The lowest point found of the cyclic risk on the cyclic subspace.

    - `point`, `risk`: where, and how low.
    - `far`: the lowest risk seen where logits are apart by 60 along a ray; infinite without a cyclic subspace.
    - `rays`: whether these rays are all there are: a line has two.
    """

    point: Float[Array, " D"]
    risk: float
    far: float
    rays: bool

    @property
    def inside(self) -> bool:
        """Whether the minimum is lower than what is seen far out, so that it is not at infinity."""
        return self.risk < self.far - 1e-9 * max(abs(self.risk), 1.0)


def cyclic_minimum(x: NextTokenInstance) -> CyclicMinimum:
    """Newton's method on the cyclic subspace from zero and from eight random points, and 64 rays (two on a line)."""
    objective, basis = x.cyclic_objective, x.cyclic_basis
    if objective is None or not len(basis):
        return CyclicMinimum(
            np.zeros(x.objective.dimension), x.cyclic_risk(np.zeros(x.objective.dimension)), np.inf, True
        )
    # In coordinates in which logits of order one need steps of order one.
    unit = basis / max(float(np.abs(objective.problem.keys.logits(basis)[..., objective.problem.mask]).max()), 1e-300)

    def landscape(y: Float[Array, " s"]) -> tuple[float, Array, Array]:
        W = y @ unit
        return float(objective.value(W)), unit @ objective.gradient(W), unit @ risk_hessian(objective, W) @ unit.T

    rng = x.rng
    starts = np.concatenate([np.zeros((1, len(basis))), rng.standard_normal((8, len(basis)))])
    with np.errstate(over="ignore"):  # where the risk falls for ever, steps grow beyond doubles
        found = min((minimise(landscape, start, max_iterations=100) for start in starts), key=lambda one: one.value)
    rays = np.array([[1.0], [-1.0]]) if len(basis) == 1 else rng.standard_normal((64, len(basis)))
    rows = rays / np.linalg.norm(rays, axis=1, keepdims=True) @ unit
    share = float(x.problem.cyclic.mean())
    far = min(float(objective.value(SURELY * row)) for row in rows)
    return CyclicMinimum(found.point @ unit, share * found.value, share * far, len(basis) == 1)


def _gap_sign(x: NextTokenInstance, W: Float[Array, " D"]) -> float:
    """Sign of `L(W) - |I^c| loss(1) / n - L_cyc(W)`: positive where a token strictly behind has weight."""
    logits = np.where(x.problem.mask, x.objective.problem.keys.logits(W), -np.inf)
    behind = np.where(x.problem.mask & ~x.tied, logits, -np.inf).max(axis=1)
    held = x.cyclic_outputs(W) > 0
    return float(((behind > -np.inf) & held).any())


def lemma7(x: NextTokenInstance) -> Findings:
    """Under Assumptions 1 and 2 with a strictly decreasing loss, where some token is left out of the cyclic subdataset:
    (13) every finite W has a risk above `|I^c| loss(1) / n + L_cyc(W)`; (14a) that is the infimum over all W' across
    the cyclic subspace of L(W' + W), and the limit of L(W + R W_svm); (14b) so the infimum over W is that of the cyclic
    subdataset, and |I^c| loss(1) / n. (At 20 points, each with 5 such W'; (14b) with -log, W_fin certified.)"""
    left_out = int((~x.problem.with_label).sum())
    hypotheses = (head_of_1(x), decreasing_loss(x)[0], above("tokens left out of the cyclic subdataset", left_out, 1))
    if not x.graph_solution.is_optimal or not x.has_risk:
        return Findings(hypotheses)
    sign, lowest, off = np.inf, np.inf, 0.0
    for W in x.points():
        floor = x.settled_risk() + x.cyclic_risk(W)
        sign = min(sign, _gap_sign(x, W))
        others = W + x.across_cyclic(x.points(5))
        lowest = min(lowest, float(x.objective.value(others).min()) - floor)
        off = max(off, abs(_limit_risk(x, W) - floor))
    slacks = [
        sampled(above("(13): smallest sign of the difference", sign, 0, strict=True)),
        sampled(above("(14a): smallest L(W' + W) less the infimum", lowest, 0, tolerance=1e-9)),
        sampled(equal("(14a): largest difference of the limit", off, 0, tolerance=RISK_ERROR)),
    ]
    if isinstance(x.loss, LogLoss):
        best = abs(_limit_risk(x, x.limit.finite.point) - x.limit.finite.risk)
        slacks.append(equal("(14b): difference of lim L(W_fin + R W_svm)", best, 0, tolerance=RISK_ERROR))
    return Findings(hypotheses, tuple(slacks))


def equation18(x: NextTokenInstance) -> Findings:
    """Under Assumptions 1 and 2 with -log the gradient is `mean_i sum over t with x_t not y of s_it z (x_it - e_y)'`.
    (Against the general gradient, at 20 points.)"""
    hypotheses = (head_of_1(x), log_loss(x))
    if not x.has_risk:
        return Findings(hypotheses)
    posed, vectors, problem = x.objective.problem, node_vectors(x.problem), x.problem
    rows = vectors[problem.node] - vectors[problem.label_node[problem.sequence]]
    worst = 0.0
    for W in x.points():
        weights = attention_weights(posed.keys, W)[posed.mask]
        apart = x.objective.gradient(W) - weights @ rows / problem.n
        worst = max(worst, float(np.abs(apart).max()))
    slack = equal(
        "largest difference of an entry, over the longest key", worst / (x.longest or 1.0), 0, tolerance=1e-12
    )
    return Findings(hypotheses, (sampled(slack),))


def _largest_norms(x: NextTokenInstance) -> tuple[float, float]:
    """`max_i |X_i| |z_i|` with spectral norms, and M^2."""
    lengths = np.linalg.norm(x.embeddings, axis=1)
    rows = zip(x.problem.index, x.problem.mask, x.problem.last.tolist(), strict=True)
    spectral = max(float(np.linalg.norm(x.embeddings[row[here]], 2)) * float(lengths[z]) for row, here, z in rows)
    return spectral, float(lengths.max() ** 2)


def equation20(x: NextTokenInstance) -> Findings:
    """For any W and V: `|softmax(X W z) - softmax(X V z)| <= |X (W - V) z| <= M^2 |W - V|`, M being the longest
    embedding. (The first at 20 pairs; the second exactly, by the spectral norm of X.)"""
    posed, worst = x.objective.problem, -np.inf
    for W, V in zip(x.points(), x.points()[::-1], strict=True):
        apart = attention_weights(posed.keys, W) - attention_weights(posed.keys, V)
        moved = np.where(posed.mask, posed.keys.logits(W - V), 0.0)
        worst = max(worst, float((np.linalg.norm(apart, axis=1) - np.linalg.norm(moved, axis=1)).max()))
    spectral, squared = _largest_norms(x)
    room = 64 * EPS * squared * x.problem.T
    return Findings(
        (),
        (
            sampled(below("weights move by no more than logits", worst, 0, tolerance=1e-12)),
            below("largest |X (W - V) z| / |W - V|", spectral, squared, tolerance=room),
        ),
    )


def equation22(x: NextTokenInstance) -> Findings:
    """Under Assumptions 1 and 2 with -log the gradient is Lipschitz with `L = 2 M^4 sqrt(T_max)`, and weights with M^2.
    (Differences between 20 pairs of points.)"""
    hypotheses = (head_of_1(x), log_loss(x))
    if not x.has_risk:
        return Findings(hypotheses)
    posed, constant, steep, moved = x.objective.problem, x.smoothness(), 0.0, 0.0
    squared = float(np.linalg.norm(x.embeddings, axis=1).max() ** 2) or 1.0
    points = np.concatenate([x.points(), x.points()[:1] + x.points() * 1e-3])
    for W, V in pairwise(points):
        length = float(np.linalg.norm(W - V)) or 1.0
        steep = max(steep, float(np.linalg.norm(x.objective.gradient(W) - x.objective.gradient(V))) / length)
        apart = np.linalg.norm(attention_weights(posed.keys, W) - attention_weights(posed.keys, V), axis=1)
        moved = max(moved, float(apart.max()) / length)
    return Findings(
        hypotheses,
        (
            sampled(below("largest |dL(W) - dL(V)| / |W - V|, over L", steep / (constant or 1.0), 1, tolerance=1e-9)),
            sampled(below("largest difference of weights / |W - V|, over M^2", moved / squared, 1, tolerance=1e-9)),
        ),
    )


def _a_ring_and_a_label() -> NextTokenInstance:
    """0 and 1 tie; beside them a sequence of nothing but its next token."""
    return NextTokenInstance.of([[1, 0], [1, 0], [0]], [1, 0, 0], np.eye(2), "a tie, and a next token alone")


def _steep_scores() -> NextTokenInstance:
    """A head of large scores, without -log: the gradient is steeper than (22) allows."""
    return NextTokenInstance.of([[1, 0]], [1], np.eye(2), "correlation loss", CorrelationLoss(), head=30 * np.eye(2))


def _other_best() -> NextTokenInstance:
    """A head that scores 0 above 1 where 1 comes next."""
    head = np.array([[1.0, 0.0], [2.0, 1.0]])
    return NextTokenInstance.of([[1, 0]], [1], np.eye(2), "another token scores best", ExponentialLoss(), head=head)


CLAIMS = (
    Claim("D.lemma3", lemma3, "sampled", about="without cycles the risk has infimum L*, reached in the limit alone",
        example=lambda: two_chains(ExponentialLoss()), outside=(lambda: tied_pair(ExponentialLoss()), _other_best),
        refutation=lambda: labels_alone(ExponentialLoss()),
        note="Where sequences hold nothing but their next token, every W has the risk L*: the strict inequality of the "
        "proof needs another token in some sequence (`D.lemma3-repaired`)."),
    Claim("D.lemma3-repaired", lemma3_repaired, "sampled", about="... where some sequence holds another token",
        example=lambda: two_chains(ExponentialLoss()),
        outside=(lambda: tied_pair(ExponentialLoss()), lambda: labels_alone(ExponentialLoss()), _other_best)),
    Claim("D.lemma5", lemma5, "sampled", about="the cyclic risk depends on the projection of W alone",
        example=tied_pair,
        unconditional="logits of tied tokens differ by inner products with the cyclic subspace, whatever the data."),
    Claim("D.lemma6", lemma6, "sampled", about="the limit of the risk along W_svm is the cyclic risk",
        example=tied_pair,
        outside=(lambda: beside_a_tie(ExponentialLoss()), lambda: beside_a_tie(head=2 * np.eye(5)))),
    Claim("D.lemma7", lemma7, "sampled", about="(13), (14): the risk is above what tied tokens leave, and goes there",
        example=tied_pair, outside=(_a_ring_and_a_label, lambda: beside_a_tie(head=2 * np.eye(5))),
        note="Read with Definition 3: a sequence of nothing but its next token stays in the cyclic subdataset. By (5) "
        "it does not, and (13) is an equation where such sequences are all that is left out."),
    Claim("D.equation18", equation18, "exact", about="(18): the gradient with -log", example=tied_pair,
        outside=(tied_pair_with_head, lambda: tied_pair(CorrelationLoss()))),
    Claim("D.equation20", equation20, "exact", about="(20): weights move by at most M^2 |W - V|, step by step",
        example=lambda: NextTokenInstance.of([[1, 0]], [1], np.eye(2), "two unit vectors"),
        unconditional="it is about softmax alone.",
        refutation=lambda: NextTokenInstance.of([[1, 1, 0]], [1], np.eye(2), "two unit vectors, one twice"),
        note="|X (W - V) z| can be up to sqrt(T) M^2 |W - V|: the second step drops the root. From end to end it is "
        "true, and so is (22), which gains it back: softmax moves by the spread of logits (`D.equation22`)."),
    Claim("D.equation22", equation22, "sampled", about="(22): the gradient is Lipschitz with 2 M^4 sqrt(T_max)",
        example=tied_pair, outside=(_steep_scores,),
        note="M^4 is enough: the Hessian is a mean of covariances of z x', whose variance along a unit direction is at "
        "most M^4."),
)  # fmt: skip
