"""Problems and corpora to start from: random ones, those of paper B's figures, the K-level model of paper A.

In the figures with d = 3 a token is `x = (key_1, key_2, score)`: the keys are `W x` with `W = diag(1, 1, 0)` and the
head is `(0, 0, 1)`, so every token can be given any score at any place of the plane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin._statistics import Rng, generator
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem

LEVELS = (0.45, 0.35, 0.3, 0.25, 0.2, 0.1, 0.05, 0.02)
"""The importance levels `delta_1, ..., delta_8` of Figure 2."""
SYNTHETIC_SIZE = 25_000
"""Sequences in Figure 2's corpus: not printed, but 25,000 make its 196 batches of 128."""
LARGEST_POOL = 10**7
"""Irrelevant tokens of a corpus to draw from."""
IRRELEVANT = "irrelevant"
"""How the names of the irrelevant tokens of a K-level corpus begin."""


def random_problem(n: int, T: int, d: int, *, rng: Rng) -> TokenProblem:
    """Tokens and head uniform on the unit sphere, labels fair coins: the data of Figures 9 and 10.

    >>> random_problem(n=4, T=6, d=10, rng=np.random.default_rng(0)).scores.shape
    (4, 6)
    """
    rng = generator(rng)
    for name, size in (("n", n), ("T", T), ("d", d)):
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    keys = _on_sphere(rng, (n, T, d))
    return TokenProblem.of(keys, rng.choice([-1.0, 1.0], size=n), head=_on_sphere(rng, (d,)))


def shared_vocabulary_problem(n: int, T: int, d: int, *, vocabulary: int, rng: Rng) -> TokenProblem:
    """As `random_problem`, but the tokens of every input are drawn from one dictionary of `vocabulary` vectors."""
    rng = generator(rng)
    if not 1 <= T <= vocabulary:
        raise ValueError(f"T must lie in 1..vocabulary = {vocabulary} (no token twice in one input), got {T}")
    vectors = _on_sphere(rng, (vocabulary, d))
    index = np.stack([rng.choice(vocabulary, size=T, replace=False) for _ in range(n)])
    return TokenProblem(Coordinates(vectors, index), rng.choice([-1.0, 1.0], size=n), head=_on_sphere(rng, (d,)))


def figure1a() -> TokenProblem:
    """One input of three tokens; the two others score alike, so every start reaches the GMM (Theorem 2)."""
    return _planar_problem([[(-0.1, 1.0, 1.0), (1.0, 0.0, 0.9), (0.0, 0.0, 0.9)]])


def figure1b() -> TokenProblem:
    """As 1a, but the token at the origin scores 0: token 1 becomes locally optimal (Theorem 3)."""
    return _planar_problem([[(-0.1, 1.0, 1.0), (1.0, 0.0, 0.9), (0.0, 0.0, 0.0)]])


_FIGURE_1C_KEYS = (
    ((0.774832, -0.23047204), (-1.0867758, 1.1697421), (-1.0632025, 0.57695615), (-1.252667, 1.0699966),
     (-0.4760317, -0.2524684), (-0.54945564, -0.77053076), (-0.38666987, -0.34129834)),
    ((0.68898094, -0.06827208), (-0.8499621, 0.8829005), (-0.9633044, 1.2778733), (-0.81074035, 0.8312646),
     (-0.49368146, -0.5985354), (-0.41206083, -0.47751775), (-0.41176873, -0.5204619)),
    ((0.94206643, 0.0105015), (-0.5395589, 0.7062212), (-1.1138496, 1.1839943), (-0.74202514, 0.7043652),
     (-0.594624, -0.23494503), (-0.60994875, -0.5959669), (-0.7133961, -0.27701208)),
)  # fmt: skip


def figure1c() -> TokenProblem:
    """Three inputs of seven tokens, the first of each optimal; also the data of Figure 4."""
    return _planar_problem([[(*key, 1.0 if t == 0 else 0.5) for t, key in enumerate(row)] for row in _FIGURE_1C_KEYS])


