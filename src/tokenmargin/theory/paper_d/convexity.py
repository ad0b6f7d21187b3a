"""Lemmas 1, 2, 4 and 8 to 11: the graph max-margin problem, the spaces of its two parts, and convexity with -log."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.graph_margin import active_subspace, cyclic_subspace, node_vectors, svm_subspace, unit_rows
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import CorrelationLoss
from tokenmargin.problem.next_token import NextTokenProblem
from tokenmargin.theory.claim import NO_SUBJECT, Claim, Findings, Slack, above, below, equal, sampled, seen, true
from tokenmargin.theory.paper_d.instance import (
    NextTokenInstance,
    beside_a_tie,
    feasible,
    head_of_1,
    log_loss,
    rank_of,
    some_order,
    tied_pair,
    tied_pair_with_head,
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
    found = below("largest difference of a probability and a frequency", off, 0, tolerance=1e-6)
    return Findings(hypotheses, (found if x.limit.is_certified else seen(found, "embeddings without rounding"),))


def _parts_of_a_cycle() -> NextTokenInstance:
    """1, 2 and 3 tie in a ring, and no sequence holds all three of them."""
    sequences, labels = [[1, 2, 0], [2, 3, 0], [3, 1, 0], [1, 2, 0]], [1, 2, 3, 2]
    rows = np.random.default_rng(3).standard_normal((4, 5))
    return NextTokenInstance.of(sequences, labels, rows, "a ring, seen in parts")


ROUNDING = 1e-12
"""Of a Hessian whose terms are weights times products of two keys, relative to the longest: some hundred terms, each
known to a few eps."""


def risk_hessian(objective: PromptObjective, W: Float[Array, " D"]) -> Float[Array, "D D"]:
    """The Hessian of the risk at W."""
    descent, relative, _ = objective.linearise(W)
    return np.asarray(-(relative + relative.T) / 2 * np.exp(descent.log_norm[0]))


def _least_eigenvalue(x: NextTokenInstance) -> Slack:
    least = min(float(np.linalg.eigvalsh(risk_hessian(x.objective, W))[0]) for W in x.points())
    slack = below("least eigenvalue of the Hessian, below zero, over the longest key squared",
                  -least / (x.longest or 1.0) ** 2, 0, tolerance=ROUNDING)  # fmt: skip
    return sampled(slack, "the proof: a sum of log-sum-exp")


def _count_flat_directions(problem: NextTokenProblem, subspace: Float[Array, "s D"]) -> int:
    """How many directions of a subspace change no logit of a sequence against its next token's. At every finite W
    all weights are positive, so these are the directions along which -log of the next token's weight is flat."""
    if not len(subspace):
        return 0
    vectors = node_vectors(problem)
    rows = vectors[problem.node] - vectors[problem.label_node[problem.sequence]]
    return len(subspace) - rank_of(unit_rows(rows) @ subspace.T)


def _no_flat_directions(x: NextTokenInstance, subspace: Float[Array, "s D"], name: str) -> Slack:
    return below(f"flat directions in the {name} subspace", _count_flat_directions(x.problem, subspace), 0)


def lemma2(x: NextTokenInstance) -> Findings:
    """Under Assumptions 1 and 2 with the loss -log the risk is convex in W, and strictly convex on the cyclic subspace.
    (Least eigenvalue of the Hessian at 20 points; directions along which it is flat, by rank.)"""
    hypotheses = (head_of_1(x), log_loss(x))
    if not x.has_risk:
        return Findings(hypotheses)
    return Findings(hypotheses, (_least_eigenvalue(x), _no_flat_directions(x, cyclic_subspace(x.problem), "cyclic")))


def lemma9(x: NextTokenInstance) -> Findings:
    """As Lemma 2, and strictly convex on the active subspace, of which the cyclic one is a part; what W has across the
    span of all `e_i e_j'` does not matter, (23)."""
    hypotheses = (head_of_1(x), log_loss(x))
    if not x.has_risk:
        return Findings(hypotheses)
    rows = np.linalg.svd(x.embeddings, full_matrices=False)[2]  # a basis that holds their span
    points = x.points()
    within = np.einsum("ai,bj,pab->pij", rows.T @ rows, rows.T @ rows, points.reshape(-1, *(2 * [rows.shape[1]])))
    apart = float(np.abs(x.objective.value(points) - x.objective.value(within.reshape(points.shape))).max())
    part = below(
        "dimensions of the cyclic subspace outside the active one", _count_outside(x.cyclic_basis, x.active), 0
    )
    same = sampled(equal("(23): largest |L(W) - L(projection of W)|", apart, 0, tolerance=1e-10))
    return Findings(hypotheses, (_least_eigenvalue(x), _no_flat_directions(x, x.active, "active"), part, same))


