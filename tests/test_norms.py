"""Norms: values against numpy's, duals by their definition, steepest directions by what they attain."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.oracles.rounding import rounding

import tokenmargin as tm
from tokenmargin.norms import L1, L2, LINF, NUCLEAR, SPECTRAL, CustomNorm, LpNorm, SchattenNorm, norm_named
from tokenmargin.plugins import PluginError
from tokenmargin.problem.geometry import Coordinates

SHAPE = (3, 4)
VECTORS = [L1, L2, LINF, LpNorm(1.1), LpNorm(1.5), LpNorm(3), LpNorm(40)]
MATRICES = [NUCLEAR.of_shape(SHAPE), SPECTRAL.of_shape(SHAPE), SchattenNorm(1.5, SHAPE)]
EVERY = [*VECTORS, *MATRICES]
EPS = np.finfo(float).eps


def named(norm):
    return norm.name


def hard_vectors() -> np.ndarray:
    """Gaussian, with ties, with zeros, rank one, a single entry, and zero."""
    rng = np.random.default_rng(0)
    plain = rng.normal(size=(4, 12))
    ties = rng.choice([-1.0, 0.0, 1.0], size=(4, 12))
    thin = np.outer(rng.normal(size=3), rng.normal(size=4)).reshape(1, -1)
    return np.concatenate([plain, ties, thin, np.eye(12)[:1] * -2.0, np.zeros((1, 12))])


@pytest.mark.parametrize("norm", EVERY, ids=named)
def test_values_are_numpys(norm):
    x = hard_vectors()
    if isinstance(norm, LpNorm):
        expected = np.linalg.norm(x, norm.p, axis=1)
    else:
        expected = np.linalg.norm(np.linalg.svd(x.reshape(-1, *SHAPE), compute_uv=False), norm.p, axis=1)
    # Each of the two is off by at most its rounding.
    np.testing.assert_allclose(norm.value(x), expected, rtol=2 * norm.rounding(12))
    orders = {"nuclear": "nuc", "spectral": 2}
    if norm.name in orders:
        # Singular values of the same matrix by the same LAPACK, added up in another order.
        assert float(norm.value(x[0])) == pytest.approx(
            np.linalg.norm(x[0].reshape(SHAPE), orders[norm.name]), rel=1e-13, abs=0
        )


@pytest.mark.parametrize("norm", EVERY, ids=named)
def test_the_steepest_direction_attains_the_dual_and_nothing_exceeds_it(norm):
    """From below by the vector itself, from above by Hoelder's inequality on 2,000 others: the definition."""
    g = hard_vectors()
    x = norm.steepest(g)
    assert x.shape == g.shape
    slack = 4 * norm.rounding(12) + 12 * EPS  # of two values, and of an inner product of 12 terms
    some = np.abs(g).max(axis=1) > 0
    np.testing.assert_allclose(norm.value(x)[some], 1.0, rtol=slack)
    assert not x[~some].any()
    # Singular values dropped as rounding are up to 4 eps of the largest: 3 of them more.
    np.testing.assert_allclose((g * x).sum(axis=1), norm.dual_value(g), rtol=slack + 12 * EPS)
    others = np.random.default_rng(1).normal(size=(2000, 12))
    others /= norm.value(others)[:, None]
    assert (g @ others.T <= norm.dual_value(g)[:, None] * (1 + slack)).all()


@pytest.mark.parametrize("norm", EVERY, ids=named)
@pytest.mark.parametrize("scale", [1e-280, 1e280])
def test_no_overflow_and_no_underflow(norm, scale):
    x = hard_vectors()[:9]
    for function in (norm.value, norm.dual_value):
        np.testing.assert_allclose(function(x * scale), function(x) * scale, rtol=4 * norm.rounding(12))
    np.testing.assert_allclose(norm.value(norm.steepest(x * scale)), 1.0, rtol=4 * norm.rounding(12) + 12 * EPS)


def test_batches_are_their_members():
    x = np.random.default_rng(2).normal(size=(2, 3, 12))
    for norm in EVERY:
        assert norm.value(x).shape == (2, 3)
        one = norm.value(x[1, 2]), norm.steepest(x[1, 2])
        # A member alone is the same numbers in another order; the steepest one of lp:1.5 is a power of them.
        np.testing.assert_allclose(norm.value(x)[1, 2], one[0], rtol=2 * norm.rounding(12))
        np.testing.assert_allclose(norm.steepest(x)[1, 2], one[1], rtol=0, atol=100 * norm.rounding(12))


def test_names():
    for norm in (*VECTORS, NUCLEAR, SPECTRAL, SchattenNorm(1.5)):
        assert norm_named(norm.name) == norm
    assert norm_named("lp:inf") is not None
    assert norm_named("lp:inf") == LINF
    for name, message in {
        "lp:0.5": "must be at least 1",
        "lp:nan": "must be at least 1",
        "lp:": r"such as lp:1\.5; got 'lp:'",
        "l3": "choose from l2, l1, linf, nuclear, spectral",
    }.items():
        with pytest.raises((ValueError, PluginError), match=message):
            norm_named(name)


def test_matrices_need_their_shape():
    with pytest.raises(ValueError, match="say of what shape it is"):
        NUCLEAR.value(np.ones(12))
    with pytest.raises(ValueError, match="the last axis must be 12 long"):
        NUCLEAR.of_shape(SHAPE).value(np.ones(6))
    assert float(NUCLEAR.value(np.eye(3))) == 3.0
    problem = tm.figure1b().with_matrix(np.ones(2))
    assert problem.keys.matrix_shape == (2, 3)
    with pytest.raises(ValueError, match="do not flatten"):
        Coordinates(np.ones((2, 5)), [[0, 1]], matrix_shape=(2, 2))


def test_a_norm_of_ones_own(monkeypatch):
    plugin = Path(__file__).parent.parent / "docs" / "examples" / "plugin"
    monkeypatch.chdir(plugin)
    monkeypatch.setattr(sys, "path", [*sys.path, str(plugin)])
    norm = norm_named("heavy_tails:TWO_LARGEST")
    g = hard_vectors()[:-1]
    np.testing.assert_allclose((g * norm.steepest(g)).sum(axis=1), norm.dual_value(g), rtol=rounding(12))
    np.testing.assert_allclose(norm.value(norm.steepest(g)), 1.0, rtol=rounding(12))
    others = np.random.default_rng(1).normal(size=(2000, 12))
    assert (g @ (others / norm.value(others)[:, None]).T <= norm.dual_value(g)[:, None] * (1 + rounding(2 * 12))).all()
    with pytest.raises(ValueError, match=r"give CustomNorm\(maximiser=...\)"):
        CustomNorm("half", lambda x: 1.0, lambda g: 1.0).steepest(g)
