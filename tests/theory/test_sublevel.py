"""Below the level of the risk: random problems and starts, none chosen, and the proof by finite differences."""

import numpy as np
import pytest

from tokenmargin.dynamics import flow
from tokenmargin.margin import limit_constraints
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import ExponentialLoss, LogisticLoss
from tokenmargin.problem.instances import figure8, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory import ProblemInstance, claim
from tokenmargin.theory.results.sublevel import Sublevel

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.mark.parametrize("loss", [LogisticLoss(), ExponentialLoss()], ids=["logistic", "exponential"])
def test_every_start_below_the_level_reaches_the_best_tokens(loss) -> None:
    rng, below = np.random.default_rng(1), 0
    while below < 6:
        problem = random_problem(2, 3, 3, rng=rng)
        start = rng.normal(size=3) * rng.uniform(0, 12)
        found = Sublevel.of(problem, start, loss)
        if not found.named.solution.is_optimal or not found.risk < found.level:
            continue
        below += 1
        path = flow(PromptObjective(problem, loss), start=start, until_norm=1e6)
        assert path.stop == "norm"
        assert float(angle(problem.keys, path.prompt, found.named.solution.vector)) < 1e-3  # c/|p| with c up to 1e3
        assert found.weighted_excess(start, loss) <= found.constant


def test_the_gradient_is_a_positive_combination() -> None:
    """(1) of the proof, against central differences of the risk: all coefficients positive below the level."""
    rng = np.random.default_rng(3)
    problem = random_problem(1, 3, 4, rng=rng)
    direction = Sublevel.of(problem, np.zeros(4), LogisticLoss()).named.solution.vector
    point = 3 * direction
    assert Sublevel.of(problem, point, LogisticLoss()).constant > 0
    objective, h = PromptObjective(problem), 1e-5
    gradient = np.array(
        [(objective.value(point + h * e) - objective.value(point - h * e)) / (2 * h) for e in np.eye(4)]
    )
    rows = limit_constraints(problem, problem.scores.argmax(axis=1)).rows()
    coefficients, *_ = np.linalg.lstsq(rows.T, -gradient, rcond=None)
    assert (coefficients > 0).all()
    # central differences: h^2 in the third derivative, and rounding over h
    assert rows.T @ coefficients == pytest.approx(-gradient, abs=1e-8)


def test_the_level_of_figure_8_is_nearly_sharp() -> None:
    """The start (4, 0) is half a percent above the level, and goes to the other limit."""
    found = Sublevel.of(figure8(), np.array([4.0, 0.0]), LogisticLoss())
    assert found.level < found.risk < 1.005 * found.level
    assert np.isnan(found.constant)


@pytest.mark.parametrize("scores", [1e-8, 1.0, 2e3, 1e7])
@pytest.mark.parametrize("keys", [1e-8, 1.0, 1e6])
def test_the_proof_is_not_refuted_by_the_scale(keys, scores) -> None:
    """One input of two tokens, where the proof's bounds are equations: room is rounding, and losses underflow."""
    problem = TokenProblem.of([[[-0.4 * keys], [0.5 * keys]]], [1], scores=[[0.5 * scores, -0.2 * scores]])
    direction = Sublevel.of(problem, np.zeros(1), LogisticLoss()).named.solution.vector
    for far in (0.0, 1e-3, 1.0, 5.0):
        assert claim("R.sublevel").on(ProblemInstance(problem, p=far * direction)).verdict == "holds"


def test_above_the_level_no_constant_is_spoken_of() -> None:
    (report,) = (one for one in claim("R.sublevel").own() if one.kind == "outside")
    assert report.verdict == "vacuous"
    assert not any(np.isnan(slack.bound) or np.isnan(slack.measured) for slack in report.findings.conclusion)
