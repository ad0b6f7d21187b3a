"""What the claims of paper D call false, and the spaces and sets they speak of, by other means."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from tests.oracles.rounding import rounding

from tokenmargin.dynamics import regularisation_path
from tokenmargin.margin.graph_margin import active_subspace, cyclic_subspace, node_vectors, svm_subspace
from tokenmargin.problem.next_token import NextTokenProblem
from tokenmargin.theory import claim
from tokenmargin.theory.paper_d import assumption1, assumption2, assumption3
from tokenmargin.theory.paper_d.instance import FlatLoss, NextTokenInstance, beside_a_tie, one_ring, tied_pair


def drawn(seed):
    """Sequences with repeats and cycles, embeddings dependent or not."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    sequences = [rng.integers(size, size=rng.integers(1, 7)) for _ in range(int(rng.integers(1, 9)))]
    labels = [int(rng.choice(row)) for row in sequences]
    rows = rng.standard_normal((size, int(rng.integers(1, 6))))
    return NextTokenProblem.of(sequences, labels, embeddings=rows), sequences, labels


def reach(sequences, labels):
    """Which token is reachable from which, after each last token: by going through the edges until nothing is new."""
    found = {(row[-1], y, x) for row, y in zip(sequences, labels, strict=True) for x in row}
    while True:
        more = {(k, a, c) for k, a, b in found for k2, b2, c in found if k == k2 and b == b2} - found
        if not more:
            return found
        found |= more


@pytest.mark.parametrize("seed", range(20))
def test_the_cyclic_subdataset_by_reachability(seed):
    problem, sequences, labels = drawn(seed)
    found = reach(sequences, labels)
    kept = [[x == y or ((row[-1], x, y) in found) for x in row] for row, y in zip(sequences, labels, strict=True)]
    assert problem.with_label.tolist() == [one for row in kept for one in row]
    others = [any(one and x != y for one, x in zip(keep, row, strict=True))
              for keep, row, y in zip(kept, sequences, labels, strict=True)]  # fmt: skip
    assert problem.cyclic.tolist() == others


@pytest.mark.parametrize("seed", range(20))
def test_subspaces_by_all_pairs(seed):
    """Definitions 1, 5 and 7: every pair of tied tokens, and every edge, lies in its span and fills it."""
    problem, sequences, labels = drawn(seed)
    found, vectors, graph = reach(sequences, labels), node_vectors(problem), problem.graph
    nodes = list(zip(graph.last.tolist(), graph.token.tolist(), strict=True))
    tied = [(a, b) for a, (k, x) in enumerate(nodes) for b, (m, y) in enumerate(nodes)
            if k == m and a != b and (k, x, y) in found and (k, y, x) in found]  # fmt: skip
    edges = [(nodes.index((row[-1], y)), nodes.index((row[-1], x)))
             for row, y in zip(sequences, labels, strict=True) for x in row]  # fmt: skip
    off = 0.0
    for pairs, basis in ((tied, cyclic_subspace(problem)), (edges, active_subspace(problem))):
        rows = np.array([vectors[a] - vectors[b] for a, b in pairs] + [0 * vectors[0]])
        assert np.linalg.matrix_rank(rows, tol=1e-9) == len(basis)  # of rows drawn at random: none is nearly dependent
        off += of_span(rows)
        assert np.abs(rows - rows @ basis.T @ basis).max() <= of_span(rows) * np.abs(rows).max()
    svm, fin, active = svm_subspace(problem), cyclic_subspace(problem), active_subspace(problem)
    assert len(svm) + len(fin) == len(active)
    assert np.abs(svm @ fin.T).max(initial=0) <= off
    assert np.abs(svm - svm @ active.T @ active).max(initial=0) <= off


def of_span(rows):
    """Rounding of an orthonormal basis by decomposition, of lines that have length one as well as of these."""
    rows = rows[np.abs(rows).max(axis=1) > 0]
    if not len(rows):
        return 0.0
    lines = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    sizes = np.concatenate(
        [one[0] / one[one > 1e-9] for one in (np.linalg.svd(x, compute_uv=False) for x in (rows, lines))]
    )
    return float(rounding(rows.size, sizes.max()))


def flat_excess(w):
    """Excess risk of 1 and 2 each before 0, best outputs 1 and 1/2, in closed form: no difference cancels."""
    weights = expit([w[0] - w[1], w[0] - w[2]])  # of 0 in either sequence
    lost = weights[1] / 2
    return np.log(weights[0] ** 2 / (1 + weights[0]) + lost * (1 - 1 / (1.5 * (1.5 + lost))))


def test_a_loss_that_is_flat_at_an_output_turns_the_path_elsewhere():
    """Theorem 4 as printed: over spheres, by another method. W_svm is (-2, 1, 1), the path goes to (-1, 0, 1)."""
    rng = np.random.default_rng(0)
    cosines = []
    for radius in (10.0, 100.0, 300.0):
        options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 4000}
        runs = [
            minimize(
                lambda y, r=radius: flat_excess(r * y / np.linalg.norm(y)), y0, method="Nelder-Mead", options=options
            )
            for y0 in rng.normal(size=(6, 3))
        ]
        best = min(runs, key=lambda run: run.fun).x
        best /= np.linalg.norm(best)
        cosines.append((best @ [-1, 0, 1] / np.sqrt(2), best @ [-2, 1, 1] / np.sqrt(6)))
    assert cosines[-1][0] > 1 - 1e-4  # an angle of 0.014 is left at a radius of 300
    assert cosines[0][0] < cosines[-1][0]
    assert cosines[-1][1] < np.sqrt(3) / 2 + 0.02  # the cosine of the two directions is sqrt(3) / 2
    (shown,) = [report for report in claim("D.theorem4").own() if report.kind == "refutation"]
    assert shown.verdict == "fails"
    ratio = shown.findings.conclusion[0].measured
    assert ratio == pytest.approx(
        np.sqrt(4 / 3), abs=1e-6
    )  # margins 1/sqrt(2) and 3/(2 sqrt(6)), counted twice and once


