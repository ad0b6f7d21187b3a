"""Theorems 3 and 4 and Lemma 16: regularisation paths, with losses other than -log.

How the excess risk falls along a ray tells where a path goes. A sequence whose best output is g loses about
`exp(-k m)` of it, m being the smallest margin of its tokens over those behind, where the loss leaves its value at g
like the k-th power: k = 1 where its slope there is not zero. So the path goes to the direction that maximises the least
`k m` over all sequences (any other loses by a factor that grows exponentially in R), a max-margin problem that is
solved and certified. Where all k are 1, that is W_svm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics import regularisation_path
from tokenmargin.margin import solve
from tokenmargin.margin.constraints import row_constraints
from tokenmargin.margin.graph_margin import svm_subspace
from tokenmargin.objective.losses import CorrelationLoss, ExponentialLoss
from tokenmargin.selection import angle
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, below, sampled, seen, true
from tokenmargin.theory.paper_d.instance import (
    FLAT,
    FlatLoss,
    NextTokenInstance,
    assumption3,
    beside_a_tie,
    decreasing_loss,
    feasible,
    head_of_1,
    nonzero_slope,
    some_order,
    tied_pair,
    two_chains,
)
from tokenmargin.theory.paper_d.risk import cyclic_minimum

FARTHER = "larger balls, in more digits"
RADII = (6.0, 12.0)
"""Radii of the balls searched, in units of |W_svm|: excess risks of e^-6 and e^-12 and more."""
STARTS = 4


def _powers_of_gap(x: NextTokenInstance, slope: Float[Array, " n"], outputs: Float[Array, " n"]) -> Float[Array, " n"]:
    """With what power of the gap the loss leaves its value at each output: 1 where its slope is not zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        near, nearer = (x.loss.log_excess(outputs, np.full_like(outputs, gap)) for gap in (-8.0, -12.0))
    return np.where(slope > FLAT, 1.0, (near - nearer) / 4)


def _fall_ratio(x: NextTokenInstance, part: Float[Array, " D"]) -> Slack:
    """How much faster the excess risk can fall than along W_svm: the ratio of the exponents, 1 where W_svm is best."""
    outputs = x.cyclic_outputs(part)
    with np.errstate(divide="ignore"):
        slope = np.exp(x.loss.log_slope(outputs))
    orders = _powers_of_gap(x, slope, outputs)[x.problem.sequence[~x.problem.with_label]]
    inside = svm_subspace(x.problem)
    rows = (x.rows_behind @ inside.T) * orders[:, None]
    best = solve(row_constraints(rows))
    along = inside @ x.svm
    rates = [float((rows @ u).min()) / float(np.linalg.norm(u)) for u in (best.vector, along)]
    # Both are known to the residuals of certificates, 1e-10.
    found = below("best exponent of the excess risk, over that along W_svm", max(rates) / rates[1], 1, tolerance=1e-7)
    unknown = ((slope <= FLAT) & ~(x.has_fixed_output & (slope == 0))).any()  # zero, or not, by the rounding of a score
    return seen(found, "scores in more digits") if unknown else found


@dataclass(frozen=True, eq=False)
class _SearchedMinima:
    """The lowest minimum found over each of two balls: its angle to W_svm, and its projection at the larger one."""

    angles: tuple[float, float]
    projection: Float[Array, " s"]


def _search_minima(x: NextTokenInstance, part: Float[Array, " D"]) -> _SearchedMinima:
    length = float(np.linalg.norm(x.svm))
    radii = [c * length + float(np.linalg.norm(part)) for c in RADII]
    path = regularisation_path(x.objective, radii, rng=x.rng, starts=STARTS, directions=np.stack([x.svm, x.svm + part]))
    if not path.branches:  # no start settled
        return _SearchedMinima((np.inf, np.inf), np.full(len(x.cyclic_basis), np.nan))
    keys = x.objective.problem.keys
    first, last = (float(angle(keys, point, x.svm)) for point in path.points)
    return _SearchedMinima((first, last), x.cyclic_basis @ path.points[-1])


