"""Lemmas 1, 4 and 8: the graph max-margin problem and the spaces of its two parts; and the odds of tied tokens."""

from __future__ import annotations

import numpy as np

from tokenmargin.margin.graph_margin import svm_subspace, unit_rows
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, above, below, equal, sampled, true
from tokenmargin.theory.paper_d.instance import (
    NextTokenInstance,
    feasible,
    head_of_1,
    rank_of,
    some_order,
    tied_pair,
    twice_forced,
)


def lemma1(x: NextTokenInstance) -> Findings:
    """If the embedding matrix has full row rank, (Graph-SVM) is feasible: logits of any table can be had, and within a
    graph the components are an order."""
    rank = above("rank of the embeddings", rank_of(unit_rows(x.embeddings)), x.problem.size)
    return Findings((rank,), (true("the problem is solved, with a certificate", x.graph_solution.is_optimal),))


def lemma4(x: NextTokenInstance) -> Findings:
    """Where W_svm is not zero it is orthogonal to the cyclic subspace, and so to every cyclic component W_fin."""
    hypotheses = (feasible(x), some_order(x))
    if not all(slack.holds for slack in hypotheses):
        return Findings(hypotheses)
    length, soft = float(np.linalg.norm(x.svm)), x.limit.finite.point
    share = float(np.linalg.norm(x.cyclic_basis @ x.svm)) / length
    cosine = abs(float(soft @ x.svm)) / length / (float(np.linalg.norm(soft)) or 1.0)
    # The constraints hold to the certificate's residual, of at most 1e-10; the subspace is known to its condition.
    return Findings(
        hypotheses,
        (
            equal("share of W_svm in the cyclic subspace", share, 0, tolerance=1e-8),
            equal("cosine of W_svm and W_fin", cosine, 0, tolerance=1e-8),
        ),
    )


def lemma8(x: NextTokenInstance) -> Findings:
    """W_svm lies in the SVM subspace, what the active subspace has across the cyclic one; and the gradient of the risk
    has no part outside the active subspace, at any W. (At 20 points.)"""
    hypotheses = (feasible(x),)
    if not hypotheses[0].holds:
        return Findings(hypotheses)
    inside = svm_subspace(x.problem)
    outside = float(np.linalg.norm(x.svm - inside.T @ (inside @ x.svm))) / (float(np.linalg.norm(x.svm)) or 1.0)
    gradients = x.objective.gradient(x.points())
    left = float(np.abs(gradients - gradients @ x.active.T @ x.active).max()) / (x.longest or 1.0)
    # A gradient is a mean of weights times rows of length `longest` at most, each known to a few eps times its slope.
    return Findings(
        hypotheses,
        (
            equal("share of W_svm outside the SVM subspace", outside, 0, tolerance=1e-8),
            sampled(equal("largest entry of a gradient outside the active subspace", left, 0, tolerance=1e-9)),
        ),
    )


def odds_of_tied_tokens(x: NextTokenInstance) -> Findings:
    """If every sequence whose next token lies in a component of several tokens holds each of them once, W_fin gives
    these the probabilities with which they come next after that last token."""
    graph, problem = x.problem.graph, x.problem
    node, label = problem.node, problem.label_node
    several = graph.sizes[graph.component[label]] > 1
    whole, off = 0, 0.0
    for component in np.unique(graph.component[label][several]).tolist():
        members = np.flatnonzero(graph.component == component)
        here = graph.component[label] == component
        counts = np.stack([np.bincount(problem.sequence[node == k], minlength=problem.n)[here] for k in members])
        whole = max(whole, int(np.abs(counts - 1).max()))
        frequency = np.bincount(label[here], minlength=graph.nodes)[members] / here.sum()
        soft = x.limit.finite.logits[members]
        off = max(off, float(np.abs(np.exp(soft - np.logaddexp.reduce(soft)) - frequency).max()))
    hypotheses = (head_of_1(x), below("largest number of a tied token in a sequence, less one", whole, 0))
    # The minimum is known to its proven distance, of 1e-6 at most; a probability moves by no more than its logits.
    return Findings(hypotheses, (below("largest difference of a probability and a frequency", off, 0, tolerance=1e-6),))


def _parts_of_a_cycle() -> NextTokenInstance:
    """1, 2 and 3 tie in a ring, and no sequence holds all three of them."""
    sequences, labels = [[1, 2, 0], [2, 3, 0], [3, 1, 0], [1, 2, 0]], [1, 2, 3, 2]
    rows = np.random.default_rng(3).standard_normal((4, 5))
    return NextTokenInstance.of(sequences, labels, rows, "a ring, seen in parts")


CLAIMS = (
    Claim("D.lemma1", lemma1, "bounded", about="independent embeddings: (Graph-SVM) is feasible", example=tied_pair,
        outside=(twice_forced,)),
    Claim("D.lemma4", lemma4, "bounded", about="W_svm is orthogonal to the cyclic subspace, and to W_fin",
        example=tied_pair,
        unneeded={"(Graph-SVM) is feasible": NO_SUBJECT,
            "pairs of components in order": "Zero is orthogonal to everything."}),
    Claim("D.lemma8", lemma8, "bounded", about="W_svm lies in the SVM subspace, gradients in the active one",
        example=tied_pair, unneeded={"(Graph-SVM) is feasible": NO_SUBJECT}),
    Claim("D.odds", odds_of_tied_tokens, "bounded",
        about="soft composition: tied tokens get the probabilities with which they come next", example=tied_pair,
        outside=(_parts_of_a_cycle,),
        unneeded={
            "Assumption 1: largest |<c_y, e_k> - [k = y]|": "Dependent embeddings may still give these odds; "
            "where they force further ties, the components are no longer those of the statement."
        },
        note="A corollary of ours: with the whole component in a sequence the tied problem is a table of odds."),
)  # fmt: skip
