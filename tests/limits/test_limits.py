"""Named limits and basins: certified, bounded or undecided, each with its evidence."""

import numpy as np
import pytest
from benchmarks.limits_audit import Tally, audit, case
from scipy.optimize import brentq
from tests.oracles.certified import SETTLED, assert_same_vector, margins_apart
from tests.oracles.rounding import EPS, of_flow, of_logits, of_path, rounding

from tokenmargin._statistics import wilson_interval
from tokenmargin.dynamics import FlowSettings, NormalizedGradientDescent
from tokenmargin.limits.limit import ROUNDING, limit_of
from tokenmargin.limits.shares import basin_map, basins, random_starts
from tokenmargin.margin import MATRIX_GAP, TOLERANCE, atlas, choice_margin, class_margin, limit_direction, max_margin
from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.factored import FactoredObjective, MultiHeadObjective
from tokenmargin.objective.local_scores import HeadObjective, NonlinearHead
from tokenmargin.objective.losses import CorrelationLoss, CustomLoss
from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.instances import figure1a, figure1b, figure8, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import (
    angle,
    attention_weights,
    is_globally_optimal,
    is_locally_optimal,
    neighbours,
    score_gaps,
    select,
)

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.mark.parametrize("gram", [False, True])
def test_theorem_2_needs_one_input(gram) -> None:
    """With n = 1 every start of Figure 1a reaches the GMM; Figure 8 has n = 2, and two starts with two limits."""
    for y in (1.0, -1.5):
        limit = limit_of(figure1a(), np.array([0.0, y, 0.0]), until_norm=1e7)
        assert (limit.outcome, limit.kind) == ("direction", "GMM")
    starts = np.array([[0.0, 4.0], [4.0, 0.0]])
    problem = figure8().as_gram(starts) if gram else figure8()
    points = [problem.keys.unit(4), problem.keys.unit(5)] if gram else list(starts)
    limits = [limit_of(problem, point, until_norm=1e7) for point in points]
    assert [limit.kind for limit in limits] == ["GMM", "LMM"]
    assert [limit.selected.tolist() for limit in limits] == [[0, 0], [0, 1]]
    for limit in limits:
        assert limit.outcome == "direction"
        assert limit.angle <= SETTLED
        # An angle of C / |p| to the first order, fitted where the solver's error is up to a twentieth of it.
        assert limit.rate == pytest.approx(-1, abs=0.05)
        assert limit.solution.is_optimal
        assert limit.kind in repr(limit)


def tied() -> TokenProblem:
    """Two tokens of the first input score alike."""
    keys = [[[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]], [[0.9, 0.2], [-1.0, 0.4], [0.0, 0.7]]]
    return TokenProblem.of(keys, np.ones(2), scores=[[1.0, 1.0, 0.0], [1.0, 0.3, 0.1]])


def doubled() -> TokenProblem:
    """The first input holds one word twice, and it is the best of the two words."""
    words = np.array([[0.9, 0.3], [-0.4, 0.8], [0.7, -0.5], [-0.2, -1.0]])
    return TokenProblem(Coordinates(words, [[0, 0, 1], [2, 3, 1]]), np.ones(2), head=[1.0, 0.1])


@pytest.mark.parametrize("gram", [False, True])
def test_equal_scores_are_not_told_apart(gram) -> None:
    """Every start goes to the largest margin over the choices of one of them, ATT-SVM'; its equal may come second."""
    plain = tied()
    expected = choice_margin(plain, plain.scores == 1)
    starts = np.vstack([np.zeros(2), random_starts(plain, 4, radius=2.0, rng=np.random.default_rng(0))])
    problem = plain.as_gram(starts) if gram else plain
    for j, start in enumerate(starts):
        limit = limit_of(problem, problem.keys.unit(6 + j) if gram else start)
        assert (limit.outcome, limit.kind, limit.named.names) == ("direction", "GMM", [1, 0])
        vector = limit.solution.vector @ np.vstack([plain.keys.vectors, starts]) if gram else limit.solution.vector
        # Half of the digits is what inner products leave of a vector.
        np.testing.assert_allclose(vector, expected.vector, rtol=0, atol=EPS**0.5)
        assert limit.angle <= SETTLED
    found = atlas(problem)
    # Inner products hold half of the digits: that two tokens are never level cannot be proven by them.
    assert found.complete != gram
    assert found.unsearched.startswith("2 ties of equals neither" if gram else "")
    assert [entry.names for entry in found.limits] == [[1, 0], [0, 1]]
    assert found.gmm is found.limits[0]


