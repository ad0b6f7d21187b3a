"""The atlas against brute force, against descent, and against its own budget."""

import itertools
import tracemalloc

import numpy as np
import pytest
from scipy.optimize import nnls
from tests.oracles.certified import apart, assert_same_vector, margins_apart
from tests.oracles.rounding import rounding

from tokenmargin.dynamics import NormalizedGradientDescent, evolve
from tokenmargin.margin import GAP, TOLERANCE, atlas, choice_margin, limit_direction, max_margin
from tokenmargin.margin.certificate import PRODUCTS_TOLERANCE
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.problem.instances import figure1c, figure8, random_problem, shared_vocabulary_problem
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import cosine, is_globally_optimal, is_locally_optimal, neighbours, score_gaps


def brute_force(problem: TokenProblem) -> tuple[dict, int, int]:
    """Limits by selection, and the numbers of feasible and infeasible selections, one solve each; no ties."""
    limits, counts = {}, {"optimal": 0, "infeasible": 0, "inaccurate": 0}
    for selected in itertools.product(*(np.flatnonzero(row).tolist() for row in problem.mask)):
        solution = max_margin(problem, selected)
        counts[solution.status] += 1
        if solution.is_optimal and is_locally_optimal(problem, solution.vector, selected):
            limits[selected] = solution
    assert counts["inaccurate"] == 0
    return limits, counts["optimal"], counts["infeasible"]


def assert_complete(problem: TokenProblem) -> None:
    found = atlas(problem)
    expected, feasible, infeasible = brute_force(problem)
    assert found.complete
    assert (found.feasible, found.infeasible) == (feasible, infeasible)
    assert {tuple(limit.selected.tolist()) for limit in found.limits} == set(expected)
    for limit in found.limits:
        one = expected[tuple(limit.selected.tolist())]
        assert limit.solution.margin == pytest.approx(one.margin, rel=margins_apart(limit.solution, one), abs=0)
        assert limit.solution.certificate.residual <= TOLERANCE
        length = problem.keys.norm(one.vector)
        assert problem.keys.norm(limit.solution.vector - one.vector) <= apart(limit.solution, one) * length
        np.testing.assert_array_equal(limit.solution.tokens, one.tokens)
        np.testing.assert_array_equal(limit.neighbours, neighbours(problem, one.vector, limit.selected))
        gaps = score_gaps(problem, one.vector, limit.selected)
        np.testing.assert_allclose(limit.gaps, gaps, rtol=0, atol=rounding(2, np.abs(problem.scores).max()))
        assert limit.is_global == is_globally_optimal(problem, limit.selected)


@pytest.mark.parametrize(("n", "T", "d"), [(1, 4, 2), (2, 4, 2), (3, 3, 2), (3, 4, 3), (3, 4, 5), (2, 3, 30)])
def test_the_atlas_is_brute_force_over_all_selections(n: int, T: int, d: int) -> None:
    rng = np.random.default_rng(100 * n + 10 * T + d)
    for _ in range(4):
        assert_complete(random_problem(n, T, d, rng=rng))


def test_shared_tokens() -> None:
    assert_complete(shared_vocabulary_problem(3, 3, 4, vocabulary=5, rng=np.random.default_rng(3)))