def _nears_direction(found: _SearchedMinima) -> Slack:
    """Seen by search: an angle that falls like one over the radius is halved."""
    first, last = found.angles
    name = f"angle to W_svm at {RADII[1]:g}|W_svm|, over that at {RADII[0]:g}|W_svm|, or 1e-3"
    return seen(below(name, last if last < 1e-3 else last / max(first, 1e-300), 0.85), FARTHER)


def theorem3(x: NextTokenInstance) -> Findings:
    """Under Assumptions 1 and 2, with a strictly decreasing loss of bounded slope, W_svm not zero and a bounded set of
    cyclic components, the minimisers over |W| <= R converge in direction to W_svm as R grows, and their projections to
    the set of cyclic components. (By the exponents of the excess risk; and the lowest minimum found over two balls.)"""
    low = cyclic_minimum(x)
    bounded = true("the set of cyclic components is bounded", low.inside)
    hypotheses = (head_of_1(x), *decreasing_loss(x), some_order(x), bounded if low.rays else sampled(bounded))
    if not x.has_direction:
        return Findings(hypotheses)
    if not low.inside:
        return Findings(hypotheses, (seen(true("the projection stays in a bounded set", False)),))
    found = _search_minima(x, low.point)
    off = float(np.linalg.norm(found.projection - x.cyclic_basis @ low.point)) * x.longest
    near = seen(below("distance of the projection to the cyclic component, in logits", off, 1e-2), FARTHER)
    return Findings(hypotheses, (_fall_ratio(x, low.point), _nears_direction(found), near))


def theorem3_repaired(x: NextTokenInstance) -> Findings:
    """As Theorem 3, with a loss whose slope is nowhere zero on the outputs that can be reached."""
    return theorem3(x).given(nonzero_slope(x))


def lemma16(x: NextTokenInstance) -> Findings:
    """Under Assumptions 1 and 2, with a strictly decreasing loss of bounded slope and W_svm not zero: for every part in
    the cyclic subspace, the W across it with |W| <= R that is best beside it converges in direction to W_svm. (By the
    exponents of the excess risk, for three parts.)"""
    hypotheses = (head_of_1(x), *decreasing_loss(x), some_order(x))
    if not x.has_direction:
        return Findings(hypotheses)
    parts = (np.zeros_like(x.svm), *((W @ x.cyclic_basis.T) @ x.cyclic_basis for W in x.points(2, 0.3, 1.0)))
    worst = max((_fall_ratio(x, part) for part in parts), key=lambda slack: slack.measured)
    return Findings(hypotheses, (worst,))


def lemma16_repaired(x: NextTokenInstance) -> Findings:
    """As Lemma 16, with a loss whose slope is nowhere zero on the outputs that can be reached."""
    return lemma16(x).given(nonzero_slope(x))


def theorem4(x: NextTokenInstance) -> Findings:
    """Without a cycle, under Assumptions 2 and 3 with a strictly decreasing loss of bounded slope, where (Acyc-SVM) is
    feasible, the minimisers over |W| <= R converge in direction to W_svm as R grows. (As Theorem 3.)"""
    several = int((x.problem.graph.sizes > 1).sum())
    acyclic = below("components of several tokens", several, 0)
    hypotheses = (acyclic, assumption3(x.embeddings, x.head), *decreasing_loss(x), feasible(x), some_order(x))
    if not x.has_direction:
        return Findings(hypotheses)
    found = _nears_direction(_search_minima(x, np.zeros_like(x.svm)))
    return Findings(
        hypotheses, (_fall_ratio(x, np.zeros_like(x.svm)), found) if hypotheses[1].holds and not several else (found,)
    )


def theorem4_repaired(x: NextTokenInstance) -> Findings:
    """As Theorem 4, with a loss whose slope is nowhere zero on the outputs that can be reached."""
    return theorem4(x).given(nonzero_slope(x))


