"""The fast path for ordinary systems, the stack and the cutting planes are one and the same solver."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from tests.oracles import margin_families
from tests.oracles.exact_margin import solve_exactly
from tests.oracles.rounding import rounding

from tokenmargin.margin.certificate import TOLERANCE, kkt_residuals, normalised_systems
from tokenmargin.margin.compiled.exchange import propose_by_exchange
from tokenmargin.margin.compiled.systems import propose, solve_systems
from tokenmargin.margin.single.proposals import propose_by_cuts, propose_from_many
from tokenmargin.margin.single.refine import residuals_of
from tokenmargin.margin.single.solver import ProvenVector, solve_at_once
from tokenmargin.norms import EPS


def planted(rng: np.random.Generator, k: int, r: int) -> np.ndarray:
    """Rows that a hidden vector separates."""
    rows = rng.standard_normal((k, r))
    return rows * np.sign(rows @ rng.standard_normal(r))[:, None]


@pytest.mark.parametrize(("k", "r"), [(5, 3), (20, 10), (20, 60), (60, 12)])
def test_the_ordinary_path_certifies_as_the_stack_does(k: int, r: int) -> None:
    rng = np.random.default_rng(k + r)
    for _ in range(20):
        rows, bound = planted(rng, k, r), rng.uniform(0.5, 2, k)
        quick = solve_at_once(rows, bound)
        assert isinstance(quick, ProvenVector)
        multipliers, y, margin, certificate = quick
        systems = normalised_systems(rows[None], bound[None])
        scaled = multipliers * systems.lengths[0] / systems.scale[0]
        assert certificate.residual <= TOLERANCE
        assert margin == pytest.approx(1 / np.linalg.norm(y), rel=rounding(r + 3), abs=0)
        assert kkt_residuals(systems.rows[0], systems.bound[0], scaled).largest <= TOLERANCE
        verdict = solve_systems(systems)
        # Two certified answers: each within 2.1 sqrt(residual) of the solution, of residuals up to TOLERANCE.
        np.testing.assert_allclose(
            y, verdict.vectors[0] * systems.scale[0], rtol=0, atol=4.2 * TOLERANCE**0.5 * np.linalg.norm(y)
        )


def test_the_residuals_are_those_of_their_definition() -> None:
    """Away from the optimum, where residuals are numbers and not rounding."""
    rng = np.random.default_rng(0)
    rows, bound = planted(rng, 12, 5), rng.uniform(0.5, 2, 12)
    systems = normalised_systems(rows[None], bound[None])
    multipliers = rng.normal(0.2, 0.3, 12)
    y = multipliers @ systems.rows[0]
    slack = systems.rows[0] @ y - systems.bound[0]
    table = kkt_residuals(systems.rows[0], systems.bound[0], multipliers)[:4]
    squared = y @ y
    np.testing.assert_allclose(
        table,
        [
            ((9 * EPS * squared**0.5 - slack) / systems.bound[0]).max(),
            -multipliers.min() / np.abs(multipliers).max(),
            np.abs(multipliers * slack).max() / squared,
            abs(squared - multipliers @ systems.bound[0]) / squared,
        ],
        rtol=1e-9,  # sums of 12 products of order ten, 1e-13, which cancel to residuals of order 1e-3 and more
    )


@pytest.mark.parametrize(("k", "r"), [(2, 1), (5, 3), (20, 10)])
@pytest.mark.parametrize("hair", [1.0, 1e-6, 1e-12, 1e-15])
def test_what_is_refuted_at_once_has_no_solution_in_exact_arithmetic(k: int, r: int, hair: float) -> None:
    """Rows that a hidden vector separates, and one that takes the solution away or leaves it, by a hair."""
    rng, refuted = np.random.default_rng([k, r]), 0
    for _ in range(30):
        rows = planted(rng, k, r)
        rows[-1] = -rng.uniform(0.1, 1, k - 1) @ rows[:-1] + hair * rng.standard_normal(r)
        found = solve_at_once(rows, np.ones(k))
        if isinstance(found, np.ndarray):
            refuted += 1
            exact = [tuple(map(Fraction, row)) for row in rows.tolist()]
            assert not solve_exactly(exact, farkas=np.flatnonzero(found).tolist()).feasible
            assert found.min() >= 0
            assert found.sum() == pytest.approx(1, rel=rounding(k), abs=0)
            # Each weight is known to rounding times the condition of the rows: far less than a hundredth here.
            assert np.linalg.norm(found @ rows) <= 1e-2 * (found * np.linalg.norm(rows, axis=1)).sum()
    assert refuted >= 10


def test_the_ordinary_path_leaves_the_rest_alone() -> None:
    flat = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])  # infeasible, by two rows that do not span the plane
    assert solve_at_once(flat, np.ones(3)) is None
    assert solve_at_once(np.array([[1.0], [0.0]]), np.ones(2)) is None  # a duplicate
    assert solve_at_once(np.array([[1.0], [2.0]]), np.array([1.0, 0.0])) is None  # a bound of zero
    assert solve_at_once(np.ones((1, 100)), np.ones(1)) is None  # wide


@pytest.mark.parametrize("propose_one", [propose_by_cuts, propose_by_exchange])
def test_where_constraints_wait_the_solution_is_that_of_all(propose_one: Callable[..., np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    for k, r in ((300, 10), (2000, 30), (5, 1), (7, 20)):
        systems = normalised_systems(planted(rng, k, r)[None], np.ones((1, k)))
        cuts = propose_one(systems.rows[0], systems.bound[0])
        whole = propose(systems, systems.rows)[0]
        assert kkt_residuals(systems.rows[0], systems.bound[0], cuts).largest <= TOLERANCE
        # Two certified answers, as above.
        np.testing.assert_allclose(
            cuts @ systems.rows[0],
            whole @ systems.rows[0],
            rtol=0,
            atol=4.2 * TOLERANCE**0.5 * np.linalg.norm(whole @ systems.rows[0]),
        )


def test_cutting_planes_notice_infeasibility() -> None:
    rows = np.random.default_rng(2).standard_normal((400, 5))
    systems = normalised_systems(rows[None], np.ones((1, 400)))
    assert not propose_by_cuts(systems.rows[0], systems.bound[0]).any()
    assert propose_by_exchange(systems.rows[0], systems.bound[0]) is None
    verdict = solve_systems(systems)
    assert verdict.infeasible[0]


@pytest.mark.parametrize("family", ["planted", "sphere", "one_hot", "rank_deficient", "duplicates", "wide"])
def test_the_exchange_of_constraints_proposes_what_passes_wherever_daqp_does(family: str) -> None:
    """Ties, repeats and rows that depend on one another: the certificate accepts both proposals, or both give up."""
    rng, passed, lost = np.random.default_rng(3), 0, 0
    for _ in range(60):
        systems = getattr(margin_families, family)(rng).systems()
        if not systems.rows.shape[1]:
            continue
        daqps, own = propose(systems, systems.rows)[0], propose_by_exchange(systems.rows[0], systems.bound[0])
        daqp_passes = bool(daqps.any()) and residuals_of(systems, daqps).largest <= TOLERANCE
        own_passes = own is not None and residuals_of(systems, own).largest <= TOLERANCE
        passed, lost = passed + own_passes, lost + (daqp_passes and not own_passes)
    assert passed >= 5
    assert lost <= 1  # of 60: rows dependent to the last digits are left to daqp and to refinement


def test_compiled_code_takes_over_when_loading_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    systems = normalised_systems(planted(np.random.default_rng(5), 400, 10)[None], np.ones((1, 400)))
    first = propose_from_many(systems.rows[0], systems.bound[0])
    monkeypatch.setattr("tokenmargin.margin.single.proposals.LOADING", 0.0)
    later = propose_from_many(systems.rows[0], systems.bound[0])
    # Vectors are within 2.1 sqrt(residual); multipliers of independent rows as well, times their condition (some ten).
    np.testing.assert_allclose(first, later, rtol=0, atol=42 * TOLERANCE**0.5 * first.max())
