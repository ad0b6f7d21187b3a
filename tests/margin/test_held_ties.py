"""Ties of equals that training holds, against a family where the answer is known in closed form."""

import numpy as np
import pytest
from tests.oracles.certified import SETTLED

from tokenmargin.limits.limit import limit_of
from tokenmargin.margin import TOLERANCE, atlas, held_ties, plane_atlas, tie_of_equals
from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE
from tokenmargin.problem.instances import random_problem
from tokenmargin.problem.token_problem import TokenProblem

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def leaning(first: float, second: float) -> TokenProblem:
    """The first input's losers lean 2 to either side, the second's equals lean 1 to either side.

    At a height z the losers of the first input weigh cosh 2z and those of the second 1 / cosh z. The two other
    coordinates give these terms the shares 1 / first^2 and 1 / second^2, so the pull on z vanishes where
    2 tanh 2z / tanh z = first^2 / second^2 = ratio, and at 0. The left side falls from 4 at z = 0 to 2.
    """
    keys = [[[first, 0, 0], [0, 0, 2], [0, 0, -2]], [[0, second, 1], [0, second, -1], [0, 0, 0]]]
    return TokenProblem.of(keys, np.ones(2), scores=[[1.0, 0, 0], [1, 1, 0]])


TIE = np.array([[True, False, False], [True, True, False]])


@pytest.mark.parametrize("gram", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "verdict", "kinds"),
    [
        (4, 3, "held", {"GMM"}),  # ratio below 2: no choice has a larger margin than the tie
        # Between 2 and 4 both choices have a larger margin, but near the tie training returns to it.
        (5, 3, "held", {"GMM", "stable"}),
        (11, 6, "held", {"GMM", "stable"}),
        (13, 6, "unknown", {"GMM"}),  # above 4: it leaves
        (7, 3, "unknown", {"GMM"}),
    ],
)
def test_a_tie_is_held_between_two_ratios(gram, first: int, second: int, verdict: str, kinds: set[str]) -> None:
    problem = leaning(first, second).as_gram() if gram else leaning(first, second)
    tie, answer = tie_of_equals(problem, TIE)
    assert answer == verdict
    expected = (1 / first**2 + 1 / second**2) ** -0.5
    assert tie.solution.margin == pytest.approx(expected, rel=PRODUCTS_TOLERANCE if gram else 2 * TOLERANCE)
    found = atlas(problem)
    assert {limit.kind for limit in found.limits} == kinds
    assert ([0, [0, 1]] in [limit.names for limit in found.limits]) == (verdict == "held")
    assert sum(limit.is_global for limit in found.limits) == (1 if first == 4 else 2)
    assert found.complete == (verdict == "held")
    assert ("ties of equals" in found.unsearched or "tie of equals" in found.unsearched) == (verdict == "unknown")


def test_flow_returns_to_a_held_tie_and_leaves_from_afar() -> None:
    """Beside the mirror as well: 2 tanh 2z / tanh z = 25 / 9 at z = 0.78, where the two basins meet."""
    problem = leaning(5, 3)
    near, far = (limit_of(problem, np.array([0.0, 0.0, z]), until_norm=1e7) for z in (0.3, 3.0))
    assert (near.outcome, near.kind, near.named.names) == ("direction", "stable", [0, [0, 1]])
    assert near.angle <= SETTLED
    assert (far.outcome, far.kind, far.named.names) == ("direction", "GMM", [0, 0])


def test_ties_of_keys_in_general_position_are_not_held() -> None:
    """Their differences and those of the neighbours are linearly independent: a proof for every single tie."""
    rng = np.random.default_rng(5)
    for _ in range(4):
        keys = random_problem(2, 3, 4, rng=rng).keys.tokens
        found = atlas(TokenProblem.of(keys, np.ones(2), scores=rng.integers(0, 2, (2, 3)).astype(float)))
        assert found.complete
        assert "stable" not in [limit.kind for limit in found.limits]


def test_too_many_ties_are_counted_not_listed() -> None:
    scores = np.zeros((2, 40))
    scores[:, 0] = 1
    problem = TokenProblem.of(np.random.default_rng(0).standard_normal((2, 40, 2)), np.ones(2), scores=scores)
    assert held_ties(problem).left == (1 + 2**39 - 1) ** 2 - 40**2
    assert not plane_atlas(problem).complete


def test_equals_a_hair_apart_are_left_open() -> None:
    """Two tokens of equal score differ by less than the rank of their differences can tell: no verdict, no error."""
    rng = np.random.default_rng(3)
    keys = rng.standard_normal((2, 4, 3))
    keys[:, 1] = keys[:, 0] + 1e-11 * rng.standard_normal((2, 3))
    problem = TokenProblem.of(keys, np.ones(2), scores=[[0, 1, 0, 0], [0, 1, 0, 0]])
    assert "neither found to be held nor excluded" in atlas(problem).unsearched
