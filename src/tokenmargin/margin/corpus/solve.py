"""The max-margin problem of a whole corpus: millions of constraints, given implicitly.

Most constraints follow from others by order alone and are dropped (`transitive_reduction`). The rest are solved by
cutting planes or by an interior point method, and what comes out is judged on all constraints: `p / (smallest margin
of p)` satisfies every one, and any non-negative multipliers bound the norm from below by
`sum_j lambda_j / |sum_j lambda_j row_j|`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import farkas_residual, normalised_systems, rescale_exactly
from tokenmargin.margin.compiled.systems import solve_systems
from tokenmargin.margin.constraints import independent_at_most
from tokenmargin.margin.corpus.pairs import Differences, Proposal, RowPairs, transitive_reduction
from tokenmargin.margin.corpus.routes import cutting_planes, interior_point
from tokenmargin.margin.single.refine import infeasibility_proof
from tokenmargin.margin.single.ties import correction_to_level
from tokenmargin.margin.solution import Certificate, MarginSolution, Status
from tokenmargin.norms import EPS, AbstractNorm, LpNorm, as_norm
from tokenmargin.problem.abstract_geometry import checked_numbers
from tokenmargin.problem.token_problem import checked_vector

Route = Literal["cuts", "interior"]

WIDE = 640
"""Dimension from which the interior point method is the faster route."""
SMALL = 2_000_000
"""Size of the rows, as an array, up to which the solver of single problems can be asked for a second opinion."""

_ORDINARY = 300  # binary digits before or after the point up to which squares and their products are doubles


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
    - `gap`: largest residual of an answer that is called optimal, rounding counted against it.
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
    if not 0 < gap < np.inf:
        raise ValueError(f"gap must be a positive number, got {gap}")
    vectors = checked_numbers("vectors", vectors, "(m, d)")
    named_rows = 1 + max(int(named.max(initial=-1)) for named in (pairs.selected, pairs.rivals, pairs.ties))
    if len(vectors) < named_rows:
        raise ValueError(
            f"vectors must have a row for each of the {named_rows} tokens of the pairs, got {len(vectors)}"
        )
    if start is not None:
        start = checked_vector("start", start, vectors.shape[1], "one point, as long as the vectors")
    power = int(np.frexp(np.abs(vectors).max(initial=0.0))[1])
    if abs(power) > _ORDINARY:
        scaled = np.ldexp(vectors, -power)
        if (np.ldexp(scaled, power) != vectors).any():  # some are too short beside others for doubles of one scale
            return PairCertifier(scaled, pairs).open_solution()
        point = None if start is None else np.ldexp(start, power)
        return _in_units(corpus_margin(scaled, pairs, start=point, gap=gap, route=route, progress=progress), power)
    judge = PairCertifier(vectors, pairs)
    if not len(pairs):
        return judge.zero_solution()
    cover = transitive_reduction(pairs, len(vectors))
    if cover.cyclic:
        return judge.answer(Proposal(np.ones(len(cover.numbers)), None), cover.numbers, gap=gap)
    rows = Differences(judge.ties.projected, plus=pairs.plus(cover.numbers), minus=pairs.rivals[cover.numbers])
    answers = []
    for propose in _routes(rows, route, start=start, gap=gap, progress=progress):
        answers.append(judge.answer(propose(), cover.numbers, gap=gap))
        if answers[-1].status != "inaccurate":
            return answers[-1]
    return min(answers, key=lambda answer: answer.certificate.residual)


def _in_units(found: MarginSolution, power: int) -> MarginSolution:
    """The solution for vectors `2^power` times as long."""
    with np.errstate(over="ignore"):
        vector, margin = np.ldexp(found.vector, -power), float(np.ldexp(found.margin, power))
    multipliers, half = found.multipliers, power // 2
    for part in (half, power - half) * 2:  # their size is that of |p|^2
        multipliers = rescale_exactly(multipliers, over=2.0**part)
    if found.is_optimal and not np.isfinite(vector).all():
        return replace(found, status="inaccurate", vector=np.zeros_like(vector), margin=0.0)
    return replace(found, vector=vector, margin=margin, multipliers=multipliers)


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
    if rows.lengths().min() <= EPS * np.abs(rows.vectors).max():
        yield partial(refute_equal_tokens, rows)
    if route == "interior" or (route is None and d >= WIDE):
        yield interior
        return
    yield partial(cutting_planes, rows, start=start, gap=gap, progress=progress)
    if route is None:
        yield partial(propose_by_general_solver, rows) if d * len(rows) <= SMALL else interior


def refute_equal_tokens(rows: Differences) -> Proposal:
    """No token beats another at the same place, and the constraint that asks for it is the proof."""
    multipliers = np.zeros(len(rows))
    multipliers[rows.lengths().argmin()] = 1.0
    return Proposal(multipliers, None)


def propose_by_general_solver(rows: Differences) -> Proposal:
    """The solver of single problems, which refines hard cases or refutes them."""
    systems = normalised_systems(rows.dense(slice(None))[None], np.ones((1, len(rows))))
    found = solve_systems(systems)
    if found.residuals[0, 4] < found.residuals[0, :4].max():
        return Proposal(found.farkas[0] / systems.lengths[0], None)
    scale = systems.scale[0]
    multipliers = np.maximum(found.multipliers[0], 0.0) * (scale / systems.lengths[0])
    return Proposal(multipliers, found.vectors[0] * scale)


class Ties:
    """Rows that must have equal logits: p lies in a subspace, onto which the vectors are projected."""

    def __init__(self, vectors: Float[Array, "m d"], ties: Int[Array, "q 2"]) -> None:
        differences = vectors[ties[:, 0]] - vectors[ties[:, 1]]
        left, sizes, axes = np.linalg.svd(differences, full_matrices=False)
        kept = sizes > max(differences.shape) * EPS * sizes.max(initial=0.0)
        self.axes = axes[kept]
        self._inverse = left[:, kept] / sizes[kept]
        self.projected = vectors - (vectors @ self.axes.T) @ self.axes if len(ties) else vectors

    def multipliers(self, remainder: Float[Array, " d"]) -> Float[Array, " q"]:
        """Multipliers of the ties that make up the part of a vector that lies outside the subspace."""
        return np.asarray(self._inverse @ (self.axes @ remainder))


class PairCertifier:
    """Checks proposals against all the pairs of a corpus, and turns them into solutions that carry a certificate."""

    def __init__(self, vectors: Float[Array, "m d"], pairs: RowPairs) -> None:
        self.pairs, self.began = pairs, time.perf_counter()
        self.given = vectors
        self.vectors = vectors - vectors.mean(axis=0)  # differences are all that counts, and they keep their digits
        self.ties = Ties(self.vectors, pairs.ties)

    def zero_solution(self) -> MarginSolution:
        """Nothing to separate: p = 0."""
        empty = np.zeros(0, dtype=np.intp)
        return self._solution("optimal", Proposal(np.zeros(0), None), empty, Certificate(0.0, 0.0, 0.0, 0.0))

    def open_solution(self) -> MarginSolution:
        """Nothing is known."""
        return self._solution("inaccurate", Proposal(np.zeros(0), None), np.zeros(0, dtype=np.intp), Certificate())

    def answer(self, found: Proposal, numbers: Int[Array, " c"], *, gap: float) -> MarginSolution:
        """The solution that a proposal for the pairs `numbers` amounts to; optimal with residuals of at most `gap`."""
        held = np.flatnonzero(found.multipliers)
        multipliers, numbers = found.multipliers[held], numbers[held]
        if not len(held) or multipliers.min() < 0:
            return self._solution("inaccurate", Proposal(multipliers, None), numbers, Certificate())
        rows = Differences(self.vectors, plus=self.pairs.plus(numbers), minus=self.pairs.rivals[numbers])
        if found.vector is None:
            return self._judge_refutation(multipliers, numbers)
        least = float(self.pairs.margins(self.vectors @ found.vector).min())
        if not least > 0:
            return self._solution("inaccurate", Proposal(multipliers, None), numbers, Certificate())
        p, multipliers = found.vector / least, multipliers / least
        certificate = self._certificate(rows, multipliers, p)
        known = np.isfinite(certificate[:4]).all()
        status: Status = "optimal" if known and certificate.residual <= gap else "inaccurate"
        return self._solution(status, Proposal(multipliers, p), numbers, certificate)

    def _certificate(self, rows: Differences, multipliers: Float[Array, " a"], p: Float[Array, " d"]) -> Certificate:
        """The residuals of the optimality conditions, in the units of `Certificate`, with all rounding counted.

        A logit of d terms is off by at most `(d + 4) eps |vector| |p|`, a combination of a rows by `(a + 4) eps` times
        their lengths.
        """
        logits, squared = self.vectors @ p, float(p @ p)
        rounding = 2 * EPS * float(np.linalg.norm(self.vectors, axis=1).max()) * squared**0.5
        combined = rows.combination(multipliers)
        combined = combined - self._part_of_ties(combined)
        slack = rows.times(p) - 1
        reach = float(np.linalg.norm(combined))
        bound = float(multipliers.sum()) / reach if reach > 0 else np.inf
        return Certificate(
            primal=max(0.0, 1 - float(self.pairs.margins(logits).min()) + (len(p) + 4) * rounding, self._off_ties(p)),
            dual=float(np.linalg.norm(p - combined)) / squared**0.5,
            complementarity=float((multipliers * np.abs(slack)).max()) / squared,
            gap=abs(1 - bound / squared**0.5) + (len(multipliers) + 4) * rounding * float(multipliers.sum()) / squared,
        )

    def _off_ties(self, p: Float[Array, " d"]) -> float:
        """How far p is from the vectors that keep all ties, as a share of the margins that the way there may cost."""
        if not len(self.pairs.ties):
            return 0.0
        plus, minus = self.given[self.pairs.ties.T]
        apart = (plus != minus).any(axis=1)
        if not apart.any():
            return 0.0
        systems = normalised_systems(plus[None, apart], np.zeros((1, apart.sum())), minus=minus[None, apart])
        found = correction_to_level(
            systems.rows[0],
            p,
            np.ones(apart.sum(), dtype=bool),
            lost=None if systems.lost is None else systems.lost[0],
            rank_at_most=lambda: min(
                independent_at_most(*self.pairs.ties[apart].T), self.pairs.tied_dimensions or len(p)
            ),
        )
        if found is None:
            return np.inf
        longest = 2 * float(np.linalg.norm(self.vectors, axis=1).max())
        return found.length * max(longest, 1 / float(np.linalg.norm(p)))

    def _part_of_ties(self, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """What the ties can add to a combination of rows, as their multipliers make it."""
        first, second = self.pairs.ties.T
        return np.asarray(self.ties.multipliers(y) @ (self.vectors[first] - self.vectors[second]))

    def _judge_refutation(self, weights: Float[Array, " a"], numbers: Int[Array, " a"]) -> MarginSolution:
        """Infeasible where a combination of the constraints is proven to be zero, else inaccurate by its residual."""
        pairs = np.stack([self.pairs.plus(numbers), self.pairs.rivals[numbers]], axis=1)
        found = Proposal(weights / weights.sum(), None)
        if not self._token_coefficients(pairs, weights).any():  # tokens cancel, wherever they are
            return self._solution("infeasible", found, numbers, Certificate(farkas=0.0))
        ties = self.pairs.ties
        plus, minus = self.given[np.concatenate([pairs, ties]).T]
        tied = np.arange(len(plus)) >= len(pairs)
        systems = normalised_systems(
            plus[None], (~tied).astype(float)[None], tied if len(ties) else None, minus=minus[None]
        )
        rows = Differences(self.vectors, plus=pairs[:, 0], minus=pairs[:, 1])
        scaled = np.concatenate([weights, -self.ties.multipliers(rows.combination(weights))]) * systems.lengths[0]
        proven = infeasibility_proof(systems, scaled)
        if proven is None:
            residual = farkas_residual(systems.rows[0], systems.bound[0], scaled, systems.equality)
            return self._solution("inaccurate", found, numbers, Certificate(farkas=residual))
        weights = (proven / systems.lengths[0])[: len(pairs)]
        return self._solution("infeasible", Proposal(weights / weights.sum(), None), numbers, Certificate(farkas=0.0))

    def _token_coefficients(self, pairs: Int[Array, "a 2"], weights: Float[Array, " a"]) -> Float[Array, " m"]:
        """What the combination of rows takes of every token."""
        m = len(self.vectors)
        return np.bincount(pairs[:, 0], weights, m) - np.bincount(pairs[:, 1], weights, m)

    def _solution(
        self, status: Status, found: Proposal, numbers: Int[Array, " a"], certificate: Certificate
    ) -> MarginSolution:
        """The answer: its pairs first, then the ties."""
        selected, rivals, ties = self.pairs.plus(numbers), self.pairs.rivals[numbers], self.pairs.ties
        rows = Differences(self.vectors, plus=selected, minus=rivals)
        weights = np.concatenate([found.multipliers, -self.ties.multipliers(rows.combination(found.multipliers))])
        p = np.zeros(self.vectors.shape[1]) if found.vector is None else found.vector
        norm = float(np.linalg.norm(p))
        return MarginSolution(
            status=status,
            vector=p,
            margin=1 / norm if norm > 0 else np.inf if status == "optimal" else 0.0,
            multipliers=np.zeros_like(weights) if found.vector is None else weights,
            tokens=np.concatenate([np.stack([selected, rivals], axis=1), ties]).astype(np.intp),
            certificate=certificate,
            farkas=weights if status == "infeasible" else None,
            seconds=time.perf_counter() - self.began,
            of_rows=True,
        )
