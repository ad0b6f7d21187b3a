"""How long the max-margin vector of the important tokens is: Lemma 21 of paper A, the heuristic of D.5, a formula."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from tokenmargin.margin import MarginSolution, class_margin
from tokenmargin.objective.embedding import Embeddings
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, equal
from tokenmargin.theory.paper_a.classes import RESIDUAL
from tokenmargin.theory.paper_a.conditions import (
    allowed_deviations,
    concentration,
    quantile_of_draws,
    selective_conditions,
    true_of_most_draws,
    without_subject,
)
from tokenmargin.theory.settings import EmbeddingInstance


def length(solution: MarginSolution) -> float:
    """`|p^|`: infinite where there is no solution."""
    return 1 / solution.margin if solution.is_optimal else np.inf


def nearly_orthogonal(x: EmbeddingInstance) -> float:
    """The dimension of Lemma 21's proof, `(2 eta_0 (n sqrt(2 log(|S|^2/delta)) + 44 sqrt(2n)))^4`."""
    n = x.corpus.n
    return float((2 * x.step * (n * allowed_deviations(x) + 44 * np.sqrt(2 * n))) ** 4)


def _lengths(x: EmbeddingInstance) -> list[float]:
    return [length(class_margin(problem, x.corpus.important)) for problem, _ in x.problems_and_choices]


def lemma21(x: EmbeddingInstance) -> Findings:
    """Under Assumption 4 and with d as large as Lemma 19 asks, the max-margin vector that selects the important tokens
    only has |p^| <= 4n, with probability 1 - delta. The proof's vector `2 sum of E_s^0` over the important tokens has
    length at most 4n and leads by 1 everywhere."""
    n = x.corpus.n
    hypotheses = (
        *selective_conditions(x),
        *concentration(x),
        above("d, for E_s nearly orthogonal", x.dimension, nearly_orthogonal(x)),
    )
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    lengths = _lengths(x)
    built = [_explicit_solution(x.corpus, step.before, step.after) for step in x.steps]
    good = [lead >= 1 and long <= 4 * n for lead, long in built]
    return Findings(
        hypotheses,
        (
            true_of_most_draws("|p^| <= 4n", [found <= 4 * n for found in lengths], x),
            quantile_of_draws("|p^|", lengths, 4 * n, x),
            true_of_most_draws("the proof's vector leads by 1 and is no longer than 4n", good, x),
            quantile_of_draws(
                "|p^|, against the proof's vector", [a / b[1] for a, b in zip(lengths, built, strict=True)], 1, x
            ),
        ),
    )


def _explicit_solution(corpus: TokenCorpus, before: Embeddings, after: Embeddings) -> tuple[float, float]:
    """The least lead of an important token under `p = 2 sum E_s^0`, and the length of p."""
    important = np.append(np.where(corpus.sole_label != 0, 2.0, 0.0), [0.0, 0.0])
    p = before.geometry.combine(important)
    logits = after.geometry.logits(p)
    top = np.where(corpus.important, logits, -np.inf).max(axis=1, keepdims=True)
    leads = (top - logits)[corpus.mask & ~corpus.important]
    return float(leads.min(initial=np.inf)), float(before.geometry.norm(p))


def balanced_flow(corpus: TokenCorpus) -> bool:
    """Whether every important token can send N units to irrelevant ones it shares a sequence with, so that each of the
    N irrelevant tokens receives M units from the M important ones: that is, for every set A of important tokens, the
    irrelevant ones beside A are at least a share |A|/M of all. Decided exactly, by a maximum flow of integers."""
    s, t = np.flatnonzero(corpus.sole_label != 0), np.flatnonzero(corpus.sole_label == 0)
    M, N = len(s), len(t)
    if not M or not N:
        return False
    capacity = np.zeros((corpus.size + 2, corpus.size + 2), dtype=np.int32)
    capacity[corpus.size, s], capacity[t, corpus.size + 1] = N, M
    for row, here in zip(corpus.index, corpus.mask, strict=True):
        tokens = set(row[here].tolist())
        for a in tokens & set(s.tolist()):
            capacity[a, list(tokens & set(t.tolist()))] = M * N
    return int(maximum_flow(csr_array(capacity), corpus.size, corpus.size + 1).flow_value) == M * N


def from_orthogonal(corpus: TokenCorpus, after: Embeddings, step: float) -> float:
    """Spectral norm of `<E_s, E_t> - 1_{s=t} - (eta_0/2)^2 alpha_s alpha_t`: how far the tokens after the first step
    are from orthonormal ones moved along v."""
    assert isinstance(after.geometry, Coordinates)
    E: Float[Array, "m d"] = after.geometry.vectors[: corpus.size]
    moved = step / 2 * corpus.signed_share
    return float(np.linalg.norm(E @ E.T - np.eye(corpus.size) - np.outer(moved, moved), 2))


def _beside_orthonormal(x: EmbeddingInstance) -> tuple[Slack, Float[Array, " draws"]]:
    """That tokens are orthonormal but for what the first step adds along v, up to an error e < 1; and the error that
    this leaves in |p^|^2 of each draw: infinite where e is not below 1."""
    errors = [from_orthogonal(x.corpus, step.after, x.step) for step in x.steps]
    near = below("tokens from orthonormal, beside v", max(errors), 1, strict=True)
    _, _, squared = _shares(x)
    return near, np.array([squared * e / (1 - e) + RESIDUAL if e < 1 else np.inf for e in errors])


