"""Measures of attention weights against their definitions and bounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.oracles.rounding import rounding

from tokenmargin.training.vision.attention_probe import (
    attention_entropy,
    key_query_norms,
    soft_sparsity,
    top_mass,
    without_token,
)

LOGITS = arrays(float, st.tuples(st.integers(1, 3), st.integers(2, 20)), elements=st.floats(-30, 30))


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@given(LOGITS)
def test_measures_lie_between_one_token_and_uniform(logits: np.ndarray) -> None:
    """Renyi's entropies are ordered: log of the soft sparsity is at most Shannon's entropy, at most log T."""
    s, tokens = softmax(logits), logits.shape[1]
    sparsity, entropy = soft_sparsity(s), attention_entropy(s)
    off = rounding(8 * tokens)  # weights add up to one but for rounding, and so do sums over them
    assert (sparsity >= 1 - off).all()
    assert (np.log(sparsity) <= entropy + off).all()
    assert (entropy <= np.log(tokens) + off).all()
    assert (top_mass(s, 1) == s.max(axis=-1)).all()
    np.testing.assert_allclose(top_mass(s, tokens), 1.0, rtol=rounding(2 * tokens))
    np.testing.assert_allclose(soft_sparsity(7 * s), sparsity, rtol=rounding(4 * tokens))


def test_uniform_weights_and_a_single_token() -> None:
    uniform, single = np.full(16, 1 / 16), np.eye(16)[3]
    assert soft_sparsity(uniform) == 16
    assert soft_sparsity(single) == 1
    assert attention_entropy(uniform) == pytest.approx(np.log(16), rel=rounding(20), abs=0)
    assert attention_entropy(single) == 0
    assert top_mass(uniform, 4) == pytest.approx(0.25, rel=rounding(4), abs=0)
    with pytest.raises(ValueError, match=r"k must lie in 1\.\.16, the number of tokens, got 17"):
        top_mass(uniform, 17)


def test_leaving_a_token_out() -> None:
    s = softmax(np.random.default_rng(0).normal(size=(2, 3, 5)))
    rest = without_token(s, 2)
    np.testing.assert_allclose(rest, s[..., [0, 1, 3, 4]] / (1 - s[..., 2:3]), rtol=rounding(20))


@pytest.mark.parametrize(("width", "outputs", "heads"), [(8, 8, 2), (5, 12, 3), (12, 4, 1)])
def test_norms_are_those_of_the_products(width: int, outputs: int, heads: int) -> None:
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, outputs, width))
    per_head, together = key_query_norms(query, key, heads=heads)
    blocks = zip(np.split(query, heads), np.split(key, heads), strict=True)
    # Squares of products, or products of squares: two sums of `width` and `outputs` terms, which may cancel tenfold.
    of_products = rounding(10 * (width + outputs))
    np.testing.assert_allclose(per_head, [np.linalg.norm(q.T @ k) for q, k in blocks], rtol=of_products)
    assert together == pytest.approx(np.linalg.norm(query.T @ key), rel=of_products, abs=0)


def test_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"multiple of the 3 heads, got \(8, 4\) and \(8, 4\)"):
        key_query_norms(np.ones((8, 4)), np.ones((8, 4)), heads=3)
