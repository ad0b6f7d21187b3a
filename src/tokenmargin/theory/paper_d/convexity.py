"""Lemmas 2 and 9 to 11: with -log the risk is convex in W, and strictly so on which subspaces."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.graph_margin import active_subspace, cyclic_subspace, node_vectors, unit_rows
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import CorrelationLoss
from tokenmargin.problem.next_token import NextTokenProblem
from tokenmargin.theory.claim import Claim, Findings, Slack, below, equal, sampled
from tokenmargin.theory.paper_d.instance import (
    NextTokenInstance,
    beside_a_tie,
    head_of_1,
    log_loss,
    rank_of,
    tied_pair,
    tied_pair_with_head,
)

ROUNDING = 1e-12
"""Of a Hessian whose terms are weights times products of two keys, relative to the longest: some hundred terms, each
known to a few eps."""


def risk_hessian(objective: PromptObjective, W: Float[Array, " D"]) -> Float[Array, "D D"]:
    """The Hessian of the risk at W."""
    descent, relative, _ = objective.linearise(W)
    return np.asarray(-(relative + relative.T) / 2 * np.exp(descent.log_norm[0]))


def _convex(x: NextTokenInstance) -> Slack:
    least = min(float(np.linalg.eigvalsh(risk_hessian(x.objective, W))[0]) for W in x.points())
    slack = below("least eigenvalue of the Hessian, below zero, over the longest key squared",
                  -least / (x.longest or 1.0) ** 2, 0, tolerance=ROUNDING)  # fmt: skip
    return sampled(slack, "the proof: a sum of log-sum-exp")


def _flat(problem: NextTokenProblem, subspace: Float[Array, "s D"]) -> int:
    """How many directions of a subspace change no logit of a sequence against its next token's. At every finite W
    all weights are positive, so these are the directions along which -log of the next token's weight is flat."""
    if not len(subspace):
        return 0
    vectors = node_vectors(problem)
    rows = vectors[problem.node] - vectors[problem.label_node[problem.sequence]]
    return len(subspace) - rank_of(unit_rows(rows) @ subspace.T)


def _strict(x: NextTokenInstance, subspace: Float[Array, "s D"], name: str) -> Slack:
    return below(f"flat directions in the {name} subspace", _flat(x.problem, subspace), 0)


def lemma2(x: NextTokenInstance) -> Findings:
    """Under Assumptions 1 and 2 with the loss -log the risk is convex in W, and strictly convex on the cyclic subspace.
    (Least eigenvalue of the Hessian at 20 points; directions along which it is flat, by rank.)"""
    hypotheses = (head_of_1(x), log_loss(x))
    if not x.has_risk:
        return Findings(hypotheses)
    return Findings(hypotheses, (_convex(x), _strict(x, cyclic_subspace(x.problem), "cyclic")))


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
    part = below("dimensions of the cyclic subspace outside the active one", _outside(x.cyclic_basis, x.active), 0)
    same = sampled(equal("(23): largest |L(W) - L(projection of W)|", apart, 0, tolerance=1e-10))
    return Findings(hypotheses, (_convex(x), _strict(x, x.active, "active"), part, same))


def _outside(inner: Float[Array, "a D"], outer: Float[Array, "b D"]) -> int:
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
    return Findings(hypotheses, (_convex(x), _strict(x, x.active, "active")))


def _in_too_few_dimensions() -> NextTokenInstance:
    """Three tokens on a line."""
    return NextTokenInstance.of([[1, 2, 0]], [1], np.array([[1.0], [2.0], [-1.0]]), "three tokens, d = 1")


NOT_ALONE = "Lemma 9 has it for all independent embeddings; one-hot ones let its proof read logits off."
CLAIMS = (
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
