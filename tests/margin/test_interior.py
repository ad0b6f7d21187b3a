"""Rows that are never formed against formed ones, and active sets right and wrong."""

import numpy as np
import pytest
from tests.oracles.rounding import rounding

from tokenmargin.margin import TOLERANCE
from tokenmargin.margin.corpus import polish
from tokenmargin.margin.corpus.pairs import Differences, Proposal
from tokenmargin.margin.corpus.polish import polish_farkas, polish_solution
from tokenmargin.margin.corpus.routes import interior_point


def ordered_rows(rng: np.random.Generator, *, tokens: int = 40, d: int = 6, pairs: int = 300) -> Differences:
    """Pairs that a hidden vector puts in order, so that a solution exists."""
    vectors = rng.standard_normal((tokens, d))
    logits = vectors @ rng.standard_normal(d)
    first, second = rng.integers(0, tokens, (2, pairs))
    first, second = first[first != second], second[first != second]
    upper = logits[first] > logits[second]
    return Differences(vectors, plus=np.where(upper, first, second), minus=np.where(upper, second, first))


@pytest.mark.parametrize("d", [1, 6, 300])  # one block of columns, and two
def test_products_are_those_of_the_rows(d: int) -> None:
    rng = np.random.default_rng(d)
    rows = ordered_rows(rng, d=d)
    A = rows.dense(slice(None))
    q, weights = rng.standard_normal(d), rng.random(len(rows))
    # Sums of d or of len(rows) products, in any order, of entries that are differences of two.
    size = np.abs(rows.vectors[rows.plus]) + np.abs(rows.vectors[rows.minus])
    added = rounding(len(rows) + 1, float((size.T @ weights).max()))
    squared = rounding(len(rows) + 4, float(np.abs((size.T * weights) @ size).max()))
    np.testing.assert_allclose(rows.times(q), A @ q, rtol=0, atol=rounding(d + 1, float((size @ np.abs(q)).max())))
    np.testing.assert_allclose(rows.adjoint(weights), A.T @ weights, rtol=0, atol=added)
    np.testing.assert_allclose(rows.combination(weights), A.T @ weights, rtol=0, atol=added)
    np.testing.assert_allclose(rows.lengths(), np.linalg.norm(A, axis=1), rtol=rounding(2 * d + 2))
    lower = np.tril_indices(d)
    mean = A.T @ weights / weights.sum()
    np.testing.assert_allclose(rows.covariance(weights)[lower], ((A.T * weights) @ A)[lower], rtol=0, atol=squared)
    np.testing.assert_allclose(
        rows.covariance(weights, mean)[lower], (((A - mean).T * weights) @ (A - mean))[lower], rtol=0, atol=4 * squared
    )
    some = rows.only(np.array([3, 1, 4]))
    np.testing.assert_array_equal(some.dense(slice(None)), A[[3, 1, 4]])


def test_the_gap_bounds_the_distance_to_the_optimum() -> None:
    rng = np.random.default_rng(0)
    rows = ordered_rows(rng)
    best = interior_point(rows, gap=1e-9)
    assert best.vector is not None
    norm = np.linalg.norm(best.vector)
    for size in (1e-3, 1e-2, 1e-1):
        q = best.vector + size * rng.standard_normal(6) * norm / 50
        multipliers = best.multipliers * rng.uniform(1 - size, 1 + size, len(rows))
        least = rows.times(q).min()
        gap = rows.gap(multipliers, q)
        assert np.isinf(gap) == (least <= 0)
        if least > 0:
            assert gap >= np.linalg.norm(q) / least / norm - 1 - 1e-9  # the least norm is known to the gap asked for
    assert rows.gap(best.multipliers, -best.vector) == np.inf


@pytest.mark.parametrize("seed", range(3))
def test_the_active_set_gives_the_last_digits_and_a_wrong_one_does_no_harm(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = ordered_rows(rng)
    best = interior_point(rows, gap=1e-9)
    assert best.vector is not None
    # The active set is solved until no row is off by more.
    assert rows.gap(best.multipliers, best.vector) <= TOLERANCE / 10
    norm = np.linalg.norm(best.vector)
    rough = Proposal(
        best.multipliers * rng.uniform(0.99, 1.01, len(rows)), best.vector + 1e-3 * rng.standard_normal(6) * norm
    )
    active = best.multipliers > 0
    found = polish_solution(rows, rough, active)
    assert found.vector is not None
    # Both solve the active rows to a tenth of TOLERANCE, and are combinations of them.
    held = rows.dense(np.flatnonzero(active))
    off = TOLERANCE / 5 * len(held) ** 0.5 / np.linalg.svd(held, compute_uv=False)[min(held.shape) - 1]
    np.testing.assert_allclose(found.vector, best.vector, rtol=0, atol=off)
    np.testing.assert_allclose(rows.adjoint(found.multipliers), best.vector, rtol=0, atol=off)
    for j in range(0, len(rows), 61):  # a wrong set is put right, or the guess stays
        active[j] ^= True
        assert rows.gap(*polish_solution(rows, rough, active)) <= rows.gap(*rough)
        active[j] ^= True


def test_too_many_active_constraints_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ordered_rows(np.random.default_rng(6))
    best = interior_point(rows, gap=1e-9)
    monkeypatch.setattr(polish, "LARGEST_SET", 1)
    assert polish_solution(rows, best, np.ones(len(rows), dtype=bool)) is best


def test_contradictions_are_balanced() -> None:
    """A triangle around the origin, and a row that takes no part in the contradiction."""
    vectors = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 1.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]])
    rows = Differences(vectors, plus=np.array([1, 2, 3, 4]), minus=np.array([0, 0, 0, 0]))
    found = polish_farkas(rows, np.array([0.3, 0.35, 0.35, 1e-9]))
    # Three multipliers by a system of condition number 3, normalised: some thirty operations.
    np.testing.assert_allclose(
        found.multipliers / found.multipliers.sum(), [1 / 3, 1 / 3, 1 / 3, 0], rtol=0, atol=rounding(100)
    )
    proof = interior_point(rows, gap=1e-9)
    assert proof.vector is None
    # The gap that was asked for.
    np.testing.assert_allclose(proof.multipliers / proof.multipliers.sum(), [1 / 3, 1 / 3, 1 / 3, 0], rtol=0, atol=1e-9)
