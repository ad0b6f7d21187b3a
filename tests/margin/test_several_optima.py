"""Several optimal tokens per input, in inputs of different lengths: no number is made of tokens that are not there."""

import numpy as np
import pytest
from tests.oracles.certified import margins_apart

import tokenmargin as tm


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
