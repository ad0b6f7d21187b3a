"""When only important tokens are selected: Lemmas 19 and 21 of paper A, and why Lemma 19 says nothing of random starts.

Lemma 19 asks that the max-margin vector of the important tokens be shorter, by a factor 1 - mu, than that of every
other selection. The proof that a random start never has such a mu > 0 is in `no_mu`.
"""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Bool
from numpy import ndarray as Array

from tokenmargin.corpus import TokenCorpus
from tokenmargin.margin import MarginSolution, class_margin
from tokenmargin.problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, equal
from tokenmargin.theory.instances import EmbeddingInstance
from tokenmargin.theory.paper_a.conditions import concentrated, deviation, lacking, quantile, regime, share
from tokenmargin.theory.paper_a.selection import MISALIGNED, OUTSIDE_THE_REGIME, RESIDUAL

__all__ = ["CLAIMS", "aligned_start", "largest_mu", "smallest_rival"]

MOST_PAIRS = 12
"""Selections are enumerated up to this many (important, irrelevant) pairs: 4096 max-margin problems."""


def lemma21(x: EmbeddingInstance) -> Findings:
    """Where d is as large as Lemma 19 asks, the max-margin vector that selects the important tokens only has
    |p| <= 4n."""
    n = x.corpus.n
    lengths = [_length(class_margin(problem, x.corpus.important)) for problem, _ in x.posed]
    need = (2 * x.step * (n * deviation(x) + 44 * np.sqrt(2) * n)) ** 4
    return Findings(
        hypotheses=(*concentrated(x), above("d, for E_s nearly orthogonal", x.dimension, need)),
        conclusion=(below("longest |p^|, (1 - delta) quantile", quantile(lengths, x), 4 * n),),
    )


def lemma19(x: EmbeddingInstance) -> Findings:
    """Under Theorem 5's conditions, if the max-margin vector that selects the important tokens only is shorter than
    that of every other selection by a factor 1 - mu, and d is large enough in mu, then gradient flow converges to its
    direction. (Other selections must contain the important tokens and not be everything: Theorem 5 and Lemma 6
    exclude the rest. Read to the letter, the selection of everything has length 0, and no mu > 0 exists.)"""
    single = x.corpus.assumption4().holds  # otherwise the selections to compare with are not defined
    mu = min(largest_mu(problem, x.corpus.important) for problem, _ in x.posed) if single else -np.inf
    n, T = x.corpus.n, x.corpus.T
    need = (2816 * T * n**2 * (1 + 2 * x.step) / mu) ** 4 if mu > 0 else np.inf
    need = max(need, (2 * x.step * (n * deviation(x) + 44 * n)) ** 4)
    hypotheses = (*regime(x), above("mu", mu, 0, strict=True), above("d, in mu", x.dimension, need))
    return Findings(hypotheses, _only_important(x))


def lemma19_without_mu(x: EmbeddingInstance) -> Findings:
    """Under Theorem 5's conditions gradient flow converges to the max-margin direction that selects the important
    tokens only. (Lemma 19 without its hypothesis on mu.)"""
    return Findings(regime(x), _only_important(x))


