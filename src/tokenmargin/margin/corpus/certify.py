"""The certificate of a corpus problem: a proposal becomes an answer only when all the constraints themselves agree."""

from __future__ import annotations

import time

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.margin.certificate import farkas_residual, normalised
from tokenmargin.margin.corpus.difference_rows import Differences, Proposal
from tokenmargin.margin.corpus.pairs import RowPairs
from tokenmargin.margin.single.refine import proof
from tokenmargin.margin.solution import Certificate, MarginSolution, Status


class Ties:
    """Rows that must have equal logits: p lies in a subspace, onto which the vectors are projected."""

    def __init__(self, vectors: Float[Array, "m d"], ties: Int[Array, "q 2"]) -> None:
        differences = vectors[ties[:, 0]] - vectors[ties[:, 1]]
        left, sizes, axes = np.linalg.svd(differences, full_matrices=False)
        kept = sizes > max(differences.shape) * np.finfo(float).eps * sizes.max(initial=0.0)
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

    def answer(self, found: Proposal, numbers: Int[Array, " c"], *, gap: float) -> MarginSolution:
        """The solution that a proposal for the pairs `numbers` amounts to; optimal with residuals of at most `gap`."""
        held = np.flatnonzero(found.multipliers)
        multipliers, numbers = found.multipliers[held], numbers[held]
        if not len(held) or multipliers.min() < 0:
            return self._solution("inaccurate", Proposal(multipliers, None), numbers, Certificate())
        rows = Differences(self.vectors, plus=self.pairs.plus(numbers), minus=self.pairs.rivals[numbers])
        if found.vector is None:
            return self._refuted(multipliers, numbers)
        least = float(self.pairs.margins(self.vectors @ found.vector).min())
        if not least > 0:
            return self._solution("inaccurate", Proposal(multipliers, None), numbers, Certificate())
        p, multipliers = found.vector / least, multipliers / least
        certificate = self._certificate(rows, multipliers, p)
        status: Status = "optimal" if certificate.residual <= gap else "inaccurate"
        return self._solution(status, Proposal(multipliers, p), numbers, certificate)

    def _certificate(self, rows: Differences, multipliers: Float[Array, " a"], p: Float[Array, " d"]) -> Certificate:
        """The residuals of the optimality conditions, in the units of `Certificate`."""
        logits, squared = self.vectors @ p, float(p @ p)
        apart = np.abs(logits[self.pairs.ties[:, 0]] - logits[self.pairs.ties[:, 1]]).max(initial=0.0)
        combined = rows.combined(multipliers)
        combined = combined - self._across(combined)
        slack = rows.times(p) - 1
        bound = float(multipliers.sum() / np.linalg.norm(combined))
        return Certificate(
            primal=max(0.0, 1 - float(self.pairs.margins(logits).min()), float(apart)),
            dual=float(np.linalg.norm(p - combined)) / squared**0.5,
            complementarity=float((multipliers * np.abs(slack)).max()) / squared,
            gap=max(0.0, 1 - bound / squared**0.5),
        )

    def _across(self, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """What the ties can add to a combination of rows, as their multipliers make it."""
        first, second = self.pairs.ties.T
        return np.asarray(self.ties.multipliers(y) @ (self.vectors[first] - self.vectors[second]))

    def _refuted(self, weights: Float[Array, " a"], numbers: Int[Array, " a"]) -> MarginSolution:
        """Infeasible where a combination of the constraints is proven to be zero, else inaccurate by its residual."""
        pairs = np.stack([self.pairs.plus(numbers), self.pairs.rivals[numbers]], axis=1)
        found = Proposal(weights / weights.sum(), None)
        if not self._coefficients(pairs, weights).any():  # tokens cancel, wherever they are
            return self._solution("infeasible", found, numbers, Certificate(farkas=0.0))
        ties = self.pairs.ties
        plus, minus = self.given[np.concatenate([pairs, ties]).T]
        tied = np.arange(len(plus)) >= len(pairs)
        systems = normalised(plus[None], (~tied).astype(float)[None], tied if len(ties) else None, minus=minus[None])
        rows = Differences(self.vectors, plus=pairs[:, 0], minus=pairs[:, 1])
        scaled = np.concatenate([weights, -self.ties.multipliers(rows.combined(weights))]) * systems.lengths[0]
        proven = proof(systems, scaled)
        if proven is None:
            residual = farkas_residual(systems.rows[0], systems.bound[0], scaled, systems.equality)
            return self._solution("inaccurate", found, numbers, Certificate(farkas=residual))
        weights = (proven / systems.lengths[0])[: len(pairs)]
        return self._solution("infeasible", Proposal(weights / weights.sum(), None), numbers, Certificate(farkas=0.0))

    def _coefficients(self, pairs: Int[Array, "a 2"], weights: Float[Array, " a"]) -> Float[Array, " m"]:
        """What the combination of rows takes of every token."""
        m = len(self.vectors)
        return np.bincount(pairs[:, 0], weights, m) - np.bincount(pairs[:, 1], weights, m)

    def _solution(
        self, status: Status, found: Proposal, numbers: Int[Array, " a"], certificate: Certificate
    ) -> MarginSolution:
        """The answer: its pairs first, then the ties."""
        heads, rivals, ties = self.pairs.plus(numbers), self.pairs.rivals[numbers], self.pairs.ties
        rows = Differences(self.vectors, plus=heads, minus=rivals)
        weights = np.concatenate([found.multipliers, -self.ties.multipliers(rows.combined(found.multipliers))])
        p = np.zeros(self.vectors.shape[1]) if found.vector is None else found.vector
        norm = float(np.linalg.norm(p))
        return MarginSolution(
            status=status,
            vector=p,
            margin=0.0 if status == "infeasible" else 1 / norm if norm > 0 else np.inf,
            multipliers=np.zeros_like(weights) if found.vector is None else weights,
            tokens=np.concatenate([np.stack([heads, rivals], axis=1), ties]).astype(np.intp),
            certificate=certificate,
            farkas=weights if status == "infeasible" else None,
            seconds=time.perf_counter() - self.began,
            of_rows=True,
        )
