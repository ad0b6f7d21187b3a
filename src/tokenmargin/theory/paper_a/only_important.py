"""When only important tokens are selected: Lemma 19 of paper A, and why it says nothing of random starts.

Lemma 19 asks that the max-margin vector of the important tokens be shorter, by a factor 1 - mu, than that of every
other selection. A random start never has such a mu > 0: `no_mu`.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray as Array

from tokenmargin.margin import MarginSolution, class_margin
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, sampled
from tokenmargin.theory.evidence import FollowedFlow
from tokenmargin.theory.paper_a.classes import RESIDUAL
from tokenmargin.theory.paper_a.conditions import (
    IMPLIED,
    allowed_deviations,
    one_minus_cosine,
    quantile_of_draws,
    theorem5_conditions,
    without_subject,
)
from tokenmargin.theory.paper_a.flow import MISALIGNED, OUTSIDE_THE_REGIME, in_the_regime, seen_in_the_limit
from tokenmargin.theory.paper_a.lengths import length
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
)  # fmt: skip
