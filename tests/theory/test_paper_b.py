"""Paper B's claims: the numbers they report, computed again by autograd, loops, many digits, or brute force."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from tests.oracles.certified import apart
from tests.oracles.joint import best_head, ridge_solution
from tests.oracles.rounding import of_attention, rounding

from tokenmargin.margin import choice_margin, max_margin, relaxed_max_margin
from tokenmargin.objective.local_scores import optimal_sets
from tokenmargin.objective.losses import CorrelationLoss, CustomLoss, ExponentialLoss, LogisticLoss
from tokenmargin.problem.attention_problems import cross_attention
from tokenmargin.problem.instances import (
    figure1a,
    figure1b,
    figure1c,
    figure3a,
    figure3b,
    random_problem,
    shared_vocabulary_problem,
)
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, attention_weights, cone_constants, is_locally_optimal
from tokenmargin.theory import ProblemInstance, claim
from tokenmargin.theory.paper_b.assumptions import assumption_a, assumption_c, general_position
from tokenmargin.theory.paper_b.gradients import mirrored_optima, printed_smoothness
from tokenmargin.theory.paper_b.joint_limits import (
    Joint,
    nearly_support,
    phase_direction,
    quadrant_point,
    selecting_second,
    smaller_label_margin,
)
from tokenmargin.theory.paper_b.local_cone import vectors_in_cone, without_neighbours
from tokenmargin.theory.paper_b.prompt_limits import path_angles

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def measured(name, instance):
    findings = claim(name).check(instance)
    return {slack.name: slack for slack in (*findings.hypotheses, *findings.conclusion)}


def plain_risk(problem, p):
    keys, scores = torch.tensor(problem.keys.tokens), torch.tensor(problem.scores)
    outputs = (torch.softmax(keys @ p, dim=1) * scores).sum(dim=1)
    return torch.nn.functional.softplus(-outputs).mean()


def gradient(problem, p):
    point = torch.tensor(p, requires_grad=True)
    plain_risk(problem, point).backward()
    return point.grad.numpy()


def test_lemma_1_with_autograd_on_the_matrix():
    problem = random_problem(3, 4, 5, rng=np.random.default_rng(2))
    keys, scores = torch.tensor(problem.keys.tokens), torch.tensor(problem.scores)
    rng = np.random.default_rng(0)
    u, p = rng.standard_normal(3), 0.1 * rng.standard_normal(5)
    W = torch.tensor(np.outer(u, p) / (u @ u), requires_grad=True)
    for _ in range(20):
        outputs = (torch.softmax(keys @ (W.T @ torch.tensor(u)), dim=1) * scores).sum(dim=1)
        (slope,) = torch.autograd.grad(torch.nn.functional.softplus(-outputs).mean(), W)
        W = (W - 0.5 / (u @ u) * slope).detach().requires_grad_()
        p = p - 0.5 * gradient(problem, p)
    # Twenty steps, each with the rounding of its gradient.
    np.testing.assert_allclose(
        W.detach().numpy(),
        np.outer(u, p) / (u @ u),
        rtol=0,
        atol=20 * 0.5 * of_attention(problem, p)[1] / float(u @ u) * float(np.abs(u).max()),
    )
    assert claim("B.lemma1").on(ProblemInstance(problem)).verdict == "holds"


def test_lemma_3_by_loops_at_fifty_digits():
    problem = random_problem(1, 5, 4, rng=np.random.default_rng(1))
    rng = np.random.default_rng(3)
    with mpmath.workdps(50):
        K = [[mpmath.mpf(z) for z in row] for row in problem.keys.tokens[0].tolist()]
        gamma = [mpmath.mpf(z) for z in problem.scores[0].tolist()]
        for scale in (0.1, 1.0, 10.0, 40.0):
            p, q = (scale * rng.standard_normal(4)).tolist(), rng.standard_normal(4).tolist()
            a, logits = [mpmath.fdot(k, q) for k in K], [mpmath.fdot(k, p) for k in K]
            total = mpmath.fsum(mpmath.exp(z) for z in logits)
            s = [mpmath.exp(z) / total for z in logits]
            exact = mpmath.fsum(x * y * z for x, y, z in zip(a, s, gamma, strict=True)) - mpmath.fdot(
                a, s
            ) * mpmath.fdot(s, gamma)
            for t in range(5):
                short = mpmath.fsum((a[t] - a[u]) * s[u] * (gamma[t] - gamma[u]) for u in range(5))
                bound = (
                    2 * (max(gamma) - min(gamma)) * max(mpmath.norm(k) for k in K) * mpmath.norm(q) * (1 - s[t]) ** 2
                )
                assert abs(exact - short) <= bound
    found = measured("B.lemma3", ProblemInstance(problem))
    assert found["smallest bound - error"].holds
    assert 0 < found["largest error / bound"].measured <= 1


def test_lemmas_4_and_5_by_autograd():
    problem = figure1a()
    axis = np.array([-0.1, 1.0, 0.0])  # Figure 1a's GMM: the optimal key itself
    axis /= np.linalg.norm(axis)
    x = ProblemInstance(problem, norm=300.0)
    for p in x.sphere(20, np.random.default_rng(0)):
        slope, direction = gradient(problem, 3 * p), x.objective.descent(3 * p).direction
        assert slope @ axis < 0
        # Slopes at |p| = 3 are at least 1e-4 of their terms: rounding of 1e-15 beside that, times tens.
        np.testing.assert_allclose(direction, -slope / np.linalg.norm(slope), rtol=0, atol=1e-9)
    low = measured("B.lemma4", x)["smallest -<dL, p_mm> / (|dL| |p_mm|), 2500 points"].measured
    # the gradient is a positive combination of k_1 - k_2 and k_1 - k_3, so the smallest cosine is that of an edge
    edges = np.array([[-1.1, 1.0, 0.0], [-0.1, 1.0, 0.0]])
    # Far out all of the gradient is along one; three coordinates.
    assert low == pytest.approx((edges @ axis / np.linalg.norm(edges, axis=1)).min(), abs=rounding(50))


def test_lemma_1_in_gram_space():
    """W(t) = u p(t)'/|u|^2 by the coefficients of u k', the keys' own; twice the step is another path."""
    x = ProblemInstance(random_problem(2, 3, 4, rng=0).as_gram())
    assert claim("B.lemma1").on(x).verdict == "holds"
    assert not claim("B.lemma1").on(replace(x, factor=2.0)).findings.concludes


