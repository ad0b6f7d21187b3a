"""Max-margin solutions: known answers, an independent solver, certificates, and the hard cases."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.by_clarabel import least_norm
from tests.oracles.certified import assert_same_vector, margins_apart
from tests.oracles.exact_margin import independent
from tests.oracles.rounding import rounding

from tokenmargin.margin import (
    TOLERANCE,
    MarginSolution,
    class_margin,
    label_margin,
    max_margin,
    relaxed_max_margin,
    solve,
    support_inputs,
)
from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE
from tokenmargin.margin.constraints import row_constraints
from tokenmargin.margin.corpus.pairs import RowPairs
from tokenmargin.margin.corpus.solve import corpus_margin
from tokenmargin.margin.single.exact import exact_rank
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import (
    figure1a,
    figure1b,
    figure1c,
    figure3a,
    figure3b,
    figure5,
    figure8,
    random_problem,
    shared_vocabulary_problem,
)
from tokenmargin.problem.token_problem import TokenProblem


def constraint_rows(problem: TokenProblem, selected) -> np.ndarray:
    """`k_{i alpha_i} - k_it` by plain loops."""
    keys = problem.keys.tokens
    return np.array(
        [
            keys[i, selected[i]] - keys[i, t]
            for i, t in np.ndindex(problem.n, problem.T)
            if t != selected[i] and problem.mask[i, t]
        ]
    )


def assert_proven(problem: TokenProblem, selected, solution: MarginSolution) -> None:
    """Check an answer from its definition, with none of the solver's code."""
    rows = constraint_rows(problem, selected)
    if solution.status == "optimal":
        # The certificate's promise, and the rounding of these products, which it counts too.
        promised = 2 * TOLERANCE
        np.testing.assert_array_less(1 - promised, rows @ solution.vector)
        assert (solution.multipliers >= 0).all()
        scale = np.linalg.norm(solution.vector)
        np.testing.assert_allclose(solution.multipliers @ rows, solution.vector, rtol=0, atol=promised * scale)
        assert solution.multipliers.sum() == pytest.approx(scale**2, rel=2 * promised, abs=0)  # a square
        assert solution.margin == pytest.approx(1 / scale, rel=2 * promised, abs=0)
        assert solution.certificate.residual <= TOLERANCE
    elif solution.status == "infeasible":
        weights = solution.farkas
        assert (weights >= 0).all()
        assert weights.sum() == pytest.approx(1.0, rel=rounding(2 * len(rows)), abs=0)
        assert np.linalg.norm(weights @ rows) <= TOLERANCE * np.linalg.norm(rows, axis=1).max()


@pytest.mark.parametrize(
    ("problem", "selected", "expected"),
    [
        (figure1a(), [0], [-0.1 / 1.01, 1 / 1.01, 0]),
        (figure1b(), [0], [-0.1 / 1.01, 1 / 1.01, 0]),
        (figure1b(), [1], [1, 0, 0]),
        (figure3a(), [1, 1, 1], [4 / 3, 1 / 3]),
        (figure3b(), [1, 1, 1], [1.25, 0.25]),
        (figure5(), [1, 1], [1, 0, 0]),
        (figure5(100.0), [1, 1], [1, 0, 0]),
        (figure8(), [0, 0], [1, 3]),
        (figure8(), [0, 1], [1, 0]),
    ],
)
def test_known_answers(problem: TokenProblem, selected: list[int], expected: list[float]) -> None:
    solution = max_margin(problem, selected)
    # Solved on their active constraints, a handful of small integers: to the rounding of two or three divisions.
    of_hand = rounding(30, max(1.0, float(np.abs(expected).max())))
    np.testing.assert_allclose(solution.vector, expected, rtol=0, atol=of_hand)
    assert_proven(problem, selected, solution)
    gram = problem.as_gram()
    in_gram = max_margin(gram, selected)
    # Inner products are squares, and so is what they make of the condition: by hand a hundred at most.
    np.testing.assert_allclose(in_gram.vector @ problem.keys.vectors, expected, rtol=0, atol=100 * of_hand)
    assert in_gram.certificate.residual <= TOLERANCE


def test_figure_1c() -> None:
    """Published to five digits; W = diag(1, 1, 0) matters, the score coordinate must not leak into the keys."""
    vector = max_margin(figure1c(), [0, 0, 0]).vector
    np.testing.assert_allclose(vector, [0.84463, 0.17112, 0], rtol=0, atol=5e-6)  # half of the fifth digit


