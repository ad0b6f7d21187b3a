"""Many classes and real labels: autograd, multiprecision, the binary code, flow against certificates, messages."""

import mpmath
import numpy as np
import pytest
import torch
from tests.oracles.certified import SETTLED
from tests.oracles.rounding import of_flow, of_logits, rounding

from tokenmargin.dynamics import NormalizedGradientDescent, evolve, evolve_many, flow
from tokenmargin.dynamics.rest import STATIONARY
from tokenmargin.limits import limit_of
from tokenmargin.margin import atlas, limit_direction
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.objective.local_scores import ClassObjective, SquareObjective, prompt_objective
from tokenmargin.objective.losses import ExponentialLoss, LogisticLoss
from tokenmargin.problem.label_problems import ClassProblem, RegressionProblem
from tokenmargin.problem.problem_files import load_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, optimal_tokens


def drawn(seed: int, *, n: int = 4, T: int = 5, d: int = 6, k: int = 3, scale: float = 1.0):
    rng = np.random.default_rng(seed)
    keys, head = rng.standard_normal((n, T, d)) * scale, rng.standard_normal((d, k))
    mask = rng.random((n, T)) < 0.8
    mask[:, 0] = True
    classes = rng.permutation(np.arange(n) % k)
    return rng, keys, head, classes, mask


def class_risk(keys, head, classes, mask):
    tensors = torch.from_numpy(keys), torch.from_numpy(head), torch.from_numpy(classes), torch.from_numpy(mask)

    def risk(p):
        K, H, y, seen = tensors
        weights = torch.softmax((K @ p).masked_fill(~seen, -torch.inf), -1)
        return torch.nn.functional.cross_entropy(torch.einsum("nt,ntd->nd", weights, K) @ H, y)

    return risk


def square_risk(keys, head, targets, mask):
    K, H, y, seen = (torch.from_numpy(np.asarray(a)) for a in (keys, head, targets, mask))

    def risk(p):
        weights = torch.softmax((K @ p).masked_fill(~seen, -torch.inf), -1)
        return ((torch.einsum("nt,ntd->nd", weights, K) @ H - y) ** 2).mean()

    return risk


def agree_with_autograd(objective, risk, theta) -> None:
    point = torch.from_numpy(theta).requires_grad_()
    (gradient,) = torch.autograd.grad(risk(point), point)
    hessian = torch.autograd.functional.hessian(risk, torch.from_numpy(theta)).numpy()
    # Weights are right to twice their logits, sums of 6 products, and T = 5 roundings; what a class gets is a sum of
    # 5 x 6 products of weights, keys and head, and slopes are as steep as that where labels are numbers. Each
    # derivative has the spread of the keys as a factor more.
    problem = objective.problem
    weight = 2 * of_logits(problem, theta) + rounding(4 + 5 + 30)
    scores = np.abs(problem.class_logits if isinstance(problem, ClassProblem) else problem.scores).max()
    largest = max(1.0, 2 * float(scores)) ** 2 * 4
    spread = 2 * float(np.linalg.norm(problem.keys.vectors, axis=1).max())
    np.testing.assert_allclose(objective.value(theta), risk(point).item(), rtol=0, atol=weight * largest)
    np.testing.assert_allclose(objective.gradient(theta), gradient.numpy(), rtol=0, atol=weight * largest * spread)
    linear = objective.linearise(theta)
    jacobian = linear.jacobian * np.exp(linear.descent.log_norm)
    np.testing.assert_allclose(jacobian, -hessian, rtol=0, atol=weight * largest * spread**2)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("k", [2, 3, 4])
def test_many_classes_agree_with_autograd(seed: int, k: int) -> None:
    rng, keys, head, classes, mask = drawn(seed, k=k)
    objective = ClassObjective(ClassProblem.of(keys, classes, head=head, mask=mask))
    agree_with_autograd(objective, class_risk(keys, head, classes, mask), rng.standard_normal(6))


@pytest.mark.parametrize("seed", range(4))
def test_real_labels_agree_with_autograd(seed: int) -> None:
    rng, keys, head, _, mask = drawn(seed)
    targets = rng.standard_normal(4)
    objective = SquareObjective(RegressionProblem.of(keys, targets, head=head[:, 0], mask=mask))
    agree_with_autograd(objective, square_risk(keys, head[:, 0], targets, mask), rng.standard_normal(6))