def figure3a(third: tuple[float, float] = (0.5, 1.0)) -> TokenProblem:
    """Three inputs {(0, 0), x_i}: head and attention are trained together; all x_i are support vectors (Theorem 5)."""
    tokens = np.array([[(0.0, 0.0), (1.0, 1.0)], [(0.0, 0.0), (1.0, -1.0)], [(0.0, 0.0), third]])
    return TokenProblem.of(tokens, [1, -1, 1], head=[-1.0, 0.0])


def figure3b() -> TokenProblem:
    """As 3a, with the third token moved up to (0.5, 1.5): no longer a support vector (Theorem 6)."""
    return figure3a(third=(0.5, 1.5))


def figure5(score: float = 1.0) -> TokenProblem:
    """Two inputs whose optimal tokens (1, 1) and (1, -1) score `score` and 1: how the loss bends the path."""
    return _planar_problem([[(0.0, 0.0, 0.0), (1.0, 1.0, score)], [(0.0, 0.0, 0.0), (1.0, -1.0, 1.0)]])


def figure8() -> TokenProblem:
    """Two inputs of two tokens with d = 2 and two limits: Theorem 2 needs n = 1. Our own instance (none is printed).

    With `d_i` the optimal key minus the other key of input `i`, the direction `d_1` selects the worse token of input 2
    and is locally optimal when that token wins by more than the margin: `-<d_2, d_1> > |d_1|^2`. Here `d_1 = (1, 0)`
    and `d_2 = (-2, 1)`: the LMM is (1, 0) and the GMM is (1, 3). W is the identity, and the head (1, 3) gives the
    optimal tokens the score 1 and the others 0.
    """
    keys = [[(1.0, 0.0), (0.0, 0.0)], [(-2.0, 1.0), (0.0, 0.0)]]
    return TokenProblem.of(keys, [1, 1], head=[1.0, 3.0])


def three_limits() -> TokenProblem:
    """Two inputs of four tokens in the plane with three limit directions: an instance of our own, to demonstrate."""
    return _planar_problem(
        [
            [(-0.1, -0.6, 0.8), (-0.5, -0.2, 0.1), (0.0, 0.2, 0.3), (0.1, 1.0, 0.6)],
            [(-0.3, -0.6, 0.7), (0.5, 0.5, 0.3), (-0.7, 0.1, 0.4), (-0.1, 0.1, 0.2)],
        ]
    )


def figure9(d: int, *, rng: Rng) -> TokenProblem:
    """One trial of Figures 9 and 10: four inputs of six random tokens in `d` dimensions."""
    return random_problem(n=4, T=6, d=d, rng=rng)


NAMED_PROBLEMS: MappingProxyType[str, Callable[[], TokenProblem]] = MappingProxyType(
    {
        "fig1a": figure1a,
        "fig1b": figure1b,
        "fig1c": figure1c,
        "fig3a": figure3a,
        "fig3b": figure3b,
        "fig5": figure5,
        "fig8": figure8,
        "three-limits": three_limits,
    }
)
"""Problems that take no argument, by name: what the command line accepts in place of a file."""