def test_head_and_relaxed_problems_of_figure_3() -> None:
    for problem, support, relaxed in (
        (figure3a(), [True, True, True], [4 / 3, 1 / 3]),
        (figure3b(), [True, True, False], [1.0, 0.0]),
    ):
        for view, back in ((problem, np.eye(2)), (problem.as_gram(), problem.keys.vectors)):
            assert support_inputs(view, [1, 1, 1]).tolist() == support
            found = relaxed_max_margin(view, [1, 1, 1])
            np.testing.assert_allclose(found.vector @ back, relaxed, rtol=0, atol=2 * TOLERANCE)  # as certified
        np.testing.assert_allclose(label_margin(problem, [1, 1, 1]).vector, [0, 1], rtol=0, atol=2 * TOLERANCE)


def test_the_relaxed_problem_needs_separable_labels() -> None:
    problem = TokenProblem.of([[[1.0], [0.0]], [[1.0], [0.0]]], [1, -1], head=[1.0])
    assert label_margin(problem, [0, 0]).status == "infeasible"
    with pytest.raises(ValueError, match="cannot be separated by label"):
        relaxed_max_margin(problem, [0, 0])


@pytest.mark.parametrize("d", [2, 3, 5, 10, 40])
def test_random_problems_agree_with_an_interior_point_solver(d: int) -> None:
    rng = np.random.default_rng(d)
    seen = set()
    for _ in range(60):
        problem = random_problem(4, 6, d, rng=rng)
        selected = rng.integers(0, 6, 4)
        solution = max_margin(problem, selected)
        assert_proven(problem, selected, solution)
        rows = constraint_rows(problem, selected)
        theirs = least_norm(rows, tolerance=1e-11)
        if solution.status == "optimal":
            theirs.assert_agrees(solution, solution.vector)
        else:
            assert theirs.infeasible
        in_gram = max_margin(problem.as_gram(), selected)
        assert in_gram.status == solution.status
        assert in_gram.margin == pytest.approx(solution.margin, rel=PRODUCTS_TOLERANCE, abs=0)
        seen.add(solution.status)
    assert seen == ({"optimal", "infeasible"} if d <= 5 else {"optimal"})


@given(st.data())
@settings(max_examples=150)
def test_degenerate_problems_are_never_answered_wrongly(data) -> None:
    """Small integer tokens: ties, duplicates, collinear points, zero keys, one-hot vectors."""
    n, T, d = (data.draw(st.integers(1, k)) for k in (3, 4, 3))
    entries = st.integers(-2, 2) if data.draw(st.booleans()) else st.integers(0, 1)
    keys = np.array(data.draw(st.lists(entries, min_size=n * T * d, max_size=n * T * d)), dtype=float).reshape(n, T, d)
    selected = np.array([data.draw(st.integers(0, T - 1)) for _ in range(n)])
    problem = TokenProblem.of(keys, np.ones(n), scores=np.zeros((n, T)))
    solution = max_margin(problem, selected)
    if T == 1:
        assert (solution.status, solution.margin) == ("optimal", np.inf)
    else:
        assert solution.status != "inaccurate"
        assert_proven(problem, selected, solution)
    assert max_margin(problem.as_gram(), selected).status == solution.status


