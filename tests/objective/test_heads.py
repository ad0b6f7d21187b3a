"""Nonlinear heads: gradient and Jacobian against autograd, and the flow to the margin of what it selects."""

import numpy as np
import pytest
import torch
from tests.oracles.rounding import of_attention, of_difference, of_logits, rounding

from tokenmargin.dynamics import flow, regularisation_path
from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.local_scores import HeadObjective, NonlinearHead, optimal_sets
from tokenmargin.problem.instances import figure1b, figure1c, random_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle

MIX = np.random.default_rng(7).standard_normal((5, 5)) / 2


def tanh_head(*, with_hessian: bool) -> NonlinearHead:
    def second(x):
        t = np.tanh(x @ MIX)
        return np.einsum("...k,dk,ek->...de", -2 * t * (1 - t**2), MIX, MIX)

    return NonlinearHead(
        lambda x: np.tanh(x @ MIX).sum(-1),
        lambda x: (1 - np.tanh(x @ MIX) ** 2) @ MIX.T,
        second if with_hessian else None,
    )


@pytest.mark.parametrize("with_hessian", [True, False])
def test_gradient_and_jacobian_agree_with_autograd(with_hessian) -> None:
    problem = random_problem(3, 4, 5, rng=np.random.default_rng(0))
    objective = HeadObjective(problem, head=tanh_head(with_hessian=with_hessian))
    keys, labels = torch.tensor(problem.keys.tokens), torch.from_numpy(problem.labels.copy())
    mix = torch.from_numpy(MIX)

    def risk(p):
        attended = torch.einsum("nt,ntd->nd", torch.softmax(keys @ p, dim=-1), keys)
        return torch.nn.functional.softplus(-labels * torch.tanh(attended @ mix).sum(-1)).mean()

    theta = np.random.default_rng(1).standard_normal(5)
    point = torch.from_numpy(theta).requires_grad_()
    (gradient,) = torch.autograd.grad(risk(point), point)
    # To first order the head is that of scores; its own sums, of five products and five tanh, are as long as theirs.
    around = objective.around(objective.weights(theta))
    of_value, of_gradient = (4 * bound for bound in of_attention(around, theta))
    np.testing.assert_allclose(objective.gradient(theta), gradient.numpy(), rtol=0, atol=of_gradient)
    np.testing.assert_allclose(objective.value(theta), risk(point).item(), rtol=0, atol=of_value)
    linear = objective.linearise(theta)
    hessian = torch.autograd.functional.hessian(risk, torch.from_numpy(theta)).numpy()
    # A derivative more has the spread of the keys as a factor more. Without a Hessian the head's gradient is
    # differenced: it is no longer than the columns of MIX, and tanh has fourth derivatives up to 4.1.
    spread = 2 * float(np.linalg.norm(problem.keys.vectors, axis=1).max())
    columns = np.linalg.norm(MIX, axis=0)
    by_differences = of_difference(np.finfo(float).eps ** (1 / 3), columns.sum(), 4.1 * (columns**4).sum()) * spread**2
    by_differences *= not with_hessian
    jacobian = linear.jacobian * np.exp(linear.descent.log_norm)
    np.testing.assert_allclose(jacobian, -hessian, rtol=0, atol=spread * of_gradient + by_differences)


