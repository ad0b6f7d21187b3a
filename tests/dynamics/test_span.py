"""Coordinates in the span: the same inner products, and a way back."""

import numpy as np
import pytest

from tokenmargin.dynamics.span import Reduced, Span
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.problem.instances import figure1c, random_problem, shared_vocabulary_problem

GEOMETRIES = {
    "wide": lambda: random_problem(2, 3, 50, rng=np.random.default_rng(0)).keys,
    "tall": lambda: random_problem(3, 4, 5, rng=np.random.default_rng(0)).keys,
    "gram": lambda: random_problem(3, 4, 5, rng=np.random.default_rng(0)).keys.as_gram(),
    "gram of a plane": lambda: figure1c().keys.as_gram(),
    "vocabulary": lambda: shared_vocabulary_problem(3, 2, 20, vocabulary=9, rng=np.random.default_rng(0)).keys,
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_logits_and_lengths_survive_the_reduction(name):
    geometry = GEOMETRIES[name]()
    span = Span.of(geometry)
    rng = np.random.default_rng(1)
    p = geometry.pullback(rng.standard_normal((4, *geometry.index.shape)))  # in the span
    y = span.reduce(p)
    assert span.dimension <= min(geometry.dimension, geometry.index.size)
    np.testing.assert_allclose(span.tokens.logits(y), geometry.logits(p), atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), geometry.norm(p), rtol=1e-12)
    np.testing.assert_allclose(geometry.logits(span.lift(y)), geometry.logits(p), atol=1e-12)


@pytest.mark.parametrize("objective_class", [PromptObjective, JointObjective])
@pytest.mark.parametrize("gram", [False, True])
def test_reduced_objective_has_the_same_risk_and_descent(objective_class, gram):
    problem = random_problem(2, 3, 20, rng=np.random.default_rng(0))
    objective = objective_class(problem.as_gram() if gram else problem)
    reduced = Reduced.of(objective)
    theta = objective.start() + np.random.default_rng(1).standard_normal(objective.dimension)
    y = reduced.reduce(theta)
    np.testing.assert_allclose(reduced.objective.value(y), objective.value(theta), rtol=1e-12)
    ours, theirs = reduced.objective.descent(y), objective.descent(theta)
    np.testing.assert_allclose(ours.log_norm, theirs.log_norm, atol=1e-11)
    np.testing.assert_allclose(ours.direction, reduced.reduce(theirs.direction), atol=1e-11)