def local_minima(problem: TokenProblem) -> list[np.ndarray]:
    """Limits by definition, by a solver that knows neither ties nor copies: p as the shortest vector.

    For every choice of one token per input, the shortest p that puts it ahead by 1 of the tokens of other (mean)
    scores; kept when the choice leads among its equals, its neighbours score less, and no choice among the tokens that
    lead with it is shorter.
    """
    keys, found = problem.keys.tokens, []
    means = np.array(
        [[s[(k == key).all(axis=1)].mean() for key in k] for k, s in zip(keys, problem.scores, strict=True)]
    )

    def shortest(choice: tuple[int, ...]) -> np.ndarray | None:
        rows = [k[t] - k[u] for k, m, t in zip(keys, means, choice, strict=True) for u in range(len(k)) if m[u] != m[t]]
        if not rows:
            return np.zeros(keys.shape[2])
        # Least distance programming (Lawson and Hanson): the residual of this fit is (p, -1) up to its length.
        above = np.vstack([np.array(rows).T, np.ones(len(rows))])
        target = np.eye(len(above))[-1]
        rest = above @ nnls(above, target)[0] - target
        return -rest[:-1] / rest[-1] if np.linalg.norm(rest) > 1e-9 else None

    for choice in itertools.product(range(problem.T), repeat=problem.n):
        p = shortest(choice)
        if p is None or not p.any():
            continue
        logits = keys @ p
        here = list(zip(logits, means, choice, strict=True))
        leads = [np.flatnonzero((m == m[t]) & (z >= z[m == m[t]].max() - 1e-7)).tolist() for z, m, t in here]
        outscored = any(((z[t] - z <= 1 + 1e-7) & (m > m[t])).any() for z, m, t in here)
        if outscored or any(t not in row for t, row in zip(choice, leads, strict=True)):
            continue
        others = [shortest(other) for other in itertools.product(*leads)]
        if all(q is not None and np.linalg.norm(q) > np.linalg.norm(p) * (1 - 1e-9) for q in others):
            found.append(p)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_ties_and_copies_by_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = seed % 2 == 0
    keys = rng.integers(-2, 3, (2, 3, 2)).astype(float) if whole else rng.standard_normal((2, 3, 2))
    if not whole:
        keys[0, 2] = keys[0, 0]
    problem = TokenProblem.of(keys, np.ones(2), scores=rng.integers(0, 3, (2, 3)).astype(float))
    expected = local_minima(problem)
    for pose in (problem, problem.as_gram()):
        found = atlas(pose)
        # Inner products hold half of the digits: that no direction keeps a tie is then not proven.
        assert found.complete or (pose is not problem and "of equals neither" in found.unsearched)
        ours = [
            limit.solution.vector @ (np.eye(2) if pose is problem else keys.reshape(-1, 2)) for limit in found.limits
        ]
        # Each of ours as near as its certificate promises; least squares loses what dividing by 1 / (1 + |p|^2) raises.
        near = [
            np.linalg.norm(q) * (apart(limit.solution) + rounding(50, 1 + q @ q))
            for q, limit in zip(ours, found.limits, strict=True)
        ]
        off = np.array([[np.linalg.norm(p - q) for p in expected] for q in ours]).reshape(len(ours), len(expected))
        met = off <= np.array(near)[:, None]
        assert met.any(axis=0).all()
        assert met.any(axis=1).all()


