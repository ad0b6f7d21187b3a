"""Objectives: gradients against automatic differentiation, complex steps and exact arithmetic, at any norm."""

import itertools

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles.rounding import EPS, of_attention, of_joint, of_logits, rounding

from tokenmargin.dynamics import NormalizedGradientDescent, evolve, evolve_many
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.objective.attention_maps import MapObjective, Sigmoid
from tokenmargin.objective.losses import LOSSES, CorrelationLoss, CustomLoss, ExponentialLoss, LogisticLoss
from tokenmargin.problem.instances import (
    figure1b,
    figure1c,
    figure3a,
    figure8,
    random_problem,
    shared_vocabulary_problem,
)
from tokenmargin.problem.token_problem import TokenProblem

TORCH_LOSSES = {
    "logistic": lambda u: torch.nn.functional.softplus(-u),
    "exponential": lambda u: torch.exp(-u),
    "correlation": lambda u: -u,
}


def ragged_problem(seed: int) -> TokenProblem:
    rng = np.random.default_rng(seed)
    keys, values = rng.standard_normal((2, 3, 5, 4))
    mask = rng.random((3, 5)) < 0.7
    mask[:, 0] = True
    return TokenProblem.of(keys, rng.choice([-1, 1], 3), values=values, head=rng.standard_normal(4), mask=mask)