@pytest.mark.parametrize("loss", [LogisticLoss(), ExponentialLoss()])
def test_two_classes_are_the_binary_code(loss) -> None:
    _, keys, head, classes, mask = drawn(7, k=2)
    binary = PromptObjective(TokenProblem.of(keys, 2 * classes - 1, head=head[:, 1] - head[:, 0], mask=mask), loss)
    several = ClassObjective(ClassProblem.of(keys, classes, head=head, mask=mask), loss)
    for scale in (0.0, 1.0, 30.0, 3000.0):
        p = np.random.default_rng(1).standard_normal(6) * scale
        # The head is formed as v_1 - v_0 on one side and as a difference of products on the other: scores are right to
        # six products of their size, and a gap of scores to that over the least of them.
        scores = binary.problem.scores
        gaps = np.abs(scores[:, :, None] - scores[:, None])[mask[:, :, None] & mask[:, None]]
        apart = 2 * of_logits(binary.problem, p) + rounding(60, 12 * float(np.abs(scores).max()) / gaps[gaps > 0].min())
        np.testing.assert_allclose(several.value(p), binary.value(p), rtol=apart)
        np.testing.assert_allclose(several.descent(p).direction, binary.descent(p).direction, rtol=0, atol=apart)
        np.testing.assert_allclose(
            several.descent(p).log_norm, binary.descent(p).log_norm, rtol=rounding(2), atol=apart
        )
        one, other = several.linearise(p), binary.linearise(p)
        spread = 2 * float(np.linalg.norm(binary.problem.keys.vectors, axis=1).max())
        np.testing.assert_allclose(one.jacobian, other.jacobian, rtol=0, atol=apart * spread**2)
        np.testing.assert_allclose(one.balance, other.balance, rtol=0, atol=apart)


def exact_gradient(problem: ClassProblem, p) -> list:
    """Minus the gradient of the cross-entropy with 1500 digits."""
    with mpmath.workdps(1500):
        keys, total = problem.keys.tokens, [mpmath.mpf(0)] * problem.keys.dimension
        for i in range(problem.n):
            logits = [mpmath.fdot(map(mpmath.mpf, key), map(mpmath.mpf, p)) for key in keys[i].tolist()]
            weights = [mpmath.exp(z) for z in logits]
            weights = [w / mpmath.fsum(weights) for w in weights]
            u = [[mpmath.mpf(x) for x in row] for row in problem.class_logits[i].tolist()]
            F = [mpmath.fsum(w * row[c] for w, row in zip(weights, u, strict=True)) for c in range(problem.k)]
            shares = [mpmath.exp(f) for f in F]
            shares = [s / mpmath.fsum(shares) for s in shares]
            pull = [(c == problem.classes[i]) - shares[c] for c in range(problem.k)]
            scores = [mpmath.fdot(pull, row) for row in u]
            mean = mpmath.fdot(weights, scores)
            for t, w in enumerate(weights):
                for j in range(len(total)):
                    total[j] += w * (scores[t] - mean) * mpmath.mpf(float(keys[i, t, j])) / problem.n
        size = mpmath.sqrt(mpmath.fsum(x**2 for x in total))
        return [float(x / size) for x in total] + [float(mpmath.log(size))]


@pytest.mark.parametrize(("norm", "size"), [(1.0, 1.0), (300.0, 1.0), (1500.0, 1.0), (3.0, 400.0)])
def test_the_direction_is_right_where_the_gradient_has_underflowed(norm: float, size: float) -> None:
    rng, keys, head, classes, _ = drawn(3, n=3, T=3, d=3)
    problem = ClassProblem.of(keys, classes, head=head * size)
    p = rng.standard_normal(3)
    p *= norm / np.linalg.norm(p)
    *direction, log_norm = exact_gradient(problem, p)
    found = ClassObjective(problem).descent(p)
    # Logits are known to eps |k| |p|, and so is the logarithm of each term.
    scores = float(np.abs(problem.class_logits).max())
    apart = 2 * of_logits(problem, p) + rounding(3 * 3 + 20, 2 * scores)
    np.testing.assert_allclose(found.direction, direction, rtol=0, atol=apart)
    np.testing.assert_allclose(found.log_norm, [log_norm], rtol=rounding(2), atol=apart)