def test_lemma_6_beyond_the_range_of_doubles_is_undecided():
    problem = TokenProblem.of([[[0.0], [1.0]]], [1], scores=[[-3000.0, 0.0]])
    report = claim("B.lemma6").on(ProblemInstance(problem, loss=ExponentialLoss()))
    assert report.verdict == "undecided"
    assert (
        claim("B.lemma6").on(ProblemInstance(TokenProblem(problem.keys, [1], scores=[[-3.0, 0.0]]))).verdict == "holds"
    )


def test_lemma_6_constants_by_loops():
    problem = figure1c()
    sharper = printed = 0.0
    low, high = problem.scores.min(), problem.scores.max()
    m0 = max(1 / (2 + 2 * math.cosh(u)) for u in np.linspace(low, high, 101))
    m1 = max(1 / (1 + math.exp(u)) for u in (low, high))
    for i in range(3):
        K, X, gamma = problem.keys.tokens[i], problem.values.tokens[i], problem.scores[i]
        sharper += np.linalg.norm(K, 2) ** 2 * (m0 * gamma @ gamma + 3 * m1 * math.sqrt(gamma @ gamma)) / 3
        size = np.linalg.norm(X, 2)
        printed += (m0 * size**4 + 3 * m1 * size**3) / 3  # |v| = |W| = 1: v = (0, 0, 1), W = diag(1, 1, 0)
    found = measured("B.lemma6", ProblemInstance(problem))
    # The largest slope of the loss over 101 points, one of which is the largest.
    of_sums = rounding(100)
    assert found["steepest change of the gradient, 500 pairs"].bound == pytest.approx(printed, rel=of_sums, abs=0)
    assert found["the sharper constant over the printed one"].measured == pytest.approx(sharper, rel=of_sums, abs=0)
    assert printed_smoothness(problem, LogisticLoss()) == pytest.approx(printed, rel=of_sums, abs=0)
    assert printed > 2 * sharper


def test_the_constants_of_lemma_7s_proof_by_hand():
    """Figure 1b, token (1, 0) selected: p_mm = (1, 0), its neighbour is (0, 0), and (-0.1, 1) stands at margin 1.1."""
    x = ProblemInstance(figure1b(), selected=(1,))
    c = cone_constants(x.problem, max_margin(x.problem, [1]).vector, [1], as_printed=True)
    largest = math.sqrt(1.01)
    by_hand = 10 * apart(max_margin(x.problem, [1]))  # from a certified axis, by a few products and a logarithm
    assert c.theta == pytest.approx(1, rel=by_hand, abs=0)
    assert c.mu == pytest.approx((0.05 / largest) ** 2 / 8, rel=by_hand, abs=0)
    assert c.radius == pytest.approx(20 * math.log(64 * 3 * 1.0 * largest / 0.9), rel=by_hand, abs=0)
    found = measured("B.lemma7-proof-constants", x)
    spread, low, high = math.sqrt(1.1**2 + 1), 0.9 / 8 / (1 + math.e), 2 * 0.9 / (1 + math.exp(-1))
    assert found["(31a) smallest -<dL, q> / attention on others"].bound == pytest.approx(low, rel=by_hand, abs=0)
    assert found["(31a) largest"].bound == pytest.approx(high, rel=by_hand, abs=0)
    assert found["(31b) largest |dL| / attention on others"].bound == pytest.approx(spread * high, rel=by_hand, abs=0)
    y = without_neighbours()
    narrow = cone_constants(y.problem, max_margin(y.problem, [0, 0]).vector, [0, 0])
    assert narrow.mu == pytest.approx((0.0125 / math.hypot(1.05, 1)) ** 2 / 8, rel=by_hand, abs=0)


