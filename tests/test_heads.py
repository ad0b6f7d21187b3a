"""Nonlinear heads: gradient and Jacobian against autograd, and the flow to the margin of what it selects."""

import numpy as np
import pytest
import torch

from tokenmargin.dynamics import flow, regularisation_path
from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.nonlinear_heads import HeadObjective, NonlinearHead, optimal_sets
from tokenmargin.problem.instances import figure1b, figure1c, random_problem
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
    keys, labels = torch.from_numpy(problem.keys.tokens), torch.from_numpy(problem.labels.copy())
    mix = torch.from_numpy(MIX)

    def risk(p):
        attended = torch.einsum("nt,ntd->nd", torch.softmax(keys @ p, dim=-1), keys)
        return torch.nn.functional.softplus(-labels * torch.tanh(attended @ mix).sum(-1)).mean()

    theta = np.random.default_rng(1).standard_normal(5)
    point = torch.from_numpy(theta).requires_grad_()
    (gradient,) = torch.autograd.grad(risk(point), point)
    np.testing.assert_allclose(objective.gradient(theta), gradient.numpy(), atol=1e-14)
    np.testing.assert_allclose(objective.value(theta), risk(point).item(), rtol=1e-14)
    linear = objective.linearise(theta)
    hessian = torch.autograd.functional.hessian(risk, torch.from_numpy(theta)).numpy()
    # The Hessian of the head by differences is right to about ten digits.
    np.testing.assert_allclose(
        linear.jacobian * np.exp(linear.descent.log_norm), -hessian, atol=1e-13 if with_hessian else 1e-9
    )


def test_a_linear_head_is_the_prompt_objective() -> None:
    problem = figure1c()
    v = problem.head
    head = NonlinearHead(lambda x: x @ v, lambda x: np.broadcast_to(v, x.shape), lambda x: np.zeros((*x.shape, 3)))
    plain, nonlinear = PromptObjective(problem), HeadObjective(problem, head=head)
    for p in (np.array([0.3, -1.0, 0.0]), np.array([300.0, -50.0, 0.0])):
        np.testing.assert_allclose(nonlinear.descent(p).direction, plain.descent(p).direction, atol=1e-12)
        np.testing.assert_allclose(nonlinear.linearise(p).jacobian, plain.linearise(p).jacobian, atol=1e-10)
        assert nonlinear.log_excess(p) == pytest.approx(plain.log_excess(p), rel=1e-12)
    batch = np.random.default_rng(0).standard_normal((4, 3))
    np.testing.assert_allclose(nonlinear.descent(batch).direction, plain.descent(batch).direction, atol=1e-12)


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
    assert float(angle(problem.keys, path.prompt, direction)) < 1e-5
    ridge = regularisation_path(objective, [1.0, 1e4], rng=np.random.default_rng(0), starts=3)
    assert float(angle(problem.keys, ridge.points[-1], direction)) < 1e-6


def test_optimal_sets_hold_ties_together() -> None:
    problem = figure1b()
    even = NonlinearHead(lambda x: -((x[..., 2] - 0.95) ** 2), lambda x: x)
    np.testing.assert_array_equal(optimal_sets(problem, even), [[True, True, False]])


def test_values_must_be_coordinates() -> None:
    problem = figure1c().as_gram()
    objective = HeadObjective(problem, head=tanh_head(with_hessian=True))
    with pytest.raises(TypeError, match="values in coordinates"):
        objective.descent(objective.start())