def _farthest(distances: Float[Array, " draws"], room: Float[Array, " draws"]) -> int:
    """The draw that goes farthest beyond its room; those of infinite room, and perhaps infinite length, come last."""
    beyond = np.full(len(room), -np.inf)
    np.subtract(distances, room, out=beyond, where=np.isfinite(room))
    return int(np.argmax(beyond))


def _shares(x: EmbeddingInstance) -> tuple[int, int, float]:
    """M, N and `M N / (M + N)`."""
    M, N = int((x.corpus.sole_label != 0).sum()), int((x.corpus.sole_label == 0).sum())
    return M, N, M * N / (M + N)


def exact_length(x: EmbeddingInstance) -> Findings:
    """Under Assumption 4, with M important tokens and N irrelevant ones, orthonormal but for what the first step adds
    along v, up to an error e < 1 in spectral norm: `|p^|^2 <= M N / (M + N)`, and equal where the flow below exists,
    both up to a factor `1 +- e/(1 - e)`. Then `p^ = (N sum E_s - M sum E_t) / (M + N)`. Frequencies do not matter.
    (Ours; proof in docs/results/random-starts.md.)"""
    _, _, squared = _shares(x)
    hypotheses = (
        *selective_conditions(x),
        equal("balanced flow from important to irrelevant tokens", float(balanced_flow(x.corpus)), 1, tolerance=0),
    )
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    near, room = _beside_orthonormal(x)
    squares = np.array(_lengths(x)) ** 2
    worst = _farthest(np.abs(squares - squared), room)
    same = equal("|p^|^2", float(squares[worst]), squared, tolerance=float(room[worst]))
    return Findings((*hypotheses, near), (same,))


def length_bound(x: EmbeddingInstance) -> Findings:
    """As `A.length`, without the flow: `|p^|^2 <= M N / (M + N)`, up to a factor `1 + e/(1 - e)`."""
    _, _, squared = _shares(x)
    hypotheses = selective_conditions(x)
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    near, room = _beside_orthonormal(x)
    squares = np.array(_lengths(x)) ** 2
    worst = _farthest(squares, room)
    most = below("|p^|^2", float(squares[worst]), squared, tolerance=float(room[worst]))
    return Findings((*hypotheses, near), (most,))


def length_heuristic(x: EmbeddingInstance) -> Findings:
    """Under Assumption 4 and where all important tokens have the same |alpha_s|, the max-margin vector of the important
    tokens is about the sum of their `E_s^0`, so `|p^|` is about `sqrt(|S_X|)`, the root of the number M of tokens
    selected (D.5). "About" is read as within a tenth; the ratio does not depend on the dimension."""
    M, _, _ = _shares(x)
    sizes = np.abs(x.corpus.signed_frequency[x.corpus.sole_label != 0])
    hypotheses = (
        *selective_conditions(x),
        equal("largest |alpha_s| minus smallest", float(np.ptp(sizes)) if len(sizes) else 0.0, 0, tolerance=0),
    )
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    near, _ = _beside_orthonormal(x)
    ratios = [found / np.sqrt(M) for found in _lengths(x)]
    return Findings(
        (*hypotheses, near),
        (
            above("|p^| / sqrt(M)", min(ratios), 0.9, tolerance=RESIDUAL),
            below("|p^| / sqrt(M)", max(ratios), 1.1, tolerance=RESIDUAL),
        ),
    )


def _unbalanced_corpus() -> EmbeddingInstance:
    """Two important tokens share one irrelevant token, two others three: the first need less of it."""
    sequences = ["good a a a", "bad a a a", "fine b c d", "dull b c d"]
    return EmbeddingInstance.on(sequences, [1, -1, 1, -1], selection="important")


CLAIMS = (
    Claim("A.lemma21", lemma21, "sampled", about="|p^| <= 4n",
        example=lambda: EmbeddingInstance.of(4, 3, draws=100, varied=True),
        note="`44 sqrt(2n)` as printed; Lemma 19 asks for 44 n, which is more for n >= 2."),
    Claim("A.length", exact_length, "bounded", about="|p^|^2 = M N / (M + N), with M important and N irrelevant tokens",
        example=lambda: EmbeddingInstance.of(4, 3, draws=5), outside=(_unbalanced_corpus,),
        note="Not in the paper."),
    Claim("A.length-bound", length_bound, "bounded", about="... and never more", example=_unbalanced_corpus,
        note="Not in the paper. So |p^| is less than sqrt(M) for every corpus."),
    Claim("A.length-heuristic", length_heuristic, "bounded", about="D.5: |p^| is about sqrt(|S_X|)",
        example=lambda: EmbeddingInstance.of(2, 12, irrelevant=11), refutation=lambda: EmbeddingInstance.of(4, 3),
        note=(
            "Printed as an expectation, to make mu > 0 plausible in Lemma 19. p^ need not have logit 0 on irrelevant "
            "tokens: giving them negative ones and the important tokens less is shorter. |p^|^2 = M N / (M + N) "
            "(A.length), so the ratio is sqrt(N / (M + N)): 0.65 here, and near 1 only where N is much larger than M."
        )),
)  # fmt: skip