def test_the_refutation_of_lemma_7s_proof_by_hand():
    """p in the cone of the proof, beyond its radius, from which q = p_mm is a direction of ascent."""
    x = without_neighbours()
    c = cone_constants(x.problem, max_margin(x.problem, [0, 0]).vector, [0, 0], as_printed=True)
    tilt = -math.acos(1 - c.mu)
    p = c.radius * np.array([math.cos(tilt), math.sin(tilt)])
    assert c.radius > 13
    slopes = []
    with mpmath.workdps(50):
        # per input: selected key minus the other, its score, and its lead over the other's score
        for (dx, dy), score, lead in (((1.0, 0.0), 1, 1), ((1.05, 1.0), 0, -5)):
            s = 1 / (1 + mpmath.exp(dx * p[0] + dy * p[1]))  # attention on the other token
            slopes.append(-lead * s * (1 - s) * dx / (1 + mpmath.exp(score - s * lead)))
    assert sum(slopes) > 0  # the risk rises along p_mm = (1, 0)
    assert gradient(x.problem, p)[0] == pytest.approx(float(sum(slopes)) / 2, rel=1e-6, abs=0)
    assert claim("B.lemma7-proof-constants").on(x).verdict == "fails"
    assert claim("B.lemma7").on(x).verdict == "holds"  # in a narrower cone: the lemma asks for some


@pytest.mark.parametrize("problem", [figure1a(), figure1b(), figure1c()])
def test_regularised_directions_by_scanning_the_circle(problem):
    x = ProblemInstance(problem)
    target = max_margin(problem, x.alpha).vector
    (early, _), norm = path_angles(x, [target])
    turns = np.linspace(0, 2 * np.pi, 4001)
    circle = np.stack([np.cos(turns), np.sin(turns), 0 * turns], axis=1)
    best = circle[np.argmin([x.objective.log_excess(norm / 10 * u) for u in circle])]
    # The circle is looked at every 2 pi / 4000 = 1.6e-3.
    assert early == pytest.approx(float(angle(problem.keys, best, target)), abs=2e-3)


def test_theorem_1_holds_for_negative_scores_too():
    """Lemma 14 needs positive optimal scores, Theorem 1 does not."""
    base = figure1c()
    problem = TokenProblem(base.keys, base.labels, scores=base.scores - 3.0)
    assert claim("B.theorem1").on(ProblemInstance(problem)).verdict == "holds"
    assert claim("B.lemma14").on(ProblemInstance(problem)).verdict == "vacuous"


def test_theorem_8_holds_for_negative_scores_too():
    """Raising the scores of an input is another decreasing loss for it, and Assumption D is about risks alone."""
    base = mirrored_optima()
    below_zero = replace(base, problem=TokenProblem(base.problem.keys, [1], scores=base.problem.scores - 3.0))
    assert claim("B.theorem8").on(below_zero).verdict == "holds"
    alike = replace(base, problem=TokenProblem(base.problem.keys, [1], scores=np.zeros((1, 3))))
    assert claim("B.theorem8").on(alike).verdict == "vacuous"  # all are optimal: there is no direction


def test_lemma_14_where_the_optimal_tokens_cannot_be_selected():
    """The optimal token stands between the others, so another leads for every p and q_max is at least a third."""
    problem = TokenProblem.of([[[0.0], [1.0], [-1.0]]], [1], scores=[[1.0, 0.5, 0.2]])
    assert claim("B.lemma14").on(ProblemInstance(problem)).verdict == "holds"


def test_directional_neighbours_are_counted_by_inner_products_too():
    problem = random_problem(2, 3, 4, rng=np.random.default_rng(0))
    for posed in (problem, problem.as_gram()):
        assert claim("B.lemma10").on(ProblemInstance(posed)).verdict == "holds"


