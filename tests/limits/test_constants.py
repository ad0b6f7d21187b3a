"""The constants of a limit, `angle(p, p^) |p| -> c`: closed forms, paths, and instances without any."""

import numpy as np
import pytest
from benchmarks.constants import FOUR_DIGITS, compare
from tests.oracles.rounding import of_flow, rounding

from tokenmargin.dynamics import GradientDescent, NormalizedGradientDescent, evolve, flow
from tokenmargin.limits import limit_constants, limit_of
from tokenmargin.limits.shares import random_starts
from tokenmargin.margin import atlas
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import CorrelationLoss, LogisticLoss
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.instances import figure1b, figure5
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle
from tokenmargin.theory import EmbeddingInstance

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.mark.parametrize("score", [2.0, 10.0])
def test_two_inputs_by_hand(score) -> None:
    """Figure 5: differences (1, 1) and (1, -1), multipliers 1/2 each, so w_y = log(a_1/a_2)/2, and p^ = (1, 0)."""
    slope = 1 / (1 + np.exp([score, 1.0]))
    for loss, a in ((LogisticLoss(), slope * [score, 1.0]), (CorrelationLoss(), np.array([score, 1.0]))):
        found = limit_constants(figure5(score), [1, 1], loss=loss)
        height = np.log(a[0] / a[1]) / 2
        known = rounding(50)  # numbers of size one; two rows at right angles are a system of condition number one
        # a_j carries 1/n; w_x has a_1 a_2 exp(-2 w_x) = 1/4.
        assert found.vector[:2] == pytest.approx([np.log(2 * np.sqrt(a[0] * a[1]) / 2), height], rel=known, abs=0)
        assert found.constant == pytest.approx(abs(height), rel=known, abs=0)
        assert found.multipliers == pytest.approx([0.5, 0.5], rel=known, abs=0)
        # Across p^ the curvature sum lambda d d' is 1 and |p^| = 1: steps up to 2 settle.
        assert found.critical_step == pytest.approx(2.0, rel=known, abs=0)
        assert found.correction == pytest.approx(abs(height), rel=known, abs=0)


def test_paths_come_to_the_constants() -> None:
    """A sample of the benchmark: one problem of each of its families, none chosen."""
    found = [compare(number, seed=7) for number in range(5)]
    known = [one for one in found if not one.reason]
    assert {one.family for one in known} == {one.family for one in found}
    assert max(one.ridge for one in known) <= FOUR_DIGITS
    assert max(one.flow for one in known) <= FOUR_DIGITS


def test_dependent_differences_take_the_multipliers_of_least_entropy() -> None:
    """Orthonormal tokens s1, s2 above t1, t2 in all four pairs: the multipliers are the scaling of the matrix a to
    rows and columns of 1/2 (Sinkhorn), and not those that the solver happened to find."""
    scores = np.array([[3.0, 0.0], [3.0, 1.5], [2.0, 0.5], [2.0, -4.0]])
    pairs = np.array([[0, 2], [0, 3], [1, 2], [1, 3]])
    problem = TokenProblem(Coordinates(np.eye(4), pairs), np.ones(4), scores=scores)
    found = limit_constants(problem, [0, 0, 0, 0], loss=CorrelationLoss())
    scaled = (scores[:, 0] - scores[:, 1]).reshape(2, 2) / 4
    for _ in range(200):
        scaled *= 0.5 / scaled.sum(axis=1, keepdims=True)
        scaled *= 0.5 / scaled.sum(axis=0, keepdims=True)
    # Newton's method ends at relative steps of 1e-9 or less; Sinkhorn's has converged.
    assert found.multipliers == pytest.approx(scaled.ravel(), rel=1e-9, abs=0)
    assert found.rank == 3
    assert found.spans


def test_descent_keeps_time_with_its_step() -> None:
    """Gradient descent is at `p^ log(step t) + w`: also the part along p^ is known. Its error is of order log(t)/t."""
    found = limit_constants(figure5(2.0), [1, 1])
    step, steps = 1.0, 4_000
    path = evolve(PromptObjective(figure5(2.0)), GradientDescent(step), steps=steps, keep=())
    expected = found.named.solution.vector * np.log(step * steps) + found.vector
    assert path.final == pytest.approx(expected, abs=20 * np.log(steps) / (step * steps))


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_normalised_descent_settles_up_to_the_critical_step(factor) -> None:
    problem = figure5(3.0)
    found = limit_constants(problem, [1, 1])
    step = factor * found.critical_step
    start = 40 * found.named.solution.vector + found.vector + [0.0, 0.01, 0.0]
    points = evolve(PromptObjective(problem), NormalizedGradientDescent(step), steps=600, start=start, keep=("point",))[
        "point"
    ][-2:]
    settled = np.abs(points[:, 1] - found.vector[1])
    # 600 steps leave less than 0.9^600 of the way; the constant is known to Newton's 1e-9.
    assert (settled < 1e-9).all() if factor < 1 else (settled > 0.1).all()


