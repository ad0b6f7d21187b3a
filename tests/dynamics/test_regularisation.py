"""Regularisation paths: stationary on the sphere, lowest among the minima found, and at the limits of the theorems."""

import numpy as np
import pytest
from scipy.optimize import minimize
from tests.oracles.certified import ESTIMATED
from tests.oracles.rounding import of_attention, of_difference, rounding

from tokenmargin.dynamics import cone_path, flow, regularisation_path
from tokenmargin.dynamics.paths.ball import minimum_along, prompt_landscape
from tokenmargin.dynamics.paths.joint import ridge_path
from tokenmargin.dynamics.paths.newton import TOLERANCE, Sphere, minimise
from tokenmargin.margin import label_margin, max_margin, relaxed_max_margin
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.objective.local_scores import HeadObjective, NonlinearHead
from tokenmargin.problem.instances import NAMED_PROBLEMS, figure1b, figure1c, figure8, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, cosine, is_locally_optimal, optimal_tokens, select

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.mark.parametrize("selected", [None, np.array([1, 0, 2])])
def test_landscape_derivatives(selected) -> None:
    objective = PromptObjective(random_problem(3, 4, 5, rng=np.random.default_rng(0)))
    landscape = prompt_landscape(objective, selected)
    rng = np.random.default_rng(2)
    points = [y for y in 3 * rng.standard_normal((40, 5)) if np.isfinite(landscape(y)[0])]
    y, h = points[0], 1e-6
    _, gradient, hessian = landscape(y)
    steps = h * np.eye(5)
    slopes = [(landscape(y + e)[0] - landscape(y - e)[0]) / (2 * h) for e in steps]
    bends = [(landscape(y + e)[1] - landscape(y - e)[1]) / (2 * h) for e in steps]
    # Values are logarithms of some 30, sums of 3 x 4 x 5 products; third and fourth derivatives of softmax are at most
    # the powers of the spread of the logits, below 10.
    spread = 2 * float(np.linalg.norm(objective.problem.keys.vectors, axis=1).max())
    sizes = [max(1.0, float(np.abs(landscape(y)[k]).max())) for k in (0, 1)]
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=of_difference(h, sizes[0], spread**3, 60))
    np.testing.assert_allclose(hessian, bends, rtol=0, atol=of_difference(h, sizes[1], spread**4, 60))


def test_trust_region_agrees_with_scipy_on_a_small_sphere() -> None:
    objective = PromptObjective(random_problem(3, 4, 3, rng=np.random.default_rng(3)))
    ours = minimise(prompt_landscape(objective), np.array([1.0, 0.0, 0.0]), sphere=Sphere(2.0))
    theirs = min(
        minimize(lambda w: objective.value(2 * w / np.linalg.norm(w)), w, method="Nelder-Mead", tol=1e-12).fun
        for w in np.random.default_rng(0).standard_normal((6, 3))
    )
    assert ours.converged
    assert ours.outward > 0
    lowest = float(objective.value(regularisation_path(objective, [2.0], rng=np.random.default_rng(0)).points[0]))
    # Both searches end where the value is flat: what is left of either is rounding.
    off = of_attention(objective.problem, ours.point)[0]
    assert lowest <= theirs + off
    # A single start may end in another local minimum than the lowest; that it is one, `converged` says.
    assert float(objective.value(ours.point)) >= lowest - off


@pytest.mark.parametrize("name", ["fig1b", "fig1c", "fig8", "random"])
def test_theorem_1_the_path_reaches_the_global_direction(name) -> None:
    problem = random_problem(4, 6, 10, rng=np.random.default_rng(0)) if name == "random" else NAMED_PROBLEMS[name]()
    radii = np.array([1.0, 1e2, 1e4])
    path = regularisation_path(PromptObjective(problem), radii, rng=np.random.default_rng(0), starts=2)
    best = optimal_tokens(problem).argmax(axis=1)
    np.testing.assert_array_equal(path.selected, best)
    angles = angle(problem.keys, path.points, max_margin(problem, best).vector)
    assert angles[-1] < 10 / radii[-1]  # the path is beside its ray by a constant, below 10 here
    assert (np.diff(angles) < 0).all()
    np.testing.assert_allclose(problem.keys.norm(path.points), radii, rtol=rounding(2 * problem.keys.dimension))
    # On the sphere to 1e-9, or to the rounding of logits of size R.
    assert (path.residuals <= np.maximum(1e-9, 32 * np.finfo(float).eps * radii)).all()


