"""A sample of the large comparison: every awkward family against exact arithmetic and an independent solver."""

import numpy as np
import pytest
from benchmarks.margin_families import FAMILIES
from benchmarks.margin_oracle import LARGEST, Tally, compare, compare_exactly, exact_norms, one_by_one

from tokenmargin.margin import solve_many

WAYS = pytest.mark.parametrize("solve_all", [one_by_one, solve_many], ids=["single", "stacks"])


@WAYS
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_every_family_agrees_with_the_oracle(family, solve_all) -> None:
    rng = np.random.default_rng(12)
    tally = Tally()
    posed = [family(rng) for _ in range(60)]
    for constraints, solution in zip(posed, solve_all(posed), strict=True):
        compare(constraints, solution, tally)
    assert tally.wrong == tally.over == 0
    assert tally.statuses["inaccurate"] == 0
    assert tally.residual <= LARGEST


@WAYS
def test_integer_problems_agree_with_exact_arithmetic(solve_all) -> None:
    tally = compare_exactly(np.random.default_rng(4), 600, solve_all=solve_all)
    assert tally.wrong == tally.over == 0
    assert min(tally.statuses["optimal"], tally.statuses["infeasible"]) > 100
    assert tally.difference < 1e-9


def test_the_exact_oracle_knows_simple_answers() -> None:
    assert exact_norms(np.array([[2, 0], [0, 1]])) == (True, 4 + 1, 4)  # p = (1/2, 1), |p|^2 = 5/4
    assert exact_norms(np.array([[1], [-1]]))[0] is False
    assert exact_norms(np.array([[0, 0, 0]]))[0] is False