def test_lemma_10_counts_neighbours_that_only_seem_to_be():
    """Three tokens beside q = (1, 0), one of them 1e-8 farther: in general position, and at one margin to 1e-7."""
    keys = [[[0.0, 0.0], [-1.0, 0.3], [-1.0 - 1e-8, 1.0], [-1.0, -1.0]]]
    problem = TokenProblem.of(keys, [1], scores=[[3.0, 2.0, 1.0, 0.0]])
    report = claim("B.lemma10").on(ProblemInstance(problem, q=np.array([1.0, 0.0])))
    assert report.findings.hypotheses[0].proven
    assert report.verdict == "undecided"


def test_general_position():
    apart = TokenProblem.of([[[0.0, 0.0], [1.0, 0.1], [0.2, 1.0]]], [1], scores=[[0.0, 1, 2]])
    assert general_position(apart, np.array([0])).proven
    collinear = TokenProblem.of([[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [0.3, 1.0]]], [1], scores=[[0.0, 1, 2, 3]])
    assert general_position(collinear, np.array([0])).refuted
    # d as printed is the dimension of the keys: three differences in a plane of space are dependent
    flat = TokenProblem.of(
        np.array([[[0, 0, 0], [1, 0.1, 0], [0.2, 1, 0], [0.7, 0.3, 0]]]), [1], scores=[[0.0, 1, 2, 3]]
    )
    assert general_position(flat, np.array([0])).refuted
    # fewer differences than dimensions, and two tokens with one key: the path goes to q = (1, 0, 0), which ties them
    equal = TokenProblem.of([[[0.0, 0, 0], [1, 0, 0], [1, 0, 0]]], [1], scores=[[0.2, 0.9, 0.1]])
    assert general_position(equal, np.array([1])).refuted
    report = claim("B.theorem4").on(ProblemInstance(equal, q=np.array([1.0, 0.0, 0.0])))
    assert report.verdict == "vacuous"
    assert not report.findings.concludes


def test_best_head_against_a_general_solver():
    problem, norm = figure3a(), 6.0
    features = np.einsum("nt,ntd->nd", attention_weights(problem.keys, np.array([3.0, 0.5])), problem.values.tokens)

    def risk(turn):
        v = norm * np.array([np.cos(turn[0]), np.sin(turn[0])])
        return np.log(np.logaddexp(0, -problem.labels * (features @ v)).sum())

    direct = min(
        (minimize(risk, [turn], method="Nelder-Mead", tol=1e-12) for turn in (0.5, 1.5, 3.0)), key=lambda r: r.fun
    )
    value, v = best_head(features[None], problem.labels, norm)
    # Nelder and Mead end at simplices of 1e-12, where the risk is flat; heads have their length but for rounding.
    assert value[0] == pytest.approx(direct.fun, abs=1e-9)
    assert np.linalg.norm(v[0]) == pytest.approx(norm, rel=rounding(10), abs=0)


@pytest.mark.parametrize("problem", [figure3a(), figure3b()])
def test_ridge_solution_by_a_grid(problem):
    norm, turns = 5.0, np.linspace(0, 2 * np.pi, 721)
    circle = norm * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    logits = np.einsum("ntd,kd->knt", problem.keys.tokens, circle)
    s = np.exp(logits - logits.max(axis=2, keepdims=True))
    features = np.einsum("knt,ntd->knd", s / s.sum(axis=2, keepdims=True), problem.values.tokens)
    risk = np.logaddexp(0, -problem.labels * np.einsum("knd,jd->kjn", features, circle)).sum(axis=2)
    at_p, at_v = np.unravel_index(np.argmin(risk), risk.shape)
    v, p = ridge_solution(ProblemInstance(problem, selected=(1, 1, 1)), (norm, norm))
    # A step of the grid: its lowest point is one of those around the minimum.
    assert float(angle(problem.keys, p, circle[at_p])) < turns[1]
    assert float(angle(problem.values, v, circle[at_v])) < turns[1]


def test_theorem_6_in_proportion_by_the_exact_trade_off():
    """|v| = |p|: the third input asks for its margin less 0.1, since its label margin is 1.1 times that of the others.

    The direction maximises min(a + b, a - b, 0.5 a + 1.1 b + 0.1) over the unit circle, which is not (1, 0), that of
    the relaxed problem, although the third input is no support vector.
    """
    x = nearly_support()
    turns = np.linspace(0, 1, 100001)
    a, b = np.cos(turns), np.sin(turns)
    limit = turns[np.argmax(np.minimum(np.minimum(a + b, a - b), 0.5 * a + 1.1 * b + 0.1))]
    reached = [math.atan2(p[1], p[0]) for p in (ridge_solution(x, (r, r))[1] for r in (11.0, 22.0))]
    assert abs(limit - reached[1]) < 0.6 * abs(limit - reached[0]) < 0.01  # O(1 / R)
    assert relaxed_max_margin(x.problem, x.alpha).vector == pytest.approx(
        [1, 0], abs=apart(relaxed_max_margin(x.problem, x.alpha))
    )
    # The turns of the scan are 1e-5 apart.
    assert math.atan2(*phase_direction(x.problem, x.alpha, 1.0)[::-1]) == pytest.approx(limit, abs=1e-5)


