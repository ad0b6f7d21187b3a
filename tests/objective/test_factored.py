"""K and Q, and several heads: gradients against automatic differentiation, flows against what they conserve."""

import numpy as np
import pytest
from tests.oracles.certified import assert_same_vector, margins_apart
from tests.oracles.rounding import of_flow, rounding

from tokenmargin.dynamics import NormalizedGradientDescent, evolve, flow
from tokenmargin.limits import limit_of
from tokenmargin.limits.by_method import margin_share
from tokenmargin.margin import GAP, limit_direction, max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.factored import FactoredObjective, MultiHeadObjective, side_by_side
from tokenmargin.objective.losses import ExponentialLoss
from tokenmargin.objective.products import DiagonalObjective
from tokenmargin.problem.attention_problems import cross_attention, self_attention
from tokenmargin.problem.instances import figure1a, figure1b
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle

torch = pytest.importorskip("torch", reason="torch is not installed; it is in the extra train")
pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def drawn(seed, n=3, T=4, d=3, q=4, labels=None):
    rng = np.random.default_rng(seed)
    labels = rng.choice([-1, 1], n) if labels is None else labels
    return cross_attention(
        rng.standard_normal((n, T, d)), rng.standard_normal((n, q)), labels, head=rng.standard_normal(d)
    )


def every_position():
    tokens = np.random.default_rng(8).standard_normal((3, 4, 3))
    return self_attention(tokens, [1, -1, 1], position=None, causal=True, head=np.ones(3))


FACTORED = {
    "K and Q": lambda: FactoredObjective(drawn(0)),
    "rank 1": lambda: FactoredObjective(drawn(1), ExponentialLoss(), rank=1),
    "adapted": lambda: FactoredObjective(drawn(2), rank=2, base=np.random.default_rng(9).standard_normal((4, 3))),
    "one query": lambda: FactoredObjective(figure1b().with_matrix(np.array([1.0, -2.0])), rank=2),
    "d = 1": lambda: FactoredObjective(drawn(3, n=1, T=2, d=1, q=1)),
    "every position": lambda: FactoredObjective(every_position(), rank=5),
    "diagonal": lambda: DiagonalObjective.of(every_position()),
    "diagonal, of p": lambda: DiagonalObjective.of(figure1b(), ExponentialLoss()),
    "diagonal, d = 1": lambda: DiagonalObjective.of(drawn(3, n=1, T=2, d=1, q=1)),
}
HEADS = {
    "two heads": lambda: MultiHeadObjective.of([figure1a(), figure1b()]),
    "heads in W": lambda: MultiHeadObjective.of(
        [drawn(4, labels=[1, -1, 1]), drawn(5, T=6, d=2, labels=[1, -1, 1]), every_position_of_last()],
        ExponentialLoss(),
    ),
}


def every_position_of_last():
    return self_attention(np.random.default_rng(7).standard_normal((3, 5, 2)), [1, -1, 1], head=[1.0, 2.0])


def torch_loss(objective, outputs):
    exponential = isinstance(objective.loss, ExponentialLoss)
    return (torch.exp(-outputs) if exponential else torch.nn.functional.softplus(-outputs)).mean()


def torch_output(problem, W):
    """`Y_i sum_t softmax(z_i' W k_it) <v, x_it>`, of the keys and queries themselves where W is a matrix."""
    geometry, mask = problem.keys, torch.tensor(problem.mask)
    if W.ndim == 2:
        logits = torch.einsum("nq,qd,ntd->nt", torch.tensor(geometry.queries), W, torch.tensor(geometry.keys.tokens))
    else:
        logits = torch.tensor(geometry.tokens) @ W
    weights = torch.softmax(logits.masked_fill(~mask, -torch.inf), dim=1)
    return (weights * torch.tensor(problem.scores)).sum(dim=1)


def torch_risk(objective, point):
    if isinstance(objective, DiagonalObjective):
        d = len(point) // 2
        outputs = torch_output(objective.problem, point[:d] * point[d:])
    elif isinstance(objective, FactoredObjective):
        (q, d), r = objective.shape, objective.rank
        key, query = point[: d * r].reshape(d, r), point[d * r :].reshape(q, r)
        base = 0 if objective.base is None else torch.tensor(objective.base)
        outputs = torch_output(objective.problem, base + query @ key.T)
    else:
        ends = np.cumsum([0, *(head.keys.dimension for head in objective.heads)])
        outputs = sum(
            torch_output(
                head, point[a:b] if head.keys.matrix_shape is None else point[a:b].reshape(head.keys.matrix_shape)
            )
            for head, a, b in zip(objective.heads, ends, ends[1:], strict=False)
        )
    return torch_loss(objective, outputs)


