"""Next-token problems: graphs by brute force, both parts of the limit by clarabel, closed forms, and training."""

from __future__ import annotations

import json

import clarabel
import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp, softmax
from tests.oracles.by_clarabel import by_clarabel
from tests.oracles.certified import ESTIMATED, SETTLED, apart, assert_same_vector, margins_apart
from tests.oracles.rounding import rounding

import tokenmargin as tm
from tokenmargin.margin.constraints import Constraints
from tokenmargin.margin.graph_margin import forced_ties, graph_margin, node_vectors, order_margin
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.next_token import NextTokenProblem, load_next_token, next_token_windows
from tokenmargin.problem.problem_files import ProblemFileError


def drawn(rng, *, d=None, size=6, n=8, longest=6, queries=2):
    """A random problem: tokens repeat, lengths vary, several sequences share a last token."""
    sequences = [rng.integers(size, size=rng.integers(2, longest + 1)) for _ in range(n)]
    for row in sequences:
        row[-1] = rng.integers(queries)
    labels = [rng.choice(row) for row in sequences]
    embeddings = None if d is None else rng.normal(size=(size, d))
    return NextTokenProblem.of(sequences, labels, embeddings=embeddings, vocabulary=[str(k) for k in range(size)])


def closure(problem, last):
    """Which tokens reach which in the graph of a last token, edge by edge from the sequences themselves."""
    reach = np.zeros((problem.size, problem.size), dtype=bool)
    for i, label in enumerate(problem.labels):
        if problem.last[i] == last:
            for token in problem.tokens[problem.sequence == i]:
                reach[label, token] |= token != label
    for k in range(problem.size):
        reach |= np.outer(reach[:, k], reach[k])
    return reach


@pytest.mark.parametrize("seed", range(30))
def test_graphs_against_their_transitive_closure(seed):
    problem = drawn(np.random.default_rng(seed), size=5 + seed % 4, n=3 + seed % 9)
    for last in np.unique(problem.last).tolist():
        reach, graph = closure(problem, last), problem.graph.graph_of(last)
        together = reach & reach.T
        for a in range(graph.nodes):
            for b in range(graph.nodes):
                one, other = graph.token[a], graph.token[b]
                assert (graph.component[a] == graph.component[b]) == (a == b or together[one, other])
        for above, below in graph.order:
            one, other = (graph.token[graph.component == c][0] for c in (above, below))
            assert reach[one, other]
            assert not reach[other, one]
        ordered = problem.graph.components_of(last)
        assert sorted(token for component in ordered for token in component) == sorted(graph.token.tolist())
        places = {token: place for place, component in enumerate(ordered) for token in component}
        assert all(places[a] <= places[b] for a in places for b in places if reach[a, b] and not reach[b, a])


def test_an_edge_counts_once_in_a_sequence():
    graph = NextTokenProblem.of([[1, 1, 2, 2, 0], [2, 1, 0]], [1, 1]).graph
    assert dict(
        zip(zip(graph.token[graph.source], graph.token[graph.target], strict=True), graph.count, strict=True)
    ) == {
        (1, 0): 2,
        (1, 2): 2,
    }


@pytest.mark.parametrize("seed", range(12))
def test_order_margin_is_clarabels(seed):
    rng = np.random.default_rng(seed)
    m = int(rng.integers(2, 30))
    above, below = np.triu_indices(m, 1)
    kept = rng.random(len(above)) < rng.uniform(0.02, 0.5)
    kept[0] = True
    order, weights = np.stack([above[kept], below[kept]], axis=1), rng.integers(1, 6, m).astype(float)
    found = order_margin(weights, order)
    geometry = Coordinates(np.diag(1 / np.sqrt(weights)), np.arange(m)[None])
    asked = Constraints(geometry, order[:, 0], order[:, 1], np.ones(len(order)), order)
    assert found.status == "optimal"
    by_clarabel(asked).assert_agrees(found, np.sqrt(weights) * found.vector)


