"""Some inputs of a problem are a problem: against problems made of sliced arrays."""

import numpy as np
import pytest
from tests.oracles.rounding import of_attention, of_logits

from tokenmargin.margin import atlas, max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.problem.instances import random_problem, shared_vocabulary_problem
from tokenmargin.problem.label_problems import ClassProblem, RegressionProblem
from tokenmargin.problem.problem_files import load_problem
from tokenmargin.problem.token_problem import TokenProblem

MASK = np.array([[True, True, False], [True, True, True], [False, True, True], [True, True, True]])
INDICES = [slice(None, 2), slice(None, None, -1), [0, 2], [3, 3, 1], -1, np.array([True, False, False, True])]


def _problems() -> dict[str, TokenProblem]:
    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((4, 3, 2)), rng.standard_normal((4, 3, 5))
    ragged = TokenProblem.of(keys, [1, -1, 1, 1], scores=rng.integers(0, 2, (4, 3)), values=values, mask=MASK)
    words = shared_vocabulary_problem(4, 3, 6, vocabulary=5, rng=1)
    classes = ClassProblem.of(keys, [0, 1, 2, 0], head=rng.standard_normal((2, 3)))
    return {
        "plain": random_problem(4, 3, 6, rng=2), "ragged": ragged, "words": words, "gram": words.as_gram(),
        "in W": words.with_matrix(rng.standard_normal((4, 2))), "one query": ragged.with_matrix(np.array([1.0, 2.0])),
        "classes": classes, "targets": RegressionProblem.of(keys, rng.standard_normal(4), head=[1.0, 0.5], mask=MASK),
    }  # fmt: skip


@pytest.mark.parametrize("inputs", INDICES, ids=str)
@pytest.mark.parametrize("name", list(_problems()))
def test_a_part_has_the_tokens_and_scores_of_its_inputs(name: str, inputs) -> None:
    problem = _problems()[name]
    part, rows = problem[inputs], np.atleast_1d(np.arange(4)[inputs])
    assert type(part) is type(problem)
    assert (len(part), part.T, part.keys.matrix_shape) == (len(rows), problem.T, problem.keys.matrix_shape)
    for got, whole in ((part.scores, problem.scores), (part.labels, problem.labels), (part.mask, problem.mask)):
        np.testing.assert_array_equal(got, whole[rows])
    for extra in ("classes", "class_logits", "rivals", "targets"):
        if hasattr(problem, extra):
            np.testing.assert_array_equal(getattr(part, extra), getattr(problem, extra)[rows])
    p = np.random.default_rng(3).standard_normal(problem.keys.dimension)
    apart = of_logits(problem, p)
    np.testing.assert_allclose(part.keys.logits(p), problem.keys.logits(p)[rows], rtol=0, atol=apart)
    assert (part.values is part.keys) == (problem.values is problem.keys)


def test_a_part_is_the_problem_of_sliced_arrays() -> None:
    whole = random_problem(4, 3, 6, rng=2)
    part = whole[[2, 0]]
    again = TokenProblem.of(whole.keys.tokens[[2, 0]], whole.labels[[2, 0]], head=whole.head)
    np.testing.assert_array_equal(part.keys.vectors, again.keys.vectors)
    np.testing.assert_array_equal(max_margin(part, [0, 1]).vector, max_margin(again, [0, 1]).vector)
    np.testing.assert_array_equal(*([one.selected for one in atlas(of).limits] for of in (part, again)))


def test_descent_is_the_mean_of_the_parts() -> None:
    problem = random_problem(4, 3, 6, rng=4)
    p = np.random.default_rng(5).standard_normal(6)

    def pull(of: TokenProblem) -> np.ndarray:
        unit, log_size = PromptObjective(of).descent(p)
        return unit * np.exp(log_size)

    parts = np.mean([pull(problem[i]) for i in range(4)], axis=0)
    np.testing.assert_allclose(pull(problem), parts, rtol=0, atol=of_attention(problem, p)[1])


def test_what_is_kept_of_all_inputs_is_not_kept_of_a_part() -> None:
    keys = [[[0.0, 1.0], [1.0, 0.0]], [[2.0, 1.0], [2.0, 1.0]]]
    for problem in (TokenProblem.of(keys, [1, 1], head=[1, 0]), TokenProblem.of(keys, [1, 1], head=[1, 0]).as_gram()):
        assert (problem.keys.has_copies, problem.keys.is_full) == (True, True)
        assert problem.keys.first_copies.tolist() == [[0, 1], [0, 0]]
        assert (problem[:1].keys.has_copies, problem[1].keys.has_copies) == (False, True)
        assert problem[:1].keys.first_copies.tolist() == [[0, 1]]


def test_a_part_of_a_dictionary_keeps_the_vectors_it_uses(tmp_path) -> None:
    problem = shared_vocabulary_problem(1000, 20, 8, vocabulary=500, rng=3)
    part = problem[:2]
    assert part.keys.n_vectors <= 40
    part.save(tmp_path / "part.npz")
    np.testing.assert_array_equal(load_problem(tmp_path / "part.npz").keys.tokens, problem.keys.tokens[:2])


@pytest.mark.parametrize(
    ("inputs", "kind", "said"),
    [
        (4, IndexError, "input 4 is out of range: this problem has 4 inputs, 0..3"),
        ([0, -5], IndexError, "input -5 is out of range"),
        ([], ValueError, "a problem needs at least one input; none of 4 is in this part"),
        (slice(4, None), ValueError, "a problem needs at least one input; none of 4 is in this part"),
        ([True, False], TypeError, "one boolean for each of 4, got bool \\(2,\\)"),
        ("first", TypeError, "a slice, a number"),
        ([[0, 1]], TypeError, r"got int64 \(1, 2\)"),
    ],
)
def test_what_is_no_part_says_so(inputs, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        random_problem(4, 3, 2, rng=0)[inputs]


def test_a_problem_is_no_list_of_problems() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(random_problem(4, 3, 2, rng=0))
    assert np.asarray(random_problem(4, 3, 2, rng=0)).shape == ()
    assert np.array([random_problem(4, 3, 2, rng=0)] * 2, dtype=object).shape == (2,)
