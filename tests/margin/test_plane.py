"""The atlas by the circle gives what the atlas by the tree gives."""

import numpy as np
import pytest
from tests.oracles.by_arcs import atlas_by_arcs
from tests.oracles.certified import assert_same_vector

import tokenmargin as tm
from tokenmargin.margin import atlas
from tokenmargin.problem.instances import NAMED_PROBLEMS

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def assert_same(problem: tm.TokenProblem) -> None:
    fast, slow = atlas_by_arcs(problem), atlas(problem)
    assert [limit.selected.tolist() for limit in fast.limits] == [limit.selected.tolist() for limit in slow.limits]
    for one, other in zip(fast.limits, slow.limits, strict=True):
        assert_same_vector(one.solution.vector, other.solution.vector, one.solution, other.solution)
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


@pytest.mark.parametrize("name", list(NAMED_PROBLEMS))
def test_figures(name: str) -> None:
    assert_same(NAMED_PROBLEMS[name]())


def test_two_tokens_at_one_place_are_selected_together() -> None:
    """Their mean score decides: 0.95 is above 0.8, and 0.75 is not."""
    keys = [[[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]]
    for second, selected in ((0.9, [[0, 1]]), (0.5, [2])):
        problem = tm.TokenProblem.of(keys, [1], scores=[[1.0, second, 0.8]])
        (limit,) = atlas_by_arcs(problem).limits
        assert limit.names == selected
        assert_same(problem)


@pytest.mark.parametrize("seed", range(6))
def test_ties_and_copies(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = rng.standard_normal((3, 4, 2))
    keys[0, 1] = keys[0, 0]
    problem = tm.TokenProblem.of(keys, np.ones(3), scores=rng.integers(0, 2, (3, 4)).astype(float))
    fast, slow = atlas_by_arcs(problem), atlas(problem)
    assert [limit.names for limit in fast.limits] == [limit.names for limit in slow.limits]
    assert [limit.kind for limit in fast.limits] == [limit.kind for limit in slow.limits]


def test_nothing_to_choose() -> None:
    found = atlas_by_arcs(tm.TokenProblem.of([[[1.0, 2.0]]], [1], scores=[[1.0]]))
    assert found.limits == ()