@pytest.mark.parametrize("seed", range(12))
def test_the_graph_problem_is_clarabels(seed):
    problem = drawn(np.random.default_rng(seed), d=7)
    found, graph, vectors = graph_margin(problem), problem.graph, node_vectors(problem)
    same = graph.component[graph.source] == graph.component[graph.target]
    geometry = Coordinates(vectors, np.arange(len(vectors))[None])
    ends = np.stack([graph.source, graph.target], axis=1)
    assert found.status == "optimal"
    theirs = by_clarabel(Constraints(geometry, *ends.T, (~same).astype(float), ends, equality=same))
    theirs.assert_agrees(found, found.vector)


@pytest.mark.parametrize("seed", range(6))
def test_orthonormal_tokens_are_unit_vectors(seed):
    """The sparse problem of a table and the dense one of a matrix have one solution, in both parts."""
    table = drawn(np.random.default_rng(seed))
    dense = NextTokenProblem(table.tokens, table.lengths, table.labels, table.vocabulary, np.eye(table.size))
    one, other = tm.next_token_limit(table), tm.next_token_limit(dense)
    a, b = one.matrix(one.direction.vector), other.matrix(other.direction.vector)
    assert_same_vector(a.ravel(), b.ravel(), one.direction, other.direction)
    # Each is proven to be no farther from the minimum than its distance.
    a, b = one.matrix(one.finite.point), other.matrix(other.finite.point)
    assert np.linalg.norm(a - b) <= one.finite.distance + other.finite.distance


def soft_by_clarabel(problem, classes):
    """The choice among tied tokens in exponential cones: min sum_i t_i, log sum_j m_j exp(a_j - a_y) <= t_i."""
    graph = problem.graph
    node = {pair: k for k, pair in enumerate(zip(graph.last.tolist(), graph.token.tolist(), strict=True))}
    blocks, costs = [], np.zeros(graph.nodes)
    rows, columns, data, offset, width = [], [], [], [], graph.nodes
    cones = []
    for i, label in enumerate(problem.labels.tolist()):
        tokens, counts = np.unique(problem.tokens[problem.sequence == i], return_counts=True)
        last = int(problem.last[i])
        y = node[last, label]
        tied = [(node[last, t], c) for t, c in zip(tokens.tolist(), counts.tolist(), strict=True)
                if classes[node[last, t]] == classes[y]]  # fmt: skip
        t_i = width
        width += 1
        sums = []
        for k, count in tied:
            u = width
            width += 1
            sums.append(u)
            # (a_k + log count - a_y - t_i, 1, u) in the exponential cone: exp(first) <= u
            base = len(offset)
            for column, value in ((k, -1.0), (y, 1.0), (t_i, 1.0)):
                rows.append(base), columns.append(column), data.append(value)
            rows.append(base + 2), columns.append(u), data.append(-1.0)
            offset += [np.log(count), 1.0, 0.0]
            cones.append(clarabel.ExponentialConeT())
        blocks.append((t_i, sums))
    for _, sums in blocks:
        for u in sums:
            rows.append(len(offset)), columns.append(u), data.append(1.0)
        offset.append(1.0)
        cones.append(clarabel.NonnegativeConeT(1))
    costs = np.zeros(width)
    costs[[t for t, _ in blocks]] = 1.0
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    matrix = sparse.csc_matrix((data, (rows, columns)), shape=(len(offset), width))
    ridge = sparse.csc_matrix((width, width))
    found = clarabel.DefaultSolver(ridge, costs, matrix, np.array(offset), cones, settings).solve()
    count = np.array([np.log((problem.tokens[problem.sequence == i] == y).sum()) for i, y in enumerate(problem.labels)])
    return str(found.status), np.array(found.x)[: graph.nodes], (found.obj_val - count.sum()) / problem.n


@pytest.mark.parametrize("seed", range(10))
def test_the_finite_part_is_clarabels(seed):
    problem = drawn(np.random.default_rng(seed + 50), n=14)
    limit = tm.next_token_limit(problem)
    status, logits, risk = soft_by_clarabel(problem, problem.graph.component)
    assert status == "Solved"
    assert limit.is_certified
    # Clarabel's gap is 1e-8 of the loss, and the loss is quadratic at its minimum.
    assert limit.finite.risk == pytest.approx(risk, abs=1e-6)
    classes = problem.graph.component
    mean = (np.bincount(classes, logits) / np.bincount(classes))[classes]
    several = problem.graph.sizes[classes] > 1
    # As said: the square root of 1e-8, times the curvature, which shares of 1/14 and less make flat.
    assert limit.finite.logits[several] == pytest.approx((logits - mean)[several], abs=2e-3)


