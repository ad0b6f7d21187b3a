"""Single-location regression: the population risk against multiprecision and samples, descent against d dimensions."""

import mpmath
import numpy as np
import pytest
import torch
from tests.oracles.rounding import rounding

from tokenmargin.dynamics.rest import STATIONARY
from tokenmargin.experiments.figures.single_location import SingleLocationCurves
from tokenmargin.limits import limit_of
from tokenmargin.objective.single_location import Overlaps, SingleLocation, overlaps


def exact_risk(law: SingleLocation, at: Overlaps, steepness: float) -> float:
    """The same expectations by adaptive quadrature, with 30 digits."""
    with mpmath.workdps(30):
        kappa, nu, theta, eta, rho = (mpmath.mpf(float(x)) for x in at)
        gamma, M, lam, others = (
            mpmath.mpf(law.gamma),
            mpmath.sqrt(mpmath.mpf(law.d) / 2),
            mpmath.mpf(steepness),
            law.L - 1,
        )

        def mean(f):
            return mpmath.quad(lambda x: f(x) * mpmath.npdf(x), mpmath.linspace(-12, 12, 9))

        def first(x):
            return mpmath.erf(lam * (M * kappa + gamma * x))

        def value(x):
            return M * theta + gamma * rho * x

        def other(x):
            return mpmath.erf(lam * x)

        cross = mean(lambda x: first(x) * (gamma * eta * x * value(x) + gamma**2 * (nu - eta * rho)))
        square = mean(lambda x: first(x) ** 2 * (value(x) ** 2 + gamma**2 * (1 - rho**2)))
        others_square = mean(lambda x: other(x) ** 2 * (rho**2 * x**2 + 1 - rho**2))
        others_mean = mean(lambda x: other(x) * rho * x)
        both = 2 * others * others_mean * mean(lambda x: first(x) * value(x))
        risk = gamma**2 - 2 * cross + square + others * others_square + others * (others - 1) * others_mean**2 + both
        return float(risk)


@pytest.mark.parametrize("steepness", [0.1, 2.0])
def test_the_population_risk_against_multiprecision(steepness: float) -> None:
    law, rng = SingleLocation(d=50, L=7, gamma=0.8), np.random.default_rng(3)
    k, v = law.start(1, on_manifold=False, rng=rng)
    at = overlaps(k[0], v[0])
    # The rule is exact to rounding for slopes of at most 2: here 2 x 0.8, on numbers of order 10.
    np.testing.assert_allclose(law.excess_risk(at, steepness), exact_risk(law, at, steepness), rtol=1e-11)


def test_the_population_risk_against_samples() -> None:
    """The predictor itself on drawn sequences; four standard errors are passed once in 16,000 seeds."""
    law, rng = SingleLocation(d=6, L=4, gamma=0.7, noise=0.3), np.random.default_rng(5)
    k, v = (x / np.linalg.norm(x) for x in rng.standard_normal((2, 6)))
    problem = law.sample(200_000, rng=rng)
    tokens = problem.keys.tokens
    prediction = (torch.erf(torch.from_numpy(0.6 * tokens @ k)).numpy() * (tokens @ v)).sum(axis=1)
    losses = (problem.targets - prediction) ** 2
    error = losses.std() / np.sqrt(len(losses))
    assert abs(losses.mean() - law.noise**2 - law.excess_risk(overlaps(k, v), 0.6)) < 4 * error


@pytest.mark.parametrize("name", Overlaps._fields)
def test_slopes_are_those_of_the_risk(name: str) -> None:
    law = SingleLocation(d=40, L=5)
    at = overlaps(*law.start(3, on_manifold=False, rng=np.random.default_rng(2)))
    h = 1e-5
    up, down = (law.excess_risk(at._replace(**{name: getattr(at, name) + s * h}), 0.7) for s in (1, -1))
    # Central differences: h^2 times a third derivative of order (0.7 sqrt(20))^3 = 30, and eps / h.
    np.testing.assert_allclose(getattr(law.slopes(at, 0.7), name), (up - down) / (2 * h), rtol=0, atol=1e-7)


