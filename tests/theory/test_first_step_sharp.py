"""The sharp first step: its variance by an independent draw, and the dimension that (10) becomes."""

from dataclasses import replace

import numpy as np
import pytest
from tests.oracles.rounding import rounding

from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.theory import EmbeddingInstance, claim
from tokenmargin.theory.results.first_step import limit_variance, sharp_dimension, token_shares
from tokenmargin.theory.settings import enough_dimensions

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
CORPUS = TokenCorpus.of([["a", "a", "x"], ["a", "y", "x"], ["b", "x", "y"], ["b", "x", "x"]], [1, 1, -1, -1])


def test_the_variance_is_that_of_plain_gradients() -> None:
    """Gradients by loops over sequences at d = 4000, from 3000 draws of the inner products alone."""
    rng, d, draws = np.random.default_rng(0), 4000.0, 3000
    m, errors = CORPUS.size, []
    for _ in range(draws):
        a, b = rng.normal(size=(2, m)) / np.sqrt(d)  # <E_s, p> and <E_s, v>; |p| = 1 and <p, v> = 0 to this order
        c, e = np.zeros(m), np.zeros(m)
        for row, y in zip(CORPUS.index, CORPUS.labels, strict=True):
            q = np.exp(a[row]) / np.exp(a[row]).sum()
            f = q @ b[row]
            g = 1 / (1 + np.exp(y * f))
            np.add.at(e, row, y * g * q / CORPUS.n)
            np.add.at(c, row, y * g * q * (b[row] - f) / CORPUS.n)
        errors.append(c**2 + (e - CORPUS.signed_frequency / 2) ** 2)
    measured = d * np.array(errors)
    standard_error = measured.std(axis=0) / np.sqrt(draws)
    # 4.5 standard errors, and the next order of the expansion, some sqrt(1/d) of it
    assert (
        np.abs(measured.mean(axis=0) - limit_variance(CORPUS)) <= 4.5 * standard_error + 0.02 * measured.mean(axis=0)
    ).all()


def test_shares_add_up() -> None:
    q, rows = token_shares(CORPUS)
    assert q.sum() == pytest.approx(1, rel=rounding(q.size), abs=0)
    assert rows.sum(axis=1) == pytest.approx(np.ones(4), rel=rounding(rows.size), abs=0)


def test_the_condition_is_forty_decades_weaker() -> None:
    x = EmbeddingInstance.of(4, 3)
    sharp = sharp_dimension(x.corpus.size, x.step, 0.05)
    assert 1e16 < sharp < 1e17
    assert float(enough_dimensions(x.corpus.size, x.step, 0.05)) > 1e59
    ratio = sharp_dimension(10, 2e6, 0.1) / sharp_dimension(10, 1e6, 0.1)
    assert ratio == pytest.approx(16, rel=1e-5, abs=0)  # of order eta_0^4; the next term is 126/157 of 1e-6


def test_the_variance_of_a_token_that_never_occurs_is_right() -> None:
    """It has no error, and the limit is 0; one draw has no standard error."""
    spare = TokenCorpus(CORPUS.tokens, CORPUS.lengths, CORPUS.labels, (*CORPUS.vocabulary, "unused"))
    x = EmbeddingInstance(spare, 10**6, step=1.0, draws=100)
    assert claim("R.first-step").on(x).verdict == "holds"
    assert claim("R.first-step").on(replace(x, draws=1)).verdict == "undecided"