def by_torch(objective, theta):
    """Risk, gradient and Hessian by automatic differentiation of the formula."""
    point = torch.tensor(theta, requires_grad=True)
    risk = torch_risk(objective, point)
    (gradient,) = torch.autograd.grad(risk, point)
    hessian = torch.autograd.functional.hessian(lambda x: torch_risk(objective, x), point.detach())
    return float(risk.detach()), gradient.numpy(), hessian.numpy()


@pytest.mark.parametrize("name", [*FACTORED, *HEADS])
def test_gradient_and_jacobian_are_those_of_automatic_differentiation(name):
    objective = (FACTORED | HEADS)[name]()
    theta = np.random.default_rng(0).standard_normal(objective.dimension)
    risk, gradient, hessian = by_torch(objective, theta)
    # Sums of some hundreds of products in all, of numbers of size one.
    assert objective.value(theta) == pytest.approx(risk, rel=rounding(200), abs=0)
    np.testing.assert_allclose(
        objective.gradient(theta), gradient, rtol=0, atol=rounding(200, max(1, np.abs(gradient).max()))
    )
    linear = objective.linearise(theta)
    jacobian = objective.expand(np.exp(linear.descent.log_norm))[:, None] * linear.jacobian
    # As many sums again, of squares of the size of the largest.
    np.testing.assert_allclose(jacobian, -hessian, rtol=0, atol=rounding(1000, max(1, np.abs(hessian).max())))
    np.testing.assert_allclose(linear.descent.direction, objective.descent(theta).direction, rtol=0, atol=rounding(200))


@pytest.mark.parametrize("name", [*FACTORED, *HEADS])
def test_many_points_at_once_are_the_points_one_by_one(name):
    objective = (FACTORED | HEADS)[name]()
    points = np.random.default_rng(1).standard_normal((2, 3, objective.dimension))
    together = objective.descent(points)
    for place in np.ndindex(2, 3):
        one = objective.descent(points[place])
        # The same sums in another order: some tens of terms of the size of their largest.
        np.testing.assert_allclose(together.direction[place], one.direction, rtol=0, atol=rounding(50))
        np.testing.assert_allclose(together.log_norm[place], one.log_norm, rtol=0, atol=rounding(200))


def test_the_direction_outlives_the_gradient():
    """At |K| = 1e4 the gradient is exp(-1e7); its direction is that of the max-margin gap, known in closed form."""
    objective = FactoredObjective(cross_attention([[[1.0, 0.0], [0.0, 0.0]]], [1.0, 0.0], [1], scores=[[1.0, 0.0]]))
    theta = objective.point(np.diag([1e4, 1.0]), np.diag([1e4, 2.0]))
    direction, log_norm = objective.descent(theta)
    key, query = objective.factors(direction)
    np.testing.assert_allclose(key, [[1.0, 0.0], [0.0, 0.0]], rtol=0, atol=rounding(8))
    np.testing.assert_allclose(query, [[1.0, 0.0], [0.0, 0.0]], rtol=0, atol=rounding(8))
    # Minus the loss's slope, sigmoid(-1), times s (1 - s) |z| |k| |Q|, with s (1 - s) = exp(-1e8) there.
    np.testing.assert_allclose(log_norm, -1e8 - np.log1p(np.e) + np.log(1e4), rtol=0, atol=rounding(8, 1e8))


@pytest.mark.parametrize("name", ["adapted", "diagonal"])
def test_flow_conserves_the_imbalance(name):
    """Q'Q - K'K (or q^2 - k^2), not zero at the start: products of two factors, each known to the solver's error."""
    objective = FACTORED[name]()
    start = objective.random_start(0.5, rng=np.random.default_rng(2))
    path = flow(objective, start=start, until_norm=10.0)
    assert path.stop in ("norm", "stationary")
    arcs = np.linspace(0, path.arcs[-1], 7)
    for theta in path(arcs):
        drift = np.abs(objective.imbalance(theta) - objective.imbalance(start)).max()
        assert drift <= 2 * of_flow(path) * (theta @ theta)