def test_an_input_of_one_token_asks_for_nothing() -> None:
    found = atlas(TokenProblem.of([[[1.0, 2.0]]], [1], scores=[[1.0]]))
    assert (found.complete, found.limits, found.selections) == (True, (), 1)
    mask = np.array([[True, False], [True, True]])
    keys = [[[1.0, 2.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]]
    for pose in (
        problem := TokenProblem.of(keys, np.ones(2), scores=[[1.0, 0.0], [1.0, 0.0]], mask=mask),
        problem.as_gram(),
    ):
        (limit,) = atlas(pose).limits
        assert limit.names == [0, 0]


def test_a_million_tokens_within_a_budget() -> None:
    """Only what the budget can look at is formed: the rows of every pair would fill terabytes."""
    rng = np.random.default_rng(0)
    problem = TokenProblem.of(rng.standard_normal((10, 10_000, 2)), np.ones(10), scores=rng.random((10, 10_000)))
    tracemalloc.start()
    found = atlas(problem, budget=20)
    assert tracemalloc.get_traced_memory()[1] < 1.5e9
    tracemalloc.stop()
    assert not found.complete
    assert "budget" in found.unsearched


def test_ragged_inputs() -> None:
    rng = np.random.default_rng(4)
    mask = np.array([[True, True, True], [True, False, True], [False, True, False]])
    assert_complete(TokenProblem.of(rng.standard_normal((3, 3, 3)), np.ones(3), scores=rng.random((3, 3)), mask=mask))


def test_gram_space_gives_the_same_atlas() -> None:
    problem = random_problem(3, 4, 6, rng=np.random.default_rng(5))
    ours, theirs = atlas(problem), atlas(problem.as_gram())
    assert [limit.selected.tolist() for limit in ours.limits] == [limit.selected.tolist() for limit in theirs.limits]
    for one, other in zip(ours.limits, theirs.limits, strict=True):
        found = other.solution.vector @ problem.keys.vectors
        assert_same_vector(found, one.solution.vector, one.solution, other.solution)


def test_a_spent_budget_is_a_partial_answer() -> None:
    problem = random_problem(4, 5, 10, rng=np.random.default_rng(6))
    whole, part = atlas(problem), atlas(problem, budget=50)
    assert whole.complete
    assert not part.complete
    assert part.solves == 50
    assert "partial" in repr(part)
    known = {tuple(limit.selected.tolist()) for limit in whole.limits}
    assert {tuple(limit.selected.tolist()) for limit in part.limits} <= known
    assert part.gmm is not None  # the best scores come first


def test_a_hopeless_tree_is_cut_at_its_root() -> None:
    """Twelve inputs of ten tokens on a line: 10^12 selections, decided by a few solves each input."""
    keys = np.random.default_rng(7).standard_normal((12, 10, 1))
    found = atlas(TokenProblem.of(keys, np.ones(12), scores=np.random.default_rng(8).random((12, 10))))
    assert found.complete
    assert found.selections == 10**12
    assert found.solves < 1000


def test_progress_and_json() -> None:
    seen: list[int] = []
    found = atlas(figure8(), progress=seen.append)
    assert seen[-1] == 4
    written = found.to_dict()
    assert written["complete"]
    assert [limit["gmm"] for limit in written["limits"]] == [True, False]


@pytest.mark.parametrize("problem", [figure1c(), figure8(), random_problem(3, 3, 2, rng=np.random.default_rng(11))])
def test_every_limit_attracts_descent_started_near_it(problem: TokenProblem) -> None:
    """Theorem 3: starts in a narrow cone around an LMM direction, far out, stay and converge to it."""
    rng = np.random.default_rng(9)
    for limit in atlas(problem).limits:
        direction = limit.solution.vector / np.linalg.norm(limit.solution.vector)
        nudge = rng.standard_normal((3, len(direction))) * problem.keys.vectors.any(axis=0)
        start = 60 / limit.solution.margin * (direction + 0.01 * nudge)
        path = evolve(PromptObjective(problem), NormalizedGradientDescent(0.5), steps=1000, start=start)
        assert (path.selected == limit.selected).all()
        assert (cosine(problem.keys, path.final, direction) > 0.999).all()


def test_no_limit_of_descent_is_missing() -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        problem = random_problem(3, 4, 3, rng=rng)
        known = {tuple(limit.selected.tolist()): limit.solution.vector for limit in atlas(problem).limits}
        path = evolve(
            PromptObjective(problem), NormalizedGradientDescent(0.5), steps=1500, start=rng.normal(size=(20, 3))
        )
        settled = 0
        for p, selected, mass in zip(path.final, path.selected, path.saturation, strict=True):
            solution = max_margin(problem, selected)
            if mass > 1 - 1e-5 and solution.is_optimal and cosine(problem.keys, p, solution.vector) > 0.999:
                settled += 1
                assert tuple(selected.tolist()) in known
        assert settled > 0


@pytest.mark.parametrize("norm", ["l2", "l1"])
def test_a_partial_atlas_calls_nothing_the_gmm_that_is_none(norm: str) -> None:
    """Two tokens score highest in every input: which choice has the largest margin is known when all are decided."""
    missed = 0
    for seed in range(12):
        keys = np.random.default_rng(seed).standard_normal((2, 3, 3))
        problem = TokenProblem.of(keys, [1, 1], scores=[[1, 1, 0], [1, 1, 0]])
        largest = choice_margin(problem, norm=norm).margin
        for budget in (1, 2, 4, 8, None):
            found = atlas(problem, budget=budget, norm=norm).gmm
            missed += found is None
            assert found is None or found.solution.margin == pytest.approx(largest, rel=2 * GAP, abs=0)
        assert found is not None  # without a budget
    assert missed


def test_neighbours_that_rounding_hides_are_not_overlooked() -> None:
    """Keys 1e-14 apart beside others at a distance of 1: the long vector knows margins of 1 to some percent.

    The first token of the second input holds the vector, so its margin is 1, and it scores higher.
    """
    keys = [
        [[1, 0], [0.9999999999999772, -1.7282580764065514e-14], [0.9999999999999843, 0]],
        [[1.000000000000047, 0], [1, 0], [0, 0.9999999999999597]],
    ]
    problem = TokenProblem.of(keys, [1, 1], scores=[[2, 1, 0], [1, 2, 0]])
    found = limit_direction(problem, [0, 2])
    assert found.solution.is_optimal
    assert found.solution.multipliers[found.solution.tokens.tolist().index([1, 0])] > 0
    assert found.neighbours[1, 0]
    assert found.kind == "not locally optimal"
    assert [0, 2] not in [limit.names for limit in atlas(problem).limits]


def test_margins_in_gram_space_are_those_of_single_calls() -> None:
    """The length of coefficients on keys 1e-5 apart has half the digits of that of their differences."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        keys = rng.standard_normal((2, 3, 3))
        keys[:, 1] = keys[:, 0] + 1e-5 * rng.standard_normal((2, 3))
        problem = TokenProblem.of(keys, [1, 1], scores=[[1, 0, 0], [1, 0, 0]]).as_gram()
        for limit in atlas(problem).limits:
            alone = max_margin(problem, limit.selected)
            assert limit.solution.margin == pytest.approx(alone.margin, rel=2 * PRODUCTS_TOLERANCE, abs=0)
