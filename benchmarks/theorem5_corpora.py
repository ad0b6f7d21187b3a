"""Theorem 5 of paper A, and Lemma 19's conclusion, over corpora: each a replication of its own.

    python -m benchmarks.theorem5_corpora [--count 100] [--jobs 1]

In the dimension of (10) the starts of one corpus differ by 1e-22 and less, so they are one experiment; what can vary
is the corpus. Each is drawn from all that Assumption 4 leaves open: how many sequences an important token decides,
which irrelevant tokens stand beside it, and how often. Flow is followed to |p| = 1e5 and compared with the certified
max-margin direction of what it selects.
"""

from __future__ import annotations

import hashlib
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.tools import header, line, run_main
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.theory import EmbeddingInstance
from tokenmargin.theory.paper_a.conditions import theorem5_conditions
from tokenmargin.theory.paper_a.flow import MISALIGNED, one_minus_cosine

__all__ = ["Replication", "replicate", "structure"]

SIZES = ((2, 2), (4, 3), (8, 4))


def structure(corpus: TokenCorpus) -> tuple[str, ...]:
    """A fingerprint that does not depend on names or order: corpora that differ in it are different."""
    counts = np.zeros((corpus.size, corpus.n), dtype=int)
    np.add.at(counts, (corpus.tokens, corpus.sequence), 1)
    tokens = [str(sign) for sign in corpus.sole_label]
    for _ in range(3):  # sequences by who stands in them, tokens by where they stand, to depth three
        texts = [sorted((tokens[s], int(counts[s, i])) for s in np.flatnonzero(counts[:, i])) for i in range(corpus.n)]
        tokens = [f"{tokens[s]}{sorted(str(texts[i]) for i in np.flatnonzero(counts[s]))}" for s in range(corpus.size)]
        tokens = [hashlib.sha256(token.encode()).hexdigest()[:12] for token in tokens]
    return tuple(sorted(tokens))


@dataclass(frozen=True)
class Replication:
    """One corpus, its first step, its flow."""

    structure: tuple[str, ...]
    repeats: bool
    unequal: bool
    grew: bool
    selected: bool
    only: bool
    one_minus_cosine: float
    slope: float
    eta: float
    d: float


def replicate(n: int, T: int, seed: int) -> Replication:
    """Draw a corpus, take the first step, follow the flow."""
    x = EmbeddingInstance.of(n, T, varied=True, seed=seed)
    if not all(slack.proven for slack in theorem5_conditions(x)):
        raise RuntimeError(f"corpus {seed} is outside the regime")
    limit, important, corpus = x.limits[0], x.corpus.important, x.corpus
    sizes = np.abs(corpus.signed_frequency[corpus.sole_label != 0])
    return Replication(
        structure=structure(corpus),
        repeats=any(len(set(row)) < T for row in corpus.index.tolist()),
        unequal=bool(np.ptp(sizes) > 0),
        grew=limit.path.stop == "norm",
        selected=bool(limit.chosen[important].all()),
        only=bool((limit.chosen == important).all()),
        one_minus_cosine=one_minus_cosine(limit.angle),
        slope=limit.slope,
        eta=x.step,
        d=float(x.dimension),
    )


HEAD = (
    *("n", "T", "eta_0", "d", "corpora", "different", "unequal frequencies", "a token twice", "grew"),
    *("important tokens selected", "only they", "largest 1 - cosine", "angle falls like"),
)


def row(n: int, T: int, runs: list[Replication]) -> str:
    """One line of the table."""
    slopes = [run.slope for run in runs]
    cells = (
        *(n, T, f"{runs[0].eta:g}", f"{runs[0].d:.2g}", len(runs), len({run.structure for run in runs})),
        *(sum(getattr(run, name) for run in runs) for name in ("unequal", "repeats", "grew", "selected", "only")),
        f"{max(run.one_minus_cosine for run in runs):.1e}",
        f"\\|p\\|^({min(slopes):.3f}) to \\|p\\|^({max(slopes):.3f})",
    )
    return line(*cells)


def main(*, count: int = 100, jobs: int = 1) -> int:
    """So many corpora per size, in so many processes."""
    print(header(*HEAD), flush=True)
    began, failed = time.perf_counter(), 0
    for n, T in SIZES:
        with ProcessPoolExecutor(jobs) as pool:
            runs = list(pool.map(partial(replicate, n, T), range(count)))
        failed += sum(
            not (run.grew and run.selected and run.only and run.one_minus_cosine <= MISALIGNED) for run in runs
        )
        print(row(n, T, runs), flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s; the conclusion fails on {failed} corpora")
    return 1 if failed else 0


if __name__ == "__main__":
    run_main(main, __doc__)