def _two_heights() -> NextTokenInstance:
    """1 and 2 each ahead of 0, with best outputs 1, where the loss is flat, and 1/2, where it is not."""
    head = np.diag([1.0, 1.0, 0.5])
    return NextTokenInstance.of(
        [[1, 0], [2, 0]], [1, 2], np.eye(3), "outputs of 1 and 1/2, FlatLoss", FlatLoss(), head=head
    )


def _other_best() -> NextTokenInstance:
    """3 scores best where 1 comes next after a 0."""
    head = np.array([[1.0, 0, 0, 0], [0, 1, 0, 2], [0, 0, 1, 0], [0, 0, 0, 1]])
    return NextTokenInstance.of(
        [[1, 3, 0], [2, 0]], [1, 2], np.eye(4), "another token scores best", ExponentialLoss(), head=head
    )


def _other_best_beside_a_tie() -> NextTokenInstance:
    """4 scores best where 3 comes next."""
    head = np.eye(5)
    head[3, 4] = 2.0
    return beside_a_tie(ExponentialLoss(), head=head)


def _one_order() -> NextTokenInstance:
    """No cycle, another loss."""
    return two_chains(ExponentialLoss())


ACYCLIC = "With a cycle (Acyc-SVM) has no solution; (Graph-SVM) takes its place, and Theorem 3 that of this one."
UNNEEDED = {
    "pairs of components in order": NO_SUBJECT,
    "largest |slope| of the loss": "-log, whose slope is not bounded, has the same limit (Theorem 2, for descent; "
    "where a risk is convex, the path goes where descent does).",
    "the loss falls strictly": "A loss that is level somewhere is level for a whole range of W, or falls as these do.",
}
SLOPE = (
    "A strictly decreasing loss may have slope zero at an output, and the proofs divide by a bound c_dn of the slope "
    "from below: where some sequences end at such an output and others do not, the former weigh less far out, and the "
    "path goes to another direction; where none does, as the repaired claim asks, the statement is true."
)
CLAIMS = (
    Claim("D.theorem3", theorem3, "bounded", about="regularisation path: direction of W_svm, projection to W_fin",
        example=lambda: tied_pair(ExponentialLoss()),
        outside=(lambda: tied_pair(CorrelationLoss()), _other_best_beside_a_tie),
        refutation=lambda: beside_a_tie(FlatLoss()),
        unneeded=UNNEEDED, note=SLOPE),
    Claim("D.theorem3-repaired", theorem3_repaired, "bounded", about="... where the slope of the loss is nowhere zero",
        example=lambda: tied_pair(ExponentialLoss()),
        outside=(lambda: tied_pair(CorrelationLoss()), _other_best_beside_a_tie,
            lambda: beside_a_tie(FlatLoss())),
        unneeded=UNNEEDED),
    Claim("D.theorem4", theorem4, "bounded", about="regularisation path without cycles, any head of Assumption 3",
        example=_one_order, outside=(_other_best,), refutation=_two_heights,
        unneeded=UNNEEDED | {"(Graph-SVM) is feasible": NO_SUBJECT, "components of several tokens": ACYCLIC},
        note=SLOPE),
    Claim("D.theorem4-repaired", theorem4_repaired, "bounded", about="... where the slope of the loss is nowhere zero",
        example=_one_order, outside=(_other_best, _two_heights),
        unneeded=UNNEEDED | {"(Graph-SVM) is feasible": NO_SUBJECT, "components of several tokens": ACYCLIC}),
    Claim("D.lemma16", lemma16, "bounded", about="regularisation path beside a fixed part in the cyclic subspace",
        example=lambda: tied_pair(ExponentialLoss()), refutation=lambda: beside_a_tie(FlatLoss()),
        unneeded=UNNEEDED, note=SLOPE),
    Claim("D.lemma16-repaired", lemma16_repaired, "bounded", about="... where the slope of the loss is nowhere zero",
        example=lambda: tied_pair(ExponentialLoss()), outside=(lambda: beside_a_tie(FlatLoss()),),
        unneeded=UNNEEDED),
)  # fmt: skip