@pytest.mark.parametrize(("first", "second", "copies"), [(1, 1, 1), (3, 1, 1), (2, 5, 3), (400, 1, 2)])
def test_log_odds(first, second, copies):
    """Two tokens that come next m1 and m2 times where both can, one of them in copies: logits differ by log-odds."""
    rows = [[1] * copies + [2, 3, 0]] * (first + second)
    limit = tm.next_token_limit(NextTokenProblem.of(rows, [1] * first + [2] * second))
    odds = np.log(first / second / copies)
    # No farther from the minimum than is proven, and a few roundings of the logarithms here.
    known = limit.finite.distance + rounding(4, max(1.0, abs(odds)))
    assert limit.finite.logits == pytest.approx([0, odds / 2, -odds / 2, 0], abs=known)
    # Margin 1 over two tokens below, two above: levels -1/2 and 1/2, a vector of length one.
    assert np.linalg.norm(limit.logits - [-0.5, 0.5, 0.5, -0.5]) <= apart(limit.direction)
    share = first / (first + second)
    # A mean over all, and logarithms of shares, which are known to rounding also where they are near one.
    risk = -share * np.log(share) - (1 - share) * np.log(1 - share)
    assert limit.finite.risk == pytest.approx(risk, abs=rounding(10) + rounding(first + second, risk))
    assert limit.predict([3, *[1] * copies, 2, 0]) == pytest.approx({1: share, 2: 1 - share}, rel=rounding(200), abs=0)


def test_the_proven_distance_holds():
    """A point off the minimum by a known amount: the distance proven from its gradient covers it, and not by far."""
    problem = drawn(np.random.default_rng(3), n=20, size=4, queries=1)
    from tokenmargin.limits.tied_choice import tied_choice

    choice = tied_choice(problem, problem.graph)
    best = choice.minimum()
    rng, tied = np.random.default_rng(0), problem.graph.sizes[problem.graph.component] > 1
    for size in (1e-3, 1e-6):
        move = np.where(tied, rng.normal(size=len(best.logits)), 0.0)
        classes = problem.graph.component
        move -= (np.bincount(classes, move) / np.bincount(classes))[classes] * tied
        move *= size / np.linalg.norm(move)
        shares, _ = choice.shares(best.logits + move)
        length = float(np.linalg.norm(choice.pull(shares)))
        assert size <= choice.distance_bound(shares, length) <= 100 * size


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("seed", [0, 1])
def test_training_goes_there(seed):
    """Gradient flow of the very same W, from a random start: its limit has these two parts."""
    rng = np.random.default_rng(seed)
    problem = drawn(rng, d=7, n=6, longest=4)
    limit = tm.next_token_limit(problem)
    found = tm.limit_of(problem.attention(), rng.normal(size=49) / 5, loss=tm.LogLoss())
    assert limit.is_certified
    if found.path.finite_part is not None:
        off = found.path.finite_part.point - limit.finite.point
        assert np.linalg.norm(off) <= limit.finite.distance + ESTIMATED * found.path.finite_part.error
    assert found.outcome in ("direction", "finite part")
    assert found.angle <= SETTLED
    # Two certified vectors.
    assert_same_vector(found.solution.vector, limit.direction.vector, found.solution, limit.direction)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e-30, 1e10])
