"""Gradient flow: its limit, its rate, its path and its time, each against something independent."""

import mpmath
import numpy as np
import pytest
from tests.oracles.certified import SETTLED
from tests.oracles.rounding import of_flow, rounding

from tokenmargin.dynamics import GradientDescent, NormalizedGradientDescent, evolve, integrate
from tokenmargin.dynamics.events import AngleReached, NormReached, Saturated, SelectionChanged, WhenTrue
from tokenmargin.dynamics.flow import flow
from tokenmargin.dynamics.integrate import FlowSettings
from tokenmargin.dynamics.rest import STATIONARY
from tokenmargin.margin import label_margin, max_margin, relaxed_max_margin
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.objective.embedding import first_step, wishart_embeddings
from tokenmargin.objective.losses import CorrelationLoss
from tokenmargin.problem.instances import (
    NAMED_PROBLEMS,
    figure1a,
    figure1b,
    figure1c,
    figure8,
    random_problem,
    selective_corpus,
)
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle

pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # thousands of evaluations a test

NORMS = np.logspace(4, 8, 9)


def problem_of(name):
    return (
        NAMED_PROBLEMS[name]()
        if name in NAMED_PROBLEMS
        else random_problem(4, 6, 10, rng=np.random.default_rng(int(name)))
    )


@pytest.mark.parametrize("name", ["fig1a", "fig1b", "fig1c", "0", "1", "2"])
def test_direction_reaches_the_certified_one_at_rate_one_over_norm(name):
    problem = problem_of(name)
    path = flow(PromptObjective(problem))
    solution = max_margin(problem, path.selected)
    assert path.stop == "norm"
    assert solution.is_optimal
    angles = [float(angle(problem.keys, path.at_norm(r), solution.vector)) for r in NORMS]
    assert angles[-1] <= SETTLED
    slope = np.polyfit(np.log(NORMS), np.log(angles), 1)[0]
    # An angle of C / |p| is known to the solver's error: a share of itself that is largest at the last norm, and tilts
    # a line over ln(1e4) by no more than that share.
    assert slope == pytest.approx(-1, abs=max(of_flow(path) / angles[-1] / np.log(1e4), 1e-3))


def test_both_geometries_give_one_path():
    problem = random_problem(3, 4, 6, rng=np.random.default_rng(0))
    plain, gram = (flow(PromptObjective(pose), until_norm=1e6) for pose in (problem, problem.as_gram()))
    for norm in (1.0, 10.0, 1e3, 1e6):
        np.testing.assert_allclose(
            gram.objective.problem.keys.logits(gram.at_norm(norm)),
            problem.keys.logits(plain.at_norm(norm)),
            rtol=0,
            atol=of_flow(plain, gram) * max(norm, 1.0) * float(problem.keys.norm(problem.keys.vectors).max()),
        )


def test_what_a_start_has_outside_the_span_stays():
    problem = random_problem(2, 3, 20, rng=np.random.default_rng(0))
    start = np.random.default_rng(1).standard_normal(20)
    path = flow(PromptObjective(problem), start=start, until_norm=1e3)
    tokens = problem.keys.vectors
    outside = np.eye(20) - np.linalg.pinv(tokens) @ tokens
    # The projection is right to its rounding, 20 products each way and those of LAPACK, of a p of length 1000.
    of_outside = rounding(10 * 20, path.norm)
    np.testing.assert_allclose(outside @ path.final, outside @ start, rtol=0, atol=of_outside)
    np.testing.assert_allclose(path(0.0), start, rtol=0, atol=rounding(10 * 20, np.linalg.norm(start)))
    assert path.norm == pytest.approx(1e3, rel=rounding(20), abs=0)


def test_small_normalised_steps_follow_the_same_path():
    objective = PromptObjective(figure1c())
    path = flow(objective, until_norm=20.0)
    errors = []
    for step in (0.02, 0.01):
        run = evolve(objective, NormalizedGradientDescent(step), steps=round(4 / step))
        errors.append(np.abs(run.final - path(4.0)).max())
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.2, abs=0)  # Euler's method is of first order


def test_time_is_that_of_small_gradient_steps():
    objective = PromptObjective(figure1b())
    path = flow(objective, until_norm=20.0)
    errors = []
    for step in (0.02, 0.01):
        run = evolve(objective, GradientDescent(step), steps=round(50 / step))
        arc = np.interp(np.log(50.0), path.log_time[1:], path.arcs[1:])
        errors.append(np.abs(run.final - path(float(arc))).max())
    # A step errs by half its square times the curvature, which is at most 1 here: 50 of them a unit of time, at most.
    assert errors[1] < errors[0]


