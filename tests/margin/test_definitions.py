"""Directional margins, neighbour-optimality and the cone constants, against the formulas of the paper."""

import math

import numpy as np
import pytest
from tests.oracles.rounding import rounding

from tokenmargin.margin import TOLERANCE, atlas, max_margin
from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE
from tokenmargin.problem.instances import figure1b, figure8, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import (
    cone_constants,
    directional_margin,
    directional_neighbours,
    is_neighbour_optimal,
    select,
    selected_tokens,
)


def test_a_max_margin_direction_has_its_margin_and_its_neighbours() -> None:
    problem = random_problem(3, 4, 6, rng=np.random.default_rng(0))
    for limit in atlas(problem).limits:
        unit = limit.solution.vector * limit.solution.margin
        # A unit vector's margin is what its certificate promises.
        assert directional_margin(problem.keys, unit) == pytest.approx(limit.solution.margin, rel=2 * TOLERANCE, abs=0)
        np.testing.assert_array_equal(directional_neighbours(problem.keys, unit), limit.neighbours)
        assert is_neighbour_optimal(problem, unit)


def test_directional_margin_by_loops() -> None:
    problem = random_problem(4, 5, 3, rng=np.random.default_rng(1))
    q = np.array([0.3, -1.0, 0.4])
    logits, alpha = problem.keys.logits(q), select(problem.keys, q)
    gaps = {(i, t): logits[i, alpha[i]] - logits[i, t] for i in range(4) for t in range(5) if t != alpha[i]}
    assert directional_margin(problem.keys, q) == min(gaps.values())
    near = directional_neighbours(problem.keys, q)
    assert [tuple(map(int, pair)) for pair in np.argwhere(near)] == [min(gaps, key=gaps.get)]
    i, t = min(gaps, key=gaps.get)
    assert is_neighbour_optimal(problem, q) == (problem.scores[i, alpha[i]] > problem.scores[i, t])


def test_ties_at_the_top_leave_no_margin() -> None:
    problem = figure1b()
    assert directional_margin(problem.keys, np.array([0.0, -1.0, 0.0])) == 0.0
    assert selected_tokens(problem.keys, np.array([0.0, -1.0, 0.0])).tolist() == [[False, True, True]]


def test_cone_constants_follow_the_formulas() -> None:
    """Written out for figure 1b, token 0: neighbours {origin}, non-neighbour (1, 0)."""
    problem = figure1b()
    p = max_margin(problem, [0]).vector
    constants = cone_constants(problem, p, [0], as_printed=True)
    norm = np.linalg.norm(p)
    keys = np.array([[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]])
    delta = 0.5 * (keys[2] - keys[1]) @ p[:2]
    reach = np.linalg.norm(keys[0]) * norm
    # Products, roots and a logarithm; delta is what is left of logits up to `reach`.
    of_formulas = {"rel": rounding(20, reach / delta), "abs": 0}
    assert constants.theta == pytest.approx(1 / norm, **of_formulas)
    assert constants.delta == pytest.approx(delta, **of_formulas)
    assert constants.reach == pytest.approx(reach, **of_formulas)
    assert constants.mu == pytest.approx((min(0.5, delta) / reach) ** 2 / 8, **of_formulas)
    radius = max(2, 1 / delta) * norm * math.log(64 * 3 * 1.0 * reach / 1.0)
    assert constants.radius == pytest.approx(radius, **of_formulas)
    narrower = cone_constants(problem, p, [0])  # one input: only half of delta is left to the cone
    assert narrower.mu == pytest.approx((min(0.5, delta / 2) / reach) ** 2 / 8, **of_formulas)
    assert narrower.radius == pytest.approx(constants.radius, **of_formulas)
    view = problem.as_gram()
    in_gram = cone_constants(view, max_margin(view, [0]).vector, [0])
    assert in_gram.radius == pytest.approx(constants.radius, rel=PRODUCTS_TOLERANCE, abs=0)


def test_without_non_neighbours_delta_is_infinite() -> None:
    problem = figure8()
    constants = cone_constants(problem, max_margin(problem, [0, 0]).vector, [0, 0])
    assert constants.delta == math.inf
    assert constants.radius > 0


def test_the_cone_needs_a_locally_optimal_selection() -> None:
    problem = TokenProblem.of([[[1.0], [0.0]]], [1], scores=[[0.0, 1.0]])
    with pytest.raises(ValueError, match="locally optimal"):
        cone_constants(problem, max_margin(problem, [0]).vector, [0])