def test_a_loss_is_flat_where_the_score_is_free_of_rounding():
    """The first token scores 1, where the loss is flat, and the second 1/2. Turned, its score is 1 after rounding."""
    verdicts = []
    for turn in (np.eye(2), np.linalg.qr(np.random.default_rng(1).standard_normal((2, 2)))[0]):
        head = np.array([[1.0, 0.25], [0.25, 0.5]]) @ turn
        problem = NextTokenProblem.of([[0, 1], [1, 0]], [0, 1], embeddings=turn)
        x = NextTokenInstance(problem, "outputs of 1 and 1/2", FlatLoss(), head=head)
        assert (x.objective.problem.scores == 1).any()
        verdicts.append(claim("D.theorem4").on(x).verdict)
    assert verdicts == ["fails", "undecided"]


def test_descent_on_one_cycle_converges():
    """Theorem 2 as printed asks |W| to grow; the matrices themselves stand still."""
    x = one_ring()
    W = x.start
    for _ in range(3000):
        W = W - 1 / x.smoothness() * x.objective.gradient(W)
    assert np.linalg.norm(x.objective.gradient(W)) <= rounding(100)  # sums of a few terms of size one
    assert np.linalg.norm(W) < 3
    # Rounding leaves either so far from the minimum: it is proven of one; W is shorter than 3.
    off = 2 * x.limit.finite.distance + rounding(10, 3)
    assert np.linalg.norm(W - x.limit.finite.point - x.across_cyclic(x.start)) <= off


@pytest.mark.parametrize("length", [50.0, 100.0, 200.0])
def test_no_radius_serves_for_all_projections(length):
    """Lemma 15 as printed, pi = 0.1, by the risk itself: 1 and 2 tie and are pushed apart by twice the length, so that
    the sequence (1, 0) wants 0 out of the way and nothing else."""
    x = beside_a_tie()
    logits = np.array([-2, 1, 1, 0, 0]) / np.sqrt(6)  # the best for 0 alone, of length 1
    apart = 2 * length * np.array([0, -1, 1, 0, 0]) / np.sqrt(2)
    table = np.zeros((2, 5, 5))
    table[0, 0] = length * logits + apart
    table[1, 0] = apart
    compared = table[1].ravel() + 1.1 * length * x.svm / np.linalg.norm(x.svm)
    assert float(x.objective.value(table[0].ravel())) < float(x.objective.value(compared)) - 1


def test_the_lipschitz_constant_is_a_bound_on_hessians():
    """(22), and the sharper M^4 of our note, against second differences."""
    for x in (tied_pair(), beside_a_tie()):
        longest = np.linalg.norm(x.embeddings, axis=1).max()
        for W in x.points():
            direction = x.rng.standard_normal(W.shape)
            direction /= np.linalg.norm(direction)
            bend = np.linalg.norm(x.objective.gradient(W + 1e-4 * direction) - x.objective.gradient(W)) / 1e-4
            # No mean of the Hessian exceeds its bound; the gradients, of some tens of terms, are rounded.
            assert bend <= longest**4 + rounding(100, longest**2) / 1e-4
        assert longest**4 <= x.smoothness()


def test_paths_of_log_loss_do_not_raise():
    """Outputs that underflow, at random starts of long keys, are no points to go to."""
    rows = 100 * np.random.default_rng(0).standard_normal((3, 3))
    problem = NextTokenProblem.of([[1, 0], [2, 1, 0]], [1, 2], embeddings=rows)
    x = tied_pair()
    path = regularisation_path(type(x)(problem).objective, [1e-3, 1e-2], rng=0, starts=3)
    assert np.isfinite(path.points).all()


def test_assumptions():
    eye = np.eye(3)
    assert assumption1(eye, eye).holds
    assert not assumption1(eye, 2 * eye).holds
    assert assumption1(np.array([[1e-6, 0], [1e3, 1e3]])).holds  # lengths do not matter
    assert not assumption1(np.array([[1.0, 0], [2, 0]])).holds
    assert not assumption1(np.array([[1.0, 0], [0, 0]])).holds
    assert assumption3(eye, 2 * eye).holds
    assert not assumption3(eye, np.ones((3, 3))).holds  # ties are no maximum at y alone
    assert assumption2([[0, 1], [2]], [1, 2]).holds
    assert not assumption2([[0, 1], [2]], [1, 0]).holds
    with pytest.raises(ValueError, match="shape of the embeddings"):
        tied_pair().problem.attention(np.ones((2, 2)))


def test_flat_loss_falls_everywhere_with_the_slope_it_says():
    loss, u = FlatLoss(), np.linspace(-5, 5, 2001)
    assert (np.diff(loss.value(u)) < 0).all()
    inner = u[1:-1][np.abs(u[1:-1] - 1) > 0.01]
    slope = (loss.value(inner + 1e-6) - loss.value(inner - 1e-6)) / 2e-6
    np.testing.assert_allclose(-np.exp(loss.log_slope(inner)), slope, rtol=1e-6)  # eps / 1e-6 over slopes of 1e-2
    bend = (loss.log_slope(inner + 1e-6) - loss.log_slope(inner - 1e-6)) / 2e-6
    np.testing.assert_allclose(loss.log_slope_derivative(inner), bend, rtol=1e-5, atol=1e-5)
    assert np.isneginf(loss.log_slope(np.array(1.0)))