def test_local_minima_are_the_locally_optimal_directions() -> None:
    problem = random_problem(3, 4, 5, rng=np.random.default_rng(1))
    path = regularisation_path(PromptObjective(problem), [10.0, 1e4], rng=np.random.default_rng(0), starts=6)
    last = [branch for branch in path.branches if np.isfinite(branch.log_excess[-1])]
    assert len(last) > 1
    assert (np.diff([branch.log_excess[-1] for branch in last]) >= 0).all()
    for branch in last:
        selected = select(problem.keys, branch.points[-1])
        solution = max_margin(problem, selected)
        assert is_locally_optimal(problem, solution.vector, selected)
        # Beside its ray by a constant: below 100, also where the margin is small.
        assert float(angle(problem.keys, branch.points[-1], solution.vector)) < 100 / 1e4


def test_both_geometries_give_one_path() -> None:
    problem = figure1c()
    paths = [
        regularisation_path(PromptObjective(pose), [1.0, 20.0], rng=np.random.default_rng(0), starts=1)
        for pose in (problem, problem.as_gram())
    ]
    # Each is stationary on the sphere to its residual (1e-9, checked above), a share of a gradient whose pull back to
    # the minimum is not less than 1e-3 of it: an error of residual / 1e-3 as a share of |p|.
    apart = 1e3 * sum(float(path.residuals.max()) for path in paths) + rounding(100)
    for plain, gram in zip(*(path.points for path in paths), strict=True):
        size = apart * float(problem.keys.norm(plain)) * float(problem.keys.norm(problem.keys.vectors).max())
        logits = paths[1].objective.problem.keys.logits(gram)
        np.testing.assert_allclose(logits, problem.keys.logits(plain), rtol=0, atol=size)


@pytest.mark.parametrize("power", [-60, -20, 20, 60])
def test_paths_do_not_depend_on_the_unit_of_the_keys(power) -> None:
    """The minimiser at a radius is off by at most the residual times the radius: the sphere alone curves as much."""
    problem, radii, unit = random_problem(3, 4, 3, rng=1), np.array([1.0, 10.0, 1e3, 1e5]), 2.0**power
    paths = []
    for size in (1.0, unit):
        scaled = TokenProblem.of(size * problem.keys.tokens, problem.labels, scores=problem.scores)
        found = regularisation_path(scaled, radii / size, rng=0, starts=4)
        np.testing.assert_array_equal(found.radii, radii / size)
        assert found.residuals.max() <= TOLERANCE
        q = found.points[-1]
        cone = cone_path(scaled, q, radii[1:] / size, width=0.1, rng=0)
        assert cone.verdict == "converges"
        along = minimum_along(PromptObjective(scaled), q, float(radii[-1] / size))
        paths.append(size * np.concatenate([found.points, cone.points, along[None]]))
    off = np.linalg.norm(paths[0] - paths[1], axis=1) / np.linalg.norm(paths[0], axis=1)
    assert off.max() <= 2 * TOLERANCE


def test_a_bounded_minimum_stays_inside_the_ball() -> None:
    """Tokens around the origin that cannot be separated: the risk has a minimiser at a finite norm."""
    problem = random_problem(4, 6, 2, rng=np.random.default_rng(4))
    path = regularisation_path(PromptObjective(problem), [0.5, 10.0, 40.0], rng=np.random.default_rng(0), starts=3)
    bounded = [branch for branch in path.branches if branch.bounded[-1]]
    assert bounded
    gradient = path.objective.descent(bounded[0].points[-1]).log_norm[0]
    assert gradient < np.log(1e-9)  # what Newton's method is asked for


