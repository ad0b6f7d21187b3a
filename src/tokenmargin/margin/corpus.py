"""The max-margin problem of a whole corpus: millions of constraints, given implicitly.

Most constraints follow from others by order alone and are dropped (`covering`). The rest are solved by cutting planes
or by an interior point method, and what comes out is judged on all constraints: `p / (smallest margin of p)` satisfies
every one, and any non-negative multipliers bound the norm from below by `sum_j lambda_j / |sum_j lambda_j row_j|`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.covering import covering
from tokenmargin.margin.cutting import cutting_planes
from tokenmargin.margin.differences import Differences, Proposal
from tokenmargin.margin.interior import interior_point
from tokenmargin.margin.judge import Judge
from tokenmargin.margin.pairs import RowPairs
from tokenmargin.margin.solution import MarginSolution

__all__ = ["Route", "corpus_margin"]

Route = Literal["cuts", "interior"]

WIDE = 512
"""Dimension from which the interior point method is the faster route."""


def corpus_margin(
    vectors: Float[Array, "m d"],
    pairs: RowPairs,
    *,
    start: Float[Array, " d"] | None = None,
    gap: float = 1e-9,
    route: Route | None = None,
    progress: Callable[[float], None] | None = None,
) -> MarginSolution:
    """The shortest p that satisfies all `pairs`, with a certificate.

    The `tokens` of the solution are (selected row, other row) of the constraints that hold p, and the tied rows; its
    vector satisfies every constraint, and its certificate's `gap` is `1 - (proven lower bound) / |p|`.

    **Arguments**
    - `start`: a vector whose tightest constraints are tried first; the one that made the selection is a good one.
    - `gap`: largest residual of an answer that is called optimal.
    - `route`: cutting planes or interior points; by default the faster one for the dimension.
    - `progress`: called in every round with the gap reached (infinite until a feasible vector is known).

    >>> from tokenmargin.corpus import TokenCorpus
    >>> from tokenmargin.margin import selected_pairs
    >>> corpus = TokenCorpus.of([["the", "good"], ["the", "bad"], ["the", "great"]], [1, -1, 1])
    >>> vectors = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, -1.0], [0.5, 1.0]])
    >>> solution = corpus_margin(vectors, selected_pairs(corpus, np.array([1, 2, 3])))
    >>> solution.status, solution.vector.round(6), solution.tokens.tolist()
    ('optimal', array([1.333333, 0.333333]), [[2, 0], [3, 0]])
    """
    judge = Judge(np.asarray(vectors, dtype=np.float64), pairs)
    if not len(pairs):
        return judge.unmoved()
    cover = covering(pairs, len(vectors))
    if cover.cyclic:
        return judge.answer(Proposal(np.ones(len(cover.numbers)), None), cover.numbers, gap=gap)
    rows = Differences(judge.ties.projected, plus=pairs.plus(cover.numbers), minus=pairs.rivals[cover.numbers])
    chosen = route or ("interior" if rows.vectors.shape[1] >= WIDE else "cuts")
    if chosen == "cuts":
        first = None if start is None else np.asarray(start, dtype=np.float64)
        answer = judge.answer(cutting_planes(rows, start=first, gap=gap, progress=progress), cover.numbers, gap=gap)
        if route is not None or answer.status != "inaccurate":
            return answer
    second = judge.answer(interior_point(rows, gap=gap, progress=progress), cover.numbers, gap=gap)
    if chosen == "interior" or second.certificate.residual < answer.certificate.residual:
        return second
    return answer