def test_flow_of_a_rank_one_problem_in_closed_form():
    """One input of two tokens: from the aligned start K and Q stay along k_0 - k_1 and z, and equal in length."""
    z, tokens = np.array([0.6, 0.8]), np.array([[[1.0, 2.0, 2.0], [0.0, 0.0, 0.0]]])
    objective = FactoredObjective(cross_attention(tokens, z, [1], scores=[[1.0, 0.0]]), rank=2)
    path = flow(objective, until_norm=1e4)
    limit = np.outer(z, tokens[0, 0] / 3)
    # W is K' Q: twice the error of a flow, of which each step may err by 1e-10.
    np.testing.assert_allclose(objective.matrix(path.final), 0.5e8 * limit, rtol=0, atol=0.5e8 * 2 * of_flow(path))


def test_diagonal_factors_are_full_ones_kept_diagonal():
    """The logits of diag(q * k) on W's own problem; and where the two factors start equal, signs stay."""
    problem = every_position()
    objective = DiagonalObjective.of(problem)
    theta = np.random.default_rng(3).standard_normal(6)
    W = objective.matrix(theta)
    np.testing.assert_array_equal(W, np.diag(theta[:3] * theta[3:]))
    ours, whole = objective.problem.keys.logits(objective.prompt(theta)), problem.keys.logits(W.ravel())
    # Sums of three products of numbers of size one.
    np.testing.assert_allclose(ours[problem.mask], whole[problem.mask], rtol=0, atol=1e-14)
    stuck = flow(objective, start=np.full(6, 0.1), until_norm=20.0)
    assert (objective.prompt(stuck.final) >= 0).all()
    with pytest.raises(ValueError, match="only a square W has diagonal factors"):
        DiagonalObjective.of(drawn(0))
    with pytest.raises(ValueError, match=r"DiagonalObjective.of\(problem\)"):
        DiagonalObjective(problem)


def test_flow_of_diagonal_factors_in_closed_form():
    """One input, tokens 1 and 0 on a line: k^2 - q^2 stays, so that a norm says where on the hyperbola the end is."""
    objective = DiagonalObjective.of(TokenProblem.of([[[1.0], [0.0]]], [1], scores=[[1.0, 0.0]]))
    path = flow(objective, start=objective.small_start(0.5), until_norm=1e3)
    k, q = path.final
    # k^2 + q^2 = 1e6 and k^2 - q^2 = 0.25; the solver's relative tolerance is 1e-10.
    np.testing.assert_allclose([k, q], np.sqrt([(1e6 + 0.25) / 2, (1e6 - 0.25) / 2]), rtol=1e-8)


@pytest.mark.parametrize("seed", range(2))
def test_diagonal_factors_go_to_the_l1_margin(seed):
    """From a small start, beside the certified l1 direction: within 0.02 at |(k, q)| = 1e4, and no farther than it."""
    rng = np.random.default_rng([9, seed])
    problem = self_attention(rng.standard_normal((4, 6, 10)), [1, -1, 1, -1], head=rng.standard_normal(10))
    objective = DiagonalObjective.of(problem)
    path = flow(objective, until_norm=1e4)
    p, shares = objective.prompt(path.final), {}
    for name in ("l1", "l2"):
        named = limit_direction(objective.problem, path.selected, norm=name)
        assert named.solution.is_optimal
        shares[name] = margin_share(objective.problem, p, named)
    assert 0.98 <= shares["l1"] <= 1 + GAP
    assert shares["l2"] < 0.98
    named = limit_of(objective, method=NormalizedGradientDescent(0.02))
    assert (named.outcome, named.norm.name) == ("direction", "l1")