def test_interruption_returns_the_radii_done() -> None:
    def interrupt(share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    path = regularisation_path(
        PromptObjective(figure1b()), [1.0, 2.0, 1e4], rng=np.random.default_rng(0), starts=2, progress=interrupt
    )
    assert path.interrupted
    assert path.radii.tolist() == [1.0, 2.0]
    assert np.isfinite(path.points).all()


@pytest.mark.parametrize("radii", [[], [-1.0], [2.0, 1.0], [np.nan]])
def test_bad_radii_are_named(radii) -> None:
    with pytest.raises(ValueError, match="radii must be positive and growing"):
        regularisation_path(PromptObjective(figure8()), radii, rng=np.random.default_rng(0))


def off_the_limit(name, limit, pairs) -> tuple[np.ndarray, np.ndarray]:
    """Angles of prompt and head to their claimed limits along the ridge path of Figure 3."""
    problem = NAMED_PROBLEMS[name]()
    path = ridge_path(JointObjective(problem), pairs, rng=np.random.default_rng(0), starts=1)
    np.testing.assert_array_equal(path.selected, [1, 1, 1])
    assert path.residuals.max() < 1e-8  # what Newton's method is asked for on two spheres
    return (
        np.asarray(angle(problem.keys, path.prompts, limit(problem, [1, 1, 1]).vector)),
        np.asarray(angle(problem.values, path.heads, label_margin(problem, [1, 1, 1]).vector)),
    )


def test_theorem_5_both_angles_fall_like_one_over_their_radius() -> None:
    r = np.array([1.0, 44.0, 1e3])
    prompt, head = off_the_limit("fig3a", max_margin, [(a, a) for a in r.tolist()])
    # The constants settle, 0.321 and 0.334, 0.216 and 0.222, and change by O(1 / R) of themselves: 0.002 at R = 1000,
    # and 0.05 from R = 44 on.
    assert prompt[-1] * r[-1] == pytest.approx(0.334, abs=2e-3)
    assert head[-1] * r[-1] == pytest.approx(0.222, abs=2e-3)
    assert prompt[1] * r[1] == pytest.approx(prompt[-1] * r[-1], rel=0.05, abs=0)  # 2 / 44


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0])
def test_theorem_6_depends_on_the_ratio_of_the_radii(ratio) -> None:
    """With |v| = ratio |p| on Figure 3b, p maximises the least of the margins of the support inputs and that of the
    third plus ratio (m - 1), m = 1.5 being its label margin: found here by looking. Ratio 1 is the boundary."""
    turn = np.linspace(-0.5, 0.5, 1_000_001)
    units = np.stack([np.cos(turn), np.sin(turn)])
    margins = np.array([[1.0, 1.0], [1.0, -1.0], [0.5, 1.5]]) @ units + np.array([0.0, 0.0, 0.5 * ratio])[:, None]
    expected = abs(turn[margins.min(axis=0).argmax()])
    R = np.array([4.0, 22.0, 44.0, 88.0])
    prompt, _ = off_the_limit("fig3b", relaxed_max_margin, [(ratio * a, a) for a in R.tolist()])
    assert (expected > 0.09) == (ratio < 1)
    off = (prompt - expected) * R
    # The angle tends to the expected one like 1 / R: the products settle, at 0.505 on the boundary.
    assert off[-1] == pytest.approx(off[-2], abs=0.03)
    if ratio == 1:
        assert off[-1] == pytest.approx(0.505, abs=0.01)  # to O(1 / R), as above
    if ratio == 2:
        assert abs(off[-1]) < 1e-3  # inside, the third input is no support: what is left falls like exp(-R / 2), 1e-19


def test_a_prompt_that_grows_like_a_logarithm_reaches_the_relaxed_direction_faster_than_any_power() -> None:
    pairs = [(a, 5 * np.log(1 + a)) for a in (1.0, 8.0, 30.0, 100.0)]
    prompt, _ = off_the_limit("fig3b", relaxed_max_margin, pairs)
    times = prompt * np.array(pairs)[:, 1]
    assert times[1] > 0.5  # 0.929 at R = 11
    assert times[2] < 0.01  # 0.0017 at R = 17
    assert times[3] < 1e-4  # the third input's weight falls like exp(-|v|): a factor exp(-70) later, all is rounding


