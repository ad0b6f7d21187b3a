"""How flows end: they advance or say why not, tell a finite part from rest, and know when rounding led them."""

import mpmath
import numpy as np
import pytest
from scipy.optimize import nnls
from tests.oracles.certified import ESTIMATED, SETTLED
from tests.oracles.rounding import of_flow, rounding

from tokenmargin.dynamics import flow
from tokenmargin.dynamics.events import NormReached
from tokenmargin.limits.limit import limit_of
from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import CustomLoss, LogisticLoss
from tokenmargin.problem.instances import NAMED_PROBLEMS, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

LOG_LOSS = CustomLoss(lambda u: -np.log(u), lambda u: -1 / u, lambda u: 1 / u**2)


@pytest.mark.parametrize("name", ["fig3a", "fig3b"])
def test_a_path_along_an_axis_is_followed_where_its_small_coordinate_is_below_rounding(name):
    """At |p| = 1e6 the logits are known to 1e-10, so that no solver can place the small coordinate better."""
    problem = NAMED_PROBLEMS[name]()
    path = flow(PromptObjective(problem))
    solution = max_margin(problem, path.selected)
    assert path.stop == "norm"
    assert path.steps < 2000
    # The path is beside its ray by less than 10; the ray is certified and the path followed to the solver's error.
    assert float(angle(problem.keys, path.prompt, solution.vector)) < 10 / path.norm + of_flow(path)


@pytest.mark.parametrize("scale", [1e4, 1e8, 1e12, 1e100])
def test_time_with_huge_scores(scale):
    """Two tokens on a line and the exponential's own logarithm: `log t` is a quadrature of known numbers."""
    problem = TokenProblem.of([[[1.0], [0.0]]], [1], scores=[[scale, 0.0]])
    path = flow(PromptObjective(problem, LogisticLoss()), until_norm=50.0)
    with mpmath.workdps(40):
        r = mpmath.mpf(float(path.arcs[-1]))
        s = 1 / (1 + mpmath.exp(-r))
        # 1/|gradient| = (1 + exp(scale s)) / (scale s (1 - s)) rises by its last e-fold over a length of about
        # 1 / (scale s'): the integral is the end value over the logarithmic slope there, to a share of that length.
        slope = scale * s * (1 - s) + (2 * s - 1)
        end = scale * s - mpmath.log(scale * s * (1 - s)) - mpmath.log(slope)
    # The documented accuracy of log t, 2e-5, the rounding of logits times the scores, and the share that is left out.
    apart = 2e-5 + rounding(4, 50 * scale) + 2 / float(slope)
    assert path.log_time[-1] == pytest.approx(float(end), rel=0, abs=apart)


