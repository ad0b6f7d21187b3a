"""Corpora that paper A's claims are audited on: none belongs to what a claim ships with.

Frequencies, repeats and companions vary; texts of several lengths, single sequences, single tokens, the K-level law,
and words under no law; dimensions from 1 to that of (10), first steps from 1e-6 to twice that of (10); every kind of
selection. A quarter are in Theorem 5's regime.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.instances import k_level_corpus, varied_selective_corpus
from tokenmargin.theory import EmbeddingInstance

__all__ = ["FAMILIES", "OF_CLAIM"]

Family = Callable[[np.random.Generator], EmbeddingInstance]
SELECTIONS = ("random", "tied", "important", "everything")
DELTA, DRAWS = 0.9, 2
"""Two draws can show that a probability is at most nine tenths, and the statements are about any delta."""


def _instance(corpus: TokenCorpus, rng: np.random.Generator, **options: Any) -> EmbeddingInstance:
    selections = SELECTIONS if corpus.important.any(axis=1).all() else ("random", "tied", "everything")
    return EmbeddingInstance.with_corpus(
        corpus,
        delta=DELTA,
        draws=DRAWS,
        seed=int(rng.integers(1 << 30)),
        selection=str(rng.choice(selections)),
        norm=1e4,
        **options,
    )


def _selective(rng: np.random.Generator) -> TokenCorpus:
    return varied_selective_corpus(2 * int(rng.integers(1, 4)), int(rng.integers(2, 6)), rng=rng)


def in_the_regime(rng: np.random.Generator) -> EmbeddingInstance:
    """Assumption 4 and (10)."""
    corpus = _selective(rng)
    eta = 4 * corpus.n**2 * corpus.T**2 * float(rng.uniform(1, 2))
    return _instance(corpus, rng, step=eta)


def moderate(rng: np.random.Generator) -> EmbeddingInstance:
    """Assumption 4, in some hundred dimensions, with any step."""
    return _instance(_selective(rng), rng, dimension=int(rng.integers(256, 2000)), step=float(10 ** rng.uniform(-6, 3)))


def tiny(rng: np.random.Generator) -> EmbeddingInstance:
    """Assumption 4, in fewer dimensions than tokens, down to one."""
    return _instance(_selective(rng), rng, dimension=int(rng.integers(1, 6)), step=float(10 ** rng.uniform(-2, 2)))


def any_words(rng: np.random.Generator) -> EmbeddingInstance:
    """Texts of any words and lengths, one text or one word among them."""
    n, most = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    words = int(rng.integers(1, 8))
    texts = [rng.integers(words, size=int(rng.integers(1, most + 1))).tolist() for _ in range(n)]
    corpus = TokenCorpus.of(texts, rng.choice([-1, 1], size=n))
    return _instance(corpus, rng, dimension=int(rng.integers(1, 400)), step=float(10 ** rng.uniform(-3, 2)))


def single_tokens(rng: np.random.Generator) -> EmbeddingInstance:
    """One token in each sequence: T = 1."""
    corpus = TokenCorpus.of([[f"w{k}"] for k in rng.integers(4, size=3)], [1, -1, 1])
    return _instance(corpus, rng, step=float(10 ** rng.uniform(0, 2)))


def one_sequence(rng: np.random.Generator) -> EmbeddingInstance:
    """n = 1."""
    length = int(rng.integers(1, 6))
    return _instance(TokenCorpus.of([rng.integers(4, size=length).tolist()], [1]), rng)


def by_levels(rng: np.random.Generator) -> EmbeddingInstance:
    """A small K-level corpus (33)-(35), in low dimension."""
    drawn = k_level_corpus(6, 5, rng=rng, levels=(0.4, 0.1), irrelevant=6, relevant_share=0.4)
    used, tokens = np.unique(drawn.tokens, return_inverse=True)
    corpus = TokenCorpus(tokens, drawn.lengths, drawn.labels, tuple(drawn.vocabulary[s] for s in used))
    return _instance(corpus, rng, dimension=int(rng.integers(2, 300)), step=float(10 ** rng.uniform(-1, 2)))


def _kept(make: Family) -> Family:
    """The same instance for every claim that draws it: its flows, kept with it, are followed once."""
    kept: dict[int, EmbeddingInstance] = {}

    @wraps(make)
    def draw(rng: np.random.Generator) -> EmbeddingInstance:
        key = int(rng.integers(1 << 62))
        if key not in kept:
            kept[key] = make(rng)
        return kept[key]

    return draw


FAMILIES: tuple[Family, ...] = tuple(
    _kept(make)
    for make in (in_the_regime, moderate, tiny, any_words, in_the_regime, single_tokens, one_sequence, by_levels)
)
OF_CLAIM: dict[str, tuple[Family, ...]] = {}