def test_bad_pairs_are_named() -> None:
    with pytest.raises(ValueError, match="pairs"):
        ridge_path(JointObjective(figure8()), [(1.0, -1.0)], rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("direction", "verdict"),
    [
        ((-0.0990099, 0.9900990, 0.0), "converges"),  # the GMM
        ((1.0, 0.0, 0.0), "converges"),  # the LMM
        ((0.0, 1.0, 0.0), "leaves"),  # selects the best token, with less than the largest margin
        ((-1.0, -1.0, 0.0), "bounded"),  # selects the worst token
    ],
)
def test_theorem_4_only_locally_optimal_directions_hold_their_path(direction, verdict) -> None:
    objective = PromptObjective(figure1b())
    path = cone_path(
        objective, np.array(direction), [5.0, 50.0, 500.0], width=1e-3, rng=np.random.default_rng(0), starts=1
    )
    assert path.verdict == verdict
    cosines = path.points @ path.direction / path.norms
    assert (cosines >= 1 - 1e-3 - 1e-8).all()  # inside the cone, to what Newton's method is asked for on its edge
    assert (path.norms <= path.radii * (1 + rounding(8))).all()
    assert (path.norms >= 5.0 * (1 - rounding(8))).all()


def test_an_inner_minimum_of_a_cone_is_where_flow_comes_to_rest() -> None:
    objective = PromptObjective(random_problem(4, 6, 2, rng=np.random.default_rng(3)))
    rest = flow(objective)
    assert rest.stop == "stationary"
    path = cone_path(objective, rest.final, [10.0, 60.0, 70.0, 200.0], width=1e-3, rng=np.random.default_rng(0))
    assert path.verdict == "bounded"
    # About 64.9, between two radii. Where the path ends its gradient is small beside its terms: a step is left to go.
    off = 0.0
    for point in path.points[2:]:
        descent, bend, _ = objective.linearise(point)
        step = np.linalg.lstsq(bend, descent.direction, rcond=None)[0]
        off = max(off, ESTIMATED * float(np.linalg.norm(step)) + rounding(100, rest.norm))
    np.testing.assert_allclose(path.norms[2:], rest.norm, rtol=0, atol=off)
    np.testing.assert_allclose(path.norms[:2], path.radii[:2], rtol=rounding(8))
    np.testing.assert_allclose(path.angles[2:], 0.0, rtol=0, atol=off / rest.norm)


def test_a_head_that_prefers_mixtures_has_no_path_to_tokens() -> None:
    head = NonlinearHead(lambda x: 1 - (x[..., 0] - 0.5) ** 2, lambda x: -2 * (x - 0.5) * [1.0, 0.0])
    problem = TokenProblem.of([[[0.0, 0.0], [1.0, 0.0]]], [1], scores=[[0.75, 0.75]])
    with pytest.raises(ValueError, match="a mixture of tokens is best"):
        regularisation_path(HeadObjective(problem, head=head), [1.0], rng=np.random.default_rng(0))


def test_bad_cones_are_named() -> None:
    objective, rng = PromptObjective(figure1b()), np.random.default_rng(0)
    with pytest.raises(ValueError, match="width"):
        cone_path(objective, np.array([1.0, 0.0, 0.0]), [1.0], width=2.0, rng=rng)
    with pytest.raises(ValueError, match="non-zero"):
        cone_path(objective, np.zeros(3), [1.0], width=0.1, rng=rng)


def test_directions_to_start_from_find_a_branch_that_random_starts_miss() -> None:
    """Theorem 1 is about the global minimum: here two random starts a radius end at a local one."""
    problem = random_problem(4, 6, 10, rng=np.random.default_rng(2))
    objective, radii = PromptObjective(problem), [10.0, 1e3]
    gmm = max_margin(problem, optimal_tokens(problem).argmax(axis=1)).vector
    blind = regularisation_path(objective, radii, rng=np.random.default_rng(0), starts=2)
    guided = regularisation_path(objective, radii, rng=np.random.default_rng(0), starts=2, directions=gmm[None])
    assert cosine(problem.keys, blind.points[-1], gmm) < 0.9
    assert cosine(problem.keys, guided.points[-1], gmm) > 0.9999
    assert guided.branches[0].log_excess[-1] < blind.branches[0].log_excess[-1]


def test_a_risk_that_is_the_same_everywhere_is_left_where_it_is():
    flat = TokenProblem.of([[[-1.0, 1.0], [0.0, -1.0]]], [1], scores=[[-1.0, -1.0]])
    path = cone_path(PromptObjective(flat), np.array([1.0, 0.0]), (1.0, 10.0), width=0.1, rng=np.random.default_rng(0))
    np.testing.assert_allclose(path.norms, 1.0, rtol=1e-14)  # no point is lower than the first; a few roundings
