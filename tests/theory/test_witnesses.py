"""More of the claims' numbers, computed again: by loops, many digits, autograd, or another solver."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from tests.oracles.rounding import rounding

from tokenmargin.margin import TOLERANCE, class_margin, max_margin
from tokenmargin.problem.instances import figure1a
from tokenmargin.selection import cone_constants
from tokenmargin.theory import EmbeddingInstance, ProblemInstance, claim
from tokenmargin.theory.evidence import follow_flow
from tokenmargin.theory.paper_b.gradients import printed_smoothness
from tokenmargin.theory.paper_b.local_cone import vectors_in_cone
from tokenmargin.theory.paper_b.prompt_limits import WIDTH

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def measured(name, instance):
    findings = claim(name).check(instance)
    return {slack.name: slack.measured for slack in (*findings.hypotheses, *findings.conclusion)}


def exact_risk(problem, p):
    """The logistic risk of p at the working precision of mpmath."""
    total = mpmath.mpf(0)
    for keys, gamma in zip(problem.keys.tokens.tolist(), problem.scores.tolist(), strict=True):
        weights = [mpmath.exp(mpmath.fdot(k, list(p))) for k in keys]
        total += mpmath.log1p(mpmath.exp(-mpmath.fdot(weights, gamma) / mpmath.fsum(weights)))
    return total / problem.n


def plain_gradient(problem, points):
    """Gradients of the risk at many points, by autograd."""
    keys, scores = torch.tensor(problem.keys.tokens), torch.tensor(problem.scores)
    p = torch.tensor(points, requires_grad=True)
    outputs = (torch.softmax(torch.einsum("ntd,kd->knt", keys, p), dim=2) * scores).sum(dim=2)
    torch.nn.functional.softplus(-outputs).mean(dim=1).sum().backward()
    return p.grad.numpy()


def test_lemma_10_by_loops():
    x = claim("A.lemma10").example()
    after = x.steps[0].after
    rows, rng = after.geometry.vectors, np.random.default_rng(x.seed)
    least, high, low = math.inf, math.inf, math.inf
    for scale in np.geomspace(0.01, 30, 40):
        p = rng.standard_normal(len(rows)) @ rows
        p *= scale / np.linalg.norm(p)
        for tokens in x.corpus.index.tolist():
            logits = [float(rows[s] @ p) for s in tokens]
            q = [math.exp(z) / math.fsum(math.exp(a) for a in logits) for z in logits]
            least = min(least, math.log(max(q) * len(tokens)))
            for z, w in zip(logits, q, strict=True):
                if (tau := max(logits) - z) > 0:
                    high = min(high, -math.log(w * (1 + math.exp(tau))))
                    low = min(low, math.log(w * len(tokens)) + tau)
    found = measured("A.lemma10", x)
    of_logits = rounding(3 * len(rows[0]), 30 * float(np.linalg.norm(rows, axis=1).max()))  # |p| up to 30
    assert found["least log(T q_selected)"] == pytest.approx(least, abs=of_logits)
    assert found["least log of 1/(1 + e^tau) over q_j"] == pytest.approx(high, abs=of_logits)
    assert found["least log of q_j over 1/(T e^tau)"] == pytest.approx(low, abs=of_logits)


def test_the_closed_form_is_longer_than_a_feasible_vector():
    """The refutation: M by loops, `M^+ 1` by least squares, and a vector with all margins of 1 that is far shorter."""
    x = claim("A.lemma3-closed-form").refutation()
    problem, chosen = x.problems_and_choices[0]
    rows = []
    for tokens, important in zip(x.corpus.index, x.corpus.important, strict=True):
        top = problem.keys.vectors[tokens[important.argmax()]]
        rows += [top - problem.keys.vectors[s] for s in tokens[~important]]
    M = np.array(rows)
    vector = np.linalg.lstsq(M, np.ones(len(M)), rcond=None)[0]
    # Least squares leave the rounding of their terms, and the vector that of the condition number too.
    np.testing.assert_allclose(
        M @ vector, 1, rtol=0, atol=rounding(M.size, np.linalg.norm(M, 2) * np.linalg.norm(vector))
    )
    sizes = np.linalg.svd(M, compute_uv=False)  # rows repeat
    of_vector = rounding(M.size, sizes[0] / sizes[sizes > 1e-9 * sizes[0]].min())
    shorter = class_margin(problem, chosen).vector
    assert (M @ shorter).min() >= 1 - TOLERANCE
    assert np.linalg.norm(vector) > 5 * np.linalg.norm(shorter)
    apart = np.linalg.norm(vector - shorter) / np.linalg.norm(shorter)
    assert measured("A.lemma3-closed-form", x)["|M^+ 1 - p^| / |p^|"] == pytest.approx(apart, rel=of_vector, abs=0)


def test_no_gradient_along_what_ties_everything():
    """Lemma 6 by autograd: a vector orthogonal to all differences of tokens is orthogonal to the gradient."""
    x = EmbeddingInstance.of(4, 3, dimension=20, step=5.0)
    problem, prompt = x.problems_and_choices[0][0], x.steps[0].after.prompt
    differences = (problem.keys.tokens[:, :, None] - problem.keys.tokens[:, None]).reshape(-1, len(prompt))
    _, sizes, axes = np.linalg.svd(differences)
    tying = axes[(sizes > 1e-9).sum() :]
    assert len(tying) > 0
    (gradient,) = plain_gradient(problem, prompt[None])
    # Sums over twelve tokens in twenty dimensions, of numbers of size one.
    np.testing.assert_allclose(tying @ gradient, 0, rtol=0, atol=rounding(20 * 12))


@pytest.mark.parametrize("number", range(5))
def test_lemma_2_by_linear_programming(number):
    known = claim("B.lemma2")
    x = (known.example, *known.outside)[number]()
    problem = x.problem
    rows = [
        problem.keys.tokens[i, a] - problem.keys.tokens[i, t]
        for i, a in enumerate(problem.scores.argmax(axis=1))
        for t in range(problem.T)
        if t != a
    ]
    found = linprog(np.zeros(len(rows[0])), A_ub=-np.array(rows), b_ub=-np.ones(len(rows)), bounds=(None, None))
    assert (found.status == 0) == (number == 0)
    assert measured("B.lemma2", x)["ATT-SVM is feasible for the optimal tokens"] == float(found.status == 0)


@pytest.mark.parametrize("name", ["B.lemma8", "B.lemma8-second-part"])
def test_lemma_8_at_four_hundred_digits(name):
    known = claim(name)
    for make, promised in ((known.example, True), *((outside, False) for outside in known.outside)):
        x = make()
        p, q = (u / np.linalg.norm(u) for u in (x.p, x.q))
        low, high = (p, q) if name == "B.lemma8" else (q, p)
        with mpmath.workdps(400):
            below = [exact_risk(x.problem, r * low) < exact_risk(x.problem, r * high) for r in (200, 400, 800)]
        assert all(below) if promised else not any(below)


def test_lemma_14_pair_by_pair():
    for make, wrong in ((claim("B.lemma14").example, False), *((o, True) for o in claim("B.lemma14").outside)):
        x = make()
        optimal = x.problem.scores == x.problem.scores.max() if x.optimal is None else x.optimal
        rng = x.rng
        points = np.concatenate([r * x.sphere(60, rng) for r in np.geomspace(3, 300, 6)])
        points = np.concatenate([points[:12], points[-12:], points[150:174]])
        with mpmath.workdps(400):
            best = mpmath.log1p(mpmath.exp(-x.problem.scores.max()))
            risks = [exact_risk(x.problem, p) - best for p in points]
            logs = []
            for p in points:
                weights = [mpmath.exp(mpmath.fdot(k, p.tolist())) for k in x.problem.keys.tokens[0].tolist()]
                out = mpmath.fsum(w for w, inside in zip(weights, optimal[0], strict=True) if not inside)
                logs.append(float(mpmath.log(out / mpmath.fsum(weights))))
            pairs = itertools.product(range(len(points)), repeat=2)
            broken = [(i, j) for i, j in pairs if logs[i] <= min(1.5 * logs[j], -40.0) and risks[i] >= risks[j]]
        assert bool(broken) == wrong
        assert (measured("B.lemma14", x)["pairs ordered otherwise"] > 0) == wrong


def test_lemma_5_radius_by_autograd():
    """Figure 1a at |p| = 1, 2, 4, ... |p_mm|: whether the largest ratio is within pi, by autograd on a circle."""
    x = ProblemInstance(figure1a())
    axis = np.array([-0.1, 1.0, 0.0]) / math.hypot(0.1, 1.0)
    length = float(np.linalg.norm(max_margin(x.problem, [0]).vector))
    turns = np.linspace(0, 2 * np.pi, 20001)
    circle = np.stack([np.cos(turns), np.sin(turns), 0 * turns], axis=1)
    measured_radius = measured("B.lemma5", x)["R_pi / |p_mm| for pi = 0.1, measured"]
    for times in (1.0, 2.0, 4.0, 8.0, 16.0):  # beyond, single gradients fall below rounding
        descent = -plain_gradient(x.problem, times * length * circle)
        ratio = (descent * circle).sum(axis=1) / (descent @ axis)
        resolved = np.linalg.norm(descent, axis=1) > 1e-12
        assert (descent @ axis)[resolved].min() > 0
        assert (ratio[resolved].max() <= 1.1) == (times >= measured_radius), (times, ratio[resolved].max())


def test_theorem_2_growth_by_plain_descent():
    x = claim("B.theorem2").example()
    points, steps = 2 * x.sphere(3, x.rng), []
    gmm = max_margin(x.problem, x.alpha).vector
    for _ in range(2000):
        points = points - plain_gradient(x.problem, points) / printed_smoothness(x.problem, x.loss)
        steps.append(points @ gmm / np.linalg.norm(gmm))
    growth = float((steps[-1] - steps[-200]).min())
    assert (np.diff(steps, axis=0) > 0).all()  # Lemma 4: every step moves towards the GMM
    found = measured("B.theorem2", x)["growth of <p(t), p_mm/|p_mm|>, steps 1800 to 2000"]
    # Rounding adds up: 2000 steps, each a sum over three tokens, from which descent does not lead apart.
    assert found == pytest.approx(growth, abs=rounding(2000 * 20, float(np.linalg.norm(points, axis=1).max())))


def test_theorem_3_starts_at_many_digits():
    """The gradient at 50 radii of the cone, where doubles underflow, written out for one input."""
    x = claim("B.theorem3").example()
    axis = max_margin(x.problem, x.alpha).vector
    c = cone_constants(x.problem, axis, x.alpha)
    units = vectors_in_cone(x, axis, c.mu, 6, x.rng)
    axis = axis / np.linalg.norm(axis)
    cosines = []
    with mpmath.workdps(60):
        for unit in units:
            K, gamma = x.problem.keys.tokens[0].tolist(), x.problem.scores[0].tolist()
            logits = [mpmath.fdot(k, (50 * c.radius * unit).tolist()) for k in K]
            s = [mpmath.exp(z - max(logits)) for z in logits]
            s = [w / mpmath.fsum(s) for w in s]
            # pairs, so that nothing cancels: sum_{t<u} s_t s_u (gamma_t - gamma_u)(k_t - k_u)
            g = [mpmath.mpf(0)] * 3
            for t, u in itertools.combinations(range(3), 2):
                for j in range(3):
                    g[j] += s[t] * s[u] * (gamma[t] - gamma[u]) * (K[t][j] - K[u][j])
            cosines.append(float(mpmath.fdot(g, axis.tolist()) / mpmath.norm(g)))
    found = measured("B.theorem3", x)
    # Logits of some thousands are rounded to 1e-13 of themselves, and weights to as many times that.
    assert found["smallest cosine of -dL with the axis at the starts"] == pytest.approx(min(cosines), rel=1e-9, abs=0)
    assert follow_flow(x.problem, 50 * c.radius * units[0], norm=1e3 * c.radius).path.stop == "norm"


def test_theorem_4_path_by_scanning_the_cone():
    """q = (1, 0.5): the least risk of the cone is on its edge, at full length, and so it is at R = 10^4."""
    x = claim("B.theorem4").example()
    turn, half = math.atan2(0.5, 1.0), math.acos(1 - WIDTH)
    with mpmath.workdps(200):
        risks = {
            (r, k): exact_risk(x.problem, [r * math.cos(angle), r * math.sin(angle)])
            for r in (10, 30, 60, 100)
            for k in range(-10, 11)
            for angle in [turn + k * half / 10]
        }
    length, k = min(risks, key=lambda at: risks[at])
    assert (length, abs(k)) == (100, 10)
    found = measured("B.theorem4", x)
    # The edge of the cone is kept to 1e-9 of its cosine.
    assert found["|p(R)/R - q| at R = 10000"] == pytest.approx(2 * math.sin(half / 2), abs=1e-9 / math.sin(half))


def test_lemma_9_at_many_digits():
    """Along p the risk is above or below its limit as the neighbour's score says, at 60 digits."""
    for make in (claim("B.lemma9").example, claim("B.lemma9").outside[0]):
        x = make()
        with mpmath.workdps(60):
            limit = mpmath.log1p(mpmath.exp(-mpmath.mpf(x.problem.scores[0, 0])))
            below = exact_risk(x.problem, (40 * x.p).tolist()) < limit
        assert below == (claim("B.lemma9").on(x).verdict == "holds")