def test_time_far_beyond_overflow():
    """On one pair of tokens the path is straight: `log t = d r + log(4 / (d c))` as the gradient is `c d exp(-d r)`."""
    problem = TokenProblem.of([[[2.0], [0.0]]], [1], scores=[[1.0, 0.0]])
    path = flow(PromptObjective(problem, CorrelationLoss()), until_norm=1e5)
    # |gradient| = 2 s (1 - s) with s = 1 / (1 + exp(-2 r)); its inverse integrates to (sinh(2 r) + 2 r) / 2.
    r = path.arcs[1:]
    expected = np.where(r > 20, 2 * r, np.log(2 * np.sinh(2 * np.minimum(r, 20)) + 4 * np.minimum(r, 20))) - np.log(4)
    np.testing.assert_allclose(path.log_time[1:], expected, rtol=0, atol=2e-5)  # the documented accuracy


def mp_direction(problem, p):
    total = [mpmath.mpf(0)] * len(p)
    for tokens, scores in zip(problem.keys.tokens.tolist(), problem.scores.tolist(), strict=True):
        weights = [mpmath.exp(sum(k * x for k, x in zip(token, p, strict=True))) for token in tokens]
        norm = sum(weights)
        f = sum(w * g for w, g in zip(weights, scores, strict=True)) / norm
        slope = 1 / (1 + mpmath.exp(f))
        for token, w, g in zip(tokens, weights, scores, strict=True):
            total = [s + slope * w / norm * (g - f) * k for s, k in zip(total, token, strict=True)]
    length = mpmath.sqrt(sum(x * x for x in total))
    return [x / length for x in total]


def test_hundred_digits_give_the_same_path():
    """Runge-Kutta of order four in 100 digits, extrapolated from two step sizes."""
    problem = TokenProblem.of(figure1b().keys.tokens[..., :2], [1], scores=figure1b().scores)
    path = flow(PromptObjective(problem), until_norm=100.0)

    def runge_kutta(steps):
        p, h = [mpmath.mpf(0)] * 2, mpmath.mpf(12) / steps
        for _ in range(steps):
            a = mp_direction(problem, p)
            b = mp_direction(problem, [x + h / 2 * k for x, k in zip(p, a, strict=True)])
            c = mp_direction(problem, [x + h / 2 * k for x, k in zip(p, b, strict=True)])
            d = mp_direction(problem, [x + h * k for x, k in zip(p, c, strict=True)])
            p = [x + h / 6 * (i + 2 * j + 2 * k + m) for x, i, j, k, m in zip(p, a, b, c, d, strict=True)]
        return p

    with mpmath.workdps(100):
        coarse, fine = runge_kutta(120), runge_kutta(240)
        extrapolated = np.array([float(y + (y - x) / 15) for x, y in zip(coarse, fine, strict=True)])
        error = max(float(abs(y - x)) for x, y in zip(coarse, fine, strict=True))
    # What two step sizes differ by is fifteen times the error of the finer, and what extrapolation leaves is of the
    # next order: less than a hundredth of it. The flow's own error is the solver's, at |p| below 12.
    np.testing.assert_allclose(path(12.0), extrapolated, rtol=0, atol=12 * of_flow(path) + error / 100)
    assert error / 100 < 12 * of_flow(path)  # the witness is the more exact of the two


def test_a_bounded_path_ends_at_a_stationary_point():
    rng = np.random.default_rng(0)
    stops = []
    for _ in range(12):
        path = flow(PromptObjective(random_problem(3, 4, 2, rng=rng)), settings=FlowSettings(tolerance=1e-8))
        stops.append(path.stop)
        if path.stop == "stationary":
            assert path.objective.linearise(path.final).balance.max() <= STATIONARY
            assert np.linalg.eigvalsh(path.objective.linearise(path.final + 1e-6).jacobian)[-1] <= 0  # a minimum
    assert stops.count("stationary") >= 3
    assert set(stops) <= {"stationary", "norm"}


def test_a_start_at_rest_stays():
    problem = TokenProblem.of([[[1.0, 0.0], [-1.0, 0.0]]], [1], scores=[[1.0, 1.0]])
    path = flow(PromptObjective(problem))
    assert path.stop == "stationary"
    np.testing.assert_array_equal(path.final, [0.0, 0.0])
    assert path.resume() is path


@pytest.mark.parametrize("gram", [False, True])
def test_tokens_that_are_all_zero_leave_p_where_it_is(gram):
    problem = TokenProblem.of([[[0.0, 0.0]]], [1], scores=[[1.0]])
    path = flow(PromptObjective(problem.as_gram() if gram else problem))
    assert path.stop == "stationary"
    assert not path.final.any()


