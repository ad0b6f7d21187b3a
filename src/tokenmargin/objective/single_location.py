"""Single-location regression: one token of a sequence decides a real label, and its position is not given.

Of L tokens in d dimensions one is `X_1 ~ N(sqrt(d/2) k*, gamma^2 I)` and the others are standard normal; the label is
`<X_1, v*>` plus noise, with k* and v* orthogonal unit vectors. The predictor `sum_l erf(lambda <X_l, k>) <X_l, v>` (a
simplified attention layer of *Attention layers provably solve single-location regression*) has a population risk that
depends on unit vectors k and v through five inner products alone, and so do its gradient and projected descent: any
dimension is followed in four coordinates.

Given `<X_l, k>` the rest of a token is Gaussian, so that every expectation is an integral over one normal variable,
taken here by the trapezoidal rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.special import erf

from tokenmargin._statistics import Rng, generator
from tokenmargin.problem.label_problems import RegressionProblem

# Equal steps h converge like exp(-2 pi^2 / (h^2 (1 + 4 s^2))) on erf(s x)^2 against a normal: 1e-15 for s up to 2. They
# beat Gauss' nodes, of which 80 leave 1e-7.
_NODES = np.linspace(-9.0, 9.0, 121)
_WEIGHTS = np.exp(-(_NODES**2) / 2) / np.exp(-(_NODES**2) / 2).sum()


class Overlaps(NamedTuple):
    """The inner products that the risk depends on: of k and v with k* and v*, and with one another."""

    kappa: Float[Array, "..."]  # <k, k*>
    nu: Float[Array, "..."]  # <v, v*>
    theta: Float[Array, "..."]  # <v, k*>
    eta: Float[Array, "..."]  # <k, v*>
    rho: Float[Array, "..."]  # <k, v>

    @property
    def off_manifold(self) -> Float[Array, "..."]:
        """Distance to the manifold on which theta, eta and rho vanish."""
        return np.sqrt(self.theta**2 + self.eta**2 + self.rho**2)


def overlaps(k: Float[Array, "... d"], v: Float[Array, "... d"]) -> Overlaps:
    """For coordinates whose first axis is k* and whose second is v*."""
    return Overlaps(*map(np.asarray, (k[..., 0], v[..., 1], v[..., 0], k[..., 1], (k * v).sum(axis=-1))))


@dataclass(frozen=True)
class SingleLocation:
    """The law of the data, and the risk of the predictor under it.

    **Arguments**
    - `d`, `L`: dimension, and number of tokens of a sequence.
    - `gamma`: standard deviation of the token that decides.
    - `noise`: standard deviation of what is added to the label.

    >>> law, one, zero = SingleLocation(d=400, L=10), np.array(1.0), np.array(0.0)
    >>> right = law.excess_risk(Overlaps(one, one, zero, zero, zero), steepness=0.1)
    >>> wrong = law.excess_risk(Overlaps(zero, zero, zero, zero, zero), steepness=0.1)
    >>> float(right.round(4)), float(wrong.round(4))
    (0.1135, 0.6155)
    """

    d: int
    L: int
    gamma: float = float(np.sqrt(0.5))
    noise: float = 0.0

    def __post_init__(self) -> None:
        if self.d < 2 or self.L < 1:
            raise ValueError(f"d must be at least 2 and L at least 1, got {self.d} and {self.L}")
        if not (self.gamma >= 0 and self.noise >= 0):
            raise ValueError(f"gamma and noise must not be negative, got {self.gamma} and {self.noise}")

    def excess_risk(self, at: Overlaps, steepness: float) -> Float[Array, "..."]:
        """`E (y - prediction)^2` less the noise's own."""
        return self._risk_and_slopes(at, steepness)[0]

    def slopes(self, at: Overlaps, steepness: float) -> Overlaps:
        """Derivatives of the risk in the five inner products."""
        return self._risk_and_slopes(at, steepness)[1]

    def _risk_and_slopes(self, at: Overlaps, steepness: float) -> tuple[Float[Array, "..."], Overlaps]:
        """The excess risk and its derivatives: expectations over x, the normal part of `<X_1, k>` or of another
        token."""
        kappa, nu, theta, eta, rho = (np.asarray(x)[..., None] for x in at)
        gamma, others, x, M = self.gamma, self.L - 1, _NODES, np.sqrt(self.d / 2)
        place = steepness * (M * kappa + gamma * x)
        weight, bend = erf(place), 2 / np.sqrt(np.pi) * steepness * M * np.exp(-(place**2))  # of the one that decides
        value = M * theta + gamma * rho * x  # its mean prediction, given its place; the label's is gamma eta x
        product = gamma * eta * x * value + gamma**2 * (nu - eta * rho)
        square = value**2 + gamma**2 * (1 - rho**2)
        plain = erf(steepness * x)  # of another token
        plain_mean, plain_square = _expectation(plain * x), _expectation(plain**2)
        plain_bend = _expectation(plain**2 * (x**2 - 1))  # E weight^2 prediction^2 = plain_square + rho^2 plain_bend
        first, total = _expectation(weight * value), others * rho[..., 0] * plain_mean
        r = rho[..., 0]
        risk = gamma**2 - 2 * _expectation(weight * product) + _expectation(weight**2 * square)
        risk = risk + others * (plain_square + r**2 * plain_bend) + others * (others - 1) * (r * plain_mean) ** 2
        risk = risk + 2 * total * first
        in_kappa = (
            -2 * _expectation(bend * product)
            + 2 * _expectation(weight * bend * square)
            + 2 * total * _expectation(bend * value)
        )
        in_theta = (
            -2 * _expectation(weight * gamma * eta * x * M)
            + 2 * _expectation(weight**2 * value * M)
            + 2 * total * _expectation(weight) * M
        )
        in_eta = -2 * _expectation(weight * (gamma * x * value - gamma**2 * rho))
        in_rho = -2 * _expectation(weight * (gamma**2 * eta * x**2 - gamma**2 * eta))
        in_rho = in_rho + 2 * _expectation(weight**2 * (value * gamma * x - gamma**2 * rho))
        in_rho = in_rho + 2 * others * r * plain_bend + 2 * others * (others - 1) * r * plain_mean**2
        in_rho = in_rho + 2 * others * plain_mean * first + 2 * total * _expectation(weight * gamma * x)
        in_nu = -2 * gamma**2 * _expectation(weight)
        return np.asarray(risk), Overlaps(*map(np.asarray, (in_kappa, in_nu, in_theta, in_eta, in_rho)))

    def descend(
        self, k: Float[Array, "... 4"], v: Float[Array, "... 4"], steepness: float, step: float
    ) -> tuple[Float[Array, "... 4"], Float[Array, "... 4"]]:
        """One step of projected gradient descent on the two spheres, in coordinates that begin with k* and v*."""
        slopes = self.slopes(overlaps(k, v), steepness)
        in_k, in_v = slopes.rho[..., None] * v, slopes.rho[..., None] * k
        in_k[..., 0] += slopes.kappa
        in_k[..., 1] += slopes.eta
        in_v[..., 0] += slopes.theta
        in_v[..., 1] += slopes.nu
        return _sphere_step(k, in_k, step), _sphere_step(v, in_v, step)

    def start(self, runs: int, *, on_manifold: bool, rng: Rng) -> tuple[Float[Array, "runs 4"], Float[Array, "runs 4"]]:
        """Uniform unit vectors of d dimensions, in four coordinates that hold all their inner products.

        On the manifold k is orthogonal to v*, v to k*, and k to v.
        """
        rng = generator(rng)
        k, v = rng.standard_normal((2, runs, self.d))
        if on_manifold:
            k[:, 1], v[:, 0] = 0.0, 0.0
            across = k.copy()
            across[:, 0] = 0.0
            across /= np.linalg.norm(across, axis=1, keepdims=True)
            v -= (across * v).sum(axis=1, keepdims=True) * across
        k, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (k, v))
        return _in_four_coordinates(k, v)

    def sample(self, n: int, *, rng: Rng) -> RegressionProblem:
        """n sequences of this law as a problem for softmax attention: tokens are keys and values, the head is v*."""
        rng = generator(rng)
        tokens = rng.standard_normal((n, self.L, self.d))
        places = rng.integers(self.L, size=n)
        decisive = self.gamma * rng.standard_normal((n, self.d))
        decisive[:, 0] += np.sqrt(self.d / 2)
        tokens[np.arange(n), places] = decisive
        head = np.eye(1, self.d, 1)[0]
        targets = decisive @ head + self.noise * rng.standard_normal(n)
        return RegressionProblem.of(tokens, targets, head=head)


def _expectation(x: Float[Array, "... q"]) -> Float[Array, "..."]:
    return np.asarray(x @ _WEIGHTS)


def _sphere_step(x: Float[Array, "... 4"], gradient: Float[Array, "... 4"], step: float) -> Float[Array, "... 4"]:
    new = x - step * (gradient - (x * gradient).sum(axis=-1, keepdims=True) * x)
    return np.asarray(new / np.linalg.norm(new, axis=-1, keepdims=True))


def _in_four_coordinates(k: Float[Array, "runs d"], v: Float[Array, "runs d"]) -> tuple[Array, Array]:
    """The first two coordinates, and the rest turned into a plane."""
    out_k, out_v = k[:, 2:], v[:, 2:]
    length = np.linalg.norm(out_k, axis=1)
    along = (out_k * out_v).sum(axis=1) / np.where(length > 0, length, 1.0)
    beside = np.sqrt(np.maximum((out_v**2).sum(axis=1) - along**2, 0.0))
    zero = np.zeros_like(length)
    return np.stack([k[:, 0], k[:, 1], length, zero], axis=1), np.stack([v[:, 0], v[:, 1], along, beside], axis=1)
