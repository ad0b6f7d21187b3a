"""Coordinates in the span: the same inner products, and a way back."""

import numpy as np
import pytest
from tests.oracles.rounding import of_attention, of_joint, rounding

from tokenmargin.dynamics.span import ReducedObjective, Span
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
    # A basis from LAPACK is orthonormal to some ten roundings a row; so are the inner products of what it reduces.
    # Those of Gram spaces are divided by the least root that is kept.
    rows, longest = geometry.index.size, float(np.sqrt(geometry.gram_of(np.unique(geometry.index)).diagonal().max()))
    sizes = np.linalg.svd(span.tokens.vectors, compute_uv=False)
    apart = rounding(10 * rows + geometry.dimension) * float(sizes[0] / sizes[-1])
    of_logits = apart * longest * float(np.max(geometry.norm(p)))
    np.testing.assert_allclose(span.tokens.logits(y), geometry.logits(p), rtol=0, atol=of_logits)
    np.testing.assert_allclose(np.linalg.norm(y, axis=-1), geometry.norm(p), rtol=apart)
    np.testing.assert_allclose(geometry.logits(span.lift(y)), geometry.logits(p), rtol=0, atol=2 * of_logits)


@pytest.mark.parametrize("objective_class", [PromptObjective, JointObjective])
@pytest.mark.parametrize("gram", [False, True])
def test_reduced_objective_has_the_same_risk_and_descent(objective_class, gram):
    problem = random_problem(2, 3, 20, rng=np.random.default_rng(0))
    objective = objective_class(problem.as_gram() if gram else problem)
    reduced = ReducedObjective.of(objective)
    theta = objective.start() + np.random.default_rng(1).standard_normal(objective.dimension)
    y = reduced.reduce(theta)
    # As many roundings as sums of 20 products take; bases add some ten for each of the six tokens (see above).
    inner = of_attention if objective_class is PromptObjective else of_joint
    of_value, of_gradient = (4 * bound for bound in inner(reduced.objective.problem, y))
    np.testing.assert_allclose(reduced.objective.value(y), objective.value(theta), rtol=0, atol=of_value)
    ours, theirs = reduced.objective.descent(y), objective.descent(theta)
    share = of_gradient / np.exp(theirs.log_norm.min())  # of a gradient's length
    np.testing.assert_allclose(ours.log_norm, theirs.log_norm, rtol=0, atol=share)
    np.testing.assert_allclose(ours.direction, reduced.reduce(theirs.direction), rtol=0, atol=share)