def torch_risk(problem: TokenProblem, loss: str, head: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
    """The model as one writes it down."""
    logits = torch.tensor(problem.keys.tokens) @ prompt
    logits = logits.masked_fill(~torch.tensor(problem.mask), -torch.inf)
    outputs = (torch.softmax(logits, 1) * (torch.tensor(problem.values.tokens) @ head)).sum(1)
    return TORCH_LOSSES[loss](torch.tensor(problem.labels) * outputs).mean()


@pytest.mark.parametrize("loss", [name for name, _ in LOSSES])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
@pytest.mark.parametrize(
    "make", [ragged_problem, lambda seed: random_problem(4, 6, 7, rng=np.random.default_rng(seed))]
)
def test_gradients_agree_with_automatic_differentiation(loss: str, scale: float, make) -> None:
    problem = make(3)
    rng = np.random.default_rng(4)
    d = problem.keys.dimension
    head = torch.tensor(problem.head, requires_grad=True)
    prompt = torch.tensor(scale * rng.standard_normal(d), requires_grad=True)
    risk = torch_risk(problem, loss, head, prompt)
    risk.backward()
    theta = np.concatenate([problem.head, prompt.detach().numpy()])

    alone = PromptObjective(problem, dict(LOSSES)[loss])
    of_value, of_gradient = of_attention(problem, theta[d:], alone.loss)
    assert alone.value(theta[d:]) == pytest.approx(risk.item(), rel=0, abs=of_value)
    np.testing.assert_allclose(alone.gradient(theta[d:]), prompt.grad.numpy(), rtol=0, atol=of_gradient)

    joint = JointObjective(problem, dict(LOSSES)[loss])
    of_value, of_gradient = of_joint(problem, theta, joint.loss)
    assert joint.value(theta) == pytest.approx(risk.item(), rel=0, abs=of_value)
    both = np.concatenate([head.grad.numpy(), prompt.grad.numpy()])
    np.testing.assert_allclose(joint.gradient(theta), both, rtol=0, atol=of_gradient)


def test_gradients_agree_with_complex_steps() -> None:
    problem = random_problem(3, 4, 5, rng=np.random.default_rng(5))
    p = np.random.default_rng(6).standard_normal(5)

    def risk(point: np.ndarray) -> complex:
        weights = np.exp(problem.keys.tokens @ point)
        outputs = (weights * problem.scores).sum(1) / weights.sum(1)
        return np.log(1 + np.exp(-outputs)).mean()

    # The step can be tiny because nothing is subtracted: the derivative is exact to rounding.
    numeric = [risk(p + 1e-30j * unit).imag / 1e-30 for unit in np.eye(5)]
    np.testing.assert_allclose(PromptObjective(problem).gradient(p), numeric, rtol=0, atol=of_attention(problem, p)[1])


def test_many_points_at_once_are_each_point_alone() -> None:
    problem = shared_vocabulary_problem(3, 4, 5, vocabulary=6, rng=np.random.default_rng(7))
    for objective in (PromptObjective(problem), JointObjective(problem), PromptObjective(problem.as_gram())):
        many = np.random.default_rng(8).standard_normal((3, 2, objective.dimension))
        (direction, log_norm), values = objective.descent(many), objective.value(many)
        # Sums in another order: n T terms a direction, d (in Gram space 13) products a logit below 10.
        apart = rounding(3 * 4 + 2 * 13, 10.0)
        for k in np.ndindex(3, 2):
            alone = objective.descent(many[k])
            np.testing.assert_allclose(direction[k], alone.direction, rtol=0, atol=apart)
            np.testing.assert_allclose(log_norm[k], alone.log_norm, rtol=0, atol=apart)
            assert values[k] == pytest.approx(float(objective.value(many[k])), rel=apart, abs=0)


def exact_direction(problem: TokenProblem, p: np.ndarray) -> tuple[np.ndarray, float]:
    """Unit descent direction and log gradient norm of the logistic risk in 200 digits, pair by pair."""
    with mpmath.workdps(200):
        keys = [[[mpmath.mpf(float(x)) for x in token] for token in row] for row in problem.keys.tokens]
        point = [mpmath.mpf(float(x)) for x in p]
        total = [mpmath.mpf(0)] * len(point)
        for i, row in enumerate(keys):
            gamma = [mpmath.mpf(float(g)) for g in problem.scores[i]]
            logits = [mpmath.fdot(token, point) for token in row]
            top = max(logits)
            weights = [mpmath.exp(a - top) for a in logits]
            z = mpmath.fsum(weights)
            weights = [w / z for w in weights]
            slope = 1 / (1 + mpmath.exp(mpmath.fdot(weights, gamma))) / len(keys)
            # The pairwise form: in `gamma - f` even 200 digits would cancel at these logits.
            for t, u in itertools.combinations(range(len(row)), 2):
                pull = slope * weights[t] * weights[u] * (gamma[t] - gamma[u])
                for k in range(len(point)):
                    total[k] += pull * (row[t][k] - row[u][k])
        norm = mpmath.sqrt(mpmath.fsum(x * x for x in total))
        return np.array([float(x / norm) for x in total]), float(mpmath.log(norm))


@pytest.mark.parametrize("size", [1.0, 1e2, 1e4, 1e8])
@pytest.mark.parametrize("seed", range(5))
def test_directions_are_right_where_every_other_weight_underflows(size: float, seed: int) -> None:
    problem = random_problem(3, 5, 4, rng=np.random.default_rng(seed))
    p = np.random.default_rng(100 + seed).standard_normal(4)
    p *= size / np.abs(problem.keys.logits(p)).max()  # logits of this size
    direction, log_norm = PromptObjective(problem).descent(p)
    expected, expected_log = exact_direction(problem, p)
    # A logit of size L is known to about d eps L, and so is the logarithm of every weight; 3 x 5 terms are added.
    tolerance = 2 * of_logits(problem, p) + rounding(20)
    np.testing.assert_allclose(direction, expected, rtol=0, atol=tolerance)
    assert log_norm[0] == pytest.approx(expected_log, rel=rounding(2), abs=tolerance)
    if size >= 1e8:
        assert np.exp(log_norm[0]) == 0.0  # the gradient itself is long gone


@pytest.mark.parametrize("size", [1e4, 1e8])
def test_directions_are_right_where_neighbours_compete(size: float) -> None:
    """Along the max-margin direction two inputs pull with weights of one size, both far below the smallest double."""
    problem = figure1c()
    p = size * np.array([0.8446264085978873, 0.17112226034948436, 0.0]) + [0.3, -0.2, 0.0]
    direction, _ = PromptObjective(problem).descent(p)
    expected, _ = exact_direction(problem, p)
    np.testing.assert_allclose(direction, expected, rtol=0, atol=2 * of_logits(problem, p) + rounding(20))


@pytest.mark.parametrize("make", [PromptObjective, lambda problem: MapObjective(problem, attention=Sigmoid())])
@pytest.mark.parametrize("scale", [2.0**-200, 2.0**60, 2.0**500])
@pytest.mark.parametrize("seed", range(4))
def test_the_scale_of_the_scores_does_not_turn_the_direction(make, scale: float, seed: int) -> None:
    """One input: its slope, exp(-1e150) at the last scale, is a factor of the gradient, not of its direction."""
    rng = np.random.default_rng(seed)
    keys, scores, p = rng.standard_normal((1, 5, 3)), rng.standard_normal((1, 5)), 4 * rng.standard_normal(3)
    scores -= scores.min() - 1  # positive outputs, where the slope of the logistic loss falls
    plain, scaled = (make(TokenProblem.of(keys, [1], scores=size * scores)) for size in (1.0, scale))
    apart = (
        of_logits(plain.problem, p) + rounding(2 * 5 + 8) + rounding(2, abs(np.log(scale)))
    )  # also scores' logarithms
    np.testing.assert_allclose(scaled.descent(p).direction, plain.descent(p).direction, rtol=0, atol=2 * apart)
    if isinstance(plain, PromptObjective):
        linear = scaled.linearise(p)
        np.testing.assert_allclose(linear.descent.direction, plain.descent(p).direction, rtol=0, atol=2 * apart)
        many = evolve_many([scaled.problem], NormalizedGradientDescent(0.1), steps=1, starts=[p[None]]).finals[0][0]
        alone = evolve(scaled, NormalizedGradientDescent(0.1), steps=1, start=p).final
        np.testing.assert_allclose(many, alone, rtol=0, atol=2 * apart)


def test_the_textbook_formula_loses_the_direction() -> None:
    """`s (gamma - f)` in double precision gives a zero or a wrong direction where ours is right."""
    problem = figure1b()
    p = np.array([50.0, -2.0, 0.0])
    weights = np.exp(problem.keys.logits(p) - problem.keys.logits(p).max())
    weights /= weights.sum(axis=1, keepdims=True)
    f = (weights * problem.scores).sum(axis=1, keepdims=True)
    textbook = problem.keys.pullback(weights * (problem.scores - f))
    expected, _ = exact_direction(problem, p)
    apart = 2 * of_logits(problem, p) + rounding(20)
    np.testing.assert_allclose(PromptObjective(problem).descent(p).direction, expected, rtol=0, atol=apart)
    length = np.linalg.norm(textbook)
    assert length == 0 or textbook @ expected / length < 0.9


def test_gram_and_coordinates_give_one_direction() -> None:
    problem = random_problem(4, 6, 10, rng=np.random.default_rng(9))
    start = 30 * np.random.default_rng(10).standard_normal(10)
    gram = problem.as_gram(start[None])
    ours, theirs = PromptObjective(problem).descent(start), PromptObjective(gram).descent(gram.keys.unit(24))
    vectors = np.concatenate([problem.keys.vectors, start[None]])
    # Logits of both kinds; and lengths in Gram space, square roots of sums of 25 x 25 inner products.
    apart = 2 * (of_logits(problem, start) + of_logits(gram, gram.keys.unit(24))) + rounding(25 * 25)
    np.testing.assert_allclose(theirs.direction @ vectors, ours.direction, rtol=0, atol=apart)
    np.testing.assert_allclose(theirs.log_norm, ours.log_norm, rtol=rounding(2), atol=apart)


@pytest.mark.parametrize(
    "problem",
    [
        TokenProblem.of([[[1.0, 2.0]]], [1], head=[1.0, 0.0]),  # a single token: nothing to choose
        TokenProblem.of(np.ones((2, 3, 2)), [1, -1], scores=np.arange(6.0).reshape(2, 3)),  # one place for all
        TokenProblem.of(np.zeros((2, 3, 2)), [1, -1], scores=np.arange(6.0).reshape(2, 3)),
        TokenProblem.of(np.random.default_rng(0).standard_normal((2, 3, 2)), [1, 1], scores=np.ones((2, 3))),
    ],
)
def test_a_gradient_that_is_zero_is_reported_as_zero(problem: TokenProblem) -> None:
    for view in (problem, problem.as_gram()):
        direction, log_norm = PromptObjective(view).descent(np.ones(view.keys.dimension))
        assert not direction.any()
        assert log_norm[0] == -np.inf


def test_the_smoothness_constant_bounds_the_change_of_the_gradient_and_is_at_most_the_printed_one() -> None:
    rng = np.random.default_rng(11)
    problem = random_problem(3, 4, 5, rng=rng)
    for loss, m0, m1 in ((LogisticLoss(), 0.25, 1.0), (ExponentialLoss(), np.e, np.e), (CorrelationLoss(), 0.0, 1.0)):
        objective = PromptObjective(problem, loss)
        bound = objective.smoothness()
        for _ in range(200):
            p = 3 * rng.standard_normal(5)
            q = p + 10 ** rng.uniform(-3, 1) * rng.standard_normal(5)
            change = np.linalg.norm(objective.gradient(p) - objective.gradient(q))
            assert change <= bound * np.linalg.norm(p - q)
        spectral = np.array([np.linalg.norm(x, 2) for x in problem.values.tokens])
        head = np.linalg.norm(problem.head)
        printed = (m0 * head**2 * spectral**4 + 3 * m1 * head * spectral**3).mean()
        # Spectral norms by LAPACK, of matrices of four and five rows: some ten roundings a row, to the fourth power.
        assert bound <= printed * (1 + rounding(4 * 10 * 5))
        in_gram = PromptObjective(problem.as_gram(), loss).smoothness()
        assert in_gram == pytest.approx(bound, rel=rounding(4 * 10 * 12), abs=0)


@pytest.mark.parametrize("loss", [loss for _, loss in LOSSES])
@given(low=st.floats(-5, 5), width=st.floats(1e-3, 5))
@settings(max_examples=30)
def test_loss_constants_hold_on_their_interval(loss, low: float, width: float) -> None:
    u = np.linspace(low, low + width, 400)
    slope = -np.exp(loss.log_slope(u))
    m0, m1 = loss.constants(low, low + width)
    h, most = u[1] - u[0], float(np.abs(loss.value(u)).max())
    assert np.abs(slope).max() <= m1 * (1 + rounding(8))
    # Points of the grid are rounded to eps |u|, and so are its steps.
    assert np.abs(np.diff(slope)).max() <= m0 * (h + rounding(2, np.abs(u).max())) + rounding(8, m1)
    # The slope is the derivative of the value; third derivatives of these losses are at most the slope.
    apart = rounding(4, most + m1 * np.abs(u).max()) / h + h**2 * m1 / 6
    np.testing.assert_allclose(np.gradient(loss.value(u), u)[1:-1], slope[1:-1], rtol=0, atol=2 * apart)


def test_slopes_survive_where_they_underflow() -> None:
    u = np.array([-2000.0, 0.0, 2000.0])
    np.testing.assert_allclose(LogisticLoss().log_slope(u), [0.0, -np.log(2), -2000.0], rtol=rounding(4), atol=EPS)
    assert np.isfinite(JointObjective(figure3a()).descent(np.array([0.0, 1e5, 1e5, 0.0])).log_norm).all()


def test_a_loss_of_ones_own() -> None:
    own = CustomLoss(lambda u: np.logaddexp(0, -u), lambda u: -1 / (1 + np.exp(u)), lipschitz=0.25, bound=1.0)
    problem = figure1b()
    p = np.array([0.3, -0.2, 0.0])
    ours, theirs = PromptObjective(problem, own).gradient(p), PromptObjective(problem).gradient(p)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=of_attention(problem, p)[1])
    assert PromptObjective(problem, own).smoothness() >= PromptObjective(problem).smoothness()
    with pytest.raises(ValueError, match="lipschitz=M0, bound=M1"):
        PromptObjective(problem, CustomLoss(own.function, own.derivative)).smoothness()
    rising = CustomLoss(lambda u: u, lambda u: np.ones_like(u))
    with pytest.raises(ValueError, match="must be strictly decreasing: its derivative is 1"):
        PromptObjective(problem, rising).descent(p)