def _on_sphere(rng: np.random.Generator, shape: tuple[int, ...]) -> Float[Array, "..."]:
    points = rng.standard_normal(shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def _planar_problem(tokens: list[list[tuple[float, float, float]]]) -> TokenProblem:
    """Tokens (key_1, key_2, score), labels +1, W = diag(1, 1, 0), head (0, 0, 1)."""
    values = np.array(tokens)
    return TokenProblem.of(values * [1.0, 1.0, 0.0], np.ones(len(tokens)), values=values, head=[0.0, 0.0, 1.0])


def k_level_corpus(
    n: int,
    T: int = 256,
    *,
    rng: Rng,
    levels: Sequence[float] = LEVELS,
    irrelevant: int = 964,
    relevant_share: float = 0.05,
) -> TokenCorpus:
    """Sequences drawn token by token from the K-level law (33)-(35), labels by fair coin.

    Level k has `4 + 2^k` tokens for each label; with the paper's other numbers that makes its vocabulary of 2048. (The
    printed `4 + 2^(k-1)` makes 1538.) A token of level k under its own label has probability
    `relevant_share (1 - delta_k) / sum_k |S_k|`, under the other `relevant_share delta_k / sum_k |S_k|`; the rest of
    the mass falls on the irrelevant tokens.

    **Arguments**
    - `levels`: `delta_k`; small means decisive.
    - `irrelevant`: number of irrelevant tokens.
    - `relevant_share`: `delta~`.

    >>> k_level_corpus(10, rng=np.random.default_rng(0)).size
    2048
    """
    if min(n, T, irrelevant, len(levels)) < 1 or not 0 < relevant_share <= 1:
        raise ValueError(
            "n, T, irrelevant and the number of levels must be at least 1 and relevant_share a share above 0, "
            f"got {n}, {T}, {irrelevant}, {len(levels)} and {relevant_share}"
        )
    rng = generator(rng)
    sizes = np.array([4 + 2**k for k in range(1, len(levels) + 1)])
    delta = np.repeat(levels, sizes)
    per_token = relevant_share / sizes.sum()
    own, other = per_token * (1 - delta), per_token * delta
    rest = np.full(irrelevant, (1 - relevant_share) / irrelevant)
    labels = rng.choice([-1.0, 1.0], size=n)
    rows = np.empty((n, T), dtype=np.intp)
    for y, law in ((1.0, (rest, own, other)), (-1.0, (rest, other, own))):
        p = np.concatenate(law)
        here = labels == y
        rows[here] = rng.choice(len(p), size=(int(here.sum()), T), p=p / p.sum())
    levels_of = np.repeat(np.arange(1, len(levels) + 1), sizes)
    words = [f"{IRRELEVANT}{j}" for j in range(irrelevant)]
    words += [f"{sign}{k}.{j}" for sign in "+-" for j, k in enumerate(levels_of.tolist())]
    return _from_rows(rows, labels, words)


def selective_corpus(
    n: int, T: int, *, rng: Rng, irrelevant: int | None = None, equal: bool = True, repeats: bool = False
) -> TokenCorpus:
    """A random corpus that satisfies Assumption 4: one token of each sequence decides its label.

    The positive and the negative half of the sequences hold the same irrelevant tokens equally often, so that their
    signed frequencies vanish exactly.

    **Arguments**
    - `n`: number of sequences, even.
    - `T`: length of each, at least 2.
    - `irrelevant`: how many irrelevant tokens there are; twice what one sequence holds by default.
    - `equal`: give every sequence its own important token, so that all `|alpha_s|` agree; otherwise about half of the
      positive sequences share one.
    - `repeats`: let irrelevant tokens repeat within a sequence.

    >>> corpus = selective_corpus(4, 3, rng=np.random.default_rng(0))
    >>> corpus.assumption4().holds, float(np.abs(corpus.signed_frequency).max() * 12)
    (True, 1.0)
    """
    rng = generator(rng)
    half, fill = n // 2, T - 1
    pool = 2 * fill if irrelevant is None else irrelevant
    if n < 2 or n % 2 or T < 2 or pool < 1:
        raise ValueError(f"n must be even, T at least 2 and irrelevant at least 1, got n={n}, T={T}, {pool}")
    if pool > LARGEST_POOL:
        raise ValueError(f"irrelevant must be at most {LARGEST_POOL}, since they are shuffled, got {pool}")
    if not repeats and pool < fill:
        raise ValueError(f"{fill} different irrelevant tokens cannot be drawn from {pool}; pass repeats=True")
    if not equal and half < 2:
        raise ValueError(f"unequal frequencies need two sequences of one label, so n >= 4, got {n}")
    if repeats:
        chosen = rng.integers(pool, size=(half, fill))
        other = rng.permuted(chosen.ravel()).reshape(half, fill)
    else:
        chosen = np.stack([rng.permutation(pool)[:fill] for _ in range(half)])
        other = chosen[rng.permutation(half)]
    used, compact = np.unique(chosen, return_inverse=True)
    chosen = compact.reshape(half, fill)
    other = np.searchsorted(used, other)
    shared = 1 if equal else half // 2 + 1  # how many positive sequences the first important token decides
    positive = np.maximum(np.arange(half) - (shared - 1), 0)
    decisive = np.concatenate([positive, positive.max() + 1 + np.arange(half)])
    rows = np.column_stack([len(used) + decisive, np.concatenate([chosen, other])])
    rows = rng.permuted(rows, axis=1)
    words = [f"{IRRELEVANT}{j}" for j in range(len(used))]
    words += [f"positive{j}" for j in range(positive.max() + 1)] + [f"negative{j}" for j in range(half)]
    labels = np.repeat([1.0, -1.0], half)
    return _from_rows(rows, labels, words)


def varied_selective_corpus(n: int, T: int, *, rng: Rng) -> TokenCorpus:
    """A corpus under Assumption 4 with nothing else held equal: frequencies, repeats, and who stands beside whom vary.

    Under each label the sequences draw their important token from a random number of them, so some decide many
    sequences and some one. The irrelevant tokens of the positive half, drawn from a pool of random size and repeated as
    it comes, are dealt out again to the negative half.

    **Arguments**
    - `n`: number of sequences, even: one important token in each and irrelevant ones that balance leave no other.
    - `T`: length of each, at least 2.

    >>> varied_selective_corpus(8, 4, rng=np.random.default_rng(0)).assumption4().holds
    True
    """
    rng = generator(rng)
    if n < 2 or n % 2 or T < 2:
        raise ValueError(f"n must be even and T at least 2, got n={n}, T={T}")
    half, fill = n // 2, T - 1
    decisive: list[Array] = []
    words: list[str] = []
    for sign in ("positive", "negative"):
        _, own = np.unique(rng.integers(rng.integers(half) + 1, size=half), return_inverse=True)
        decisive.append(len(words) + own)
        words += [f"{sign}{j}" for j in range(own.max() + 1)]
    pool = int(rng.integers(half * fill)) + 1
    used, dealt = np.unique(rng.integers(pool, size=half * fill), return_inverse=True)
    halves = [dealt.reshape(half, fill), rng.permutation(dealt).reshape(half, fill)]
    rows = np.column_stack([np.concatenate(decisive), len(words) + np.concatenate(halves)])
    words += [f"irrelevant{j}" for j in range(len(used))]
    return _from_rows(rng.permuted(rows, axis=1), np.repeat([1.0, -1.0], half), words)


def _from_rows(rows: Int[Array, "n T"], labels: Array, words: list[str]) -> TokenCorpus:
    n, T = rows.shape
    return TokenCorpus(rows.ravel(), np.full(n, T), labels, tuple(words))


def balanced_sequences(corpus: TokenCorpus, rng: Rng, *, size: int | None = None) -> TokenCorpus:
    """As many sequences of either label, `size` in all: by default as many as the smaller class allows."""
    rng = generator(rng)
    sides = [np.flatnonzero(corpus.labels == y) for y in (-1.0, 1.0)]
    each = min(map(len, sides)) if size is None else size // 2
    rows = np.zeros(corpus.n, dtype=bool)
    for side in sides:
        rows[rng.choice(side, each, replace=False)] = True
    return some_sequences(corpus, np.flatnonzero(rows))


def some_sequences(corpus: TokenCorpus, rows: Int[Array, " r"]) -> TokenCorpus:
    """Some sequences, in their order; the vocabulary stays."""
    kept = np.zeros(corpus.n, dtype=bool)
    kept[rows] = True
    return TokenCorpus(
        corpus.tokens[kept[corpus.sequence]], corpus.lengths[kept], corpus.labels[kept], corpus.vocabulary
    )
