"""The embeddings' gradient against automatic differentiation, plain loops, 50 digits, and the other geometry."""

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from tests.oracles.rounding import rounding

from tokenmargin.objective.embedding import (
    EmbeddingObjective,
    Embeddings,
    first_step,
    gaussian_embeddings,
    wishart_embeddings,
)
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.instances import selective_corpus

RAGGED = TokenCorpus.of([list("abca"), list("bd"), list("cce"), list("f")], [1, -1, 1, -1])


def random_embeddings(corpus, d, seed=0):
    rng = np.random.default_rng(seed)
    return Embeddings.of(corpus, rng.normal(size=(corpus.size, d)), rng.normal(size=d), rng.normal(size=d))


def autograd(corpus, embeddings):
    vectors = torch.tensor(embeddings.geometry.vectors, dtype=torch.float64)
    E, p, v = (vectors[part].clone().requires_grad_() for part in (slice(0, -2), -2, -1))
    total, begin = 0.0, 0
    for length, y in zip(corpus.lengths, corpus.labels, strict=True):
        rows = E[torch.tensor(corpus.tokens[begin : begin + length].copy())]
        begin += length
        f = torch.softmax(rows @ p, 0) @ (rows @ v)
        total = total + torch.nn.functional.softplus(-y * f)
    (total / corpus.n).backward()
    return float(total.detach() / corpus.n), E.grad.numpy(), p.grad.numpy()


@pytest.mark.parametrize("corpus", [RAGGED, selective_corpus(4, 3, rng=np.random.default_rng(1), repeats=True)])
def test_gradient_is_autograds(corpus):
    embeddings = random_embeddings(corpus, 5)
    value, dE, dp = autograd(corpus, embeddings)
    objective = EmbeddingObjective(corpus)
    c, _, _ = gradient = objective.descent(embeddings)
    vectors = embeddings.geometry.vectors
    E, p, v = vectors[:-2], vectors[-2], vectors[-1]
    # Sums of a few sequences of a few tokens in five dimensions, of numbers of size one: some fifty roundings.
    assert objective.value(embeddings) == pytest.approx(value, rel=rounding(50), abs=0)
    np.testing.assert_allclose(-(np.outer(c, p) + np.outer(gradient.e, v)), dE, rtol=0, atol=rounding(50))
    np.testing.assert_allclose(-c @ E, dp, rtol=0, atol=rounding(50))


def test_both_geometries_step_alike():
    embeddings = random_embeddings(RAGGED, 5, seed=3)
    objective = EmbeddingObjective(RAGGED)
    stepped, gram = (first_step(start, 0.7).after for start in (embeddings, embeddings.as_gram()))
    vectors = stepped.geometry.vectors
    of_products = rounding(3 * 5, float((vectors**2).sum(axis=1).max()))  # sums of five products, thrice
    np.testing.assert_allclose(gram.geometry.matrix, vectors @ vectors.T, rtol=0, atol=of_products)
    np.testing.assert_allclose(gram.geometry.vector_norms, stepped.geometry.vector_norms, rtol=of_products)
    assert objective.value(gram) == pytest.approx(objective.value(stepped), rel=of_products, abs=0)


def test_small_terms_survive_at_fifty_digits():
    """At d = 1e59 the parts beside alpha / 2 are of size 1e-30; 50-digit arithmetic confirms ten digits of them."""
    rng = np.random.default_rng(5)
    corpus = selective_corpus(4, 3, rng=rng)
    embeddings = wishart_embeddings(corpus, 10**59, rng=rng)
    gradient = EmbeddingObjective(corpus).descent(embeddings)
    with mpmath.workdps(90):
        rows = [[mpmath.mpf(x) for x in row] for row in embeddings.geometry.vectors.tolist()]
        dot = lambda x, y: mpmath.fsum(a * b for a, b in zip(x, y, strict=True))  # noqa: E731
        p, v, m = rows[-2], rows[-1], corpus.size
        c, e = [mpmath.mpf(0)] * m, [mpmath.mpf(0)] * m
        for tokens, y in zip(corpus.index.tolist(), corpus.labels.tolist(), strict=True):
            weights = [mpmath.exp(dot(rows[s], p)) for s in tokens]
            q = [w / mpmath.fsum(weights) for w in weights]
            f = mpmath.fsum(q_t * dot(rows[s], v) for q_t, s in zip(q, tokens, strict=True))
            g = 1 / (1 + mpmath.exp(y * f))
            for q_t, s in zip(q, tokens, strict=True):
                e[s] += y * g * q_t / corpus.n
                c[s] += y * g * q_t * (dot(rows[s], v) - f) / corpus.n
        alpha = [mpmath.mpf(int(k)) / (corpus.n * corpus.T) for k in corpus.counts[1] - corpus.counts[0]]
        rest = [float(e_s - a / 2) for e_s, a in zip(e, alpha, strict=True)]
        exact_c = [float(x) for x in c]
    # "Ten digits": logits of 1e-30 beside 1 leave ten of the sixteen digits that the parts beside alpha / 2 have.
    np.testing.assert_allclose(gradient.rest, rest, rtol=1e-10, atol=1e-42)
    np.testing.assert_allclose(gradient.c, exact_c, rtol=1e-10, atol=1e-42)
    assert 1e-33 < np.abs(gradient.rest).max() < 1e-29  # some inner products of size d^(-1/2) = 3e-30


def test_wishart_and_gaussian_agree_in_distribution():
    """Every inner product that the theory uses, by Kolmogorov-Smirnov at level 1e-4 each (fixed seeds)."""
    rng = np.random.default_rng(0)
    corpus, d, draws = selective_corpus(2, 2, rng=rng), 12, 4000

    def products(make):
        out = []
        for _ in range(draws):
            x = make(corpus, d, rng=rng).geometry.vectors
            gram = x @ x.T
            out.append(
                [gram[0, 1], gram[0, 0], gram[0, -2], gram[0, -1], gram[-2, -1], gram[-2, -2], gram[0, 1] * gram[1, 2]]
            )
        return np.array(out).T

    for one, other in zip(products(gaussian_embeddings), products(wishart_embeddings), strict=True):
        assert stats.ks_2samp(one, other).pvalue > 1e-4


@pytest.mark.parametrize("d", [10**59, 1e59, 10**300, 1e4])
def test_wishart_in_any_dimension(d):
    """In the frame (v, p, tokens): normals of variance 1/d below a diagonal of chi variates near 1."""
    corpus = selective_corpus(4, 3, rng=np.random.default_rng(0))
    vectors = wishart_embeddings(corpus, d, rng=np.random.default_rng(1)).geometry.vectors
    rows = np.vstack([vectors[-2], vectors[:-2]])
    along, factor = rows[:, 0], rows[:, 1:]
    assert (np.triu(factor, 1) == 0).all()
    normals = np.concatenate([along, factor[np.tril_indices(len(factor), -1)]]) * float(d) ** 0.5
    assert stats.kstest(normals, "norm").pvalue > 1e-3
    # A chi variate of d - k degrees, over sqrt(d): four standard deviations, two roundings, and a mean off by k / 2d.
    assert np.abs(factor.diagonal() - 1).max() < 4 * (2 * float(d)) ** -0.5 + 4e-16 + 10 / float(d)


def test_dimension_below_the_vocabulary_is_refused():
    corpus = selective_corpus(4, 3, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="gaussian_embeddings"):
        wishart_embeddings(corpus, 4, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match="then the prompt p"):
        Embeddings(corpus, random_embeddings(RAGGED, 3).geometry)
