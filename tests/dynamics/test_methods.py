"""Methods with a state: torch's numbers, steps without a guard at any norm, many runs at once, minibatches."""

from __future__ import annotations

import numpy as np
import pytest
from tests.oracles.rounding import of_attention, of_joint, of_logits, of_path, rounding

from tokenmargin.dynamics import (
    AbstractMethod,
    Adam,
    GradientDescent,
    MirrorDescent,
    Momentum,
    NormalizedGradientDescent,
    Polyak,
    Schedule,
    SteepestDescent,
    evolve,
    evolve_many,
    method_named,
)
from tokenmargin.dynamics.evolve import on_inputs
from tokenmargin.margin import max_margin
from tokenmargin.norms import norm_named
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.objective.forward import Descent
from tokenmargin.problem.instances import figure1b, figure3a, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

NORMALISED = {
    "sign": SteepestDescent("linf", 0.3),
    "coordinate": SteepestDescent("l1", 0.3),
    "lp": SteepestDescent("lp:1.5", 0.3),
    "momentum": SteepestDescent("l2", 0.3, 0.9),
    "signum": SteepestDescent("linf", Schedule(0.3), 0.9, nesterov=True),
    "mirror 1.5": MirrorDescent(1.5, 0.3),
    "mirror 3": MirrorDescent(3.0, 0.3),
    "adam": Adam(0.1),
    "polyak": Polyak(),
}
PLAIN = {
    "heavy ball": Momentum(0.3),
    "nesterov": Momentum(0.3, nesterov=True),
    "mirror, plain": MirrorDescent(1.5, 0.3, normalized=False),
    "adamw": Adam(0.1, weight_decay=0.1),
}


def problem_of(seed: int, n: int = 4, T: int = 6, d: int = 10) -> TokenProblem:
    return random_problem(n, T, d, rng=np.random.default_rng(seed))


def matrix_problem(seed: int) -> TokenProblem:
    rng = np.random.default_rng(seed)
    return random_problem(4, 6, 4, rng=rng).with_matrix(rng.standard_normal((4, 3)))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (Momentum(0.5, 0.9), "SGD", {"lr": 0.5, "momentum": 0.9}),
        (Momentum(0.5, 0.9, nesterov=True), "SGD", {"lr": 0.5, "momentum": 0.9, "nesterov": True}),
        (Adam(0.05), "Adam", {"lr": 0.05, "eps": 0.0}),
        (Adam(0.05, eps=1e-8), "Adam", {"lr": 0.05, "eps": 1e-8}),
        (Adam(0.05, 0.8, 0.9, weight_decay=0.1), "AdamW",
         {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.0, "weight_decay": 0.1}),
    ],
    ids=["momentum", "nesterov", "adam", "adam with eps", "adamw"],
)  # fmt: skip
def test_a_hundred_steps_are_those_of_torch(ours: AbstractMethod, theirs: str, settings: dict, seed: int) -> None:
    """Automatic differentiation and torch's own optimisers, while the gradients are large."""
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'tokenmargin[train]')")
    problem = problem_of(seed)
    start = 0.3 * np.random.default_rng(seed).standard_normal(10)
    keys, scores = torch.tensor(problem.keys.tokens), torch.tensor(problem.scores)
    p = torch.tensor(start, requires_grad=True)
    optimizer = getattr(torch.optim, theirs)([p], **settings)
    points = []
    for _ in range(100):
        optimizer.zero_grad()
        risk = torch.nn.functional.softplus(-(torch.softmax(keys @ p, dim=1) * scores).sum(1)).mean()
        risk.backward()
        optimizer.step()
        points.append(p.detach().numpy().copy())
    path = evolve(problem, ours, steps=100, start=start, keep=("point",))
    np.testing.assert_allclose(path["point"][1:], points, rtol=0, atol=of_path(path.objective, ours, 100, start))


@pytest.mark.parametrize("method", [*NORMALISED.values(), *PLAIN.values()], ids=[*NORMALISED, *PLAIN])
def test_many_runs_at_once_are_those_of_evolve(method: AbstractMethod) -> None:
    """Also where the second half goes on from the first, and runs have taken different numbers of steps."""
    poses = [problem_of(seed) for seed in range(3)]
    firsts = [np.random.default_rng(9 + j).standard_normal((2, 10)) for j in range(3)]
    some = evolve_many(poses, method, steps=np.array([[20, 5], [11, 20], [0, 20]]), starts=firsts)
    runs = some.resume(steps=40)
    assert (runs.steps == 40).all()
    for pose, first, final in zip(poses, firsts, runs.finals, strict=True):
        alone = evolve(pose, method, steps=40, start=first)
        np.testing.assert_allclose(alone.final, final, rtol=0, atol=of_path(alone.objective, method, 40, first))