# Angles to p_relax at R -> infinity on the paper's Figure 3(b), from 120-digit minimisers: r = R is the boundary.
@pytest.mark.parametrize(("ratio", "limit"), [(2.0, 0.0), (1.0, 0.0), (0.5, 0.0992), (0.25, 0.148), (1e-6, 0.1974)])
def test_the_phases_of_figure_3b(ratio, limit):
    x = selecting_second(figure3b(), "fig3b", ratio)
    p = phase_direction(x.problem, x.alpha, ratio)
    # Half a unit of the last digit given, and what is left at the largest radius of the minimisers.
    assert float(angle(x.problem.keys, p, np.array([1.0, 0.0]))) == pytest.approx(limit, abs=6e-4)
    verdict = claim("B.theorem6").on(x).verdict if ratio > 1e-3 else "fails"
    assert verdict == ("holds" if limit == 0 else "fails")


@pytest.mark.parametrize("ratio", [0.25, 0.5, 2.0])
def test_the_joint_path_follows_the_phase_law(ratio):
    assert claim("B.theorem6-phases").on(selecting_second(figure3b(), "fig3b", ratio)).verdict == "holds"
    assert claim("B.theorem6-repaired").on(selecting_second(figure3b(), "fig3b", ratio)).verdict == (
        "holds" if ratio > 1 else "vacuous"
    )


