"""Attention maps: another implementation, autograd, multiprecision; what they end at, against certificates."""

import json

import entmax
import mpmath
import numpy as np
import pytest
import torch
from tests.oracles.certified import SETTLED
from tests.oracles.rounding import of_logits, rounding

import tokenmargin as tm
from tokenmargin.cli import main
from tokenmargin.dynamics import GradientDescent, NormalizedGradientDescent, evolve, flow
from tokenmargin.limits import limit_of
from tokenmargin.limits.by_method import separating_direction
from tokenmargin.margin import Constraints, max_margin, solve
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.attention_maps import (
    AttentionMap,
    Entmax,
    MapObjective,
    Sigmoid,
    Softmax,
    Sparsemax,
    attention_named,
)
from tokenmargin.problem.instances import figure1b, figure1c, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, margins

MAPS = [Softmax(), Softmax(0.3), Entmax(1.5), Entmax(1.2), Entmax(1.8), Sparsemax(), Sigmoid(), Sigmoid(-1.5)]


def rows(seed: int = 0):
    """Logits of all sizes, with ties, equal rows, and places without a token."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((60, 7)) * 10.0 ** rng.uniform(-8, 2, size=(60, 1))
    logits[:5] = np.round(logits[:5] * 4) / 4
    logits[5] = 0.0
    hidden = rng.random(logits.shape) < 0.2
    hidden[:, 0] = False
    return np.where(hidden, -np.inf, logits), rng.standard_normal(logits.shape)


def by_entmax(kind: AttentionMap, logits):
    if isinstance(kind, Sparsemax):
        return entmax.sparsemax(logits, dim=-1)
    if isinstance(kind, Entmax):
        return entmax.entmax_bisect(logits, alpha=kind.alpha, dim=-1, n_iter=80)
    if isinstance(kind, Softmax):
        return torch.softmax(logits / kind.temperature, dim=-1)
    assert isinstance(kind, Sigmoid)
    return torch.sigmoid(logits + kind.bias)


@pytest.mark.parametrize("kind", [*MAPS, Entmax(1.05), Entmax(2.5)], ids=repr)
def test_weights_and_products_agree_with_another_implementation(kind) -> None:
    logits, scores = rows()
    finite = np.where(np.isneginf(logits), -1e4, logits)  # the other one does not take infinities
    tensor = torch.from_numpy(finite).requires_grad_()
    weights = by_entmax(kind, tensor)
    (product,) = torch.autograd.grad((weights * torch.from_numpy(scores)).sum(), tensor)
    # Weights are powers 1 / (alpha - 1) of numbers known to eps times the logits, which are up to 300.
    accuracy = 1e-15 * 300 * max(1.0, kind.margin if isinstance(kind, Entmax) else 1.0) * 10
    np.testing.assert_allclose(kind.weights(logits), weights.detach().numpy(), rtol=0, atol=accuracy)
    assert (kind.weights(logits)[np.isneginf(logits)] == 0).all()
    # Their derivative is a power 2 - alpha of the weights: where alpha > 2 it is infinite at the edge of the support.
    small = (kind.weights(logits) > 0) & (kind.weights(logits) < 1e-6)
    kept = ~small.any(axis=-1)
    np.testing.assert_allclose(kind.vjp(logits, scores)[kept], product.numpy()[kept], rtol=0, atol=1e3 * accuracy)


def test_entmax_against_fifty_digits() -> None:
    """The threshold by bisection with 60 digits, on logits with ties."""
    with mpmath.workdps(60):
        for alpha, z in ((1.3, [0.5, 0.5, -0.25, 0.0]), (1.5, [1.0, 0.25, -3.0]), (1.9, [0.125, 0.0, 0.0])):
            power, low, high = 1 / (mpmath.mpf(alpha) - 1), -mpmath.mpf(2), mpmath.mpf(2)
            for _ in range(200):
                middle = (low + high) / 2
                total = sum(max((mpmath.mpf(alpha) - 1) * x - middle, 0) ** power for x in z)
                low, high = (middle, high) if total >= 1 else (low, middle)
            exact = [float(max((mpmath.mpf(alpha) - 1) * x - low, 0) ** power) for x in z]
            # The threshold is known to a few roundings, and weights are its power 1 / (alpha - 1).
            np.testing.assert_allclose(
                Entmax(alpha).weights(np.array([z]))[0], exact, rtol=0, atol=rounding(10 * len(z) / (alpha - 1))
            )


@pytest.mark.parametrize("kind", MAPS, ids=repr)
def test_gradient_and_jacobian_agree_with_autograd(kind) -> None:
    problem = random_problem(4, 6, 5, rng=np.random.default_rng(3))
    objective = MapObjective(problem, attention=kind)
    keys, scores = torch.from_numpy(problem.keys.tokens.copy()), torch.from_numpy(problem.scores.copy())

    def risk(p):
        return torch.nn.functional.softplus(-(by_entmax(kind, keys @ p) * scores).sum(-1)).mean()

    theta = np.random.default_rng(4).standard_normal(5) / 2
    point = torch.from_numpy(theta).requires_grad_()
    (gradient,) = torch.autograd.grad(risk(point), point)
    # Sums over 4 inputs of 6 tokens in 5 dimensions, of numbers of size one: below a hundred roundings.
    np.testing.assert_allclose(objective.value(theta), risk(point).item(), rtol=rounding(100))
    np.testing.assert_allclose(objective.gradient(theta), gradient.numpy(), rtol=0, atol=rounding(100))
    # Differences of the gradient, since the other implementation cannot be differentiated twice: h^2 and eps / h.
    h = 1e-5
    ahead, behind = (np.stack([objective.gradient(theta + s * h * e) for e in np.eye(5)]) for s in (1, -1))
    linear = objective.linearise(theta)
    # As said: h^2 = 1e-10 of the third derivative and eps / h = 2e-11 of the gradient, times tens.
    np.testing.assert_allclose(
        linear.jacobian * np.exp(linear.descent.log_norm), -(ahead - behind).T / (2 * h), rtol=0, atol=1e-8
    )


def test_softmax_is_what_it_was_to_the_bit() -> None:
    problem = figure1c()
    plain, mapped = PromptObjective(problem), MapObjective(problem, attention=Softmax())
    for scale in (0.0, 1.0, 1e3):
        p = np.array([0.3, -1.0, 0.2]) * scale
        for one, other in zip(plain.descent(p), mapped.descent(p), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(plain.value(p), mapped.value(p))
        np.testing.assert_array_equal(plain.linearise(p).jacobian, mapped.linearise(p).jacobian)
    run, same = (evolve(o, NormalizedGradientDescent(0.1), steps=50).final for o in (plain, mapped))
    np.testing.assert_array_equal(run, same)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_temperature_scales_p() -> None:
    problem = figure1b()
    warm = flow(MapObjective(problem, attention=Softmax(4.0)), start=np.array([0.0, -6.0, 0.0]), until_norm=80.0)
    plain = flow(PromptObjective(problem), start=np.array([0.0, -1.5, 0.0]), until_norm=20.0)
    np.testing.assert_allclose(warm.final / 4, plain.final, rtol=1e-6, atol=1e-6)  # two runs of a solver at 1e-10


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("kind", [Sparsemax(), Entmax(1.5)], ids=repr)
def test_a_finite_p_reaches_the_margin_exactly(kind) -> None:
    problem = random_problem(3, 4, 5, rng=np.random.default_rng(1))
    objective = MapObjective(problem, attention=kind)
    limit = limit_of(objective)
    assert limit.outcome == "saturated"
    assert limit.log_gradient == -np.inf
    assert (objective.weights(limit.point).max(axis=1) == 1).all()
    ahead = margins(problem, limit.point, limit.selected)
    ahead[np.arange(3), limit.selected] = np.inf
    assert ahead.min() >= kind.margin - of_logits(problem, limit.point)
    # No p that does this is shorter than the certified solution, scaled by what the map needs.
    shortest = kind.margin / max_margin(problem, limit.selected).margin
    assert limit.path.norm >= shortest * (1 - 1e-9)
    assert f"{kind.margin:g} needed" in limit.reason
    # The certified solution itself is a rest point, a hair shorter it is none.
    best = kind.margin * max_margin(problem, limit.selected).vector
    assert np.isneginf(objective.descent(best * (1 + 1e-9)).log_norm)
    assert not np.isneginf(objective.descent(best * (1 - 1e-6)).log_norm)


@pytest.mark.usefixtures("unchecked_shapes")
def test_plain_descent_under_sparsemax_stops_for_good() -> None:
    objective = MapObjective(figure1b(), attention=Sparsemax())
    run = evolve(objective, GradientDescent(0.5), steps=400, keep=("log_gradient", "saturation", "weights"))
    done = int(np.isneginf(run["log_gradient"][:, 0]).argmax())
    assert 0 < done < 400
    assert np.isneginf(run["log_gradient"][done:]).all()
    assert (run["saturation"][done:] == 1).all()
    assert (run["weights"][-1].max(axis=-1) == 1).all()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("bias", [-1.0])
def test_sigmoid_separates_the_tokens_that_help(bias: float) -> None:
    rng = np.random.default_rng(5)
    direction = rng.standard_normal(4)
    keys = rng.standard_normal((3, 4, 4))
    scores = (keys @ direction) * rng.uniform(0.5, 2, size=(3, 4))
    problem = TokenProblem.of(keys, [1, 1, 1], scores=scores)
    limit = limit_of(MapObjective(problem, attention=Sigmoid(bias)))
    assert (limit.outcome, limit.kind) == ("direction", "GMM")
    np.testing.assert_array_equal(limit.chosen, scores > 0)
    tokens = np.argwhere(np.ones((3, 4), dtype=bool))
    rows_ = Constraints(
        problem.keys, problem.keys.index.ravel(), None, np.ones(12), tokens, sign=np.sign(scores).ravel()
    )
    assert float(angle(problem.keys, limit.path.prompt, solve(rows_).vector)) <= SETTLED


def test_the_direction_under_sigmoid_survives_underflow() -> None:
    problem = random_problem(3, 4, 5, rng=np.random.default_rng(1))
    objective, p = MapObjective(problem, attention=Sigmoid()), np.random.default_rng(2).standard_normal(5) * 800
    with mpmath.workdps(80):
        total = [mpmath.mpf(0)] * 5
        for i in range(3):
            z = [mpmath.fdot(map(mpmath.mpf, k), map(mpmath.mpf, p)) for k in problem.keys.tokens[i].tolist()]
            s = [1 / (1 + mpmath.exp(-x)) for x in z]
            f = mpmath.fdot(s, map(mpmath.mpf, problem.scores[i].tolist()))
            for t in range(4):
                pull = s[t] * (1 / (1 + mpmath.exp(z[t]))) * mpmath.mpf(problem.scores[i, t]) / (1 + mpmath.exp(f))
                for j in range(5):
                    total[j] += pull * mpmath.mpf(problem.keys.tokens[i, t, j]) / 3
        size = mpmath.sqrt(mpmath.fsum(x**2 for x in total))
        exact, log_norm = [float(x / size) for x in total], float(mpmath.log(size))
    found = objective.descent(p)
    # Terms that do not cancel much, as far off as their logits, and sums of 12.
    off = 2 * of_logits(problem, p) + rounding(100)
    np.testing.assert_allclose(found.direction, exact, rtol=0, atol=off)
    np.testing.assert_allclose(found.log_norm, [log_norm], rtol=0, atol=off)


@pytest.mark.usefixtures("unchecked_shapes")
def test_an_edge_that_is_pushed_from_both_sides_is_followed_to_the_end() -> None:
    """Under sparsemax the first input's pull ends at `x = 1` and comes back at once; the second pulls to (-1, 4)."""
    keys = [[[1.0, 0.0], [0.0, 0.0]], [[-0.1, 0.4], [0.0, 0.0]]]
    problem = TokenProblem.of(keys, [1, 1], scores=[[5.0, 0.0], [0.5, 0.0]])
    path = flow(MapObjective(problem, attention=Sparsemax()))
    assert path.stop == "saturated"
    assert path.steps < 20_000
    # Along the edge until `-0.1 x + 0.4 y = 1`, up to a step on either side: 0.005 (1/2 + |p|), with |p| < 3.
    np.testing.assert_allclose(path.final, [1.0, 2.75], rtol=0, atol=2 * 0.005 * 3.5)
    assert path.resume(until_norm=1e3) is path


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_rest_between_tokens_is_found_under_sparsemax() -> None:
    """Two inputs pull one coordinate to opposite sides: by symmetry they rest at equal pulls, at finite weights."""
    keys, scores = [[[1.0], [0.0]], [[1.0], [0.0]]], [[1.0, 0.0], [-1.0, 0.5]]
    limit = limit_of(MapObjective(TokenProblem.of(keys, [1, 1], scores=scores), attention=Entmax(1.5)))
    assert limit.outcome in ("bounded", "saturated")
    assert limit.log_gradient < -30