def no_mu(x: EmbeddingInstance) -> Findings:
    """Under Theorem 5's conditions a random start leaves Lemma 19 no mu > 0: the selection that separates the most
    frequent important token and ties everything else has a shorter max-margin vector. (Of randomness this takes (14)
    and tokens that start orthonormal up to d^(-1/4).)

    Proof. Let M be the number of important tokens, N of irrelevant ones, k_s in how many sequences the important token
    s stands. Each sequence of T holds one important token, and irrelevant tokens are as frequent under either label,
    so the labels have n/2 sequences each: `sum k_s` over the positive s is that over the negative s. Up to terms of
    size d^(-1/4), `E_s = e_s + y_s k_s c v` with orthonormal e_s and v and `c = eta_0 / (2 n T) >= 2 n T`, and
    `E_t = e_t` for irrelevant t.

    - For each s put the weight 1 on its constraints `<E_s - E_t, p> >= 1` in all. They add up to `<w, p> >= M` with
      `w = sum_s E_s - sum_t m_t e_t`, `sum_t m_t = M`. Its components along v cancel, so `|w|^2 <= M + M^2`, and
      `|p^|^2 >= M^2 / |w|^2 >= 1 - 1/(M+1)`.
    - The vector with logit b + 1 for s and b for all other tokens, and component z along v, selects as said. Its
      squared length, least over b and z, is `1 - 1/(N+M) - k_s^2 / (sum k^2 + c^(-2))`. For the largest k_s the last
      term is at least `1/(M+1)`, as `c k_s >= 1`. So `|p'|^2 <= |p^|^2 - 1/(N+M)`: mu is negative.

    What was left out moves squared lengths by at most a multiple of `|S| eta_0^2 d^(-1/4) < |S| / (88 eta_0)^2`, which
    is far below `1/(N+M) = 1/|S|`.
    """
    corpus = x.corpus
    M, N = int((corpus.completely != 0).sum()), int((corpus.completely == 0).sum())
    extra = (
        equal("longest sequence minus shortest", corpus.T - corpus.lengths.min(), 0, tolerance=0),
        below(
            "tokens at the start from orthonormal", _from_orthonormal(x), float(x.dimension) ** -0.25, tolerance=1e-12
        ),
    )
    ours = [_length(class_margin(problem, corpus.important)) for problem, _ in x.posed]
    rivals = [_length(class_margin(problem, _all_but_one(corpus))) for problem, _ in x.posed]
    gaps = [theirs**2 - own**2 for own, theirs in zip(ours, rivals, strict=True)]
    return Findings(
        hypotheses=(*regime(x), *extra),
        conclusion=(
            above("shortest |p^|^2", min(ours) ** 2, 1 - 1 / (M + 1), tolerance=RESIDUAL),
            below("longest |p'|^2 of the rival", max(rivals) ** 2, smallest_rival(x), tolerance=RESIDUAL),
            below("|p'|^2 - |p^|^2, (1 - delta) quantile", quantile(gaps, x), -1 / (N + M), tolerance=RESIDUAL),
        ),
    )


def _from_orthonormal(x: EmbeddingInstance) -> float:
    """The largest entry of `<E_s, E_t> - 1_{s = t}` at the start, (1 - delta) quantile."""
    size = x.corpus.size
    grams = (step.before.geometry.gram_of(np.arange(size)) for step in x.steps)
    return quantile([float(np.abs(gram - np.eye(size)).max()) for gram in grams], x)


def smallest_rival(x: EmbeddingInstance) -> float:
    """`1 - 1/|S| - k_s^2 / (sum k^2 + c^(-2))` of `no_mu`, for the most frequent s."""
    corpus = x.corpus
    k = corpus.counts.max(axis=0)[corpus.completely != 0]
    c = x.step / (2 * corpus.n * corpus.T)
    return float(1 - 1 / corpus.size - k.max() ** 2 / ((k**2).sum() + c**-2))


def _all_but_one(corpus: TokenCorpus) -> Bool[Array, "n T"]:
    """The selection that ties every sequence, but for those of the most frequent important token."""
    counts = np.where(corpus.completely != 0, corpus.counts.max(axis=0), 0)
    own = (corpus.index == counts.argmax()) & corpus.mask
    return np.asarray(np.where(own.any(axis=1, keepdims=True), own, corpus.mask))


def _only_important(x: EmbeddingInstance) -> tuple[Slack, ...]:
    angles = [
        float(angle(problem.keys, limit.path.prompt, class_margin(problem, x.corpus.important).vector))
        for (problem, _), limit in zip(x.posed, x.limits, strict=True)
    ]
    misaligned = [lacking(a) for a in angles]
    exactly = [bool((limit.chosen == x.corpus.important).all()) for limit in x.limits]
    return (
        share("only important tokens selected", exactly, x),
        below("1 - cosine with their direction, (1 - delta) quantile", quantile(misaligned, x), MISALIGNED),
    )


