"""The Jacobian of the descent field, against automatic differentiation and against many digits."""

import mpmath
import numpy as np
import pytest
import torch
from tests.oracles.rounding import of_attention, of_joint, of_logits, rounding

from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.objective.losses import CorrelationLoss, ExponentialLoss, LogisticLoss
from tokenmargin.problem.instances import figure1c, random_problem, shared_vocabulary_problem
from tokenmargin.problem.token_problem import TokenProblem

TORCH_LOSSES = (
    (LogisticLoss(), torch.nn.functional.softplus),
    (ExponentialLoss(), torch.exp),
    (CorrelationLoss(), lambda u: u),
)


def masked_problem():
    rng = np.random.default_rng(5)
    mask = np.array([[True, True, True, False], [True, True, True, True], [True, True, False, False]])
    return TokenProblem.of(rng.standard_normal((3, 4, 5)), [1, -1, 1], head=rng.standard_normal(5), mask=mask)


PROBLEMS = {
    "random": lambda: random_problem(3, 4, 5, rng=np.random.default_rng(0)),
    "shared": lambda: shared_vocabulary_problem(4, 3, 5, vocabulary=6, rng=np.random.default_rng(1)),
    "planar": figure1c,
    "masked": masked_problem,
}


def torch_risk(problem, loss, *, joint):
    keys, values = (torch.tensor(g.tokens) for g in (problem.keys, problem.values))
    labels, mask = torch.from_numpy(problem.labels.copy()), torch.from_numpy(problem.mask.copy())

    def risk(theta):
        head = theta[: values.shape[-1]] if joint else torch.from_numpy(problem.head.copy())
        p = theta[values.shape[-1] :] if joint else theta
        weights = torch.softmax(torch.where(mask, keys @ p, -torch.inf), dim=-1)
        return loss(-labels * (weights * (values @ head)).sum(-1)).mean()

    return risk


@pytest.mark.parametrize("joint", [False, True], ids=["prompt", "joint"])
@pytest.mark.parametrize(("loss", "torch_loss"), TORCH_LOSSES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("name", PROBLEMS)
def test_jacobian_agrees_with_autograd(name, loss, torch_loss, joint):
    problem = PROBLEMS[name]()
    objective = (JointObjective if joint else PromptObjective)(problem, loss)
    theta = objective.start() + 2 * np.random.default_rng(2).standard_normal(objective.dimension)
    linear = objective.linearise(theta)
    hessian = torch.autograd.functional.hessian(
        torch_risk(problem, torch_loss, joint=joint), torch.from_numpy(theta)
    ).numpy()
    jacobian = linear.jacobian * objective.expand(np.exp(linear.descent.log_norm))[:, None]
    # A derivative more has the spread of the keys, or the length of a value, as a factor more.
    longest = max(2 * float(np.linalg.norm(g.vectors, axis=1).max()) for g in (problem.keys, problem.values))
    _, of_gradient = (of_joint if joint else of_attention)(problem, theta, loss)
    np.testing.assert_allclose(jacobian, -hessian, rtol=0, atol=2 * max(1.0, longest) * of_gradient)
    descent = objective.descent(theta)
    share = of_gradient / float(np.exp(descent.log_norm.min()))
    np.testing.assert_allclose(linear.descent.direction, descent.direction, rtol=0, atol=share)
    np.testing.assert_allclose(linear.descent.log_norm, descent.log_norm, rtol=0, atol=share)
    assert (linear.balance > 0).all()
    assert (linear.balance <= 1).all()


def mp_gradient(problem, p):
    """The textbook gradient in many digits."""
    total = [mpmath.mpf(0)] * problem.keys.dimension
    for tokens, scores in zip(problem.keys.tokens, problem.scores, strict=True):
        logits = [sum(mpmath.mpf(float(k)) * x for k, x in zip(token, p, strict=True)) for token in tokens]
        weights = [mpmath.exp(z) for z in logits]
        norm = sum(weights)
        weights = [w / norm for w in weights]
        f = sum(w * mpmath.mpf(float(g)) for w, g in zip(weights, scores, strict=True))
        slope = -1 / (1 + mpmath.exp(f)) / problem.n
        for token, w, g in zip(tokens, weights, scores, strict=True):
            a = slope * w * (mpmath.mpf(float(g)) - f)
            total = [s + a * mpmath.mpf(float(k)) for s, k in zip(total, token, strict=True)]
    return total


@pytest.mark.parametrize("norm", [30.0, 800.0])
def test_field_and_jacobian_where_the_gradient_underflows(norm):
    problem = random_problem(2, 3, 3, rng=np.random.default_rng(3))
    objective = PromptObjective(problem)
    rng = np.random.default_rng(4)
    p = norm * rng.standard_normal(3)
    linear = objective.linearise(p)
    with mpmath.workdps(200 + int(3 * norm)):  # the textbook form cancels as many digits as the gradient is small
        exact = [mpmath.mpf(float(x)) for x in p]
        gradient = mp_gradient(problem, exact)
        length = mpmath.sqrt(sum(g * g for g in gradient))
        direction = np.array([float(-g / length) for g in gradient])
        apart = 2 * of_logits(problem, p) + rounding(2 * 3 + 20)
        assert float(mpmath.log(length)) == pytest.approx(float(linear.descent.log_norm[0]), rel=rounding(2), abs=apart)
        h = mpmath.mpf(10) ** -40
        columns = []
        for j in range(3):
            ends = [[x + sign * h * (i == j) for i, x in enumerate(exact)] for sign in (1, -1)]
            plus, minus = (mp_gradient(problem, end) for end in ends)
            columns.append([float((b - a) / (2 * h) / length) for a, b in zip(plus, minus, strict=True)])
    # Logits are known to eps |p|, and relative weights with them; a Jacobian has two factors of keys.
    spread = 2 * float(np.linalg.norm(problem.keys.vectors, axis=1).max())
    np.testing.assert_allclose(linear.descent.direction, direction, rtol=0, atol=apart)
    np.testing.assert_allclose(linear.jacobian, np.array(columns).T, rtol=0, atol=apart * spread**2)


def test_gram_geometry_is_refused_with_a_remedy():
    objective = PromptObjective(figure1c().as_gram())
    with pytest.raises(TypeError, match="reduce a Gram geometry to its span"):
        objective.linearise(objective.start())


def test_log_excess_where_the_risk_rounds_to_its_infimum():
    problem = random_problem(2, 3, 3, rng=np.random.default_rng(0))
    objective = PromptObjective(problem)
    p = np.array([300.0, -200.0, 100.0])
    with mpmath.workdps(2000):
        risk = best = mpmath.mpf(0)
        for tokens, scores in zip(problem.keys.tokens, problem.scores, strict=True):
            weights = [
                mpmath.exp(sum(mpmath.mpf(float(k)) * float(x) for k, x in zip(t, p, strict=True))) for t in tokens
            ]
            f = sum(w * mpmath.mpf(float(g)) for w, g in zip(weights, scores, strict=True)) / sum(weights)
            risk += mpmath.log1p(mpmath.exp(-f)) / 2
            best += mpmath.log1p(mpmath.exp(-mpmath.mpf(float(scores.max())))) / 2
        expected = float(mpmath.log(risk - best))
    # As of weights: logits to six products each, and the nodes of the excess.
    apart = 2 * of_logits(problem, p) + rounding(4 * 10)
    assert objective.log_excess(p) == pytest.approx(expected, rel=rounding(2), abs=apart)