def test_matrices_and_shorter_inputs_run_at_once_too() -> None:
    poses = [matrix_problem(seed) for seed in range(2)]
    rng = np.random.default_rng(0)
    for method in (method_named("spectral"), method_named("muon"), SteepestDescent("nuclear")):
        runs = evolve_many(poses, method, steps=25)
        for pose, final in zip(poses, runs.finals, strict=True):
            alone = evolve(pose, method, steps=25)
            np.testing.assert_allclose(alone.final, final[0], rtol=0, atol=of_path(alone.objective, method, 25))
    mask = np.array([[True, True, False], [True, True, True]])
    short = TokenProblem.of(rng.standard_normal((2, 3, 4)), [1, -1], head=rng.standard_normal(4), mask=mask)
    runs = evolve_many([short, short], method_named("sign"), steps=30, starts=[np.ones((1, 4)), np.zeros((1, 4))])
    # Steps are signs times a length: thirty sums of numbers no longer than the way, whatever the gradient's rounding.
    alone = evolve(short, "sign", steps=30, start=np.ones(4)).final
    np.testing.assert_allclose(runs.finals[0][0], alone, rtol=0, atol=rounding(30, 1.0 + 30 * 0.1))


@pytest.mark.parametrize("method", NORMALISED.values(), ids=NORMALISED)
def test_no_guard_is_needed_at_any_norm(method: AbstractMethod) -> None:
    """A gradient of exp(-5000) times the size gives the same steps: only the logarithm knows."""
    rng = np.random.default_rng(3)
    ways = rng.standard_normal((20, 6))
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    sizes = -0.3 * np.arange(20.0) + rng.standard_normal(20)
    ends = []
    for shift in (0.0, -5000.0):
        theta, state = np.full(6, 0.5), method.initial(np.zeros(6))
        for t, (way, size) in enumerate(zip(ways, sizes, strict=True)):
            descent = Descent(way, np.array([size + shift]))
            theta, state = method.advance(theta, descent, _Falls(size + shift), t, state)
        ends.append(theta)
    # A step, of length 1 at most, handles up to four logarithms near 5000; twenty steps add up.
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=rounding(20 * 4, 5000.0))
    assert np.abs(ends[0] - 0.5).max() > 0.1


class _Falls:
    """A risk that is above its infimum by the gradient's own size."""

    def __init__(self, log_excess: float) -> None:
        self.log_excess = np.array(log_excess)


@pytest.mark.parametrize("name", ["sign", "coordinate", "momentum", "adam", "mirror:1.5", "mirror:3", "polyak", "ngd"])
def test_training_goes_on_at_a_norm_of_ten_thousand(name: str) -> None:
    problem = problem_of(1)
    direction = max_margin(problem, evolve(problem, "ngd", steps=300).selected).vector
    start = 1e4 * direction / np.linalg.norm(direction)
    assert np.exp(PromptObjective(problem).descent(start).log_norm[0]) == 0.0
    path = evolve(problem, name, steps=50, start=start, keep=("norm",))
    assert np.isfinite(path.final).all()
    assert path["norm"][-1, 0] > path["norm"][0, 0] + 0.1


@pytest.mark.parametrize("norm", ["l1", "l2", "linf", "lp:1.5", "lp:4"])
def test_a_step_is_the_steepest_of_its_norm(norm: str) -> None:
    problem, one = problem_of(2), norm_named(norm)
    start = np.random.default_rng(0).standard_normal(10)
    moved = evolve(problem, SteepestDescent(norm, 0.25), steps=1, start=start).final - start
    way = PromptObjective(problem).descent(start).direction
    # Every coordinate of the step is what is left of the end, rounded to its size; and the norms' own rounding.
    apart = float(one.value(rounding(1, np.abs(start) + 0.25))) + 0.25 * 2 * one.rounding(10)
    np.testing.assert_allclose(one.value(moved), 0.25, rtol=0, atol=apart)
    np.testing.assert_allclose(moved @ way, 0.25 * one.dual_value(way), rtol=0, atol=2 * apart * one.dual_value(way))


