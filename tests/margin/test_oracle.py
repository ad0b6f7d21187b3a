"""Samples of the large comparisons: answers at the edges against exact arithmetic, of every kind against clarabel."""

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from benchmarks.margin_exact import audit, audit_ties
from benchmarks.margin_oracle import in_norm
from tests.oracles.by_clarabel import Tally, compare, compare_choice
from tests.oracles.by_stack import check_exactly, check_stack
from tests.oracles.certified import apart, margins_apart
from tests.oracles.edge_families import FAMILIES as EDGES
from tests.oracles.exact_margin import exact_rows, solve_exactly
from tests.oracles.margin_families import FAMILIES, choice
from tests.oracles.tied_families import TIED_FAMILIES

from tokenmargin.margin import TOLERANCE, choice_margin, max_margin, max_margin_batch, solve
from tokenmargin.norms import norm_named
from tokenmargin.problem.token_problem import TokenProblem

EXACT = ("plain", "integers", "one_token", "one_dimension", "duplicates")
"""Families in which every way of asking decides every problem."""


@pytest.mark.parametrize("family", EDGES, ids=lambda family: family.__name__)
def test_no_answer_is_false_in_exact_arithmetic(family) -> None:
    found = audit(family, 25, rng=np.random.default_rng(8))
    tally = found.tally
    assert not found.false, found.false[0]
    if family.__name__ in EXACT:
        assert not any(tally[way, "inaccurate"] for way in ("single", "batch", "gram", "atlas"))
    assert tally["single", "optimal"] + tally["single", "infeasible"] > 0


@pytest.mark.parametrize("family", TIED_FAMILIES, ids=lambda family: family.__name__)
def test_no_answer_with_ties_is_false_in_exact_arithmetic(family) -> None:
    found = audit_ties(family, 60, rng=np.random.default_rng(8))
    assert not found.false, found.false[0]
    for way in ("ties", "ties, gram", "margins of 0", "margins of 0, gram"):
        assert found.tally[way, "optimal"] > 0


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_family_agrees_with_another_solver(family) -> None:
    rng = np.random.default_rng(12)
    tally = Tally()
    for _ in range(60):
        constraints = family(rng)
        compare(constraints, solve(constraints), tally)
    assert tally.wrong == tally.over == 0
    if family.__name__ != "rank_deficient":  # in a subspace up to rounding, what is infeasible there is not proven
        assert tally.statuses["inaccurate"] == 0


def test_choices_are_the_least_of_all() -> None:
    rng, tally = np.random.default_rng(0), Tally()
    for _ in range(15):
        problem, sets = choice(rng)
        compare_choice(problem, sets, choice_margin(problem, sets), tally)
    assert tally.wrong == tally.over == 0
    assert tally.statuses["optimal"] > 0


@pytest.mark.parametrize("norm", ["l2", "l1", "linf", "lp:3", "nuclear", "spectral"])
def test_answers_keep_their_bounds_in_every_norm(norm: str, capsys) -> None:
    asked, failures = in_norm(norm_named(norm), 20, seed=0)
    assert asked >= 20
    assert failures == 0
    assert f"| {norm}, in stacks |" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["vectors", "multipliers", "farkas"])
def test_the_check_of_a_stack_sees_what_is_wrong(what: str) -> None:
    keys = np.random.default_rng(0).standard_normal((30, 3, 3, 2))
    selected = np.zeros((30, 3), dtype=int)
    batch = max_margin_batch(keys, selected)
    claimed = batch.infeasible if what == "farkas" else batch.optimal
    assert claimed.any()
    assert check_stack(keys, selected, batch).max() <= TOLERANCE
    changed = getattr(batch, what).copy()
    changed[:, 0] += 1e-3 * np.abs(changed).max(axis=1)  # multipliers enter the gap by their square
    wrong = replace(batch, **{what: changed})
    seen = check_stack(keys, selected, wrong)
    assert (seen[claimed] > 1e-9).mean() > 0.5  # a constraint that is not active may hold all the same
    exactly = [check_exactly(keys[b], selected[b], wrong[b]) for b in range(30) if claimed[b]]
    # The two differ by the rounding of extended precision, 1e-19 times rows and vectors of a size up to 1e3.
    np.testing.assert_allclose(exactly, seen[claimed], rtol=1e-9, atol=1e-14)


def test_the_exact_oracle_knows_simple_answers() -> None:
    half = solve_exactly([(Fraction(2), Fraction(0)), (Fraction(0), Fraction(1))])
    assert half.vector == (Fraction(1, 2), 1)
    assert half.squared == Fraction(5, 4)
    assert not solve_exactly([(Fraction(1),), (Fraction(-1),)]).feasible
    assert not solve_exactly([(Fraction(0), Fraction(0))]).feasible
    assert solve_exactly([]).margin == np.inf