def test_the_parameter_splits_into_its_blocks() -> None:
    objective = JointObjective(figure3a())
    theta = np.arange(4.0)
    assert {name: part.tolist() for name, part in objective.split(theta).items()} == {"head": [0, 1], "prompt": [2, 3]}
    assert objective.prompt(theta).tolist() == [2, 3]
    np.testing.assert_allclose(objective.norms(theta), [1.0, np.sqrt(13)], rtol=rounding(4))
    assert objective.start().tolist() == [-1, 0, 0, 0]


def test_the_printed_smoothness_is_the_formula_and_never_smaller() -> None:
    """(24) by hand on Figure 8, where W = I and v = (1, 3), and on Figure 1b, where W = diag(1, 1, 0)."""
    m0, m1 = 1 / 4, 1 / 2  # of the logistic loss on scores in 0..1, both at 0
    for problem, head in ((figure8(), np.sqrt(10)), (figure1b(), 1.0)):
        sizes = np.array([np.linalg.norm(x, 2) for x in problem.values.tokens])
        by_hand = float((m0 * head**2 * sizes**4 + 3 * m1 * head * sizes**3).mean())
        # Fourth powers of spectral norms of three rows, by LAPACK: some ten roundings a row; and |W|, by least squares.
        assert PromptObjective(problem).printed_smoothness() == pytest.approx(
            by_hand, rel=rounding(4 * 10 * 3 + 2 * 30), abs=0
        )
    assert 1 / PromptObjective(figure8()).printed_smoothness() == pytest.approx(0.0163, abs=5e-5)  # as printed
    doubled = PromptObjective(figure1b()).printed_smoothness(weights_norm=2.0)
    assert doubled == pytest.approx(4 * by_hand, rel=rounding(4 * 10 * 3), abs=0)
    for seed in range(20):
        drawn = PromptObjective(random_problem(3, 4, 5, rng=np.random.default_rng(seed)))
        assert drawn.printed_smoothness() >= drawn.smoothness()
    scores = TokenProblem.of([[[1.0], [0.0]]], [1], scores=[[1.0, 0.0]])
    with pytest.raises(ValueError, match="scores alone"):
        PromptObjective(scores).printed_smoothness()
    apart = TokenProblem.of([[[1.0], [0.5], [0.0]]], [1], values=[[[1.0], [1.0], [2.0]]], head=[1.0])
    with pytest.raises(ValueError, match="no linear image"):
        PromptObjective(apart).printed_smoothness()