def test_equal_scores_keep_their_pull_where_weights_underflow():
    """Tokens that score the same lead by the shortfall alone, which is exp(-1000) here."""
    problem = TokenProblem.of([[[1.0, 0.5], [1.0, -0.5], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    point = np.array([1000.0, 0.7])
    direction = PromptObjective(problem).descent(point).direction
    with mpmath.workdps(1000):
        keys = mpmath.matrix(problem.keys.tokens[0].tolist())
        logits = keys * mpmath.matrix(point.tolist())
        weights = [mpmath.exp(x) for x in logits]
        total = sum(weights)
        weights = [w / total for w in weights]
        f = weights[0] + weights[1]
        leads = [1 - f, 1 - f, -f]
        pull = [sum(weights[t] * leads[t] * keys[t, j] for t in range(3)) for j in range(2)]
        length = mpmath.sqrt(sum(x**2 for x in pull))
        expected = [float(x / length) for x in pull]
    np.testing.assert_allclose(direction, expected, rtol=0, atol=rounding(2, 1000.0))  # logits of 1000


def next_words(seed: int, d: int) -> tuple[TokenProblem, np.ndarray]:
    """One context of four words, followed twice by the first and once by the second."""
    words = np.random.default_rng(seed).standard_normal((4, d))
    scores = np.array([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
    return TokenProblem.of(np.repeat(words[None], 3, axis=0), np.ones(3), scores=scores), words


@pytest.mark.parametrize(("seed", "d"), [(0, 3), (1, 5), (4, 8)])
def test_a_limit_with_a_finite_part_is_named_and_followed(seed, d):
    problem, words = next_words(seed, d)
    path = flow(PromptObjective(problem, LOG_LOSS))
    assert path.stop == "norm"
    assert path.norm == pytest.approx(1e8, rel=rounding(2 * d), abs=0)
    part = path.finite_part
    assert part.error <= 1e-11  # Newton's method has nothing left to do
    assert part.curvature > 0
    np.testing.assert_array_equal(part.tied, [[True, True, False, False]] * 3)
    assert len(part.span) == 1
    # The log-odds of the two words are those of their counts, to what Newton's method says it has left.
    longest = float(np.linalg.norm(words[0] - words[1]))
    # The point is the projection of p where it was found, and has the rounding of all of p.
    of_odds = ESTIMATED * part.error * longest + rounding(d, longest * np.linalg.norm(part.lift(path.tail(0.0))))
    assert (words[0] - words[1]) @ part.point == pytest.approx(np.log(2), rel=0, abs=of_odds)
    # The direction has the largest margin over the other words among those that tie the two: a least-distance problem.
    apart = words[0] - words[1]
    across = np.eye(d) - np.outer(apart, apart) / (apart @ apart)
    rows = (words[0] - words[2:]) @ across
    system = np.vstack([rows.T, np.ones(2)])
    target = np.append(np.zeros(d), 1.0)
    residual = system @ nnls(system, target)[0] - target
    reached = path.final
    # One norm, of the whole point and of the part that goes on: the other part is the difference.
    off = float(np.linalg.norm(part.point)) + rounding(100, 1e6)
    np.testing.assert_allclose(path.at_norm(1e6), part.lift(path.tail.at_norm(1e6)), rtol=0, atol=off)
    expected = -residual[:-1] / residual[-1]
    assert float(angle(problem.keys, reached, expected)) < SETTLED
    of_odds += rounding(2 * d, longest * path.norm)
    assert (words[0] - words[1]) @ reached == pytest.approx(np.log(2), rel=0, abs=of_odds)


def test_a_finite_part_is_not_taken_for_rest_far_out():
    """From far along the direction the gradient is zero to rounding beside its terms; it is no stationary point."""
    problem, _ = next_words(0, 3)
    objective = PromptObjective(problem, LOG_LOSS)
    part = flow(objective).finite_part
    far = part.lift(part.follow(until_norm=300.0).final)
    again = flow(objective, start=far)
    assert again.stop == "norm"
    assert again.finite_part.point == pytest.approx(
        part.point, rel=0, abs=ESTIMATED * (again.finite_part.error + part.error)
    )


def tied_pair(scale: float = 1.0) -> PromptObjective:
    """Words at (0, 1) and (0, -1), which follow twice and once, and one at (-1, 0) that never does: the finite part is
    y = log(2) / 2, the direction x. With y at rest `dx/dt = 1 / (1 + C exp(x))`, C = exp(y) + exp(-y) = 3 / sqrt(2).
    Words times s have x and y over s, gradients times s, and times over s^2."""
    words = scale * np.array([[0.0, 1], [0, -1], [-1, 0]])
    scores = np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    return PromptObjective(TokenProblem.of(np.repeat(words[None], 3, axis=0), np.ones(3), scores=scores), LOG_LOSS)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("scale", [1.0, 2.0**-40, 2.0**60])
def test_a_flow_through_a_flat_region_in_closed_form(scale):
    path = flow(tied_pair(scale))
    part = path.finite_part
    assert part.error * scale <= 1e-12  # what `FinitePart` promises: Newton's method to rounding
    assert part.point * scale == pytest.approx(
        [0, np.log(2) / 2], rel=0, abs=ESTIMATED * part.error * scale + rounding(8)
    )
    assert np.linalg.norm(part.span, axis=1) == pytest.approx(1, rel=rounding(4), abs=0)
    assert part.drift == pytest.approx([1, 0], abs=1e-5)  # where it is looked at the third word has a share of 1e-5
    c, x = 3 / np.sqrt(2), path.final[0] * scale
    assert path.norm == pytest.approx(1e8 * path.unit, rel=rounding(4), abs=0)
    # t = C exp(x) + x and a constant; at x = 1e8 its logarithm is x + log C, known to eps x and the integral's 1e-5.
    assert path.log_time[-1] == pytest.approx(x + np.log(c) - 2 * np.log(scale), rel=0, abs=2e-5 + rounding(4, 1e8))
    assert path.log_gradient == pytest.approx(-x - np.log(c) + np.log(scale), rel=0, abs=rounding(4, 1e8))
    # At rest in y to first order: (8/9) (y - w) = (1/3) exp(-x) / C, the share of the third word; while it falls from
    # 1e-3 to 1e-5 that share is also the relative error of this formula.
    for norm in (6.0, 8.0, 10.0):
        point = path.at_norm(norm / scale)
        # The second order is the square of the share, 0.02 of it at the most.
        assert part.distance_to_rest(point) * scale == pytest.approx(
            0.375 * np.exp(-point[0] * scale) / c, rel=0.02, abs=0
        )


@pytest.mark.usefixtures("unchecked_shapes")
def test_events_and_resumption_beside_a_finite_part():
    whole = flow(tied_pair(), events=[NormReached(1e3, stops=False)])
    (crossing,) = whole.crossings
    assert crossing.event == NormReached(1e3, stops=False)
    assert np.linalg.norm(whole(crossing.arc)) == pytest.approx(
        1e3, rel=rounding(8), abs=0
    )  # Brent's method, to rounding
    stopped = flow(tied_pair(), events=[NormReached(1e3)])
    assert (stopped.stop, stopped.norm) == ("event", pytest.approx(1e3, rel=rounding(8), abs=0))
    again = stopped.resume()
    apart = ESTIMATED * (again.finite_part.error + whole.finite_part.error)
    assert again.stop == "norm"
    assert again.finite_part.point == pytest.approx(whole.finite_part.point, rel=0, abs=apart)
    # The documented 2e-5 of each, and logits of 1e8; both paths are straight there, to the solver's error.
    assert again.log_time[-1] == pytest.approx(whole.log_time[-1], rel=0, abs=4e-5 + rounding(4, 1e8))
    assert again.arcs[-1] == pytest.approx(whole.arcs[-1], rel=of_flow(again, whole), abs=0)
    assert not whole.decided_by_rounding


def mirrored(seed: int) -> tuple[TokenProblem, np.ndarray]:
    """Pairs of tokens mirrored in an axis, of equal scores, and tokens on it; the start is on it as well."""
    rng = np.random.default_rng(seed)
    pairs, single = (np.round(8 * rng.standard_normal((2, 1, 2))) / 8 for _ in range(2))
    single[..., 1] = 0
    keys = np.concatenate([pairs, pairs * [1.0, -1.0], single], axis=1)
    high, low = np.round(8 * rng.standard_normal((2, 2, 1))) / 8
    return TokenProblem.of(keys, [1, 1], scores=np.concatenate([high, high, low], axis=1)), np.array([1.0, 0.0])


def test_an_exactly_symmetric_problem_is_decided_by_rounding():
    problem = TokenProblem.of([[[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    path = flow(PromptObjective(problem))
    assert path.decided_by_rounding
    assert path.rounding.norm < 50  # it leaves the axis there
    assert abs(path.rounding.direction[1]) == pytest.approx(1, rel=rounding(8), abs=0)  # the axis is x, exactly
    # The rate of the transverse part tends to 1 along the axis, by hand: tanh'(0); it differs by exp(-2|p|).
    size = path.rounding.log_size
    arcs = path.arcs[: len(size)]
    begun = int(np.searchsorted(arcs, 2.0))
    assert size[-1] - size[begun] == pytest.approx(arcs[-1] - arcs[begun], rel=np.exp(-4), abs=0)


def test_rounding_is_called_where_both_sides_end_apart_and_nowhere_else():
    called = 0
    for seed in range(8):
        problem, start = mirrored(seed)
        objective = PromptObjective(problem)
        path = flow(objective, start=start, until_norm=1e6)
        sides = [flow(objective, start=start + np.array([0.0, side]), until_norm=1e6).final for side in (1e-9, -1e-9)]
        apart = abs(sides[0][1] - sides[1][1]) > 1e-3
        assert path.decided_by_rounding == apart, seed
        called += path.decided_by_rounding
    assert 0 < called < 8


def test_ordinary_paths_do_not_grow_rounding():
    for seed in range(3):
        rng = np.random.default_rng(seed)
        path = flow(PromptObjective(random_problem(3, 4, 4, rng=rng)), start=rng.standard_normal(4), until_norm=1e6)
        assert not path.decided_by_rounding
        assert path.rounding.log_growth < 10


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("seed", [1, 11, 47, 53, 73, 148])
def test_no_step_leaps_over_a_rest_point_on_a_line(seed):
    """In one dimension the unit field is 1 or -1, and p goes to where it first turns back: a grid finds that."""
    rng = np.random.default_rng([5, seed])
    n, T = int(rng.integers(1, 5)), int(rng.integers(2, 6))
    keys = rng.integers(-3, 4, (n, T, 1)) + 0.0 if seed % 2 else rng.normal(size=(n, T, 1))
    scores = rng.integers(0, 3, (n, T)) + 0.0 if seed % 3 else rng.normal(size=(n, T))
    problem, start = TokenProblem.of(keys, np.ones(n), scores=scores), rng.normal() * 3
    objective = PromptObjective(problem.merged)
    way = float(objective.descent(np.array([start])).direction[0])
    grid = start + way * np.concatenate([np.linspace(0, 50, 50_001), np.geomspace(50, 1e5, 5_001)[1:]])
    back = np.flatnonzero(objective.descent(grid[:, None]).direction[:, 0] * way <= 0)
    limit = limit_of(problem, np.array([start]))
    if back.size:
        assert limit.outcome == "bounded"
        assert float(limit.point[0]) == pytest.approx(grid[back[0]], abs=1.1e-3)  # the grid's own distance, 1e-3
    else:
        assert limit.outcome == "direction"
        assert limit.path.final[0] * way > 0


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("aside", [None, 0.0, 1e4, 1e6])
@pytest.mark.parametrize("start", [-3.0, -40.0, -1e6])
def test_no_step_from_afar_leaps_over_a_rest_point(start, aside):
    """The pull turns back at x = -0.381 and again to the right of it, whatever p is across the line of the keys."""
    line = np.array([[3.0, -2.0, -1.0], [-3.0, -2.0, -3.0]])
    scores = np.array([[-1.0, 2.0, 0.0], [-1.0, 2.0, -1.0]])
    keys = line[..., None] if aside is None else np.stack([line, np.zeros_like(line)], axis=-1)
    objective = PromptObjective(TokenProblem.of(keys, np.ones(2), scores=scores).merged)
    limit = limit_of(objective, np.array([start] if aside is None else [start, aside]))
    assert limit.outcome == "bounded"
    x = float(limit.point[0])
    beside = 1e-6  # a length at which the pull is a million times what is left at the point
    grid = np.concatenate([np.linspace(-50, x - beside, 10_000), [x + beside]])
    ways = objective.descent(np.pad(grid[:, None], ((0, 0), (0, keys.shape[2] - 1)))).direction[:, 0]
    assert (ways[:-1] > 0).all()  # from the start on there is no other
    assert ways[-1] < 0


@pytest.mark.usefixtures("unchecked_shapes")
def test_no_step_from_afar_leaps_over_a_valley():
    """As above, while another input pulls along y: x settles where it turns back, and y diverges beside it."""
    keys = np.array([[[3, 0], [-2, 0], [-1, 0]], [[-3, 0], [-2, 0], [-3, 0]], [[0, 0], [0, 1], [0, 0]]])
    scores = np.array([[-1, 2, 0], [-1, 2, -1], [0, 1, 0]]) + 0.0
    problem = TokenProblem.of(keys + 0.0, np.ones(3), scores=scores)
    near, far = (limit_of(problem, np.array(start)) for start in ([-5.0, 0.0], [-500.0, 1e6]))
    assert near.outcome == far.outcome == "finite part"
    apart = ESTIMATED * (near.finite.error + far.finite.error) + rounding(8)
    assert far.finite.point[0] == pytest.approx(near.finite.point[0], rel=0, abs=apart)


@pytest.mark.usefixtures("unchecked_shapes")
def test_equals_that_part_slowly_do_not_hide_a_finite_part():
    """Along -x the second input ties four tokens of different scores, whose pulls meet at one height; two of the third
    input fall behind their equal only like exp(-|p|), while the balance falls like exp(-2 |p|)."""
    keys = np.array(
        [
            [[2, 2], [2, 2], [-2, 0], [2, 0], [2, -2]],
            [[-2, 0], [-2, -1], [0, 2], [-2, 1], [-2, -2]],
            [[1, 0], [-1, -2], [2, -2], [-2, 0], [-1, 2]],
        ]
    )
    scores = np.array([[2, 1, 1, 0, 0], [1, 2, 0, 0, 0], [1, 2, 2, 2, 2]]) + 0.0
    limit = limit_of(TokenProblem.of(keys + 0.0, np.ones(3), scores=scores), np.array([0.2, 0.0]))
    assert (limit.outcome, limit.named.names) == ("finite part", [2, [0, 1, 3, 4], 3])
    assert limit.finite.size == 4
    # Its height y: the pulls of tokens at 0, -1, 1, -2 with scores 1, 2, 0, 0 and weights like e^(y height) cancel.
    heights, gains = np.array([0.0, -1, 1, -2]), np.array([1.0, 2, 0, 0])
    weights = np.exp(limit.finite.point[1] * heights)
    weights /= weights.sum()
    # The pull changes by at most its spread, 4, times an error of the height.
    of_pull = 4 * ESTIMATED * limit.finite.error + rounding(2 * 4, 2.0)
    assert float((weights * (gains - weights @ gains)) @ heights) == pytest.approx(0, abs=of_pull)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e150])
def test_keys_beyond_what_can_be_squared_are_refused_in_a_line(scale):
    problem = TokenProblem.of(scale * np.array([[[-1.0, 2.0], [2.0, -2.0]]]), [1], scores=[[1.0, 0.0]])
    with pytest.raises(ValueError, match="scale the keys, and p by the inverse"):
        limit_of(problem)


@pytest.mark.parametrize("scale", [1e-130, 1e130])
def test_keys_of_extreme_lengths_are_followed(scale):
    problem = TokenProblem.of(scale * np.array([[[-1.0, 2.0], [2.0, -2.0]]]), [1], scores=[[1.0, 0.0]])
    limit = limit_of(problem)
    assert (limit.outcome, limit.kind) == ("direction", "GMM")
    assert limit.angle <= SETTLED
