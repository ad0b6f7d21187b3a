"""The atlas by the circle gives what the atlas by the tree gives."""

import numpy as np
import pytest

import tokenmargin as tm
from tokenmargin.margin import atlas, plane_atlas

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def assert_same(problem: tm.TokenProblem) -> None:
    fast, slow = plane_atlas(problem), atlas(problem)
    assert [limit.selected.tolist() for limit in fast.limits] == [limit.selected.tolist() for limit in slow.limits]
    for one, other in zip(fast.limits, slow.limits, strict=True):
        np.testing.assert_allclose(one.solution.vector, other.solution.vector, rtol=1e-8, atol=1e-10)
        assert (one.neighbours == other.neighbours).all()
        np.testing.assert_array_equal(one.gaps, other.gaps)
        assert one.is_global == other.is_global
    assert (fast.feasible, fast.selections) == (slow.feasible, slow.selections)


@pytest.mark.parametrize("seed", range(12))
def test_random_problems(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, T = int(rng.integers(1, 5)), int(rng.integers(2, 6))
    assert_same(tm.random_problem(n, T, 2, rng=rng))


@pytest.mark.parametrize("seed", range(4))
def test_inputs_of_different_lengths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = np.arange(5) < rng.integers(1, 6, size=3)[:, None]
    mask[0] = True
    assert_same(
        tm.TokenProblem.of(rng.standard_normal((3, 5, 2)), np.ones(3), scores=rng.standard_normal((3, 5)), mask=mask)
    )


@pytest.mark.parametrize("name", list(tm.NAMED_PROBLEMS))
def test_figures(name: str) -> None:
    assert_same(tm.NAMED_PROBLEMS[name]())


def test_two_tokens_at_one_place_cannot_be_selected() -> None:
    problem = tm.TokenProblem.of([[[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]], [1], scores=[[1.0, 0.9, 0.8]])
    found = plane_atlas(problem)
    assert [limit.selected.tolist() for limit in found.limits] == [[2]] or not found.limits
    assert found.feasible == 1


def test_nothing_to_choose() -> None:
    found = plane_atlas(tm.TokenProblem.of([[[1.0, 2.0]]], [1], scores=[[1.0]]))
    assert found.limits == ()