def test_dependent_embeddings_force_further_ties(scale):
    """1 ahead of 2 and 4 ahead of 3, with x1 - x2 = x3 - x4: no W satisfies both, so all four tie in pairs."""
    rows = scale * np.array([[0.0, 0, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0], [0, 1, 0]])
    problem = NextTokenProblem.of([[1, 2, 0], [3, 4, 0], [1, 2, 0]], [1, 4, 1], embeddings=rows)
    assert graph_margin(problem).status == "infeasible"
    graph = problem.graph
    forced = forced_ties(problem)
    pairs = {
        (int(graph.token[a]), int(graph.token[b]))
        for a, b in zip(graph.source[forced], graph.target[forced], strict=True)
    }
    assert pairs == {(1, 2), (4, 3)}
    limit = tm.next_token_limit(problem)
    assert limit.dependent
    assert limit.is_certified
    # One logit difference u for both pairs: 2 log(1 + exp(-u)) + log(1 + exp(u)) is least at exp(u) = 2.
    nodes = {int(token): k for k, token in enumerate(graph.token)}
    assert limit.finite.logits[nodes[1]] - limit.finite.logits[nodes[2]] == pytest.approx(
        np.log(2), abs=limit.finite.distance / limit.finite.unit + rounding(4)
    )
    found = tm.limit_of(problem.attention(), loss=tm.LogLoss())
    assert found.outcome == "finite part"
    assert_same_vector(found.solution.vector, limit.direction.vector, found.solution, limit.direction)
    off = found.path.finite_part.point - limit.finite.point
    assert np.linalg.norm(off) <= limit.finite.distance + ESTIMATED * found.path.finite_part.error


def test_a_query_of_length_zero_moves_nothing():
    embeddings = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    problem = NextTokenProblem.of([[1, 2, 0]], [1], embeddings=embeddings)
    limit = tm.next_token_limit(problem)
    assert limit.finite.distance == 0
    assert not limit.finite.point.any()
    assert limit.finite.risk == pytest.approx(
        np.log(3), rel=rounding(4), abs=0
    )  # every token keeps a third of the weight for ever


def test_one_component_stays_finite():
    limit = tm.next_token_limit(NextTokenProblem.of([[1, 0], [1, 0], [1, 0]], [1, 0, 0]))
    assert limit.direction.margin == np.inf
    assert limit.finite.logits == pytest.approx([np.log(2) / 2, -np.log(2) / 2], rel=rounding(100), abs=0)


def test_windows():
    texts, lengths = np.array([0, 1, 0, 1, 1, 2, 0, 2]), np.array([5, 3])
    problem = next_token_windows(texts, lengths, "abc", window=2)
    rows = [problem.tokens[problem.sequence == i].tolist() for i in range(problem.n)]
    assert (rows, problem.labels.tolist()) == ([[0, 1], [1, 0], [0, 1], [2, 0]], [0, 1, 1, 2])
    with pytest.raises(ValueError, match="nothing to predict"):
        next_token_windows(np.arange(4), np.array([4]), "abcd")
    with pytest.raises(ValueError, match="window must be at least 1"):
        next_token_windows(texts, lengths, "abc", window=0)


@pytest.mark.parametrize(
    ("sequences", "labels", "message"),
    [
        ([[0, 1], []], [0, 1], "sequence 1 is empty"),
        ([[0, 1], [1, 2]], [0, 0], "sequence 1: its next token 0 is not one of its tokens"),
        ([], [], "at least one sequence"),
        ([[0, 1]], [0, 1], "as many next tokens"),
        ([[0, -1]], [0], "must lie in 0..0"),
    ],
)
def test_bad_sequences_are_refused_in_a_line(sequences, labels, message):
    with pytest.raises(ValueError, match=message) as error:
        NextTokenProblem.of(sequences, labels)
    assert "\n" not in str(error.value)


def test_bad_embeddings_are_refused():
    with pytest.raises(ValueError, match="one row for each of 2 tokens"):
        NextTokenProblem.of([[0, 1]], [0], embeddings=np.ones((3, 2)), vocabulary=["a", "b"])
    with pytest.raises(ValueError, match="finite"):
        NextTokenProblem.of([[0, 1]], [0], embeddings=[[0.0], [np.nan]])


