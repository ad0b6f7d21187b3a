"""The max-margin problem of a corpus: millions of constraints, a certified gap.

    python -m benchmarks.margin_corpus  # 8k tokens, d=512, 5e6 constraints
    python -m benchmarks.margin_corpus --vocabulary 10000 --dimension 2048 --constraints 10000000

Sequences of 20 tokens; half of the draws follow Zipf's law and half are uniform, so that rare tokens occur too; the
selected token of a sequence is the argmax of a planted p. Sequences are added until the *distinct* constraints reach
the number asked for. The planted p selects the tokens; it is neither the answer nor of its margin.
"""

from __future__ import annotations

import resource
import time
from typing import Literal

import numpy as np

from benchmarks.tools import run_main
from tokenmargin.margin import argmax_pairs, corpus_margin
from tokenmargin.margin.corpus.pairs import transitive_reduction
from tokenmargin.problem.corpus import TokenCorpus

LENGTH = 20


def random_corpus(
    vocabulary: int, d: int, constraints: int, *, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, TokenCorpus]:
    """Embeddings, planted p, and a corpus with at least as many distinct constraints as asked for."""
    vectors = rng.standard_normal((vocabulary, d)) / np.sqrt(d)
    planted = rng.standard_normal(d) / np.sqrt(d)
    zipf = 1 / np.arange(1, vocabulary + 1)
    share = 0.5 * zipf / zipf.sum() + 0.5 / vocabulary
    sequences = constraints // LENGTH
    while True:
        sequences = int(sequences * 1.5)
        pieces = [
            rng.choice(vocabulary, size=LENGTH * 100_000, p=share).astype(np.int32)
            for _ in range(sequences // 100_000 + 1)
        ]
        ids = np.concatenate(pieces)
        corpus = as_corpus(ids, vocabulary)
        if len(argmax_pairs(corpus, vectors @ planted)) >= constraints:
            return vectors, planted, corpus


def as_corpus(ids: np.ndarray, vocabulary: int) -> TokenCorpus:
    """Sequences of equal length; the labels play no part here."""
    sequences = len(ids) // LENGTH
    return TokenCorpus(ids, np.full(sequences, LENGTH), np.ones(sequences), tuple(map(str, range(vocabulary))))


def main(
    *,
    vocabulary: int = 8000,
    dimension: int = 512,
    constraints: int = 5_000_000,
    gap: float = 1e-6,
    route: Literal["cuts", "interior"] | None = None,
) -> None:
    """By default the route that is faster for the dimension."""
    vectors, planted, corpus = random_corpus(vocabulary, dimension, constraints, rng=np.random.default_rng(0))
    began = time.perf_counter()
    pairs = argmax_pairs(corpus, vectors @ planted)
    collected = time.perf_counter() - began
    gaps: list[float] = []

    def progress(gap: float) -> None:
        gaps.append(gap)
        print(f"  {time.perf_counter() - began:6.1f} s  gap {gap:.2e}", flush=True)

    solution = corpus_margin(vectors, pairs, start=planted, gap=gap, route=route, progress=progress)
    smallest = pairs.margins(vectors @ solution.vector).min()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{vocabulary} tokens, d={dimension}: {pairs.occurrences} constraints, "
        f"{len(pairs)} distinct, {len(transitive_reduction(pairs, len(vectors)).numbers)} not implied by others\n"
        f"{solution.status} in {len(gaps)} rounds, {collected:.1f} s to collect and {solution.seconds:.1f} s to solve; "
        f"gap {solution.certificate.gap:.1e}, residual {solution.certificate.residual:.1e}, "
        f"{len(solution.active)} active, smallest margin {smallest:.12f}, |p| {1 / solution.margin:.6g}; "
        f"peak memory {memory:.2f} GiB"
    )


if __name__ == "__main__":
    run_main(main, __doc__)