@pytest.mark.usefixtures("unchecked_shapes")
def test_training_ends_where_the_certified_problem_says() -> None:
    """A mixture and a direction beside it; `docs/classes-and-labels.md` has a direction alone."""
    rng = np.random.default_rng(6)
    keys, head = rng.standard_normal((4, 5, 6)), rng.standard_normal((6, 3))
    limit = limit_of(ClassProblem.of(keys, [0, 1, 2, 1], head=head))
    assert limit.outcome == "finite part"
    assert limit.angle <= SETTLED
    assert limit.solution.is_optimal
    assert limit.chosen.sum(axis=1).max() > 1  # the mixture is better than each


def test_the_worth_of_a_token_is_that_of_the_label() -> None:
    keys = [[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]] * 3
    logits = [[[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]] * 3
    problem = ClassProblem.of(keys, [0, 1, 2], class_logits=logits)
    assert optimal_tokens(problem).argmax(axis=1).tolist() == [0, 1, 2]
    assert not problem.mixture_is_better(np.array([0, 1, 2])).any()
    wrong = np.array([1, 1, 2])
    assert problem.mixture_is_better(wrong).tolist() == [True, False, False]


def test_a_mixture_that_beats_every_token_is_told_by_the_scores_around_them() -> None:
    problem = ClassProblem.of(
        [[[1.0, 0.0], [0.0, 1.0]]], [0], class_logits=[[[0.0, 2.0, -9.0], [0.0, -9.0, 2.0]]], keep_unused=True
    )
    assert problem.mixture_is_better(np.array([0])).all()
    assert problem.mixture_is_better(np.array([1])).all()
    assert limit_direction(problem, [0]).kind == "not locally optimal"
    limit = limit_of(problem)
    assert limit.outcome == "bounded"  # by symmetry equal weights
    # At rest to 1e-12 of the terms (below), whose pull back is of order 1.
    np.testing.assert_allclose(limit.point[0], limit.point[1], rtol=0, atol=1e-12)


def test_gram_space_and_files(tmp_path) -> None:
    rng, keys, head, classes, mask = drawn(2)
    problem = ClassProblem.of(keys, classes, head=head, mask=mask)
    p = problem.keys.combine(rng.standard_normal(problem.keys.n_vectors))
    coefficients = np.linalg.lstsq(problem.keys.vectors.T, p, rcond=None)[0]
    one, other = ClassObjective(problem), ClassObjective(problem.as_gram())
    # Least squares lose the condition of the tokens, twelve and more of them in six dimensions; a sum of sums.
    sizes = np.linalg.svd(problem.keys.vectors, compute_uv=False)
    apart = rounding(20 * 6, float(sizes[0] / sizes[-1]) * 12 * float(np.abs(problem.class_logits).max()))
    np.testing.assert_allclose(one.value(p), other.value(coefficients), rtol=0, atol=apart)
    for name in ("a.npz", "a.json"):
        problem.save(tmp_path / name)
        again = load_problem(tmp_path / name)
        assert isinstance(again, ClassProblem)
        # Sums of six products, computed again.
        apart = rounding(6, 6 * float(np.abs(keys).max() * np.abs(head).max()))
        np.testing.assert_allclose(again.class_logits, problem.class_logits, rtol=0, atol=apart)
        real = RegressionProblem.of(keys, rng.standard_normal(4), head=head[:, 0], mask=mask)
        real.save(tmp_path / name)
        back = load_problem(tmp_path / name)
        assert isinstance(back, RegressionProblem)
        np.testing.assert_array_equal(back.targets, real.targets)


@pytest.mark.usefixtures("unchecked_shapes")
def test_real_labels_within_reach_end_at_a_rest_point() -> None:
    rng = np.random.default_rng(1)
    keys, head, targets = rng.standard_normal((4, 5, 6)), rng.standard_normal(6), rng.standard_normal(4) / 2
    limit = limit_of(RegressionProblem.of(keys, targets, head=head))
    assert limit.outcome == "bounded"
    objective = limit.path.objective
    assert limit.path.stop == "stationary"
    assert objective.linearise(limit.point).balance[0] <= STATIONARY
    # More unknowns than inputs, and every target within its predictions: all are met.
    assert objective.value(limit.point) < 1e-20


@pytest.mark.parametrize(("target", "token"), [(5.0, 1), (1.0, 1), (-5.0, 0), (0.0, 0)])
def test_targets_out_of_reach_or_on_its_edge_select(target: float, token: int) -> None:
    problem = RegressionProblem.of([[[1.0, 0.0], [0.0, 1.0]]], [target], scores=[[0.0, 1.0]])
    limit = limit_of(problem, until_norm=1e5)
    assert limit.outcome == "direction"
    assert limit.selected.tolist() == [token]
    expected = np.array([1.0, -1.0]) if token == 0 else np.array([-1.0, 1.0])
    assert float(angle(problem.keys, limit.path.prompt, expected)) < of_flow(limit.path)  # a straight path


@pytest.mark.usefixtures("unchecked_shapes")
def test_descent_lowers_both() -> None:
    _, keys, head, classes, mask = drawn(5)
    for problem in (
        ClassProblem.of(keys, classes, head=head, mask=mask),
        RegressionProblem.of(keys, [0.3, -0.2, 2.0, 0.0], head=head[:, 0], mask=mask),
    ):
        objective = prompt_objective(problem)
        run = evolve(objective, NormalizedGradientDescent(0.01), steps=100, keep=("loss",))
        # A step of 0.01 raises a risk by at most half its square times the curvature, below 20 here.
        assert (np.diff(run["loss"]) < 20 * 0.01**2 / 2).all()
        assert run["loss"][-1] < run["loss"][0]
        np.testing.assert_allclose(flow(objective, until_norm=0.5).norm, 0.5, rtol=rounding(8))


KEYS, HEAD = np.eye(3)[None].repeat(3, axis=0), np.eye(3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TokenProblem.of(KEYS, [0, 1, 2], head=HEAD), "many classes: ClassProblem"),
        (lambda: TokenProblem.of(KEYS, [0, 1, 2], head=HEAD[0]), "many classes: ClassProblem"),
        (lambda: TokenProblem.of(KEYS, [0, 1, 0], head=HEAD[0]), "map 0/1 labels"),
        (lambda: TokenProblem.of(KEYS, [0.3, 1, 0], head=HEAD[0]), "real labels need a square loss"),
        (lambda: ClassProblem.of(KEYS, [0, 1, 3], head=HEAD), r"classes 0..2 .* 3 columns, got 3 for input 2"),
        (lambda: ClassProblem.of(KEYS, [0, 1, 1.5], head=HEAD), r"classes 0..2 .* got 1.5"),
        (lambda: ClassProblem.of(KEYS, [-1, 1, 1], head=HEAD[:, :2]), "labelled 0 and 1 here"),
        (lambda: ClassProblem.of(KEYS, [0, 1, 1], head=HEAD), "class 2 has no example; drop its column"),
        (lambda: ClassProblem.of(KEYS, [0, 1], head=HEAD), "3 numbers, one class per input"),
        (lambda: ClassProblem.of(KEYS, [0, 0, 0], head=HEAD[:, :1]), "k >= 2 classes"),
        (lambda: ClassProblem.of(KEYS, [0, 1, 2], head=HEAD * np.nan), "head must be finite"),
        (lambda: RegressionProblem.of(KEYS, [0, 1, np.inf], head=HEAD[0]), "targets must be finite"),
    ],
)  # fmt: skip
def test_bad_labels_get_one_line(make, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_losses_that_do_not_fit_get_one_line() -> None:
    real, several = RegressionProblem.of(KEYS, [0.3, 1, 0], head=HEAD[0]), ClassProblem.of(KEYS, [0, 1, 2], head=HEAD)
    with pytest.raises(TypeError, match="real labels, and LogisticLoss is a loss of classes; use SquareObjective"):
        PromptObjective(real)
    with pytest.raises(TypeError, match="real labels have the square loss, got ExponentialLoss"):
        SquareObjective(real, ExponentialLoss())
    with pytest.raises(TypeError, match="3 classes; use ClassObjective"):
        PromptObjective(several)
    with pytest.raises(TypeError, match="3 classes; move tokens towards the heads by class_first_step"):
        JointObjective(several)
    with pytest.raises(TypeError, match="run them one by one, with evolve or limit_of"):
        evolve_many([several], NormalizedGradientDescent(0.1), steps=1)
    with pytest.raises(ValueError, match="has its own loss"):
        limit_of(ClassObjective(several), loss=LogisticLoss())


def test_the_atlas_of_real_labels_is_refused() -> None:
    with pytest.raises(TypeError, match="the atlas ranks tokens by fixed scores"):
        atlas(RegressionProblem.of(KEYS, [0.1, 0.2, 0.3], head=HEAD[:, 0]))


def test_the_atlas_of_two_classes_is_the_binary_one() -> None:
    for seed in range(5):
        _, keys, head, classes, mask = drawn(seed, n=3, T=4, k=2)
        mine = atlas(ClassProblem.of(keys, classes, head=head, mask=mask))
        binary = atlas(TokenProblem.of(keys, 2 * classes - 1, head=head[:, 1] - head[:, 0], mask=mask))
        assert [tuple(one.selected) for one in mine.limits] == [tuple(one.selected) for one in binary.limits]
        assert (mine.feasible, mine.infeasible, mine.complete) == (binary.feasible, binary.infeasible, True)
        assert [one.kind for one in mine.limits] == [one.kind for one in binary.limits]


@pytest.mark.usefixtures("unchecked_shapes")
def test_flows_of_classes_that_end_in_a_direction_are_in_the_atlas() -> None:
    found = 0
    for seed in range(6):
        rng, keys, head, classes, mask = drawn(seed, n=3, T=3, d=5)
        problem = ClassProblem.of(keys, classes, head=head, mask=mask)
        listed = atlas(problem)
        assert listed.complete
        ends = [limit_of(problem, start) for start in rng.standard_normal((4, 5))]
        here = [end for end in ends if end.outcome == "direction"]
        assert {tuple(end.selected) for end in here} <= {tuple(one.selected) for one in listed.limits}
        found += len(here)
    assert found >= 4  # the others end in mixtures, or at rest


@pytest.mark.usefixtures("unchecked_shapes")
def test_objectives_are_for_their_own_problems() -> None:
    real, plain = RegressionProblem.of(KEYS, [0.3, 1, 0], head=HEAD[0]), TokenProblem.of(KEYS, [1, 1, -1], head=HEAD[0])
    with pytest.raises(TypeError, match="ClassObjective is for a ClassProblem, got a RegressionProblem"):
        ClassObjective(real)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="SquareObjective is for a RegressionProblem, got a TokenProblem"):
        SquareObjective(plain)  # type: ignore[arg-type]