@pytest.mark.parametrize("gram", [False, True])
def test_copies_are_selected_together(gram) -> None:
    plain = doubled()
    chosen = np.array([[True, True, False], [True, False, False]])
    expected = class_margin(plain, chosen)
    problem = plain.as_gram() if gram else plain
    limit = limit_of(problem)
    assert (limit.outcome, limit.kind, limit.named.names) == ("direction", "GMM", [[0, 1], 0])
    np.testing.assert_array_equal(limit.chosen, chosen)
    assert limit.solution.margin == pytest.approx(expected.margin, rel=margins_apart(limit.solution, expected), abs=0)
    assert limit.path.saturation == pytest.approx(1.0, rel=rounding(6), abs=0)  # half of it on each copy
    assert [0, 1] in [entry.names[0] for entry in atlas(problem).limits]
    found = basins(plain, random_starts(plain, 20, radius=2.0, rng=np.random.default_rng(1)))
    assert found.basins[0].named.names == [[0, 1], 0]
    assert found.unsettled < 1


def test_copies_of_different_scores_have_their_mean() -> None:
    """Scores 1 and 0 on one key, 0.6 on the other: 0.6 wins against the mean 0.5, and loses against 0.7."""
    keys = [[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]
    for low, names in ((0.0, [2]), (0.4, [[0, 1]])):
        limit = limit_of(TokenProblem.of(keys, [1], scores=[[1.0, low, 0.6]]))
        assert (limit.outcome, limit.kind, limit.named.names) == ("direction", "GMM", names)


def test_an_axis_of_symmetry_is_left_by_rounding() -> None:
    """The exact flow stays on the axis for ever; which side is named was decided by rounding, and is called so."""
    problem = TokenProblem.of([[[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    limit = limit_of(problem)
    assert limit.outcome == "rounding"
    assert "rounding has grown to order one" in limit.reason
    assert limit.kind == "GMM"  # either side is one
    aside = limit_of(problem, np.array([0.0, 1e-3]))
    assert (aside.outcome, aside.named.names) == ("direction", [0])


@pytest.mark.parametrize("gram", [False, True])
def test_a_finite_part_beside_the_direction_is_named(gram) -> None:
    """One context followed twice by its first word and once by its second: both keep their weights, and leave the rest.

    The witness is the graph-SVM of next-token prediction: the two words tied, the others behind by 1.
    """
    words = np.random.default_rng(0).standard_normal((4, 3))
    scores = np.array([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
    plain = TokenProblem.of(np.repeat(words[None], 3, axis=0), np.ones(3), scores=scores)
    log_loss = CustomLoss(lambda u: -np.log(u), lambda u: -1 / u, lambda u: 1 / u**2)
    limit = limit_of(plain.as_gram() if gram else plain, loss=log_loss)
    assert (limit.outcome, limit.kind) == ("finite part", "finite part")
    assert limit.named.names == [[0, 1]] * 3
    assert limit.angle <= SETTLED
    assert "keep their weights" in repr(limit)
    vector = limit.solution.vector @ plain.keys.vectors if gram else limit.solution.vector
    logits = words @ vector
    promised = PRODUCTS_TOLERANCE if gram else 2 * TOLERANCE
    assert logits[0] == pytest.approx(logits[1], rel=0, abs=promised)
    assert (logits[0] - logits[2:]).min() == pytest.approx(1, rel=0, abs=promised)


def test_inputs_that_share_a_difference_pull_together() -> None:
    """Three inputs of one vocabulary, two for the first word and one for the second: the first is selected everywhere.

    The second word outscores it in the third input, so this is no LMM; the two others pull twice as hard.
    """
    words = np.random.default_rng(0).standard_normal((4, 3))
    scores = np.array([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]])
    problem = TokenProblem.of(np.repeat(words[None], 3, axis=0), np.ones(3), scores=scores)
    limit = limit_of(problem)
    assert (limit.outcome, limit.kind, limit.named.names) == ("direction", "stable", [0, 0, 0])
    assert not is_locally_optimal(problem, limit.solution.vector, [0, 0, 0])
    for pose in (problem, problem.as_gram()):
        assert [0, 0, 0] in [entry.names for entry in atlas(pose).limits]


def balanced(scores: list[list[float]]) -> TokenProblem:
    """On a line two inputs share their difference: key 2 has one weight in both."""
    return TokenProblem.of([[[-1.0], [2.0]], [[2.0], [-1.0]]], np.ones(2), scores=scores)


@pytest.mark.parametrize("gram", [False, True])
def test_pulls_that_cancel_leave_it_to_smaller_terms(gram) -> None:
    """The risk is l(1 - s) + l(1 + s) in the weight s of key 2: of order s nothing is left, and of order s^2 p still
    goes to minus infinity. No start may be called at rest, and no atlas complete."""
    problem = balanced([[1.0, 0.0], [2.0, 1.0]])
    posed = problem.as_gram() if gram else problem
    found = atlas(posed)
    assert not found.complete
    assert found.limits == ()
    assert found.balanced == ((0, 1),)
    assert (
        found.unsearched == "1 selection has pulls that cancel along a shared difference, so that smaller terms decide"
    )
    assert found.to_dict()["balanced"] == [[0, 1]]
    assert found.to_dict()["complete"] is False
    for start in (0.0, 1.0, -3.0, -20.0):  # at -20 the sum of both pulls is exactly zero in doubles
        point = problem.keys.vectors[posed.keys.index[0, 0]] * -start
        coefficients = np.zeros(posed.keys.dimension)
        coefficients[posed.keys.index[0, 0]] = -start  # key -1
        limit = limit_of(posed, coefficients if gram else point)
        assert limit.outcome == "undecided"
        assert "smaller terms decide" in limit.reason
    # A score less by a hair: the pulls no longer cancel, and their sum decides.
    for last, kinds in ((2.0 - 1e-9, ["stable"]), (2.0 + 1e-9, [])):
        atlas_beside = atlas(balanced([[1.0, 0.0], [last, 1.0]]))
        assert atlas_beside.complete
        assert [one.kind for one in atlas_beside.limits if one.selected.tolist() == [0, 1]] == kinds


@pytest.mark.parametrize("gram", [False, True])
def test_differences_that_depend_on_one_another_are_weighed(gram) -> None:
    """Across (1, 0) the risk is 2 cosh y - g: a minimum where it is positive, for g < 2, although a neighbour scores
    higher by g. Flow says so too; for g > 2 it comes to rest."""
    for g in (0.5, 1.9, 2.1, 5.0):
        keys = [[[1.0, 1.0], [0.0, 0.0]], [[1.0, -1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]]
        problem = TokenProblem.of(keys, np.ones(3), scores=[[1.0, 0.0], [1.0, 0.0], [1.0, 1.0 + g]])
        found = {tuple(one.selected.tolist()): one for one in atlas(problem.as_gram() if gram else problem).limits}
        assert ((0, 0, 0) in found) == (g < 2)
        for start in ([8.0, 0.7], [8.0, -3.0]):
            limit = limit_of(problem, np.array(start))
            assert limit.outcome == ("direction" if g < 2 else "bounded")
            if g < 2:
                assert limit.kind == found[0, 0, 0].kind == "stable"
                assert angle(problem.keys, limit.solution.vector, np.array([1.0, 0.0])) <= SETTLED


@pytest.mark.parametrize("scores", [(1.0, 1.0, -2.0), (0.1, 0.2, -0.3)])
def test_tied_tokens_that_never_pull_hold_nothing(scores) -> None:
    """Under the correlation loss the last three inputs cancel wherever p is (the second time up to rounding): their
    weights are no minimum and no saddle, and are not what keeps the tokens tied."""
    keys = [[[-1.0, -2.0], [-1.0, 2.0], [2.0, 0.0]]] + 3 * [[[2.0, 0.0], [-1.0, -2.0], [-1.0, -2.0]]]
    rows = [[0.0, 2.0, -2.0]] + [[score, 0.0, 0.0] for score in scores]
    limit = limit_of(TokenProblem.of(keys, np.ones(4), scores=rows), loss=CorrelationLoss())
    assert limit.outcome == "undecided"
    assert "do not pull at one another" in limit.reason
    assert np.isnan(limit.finite.curvature)


@pytest.mark.parametrize("offset", [1e4, 1e8])
def test_neighbours_are_told_far_from_the_origin(offset) -> None:
    """Keys share an offset: their logits have no digits for a margin of 1, their differences have."""
    rng = np.random.default_rng(3)
    keys, scores = np.round(64 * rng.standard_normal((2, 4, 2))) / 64, rng.standard_normal((2, 4))  # exact differences
    here, there = (TokenProblem.of(keys + shift, np.ones(2), scores=scores) for shift in (0.0, offset))
    told = [[(one.kind, one.names) for one in atlas(pose).limits] for pose in (here, there, there.as_gram())]
    assert told[0] == told[1]
    assert told[2] == told[0] or (offset == 1e8 and not atlas(there.as_gram()).complete)  # products lack the digits
    for one in atlas(there).limits:
        assert (neighbours(there, one.solution.vector, one.selected) == one.neighbours).all()
        assert (score_gaps(there, one.solution.vector, one.selected) > 0).all()


def test_a_path_by_inner_products_ends_at_its_norm() -> None:
    """Far from the origin inner products know lengths to nine digits: the end of the path is still its last point."""
    rng = np.random.default_rng([1, 153, 9091])
    n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(1, 4))
    keys, scores = rng.normal(size=(n, T, d)), rng.normal(size=(n, T))
    labels = rng.choice([-1.0, 1.0], n)
    posed = TokenProblem.of(keys + 1e4 * rng.normal(size=d), labels, scores=scores).as_gram(np.zeros((1, d)))
    limit = limit_of(posed, posed.keys.unit(posed.keys.n_vectors - 1))
    assert limit.outcome == "direction"
    assert_same_vector(limit.path.at_norm(limit.path.norm), limit.path.final)


def test_on_a_line_known_by_inner_products() -> None:
    """Two keys 0.013 apart among keys of length one: the direction is the small difference of long vectors, and inner
    products alone tell its angle to 5e-6. That there is one dimension tells the rest: an angle there is 0 or pi."""
    here = case(1396, 9)
    limit = limit_of(here.posed, here.starts[0])
    assert (limit.outcome, limit.kind, limit.named.names) == ("direction", "LMM", [1, 3])
    assert limit.angle <= ROUNDING
    keys = here.posed.keys
    unknown = here.posed.with_keys(Gram(keys.matrix, keys.index, keys.mask))
    told = limit_of(unknown, here.starts[0], tolerance=ROUNDING)  # by default sums of another order may just be enough
    assert told.outcome == "undecided"
    assert "but inner products tell it to" in told.reason


def test_a_held_tie_with_the_direction_of_a_choice() -> None:
    """In a mirror: a choice among the equals has the direction of their tie, and is left for larger margins far from
    it; the tie itself is held, and the start goes to it."""
    here = case(709, 17)
    limit = limit_of(here.posed, here.starts[0])
    assert (limit.outcome, limit.kind, limit.named.names) == ("direction", "stable", [[1, 3], [0, 2], [1, 3]])
    assert limit.named.chosen.tolist() in [entry.chosen.tolist() for entry in atlas(here.posed).limits]


def test_a_higher_score_just_beyond_the_margin_is_too_close_to_call() -> None:
    """The third token is ahead of margin 1 by 3e-8: rounding of a solve in other units could make it a neighbour."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 0.0], [-3e-8, 1.0]]], [1], scores=[[1.0, 0.0, 2.0]])
    found = atlas(problem)
    assert found.undecided == ((0,),)
    assert "too close to call" in found.unsearched


def test_without_ties_nothing_changes() -> None:
    """The same constraints, the same solution to the last bit, and Definitions 1 and 2."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        problem = random_problem(3, 4, 3, rng=rng)
        for selected in rng.integers(0, 4, (5, 3)):
            ours, theirs = limit_direction(problem, selected), max_margin(problem, selected)
            np.testing.assert_array_equal(ours.solution.vector, theirs.vector)
            np.testing.assert_array_equal(ours.solution.multipliers, theirs.multipliers)
            local = theirs.is_optimal and is_locally_optimal(problem, theirs.vector, selected)
            assert ours.is_limit == local
            assert ours.is_global == (local and is_globally_optimal(problem, selected))
            if theirs.is_optimal:
                np.testing.assert_array_equal(ours.neighbours, neighbours(problem, theirs.vector, selected))
                np.testing.assert_array_equal(ours.gaps, score_gaps(problem, theirs.vector, selected))


@pytest.mark.usefixtures("unchecked_shapes")
def test_an_audit_in_small() -> None:
    """A sample of `python -m benchmarks.limits_audit`: ties, repeats and neither, both geometries."""
    tally = Tally()
    for number in (15, 17, 21, 23, 28, 31, 32, 63):
        audit(case(number), tally)
    assert tally.silent == []
    assert tally.outcomes["listed limit"] >= 10
    assert tally.clarabel <= SETTLED
    assert tally.largest <= SETTLED


def test_bounded_comes_with_a_vanishing_gradient() -> None:
    limit = limit_of(random_problem(4, 6, 2, rng=np.random.default_rng(4)))
    assert limit.outcome == "bounded"
    assert limit.log_gradient < np.log(1e-11)  # 1e-12 of terms below 10
    assert np.isnan(limit.rate)
    value = PromptObjective(limit.path.objective.problem).value
    around = limit.point + 1e-3 * np.random.default_rng(0).standard_normal((20, 2))
    assert (value(around) > value(limit.point)).all()
    assert "bounded" in repr(limit)


def test_undecided_says_what_was_reached() -> None:
    limit = limit_of(figure1b(), settings=FlowSettings(max_steps=3))
    assert limit.outcome == "undecided"
    assert "the solver has used up its steps" in repr(limit)
    short = limit_of(figure1b(), until_norm=50.0)
    assert short.outcome == "undecided"
    assert short.angle > SETTLED


def test_basins_of_figure_8() -> None:
    problem = figure8()
    starts = random_starts(problem, 200, radius=3.0, rng=np.random.default_rng(0))
    np.testing.assert_allclose(problem.keys.norm(starts), 3.0, rtol=rounding(8))
    found = basins(problem, starts, steps=2000)
    assert {basin.kind for basin in found.basins} == {"GMM", "LMM"}
    assert found.unsettled == 0
    assert sum(basin.count for basin in found.basins) == 200
    for basin in found.basins:
        low, high = basin.interval
        assert low < basin.share < high
    for label in (0, 1):  # the flow agrees with the label of a start well inside its basin
        inside = starts[found.labels == label]
        wanted = found.basins[label].solution.vector
        nearest = inside[np.argmin(angle(problem.keys, inside, wanted))]
        assert limit_of(problem, nearest, until_norm=1e7).selected.tolist() == list(found.basins[label].selected)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_start_is_filed_where_it_goes_not_where_it_saturates_first() -> None:
    """Starts whose softmax is saturated from the first step on, by long keys, with tokens that training leaves."""
    keys = [[[3, -1, 2], [3, -1, 2], [0, 0, 0], [4, 2, 5]], [[0, 1, 0], [2, 0, -2], [-1, 3, 1], [2, 2, 2]]]
    problem = TokenProblem.of(np.array(keys, float), [1, 1], scores=[[0.3, 0.3, 0.1, 0.9], [1, 0.5, 0, 0.7]])
    starts = random_starts(problem, 12, radius=3.0, rng=np.random.default_rng(5))
    found = basins(problem, starts)
    early = select(problem.keys, starts)
    limits = [limit_of(problem, start) for start in starts]
    moved = 0
    for j, limit in enumerate(limits):
        assert limit.outcome == "direction"
        assert found.basins[found.labels[j]].named.chosen.tolist() == limit.chosen.tolist()
        moved += not limit.chosen[np.arange(2), early[j]].all()
    assert moved  # ... or nothing was tried


def test_nothing_to_separate_is_no_limit() -> None:
    """One token in every input: p stays where it is, and goes in no direction."""
    alone = TokenProblem.of([[[1.0, 2.0]], [[0.0, 3.0]]], [1, 1], scores=[[1.0], [2.0]])
    assert basins(alone, np.ones((3, 2))).unsettled == 1


def test_basins_that_no_start_has_reached_are_not_listed() -> None:
    assert repr(basins(figure8(), np.zeros((1, 2)), steps=1)) == "Basins(1 start: unsettled 100.0%)"


@pytest.mark.parametrize("scale", [1e-20, 1e-5, 1e6, 1e15])
def test_short_and_long_keys_have_the_basins_they_had(scale: float) -> None:
    problem = figure1b()
    starts = random_starts(problem, 12, rng=0)
    scaled = TokenProblem.of(scale * problem.keys.tokens, problem.labels, scores=problem.scores)
    found, before = basins(scaled, starts / scale), basins(problem, starts)
    assert set(before.labels) == {0, 1}
    np.testing.assert_array_equal(found.labels, before.labels)


def test_resumed_basins_are_the_uninterrupted_ones() -> None:
    starts = random_starts(figure8(), 40, radius=3.0, rng=np.random.default_rng(0))
    whole = basins(figure8(), starts, steps=2000)
    begun = basins(figure8(), starts, steps=100)
    assert begun.unsettled > 0
    resumed = begun.resume(steps=2000)
    np.testing.assert_array_equal(resumed.labels, whole.labels)
    apart = of_path(PromptObjective(figure8()), NormalizedGradientDescent(0.1), 2000, starts)
    np.testing.assert_allclose(resumed.finals, whole.finals, rtol=0, atol=apart)


def test_random_starts_lie_in_the_span() -> None:
    problem = random_problem(2, 3, 30, rng=np.random.default_rng(0))
    tokens = problem.keys.vectors
    for pose in (problem, problem.as_gram()):
        starts = random_starts(pose, 5, radius=2.0, rng=np.random.default_rng(1))
        # In Gram space lengths are roots of sums of 6 x 6 products, up to the condition of the tokens.
        sizes = np.linalg.svd(tokens, compute_uv=False)
        np.testing.assert_allclose(pose.keys.norm(starts), 2.0, rtol=rounding(36, (sizes[0] / sizes[-1]) ** 2))
    plain = random_starts(problem, 5, radius=2.0, rng=np.random.default_rng(1))
    outside = plain - plain @ np.linalg.pinv(tokens) @ tokens
    np.testing.assert_allclose(outside, 0, rtol=0, atol=rounding(10 * 30, 2.0))  # a projection by LAPACK


def test_a_map_covers_the_plane() -> None:
    found = basin_map(figure8(), extent=3.0, resolution=9, steps=1000)
    assert found.starts.shape == (81, 2)
    assert found.starts[0].tolist() == [-3.0, -3.0]
    assert set(found.labels.tolist()) == {0, 1}
    direction = max_margin(figure8(), found.basins[1].selected).vector
    corner = np.argmin(angle(figure8().keys, found.starts[np.abs(found.starts).sum(1) > 2], direction))
    assert found.labels[np.abs(found.starts).sum(1) > 2][corner] == 1
    with pytest.raises(ValueError, match="needs a plane"):
        basin_map(figure8().as_gram())


def test_interval_of_a_share() -> None:
    assert wilson_interval(0, 10)[0] == 0.0
    assert wilson_interval(10, 10)[1] == pytest.approx(1.0, rel=rounding(8), abs=0)


def test_what_lies_across_may_be_long() -> None:
    """Equal scores from a far start: the path first runs across, and 100 and more of it remain beside the direction."""
    keys = np.array([[[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]])
    problem = TokenProblem.of(keys, np.ones(1), scores=[[1, 1, 0]])
    limit = limit_of(problem, np.array([-300.0, 5.0]))
    assert limit.outcome == "direction"
    assert limit.angle > SETTLED
    assert "settled at 300" in limit.reason
    assert limit.rate == pytest.approx(-1.0, abs=1e-3)  # over the last three decades, 300 / |p| to the first order


@pytest.mark.parametrize(
    ("keys", "scores", "start"),
    [
        ([[[-1, 1], [0, 0], [-1, 0]]], [[1, 0, 1]], [3, -30]),  # the height grows like exp(-30) |p|, and decides
        ([[[0, 0], [0, 1]], [[-1, 1], [1, 0]]], [[0, 1], [0, 1]], [-30, 1]),  # so does x, like exp(-60) |p|
    ],
)
def test_a_direction_that_is_left_far_out_is_not_called_the_limit(keys, scores, start) -> None:
    """Every start goes to the GMM, the only limit there is. What moves p across the direction that it keeps to before
    is `exp(-distance)` of what moves it along."""
    problem = TokenProblem.of(np.array(keys) + 0.0, np.ones(len(keys)), scores=np.array(scores) + 0.0)
    found = atlas(problem)
    assert found.complete
    assert [limit.kind for limit in found.limits] == ["GMM"]
    near, far = (limit_of(problem, np.array(start) * share) for share in (0.1, 1.0))
    assert (near.outcome, near.kind) == ("direction", "GMM")
    assert (far.outcome, far.kind) == ("undecided", "not locally optimal")
    assert "may leave it" in far.reason


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_limit_of_key_and_query_is_named_by_the_nuclear_margin() -> None:
    problem = random_problem(2, 3, 3, rng=np.random.default_rng(4))
    of_matrix = problem.with_matrix(np.random.default_rng(5).standard_normal((2, 3)))
    objective = FactoredObjective(of_matrix)
    limit = limit_of(objective, objective.aligned_start(0.1), method=NormalizedGradientDescent(0.03), steps=4000)
    assert (limit.outcome, limit.norm.name) == ("direction", "nuclear")
    W = objective.matrix(limit.point)
    logits = of_matrix.keys.logits(W.ravel())
    lead = np.sort(logits, axis=1)
    margin = (lead[:, -1] - lead[:, -2]).min() / np.linalg.norm(W, "nuc")
    best = max_margin(of_matrix, limit.selected, norm="nuclear").margin
    assert limit.share == pytest.approx(margin / best, rel=2 * MATRIX_GAP, abs=0)
    with pytest.raises(TypeError, match="method='ngd'"):
        limit_of(objective)
    with pytest.raises(ValueError, match="is not known; use a method along the gradient"):
        limit_of(objective, method="sign")


def test_the_limit_of_several_heads_is_that_of_them_side_by_side() -> None:
    rng = np.random.default_rng(6)
    heads = [TokenProblem.of(rng.standard_normal((2, 3, 4)), [1, -1], scores=rng.standard_normal((2, 3))) for _ in "ab"]
    limit = limit_of(MultiHeadObjective.of(heads))
    assert limit.outcome == "direction"
    # One margin for all heads: each has its own shortest vector, since their constraints share no coordinate.
    for head, chosen, part in zip(heads, limit.selected.reshape(2, 2), np.split(limit.solution.vector, 2), strict=True):
        alone = max_margin(head, chosen)
        assert_same_vector(part, alone.vector, limit.solution, alone)
    assert limit.angle <= SETTLED


def test_pulls_that_cancel_to_a_hundredth_are_followed_to_the_end():
    """The first solver was given up at |p| = 18 here, and the second stalled before 1e8."""
    audited = case(61)
    limit = limit_of(audited.posed, audited.starts[0])
    assert (limit.outcome, limit.path.stop) == ("direction", "norm")
    assert limit.angle <= SETTLED  # what `limit_of` promises of a direction


@pytest.mark.parametrize("seed", [0, 3])
def test_a_head_best_served_by_a_mixture_has_a_finite_part(seed) -> None:
    """`psi(x) = -|x - c|^2 / 2`: of two tokens that tie, the mixture nearest to c; the others are left behind."""
    rng = np.random.default_rng(seed)
    values = np.array([[[1.0, 0.0], [-1.0, 0.2], [0.3, 4.0], [-0.2, 5.0]]])  # c lies beyond the line of the first two
    centre = np.array([0.3, -0.5])
    head = NonlinearHead(
        lambda x: -((x - centre) ** 2).sum(-1) / 2,
        lambda x: centre - x,
        lambda x: np.broadcast_to(-np.eye(2), (*x.shape, 2)),
    )
    problem = TokenProblem.of(rng.standard_normal((1, 4, 5)), [1], values=values, head=np.zeros(2))
    limit = limit_of(HeadObjective(problem, head=head))
    assert limit.outcome == "finite part"
    assert limit.angle <= SETTLED
    assert limit.solution.is_optimal
    a, b = values[0, :2]
    share = (centre - b) @ (a - b) / ((a - b) @ (a - b))  # the foot of the perpendicular
    # Logits of size 1e8, sums of five products; the others' weights are exp(-1e7).
    weights = attention_weights(problem.keys, limit.point)[0]
    of_weights = 2 * of_logits(problem, limit.point)
    np.testing.assert_allclose(weights, [share, 1 - share, 0, 0], rtol=0, atol=of_weights)


@pytest.mark.parametrize(
    ("scale", "gram"), [(1e-30, False), (1e-6, True), (1e8, False), (1e20, True), (2.0**66, False)]
)
def test_keys_of_any_length_have_the_same_limits(scale, gram) -> None:
    """Keys times s and p over s have the same logits, so that the same tokens are selected at the same rate."""
    rng = np.random.default_rng(7)
    keys, scores, start = rng.integers(-2, 3, (2, 4, 3)) + 0.0, rng.integers(0, 3, (2, 4)) + 0.0, rng.normal(size=3)
    found = []
    for s in (1.0, scale):
        problem, begin = TokenProblem.of(keys * s, np.ones(2), scores=scores), start / s
        if gram:
            problem = problem.as_gram(begin[None])
            begin = problem.keys.unit(problem.keys.n_vectors - 1)
        found.append(limit_of(problem, begin))
    plain, scaled = found
    assert plain.outcome == scaled.outcome == "direction"
    assert (plain.chosen == scaled.chosen).all()
    assert scaled.angle <= SETTLED
    assert scaled.path.norm == pytest.approx(1e8 * scaled.path.unit, rel=rounding(100), abs=0)
    if not gram:
        near, far = (path.at_norm(1e3 / s) * s for path, s in zip((plain.path, scaled.path), (1, scale), strict=True))
        assert far == pytest.approx(near, rel=0, abs=1e3 * of_flow(plain.path, scaled.path))


def test_a_short_key_has_one_way_to_go() -> None:
    """In one dimension nothing is unstable, whatever the scale; and where all tokens are equal p rests."""
    for scale in (1e-30, 1.0, 1e8, 1e20):
        limit = limit_of(TokenProblem.of([[[-scale], [2 * scale]]], [1], scores=[[2.0, 0.0]]))
        assert (limit.outcome, limit.kind, limit.angle) == ("direction", "GMM", 0.0)
    equal = TokenProblem.of([[[1e-30], [1e-30]]], [1], scores=[[1.0, 1.0]])
    assert limit_of(equal, np.array([1e30])).outcome == "bounded"


@pytest.mark.parametrize("gram", [False, True])
def test_tokens_that_are_all_equal_rest_anywhere(gram) -> None:
    for keys in (np.zeros((2, 3, 2)), np.ones((2, 3, 9)), np.ones((1, 1, 1))):
        problem = TokenProblem.of(keys, np.ones(len(keys)), scores=np.arange(keys[..., 0].size).reshape(keys.shape[:2]))
        problem = problem.as_gram() if gram else problem
        assert limit_of(problem).outcome == "bounded"
        assert atlas(problem).limits == ()


def test_equals_beside_a_finite_part_need_not_part() -> None:
    """Two tokens of the first input have one score and are level along the limit: nothing pulls between them, and they
    keep their distance, whatever it is. The direction is that of the others alone, in any order of the tokens."""
    keys = np.array(
        [
            [[0, 0, -1], [-1, 0, -1], [-2, 2, -2], [0, -1, 2]],
            [[0, 2, -2], [2, -1, 2], [0, -1, 2], [-2, 1, 0]],
            [[0, 0, 1], [1, 0, 1], [1, -1, 2], [0, 1, 1]],
        ]
    )
    scores = np.array([[1, 1, 2, 1], [2, 2, 2, 0], [2, 0, 1, 1]]) + 0.0
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        problem = TokenProblem.of(keys[:, order] + 0.0, np.ones(3), scores=scores[:, order])
        limit = limit_of(problem, np.array([-0.23, -1.55, -0.46]))
        assert limit.outcome == "finite part"
        assert limit.solution.vector == pytest.approx([-1, -1, 0], rel=0, abs=2 * TOLERANCE)
        assert limit.angle <= SETTLED
        assert sorted(order[t] for t in np.flatnonzero(limit.chosen[0])) == [1, 3]


@pytest.mark.parametrize(
    ("scale", "gram"), [(1.0, False), (1e-3, False), (1e4, False), (1.0, True), (2.0**-10, True), (2.0**10, True)]
)
def test_a_token_level_with_the_tied_ones_stays_however_little_it_weighs(scale, gram) -> None:
    """Three tokens on a line hold one another; a fourth on the same line weighs 1e-6, and nothing takes it away.

    By inner products alone, where these are exact: rounded ones do not tell whether tokens are on one line."""
    along, scores = np.array([-1.0, -0.75, -0.5, 0.75]), np.array([0.5, 0.625, 0.125, 0.25])
    keys = np.append(np.stack([along, np.zeros(4)], axis=1), [[-0.25, -1.0]], axis=0)
    start = np.array([-3.0, 1.0]) / scale
    plain = TokenProblem.of(scale * keys[None], [1], scores=np.append(scores, 0.0)[None])
    problem = plain.as_gram(start[None]) if gram else plain
    limit = limit_of(problem, problem.keys.unit(5) if gram else start, loss=CorrelationLoss())
    assert limit.outcome == "finite part"
    assert limit.finite.tied.tolist() == [[True, True, True, True, False]]

    def slope(x: float) -> float:
        """Of the mean score of the four, where p is x along the line."""
        weights = np.exp(along * x - (along * x).max())
        weights /= weights.sum()
        return float(weights @ ((scores - weights @ scores) * along))

    rest = brentq(slope, -20.0, -2.0, xtol=1e-13)
    point = limit.finite.point @ np.vstack([plain.keys.vectors, start]) if gram else limit.finite.point
    # The point is known to the step that Newton's method would still take and the rounding of its gradient; a vector
    # told by its inner products, to half of the digits.
    allowed = limit.finite.error * scale + (abs(rest) * np.finfo(float).eps ** 0.5 if gram else 1e-11)
    assert scale * point[0] == pytest.approx(rest, abs=allowed)
    assert np.exp(1.75 * rest) < 1e-4  # the fourth is far below the weight from which tokens are seen to tie


def test_a_loss_by_its_name_is_refused_in_a_line() -> None:
    with pytest.raises(TypeError, match=r"got 'correlation'; by its name: .*loss_named"):
        limit_of(figure1a(), np.zeros(2), loss="correlation")


@pytest.mark.parametrize("apart", [0.0, 1e-9, 1e-7])
def test_vectors_too_near_for_products_are_no_copies(apart: float) -> None:
    """Two keys of different scores: copies have a direction together, keys that differ one of their own."""
    keys = np.array([[1.0, 0.0], [1.0, apart], [0.0, 0.5]])
    problem = TokenProblem(Gram(keys @ keys.T, np.arange(3)[None]), np.ones(1), scores=np.array([[1.0, 0.5, 0.0]]))
    found = atlas(problem)
    assert found.complete == (apart == 0)
    assert [limit.names for limit in found.limits] == ([[[0, 1]]] if apart == 0 else [])