def test_the_start_stays_beside_the_active_differences() -> None:
    """Figure 1b, at the local direction (1, 0): one active difference, and what p has across it is the start's."""
    problem = figure1b()
    found = limit_constants(problem, [1])
    assert not found.spans
    assert found.constant == pytest.approx(0, abs=rounding(50))  # numbers of size one
    path = flow(PromptObjective(problem), start=np.array([200.0, -3.0, 0.5]), until_norm=1e6)
    across = path.norm * float(angle(problem.keys, path.prompt, [1.0, 0.0, 0.0]))
    # An angle of 3e-6 is its tangent to a share of 1e-11, and is rounded beside |p|.
    assert across == pytest.approx(found.of_flow(path.prompt), rel=1e-11, abs=rounding(8, 1e6))
    # What the flow moves across is below exp(-200), the weight of other tokens; the solver errs by a share of a
    # coordinate at each step.
    assert found.of_flow(path.prompt) == pytest.approx(np.hypot(3.0, 0.5), rel=of_flow(path), abs=0)


def test_without_strict_complementarity_there_is_no_constant() -> None:
    """p^ = (1, 0) needs (1, 0) alone; (1, 1) is at margin 1 and has no multiplier. The product then grows for ever."""
    keys = [[[1.0, 0.0], [0.0, 0.0], [0.0, -1.0]]]
    problem = TokenProblem.of(keys, [1], scores=[[1.0, 0.0, 0.0]])
    found = limit_constants(problem, [0])
    assert "no multiplier" in found.reason
    assert not found.attracts(np.array([[1e3, 1.0], [1e6, 0.0]])).any()  # nothing is proven without constants
    assert found.constant == np.inf
    products = []
    for norm in (1e3, 1e6):
        path = flow(PromptObjective(problem), start=np.array([1.0, 0.0]), until_norm=norm)
        products.append(path.norm * float(angle(problem.keys, path.prompt, [1.0, 0.0])))
    # d y/d x = exp(-y) (1 + ...): y grows like log x.
    assert products[1] - products[0] == pytest.approx(np.log(1e3), rel=0.05, abs=0)


def test_a_selection_that_is_no_limit_says_so() -> None:
    found = limit_constants(figure1b(), [2])
    assert "not converge" in found.reason
    assert not found.attracts(1e3 * np.eye(3)).any()


def test_one_irrelevant_token_in_closed_form() -> None:
    """After paper A's first step, with frequencies 2, 1, 1, 2: c^2 = sum (b_s - mean)^2 - theta (sum alpha_s b_s)^2."""
    words = ["good the the", "good the the", "fine the the", "bad the the", "dull the the", "dull the the"]
    x = EmbeddingInstance.on(words, [1, 1, 1, -1, -1, -1])
    problem, corpus, half = x.steps[0].after.problem(), x.corpus, x.step / 2
    found = limit_constants(problem, problem.shared_scores.argmax(axis=1))
    important = np.flatnonzero(corpus.sole_label != 0)
    alpha = corpus.signed_frequency[important]
    score = half * np.abs(alpha)
    count = np.array([(corpus.index == s).any(axis=1).sum() for s in important])
    b = np.log(count * score) - np.logaddexp(0, score)
    theta = half**2 / (1 + half**2 * (alpha @ alpha))
    expected = ((b - b.mean()) ** 2).sum() - theta * (alpha @ b) ** 2
    assert found.constant**2 == pytest.approx(
        expected, rel=1e-9, abs=0
    )  # d is 10^65: what is neglected is below rounding
    assert found.spans


@pytest.mark.parametrize("seed", range(12))
def test_where_a_limit_is_proven_flow_goes_there(seed: int) -> None:
    """`attracts` is a proof: of points that it accepts, those nearest to its bound are followed."""
    rng = np.random.default_rng([2026, seed])
    n, T, d = (int(rng.integers(1, most)) for most in (4, 6, 5))
    keys, scores = rng.integers(-3, 4, (n, T + 1, d)).astype(float), rng.integers(0, 4, (n, T + 1)).astype(float)
    problem = TokenProblem.of(keys, np.ones(n), scores=scores)
    posed = problem.as_gram() if seed % 3 == 0 else problem
    for limit in atlas(posed).limits[:2]:
        found = limit_constants(posed, limit.selected)
        rays = random_starts(posed, 200, radius=1.0, rng=rng)
        rays = rays + 0.7 * limit.solution.vector * limit.solution.margin
        lengths = np.geomspace(0.1, 1e4, 60) * float(posed.keys.norm(limit.solution.vector))
        accepted = np.array([found.attracts(length * rays) for length in lengths])
        assert not found.reason
        assert accepted.any()
        assert not accepted[0].any()  # nothing is proven near zero
        first = accepted.argmax(axis=0)
        for ray in np.flatnonzero(accepted.any(axis=0))[:6]:
            reached = limit_of(posed, lengths[first[ray]] * rays[ray])
            assert reached.outcome == "direction"
            assert reached.chosen.tolist() == limit.chosen.tolist()
