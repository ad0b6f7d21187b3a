"""Self-attention and cross-attention: problems in W, against the formula written out for every output."""

import numpy as np
import pytest
from tests.oracles.rounding import rounding

from tokenmargin.margin import max_margin
from tokenmargin.problem.attention_problems import cross_attention, self_attention
from tokenmargin.problem.instances import figure1a
from tokenmargin.problem.problem_files import ProblemFileError, load_problem, parse_problem

RNG = np.random.default_rng(0)
TOKENS, HEAD, LABELS = RNG.standard_normal((3, 4, 5)), RNG.standard_normal(5), [1, -1, 1]
MASK = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 1, 1, 1]], dtype=bool)
ROUNDING = {"rtol": 0, "atol": 1e-13}  # products of five and six numbers of size one, added: a few hundred eps


def logits_of(problem, W):
    return problem.keys.logits(W.ravel())


@pytest.mark.parametrize("outputs", [(), (3,), (3, 2)], ids=["one query", "per input", "several"])
def test_cross_attention_is_the_formula(outputs):
    queries, W = RNG.standard_normal((*outputs, 6)), RNG.standard_normal((6, 5))
    problem = cross_attention(TOKENS, queries, LABELS, head=HEAD)
    each = np.broadcast_to(queries if len(outputs) == 2 else queries[..., None, :], (3, (*outputs, 1, 1)[1], 6))
    expected = np.einsum("ipq,qd,itd->ipt", each, W, TOKENS).reshape(-1, 4)
    np.testing.assert_allclose(logits_of(problem, W), expected, **ROUNDING)
    scores = np.repeat(np.array(LABELS)[:, None] * (TOKENS @ HEAD), each.shape[1], axis=0)
    np.testing.assert_allclose(problem.scores, scores, **ROUNDING)
    assert problem.keys.matrix_shape == (6, 5)
    np.testing.assert_array_equal(problem.as_matrix(W.ravel()), W)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("position", [-1, 0, (0, -1), None])
def test_self_attention_is_the_formula(position, causal):
    W = RNG.standard_normal((5, 5))
    problem = self_attention(TOKENS, LABELS, position=position, causal=causal, head=HEAD, mask=MASK)
    row = 0
    for i, here in enumerate(MASK):
        places = np.flatnonzero(here)
        wanted = places if position is None else places[np.atleast_1d(position)]
        for s in wanted:
            seen = here & (np.arange(4) <= s) if causal else here
            expected = np.where(seen, TOKENS[i] @ W.T @ TOKENS[i, s], -np.inf)
            np.testing.assert_allclose(logits_of(problem, W)[row], expected, **ROUNDING)
            assert problem.labels[row] == LABELS[i]
            row += 1
    assert row == problem.n


def test_labels_and_scores_of_every_output():
    scores, labels = RNG.standard_normal((3, 4, 4)), RNG.choice([-1, 1], (3, 4))
    problem = self_attention(TOKENS, labels, position=None, scores=scores)
    np.testing.assert_array_equal(problem.scores, scores.reshape(12, 4))
    np.testing.assert_array_equal(problem.labels, labels.ravel())
    some = self_attention(TOKENS, labels[:, :2], position=(1, -1), scores=scores[:, :2])
    np.testing.assert_array_equal(some.scores, scores[:, :2].reshape(6, 4))


def test_a_solution_in_closed_form():
    """One input of two tokens: `W = z (k_0 - k_1)' / (|z|^2 |k_0 - k_1|^2)`."""
    z, keys = np.array([1.0, -2.0, 0.5]), RNG.standard_normal((1, 2, 4))
    problem = cross_attention(keys, z, [1], scores=[[1.0, 0.0]])
    apart = keys[0, 0] - keys[0, 1]
    found = problem.as_matrix(max_margin(problem, [0]).vector)
    # One row: its length and back, sums of 12 products.
    np.testing.assert_allclose(found, np.outer(z, apart) / (z @ z) / (apart @ apart), rtol=rounding(50))


def test_masked_tokens_may_hold_anything():
    broken = np.where(MASK[..., None], TOKENS, np.nan)
    one, other = (self_attention(x, LABELS, head=HEAD, mask=MASK) for x in (TOKENS, broken))
    np.testing.assert_array_equal(one.keys.tokens, other.keys.tokens)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: self_attention(TOKENS, LABELS, head=HEAD, position=4), "position must hold integers from -4 to 3"),
        (lambda: self_attention(TOKENS, LABELS, head=HEAD, mask=MASK, position=2), "shortest sequence has 2 tokens"),
        (lambda: self_attention(TOKENS[0], LABELS, head=HEAD), r"tokens must have shape \(n, T, d\)"),
        (lambda: self_attention(TOKENS, LABELS, head=HEAD, mask=MASK.astype(int)), "mask must be boolean"),
        (lambda: self_attention(TOKENS, [1, -1], head=HEAD), r"labels must have shape \(3,\)"),
        (lambda: cross_attention(TOKENS, np.ones((2, 4)), LABELS, head=HEAD), r"\(n, P, q\) with n = 3"),
        (lambda: cross_attention(TOKENS, np.ones(4), [1, 1], head=HEAD), r"labels must have shape \(3,\)"),
        (lambda: cross_attention(TOKENS, np.ones(4), LABELS, scores=np.ones((2, 4))), "scores must have shape"),
        (lambda: cross_attention(TOKENS, np.ones(4), LABELS, head=HEAD, values=TOKENS[:, :2]), "values must have"),
        (lambda: self_attention(TOKENS, LABELS, head=HEAD).as_matrix(np.ones(4)), "has 25 numbers"),
    ],
)
def test_what_is_wrong_is_said(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_vectors_are_no_matrices():
    problem = figure1a()
    with pytest.raises(TypeError, match="is a vector, not a matrix"):
        problem.as_matrix(np.ones(3))
    with pytest.raises(TypeError, match="inner products alone"):
        problem.as_gram().with_matrix(np.ones(2)).as_matrix(np.ones(3))


@pytest.mark.parametrize("suffix", [".npz", ".json"])
def test_files_keep_the_queries(tmp_path, suffix):
    problem = self_attention(TOKENS, LABELS, position=None, causal=True, head=HEAD, mask=MASK)
    problem.save(tmp_path / f"problem{suffix}")
    again = load_problem(tmp_path / f"problem{suffix}")
    assert again.keys.matrix_shape == (5, 5)
    np.testing.assert_array_equal(again.keys.tokens, problem.keys.tokens)
    np.testing.assert_array_equal(again.scores, problem.scores)
    assert repr(again) == repr(problem)
    assert "W of 5 x 5" in repr(problem)


def test_queries_of_a_file_must_be_numbers():
    with pytest.raises(ProblemFileError, match="queries must be numbers"):
        parse_problem('{"keys": [[[0, 1], [1, 0]]], "labels": [1], "scores": [[0, 1]], "queries": ["a"]}')