def test_events_are_found_where_they_happen():
    objective = PromptObjective(figure8())
    direction = max_margin(figure8(), [0, 0]).vector
    events = (SelectionChanged(), Saturated(stops=False), NormReached(50.0, stops=False), AngleReached(direction, 1e-3))
    path = flow(objective, start=np.array([0.1, 0.0]), events=events)
    assert path.stop == "event"
    # Brent's method places an event to a few roundings of the arc, of some 50; the angle moves no faster than 1 / 50.
    assert float(angle(figure8().keys, path.prompt, direction)) == pytest.approx(1e-3, rel=0, abs=rounding(8))
    found = {type(crossing.event).__name__: crossing for crossing in path.crossings}
    assert np.linalg.norm(path(found["NormReached"].arc)) == pytest.approx(50.0, rel=rounding(8), abs=0)
    change = found["SelectionChanged"]
    logits = figure8().keys.logits(path(change.arc))
    longest = float(figure8().keys.norm(figure8().keys.vectors).max())
    assert np.abs(logits[:, 0] - logits[:, 1]).min() < rounding(8, change.arc + 1) * 2 * longest
    assert [c.arc for c in path.crossings] == sorted(c.arc for c in path.crossings)
    custom = flow(objective, events=[WhenTrue(lambda _, theta: theta[1] > 3.0)])
    assert custom.final[1] == pytest.approx(3.0, rel=rounding(8), abs=0)


def test_interruption_leaves_a_path_that_resumes_to_the_same_end():
    objective = PromptObjective(figure1c())
    seen = []

    def interrupt(norm):
        seen.append(norm)
        if len(seen) == 40:
            raise KeyboardInterrupt

    part = flow(objective, until_norm=1e6, progress=interrupt)
    assert part.stop == "interrupted"
    assert part.norm < 1e6
    whole, direct = part.resume(until_norm=1e6), flow(objective, until_norm=1e6)
    assert whole.stop == "norm"
    apart = of_flow(whole, direct)
    np.testing.assert_allclose(whole.final, direct.final, rtol=0, atol=apart * 1e6)
    np.testing.assert_allclose(whole(np.array([1.0, 100.0])), direct(np.array([1.0, 100.0])), rtol=0, atol=apart * 100)
    assert whole.log_time[-1] == pytest.approx(direct.log_time[-1], rel=apart, abs=0)  # it grows like |p|


def test_the_step_limit_is_a_reason():
    path = flow(PromptObjective(figure1c()), settings=FlowSettings(max_steps=5))
    assert path.stop == "steps"
    assert len(path.arcs) == 6


def test_work_without_an_end_is_a_reason_too(monkeypatch):
    """Two inputs of scores of 1e150 pull against each other, and the path turns with |p|: solvers creep along it."""
    problem = TokenProblem.of(
        [[[-2.0, -2.0], [-2.0, -1.0]], [[0.0, -2.0], [-2.0, -1.0]]], [-1, -1], scores=[[0.0, -1e150], [0.0, 1e150]]
    )
    monkeypatch.setattr(integrate, "MOST_EVALUATIONS", 2000)
    path = flow(problem, start=np.array([0.05, -26.0]))
    assert path.stop == "steps"
    further = path.resume()
    assert further.stop == "steps"
    assert further.norm > path.norm > 300


@pytest.mark.parametrize(("name", "limit"), [("fig3a", max_margin), ("fig3b", relaxed_max_margin)])
def test_head_and_prompt_reach_their_margins_together(name, limit):
    """Theorem 5 on Figure 3a and Theorem 6 on Figure 3b, with both blocks at unit speed."""
    problem = NAMED_PROBLEMS[name]()
    objective = JointObjective(problem)
    path = flow(
        objective, start=np.array([-1.0, 0.0, 0.0, -1.0]), settings=FlowSettings(coupling="block"), until_norm=1e6
    )
    assert path.stop == "norm"
    # Angles fall like C / |p|; the constants of Figure 3 are below 10 (see the regularisation paths).
    assert float(angle(problem.keys, path.prompt, limit(problem, [1, 1, 1]).vector)) < 10 / 1e6
    assert float(angle(problem.values, path.final[:2], label_margin(problem, [1, 1, 1]).vector)) < 10 / 1e6