def test_files(tmp_path):
    path = tmp_path / "toy.json"
    path.write_text(json.dumps({"sequences": [[1, 0], [0, 1, 0]], "next": [1, 1], "vocabulary": ["a", "b"]}))
    assert load_next_token(path).graph.components_of(0) == [[1], [0]]
    for text, message in (("{", "not valid JSON"), ('{"sequences": []}', "a next-token file is"),
                          ('{"sequences": [[]], "next": [0]}', "sequence 0 is empty")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ProblemFileError, match=message):
            load_next_token(path)
    with pytest.raises(ProblemFileError, match="no such file"):
        load_next_token(tmp_path / "none.json")


def test_log_loss_against_its_derivative():
    u, h, loss = np.linspace(0.05, 1.0, 20), 1e-6, tm.LogLoss()
    # A central difference is off by h^2 / 6 times the third derivative, at most 2 / 0.05^3.
    slope = (loss.value(u + h) - loss.value(u - h)) / (2 * h)
    assert -np.exp(loss.log_slope(u)) == pytest.approx(slope, rel=1e-7, abs=0)
    bend = (loss.log_slope(u + h) - loss.log_slope(u - h)) / (2 * h)
    # The second derivative of log: its third is at most 2 / u of it, and h^2 and eps / h follow.
    assert loss.log_slope_derivative(u) == pytest.approx(bend, rel=1e-7, abs=0)
    assert loss.constants(0.5, 1.0) == (4.0, 2.0)
    with pytest.raises(ValueError, match="outputs above 0"):
        loss.value(np.array([0.5, -0.1]))
    assert loss.value(np.array(0.0)) == np.inf
    with pytest.raises(ValueError, match="no step-size rule"):
        loss.constants(0.0, 1.0)


def test_outputs_that_have_underflowed_keep_their_loss_gradient_and_hessian():
    """Next tokens some thousands of logits behind: -log of their weight is linear there, `mean (s - q) x` and `cov_s -
    cov_q` with q the weights among next tokens alone, by softmax of each."""
    problem = NextTokenProblem.of(
        [[1, 2, 3, 0], [2, 1, 1, 3, 0], [3, 1, 0]],
        [3, 3, 1],
        embeddings=np.array([[1.0, 0], [30, 1], [30, 0.5], [-30, 2]]),
    )
    objective = tm.PromptObjective(problem.attention(), tm.LogLoss())
    W = np.array([100.0, 0.7, 3.0, -2.0])
    value, gradient, hessian = 0.0, np.zeros(4), np.zeros((4, 4))
    for row, mask, y, z in zip(problem.index, problem.mask, problem.labels, problem.last, strict=True):
        rows = np.array([np.outer(problem.embeddings[z], problem.embeddings[x]).ravel() for x in row[mask]])
        logits, own = rows @ W, row[mask] == y
        s, q = softmax(logits), softmax(np.where(own, logits, -np.inf))
        value += (logsumexp(logits) - logsumexp(logits[own])) / problem.n
        gradient += (s - q) @ rows / problem.n
        for weights, sign in ((s, 1), (q, -1)):
            apart = rows - weights @ rows
            hessian += sign * (apart.T * weights) @ apart / problem.n
    assert objective.outputs(W)[0] == 0  # underflowed
    # Sums of four products, up to 30 times 100. Weights move by twice as much, gradients by 30 times that.
    weights_apart = 2 * rounding(4, 3000.0)
    assert float(objective.value(W)) == pytest.approx(value, rel=0, abs=weights_apart)
    np.testing.assert_allclose(objective.gradient(W), gradient, rtol=0, atol=30 * weights_apart)
    descent, relative, _ = objective.linearise(W)
    # ... and the Hessian by that times 30 again.
    np.testing.assert_allclose(-relative * np.exp(descent.log_norm[0]), hessian, rtol=0, atol=30**2 * weights_apart)
    assert np.abs(hessian).max() > 1e-2


