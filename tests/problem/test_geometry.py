"""Coordinates and Gram are two views of the same tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.rounding import rounding

from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.label_problems import ClassProblem
from tokenmargin.problem.matrix_geometry import bilinear
from tokenmargin.problem.token_problem import TokenProblem

# Sums of at most 12 products (tokens, or five coordinates) of normal draws, all below 4: of logits, inner products and
# pullbacks in coordinates; in Gram space a sum of such sums.
OF_SUMS, OF_SUMS_OF_SUMS = rounding(12, 12 * 4.0**2), rounding(2 * 12, 12 * 12 * 4.0**3)


def random_geometry(seed: int, *, shared: bool = False, ragged: bool = False) -> Coordinates:
    rng = np.random.default_rng(seed)
    n, T, d, m = 3, 4, 5, 7
    mask = np.ones((n, T), dtype=bool)
    if ragged:
        mask = rng.random((n, T)) < 0.6
        mask[:, 0] = True
    if shared:
        return Coordinates(rng.standard_normal((m, d)), rng.integers(0, m, (n, T)), mask)
    return Coordinates.of(rng.standard_normal((n, T, d)), mask)


cases = pytest.mark.parametrize(("shared", "ragged"), [(False, False), (True, False), (False, True), (True, True)])


@cases
def test_logits_and_pullback_are_adjoint_and_agree_with_plain_loops(shared: bool, ragged: bool) -> None:
    tokens = random_geometry(0, shared=shared, ragged=ragged)
    rng = np.random.default_rng(1)
    p, w = rng.standard_normal(5), rng.standard_normal((3, 4))
    logits = tokens.logits(p)
    pullback = np.zeros(5)
    for i, t in np.ndindex(3, 4):
        if tokens.mask[i, t]:
            vector = tokens.vectors[tokens.index[i, t]]
            assert logits[i, t] == pytest.approx(vector @ p, rel=0, abs=OF_SUMS)
            pullback += w[i, t] * vector
        else:
            assert logits[i, t] == -np.inf
    np.testing.assert_allclose(tokens.pullback(w), pullback, rtol=0, atol=OF_SUMS)
    np.testing.assert_array_equal(tokens.tokens[tokens.mask], tokens.vectors[tokens.index[tokens.mask]])


@cases
def test_gram_gives_the_same_logits_and_inner_products(shared: bool, ragged: bool) -> None:
    tokens = random_geometry(2, shared=shared, ragged=ragged)
    gram = tokens.as_gram()
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((2, tokens.n_vectors))
    p, q = tokens.combine(a), tokens.combine(b)
    np.testing.assert_allclose(gram.logits(a), tokens.logits(p), rtol=0, atol=OF_SUMS_OF_SUMS)
    assert gram.inner(a, b) == pytest.approx(tokens.inner(p, q), rel=0, abs=12 * 4 * OF_SUMS_OF_SUMS)
    assert gram.norm(a) ** 2 == pytest.approx(float(p @ p), rel=0, abs=12 * 4 * OF_SUMS_OF_SUMS)
    w = rng.standard_normal((3, 4))
    np.testing.assert_allclose(tokens.combine(gram.pullback(w)), tokens.pullback(w), rtol=0, atol=OF_SUMS)


@cases
def test_leading_axes_are_many_parameters_at_once(shared: bool, ragged: bool) -> None:
    tokens = random_geometry(4, shared=shared, ragged=ragged)
    for geometry in (tokens, tokens.as_gram()):
        many = np.random.default_rng(5).standard_normal((2, 3, geometry.dimension))
        weights = np.random.default_rng(6).standard_normal((2, 3, 3, 4))
        for k in np.ndindex(2, 3):
            ours, theirs = geometry.pullback(weights)[k], geometry.pullback(weights[k])
            np.testing.assert_allclose(geometry.logits(many)[k], geometry.logits(many[k]), rtol=0, atol=OF_SUMS_OF_SUMS)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=OF_SUMS)
            # Of a length far above the rounding of its square.
            assert geometry.norm(many)[k] ** 2 == pytest.approx(
                geometry.norm(many[k]) ** 2, rel=0, abs=12 * 4 * OF_SUMS_OF_SUMS
            )


@pytest.mark.parametrize("make", [lambda g: g, lambda g: g.as_gram()])
def test_differences_have_the_inner_products_of_the_differences(make) -> None:
    tokens = random_geometry(7, shared=True)
    plus, minus = np.array([0, 1, 2, 3, 4, 5, 5]), np.array([1, 2, 3, 4, 5, 6, 6])
    direct = tokens.vectors[plus] - tokens.vectors[minus]
    rows = make(tokens).differences(plus, minus)
    # Differences are twice as long at most, their inner products four times; roots by LAPACK add ten roundings a row.
    of_products = 4 * 10 * OF_SUMS
    np.testing.assert_allclose(rows @ rows.T, direct @ direct.T, rtol=0, atol=of_products)
    single = make(tokens).differences(plus, None)
    expected = tokens.vectors[plus] @ tokens.vectors[plus].T
    np.testing.assert_allclose(single @ single.T, expected, rtol=0, atol=of_products)


def test_extra_rows_give_outside_vectors_a_place() -> None:
    tokens = Coordinates.of([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    gram = tokens.as_gram(np.array([[1.0, 2.0, 3.0]]))
    start = gram.unit(2)
    np.testing.assert_array_equal(gram.logits(start), [[1.0, 2.0]])  # small integers, exactly
    assert gram.norm(start) == pytest.approx(np.sqrt(14), rel=rounding(2), abs=0)


@pytest.mark.parametrize("queries", [np.array([1.0, -2.0, 0.5]), np.random.default_rng(8).standard_normal((3, 3))])
def test_bilinear_logits_are_those_of_the_matrix(queries) -> None:
    tokens = random_geometry(9, shared=True, ragged=True)
    matrix = np.random.default_rng(10).standard_normal((3, 5))
    geometry = bilinear(tokens, queries)
    expected = np.einsum("ntd,nd->nt", tokens.tokens, np.broadcast_to(queries, (3, 3)) @ matrix)
    found = geometry.logits(matrix.ravel())[tokens.mask]
    np.testing.assert_allclose(found, expected[tokens.mask], rtol=0, atol=OF_SUMS_OF_SUMS)
    gram = bilinear(tokens.as_gram(), queries)
    assert isinstance(geometry, Coordinates)
    np.testing.assert_allclose(gram.matrix, geometry.as_gram().matrix, rtol=0, atol=4 * OF_SUMS_OF_SUMS)


@given(st.floats(-300, 300))
@settings(max_examples=30)
def test_norm_neither_overflows_nor_underflows(exponent: float) -> None:
    tokens = random_geometry(11)
    p = np.array([3.0, 4.0, 0.0, 0.0, 0.0]) * 10.0**exponent
    assert tokens.norm(p) == pytest.approx(5 * 10.0**exponent, rel=rounding(5 + 3), abs=0)


def test_zero_has_length_zero() -> None:
    tokens = random_geometry(12)
    assert tokens.norm(tokens.zero()) == 0.0


def test_geometries_are_read_only() -> None:
    tokens = random_geometry(13)
    with pytest.raises(ValueError, match="read-only"):
        tokens.vectors[0, 0] = 1.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Coordinates.of(np.zeros((2, 3))), r"shape \(n, T, d\)"),
        (lambda: Coordinates.of(np.zeros((0, 3, 2))), r"n, T, d >= 1"),
        (lambda: Coordinates.of([[[np.nan, 0.0]]]), "finite, got nan"),
        (lambda: Coordinates.of([[[1j, 0.0]]]), "real numbers"),
        (lambda: Coordinates.of(np.ones((1, 2, 2)), np.zeros((1, 2), dtype=bool)), "no token left under the mask"),
        (
            lambda: Coordinates.of(np.ones((1, 2, 2)), np.ones((1, 3), dtype=bool)),
            "mask must be boolean",
        ),
        (lambda: Coordinates(np.ones((2, 2)), np.array([[0, 2]])), r"must lie in 0\.\.1, got 0\.\.2"),
        (lambda: Coordinates(np.ones((2, 2)), np.array([[0.0, 1.0]])), "index must hold integers"),
        (lambda: Gram(np.ones((2, 3)), np.array([[0, 1]])), "square"),
        (lambda: Gram(np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([[0, 1]])), "symmetric"),
        (lambda: Gram(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([[0, 1]])), "positive semidefinite"),
        (lambda: bilinear(random_geometry(0), np.ones((2, 2))), r"\(q,\) or \(n, q\)"),
        (lambda: bilinear(random_geometry(0), np.array([np.inf])), "queries must be finite"),
    ],
)
def test_bad_input_is_named_with_its_remedy(build, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        build()


@pytest.mark.parametrize("gram", [False, True])
def test_equal_values_have_equal_scores(gram: bool) -> None:
    """A product of matrix and vector may round a row by where it stands: tokens of one value must tie all the same."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        words, which = rng.standard_normal((2, 7 + seed)), rng.integers(0, 2, (3, 5))
        heads = rng.standard_normal((3, 7 + seed))
        problem = TokenProblem.of(rng.standard_normal((3, 5, 2)), np.ones(3), head=heads[0], values=words[which])
        classes = ClassProblem.of(problem.keys.tokens, [0, 1, 2], head=heads.T, values=words[which])
        scores = (problem.as_gram() if gram else problem).scores
        for table in (scores, *np.moveaxis(classes.class_logits, -1, 0)):
            assert len(np.unique(table)) == len(np.unique(which))