def test_hints_do_not_change_the_exact_answer() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows = exact_rows(rng.integers(-2, 3, (2, 3, 2)).astype(float), [0, 1])
        plain = solve_exactly(rows)
        for hint in itertools.combinations(range(len(rows)), 2):
            assert solve_exactly(rows, active=hint, farkas=hint) == plain


def _two_tokens(rows: list[list[float]]) -> TokenProblem:
    keys = np.zeros((len(rows), 2, len(rows[0])))
    keys[:, 0] = rows
    return TokenProblem.of(keys, np.ones(len(rows)), scores=np.zeros((len(rows), 2)))


def test_rows_that_are_opposite_but_for_a_trillionth_are_feasible() -> None:
    problem = _two_tokens([[1.0, 1e-12], [-1.0, 1e-12]])
    found = max_margin(problem, [0, 0])
    np.testing.assert_allclose(found.vector, [0.0, 1e12], rtol=apart(found), atol=1e12 * apart(found))
    assert max_margin_batch(problem.keys.tokens[None], np.zeros((1, 2), dtype=int)).optimal.all()
    unknown = max_margin(problem.as_gram(), [0, 0])
    assert unknown.status == "inaccurate"
    # There is a direction of margin 1e-12; inner products of rows of length 1 hide what is below sqrt(eps) = 1.5e-8.
    assert 1e-12 <= unknown.certificate.farkas <= 1e-6
    assert "no direction has a margin over" in unknown.explanation


def test_rows_of_very_different_length_hold_exactly() -> None:
    rows = [[1.1, -0.1], [-3e16, 1.6e17]]
    solution = max_margin(_two_tokens(rows), [0, 0])
    assert solution.status == "optimal"
    for row in rows:
        assert sum(Fraction(a) * Fraction(b) for a, b in zip(row, solution.vector.tolist(), strict=True)) >= 1


def test_an_offset_that_drowns_the_differences_is_not_guessed_from_inner_products() -> None:
    keys = np.array([[[0.2, -0.5], [-0.4, -2.4]], [[1.8, 1.1], [-0.3, 0.8]], [[0.3, -0.6], [1.0, -0.3]]]) + 1e6
    problem = TokenProblem.of(keys, np.ones(3), scores=np.zeros((3, 2)))
    assert max_margin(problem, [0, 0, 0]).status == "infeasible"
    assert max_margin(problem.as_gram(), [0, 0, 0]).status == "infeasible"  # products of differences were taken
    vectors = problem.keys.vectors
    drowned = TokenProblem(type(problem.as_gram().keys)(vectors @ vectors.T, problem.keys.index), np.ones(3),
                           scores=np.zeros((3, 2)))  # fmt: skip
    assert max_margin(drowned, [0, 0, 0]).status == "inaccurate"


@pytest.mark.parametrize("scale", [1e-305, 1e-200, 1e-155, 1e162, 1e200, 1e300])
def test_margins_are_right_wherever_doubles_hold_them(scale: float) -> None:
    keys = np.random.default_rng(1).standard_normal((2, 3, 4)) * scale
    problem = TokenProblem.of(keys, np.ones(2), scores=np.zeros((2, 3)))
    truth = solve_exactly(exact_rows(keys, [0, 0])).margin
    single, batched = max_margin(problem, [0, 0]), max_margin_batch(keys[None], np.zeros((1, 2), dtype=int))[0]
    for solution in (single, batched):
        assert solution.status == "optimal"
        assert solution.margin == pytest.approx(truth, rel=margins_apart(solution), abs=0)
        assert np.isfinite(solution.vector).all()
        assert len(solution.active) > 0


def test_what_doubles_cannot_hold_is_inaccurate() -> None:
    keys = np.array([[[1e-309, 0.0], [0.0, 1e-309]]])  # p would be 1e309 long
    problem = TokenProblem.of(keys, [1], scores=np.zeros((1, 2)))
    assert max_margin(problem, [0]).status == "inaccurate"
    assert max_margin_batch(keys[None], np.array([[0]]))[0].status == "inaccurate"
    far = np.array([[[1.5e308, 0.0], [-1.5e308, 0.0]]])  # a difference of 3e308
    assert max_margin(TokenProblem.of(far, [1], scores=np.zeros((1, 2))), [0]).status == "inaccurate"
    assert max_margin_batch(far[None], np.array([[0]]))[0].status == "inaccurate"