def test_selection_is_proven_only_where_alpha_has_the_largest_label_margin():
    """A better token of the third input, no support vector: the path selects that one, whatever the margins say."""
    keys = [[[0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [1.0, -1.0]], [[0.5, 1.2], [0.5, 1.1]]]
    problem = TokenProblem.of(keys, [1, -1, 1], head=[0.0, 1.0])
    x = selecting_second(problem, "a better token of the third input", 0.05)
    # Products with a certified head: its residual is 1e-10.
    assert Joint(x).label_leads[2] == pytest.approx(-0.1, abs=1e-6)
    assert claim("B.theorem6").on(x).verdict == "undecided"
    plain = Joint(selecting_second(figure3b(), "fig3b", 0.5))
    assert plain.label_leads == pytest.approx([1.0, 1.0, 1.5], abs=1e-6)  # as above


def test_the_quadrant_by_a_scan():
    """Where the unconfined path leaves the quadrant, the confined one against all directions of the quadrant."""
    x, radii = smaller_label_margin(), np.array([5.0, 5.0])
    j = Joint(x)
    v, p = quadrant_point(x, (j.head.vector, j.prompt.vector), radii)
    assert np.linalg.norm(p) == pytest.approx(5.0, rel=rounding(20), abs=0)  # put on the sphere after every step
    turns = np.linspace(0, 2 * np.pi, 4001)
    circle = 5.0 * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    keys = x.problem.keys.tokens
    inside = circle[(np.einsum("nd,kd->kn", keys[:, 1] - keys[:, 0], circle) >= -1e-9).all(axis=1)]
    features = np.einsum("knt,ntd->knd", attention_weights(x.problem.keys, inside), x.problem.values.tokens)
    risk = best_head(features, x.problem.labels, 5.0)[0]
    at_p = np.einsum("nt,ntd->nd", attention_weights(x.problem.keys, p), x.problem.values.tokens)
    reached = np.log(np.logaddexp(0, -x.problem.labels * (at_p @ v)).sum())
    # The scan's turns are 1.6e-3 apart, and the risk is quadratic around its minimum: 1e-6 times its curvature.
    assert reached == pytest.approx(risk.min(), abs=1e-4)


@pytest.mark.parametrize("alpha", [(1, 2, 0, 0), (2, 0, 2, 2)])
def test_theorem_3_on_shared_tokens(alpha):
    """Inputs that share tokens: one vector is neighbour in one input and selected in another."""
    problem = shared_vocabulary_problem(4, 3, 5, vocabulary=6, rng=np.random.default_rng(2))
    assert is_locally_optimal(problem, max_margin(problem, alpha).vector, np.array(alpha))
    assert claim("B.theorem3").on(ProblemInstance(problem, selected=alpha)).verdict == "holds"


def test_theorem_3_follows_no_flow_where_slopes_are_beyond_doubles():
    """Scores of 1e150: the loss has no slope in doubles, which does not refute that it falls; no zigzag is followed."""
    keys = [[[0.0, 0.0], [-10.0, -10.0]], [[-20.0, 10.0], [10.0, 20.0]], [[20.0, -20.0], [-10.0, 0.0]]]
    scores = np.array([[0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]]) * 1e150
    problem = TokenProblem.of(keys, [-1, -1, 1], scores=scores, mask=[[True, True], [True, True], [True, False]])
    report = claim("B.theorem3").on(ProblemInstance(problem))
    slope = report.findings.hypotheses[0]
    assert report.verdict == "undecided"
    assert math.copysign(1, slope.measured) == 1  # printed as 0, not as -0
    assert not any("gradient flow" in conclusion.name for conclusion in report.findings.conclusion)


@pytest.mark.parametrize("kind", ["example", "outside"])
def test_nonlinear_heads_by_autograd_and_a_scan_of_the_circle(kind):
    """The heads' gradients by torch; then the risk over the circle, and over short p, by plain softmax."""
    known = claim("B.theorem8-nonlinear")
    x = known.example() if kind == "example" else known.outside[0]()
    values = torch.tensor(x.problem.values.tokens, requires_grad=True)
    third, fourth = values[..., 2], values[..., 3]
    network = torch.tanh(third - fourth) + torch.tanh(third + 2 * fourth) / 2
    psi = network if kind == "example" else 1 - (third - 0.5) ** 2
    psi.sum().backward()
    # A handful of operations on numbers of size one.
    np.testing.assert_allclose(
        x.head.function(x.problem.values.tokens), psi.detach().numpy(), rtol=0, atol=rounding(16)
    )
    np.testing.assert_allclose(x.head.gradient(x.problem.values.tokens), values.grad.numpy(), rtol=0, atol=rounding(16))

    def risk(points):
        s = np.exp(logits := np.einsum("ntd,kd->knt", x.problem.keys.tokens, points))
        mixed = np.einsum("knt,ntd->knd", s / s.sum(axis=2, keepdims=True), x.problem.values.tokens)
        assert np.abs(logits).max() < 700
        return np.logaddexp(0, -x.head.function(mixed)).mean(axis=1)

    turns = np.linspace(0, 2 * np.pi, 20001)
    circle = np.stack([np.cos(turns), np.sin(turns), 0 * turns, 0 * turns], axis=1)
    least = {r: float(risk(r * circle).min()) for r in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)}
    ordered = sorted(least, key=lambda r: least[r])
    if kind == "outside":  # the best p is short: it mixes
        assert ordered[0] <= 8
    else:
        assert ordered == [16.0, 8.0, 4.0, 2.0, 1.0, 0.5]
        (minimum,) = choice_margin(x.problem, optimal_sets(x.problem, x.head)).minima
        apart = [float(angle(x.problem.keys, circle[risk(r * circle).argmin()], minimum.vector)) for r in (8.0, 16.0)]
        assert apart[1] < 0.6 * apart[0] < 0.06


def test_assumption_c_on_the_papers_example():
    """x_i1 = Y_i a and all other tokens shorter: the paper's nu is |a| minus the longest; ours is a lower bound."""
    keys = np.array([[[2.0, 0.0], [0.5, 0.3]], [[-2.0, 0.0], [0.2, -0.6]]])
    x = ProblemInstance(TokenProblem.of(keys, [1, -1], head=[1.0, 0.0]), selected=(0, 0))
    found = Joint(x).assumption()
    assert found.margin == pytest.approx(2, rel=apart(max_margin(x.problem, [0, 0])), abs=0)
    assert found.at_least > 0
    assert found.slack().proven


def test_assumption_c_between_its_certificate_and_points():
    """On the support inputs of Figure 3 nu is 1/2: the margin sqrt(2) s t / hypot(s, t) has slope 1/2 at s = t = 1."""
    x = selecting_second(figure3b(), "fig3b")
    points = np.concatenate([r * x.sphere(200, np.random.default_rng(1)) for r in (0.3, 1.0, 3.0)])
    support = Joint(x).support
    assert support.tolist() == [True, True, False]
    found = assumption_c(x.problem, x.alpha, points, support)
    tried = min(
        (1 - math.sqrt(2) * s * t / math.hypot(s, t)) / (1 - min(s, t))
        for s, t, _ in attention_weights(x.problem.keys, points)[:, :, 1]
    )
    assert 0.29 < found.at_least <= 0.5 <= tried + rounding(20)
    # over all inputs no nu serves: the third, no support vector, may lose attention more slowly than the others
    everywhere = assumption_c(x.problem, x.alpha, points)
    assert everywhere.at_most == 0
    assert everywhere.slack().refuted


