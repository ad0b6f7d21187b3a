"""Selections, optimality, neighbours and angles."""

import mpmath
import numpy as np
import pytest
from tests.oracles.rounding import rounding

from tokenmargin.margin import max_margin
from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.instances import figure1b, figure8, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import (
    angle,
    attention_weights,
    checked_selection,
    cone_constants,
    cosine,
    is_globally_optimal,
    is_locally_optimal,
    margins,
    neighbours,
    optimal_tokens,
    saturation,
    score_gaps,
    select,
)

RAGGED = TokenProblem.of(
    [[[0.0], [1.0], [5.0]], [[2.0], [0.0], [1.0]]],
    [1, 1],
    scores=[[0.0, 1.0, 9.0], [1.0, 1.0, 0.0]],
    mask=[[True, True, False], [True, True, True]],
)


def test_weights_are_a_softmax_over_the_visible_tokens() -> None:
    p = np.array([0.7])
    weights = attention_weights(RAGGED.keys, p)
    np.testing.assert_allclose(weights[0], [1 / (1 + np.exp(0.7)), 1 / (1 + np.exp(-0.7)), 0.0], rtol=rounding(8))
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=rounding(8))
    assert select(RAGGED.keys, p).tolist() == [1, 0]
    assert saturation(RAGGED.keys, 1e6 * p) == pytest.approx(1.0, rel=rounding(8), abs=0)


@pytest.mark.parametrize("gram", [False, True])
def test_weights_are_right_where_logits_overflow(gram: bool) -> None:
    """Logits of 1e400 and -1e400: no NaN, and no first token for want of a better one."""
    tokens = [[[0.0, 1.0], [1e150, 0.0], [1e150, 0.0]], [[-1e150, 0.0], [0.0, 1.0], [5.0, 5.0]]]
    problem = TokenProblem.of(tokens, [1, 1], scores=np.zeros((2, 3)), mask=[[True] * 3, [True, True, False]])
    keys = problem.as_gram().keys if gram else problem.keys
    p = np.zeros(keys.dimension)
    p[1 if gram else 0] = 1e150 if gram else 1e250  # in Gram space, so often the second vector
    np.testing.assert_array_equal(attention_weights(keys, p), [[0, 0.5, 0.5], [0, 1, 0]])
    np.testing.assert_array_equal(attention_weights(keys, -p), [[1, 0, 0], [1, 0, 0]])
    np.testing.assert_array_equal(select(keys, np.stack([p, -p])), [[1, 1], [0, 0]])


def test_optimal_tokens_ignore_the_hidden_and_keep_ties() -> None:
    assert optimal_tokens(RAGGED).tolist() == [[False, True, False], [True, True, False]]
    assert is_globally_optimal(RAGGED, [1, 0])
    assert is_globally_optimal(RAGGED, [1, 1])
    assert not is_globally_optimal(RAGGED, [0, 0])


def test_figure_1b_has_a_local_and_a_global_direction() -> None:
    problem = figure1b()
    expected = {0: (True, True), 1: (True, False), 2: (False, False)}
    for token, (local, global_) in expected.items():
        solution = max_margin(problem, [token])
        assert is_locally_optimal(problem, solution.vector, [token]) == local
        assert is_globally_optimal(problem, [token]) == global_
    local = max_margin(problem, [1])
    assert neighbours(problem, local.vector, [1]).tolist() == [[False, False, True]]
    assert score_gaps(problem, local.vector, [1]).tolist() == [0.9]
    assert margins(problem, local.vector, [1]).tolist() == [[1.1, 0.0, 1.0]]


def test_an_input_without_neighbours_has_an_infinite_gap() -> None:
    solution = max_margin(figure8(), [0, 1])
    assert score_gaps(figure8(), solution.vector, [0, 1]).tolist() == [1.0, np.inf]


@pytest.mark.parametrize("size", [1e-300, 1e-9, 1.0, 1e150])
@pytest.mark.parametrize("tilt", [1e-14, 1e-8, 1e-3, 1.0, 3.14159])
def test_angles_are_accurate_at_any_size(size: float, tilt: float) -> None:
    problem = random_problem(1, 2, 3, rng=np.random.default_rng(0))
    p = size * np.array([1.0, 0.0, 0.0])
    q = np.array([np.cos(tilt), np.sin(tilt), 0.0])
    with mpmath.workdps(60):
        exact = float(mpmath.atan2(mpmath.mpf(float(q[1])), mpmath.mpf(float(q[0]))))
    # Half-angle formulas: differences and lengths of three numbers, an arc tangent; sin(pi) is no zero in doubles.
    assert angle(problem.keys, p, q) == pytest.approx(exact, rel=rounding(2 * 3 + 10), abs=rounding(1))
    assert cosine(problem.keys, p, q) == pytest.approx(np.cos(tilt), rel=0, abs=rounding(3 + 4))


