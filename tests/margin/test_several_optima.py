"""Several optimal tokens per input, in inputs of different lengths: no number is made of tokens that are not there."""

import numpy as np
import pytest
from tests.oracles.certified import margins_apart

import tokenmargin as tm
from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE
from tokenmargin.margin.several_optima import SAME_NORM


@pytest.mark.parametrize("seed", range(12))
def test_inputs_of_different_lengths(seed: int) -> None:
    """Warnings are errors here. Without tokens that are not there, the answer is that of each input's own tokens."""
    rng = np.random.default_rng(seed)
    n, T, d = 2, 4, 3
    keys, scores = rng.standard_normal((n, T, d)), rng.integers(0, 2, (n, T)).astype(float)
    mask = np.arange(T) < rng.integers(1, T + 1, (n, 1))
    problem = tm.TokenProblem.of(keys, [1] * n, scores=scores, mask=mask)
    best = mask & (scores == np.where(mask, scores, -np.inf).max(axis=1, keepdims=True))
    found = tm.choice_margin(problem, best)
    # The same problem with the gaps filled by copies of a token that is there: copies add no constraint of their own.
    filled = np.where(mask, np.arange(T), 0)
    rows = np.arange(n)[:, None]
    whole = tm.TokenProblem.of(keys[rows, filled], [1] * n, scores=scores[rows, filled])
    same = tm.choice_margin(whole, best[rows, filled])
    assert found.status == same.status
    assert found.margin == pytest.approx(same.margin, rel=margins_apart(found, same), abs=0)


@pytest.mark.parametrize("seed", range(6))
def test_a_choice_that_rounding_cannot_decide_does_not_hide_the_minimum(seed: int) -> None:
    """Turned, a choice that no direction satisfies by a hair may be beyond doubles; it cannot be a shorter one."""
    keys = np.array(
        [
            [[1, -1, -2], [0, 1, -2], [2, -1, -2], [-2, -1, 2]],
            [[1, 2, 1], [-2, -1, 0], [0, 1, 2], [1, 1, 2]],
            [[1, -1, 1], [2, 2, 1], [0, 1, 2], [0, 0, -2]],
        ],
        dtype=float,
    )
    scores = [[1, 1, 0, 1], [0, 0, 0, 1], [0, 2, 2, 2]]
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((3, 3)))[0]
    exact = tm.choice_margin(tm.TokenProblem.of(keys, [1] * 3, scores=scores))
    turned = tm.choice_margin(tm.TokenProblem.of(keys @ turn, [1] * 3, scores=scores))
    assert (exact.status, turned.status) == ("optimal", "optimal")
    # Turning rounds each key by some units in its last place, which the margin's condition may raise a hundredfold.
    assert turned.margin == pytest.approx(
        exact.margin, rel=margins_apart(exact, turned) + 100 * np.finfo(float).eps, abs=0
    )
    assert turned.choice == exact.choice


def test_what_refutes_a_choice_is_said_as_it_is() -> None:
    """Branches of a search add up to nothing together; weights of constraints that tie may be negative."""
    line = tm.TokenProblem.of([[[1.0], [0.0], [-1.0]]], [1], scores=[[0, 1, 0]])
    chosen = tm.choice_margin(line)
    assert chosen.status == "infeasible"
    assert "every branch" in chosen.explanation
    tied = tm.class_margin(line, np.array([[True, False, True]]))
    assert tied.status == "infeasible"
    assert (tied.farkas < 0).any()
    assert "convex" not in tied.explanation


@pytest.mark.parametrize("offset", [0.0, 1e4, 1e6, 1e8, 1e10, 1e12])
def test_an_offset_of_all_keys_does_not_hide_the_shorter_choice(offset: float) -> None:
    """Beside keys 1e12 long logits are rounded to 1e-4; which choice satisfies an input, its own solution says.

    The first input asks for (1, 0). There the first token of the second input leads by 1 - s, so that it asks for
    1 / (1 - s), and the last by 1 - 3 s, which a turn by s mends: the shorter choice, by s.
    """
    rng, eps = np.random.default_rng(0), np.finfo(float).eps
    for _ in range(40):
        s = 10 ** rng.uniform(-9, -3)
        keys = np.array([[[1, 0], [0, 0], [0, 0]], [[1 - s, 0], [0, 0], [1 - 3 * s, 3]]])
        keys = keys @ np.linalg.qr(rng.standard_normal((2, 2)))[0] + offset * rng.standard_normal(2)
        problem = tm.TokenProblem.of(keys, [1, 1], scores=[[1, 0, 0], [1, 0, 1]])
        chosen = [tm.TokenProblem.of([keys[0, :2], keys[1, [token, 1]]], [1, 1], scores=np.eye(2)) for token in (0, 2)]
        best = max((tm.max_margin(alone, [0, 0]) for alone in chosen), key=lambda found: found.margin)
        found = tm.choice_margin(problem)
        assert found.is_optimal
        assert found.margin == pytest.approx(best.margin, rel=SAME_NORM + margins_apart(found, best), abs=0)
        in_gram = tm.choice_margin(problem.as_gram())
        if in_gram.is_optimal:
            # Rounding of inner products, relative to the square of the offset, moves the keys by its root at most.
            told = SAME_NORM + margins_apart(in_gram, best) + PRODUCTS_TOLERANCE + 8 * eps * offset
            assert in_gram.margin == pytest.approx(best.margin, rel=told, abs=0)


def test_equal_minima_known_by_inner_products_are_listed_once() -> None:
    """One vector has many coefficients where keys are dependent."""
    keys = [[[0.8, 1.2, 1.4], [0.8, 0.2, 1.2], [-0.8, -1.2, -1.4]], [[-0.8, 1.8, -0.8], [-1.6, 1.6, -2.0], [0, 0, 0]]]
    problem = tm.TokenProblem.of(keys, [1, 1], scores=[[1, 1, 0], [1, 1, 0]])
    assert len(tm.choice_margin(problem).minima) == 1
    assert len(tm.choice_margin(problem.as_gram()).minima) == 1
