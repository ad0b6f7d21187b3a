"""The first step's decomposition (5) and its errors."""

import numpy as np
import pytest
from tests.oracles.rounding import rounding

from tokenmargin.objective.embedding import first_step, gaussian_embeddings
from tokenmargin.problem.instances import selective_corpus


@pytest.mark.parametrize("d", [3, 40, 2000])
def test_decomposition_and_errors_in_coordinates_and_gram(d):
    corpus = selective_corpus(4, 3, rng=np.random.default_rng(0), equal=False)
    start = gaussian_embeddings(corpus, d, rng=np.random.default_rng(d))
    step, gram = first_step(start, 5.0), first_step(start.as_gram(), 5.0)
    before, after = start.geometry.vectors, step.after.geometry.vectors
    err = after[:-2] - before[:-2] - 2.5 * np.outer(corpus.signed_frequency, before[-1])
    # What is left of vectors of some length: three roundings a coordinate; the lengths are sums of d squares.
    errors, longest = np.linalg.norm(err, axis=1), float(np.linalg.norm(after, axis=1).max())
    np.testing.assert_allclose(step.token_errors(), errors, rtol=rounding(d), atol=rounding(3, longest))
    moved = float(np.linalg.norm(after[-2] - before[-2]))
    assert step.prompt_error == pytest.approx(moved, rel=rounding(d), abs=rounding(3, longest))
    # Inner products are sums of d products; their quadratic form, of so many rows, is the square of the length.
    of_square = rounding(d + 2 * len(after), longest**2)
    np.testing.assert_allclose(gram.token_errors(), errors, rtol=0, atol=of_square / errors.min())
    assert gram.error == pytest.approx(step.error, rel=0, abs=of_square / min(errors.min(), moved))
    assert step.bound(16) == pytest.approx(11 * 5.0 / 2, rel=rounding(3), abs=0)
    assert (after[-1] == before[-1]).all()
