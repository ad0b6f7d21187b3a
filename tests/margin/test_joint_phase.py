"""The phases of joint training: critical ratios in closed form, another solver, and 120-digit minimisers."""

import numpy as np
import pytest
from scipy.optimize import minimize
from tests.oracles.certified import apart, assert_same_vector, margins_apart
from tests.oracles.rounding import rounding

from tokenmargin.dynamics import NormalizedGradientDescent, evolve, ridge_path
from tokenmargin.experiments.figures.joint_phase import random_joint_problem
from tokenmargin.margin import joint_phases, max_margin, relaxed_max_margin
from tokenmargin.objective.attention import JointObjective
from tokenmargin.problem.instances import figure3a, figure3b
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory.results.joint_phase import scaled_values

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
ALL = [1, 1, 1]
# p/|p| to p^relax at r = R = 11, 22, 44, 88, minimised in 120 digits.
ANGLES = {11: 0.18117, 22: 0.18514, 44: 0.18660, 88: 0.18702}


@pytest.mark.parametrize(("third", "critical"), [((0.5, 1.5), 1.0), ((0.5, 1.1), 5.0), ((0.5, 3.0), 0.25)])
def test_the_critical_ratio_is_known(third, critical) -> None:
    """p^relax = (1, 0) with M = 1 and mu_3 = 1/2: (1 - 1/2)/(m_3 - 1)."""
    phases = joint_phases(figure3a(third=third), ALL)
    # m_3 - 1 is at least 0.1: an error of p in it is at most |k_3| / 0.1 = 31 times as large beside it.
    assert phases.critical == pytest.approx(
        critical, rel=31 * apart(relaxed_max_margin(figure3a(third=third), ALL)), abs=0
    )
    assert phases.jumps_below
    below, above = (phases.at(critical * share).solution.vector for share in (0.999, 1.001))
    assert above == pytest.approx([1.0, 0.0], abs=apart(phases.at(critical * 1.001).solution))
    assert below[1] > 1e-5


def test_the_ends_are_the_papers_problems() -> None:
    phases = joint_phases(figure3b(), ALL)
    for ours, theirs in (
        (phases.prompt, max_margin(figure3b(), ALL)),
        (phases.relaxed, relaxed_max_margin(figure3b(), ALL)),
    ):
        assert_same_vector(ours.vector, theirs.vector, ours, theirs)


@pytest.mark.parametrize("seed", range(4))
def test_every_phase_maximises_the_law(seed) -> None:
    """Against scipy's SLSQP on the law itself, with the level as a variable."""
    rng = np.random.default_rng(seed)
    problem = random_joint_problem(5, 3, rng=rng)
    phases = joint_phases(problem, [1] * 5)
    tokens = problem.keys.tokens[:, 1]
    for share in (0.0, 0.4, 0.8, 1.3):
        phase = phases.at(share * phases.critical)
        assert phase.solution.is_optimal
        # The ratio asked for, found by a search to 1e-14 of a level whose length is certified.
        assert phase.rho == pytest.approx(share * phases.critical, rel=1e-13 + margins_apart(phase.solution), abs=0)
        constraints = (
            {"type": "ineq", "fun": lambda z, rho=phase.rho: tokens @ z[:-1] + phases.room * rho - z[-1]},
            {"type": "ineq", "fun": lambda z: tokens @ z[:-1]},
            {"type": "ineq", "fun": lambda z: 1 - z[:-1] @ z[:-1]},
        )
        unit = phase.solution.vector * phase.value
        found = minimize(lambda z: -z[-1], np.append(0.9 * unit, 0.0), constraints=constraints, method="SLSQP",
                         options={"ftol": 1e-14, "maxiter": 500})  # fmt: skip
        assert phase.value == pytest.approx(found.x[-1], abs=1e-6)  # SLSQP's own accuracy
        assert unit == pytest.approx(found.x[:-1], abs=2e-3)  # the value is flat to second order there


def test_the_ridge_path_has_the_120_digit_angles() -> None:
    problem = figure3a(third=(0.5, 1.1))
    phases = joint_phases(problem, ALL)
    start = np.concatenate([phases.head.vector, phases.at(1.0).solution.vector])
    radii = [(float(R), float(R)) for R in (*ANGLES, 10_000)]
    path = ridge_path(JointObjective(problem), radii, rng=np.random.default_rng(0), starts=0, also=start[None])
    angles = [float(angle(problem.keys, p, phases.relaxed.vector)) for p in path.prompts]
    assert angles[:-1] == pytest.approx(list(ANGLES.values()), abs=6e-6)  # five digits are known
    law = float(angle(problem.keys, phases.at(1.0).solution.vector, phases.relaxed.vector))
    assert angles[-1] == pytest.approx(law, abs=1e-5)  # what is left is 0.034/R


def test_steps_choose_the_phase() -> None:
    """Figure 3(b), the p-step twice the v-step: rho = 1/2, and the direction of the law there."""
    phases = joint_phases(figure3b(), ALL)
    objective = JointObjective(scaled_values(figure3b(), 0.5))
    path = evolve(
        objective, NormalizedGradientDescent(0.1), steps=2000, start=np.array([-1.0, 0.0, 0.0, -1.0]), keep=()
    )
    off = float(angle(figure3b().keys, objective.prompt(path.final), phases.at(0.5).solution.vector))
    assert off < 2 / 200  # |p| is near 200


def test_one_direction_for_all_ratios_is_not_sharp() -> None:
    """The third token lies on p^relax: p^mm has its direction, and no ratio changes it."""
    phases = joint_phases(_on_the_axis(), ALL)
    assert phases.critical > 0
    assert not phases.jumps_below
    assert float(angle(_on_the_axis().keys, phases.prompt.vector, phases.relaxed.vector)) <= rounding(
        50
    )  # halves, in the plane


def _on_the_axis() -> TokenProblem:
    keys = [[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]], [[0.0, 0.0], [0.5, 0.0]]]
    values = [[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]], [[0.0, 0.0], [0.5, 2.0]]]
    return TokenProblem.of(keys, [1, -1, 1], values=values, head=[0.0, 1.0])


def test_bad_input_is_one_line() -> None:
    phases = joint_phases(figure3b(), ALL)
    with pytest.raises(ValueError, match="rho must be zero or a positive number"):
        phases.at(-1.0)
    with pytest.raises(ValueError, match="no max-margin head"):
        joint_phases(figure3b(), [0, 0, 0])