def test_four_coordinates_hold_all_dimensions() -> None:
    """Projected descent in 12 dimensions, with autograd through the risk, has the same inner products."""
    law, rng = SingleLocation(d=12, L=4), np.random.default_rng(8)
    k, v = rng.standard_normal((2, 12))
    k, v = k / np.linalg.norm(k), v / np.linalg.norm(v)
    length = np.linalg.norm(k[2:])
    along = k[2:] @ v[2:] / length
    small_k = np.array([k[0], k[1], length, 0.0])
    small_v = np.array([v[0], v[1], along, np.sqrt(v[2:] @ v[2:] - along**2)])
    for _ in range(20):
        slopes = law.slopes(overlaps(k, v), 0.5)
        in_k, in_v = slopes.rho * v, slopes.rho * k
        in_k[:2] += [slopes.kappa, slopes.eta]
        in_v[:2] += [slopes.theta, slopes.nu]
        k, v = (x - 0.01 * (g - (x @ g) * x) for x, g in ((k, in_k), (v, in_v)))
        k, v = k / np.linalg.norm(k), v / np.linalg.norm(v)
        small_k, small_v = law.descend(small_k, small_v, 0.5, 0.01)
    # 20 steps of some 12 products and a division by lengths, four times each; unit vectors.
    np.testing.assert_allclose(
        np.array(overlaps(k, v)), np.array(overlaps(small_k, small_v)), rtol=0, atol=rounding(20 * 12 * 4)
    )


def test_the_manifold_is_kept_and_its_two_directions_are_found() -> None:
    law = SingleLocation(d=20, L=5)
    k, v = law.start(8, on_manifold=True, rng=np.random.default_rng(0))
    missing = []
    for step in range(900):
        if step % 300 == 0:
            missing.append(1 - np.abs(overlaps(k, v).kappa))
        k, v = law.descend(k, v, 0.4, 0.02)
    at = overlaps(k, v)
    assert at.off_manifold.max() < rounding(900 * 20 * 5)
    # No rate is stated; each third of the way must lead on, and most of it be done.
    assert (np.diff([*missing, 1 - np.abs(at.kappa)], axis=0) < 0).all()
    assert np.abs(at.kappa).min() > 0.9
    assert np.abs(at.nu).min() > 0.9


@pytest.mark.usefixtures("unchecked_shapes")
def test_the_experiment_runs_and_holds() -> None:
    result = SingleLocationCurves(runs=3, longest=60, d=30).run()
    assert set(result.tables["curves"]["setting"]) == {"manifold", "sphere, large", "sphere, small", "sphere, falling"}
    assert result.findings[0].holds
    risk = result.tables["curves"]["excess_risk"][result.tables["curves"]["setting"] == "manifold"]
    assert risk[-1] < risk[0]


@pytest.mark.usefixtures("unchecked_shapes")
def test_softmax_attention_on_a_sample_rests_where_the_noise_lets_it() -> None:
    """More sequences than dimensions and noise: no p meets all labels, and training comes to rest at a finite p."""
    problem = SingleLocation(d=2, L=4, gamma=0.7, noise=0.3).sample(20, rng=np.random.default_rng(2))
    limit = limit_of(problem)
    assert limit.outcome == "bounded"
    assert limit.path.objective.linearise(limit.point).balance[0] <= STATIONARY
    assert limit.point[0] > 0.5  # it points to the token that decides


def test_laws_that_are_none_get_one_line() -> None:
    with pytest.raises(ValueError, match="d must be at least 2"):
        SingleLocation(d=1, L=3)
    with pytest.raises(ValueError, match="must not be negative"):
        SingleLocation(d=4, L=3, gamma=-1.0)