def _length(solution: MarginSolution) -> float:
    return 1 / solution.margin if solution.is_optimal else np.inf


def largest_mu(problem: TokenProblem, important: Bool[Array, "n T"]) -> float:
    """`1 - |p^| / min |p^'|` over selections p^' that tie irrelevant tokens with the important ones.

    A tie depends on the two tokens alone, so a selection is a set of tied (important, irrelevant) pairs. All sets are
    tried up to 12 pairs; beyond, only those that tie one label's sequences completely: an upper bound on mu.
    """
    index = problem.keys.index
    owner = index[important]
    pairs = sorted({(int(owner[i]), int(t)) for i in range(problem.n) for t in index[i] if t != owner[i]})
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
            rivals.append(_length(class_margin(problem, chosen & problem.mask)))
    own = _length(class_margin(problem, important))
    return 1 - own / min(rivals) if np.isfinite(own) else -np.inf


def aligned_start() -> EmbeddingInstance:
    """A start with mu near 1/2. Important tokens have h in common, irrelevant ones -h, so p^ is near h/2.

    To tie a token one must move along v, where the tokens have y k c. Each label has a token of k = 2 and one of k = 1:
    tying the first takes half of the second's lead with it, and the vector must grow to give it back.
    """
    sequences = ["good a", "fine a", "fine the", "bad a", "dull a", "dull the"]
    return EmbeddingInstance.on(sequences, [1, 1, 1, -1, -1, -1], draws=5, aligned=True)


CLAIMS = (
    Claim(
        "A.lemma19",
        lemma19,
        "sampled",
        about="only important tokens, where theirs is the largest margin (mu > 0)",
        example=aligned_start,
        outside=OUTSIDE_THE_REGIME,
        unneeded={"mu": "Not needed: see A.lemma19-without-mu.", "d, in mu": "Not needed, as mu is not."},
        note=(
            "Random starts never meet the hypothesis: A.lemma19-no-mu proves that mu is negative. (14), on which the "
            "paper conditions, does not bound inner products between tokens, and a start that aligns them has mu near "
            "1/2; the example is one. The conclusion holds without mu too: see A.lemma19-without-mu."
        ),
    ),
    Claim(
        "A.lemma19-no-mu",
        no_mu,
        "bounded",
        about="for random starts there is no such mu",
        example=lambda: EmbeddingInstance.of(6, 3, equal=False, draws=20),
        outside=(
            aligned_start,
            lambda: EmbeddingInstance.of(6, 3, equal=False, dimension=10, draws=20),
            lambda: EmbeddingInstance.of(4, 2, irrelevant=1, dimension=300, step=1e-6),
            lambda: EmbeddingInstance.on(["good a", "good a", "good a", "bad a"], [1, 1, 1, -1]),
            lambda: EmbeddingInstance.on(["good a"] * 3 + ["bad a a a"] * 2, [1, 1, 1, -1, -1]),
        ),
        note="Not in the paper, which expects mu > 0 for tokens of equal frequency. The proof is in the statement.",
    ),
    Claim(
        "A.lemma19-without-mu",
        lemma19_without_mu,
        "sampled",
        about="only important tokens, whatever mu",
        example=lambda: EmbeddingInstance.of(4, 3, draws=5),
        outside=OUTSIDE_THE_REGIME,
    ),
    Claim(
        "A.lemma21",
        lemma21,
        "bounded",
        about="|p^| <= 4n",
        example=lambda: EmbeddingInstance.of(4, 3, draws=20),
        outside=(lambda: EmbeddingInstance.of(8, 4, dimension=2, draws=5),),
        note="Lemma 19 prints 44 n where the proof of Lemma 21 uses 44 sqrt(2) n; the larger is required here.",
    ),
)