def test_a_linear_head_is_the_prompt_objective() -> None:
    problem = figure1c()
    v = problem.head
    head = NonlinearHead(lambda x: x @ v, lambda x: np.broadcast_to(v, x.shape), lambda x: np.zeros((*x.shape, 3)))
    plain, nonlinear = PromptObjective(problem), HeadObjective(problem, head=head)
    for p in (np.array([0.3, -1.0, 0.0]), np.array([300.0, -50.0, 0.0])):
        # As shares of the gradient: weights to twice their logits, and sums of n T terms; scores are computed anew.
        apart = 4 * (of_logits(problem, p) + rounding(3 * 3 + 10))
        spread = 2 * float(np.linalg.norm(problem.keys.vectors, axis=1).max())
        np.testing.assert_allclose(nonlinear.descent(p).direction, plain.descent(p).direction, rtol=0, atol=apart)
        ours, theirs = nonlinear.linearise(p).jacobian, plain.linearise(p).jacobian
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=apart * spread**2)
        assert nonlinear.log_excess(p) == pytest.approx(plain.log_excess(p), rel=rounding(2), abs=apart)
    batch = np.random.default_rng(0).standard_normal((4, 3))
    apart = 4 * (of_logits(problem, batch) + rounding(3 * 3 + 10))
    np.testing.assert_allclose(nonlinear.descent(batch).direction, plain.descent(batch).direction, rtol=0, atol=apart)


@pytest.mark.usefixtures("unchecked_shapes")
def test_flow_and_path_reach_the_margin_of_the_optimal_sets() -> None:
    """A monotone head keeps the order of the scores, so its limits are those of the linear one (Theorem 8)."""
    problem = figure1b()
    head = NonlinearHead(lambda x: np.sinh(x[..., 2]), lambda x: np.cosh(x[..., 2:]) * [0.0, 0.0, 1.0])
    objective = HeadObjective(problem, head=head)
    best = optimal_sets(problem, head)
    np.testing.assert_array_equal(best, [[True, False, False]])
    direction = max_margin(problem, best.argmax(axis=1)).vector
    path = flow(objective, until_norm=1e6)
    assert float(angle(problem.keys, path.prompt, direction)) < 10 / 1e6  # beside its ray by a constant, below 10 here
    ridge = regularisation_path(objective, [1.0, 1e4], rng=np.random.default_rng(0), starts=3)
    # Where one constraint is active the pulls of all others fall like exp(-R): to the residual of the path.
    assert float(angle(problem.keys, ridge.points[-1], direction)) < 1e3 * ridge.residuals.max()


def test_optimal_sets_hold_ties_together() -> None:
    problem = figure1b()
    even = NonlinearHead(lambda x: -((x[..., 2] - 0.95) ** 2), lambda x: x)
    np.testing.assert_array_equal(optimal_sets(problem, even), [[True, True, False]])


def test_values_must_be_coordinates() -> None:
    with pytest.raises(TypeError, match="values in coordinates"):
        HeadObjective(figure1c().as_gram(), head=tanh_head(with_hessian=True))


def test_a_gradient_of_another_function_is_refused() -> None:
    problem = random_problem(3, 4, 5, rng=0)
    told = tanh_head(with_hessian=False)
    for wrong, said in (
        (lambda x: -told.gradient(x), "is not that of the function"),
        (lambda x: 1.1 * told.gradient(x), "is not that of the function"),
        (lambda x: told.gradient(x)[..., ::-1], "is not that of the function"),
        (lambda x: told.gradient(x)[..., 0], r"must give shapes \(3,\) and \(3, 5\) .*, got \(3,\) and \(3,\)"),
    ):
        with pytest.raises(ValueError, match=said):
            HeadObjective(problem, head=NonlinearHead(told.function, wrong))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kinks_and_single_precision_are_no_wrong_gradients(dtype) -> None:
    keys = np.random.default_rng(3).integers(-2, 3, (20, 4, 3))  # integers meet kinks
    problem = TokenProblem.of(keys, [1] * 20, head=[1, 0, 0])
    mix = np.array([[1, -1, 0], [0, 2, -1]], dtype=dtype)
    relu = NonlinearHead(
        lambda x: np.maximum(x.astype(dtype) @ mix.T, 0).sum(-1),
        lambda x: ((x.astype(dtype) @ mix.T > 0) @ mix).astype(dtype),
    )
    assert HeadObjective(problem, head=relu).problem is problem
    wave = NonlinearHead(lambda x: np.sin(1e5 * x[..., 0]), lambda x: 1e5 * np.cos(1e5 * x) * [1, 0, 0])
    assert HeadObjective(problem, head=wave).problem is problem