def _count_outside(inner: Float[Array, "a D"], outer: Float[Array, "b D"]) -> int:
    left = inner - inner @ outer.T @ outer
    return int((np.linalg.norm(left, axis=1) > 1e-8).sum()) if len(inner) else 0


def lemma10(x: NextTokenInstance) -> Findings:
    """If f is (strictly) convex and T linear and invertible, f after T is (strictly) convex. (As it is used: f the risk
    of one-hot tokens in R^(K x K), T taking W to E W E'; Hessians at 20 points, and the directions of flatness.)"""
    K = x.problem.size
    plain = NextTokenInstance(with_embeddings(x.problem, np.eye(K)), seed=x.seed)
    hypotheses = (below("dimensions that T loses", K**2 - rank_of(unit_rows(x.embeddings)) ** 2, 0), log_loss(x))
    T = np.kron(x.embeddings, x.embeddings)
    composed = NextTokenInstance(x.problem, loss=x.loss, seed=x.seed)
    worst, scale = 0.0, 1e-300
    for W in composed.points():
        after, f = risk_hessian(composed.objective, W), risk_hessian(plain.objective, T @ W)
        worst, scale = max(worst, float(np.abs(after - T.T @ f @ T).max())), max(scale, float(np.abs(after).max()))
    flat = K**2 - len(active_subspace(plain.problem)), rank_of(unit_rows(x.embeddings)) ** 2 - len(x.active)
    return Findings(
        hypotheses,
        (
            sampled(
                below("difference of the Hessian of f after T and T'HT, relative", worst / scale, 0, tolerance=1e-8)
            ),
            equal("flat directions of f after T, less those of f", flat[1] - flat[0], 0, tolerance=0),
        ),
    )


def with_embeddings(problem: NextTokenProblem, rows: Float[Array, "K d"]) -> NextTokenProblem:
    """The same sequences with other embeddings."""
    return NextTokenProblem(problem.tokens, problem.lengths, problem.labels, problem.vocabulary, rows)


def lemma11(x: NextTokenInstance) -> Findings:
    """For one-hot tokens under Assumption 2 (with Assumption 1 and -log, as its proof has it), the risk as a function
    of the logits of all pairs is convex, and strictly convex on the active subspace."""
    square = x.embeddings.shape[0] == x.embeddings.shape[1]
    off = float(np.abs(x.embeddings - np.eye(len(x.embeddings))).max()) if square else np.inf
    hypotheses = (equal("largest |E - I|", off, 0, tolerance=0), head_of_1(x), log_loss(x))
    if not x.has_risk:
        return Findings(hypotheses)
    return Findings(hypotheses, (_least_eigenvalue(x), _no_flat_directions(x, x.active, "active")))


def _in_too_few_dimensions() -> NextTokenInstance:
    """Three tokens on a line."""
    return NextTokenInstance.of([[1, 2, 0]], [1], np.array([[1.0], [2.0], [-1.0]]), "three tokens, d = 1")


NOT_ALONE = "Lemma 9 has it for all independent embeddings; one-hot ones let its proof read logits off."


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
    Claim("D.lemma2", lemma2, "sampled", about="with -log the risk is convex in W, strictly on the cyclic subspace",
        example=tied_pair, outside=(tied_pair_with_head, lambda: tied_pair(CorrelationLoss()))),
    Claim("D.lemma9", lemma9, "sampled", about="... and strictly on the active subspace; (23)",
        example=tied_pair, outside=(tied_pair_with_head, lambda: tied_pair(CorrelationLoss()))),
    Claim("D.lemma10", lemma10, "sampled", about="an invertible linear map keeps convexity", example=tied_pair,
        outside=(_in_too_few_dimensions,),
        unneeded={"the loss is -log": "It makes f convex. Convex or not, Hessians change as they do here."},
        note="A tool, checked on the map of Lemma 9's proof."),
    Claim("D.lemma11", lemma11, "sampled", about="... for one-hot tokens, as a function of logits",
        example=lambda: beside_a_tie(), outside=(tied_pair_with_head, lambda: beside_a_tie(CorrelationLoss())),
        unneeded={"largest |E - I|": NOT_ALONE},
        note="The statement does not repeat Assumption 1 and -log, which its proof uses."),
)  # fmt: skip
