"""The max-margin vector of the important tokens (paper A): when only they are selected, and how long it is.

Lemma 19 asks that this vector be shorter, by a factor 1 - mu, than that of every other selection. A random start never
has such a mu > 0: `no_mu`. Of its length speak Lemma 21, the heuristic of D.5, and a formula of ours.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from tokenmargin.margin import MarginSolution, class_margin
from tokenmargin.objective.embedding import Embeddings
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, equal, sampled
from tokenmargin.theory.evidence import FollowedFlow
from tokenmargin.theory.paper_a.classes import RESIDUAL
from tokenmargin.theory.paper_a.conditions import (
    IMPLIED,
    allowed_deviations,
    assumption4,
    concentration,
    one_length,
    quantile_of_draws,
    selective_conditions,
    theorem5_conditions,
    true_of_most_draws,
    without_subject,
)
from tokenmargin.theory.paper_a.flow import (
    MISALIGNED,
    OUTSIDE_THE_REGIME,
    in_the_regime,
    one_minus_cosine,
    seen_in_the_limit,
)
from tokenmargin.theory.settings import EmbeddingInstance

MOST_PAIRS = 10
"""Selections are enumerated up to this many (important, irrelevant) pairs: 1024 max-margin problems."""


def lemma19(x: EmbeddingInstance) -> Findings:
    """Under Theorem 5's conditions, if the max-margin vector that selects the important tokens only is shorter than
    that of every other selection by a factor 1 - mu, and d is large enough in mu, then gradient flow converges to its
    direction. (Other selections must contain the important tokens and not be everything: Theorem 5 and Lemma 6
    exclude the rest. Read to the letter, the selection of everything has length 0, and no mu > 0 exists.)"""
    hypotheses = theorem5_conditions(x)
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    single = x.corpus.assumption4().holds  # otherwise the selections to compare with are not defined
    mu = min(largest_mu(problem, x.corpus.important) for problem, _ in x.problems_and_choices) if single else -np.inf
    positive = above("mu", mu, 0, strict=True)
    if not _all_tried(x.corpus):
        positive = sampled(positive, "trying every selection")  # an upper bound on mu
    enough = above("d, in mu", x.dimension, dimension_in_mu(x, mu))
    return Findings((*hypotheses, positive, enough), _only_important(x))


def dimension_in_mu(x: EmbeddingInstance, mu: float) -> float:
    """What Lemma 19 asks of d: `(2816 T n^2 (1 + 2 eta_0) / mu)^4`, and `(2 eta_0 (n D + 44 n))^4`, D from (14)."""
    n, T = x.corpus.n, x.corpus.T
    first = (2816 * T * n**2 * (1 + 2 * x.step) / mu) ** 4 if mu > 0 else np.inf
    return float(max(first, (2 * x.step * (n * allowed_deviations(x) + 44 * n)) ** 4))


def lemma19_without_mu(x: EmbeddingInstance) -> Findings:
    """Under Theorem 5's conditions gradient flow converges to the max-margin direction that selects the important
    tokens only. (Lemma 19 without its hypothesis on mu.)"""
    hypotheses = theorem5_conditions(x)
    return without_subject(x, hypotheses) or Findings(hypotheses, _only_important(x))


def no_mu(x: EmbeddingInstance) -> Findings:
    """Under Theorem 5's conditions a random start leaves Lemma 19 no mu > 0: the selection that separates the most
    frequent important token and ties everything else has a shorter max-margin vector. (Of randomness this takes (14)
    and tokens that start orthonormal up to d^(-1/4). Ours; proof in docs/results/random-starts.md.)"""
    corpus, hypotheses = x.corpus, theorem5_conditions(x)
    if (nothing := without_subject(x, hypotheses)) is not None:
        return nothing
    M, N = int((corpus.sole_label != 0).sum()), int((corpus.sole_label == 0).sum())
    near = below(
        "tokens at the start from orthonormal", _from_orthonormal(x), float(x.dimension) ** -0.25, tolerance=1e-12
    )
    ours = [length(class_margin(problem, corpus.important)) for problem, _ in x.problems_and_choices]
    rivals = [length(class_margin(problem, _all_but_one(corpus))) for problem, _ in x.problems_and_choices]
    gaps = [theirs**2 - own**2 for own, theirs in zip(ours, rivals, strict=True)]
    return Findings(
        hypotheses=(*hypotheses, near),
        conclusion=(
            above("shortest |p^|^2", min(ours) ** 2, 1 - 1 / (M + 1), tolerance=RESIDUAL),
            below("longest |p'|^2 of the rival", max(rivals) ** 2, smallest_rival(x), tolerance=RESIDUAL),
            below("largest |p'|^2 - |p^|^2", max(gaps), -1 / (N + M), tolerance=RESIDUAL),
        ),
    )


def _from_orthonormal(x: EmbeddingInstance) -> float:
    """The largest entry of `<E_s, E_t> - 1_{s = t}` at the start."""
    size = x.corpus.size
    grams = (step.before.geometry.gram_of(np.arange(size)) for step in x.steps)
    return max(float(np.abs(gram - np.eye(size)).max()) for gram in grams)


def smallest_rival(x: EmbeddingInstance) -> float:
    """`1 - 1/|S| - k_s^2 / (sum k^2 + c^(-2))` of `no_mu`, for the most frequent s."""
    corpus = x.corpus
    k = corpus.counts.max(axis=0)[corpus.sole_label != 0]
    c = x.step / (2 * corpus.n * corpus.T)
    return float(1 - 1 / corpus.size - k.max() ** 2 / ((k**2).sum() + c**-2))


def _all_but_one(corpus: TokenCorpus) -> Bool[Array, "n T"]:
    """The selection that ties every sequence, but for those of the most frequent important token."""
    counts = np.where(corpus.sole_label != 0, corpus.counts.max(axis=0), 0)
    own = (corpus.index == counts.argmax()) & corpus.mask
    return np.asarray(np.where(own.any(axis=1, keepdims=True), own, corpus.mask))


def _only_important(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """That p selects the important tokens alone, and takes their max-margin direction."""
    misaligned = [
        one_minus_cosine(_angle(problem, limit, class_margin(problem, x.corpus.important)))
        for (problem, _), limit in zip(x.problems_and_choices, x.limits, strict=True)
    ]
    exactly = [bool((limit.chosen == x.corpus.important).all()) for limit in x.limits]
    return (
        seen_in_the_limit("only important tokens are selected", exactly, x),
        seen_in_the_limit("p has their max-margin direction", [c <= MISALIGNED for c in misaligned], x),
        quantile_of_draws("1 - cosine with their direction", misaligned, MISALIGNED, x),
    )


def _angle(problem: TokenProblem, limit: FollowedFlow, solution: MarginSolution) -> float:
    """Infinite where there is no direction: no margin, or nothing to separate."""
    if not solution.is_optimal or np.isinf(solution.margin):
        return np.inf
    return float(angle(problem.keys, limit.path.prompt, solution.vector))


def _pairs(index: Int[Array, "n T"], mask: Bool[Array, "n T"], important: Bool[Array, "n T"]) -> list[tuple[int, int]]:
    """The (important, irrelevant) pairs that share a sequence."""
    rows = (row[here] for row, here in zip(index, mask, strict=True))
    return sorted({(int(s), int(t)) for s, row in zip(index[important], rows, strict=True) for t in row if t != s})


def _all_tried(c: TokenCorpus) -> bool:
    return c.assumption4().holds and len(_pairs(c.index, c.mask, c.important)) <= MOST_PAIRS


def largest_mu(problem: TokenProblem, important: Bool[Array, "n T"]) -> float:
    """`1 - |p^| / min |p^'|` over selections p^' that tie irrelevant tokens with the important ones.

    A tie depends on the two tokens alone, so a selection is a set of tied (important, irrelevant) pairs. All sets are
    tried up to 10 pairs; beyond, only those that tie one label's sequences completely: an upper bound on mu.
    """
    index = problem.keys.index
    owner = index[important]
    pairs = _pairs(index, problem.mask, important)
    sides = dict(zip(owner.tolist(), problem.labels.tolist(), strict=True))
    patterns = (
        itertools.product((False, True), repeat=len(pairs))
        if len(pairs) <= MOST_PAIRS
        else ([sides[s] == y for s, _ in pairs] for y in (-1.0, 1.0))
    )
    rivals = [np.inf]
    for pattern in patterns:
        tied = dict(zip(pairs, pattern, strict=True))
        if any(pattern) and not all(pattern):
            chosen = np.array([[tied.get((s, t), True) for t in row] for s, row in zip(owner, index, strict=True)])
            rivals.append(length(class_margin(problem, chosen & problem.mask)))
    own = length(class_margin(problem, important))
    return 1 - own / min(rivals) if np.isfinite(own) else -np.inf


@cache
def aligned_start(rest: str = "") -> EmbeddingInstance:
    """A start with mu near 1/2. Important tokens have h in common, irrelevant ones -h, so p^ is near h/2.

    To tie a token one must move along v, where the tokens have y k c. Each label has a token of k = 2 and one of k = 1:
    tying the first takes half of the second's lead with it, and the vector must grow to give it back. `rest` is added
    to every sequence.
    """
    sequences = [f"{sequence}{rest}" for sequence in ("good a", "fine a", "fine the", "bad a", "dull a", "dull the")]
    return EmbeddingInstance.on(sequences, [1, 1, 1, -1, -1, -1], delta=0.5, draws=6, aligned=True)


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
        assumption4(x),
        one_length(x),
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
    Claim("A.lemma19", lemma19, "sampled", about="only important tokens, where theirs is the largest margin (mu > 0)",
        example=aligned_start, outside=OUTSIDE_THE_REGIME,
        unneeded={**IMPLIED, "mu": "Not needed: see A.lemma19-without-mu.", "d, in mu": "Not needed, as mu is not."},
        note=(
            "Random starts never meet the hypothesis: A.lemma19-no-mu proves that mu is negative. (14), on which the "
            "paper conditions, does not bound inner products between tokens, and a start that aligns them has mu near "
            "1/2; the example is one. The conclusion holds without mu too: see A.lemma19-without-mu."
        )),
    Claim("A.lemma19-no-mu", no_mu, "bounded", about="for random starts there is no such mu",
        example=lambda: EmbeddingInstance.of(6, 3, equal=False, draws=20),
        outside=(
            aligned_start,
            lambda: EmbeddingInstance.of(6, 3, equal=False, dimension=300, draws=20),
            lambda: EmbeddingInstance.of(4, 2, irrelevant=1, dimension=300, step=1e-6),
            lambda: EmbeddingInstance.on(["good a", "good a", "good a", "bad a"], [1, 1, 1, -1]),
            lambda: EmbeddingInstance.on(["good a"] * 6 + ["bad a a a"] * 2, [1] * 6 + [-1] * 2),
        ), note="Not in the paper, which expects mu > 0 for tokens of equal frequency."),
    Claim("A.lemma19-without-mu", lemma19_without_mu, "sampled", about="only important tokens, whatever mu",
        example=in_the_regime, outside=OUTSIDE_THE_REGIME, unneeded=IMPLIED),
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