def test_mirror_descent_with_the_euclidean_potential_is_normalised_descent() -> None:
    problem, start = problem_of(3), np.random.default_rng(1).standard_normal(10)
    mirror = evolve(problem, MirrorDescent(2.0, 0.2), steps=60, start=start).final
    plain = evolve(problem, NormalizedGradientDescent(0.2), steps=60, start=start).final
    apart = of_path(PromptObjective(problem), NormalizedGradientDescent(0.2), 60, start)
    np.testing.assert_allclose(mirror, plain, rtol=0, atol=apart)


def test_mirror_descent_steps_in_the_gradient_of_its_potential() -> None:
    problem, start = problem_of(3), np.random.default_rng(1).standard_normal(10)
    for p in (1.2, 3.0):
        after = evolve(problem, MirrorDescent(p, 0.2, normalized=False), steps=1, start=start).final
        fallen = np.sign(after) * np.abs(after) ** (p - 1) - np.sign(start) * np.abs(start) ** (p - 1)
        # Powers and roots of numbers of the size of the start, forth and back, and the gradient's own rounding.
        apart = rounding(8, (np.abs(start).max() + 1) ** (p - 1)) + 0.2 * of_attention(problem, start)[1]
        np.testing.assert_allclose(fallen, -0.2 * PromptObjective(problem).gradient(start), rtol=0, atol=apart)


def test_polyaks_steps_come_to_one_over_the_margin() -> None:
    """Where the weights that are left lie on the neighbours, minus the gradient is `margin excess` along p."""
    problem = figure1b()
    path = evolve(problem, Polyak(), steps=200, keep=("point",))
    lengths = np.linalg.norm(np.diff(path["point"], axis=0), axis=1)
    solution = max_margin(problem, path.selected)
    # The path is beside its ray by less than it is long, so that lengths differ by the square of that angle.
    tilt = float(angle(problem.keys, path.final, solution.vector))
    np.testing.assert_allclose(lengths[-1], 1 / solution.margin, rtol=tilt**2)
    infimum = float(np.logaddexp(0, -problem.scores.max(axis=1)).mean())
    known = evolve(problem, Polyak(infimum=infimum), steps=5)
    # The same, while the excess over the infimum has digits: five steps lose what the least of them loses.
    lost = rounding(5 * 8, infimum) / np.exp(PromptObjective(problem).log_excess(path["point"][5]))
    np.testing.assert_allclose(known.final, path["point"][5], rtol=0, atol=lost * np.linalg.norm(known.final))


def test_schedules() -> None:
    problem = problem_of(0)
    sizes = [0.2, 0.1, 0.3]
    path = evolve(problem, NormalizedGradientDescent(lambda t: sizes[t]), steps=3, keep=("point",))
    # Lengths of ten numbers, differences of points up to 0.8, six times the shortest step.
    of_lengths = rounding(10 + 2 * 6)
    np.testing.assert_allclose(np.linalg.norm(np.diff(path["point"], axis=0), axis=1), sizes, rtol=of_lengths)
    path = evolve(problem, method_named("ngd", 0.4, decay=1.0), steps=3, keep=("point",))
    lengths = np.linalg.norm(np.diff(path["point"], axis=0), axis=1)
    np.testing.assert_allclose(lengths, [0.4, 0.2, 0.4 / 3], rtol=of_lengths)


@pytest.mark.parametrize("make", [PromptObjective, JointObjective])
def test_a_minibatch_is_the_risk_of_its_inputs(make) -> None:
    """Against the problem made of those inputs alone."""
    rng = np.random.default_rng(5)
    tokens, labels, head = rng.standard_normal((5, 3, 4)), np.array([1, -1, 1, -1, 1]), rng.standard_normal(4)
    whole = make(TokenProblem.of(tokens, labels, head=head))
    part = make(TokenProblem.of(tokens[[3, 1]], labels[[3, 1]], head=head))
    theta, seen = rng.standard_normal((2, whole.dimension)), on_inputs(whole, np.array([3, 1]), 5)
    of_value, of_gradient = (of_attention if make is PromptObjective else of_joint)(part.problem, theta)
    np.testing.assert_allclose(seen.gradient(theta), part.gradient(theta), rtol=0, atol=of_gradient)
    np.testing.assert_allclose(seen.value(theta), part.value(theta), rtol=0, atol=of_value)
    if make is PromptObjective:
        # Positive terms, n T of them, each as a share as exact as its weight.
        of_excess = 2 * of_logits(part.problem, theta) + rounding(2 * 3 + 20)
        np.testing.assert_allclose(seen.excess(theta)[0], part.excess(theta)[0], rtol=0, atol=of_excess)  # logarithms