@pytest.mark.parametrize(
    ("name", "words"),
    [("entmax=1", "alpha must be above 1"), ("softmax=0", "temperature must be a positive number"),
     ("sparsemax=3", "takes no number"), ("entmax=x", "must be a number"), ("sparse", "there is no 'sparse'")],
)  # fmt: skip
def test_names_that_are_none_get_one_line(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attention_named(name)
    assert main(["evolve", "fig1b", "--attention", name]) == 2


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_command_says_that_the_weights_are_exact(capsys) -> None:
    assert main(["evolve", "fig1b", "--attention", "sparsemax", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    exact = report["exact_weights"]
    assert exact["ahead"] >= exact["needed"] == 1
    assert report["norm"] >= exact["shortest_norm"]
    assert main(["evolve", "fig1b", "--attention", "sparsemax", "--method", "flow", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stop"] == "saturated"
    assert main(["evolve", "fig1b", "--attention", "sparsemax", "--train", "joint"]) == 2
    assert isinstance(tm.Sparsemax(), AttentionMap)


@pytest.mark.parametrize(("start", "gram"), [(None, False), ([-7.0], False), (None, True)])
def test_a_key_of_zero_hides_no_other_under_sigmoid_attention(start, gram) -> None:
    """Left of the origin the keys 3 and -2 both pull to the left, like exp(3 p) and exp(2 p); the weight of the key 0
    stays what it is, and moves nothing."""
    problem = TokenProblem.of([[[0.0], [3.0], [-1.0], [-2.0]]], [1], scores=[[-1.0, -1.0, 0.0, 2.0]])
    problem = problem.as_gram() if gram else problem
    limit = limit_of(MapObjective(problem, attention=Sigmoid(2.0)), None if start is None else np.array(start))
    assert (limit.outcome, limit.kind) == ("direction", "GMM")
    assert (problem.keys.logits(limit.point)[0, [1, 3]] * [-1, 1] > 0).all()  # to the left


@pytest.mark.usefixtures("unchecked_shapes")
def test_copies_count_as_one_where_weights_are_exact() -> None:
    """At p = -1 the key -1 has all the weight of the first input, and the two copies of -2 all of the second."""
    keys, scores = np.array([[0.0, 2, -1], [0, -2, -2]])[..., None], [[1.0, 1, 2], [0, -1, -1]]
    limit = limit_of(
        MapObjective(TokenProblem.of(keys, np.ones(2), scores=scores), attention=Sparsemax()), np.array([-0.5])
    )
    assert limit.outcome == "saturated"
    assert limit.named.names == [2, [1, 2]]


def test_what_higher_scores_do_under_sigmoid_attention() -> None:
    """A key that stands on the wrong side makes training leave, unless other inputs pull the same key more."""
    alone = TokenProblem.of([[[0.0, 1.0], [1.0, 0.0]]], [1], scores=[[1.0, -1.0]])
    keys = np.array([[[0.0, 1.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]])
    together = TokenProblem.of(keys, [1, 1], scores=[[1.0, -1.0], [1.0, 3.0]])
    kinds = [
        separating_direction(MapObjective(problem, attention=Sigmoid()), np.array([1.0, 1.0])).kind
        for problem in (alone, together)
    ]
    assert kinds == ["not locally optimal", "undecided"]