def test_two_tokens_at_one_place_cannot_be_separated() -> None:
    problem = TokenProblem.of([[[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]], [1], head=[1.0, 0.0])
    for view in (problem, problem.as_gram()):
        solution = max_margin(view, [0])
        assert solution.status == "infeasible"
        assert solution.farkas.tolist() == [1.0, 0.0]
        assert solution.margin == 0.0


@pytest.mark.parametrize("gap", [1e-3, 1e-6, 1e-9, 1e-12])
def test_near_duplicates_are_separated_in_coordinates(gap: float) -> None:
    problem = TokenProblem.of([[[1.0, 0.0], [1.0 - gap, 0.0], [0.0, 0.5]]], [1], head=[1.0, 0.0])
    solution = max_margin(problem, [0])
    difference = 1.0 - (1.0 - gap)  # what is left of the gap in double precision
    assert solution.status == "optimal"
    np.testing.assert_allclose(solution.vector[0], 1 / difference, rtol=2 * TOLERANCE)


def test_near_duplicates_below_the_resolution_of_gram_space_are_called_inaccurate() -> None:
    problem = TokenProblem.of([[[1.0, 0.0], [1.0 - 1e-9, 0.0], [0.0, 0.5]]], [1], head=[1.0, 0.0])
    assert max_margin(problem.as_gram(), [0]).status in ("inaccurate", "infeasible")
    assert max_margin(problem.as_gram(), [0]).status != "optimal"


TIED_BY_A_COPY = (
    [
        [[0, -8e-73, -8e-73], [3e-113, 0, 3e-113], [0, 0, 2e112]],
        [[-161532403.5, -161532403.5, 0], [5e-147, -5e-147, 5e-147], [-161532403.5, -161532403.5, 0]],
    ],
    [[False, True, False], [False, True, True]],
)
"""A copy of a selected token that is not selected: no direction tells them apart, however short another row is."""
SHORT_TIE = [[[-2e109], [0]], [[-6e-52], [0]]], [[False, True], [True, True]]
"""On a line a tie with another token leaves p = 0 alone."""


@pytest.mark.parametrize(("keys", "tied"), [TIED_BY_A_COPY, SHORT_TIE])
def test_ties_are_judged_beside_their_own_rows(keys: list, tied: list) -> None:
    """What a tie may be off by was once a share of the largest margin asked, and p itself beside much shorter rows."""
    problem = TokenProblem.of(keys, [1, 1], scores=np.zeros(np.shape(keys)[:2]))
    for view in (problem, problem.as_gram()):
        assert class_margin(view, np.array(tied)).status != "optimal"


@pytest.mark.parametrize("long", [1e3, 1e12, 1e40, 1e200])
def test_long_rows_of_margin_zero_are_not_off_by_a_share_of_the_margin(long: float) -> None:
    """Twice the first row and the other two add up to zero. Of p = (1, 0) these are off by 1, which beside their
    lengths is nothing; with the other sign it is the solution."""
    for sign, statuses in ((-1.0, {"infeasible", "inaccurate"}), (1.0, {"optimal"})):
        asked = row_constraints(np.array([[1.0, 0.0], [sign, long], [sign, -long]]))
        assert solve(replace(asked, bound=np.array([1.0, 0.0, 0.0]))).status in statuses


@pytest.mark.parametrize(("apart", "decided"), [(1e-2, True), (1e-9, False), (1e-11, False), (1e-13, False)])
@pytest.mark.parametrize("gram", [False, True])
def test_ties_that_nearly_agree_are_kept_together(gram: bool, apart: float, decided: bool) -> None:
    """Level with two keys that differ along x, p has no part along x, and length 1; level with either to rounding it is
    shorter by an eighth."""
    keys = [[[0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0], [1.0 - apart, 0, 0, 0], [0.0, 1, 0, 0]]]
    problem = TokenProblem.of(keys, [1], scores=np.zeros((1, 5)))
    found = class_margin(problem.as_gram() if gram else problem, np.array([[True, False, True, True, True]]))
    assert found.is_optimal or not decided
    assert not found.is_optimal or found.margin == pytest.approx(1.0, rel=margins_apart(found), abs=0)


LINE = np.array([1.0, 2.0, 3.0])[:, None] * [1.0, 3.0]
"""Three tokens on a line. In tenths they are not: 3 (0.1, 0.3) is (0.30000000000000004, 0.8999999999999999)."""


@pytest.mark.parametrize("norm", ["gram", "l2", "l1", "linf", "lp:3", "corpus"])
def test_ties_that_depend_on_one_another_but_for_rounding_are_not_decided(norm: str) -> None:
    """To be level in tenths p would have to be zero; the vector that is level to rounding was called optimal."""
    for unit, status in ((1.0, "optimal"), (0.1, "inaccurate")):
        keys = np.append(unit * LINE, [[3.0, -1.0]], axis=0)
        if norm == "corpus":
            behind = RowPairs(np.array([0]), np.array([0, 1]), np.array([3]), np.array([[0, 1], [0, 2]]), 1)
            found = corpus_margin(keys, behind)
        else:
            problem = TokenProblem.of(keys[None], [1], scores=np.zeros((1, 4)))
            tied = np.array([[True, True, True, False]])
            found = class_margin(problem.as_gram(), tied) if norm == "gram" else class_margin(problem, tied, norm=norm)
        assert found.status == status
        assert ("depend on one another" in found.explanation) == (status == "inaccurate")


def test_opposite_margins_of_zero_are_kept_together() -> None:
    """x >= 0 and y >= x / 1e-11 leave no p with y <= -1, though (0, -1) is off by 1e-11 alone."""
    for across in (1e-3, 1e-11, 1e-17):
        rows = Coordinates(np.array([[0.0, -1.0], [1.0, 0.0], [-1.0, across]]), np.arange(3)[None])
        for geometry in (rows, rows.as_gram()):
            asked = replace(row_constraints(np.eye(3, 2)), geometry=geometry, bound=np.array([1.0, 0.0, 0.0]))
            assert solve(asked).status in ("infeasible", "inaccurate")
        exactly = replace(row_constraints(np.array([[0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]])), bound=asked.bound)
        assert solve(exactly).is_optimal


@pytest.mark.parametrize("near", [0.0, 1e-15, 1e-3])
def test_the_rank_is_that_of_the_doubles(near: float) -> None:
    rows = np.array([[0.1, 0.2, 0.3], [0.2, 0.4, 0.6], [0.7, -1.0, 2.0], [0.1, 0.0, 0.7]])
    rows[2] = rows[0] + rows[1]
    rows[2, 2] += near
    fractions = [[Fraction(x) for x in row] for row in rows.tolist()]
    unit = math.lcm(*(x.denominator for row in fractions for x in row))
    whole = [[int(x * unit) for x in row] for row in fractions]
    assert exact_rank(rows) == len(independent(whole))
    assert exact_rank(2.0**-900 * rows[:2], -(2.0**-900) * rows[:2]) == 0
    assert exact_rank(rows, 2.0**-60 * np.eye(4, 3)) == 3


def test_a_tie_whose_length_inner_products_do_not_tell_is_not_certified() -> None:
    """Beside the first token, 1e96 times as long, the difference of the tied ones is nothing but rounding."""
    keys = [[[9e145, 0, -9e145], [9e-36, 4e-36, 9e-36]], [[9e49, 2e50, -9e49], [-2e-83, -2e-83, -1e-83]]]
    problem = TokenProblem.of(keys, [1, 1], scores=np.zeros((2, 2))).as_gram()
    assert class_margin(problem, np.array([[False, True], [True, True]])).status == "inaccurate"


def test_support_that_rounding_decides_is_not_guessed() -> None:
    """Both labels hold the head, with values 1e126 times as long as each other; the second margin is off by 1e111."""
    keys = [[[2e42, 0, -5e42], [0, 0, -2e-84]], [[6e42, -6e42, 0], [3390, 3390, -6780]]]
    problem = TokenProblem.of(keys, [1, 1], scores=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="beyond double precision"):
        relaxed_max_margin(problem, [1, 0])


def test_numbers_beyond_doubles_on_the_way_are_no_error() -> None:
    """A lower bound 1e308 times too large was an OverflowError, products of 1e308 eigenvalues without an end."""
    x, y, z = 0.00010299550045605954, 1.1394184022189788e-28, 6.788432605657161e85
    keys = [[[-2, 0, 2], [1, 2, -2]], [[-2, -1, 0], [1, 1, 1]], [[0, -2, -2], [2, 2, -1]]] * np.array([x, y, z])
    wide = TokenProblem.of(keys, [1] * 3, scores=np.zeros((3, 2)))
    assert max_margin(wide, [1, 1, 1]).status in ("optimal", "inaccurate")  # it has a solution
    keys = 6.7e153 * np.array([[[0.0], [1.0], [1.0]], [[-1.0], [0.0], [1.0]]])
    large = TokenProblem.of(keys, [1, 1], scores=np.zeros((2, 3))).as_gram()
    assert max_margin(large, [1, 2]).status == "infeasible"  # the first selects one of two copies


def test_scale_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    problem = random_problem(4, 5, 12, rng=rng)
    selected = rng.integers(0, 5, 4)
    solution = max_margin(problem, selected)
    for scale in (1e-150, 1e-8, 1e8, 1e150):
        scaled = TokenProblem.of(problem.keys.tokens * scale, problem.labels, scores=problem.scores)
        again = max_margin(scaled, selected)
        assert again.status == "optimal"
        assert_same_vector(again.vector * scale, solution.vector, again, solution)


def test_masked_tokens_do_not_count() -> None:
    keys = np.array([[[1.0, 0.0], [0.0, 0.0], [9.0, 0.0]]])
    problem = TokenProblem.of(keys, [1], head=[1.0, 0.0], mask=[[True, True, False]])
    np.testing.assert_allclose(max_margin(problem, [0]).vector, [1.0, 0.0], rtol=rounding(4))
    with pytest.raises(ValueError, match="hidden by the mask"):
        max_margin(problem, [2])


def test_a_shared_dictionary_gives_the_answer_of_its_copies() -> None:
    rng = np.random.default_rng(5)
    shared = shared_vocabulary_problem(3, 4, 8, vocabulary=10, rng=rng)
    copied = TokenProblem.of(shared.keys.tokens, shared.labels, scores=shared.scores)
    for selected in itertools.islice(itertools.product(range(4), repeat=3), 20):
        ours, theirs = max_margin(shared, selected), max_margin(copied, selected)
        assert ours.status == theirs.status
        assert_same_vector(ours.vector, theirs.vector, ours, theirs)


def test_the_matrix_parameter_has_the_margin_of_its_vector() -> None:
    """W in `<k, W' u>` is `u p' / |u|^2` at the optimum, so its margin is |u| times that of p."""
    rng = np.random.default_rng(6)
    problem = random_problem(2, 3, 6, rng=rng)
    u = rng.standard_normal(6)
    vector, matrix = max_margin(problem, [0, 1]), max_margin(problem.with_matrix(u), [0, 1])
    assert matrix.margin == pytest.approx(np.linalg.norm(u) * vector.margin, rel=margins_apart(matrix, vector), abs=0)
    assert_same_vector(matrix.vector, np.outer(u, vector.vector).ravel() / (u @ u), matrix, vector)


def test_a_solution_describes_itself() -> None:
    assert "optimal, margin=1" in repr(max_margin(figure1b(), [1]))