def test_minibatches_are_drawn_by_rng_and_all_inputs_are_the_whole() -> None:
    problem, method = problem_of(0), NormalizedGradientDescent(0.1)
    one, other = (evolve(problem, method, steps=30, batch=2, rng=np.random.default_rng(7)).final for _ in range(2))
    assert (one == other).all()
    full = evolve(problem, method, steps=30, batch=4, rng=np.random.default_rng(0)).final
    whole = evolve(problem, method, steps=30)
    np.testing.assert_allclose(full, whole.final, rtol=0, atol=of_path(whole.objective, method, 30))
    assert np.abs(one - full).max() > 0.1
    with pytest.raises(ValueError, match="minibatches are drawn: give rng"):
        evolve(problem, method, steps=1, batch=2)
    with pytest.raises(ValueError, match="from 1 to the number of inputs 4, got 5"):
        evolve(problem, method, steps=1, batch=5, rng=np.random.default_rng(0))


@pytest.mark.parametrize("method", [Adam(0.1), SteepestDescent("linf", Schedule(0.3), 0.9), Momentum(0.3)])
@pytest.mark.parametrize("objective", [PromptObjective(problem_of(0)), JointObjective(figure3a())])
def test_a_run_goes_on_as_if_nothing_had_been(method: AbstractMethod, objective) -> None:
    whole = evolve(objective, method, steps=50)
    half = evolve(objective, method, steps=20)
    rest = evolve(objective, method, steps=30, start=half.final, memory=half.memory)
    assert (rest.final == whole.final).all()
    assert rest.memory.t == 50


def test_a_function_of_the_point_is_kept_under_its_name() -> None:
    def cosine(p):
        return p[..., 1] / np.linalg.norm(p, axis=-1)

    path = evolve(figure1b(), "ngd", steps=4, keep=("point", cosine), start=np.ones((2, 3)))
    np.testing.assert_array_equal(path["cosine"], cosine(path["point"]))
    assert path[cosine] is path["cosine"]
    with pytest.raises(ValueError, match="two kept quantities are called 'cosine'"):
        evolve(figure1b(), "ngd", steps=1, keep=(cosine, cosine))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: evolve(np.ones(3), "ngd", steps=1), TypeError, "takes an objective.*or a problem; got an object of"),
        (lambda: evolve(figure1b(), 3, steps=1), TypeError, r"or a name \(ngd, gd, .*got an object of type int"),
        (lambda: evolve(figure1b(), GradientDescent, steps=1), TypeError, "got the class GradientDescent"),
        (lambda: evolve(figure1b(), "nwton", steps=1), ValueError, "there is no 'nwton' among the methods"),
        (lambda: evolve(figure1b(), "mirror", steps=1), ValueError, "mirror:P with a number, such as mirror:1.5"),
        (lambda: evolve(figure1b(), "mirror:1", steps=1), ValueError, "must be above 1 and finite"),
        (lambda: evolve(figure1b(), "steepest", steps=1), ValueError, "name it as in steepest:lp:1.5"),
        (lambda: evolve(figure1b(), "spectral", steps=1), ValueError, "is one of matrices.*train W"),
        (lambda: evolve(figure1b().as_gram(), "sign", steps=1), ValueError, "a Gram matrix has none"),
        (lambda: evolve(JointObjective(figure3a()), "polyak", steps=1), ValueError, "train the prompt alone"),
        (lambda: evolve(figure1b(), NormalizedGradientDescent(lambda t: -1.0), steps=1), ValueError, "positive number"),
        (lambda: Adam(beta2=1.0), ValueError, "beta2 must be from 0 to below 1"),
        (lambda: Adam(eps=-1.0), ValueError, "eps must be zero or a positive number"),
        (lambda: method_named("ngd", decay=0.5), ValueError, "give the step as well"),
        (lambda: evolve_many([figure1b().as_gram()], Adam(), steps=1), ValueError, "give problems in coordinates"),
        (lambda: evolve_many([problem_of(0), problem_of(0, d=9)], Adam(), steps=1), ValueError, "all of one dimension"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()