@pytest.mark.parametrize("spread", [0.0, 8.0])
@pytest.mark.parametrize("d", [1, 2, 5])
def test_inner_products_tell_angles_as_coordinates_do(d: int, spread: float) -> None:
    """Also of differences, and of vectors whose lengths differ by 1e16."""
    rng = np.random.default_rng([d, int(spread)])
    for _ in range(40):
        m = int(rng.integers(2, 12))
        vectors = rng.standard_normal((m, d)) * 10 ** rng.uniform(-spread, spread, (m, 1))
        plain = Coordinates(vectors, [[0]])
        coefficients = rng.standard_normal((2, m))
        coefficients[1] = coefficients[0] + 10 ** rng.uniform(-9, 0) * coefficients[1]
        gram = plain.as_gram()
        assert gram.frame is not None
        p, q = coefficients
        # A length is rounded by as much of its terms; the frame's error is that over the least eigenvalue kept.
        terms = np.abs(coefficients) @ plain.vector_norms / plain.norm(coefficients @ vectors)
        directions = vectors / plain.vector_norms[:, None]
        least = np.linalg.svd(directions, compute_uv=False)[min(m, d) - 1]
        known = rounding(4 * m * d) * terms.sum() / least
        assert angle(gram, p, q) == pytest.approx(float(angle(plain, p @ vectors, q @ vectors)), rel=0, abs=known)


def test_what_inner_products_do_not_tell_has_no_frame() -> None:
    """Two keys 1e-9 apart may lie in one dimension or in two."""
    plain = Coordinates([[1.0, 0.0], [1.0, 1e-9], [2.0, 0.0]], [[0, 1, 2]])
    assert plain.frame is None
    assert plain.as_gram().frame is None
    assert Gram(np.ones((2, 2)), [[0, 1]]).frame is None
    assert Gram(np.zeros((2, 2)), [[0, 1]]).frame is None


def test_more_dimensions_than_were_said_are_refused() -> None:
    """An angle in fewer dimensions would be that of shadows."""
    matrix = np.eye(3)
    assert Gram(matrix, [[0, 1, 2]], rank=3).frame is not None
    with pytest.raises(ValueError, match="rank must be the number of dimensions, at least 3"):
        Gram(matrix, [[0, 1, 2]], rank=2)
    # A third direction that the check cannot tell from rounding, but the frame can: nothing is left out.
    matrix[2, 2] = matrix.trace() * 1e-12  # below the sizes of rounding that a matrix is allowed
    assert Gram(matrix, [[0, 1, 2]], rank=2).frame is None


@pytest.mark.usefixtures("unchecked_shapes")
def test_plain_vectors_need_no_geometry() -> None:
    keys = random_problem(2, 3, 4, rng=0).keys
    p, q = np.random.default_rng(1).standard_normal((2, 5, 4))
    np.testing.assert_array_equal(angle(p, q), angle(keys, p, q))
    np.testing.assert_array_equal(cosine(p, q), cosine(keys, p, q))
    assert angle([1, 0], [0, 3]) == pytest.approx(np.pi / 2, rel=rounding(4), abs=0)
    with pytest.raises(ValueError, match=r"q must have 2 numbers in its last axis, got shape \(3,\)"):
        angle([1, 0], [0, 1, 2])
    with pytest.raises(ValueError, match=r"p must be a vector, got shape \(\)"):
        angle(np.array(1.0), np.array(2.0))
    with pytest.raises(TypeError, match=r"between two vectors: angle\(problem.keys, p, q\) or angle\(p, q\)"):
        angle(keys, p)
    with pytest.raises(TypeError, match="their problem's keys, not a TokenProblem"):
        angle(random_problem(2, 3, 4, rng=0), p, q)


def test_the_angle_of_the_zero_vector_is_undefined() -> None:
    problem = figure1b()
    assert np.isnan(cosine(problem.keys, problem.keys.zero(), np.ones(3)))
    assert np.isnan(angle(problem.keys, problem.keys.zero(), np.ones(3)))


@pytest.mark.parametrize(
    ("selected", "message"),
    [
        ([0], "2 integers, one token per input"),
        ([0.0, 1.0], "2 integers"),
        ([3, 0], r"token 3 of input 0 is out of range 0\.\.2"),
        ([-1, 0], "token -1 of input 0 is out of range"),
        ([2, 0], "token 2 of input 0 is hidden by the mask"),
    ],
)
def test_bad_selections_are_named(selected: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_selection(RAGGED, np.array(selected))


def test_a_cone_of_keys_whose_squares_are_no_doubles():
    keys = np.array([[[0.0, 1.0], [1.0, 0.0]]])
    axis = np.array([-1.0, 1.0]) / 2
    plain = cone_constants(TokenProblem.of(keys, [1], scores=[[1.0, 0.0]]), axis, [0])
    tiny = cone_constants(TokenProblem.of(keys * 2.0**-900, [1], scores=[[1.0, 0.0]]), axis * 2.0**900, [0])
    assert (tiny.mu, tiny.reach) == (plain.mu, plain.reach)
