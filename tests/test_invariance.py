"""The same problem in other words has the same limits: scaled, shifted, turned, reordered, every input twice."""

import numpy as np
import pytest

from tokenmargin.limits.limit import limit_of
from tokenmargin.margin import atlas
from tokenmargin.problem.token_problem import TokenProblem

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def drawn(seed):
    """Keys and scores, in turn small integers (ties, repeats) and any numbers, and a start."""
    rng = np.random.default_rng([77, seed])
    n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(1, 4))
    keys = rng.integers(-2, 3, (n, T, d)) + 0.0 if seed % 2 else rng.normal(size=(n, T, d))
    scores = rng.integers(0, 3, (n, T)) + 0.0 if seed % 3 else rng.normal(size=(n, T))
    return keys, scores, rng.normal(size=d), rng


def told_otherwise(keys, scores, start, rng):
    """Name, keys, scores, start, and the way back of a direction."""
    n, T, d = keys.shape
    turned, inputs, tokens = np.linalg.qr(rng.normal(size=(d, d)))[0], rng.permutation(n), rng.permutation(T)
    scale = float(rng.choice([1e-30, 1e-8, 1e8, 1e20]))
    yield "scaled", keys * scale, scores, start / scale, np.eye(d)
    yield "shifted", keys + rng.integers(-5, 6, (n, 1, d)), scores, start, np.eye(d)
    yield "turned", keys @ turned, scores, start @ turned, turned.T
    yield "reordered", keys[inputs][:, tokens], scores[inputs][:, tokens], start, np.eye(d)
    yield "twice", np.concatenate([keys, keys]), np.concatenate([scores, scores]), start, np.eye(d)


def answers(keys, scores, start, back=None):
    """Whether the atlas is complete, its kinds and unit directions; the limit from a start, and its direction."""
    problem = TokenProblem.of(keys, np.ones(len(keys)), scores=scores)
    limit, found = limit_of(problem, start), atlas(problem)
    back = np.eye(keys.shape[2]) if back is None else back
    listed = [(entry.kind, unit(entry.solution.vector) @ back) for entry in found.limits]
    return found.complete, listed, limit, unit(limit.solution.vector) @ back


def unit(vector):
    """The vector at length one, whatever its scale; zero where there is none."""
    vector = vector / (np.abs(vector).max() or 1.0)
    return vector / (np.linalg.norm(vector) or 1.0)


def same(listed, others):
    """Whether two lists hold the same kinds and directions. Certified vectors are within 1e-9 of their length."""
    near = [[kind == other and np.linalg.norm(u - v) <= 1e-7 for other, v in others] for kind, u in listed]
    return len(listed) == len(others) and all(sum(row) == 1 for row in near)


@pytest.mark.parametrize("seed", [3, 8, 13, 17])
def test_a_problem_told_otherwise_has_the_same_limits(seed):
    keys, scores, start, rng = drawn(seed)
    complete, listed, limit, direction = answers(keys, scores, start)
    for name, *others in told_otherwise(keys, scores, start, rng):
        other_complete, other_listed, other, other_direction = answers(*others)
        assert same(listed, other_listed) or not (complete and other_complete), name
        assert (other.outcome, other.kind) == (limit.outcome, limit.kind), name
        if limit.outcome == "direction":
            assert other_direction == pytest.approx(direction, abs=1e-7), name


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
def test_what_is_known_of_ties_does_not_depend_on_the_unit(scale):
    """One tie of this problem is neither found to be held nor excluded, in any unit."""
    keys = np.array(
        [
            [[2, -2, 2], [0, 0, 1], [0, -1, -2], [1, -2, -2]],
            [[0, 2, -1], [1, -1, 1], [-2, 0, 1], [2, -2, -1]],
            [[2, -2, 1], [2, 2, 0], [-1, -1, 0], [1, 0, -1]],
        ]
    )
    scores = np.array([[0, 1, 0, 0], [0, 1, 1, 0], [2, 2, 1, 2]]) + 0.0
    plain, scaled = (atlas(TokenProblem.of(keys * s, np.ones(3), scores=scores)) for s in (1.0, scale))
    assert plain.ties_undecided == scaled.ties_undecided == 1