def test_true_joint_flow_is_slow_in_the_prompt():
    """Under plain gradient flow the head outruns the prompt: |p| grows like log |v|."""
    objective = JointObjective(NAMED_PROBLEMS["fig3a"]())
    path = flow(objective, start=np.array([-1.0, 0.0, 0.0, -1.0]), until_norm=1e4)
    head, prompt = objective.norms(path.final)
    assert head > 100 * prompt
    run = evolve(objective, GradientDescent(0.01), steps=2000, start=np.array([-1.0, 0.0, 0.0, -1.0]))
    arc = float(np.interp(np.log(20.0), path.log_time[1:], path.arcs[1:]))
    # Steps of 0.01 over a time of 20: half a step's square times the curvature, below 5, and 2000 of them.
    np.testing.assert_allclose(run.final, path(arc), rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": np.zeros((2, 3))}, "flow follows one path at a time"),
        ({"start": np.array([np.nan, 0, 0])}, "start must be finite"),
        ({"until_norm": 1e20}, "lost to rounding"),
        ({"until_norm": 0.0}, "until_norm must lie in"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        flow(PromptObjective(figure1a()), **arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"tolerance": 1.0}, "tolerance"), ({"coupling": "none"}, "coupling"), ({"max_steps": 0}, "max_steps")],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        FlowSettings(**settings)


def test_points_outside_the_path_are_refused():
    path = flow(PromptObjective(figure1a()), until_norm=10.0)
    with pytest.raises(ValueError, match="arc must lie in"):
        path(1e9)
    with pytest.raises(ValueError, match="does not cross"):
        path.at_norm(1e9)


def symmetric():
    """Four sequences with one irrelevant token between them, after the first step of Theorem 5: a straight path."""
    corpus = selective_corpus(4, 3, rng=np.random.default_rng(0), irrelevant=1, repeats=True)
    after = first_step(wishart_embeddings(corpus, 5.4e59, rng=np.random.default_rng([0, 0])), 576.0).after
    return PromptObjective(after.problem()), after.prompt


class Crawling(integrate.LSODA):
    """LSODA where its error estimate drowns in rounding: steps that do not grow, on every processor."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options | {"max_step": 1e-4})  # 500 of them are less than a tenth


def test_a_solver_without_headway_hands_over(monkeypatch):
    objective = PromptObjective(figure1b())
    straight = flow(objective, until_norm=1e4)
    monkeypatch.setitem(integrate.SOLVERS, "LSODA", Crawling)
    stuck = flow(objective, until_norm=1e4, settings=FlowSettings(solver="LSODA", max_steps=1500))
    assert (stuck.stop, stuck.steps) == ("stalled", 500)  # the patience
    path = flow(objective, until_norm=1e4)
    assert path.stop == "norm"
    assert path.steps > 500
    assert float(angle(objective.problem.keys, path.prompt, straight.prompt)) < of_flow(path, straight)


def test_the_default_solver_gets_through_on_symmetric_data():
    """Whether LSODA makes headway there depends on rounding, and so on the processor; the default does not mind."""
    objective, start = symmetric()
    options = {"start": start, "until_norm": 1e5}
    path = flow(objective, **options, settings=FlowSettings(tolerance=1e-8))
    other = flow(objective, **options, settings=FlowSettings(tolerance=1e-8, solver="Radau"))
    assert (path.stop, other.stop) == ("norm", "norm")
    assert path.steps <= 700  # at most the patience, and a handful of long steps
    keys = objective.problem.keys
    for norm in (1.2, 10.0, 1e3, 1e5):  # on both sides of the change
        assert float(angle(keys, path.at_norm(norm), other.at_norm(norm))) < of_flow(path, other, tolerance=1e-8)
    assert np.diff(path.arcs).min() > 0


def test_a_solver_that_fails_hands_over(monkeypatch):
    class Failing(integrate.LSODA):
        def _step_impl(self):
            return (False, "broken") if self.t > 1 else super()._step_impl()

    monkeypatch.setitem(integrate.SOLVERS, "LSODA", Failing)
    whole = flow(PromptObjective(figure1b()), until_norm=1e4)
    alone = flow(PromptObjective(figure1b()), until_norm=1e4, settings=FlowSettings(solver="LSODA"))
    assert (whole.stop, alone.stop) == ("norm", "stalled")
    assert alone.norm < 3
    expected = flow(PromptObjective(figure1b()), until_norm=1e4, settings=FlowSettings(solver="Radau"))
    np.testing.assert_allclose(whole.final, expected.final, rtol=0, atol=of_flow(whole, expected) * 1e4)


def test_solvers_are_named():
    with pytest.raises(ValueError, match="solver must be one of auto, LSODA, Radau, got 'euler'"):
        FlowSettings(solver="euler")