def test_a_matrix_problem_of_classes_keeps_its_queries_in_a_file(tmp_path) -> None:
    rng, keys, head, classes, mask = drawn(3)
    problem = ClassProblem.of(keys, classes, head=head, mask=mask).with_matrix(rng.standard_normal((len(keys), 2)))
    problem.save(tmp_path / "classes.npz")
    again = load_problem(tmp_path / "classes.npz")
    W = rng.standard_normal(problem.keys.dimension)
    assert again.as_matrix(W).shape == problem.as_matrix(W).shape
    np.testing.assert_array_equal(again.keys.logits(W), problem.keys.logits(W))
    np.testing.assert_array_equal(again.class_logits, problem.class_logits)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_flow_beside_targets_that_are_met_never_raises_the_risk() -> None:
    """The second input meets its target by a mixture; the first pulls on and brings a third token of the second back.

    Followed to first order in that token's weight, it took all of it, and two others were said to keep theirs.
    """
    keys = np.zeros((2, 3, 3))
    keys[0, :2] = [[1.365, -0.683, -0.644], [-0.652, 0.596, 0.64]]
    keys[1] = [[0.165, 2.067, 1.368], [-0.829, -0.571, 0.873], [0.639, 0.181, 1.159]]
    there = [[True, True, False], [True, True, True]]
    problem = RegressionProblem.of(keys, [1.552, -0.988], head=[-0.274, -0.552, -0.615], mask=there)
    limit = limit_of(problem)
    risks = SquareObjective(problem).value(limit.path(np.linspace(0, limit.path.arcs[-1], 20)))
    # The path is right to the solver's tolerance, 1e-8 of |p| at most, times slopes of order one.
    assert np.diff(risks).max() <= 1e-6 * risks[0]
    assert limit.outcome != "finite part"
