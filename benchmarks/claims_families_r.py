"""Random instances for the results of our own: ties, repeats, masks, scales, d = 1, n = 1; corpora of every regime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks import claims_families_a as of_corpora
from benchmarks import claims_families_b as of_p
from tokenmargin.margin import limit_direction
from tokenmargin.problem.instances import varied_selective_corpus
from tokenmargin.theory import EmbeddingInstance, ProblemInstance
from tokenmargin.theory.results.first_step import sharp_dimension

__all__ = ["FAMILIES", "OF_CLAIM"]

Family = Callable[[np.random.Generator], ProblemInstance]


def _best(family: Family) -> Family:
    """A family with the best tokens selected, three times of four."""

    def make(rng: np.random.Generator) -> ProblemInstance:
        x = family(rng)
        return replace(x, selected=None) if rng.random() < 0.75 else x

    return make


def _started(family: Family) -> Family:
    """A family with starts from zero to far along the best tokens' direction, some of them beside it."""

    def make(rng: np.random.Generator) -> ProblemInstance:
        x = family(rng)
        direction = limit_direction(x.problem, x.best).solution.vector
        beside = rng.standard_normal(direction.shape) * rng.choice([0.0, 0.3, 3.0])
        return replace(x, selected=None, p=float(10 ** rng.uniform(-1, 1.5)) * direction + beside)

    return make


def at_the_dimension(rng: np.random.Generator) -> EmbeddingInstance:
    """Assumption 4 at half to twice the dimension of the sharp condition, at a tenth to twice its step."""
    corpus = varied_selective_corpus(2 * int(rng.integers(1, 3)), int(rng.integers(2, 5)), rng=rng)
    step = 4 * corpus.n**2 * corpus.T**2 * float(rng.choice([0.1, 1.0, 2.0], p=[0.1, 0.6, 0.3]))
    least = sharp_dimension(corpus.size, step, of_corpora.DELTA)
    d = float(np.ceil(least * rng.choice([0.5, 1.0, 2.0], p=[0.2, 0.5, 0.3])))
    return EmbeddingInstance.with_corpus(
        corpus, dimension=d, step=step, delta=of_corpora.DELTA, draws=of_corpora.DRAWS, seed=int(rng.integers(1 << 30))
    )


def many_starts(rng: np.random.Generator) -> EmbeddingInstance:
    """Sequences of one length in many dimensions, 60 starts: enough for a mean and its standard error."""
    made = of_corpora.FAMILIES[int(rng.integers(len(of_corpora.FAMILIES)))](rng)
    d = float(np.ceil(10 ** rng.uniform(3.5, 7)))
    return EmbeddingInstance.with_corpus(
        made.corpus,
        dimension=d,
        step=float(10 ** rng.uniform(-3, 3)),
        delta=0.3,
        draws=60,
        seed=int(rng.integers(1 << 30)),
    )


PROMPTS = tuple(
    _best(family)
    for family in (of_p.gaussian, of_p.integers, of_p.repeats, of_p.line, of_p.unequal, of_p.mapped, of_p.alike)
)
FAMILIES: tuple[Family, ...] = PROMPTS
OF_CLAIM: dict[str, tuple[Callable[[np.random.Generator], EmbeddingInstance | ProblemInstance], ...]] = {
    "R.sublevel": tuple(_started(family) for family in PROMPTS),
    "R.joint-phase": (of_p.labelled, of_p.mapped),
    "R.joint-descent": (of_p.labelled, of_p.mapped),
    "R.first-step": (many_starts,),
    "R.first-step-conditions": (at_the_dimension, at_the_dimension, *of_corpora.FAMILIES),
    "R.theorem5-plus": (at_the_dimension, at_the_dimension, *of_corpora.FAMILIES),
}