def test_flow_in_the_span_is_the_flow():
    """Nine dimensions, two inputs of three tokens: the columns of K move in six, those of Q in two."""
    rng = np.random.default_rng(5)
    tokens, queries, turn = (
        rng.standard_normal((2, 3, 4)),
        rng.standard_normal((2, 2)),
        np.linalg.qr(rng.standard_normal((9, 9)))[0],
    )
    small = cross_attention(tokens, queries, [1, 1], scores=[[1.0, 0.3, 0.0], [0.2, 1.0, 0.1]])
    large = cross_attention(tokens @ turn[:4], queries @ turn[:2], [1, 1], scores=small.scores)
    paths = []
    for problem, side in ((small, None), (large, turn)):
        objective = FactoredObjective(problem, rank=2)
        key, query = np.ones((4, 2)) * [0.3, -0.2], np.array([[0.5, 0.1], [0.2, 0.4]])
        start = (
            objective.point(key, query)
            if side is None
            else objective.point(side[:4].T @ key + side[8:].T, side[:2].T @ query)
        )
        paths.append((objective, flow(objective, start=start, until_norm=8.0)))
    (one, first), (other, second) = paths
    arc = 0.9 * min(first.arcs[-1], second.arcs[-1])
    W, V = one.matrix(first(arc)), other.matrix(second(arc))
    # What K has outside the span of the keys stays: a column of ones along turn[8], seen by no token.
    np.testing.assert_allclose(turn[:2] @ V @ turn[:4].T, W, rtol=0, atol=1e-7 * np.abs(W).max())
    key, _ = other.factors(second.final)
    # Turned and turned back, in nine dimensions.
    np.testing.assert_allclose(turn[8] @ key, [1.0, 1.0], rtol=rounding(4 * 9))


def test_descent_of_the_factors_goes_to_fewer_dimensions_than_descent_of_the_matrix():
    problem = drawn(0, n=4, T=5, d=6, q=6)
    objective = FactoredObjective(problem)
    run = evolve(objective, NormalizedGradientDescent(0.1), steps=1500, start=objective.aligned_start(0.1))
    whole = evolve(PromptObjective(problem), NormalizedGradientDescent(0.1), steps=1500)

    def spread(W):
        return np.linalg.norm(W, "nuc") / np.linalg.norm(W)

    assert spread(objective.matrix(run.final)) < spread(problem.as_matrix(whole.final))
    assert run.saturation > 0.999


def test_heads_are_independent_max_margins():
    """The shortest vector for all heads is the shortest for each; each ends at a certified locally optimal one."""
    labels = [1, -1, 1]
    heads = [drawn(10, d=5, labels=labels), drawn(11, T=3, d=4, labels=labels)]
    objective = MultiHeadObjective.of(heads)
    path = flow(objective, until_norm=1e6)
    assert path.stop == "norm"
    selected = np.split(path.selected, 2)
    whole = max_margin(objective.problem, path.selected)
    parts = [max_margin(head, chosen) for head, chosen in zip(heads, selected, strict=True)]
    assert_same_vector(whole.vector, np.concatenate([part.vector for part in parts]), whole, *parts)
    for head, chosen, p in zip(heads, selected, objective.parts(path.final), strict=True):
        direction = limit_direction(head, chosen)
        assert direction.kind in ("GMM", "LMM")
        assert angle(head.keys, p, direction.solution.vector) <= 1e-4  # O(1) over a norm of 1e6 / 2, times a constant


def test_side_by_side_in_both_geometries():
    one, other = figure1a(), figure1b()
    plain, gram = side_by_side([one, other]), side_by_side([one.as_gram(), other.as_gram()])
    a, b = max_margin(plain, [0, 1]), max_margin(gram, [0, 1])
    assert a.margin == pytest.approx(b.margin, rel=margins_apart(a, b), abs=0)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: FactoredObjective(figure1a()), TypeError, "is a vector, not a matrix"),
        (lambda: FactoredObjective(drawn(0), rank=-1), ValueError, "rank must be at least 1"),
        (
            lambda: FactoredObjective(drawn(0), base=np.ones((3, 4))),
            ValueError,
            r"base must be finite numbers of shape \(4, 3\)",
        ),
        (lambda: flow(FactoredObjective(drawn(0)), until_norm=1e8), ValueError, r"0\.\.3\.16228e\+06"),
        (lambda: MultiHeadObjective.of([]), ValueError, "non-empty"),
        (
            lambda: MultiHeadObjective.of([drawn(0, labels=[1, 1, 1]), drawn(0, labels=[1, 1, -1])]),
            ValueError,
            "labels must agree",
        ),
        (lambda: side_by_side([figure1a(), figure1a().as_gram()]), TypeError, "all be in coordinates or all in Gram"),
    ],
)
def test_what_is_wrong_is_said(make, kind, message):
    with pytest.raises(kind, match=message):
        make()
