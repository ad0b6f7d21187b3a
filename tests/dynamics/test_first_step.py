"""The first step's decomposition (5) and its errors."""

import numpy as np
import pytest

from tokenmargin.dynamics import first_step
from tokenmargin.objective.embedding import gaussian_embeddings
from tokenmargin.problem.corpus_generators import selective_corpus


@pytest.mark.parametrize("d", [3, 40, 2000])
def test_decomposition_and_errors_in_coordinates_and_gram(d):
    corpus = selective_corpus(4, 3, rng=np.random.default_rng(0), equal=False)
    start = gaussian_embeddings(corpus, d, rng=np.random.default_rng(d))
    step, gram = first_step(start, 5.0), first_step(start.as_gram(), 5.0)
    before, after = start.geometry.vectors, step.after.geometry.vectors
    err = after[:-2] - before[:-2] - 2.5 * np.outer(corpus.signed_frequency, before[-1])
    np.testing.assert_allclose(step.token_errors(), np.linalg.norm(err, axis=1), rtol=1e-10)
    assert step.prompt_error == pytest.approx(np.linalg.norm(after[-2] - before[-2]), rel=1e-12)
    np.testing.assert_allclose(gram.token_errors(), step.token_errors(), rtol=1e-9)
    assert gram.error == pytest.approx(step.error, rel=1e-9)
    assert step.bound(16) == pytest.approx(11 * 5.0 / 2)
    assert (after[-1] == before[-1]).all()
