"""Intervals and correlations against scipy, and at their edges."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, spearmanr

from tokenmargin._statistics import spearman, wilson_interval


@pytest.mark.parametrize(("count", "total"), [(0, 1), (1, 1), (0, 7), (3, 7), (7, 7), (40, 1000), (999, 1000)])
def test_wilson_is_scipys(count: int, total: int) -> None:
    expected = binomtest(count, total).proportion_ci(method="wilson")
    # scipy takes the quantile to all digits, we to seven: the ends move by less than 2e-8.
    assert wilson_interval(count, total) == pytest.approx((expected.low, expected.high), abs=2e-8)
    low, high = wilson_interval(count, total)
    assert 0 <= low <= count / total <= high <= 1


def test_nothing_counted_says_nothing() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("values", [3, 50])  # many ties, and few
def test_spearman_is_scipys_row_by_row(values: int) -> None:
    rng = np.random.default_rng(values)
    x, y = rng.integers(0, values, (2, 6, 40)).astype(float)
    expected = [spearmanr(a, b).statistic for a, b in zip(x, y, strict=True)]
    # Ranks are exact; sums of 40 products of size 400 round at 1e-14 of their size.
    np.testing.assert_allclose(spearman(x, y), expected, rtol=0, atol=1e-13)
    assert float(spearman(x[0], y[0])) == pytest.approx(expected[0], abs=1e-13)


def test_a_constant_has_no_correlation() -> None:
    assert np.isnan(spearman(np.ones(5), np.arange(5.0)))
    assert np.isnan(spearman(np.ones((1, 5)), np.arange(5.0)[None])).all()