@pytest.mark.parametrize(("key", "lags"), [((2.0, 1.0), True), ((0.0, 1.0), True), ((2.0, 0.0), False)])
def test_assumption_c_beside_an_input_that_is_no_support_vector(key, lags):
    """The second input has no multiplier, so the certificate's fall is zero, which rounding must not make a proof.

    While the first leads by 1, (1, -1.5) lets (2, 1) lead by half and (1, 0) lets (0, 1) lead by nothing; (2, 0) leads
    by twice what the first does, whatever p.
    """
    keys, values = [[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], key]], [[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [2.0, 0.0]]]
    problem = TokenProblem.of(keys, [1, 1], values=values, head=[1.0, 0.0])
    j = Joint(selecting_second(problem, "one support vector"))
    assert j.support.tolist() == [True, False]
    found = j.assumption()
    assert found.at_least <= 0
    assert found.slack().refuted == lags
    assert lags or 0 < found.at_most <= 1  # the margin falls by 1 - min(s_1, 2 s_2), at most by 1 - min(s_1, s_2)


def test_assumption_a_of_a_loss_of_ones_own():
    falling = CustomLoss(lambda u: np.arctan(-u), lambda u: -1 / (1 + u**2), lipschitz=0.65, bound=1.0)
    assert assumption_a(falling, figure1b()).holds
    assert not assumption_a(falling, figure1b()).proven
    assert assumption_a(LogisticLoss(), figure1b()).proven


def test_no_theorem_is_refuted_by_a_threshold():
    """Four true statements on problems where a finite run, or a threshold, could say otherwise."""
    between = TokenProblem.of([[[0.0], [1.0], [-1.0]]], [1], scores=[[1.0, 0.0, 0.0]])  # the best token has no GMM
    assert claim("B.theorem2").on(ProblemInstance(between)).verdict == "vacuous"
    drawn = random_problem(2, 3, 3, rng=np.random.default_rng(4))
    assert claim("B.theorem3").on(ProblemInstance(drawn, selected=(2, 1))).verdict == "holds"
    drawn = random_problem(2, 3, 2, rng=np.random.default_rng(18))
    assert claim("B.theorem7").on(ProblemInstance(drawn, seed=18)).verdict == "holds"
    x = claim("B.theorem4").example()
    lmm = max_margin(x.problem, [1]).vector
    # Nearer and nearer to an LMM direction; its certificate does not tell 1e-9 from zero.
    for turn, expected in ((0.02, "holds"), (0.003, "holds"), (1e-5, "holds"), (1e-9, "undecided")):
        q = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]) @ lmm
        assert claim("B.theorem4").on(ProblemInstance(x.problem, q=q)).verdict == expected


def test_cones_have_the_width_they_say():
    x = ProblemInstance(random_problem(2, 3, 6, rng=np.random.default_rng(0)))
    axis = x.sphere(1, np.random.default_rng(1))[0]
    units = vectors_in_cone(x, axis, 0.2, 200, np.random.default_rng(2))
    cosines = units @ axis
    # Six coordinates, made orthogonal and of length one.
    assert np.linalg.norm(units, axis=1) == pytest.approx(1, rel=rounding(20), abs=0)
    assert cosines.min() == pytest.approx(0.8, rel=rounding(50), abs=0)


def offset_keys(offset: float, **options: object) -> ProblemInstance:
    """Three tokens around a point far from the origin; all but the first score alike."""
    keys = offset + np.array([[[1.0, 0.25], [0.5, -1.0], [-0.75, 0.5]]])
    return ProblemInstance(TokenProblem.of(keys, [1], scores=[[1.0, 0.0, 0.0]]), f"offset {offset:g}", **options)


def test_rounding_does_not_refute_true_statements():
    # logits near 1e6 are known to 1e-10, and so are risks
    assert claim("B.lemma6").on(offset_keys(1e6)).verdict == "holds"
    # a gradient that is smaller than the rounding of its terms
    assert claim("B.lemma4").on(offset_keys(1e14)).verdict in ("holds", "undecided")
    # the largest distance of two tokens, and squares that underflow
    assert claim("B.lemma7").on(offset_keys(1e10)).verdict == "holds"
    tiny = TokenProblem.of(1e-200 * np.array([[[1.0, 0.3], [0.2, 1.0]]]), [1], scores=[[1.0, 0.0]])
    assert claim("B.lemma3").on(ProblemInstance(tiny)).verdict == "holds"
    # the linear head is almost flat, the nonlinear one is not: its Hessian sets the step
    values = np.random.default_rng(0).standard_normal((3, 4, 2))
    bent = TokenProblem.of(values, [-1, 1, -1], values=values, head=[1e-5, -2e-5])
    assert claim("B.lemma1").on(ProblemInstance(bent, loss=CorrelationLoss())).verdict == "holds"