@pytest.mark.usefixtures("unchecked_shapes")
def test_flows_from_starts_that_underflow_and_embeddings_of_all_lengths_settle():
    """Lengths of 0.015 and 72: solvers stall at the tolerance asked, and go on with a larger one; from the second start
    a next token is thousands of logits behind."""
    rows = np.array([[1.50038960e-02, -1.30294817e-03], [-3.56829623e01, 6.23102018e01]])
    sequences = [
        [0, 1, 1, 1, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1],
        [1, 0, 1],
        [0, 0, 1, 1, 1],
        [0, 0],
        [0, 0, 1, 1],
        [1, 0, 1, 1],
    ]
    problem = NextTokenProblem.of(sequences, [1, 1, 0, 1, 1, 0, 1, 1], embeddings=rows)
    limit = tm.next_token_limit(problem)
    for start in (np.zeros(4), np.array([1.0, 0, 0, 1])):
        found = tm.limit_of(problem.attention(), start, loss=tm.LogLoss())
        assert found.outcome == "finite part"
        assert limit.cosine(found.solution.vector) > 1 - SETTLED**2
        assert start.any() or found.path.settings.tolerance > 1e-10


def test_shares_of_level_tokens_that_nothing_ties_are_not_predicted() -> None:
    """1 and 3 are both ahead of 2, and level in W_mm; training shares them 3 : 1, as often as each came next."""
    sequences, following = [[1, 2, 0]] * 3 + [[3, 2, 0]], [1, 1, 1, 3]
    problem = NextTokenProblem.of(sequences, following, embeddings=np.eye(4))
    path = tm.limit_of(problem.attention(), loss=tm.LogLoss()).path
    logits = path.at_norm(1e4).reshape(4, 4)[0]
    assert logits[1] - logits[3] == pytest.approx(np.log(3), abs=1e-6)  # the other weights are exp(-1e4)
    for told in (problem, NextTokenProblem.of(sequences, following)):
        with pytest.raises(ValueError, match="1 and 3 are level"):
            tm.next_token_limit(told).predict([1, 3, 0])
        assert tm.next_token_limit(told).predict([1, 2, 0]) == {1: 1.0}


def test_a_token_with_the_vector_of_a_tied_one_shares_as_that_does() -> None:
    """1 and 2 came next 2 : 1; 3, of which no sequence says how it stands to them, has the vector of 1."""
    sequences, following = [[1, 2, 0]] * 3 + [[3, 4, 0]], [1, 1, 2, 3]
    twins = tm.next_token_limit(NextTokenProblem.of(sequences, following, embeddings=np.eye(5)[[0, 1, 2, 1, 4]]))
    assert twins.predict([1, 3, 0]) == {1: 0.5, 3: 0.5}
    assert twins.predict([3, 2, 0]) == pytest.approx({3: 2 / 3, 2: 1 / 3}, abs=2 * twins.finite.distance)
    assert json.loads(json.dumps(twins.to_dict()))["certified"]


@pytest.mark.parametrize(("apart", "certified"), [(0.0, True), (1e-13, False), (1e-11, False), (1.0, True)])
def test_a_finite_part_in_a_dimension_that_rounding_hides_is_not_proven(apart: float, certified: bool) -> None:
    """Three tied tokens on a line, but for `apart`: on it two logits decide the third, beside it none does, and W_fin
    is of length 1 / apart. To rounding it was that of tokens on the line, and said to be proven."""
    rows = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [2.0, 0.0, 0.0], [3.0, apart, 0.0]])
    problem = NextTokenProblem.of([[1, 2, 3, 0]] * 6, [1, 1, 1, 2, 2, 3], embeddings=rows)
    assert tm.next_token_limit(problem).is_certified == certified


@pytest.mark.parametrize("seed", range(6))
def test_ties_of_more_tokens_than_dimensions_are_decided(seed: int) -> None:
    """The differences of four tied tokens span two dimensions; z (x_i - x_j)', rounded, would span a third. The others
    are behind in a dimension of their own."""
    rows = np.random.default_rng(seed).standard_normal((6, 3))
    rows[:, 2] = [0, 1, 1, 1, 1, 0]
    problem = NextTokenProblem.of([[1, 2, 5, 0], [2, 3, 0], [3, 4, 0], [4, 1, 0]], [1, 2, 3, 4], embeddings=rows)
    found = graph_margin(problem)
    assert found.is_optimal
    assert found.margin == pytest.approx(np.linalg.norm(rows[0]), rel=margins_apart(found), abs=0)  # W = z e_3' / |z|^2
