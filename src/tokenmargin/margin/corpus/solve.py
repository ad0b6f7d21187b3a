"""The max-margin problem of a whole corpus: millions of constraints, given implicitly.

Most constraints follow from others by order alone and are dropped (`covering`). The rest are solved by cutting planes
or by an interior point method, and what comes out is judged on all constraints: `p / (smallest margin of p)` satisfies
every one, and any non-negative multipliers bound the norm from below by `sum_j lambda_j / |sum_j lambda_j row_j|`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.margin.certificate import normalised
from tokenmargin.margin.compiled.systems import solve_systems
from tokenmargin.margin.corpus.certify import PairCertifier
from tokenmargin.margin.corpus.cutting_planes import cutting_planes
from tokenmargin.margin.corpus.difference_rows import Differences, Proposal
from tokenmargin.margin.corpus.interior_point import interior_point
from tokenmargin.margin.corpus.pairs import RowPairs
from tokenmargin.margin.corpus.transitive_reduction import transitive_reduction
from tokenmargin.margin.solution import MarginSolution
from tokenmargin.norms import AbstractNorm, LpNorm, as_norm

Route = Literal["cuts", "interior"]

WIDE = 640
"""Dimension from which the interior point method is the faster route."""
SMALL = 2_000_000
"""Size of the rows, as an array, up to which the solver of single problems can be asked for a second opinion."""


def corpus_margin(
    vectors: Float[Array, "m d"],
    pairs: RowPairs,
    *,
    start: Float[Array, " d"] | None = None,
    gap: float = 1e-7,
    route: Route | None = None,
    progress: Callable[[float], None] | None = None,
    norm: AbstractNorm | str = "l2",
) -> MarginSolution:
    """The shortest p that satisfies all `pairs`, with a certificate.

    The `tokens` of the solution are (selected row, other row) of the constraints that hold p, and the tied rows; its
    vector satisfies every constraint, and its certificate's `gap` is `1 - (proven lower bound) / |p|`.

    **Arguments**
    - `start`: a vector whose tightest constraints are tried first; the one that made the selection is a good one.
    - `gap`: largest residual of an answer that is called optimal; rounding in the residuals is not counted against it.
    - `route`: cutting planes or interior points; by default the faster one for the dimension.
    - `progress`: called in every round with the gap reached (infinite until a feasible vector is known).
    - `norm`: l2 alone; another is refused.

    >>> from tokenmargin.problem.corpus import TokenCorpus
    >>> from tokenmargin.margin import selected_pairs
    >>> corpus = TokenCorpus.of([["the", "good"], ["the", "bad"], ["the", "great"]], [1, -1, 1])
    >>> vectors = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, -1.0], [0.5, 1.0]])
    >>> solution = corpus_margin(vectors, selected_pairs(corpus, np.array([1, 2, 3])))
    >>> solution.status, solution.vector.round(6), solution.tokens.tolist()
    ('optimal', array([1.333333, 0.333333]), [[2, 0], [3, 0]])
    """
    if as_norm(norm) != LpNorm(2.0):
        raise ValueError(
            f"corpus_margin is Euclidean: its cuts and interior points rest on inner products, and tied rows on a "
            f"projection that keeps no other norm; got norm={as_norm(norm).name!r}. Pose some of the inputs as a "
            "TokenProblem and use max_margin(problem, selected, norm=...)"
        )
    judge = PairCertifier(np.asarray(vectors, dtype=np.float64), pairs)
    if not len(pairs):
        return judge.zero_solution()
    cover = transitive_reduction(pairs, len(vectors))
    if cover.cyclic:
        return judge.answer(Proposal(np.ones(len(cover.numbers)), None), cover.numbers, gap=gap)
    rows = Differences(judge.ties.projected, plus=pairs.plus(cover.numbers), minus=pairs.rivals[cover.numbers])
    begin = None if start is None else np.asarray(start, dtype=np.float64)
    answers = []
    for propose in _routes(rows, route, start=begin, gap=gap, progress=progress):
        answers.append(judge.answer(propose(), cover.numbers, gap=gap))
        if answers[-1].status != "inaccurate":
            return answers[-1]
    return min(answers, key=lambda answer: answer.certificate.residual)


def _routes(
    rows: Differences,
    route: Route | None,
    *,
    start: Float[Array, " d"] | None,
    gap: float,
    progress: Callable[[float], None] | None,
) -> Iterator[Callable[[], Proposal]]:
    """The way to solve these constraints, and others for what it leaves open."""
    d = rows.vectors.shape[1]
    interior = partial(interior_point, rows, gap=gap, progress=progress)
    if rows.lengths().min() <= np.finfo(float).eps * np.abs(rows.vectors).max():
        yield partial(equal_tokens, rows)
    if route == "interior" or (route is None and d >= WIDE):
        yield interior
        return
    yield partial(cutting_planes, rows, start=start, gap=gap, progress=progress)
    if route is None:
        yield partial(by_general_solver, rows) if d * len(rows) <= SMALL else interior


def equal_tokens(rows: Differences) -> Proposal:
    """No token beats another at the same place, and the constraint that asks for it is the proof."""
    multipliers = np.zeros(len(rows))
    multipliers[rows.lengths().argmin()] = 1.0
    return Proposal(multipliers, None)


def by_general_solver(rows: Differences) -> Proposal:
    """The solver of single problems, which refines hard cases or refutes them."""
    systems = normalised(rows.dense(slice(None))[None], np.ones((1, len(rows))))
    verdict = solve_systems(systems)
    if verdict.farkas.residual[0] < verdict.residuals.largest[0]:
        return Proposal(verdict.farkas.weights[0] / systems.lengths[0], None)
    scale = systems.scale[0]
    multipliers = np.maximum(verdict.multipliers[0], 0.0) * (scale / systems.lengths[0])
    return Proposal(multipliers, verdict.residuals.vectors[0] * scale)