@pytest.mark.parametrize("keys", [1e-2, 1.0, 1e2, 1e3])
def test_constants_of_keys_of_any_length(keys):
    # far out the bound of Lemma 1 is below rounding
    tokens = keys * np.array([[[1.0, 0.0], [0.0, 0.5], [0.2, -1.0]]])
    three = TokenProblem.of(tokens, [1], scores=[[1.0, 0.0, 0.1]])
    assert claim("R.constants").on(ProblemInstance(three, loss=CorrelationLoss())).verdict == "holds"


def test_general_position_does_not_depend_on_lengths():
    keys = np.array([[[0.0, 0.0], [1e6, 3e5], [1e-6, 2e-6]]])
    unequal = TokenProblem.of(keys, [1], scores=[[0.0, 1, 2]])
    assert general_position(unequal, np.array([0])).proven
    keys[0, 2] = 2.0**-40 * keys[0, 1]  # a multiple, exactly
    assert general_position(TokenProblem.of(keys, [1], scores=[[0.0, 1, 2]]), np.array([0])).refuted


@pytest.mark.parametrize(("off", "verdict"), [(0.0, "vacuous"), (1e-12, "undecided"), (1e-9, "undecided")])
def test_a_direction_beside_an_lmm_direction_is_not_taken_for_it(off, verdict):
    problem = TokenProblem.of([[[-0.8, 1.0], [1.0, 0.03], [0.02, -0.05]]], [1], scores=[[1.0, 0.9, 0.0]])
    unit = max_margin(problem, [1]).vector
    unit = unit / np.linalg.norm(unit)
    q = unit + off * np.array([-unit[1], unit[0]])
    assert claim("B.theorem4").on(ProblemInstance(problem, q=q)).verdict == verdict


@pytest.mark.parametrize("name", ["B.theorem2", "B.lemma4", "B.lemma5", "B.theorem5", "B.lemma12", "R.constants"])
def test_where_a_margin_is_not_decided_nothing_is(name):
    """Whether there is one is a hypothesis, which was said to be refuted; products do not tell these keys apart."""
    near = TokenProblem.of([[[1.0, 0.0], [1.0 - 1e-9, 0.0], [0.0, 0.5]]], [1], scores=[[1.0, 0, 0]])
    assert max_margin(near.as_gram(), [0]).status == "inaccurate"
    assert claim(name).on(ProblemInstance(near.as_gram())).verdict == "undecided"


JOINT = (
    "B.theorem5",
    "B.theorem6",
    "B.theorem6-repaired",
    "B.theorem6-phases",
    "B.lemma12",
    "B.lemma13",
    "R.joint-phase",
)


@pytest.mark.parametrize("name", JOINT)
def test_labels_that_no_head_separates_leave_nothing_to_say(name):
    """Both inputs are one vector, with labels of both signs."""
    problem = TokenProblem.of([[[1.0, 0.0], [0.0, 1.0]]] * 2, [1, -1], scores=[[1.0, 0], [0, -1]])
    assert claim(name).on(ProblemInstance(problem)).verdict == "vacuous"


def test_statements_answer_where_flows_cannot_go_as_far():
    long = TokenProblem.of(1e9 * np.array([[[1.0, 0.0], [0.0, 0.5]]]), [1], scores=[[1.0, 0.0]])
    report = claim("B.theorem2").on(ProblemInstance(long, norm=1e6))
    assert report.verdict == "undecided"
    assert "gradient flow reaches" in report.findings.open[-1].name


def test_joint_phase_of_long_values():
    x = nearly_support()
    tokens = x.problem.keys.tokens
    long = TokenProblem.of(tokens, x.problem.labels, values=1e3 * tokens, head=[0.0, 1.0])
    assert claim("R.joint-phase").on(replace(x, problem=long)).verdict in ("holds", "undecided")


def test_independence_of_queries_does_not_depend_on_their_lengths():
    tokens = np.array([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, -1.0]]])
    problem = cross_attention(tokens, [[1e8, 0.0], [0.0, 1e-8]], [1, 1], scores=[[1.0, 0.0], [1.0, 0.0]])
    for name in ("C.rank", "C.separability"):
        assert claim(name).on(ProblemInstance(problem)).verdict == "holds", name
    # a gradient that is smaller than the rounding of its terms; flow is not asked to go anywhere
    far = cross_attention(1e14 + tokens[:1], [[1.0, 0.3]], [1], scores=[[1.0, 0.0]])
    assert claim("C.global").on(ProblemInstance(far, norm=1.0)).verdict == "undecided"
