"""The same problem in other words has the same limits: a sample of `benchmarks.invariance`."""

import numpy as np
import pytest
from tests.oracles.told_otherwise import contradictions

from tokenmargin.margin import atlas
from tokenmargin.problem.token_problem import TokenProblem

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.mark.parametrize("seed", [3, 8, 13, 17])
def test_a_problem_told_otherwise_has_the_same_limits(seed):
    assert not contradictions(seed)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
def test_what_is_known_of_ties_does_not_depend_on_the_unit(scale):
    """One tie of this problem is neither found to be held nor excluded, in any unit."""
    keys = np.array(
        [
            [[2, -2, 2], [0, 0, 1], [0, -1, -2], [1, -2, -2]],
            [[0, 2, -1], [1, -1, 1], [-2, 0, 1], [2, -2, -1]],
            [[2, -2, 1], [2, 2, 0], [-1, -1, 0], [1, 0, -1]],
        ]
    )
    scores = np.array([[0, 1, 0, 0], [0, 1, 1, 0], [2, 2, 1, 2]]) + 0.0
    plain, scaled = (atlas(TokenProblem.of(keys * s, np.ones(3), scores=scores)) for s in (1.0, scale))
    assert plain.ties_undecided == scaled.ties_undecided == 1
