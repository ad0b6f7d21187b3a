"""The joint ridge solution by looking: compares values of p, knows nothing of the dynamics or the max-margin solver."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.special import logsumexp

from tokenmargin.objective.losses import LogisticLoss
from tokenmargin.selection import attention_weights
from tokenmargin.theory import ProblemInstance

__all__ = ["best_direction", "best_head", "ridge_solution"]

Score = Callable[[Float[Array, "k D"]], Float[Array, " k"]]


def best_direction(
    score: Score,
    directions: Float[Array, "k D"],
    normalise: Callable[[Float[Array, "k D"]], Float[Array, "k D"]],
    *,
    rng: np.random.Generator,
    rounds: int = 45,
    around: int = 40,
) -> Float[Array, " D"]:
    """The best of `directions`, improved by looking around it ever closer.

    **Arguments**
    - `score`: to be minimised; takes many directions at once.
    - `directions`: where to begin, spread over all that are allowed.
    - `normalise`: brings a point back to the allowed directions.
    - `rounds`, `around`: how often the neighbourhood shrinks by 0.7, and how many neighbours are tried each time.
    """
    scores = score(directions)
    best, least = directions[int(np.argmin(scores))], float(scores.min())
    mixing = directions[rng.integers(len(directions), size=(rounds, around))]
    width = 0.5
    for others in mixing:
        tried = normalise(best + width * rng.standard_normal((around, 1)) * others)
        scores = score(tried)
        if scores.min() < least:
            best, least = tried[int(np.argmin(scores))], float(scores.min())
        width *= 0.7
    return best


CONTINUE = 1.4
"""Largest factor between two lengths of the head that Newton's method is continued over."""


def best_head(
    features: Float[Array, "k n d"], labels: Float[Array, " n"], norm: float
) -> tuple[Float[Array, " k"], Float[Array, "k d"]]:
    """`min over |v| = norm` of the logarithm of the logistic risk on given features, and its v, for k sets of features.

    Newton's method on the Lagrangian, continued from a short v, where the minimiser is nearly the mean feature. Where
    it does not settle, as on features that no head separates, the risk is given as infinite.
    """
    loss, z = LogisticLoss(), labels[:, None] * features
    k, _, d = z.shape
    v = z.mean(axis=1)
    sizes = np.geomspace(0.1, norm, max(2, int(np.ceil(np.log(norm / 0.1) / np.log(CONTINUE)))))
    v = v / np.linalg.norm(v, axis=1, keepdims=True) * sizes[0]
    multiplier = np.full(k, 1.0)
    for size in [*np.repeat(sizes, 2), *np.repeat(norm, 4)]:
        u = _outputs(z, v)
        log_total = logsumexp(loss.log_value(u), axis=1, keepdims=True)
        slope = -np.exp(loss.log_slope(u) - log_total)
        bend = np.exp(loss.log_slope(u) + loss.log_slope(-u) - log_total)
        gradient = np.einsum("kn,knd->kd", slope, z)
        system = np.zeros((k, d + 1, d + 1))
        system[:, :d, :d] = np.einsum("kn,knd,kne->kde", bend, z, z) - gradient[:, :, None] * gradient[:, None, :]
        system[:, :d, :d] += multiplier[:, None, None] * np.eye(d)
        system[:, :d, d] = system[:, d, :d] = v
        residual = np.concatenate(
            [gradient + multiplier[:, None] * v, ((v**2).sum(axis=1, keepdims=True) - size**2) / 2], axis=1
        )
        move = np.linalg.solve(system, -residual[..., None])[..., 0]
        v, multiplier = v + move[:, :d], multiplier + move[:, d]
    risk = logsumexp(loss.log_value(_outputs(z, v)), axis=1)
    short = np.abs(np.linalg.norm(v, axis=1) - norm) <= 1e-9 * norm
    return np.where(short & np.isfinite(risk), risk, np.inf), v


def _outputs(z: Float[Array, "k n d"], v: Float[Array, "k d"]) -> Float[Array, "k n"]:
    """`Y_i <v, r_i>`, kept finite where Newton's method has gone astray."""
    return np.asarray(np.clip(np.einsum("knd,kd->kn", z, v), -1e8, 1e8))


def ridge_solution(
    x: ProblemInstance, norms: tuple[float, float], *, also: Float[Array, " P"] | None = None
) -> tuple[Float[Array, " V"], Float[Array, " P"]]:
    """Directions of `argmin L(v, p)` over `(|v|, |p|) = norms`: p by search, the best v for each by Newton's method.

    The search begins with random directions and the direction `also`, so that it never ends above that.
    """
    keys, tokens, rng = x.problem.keys, x.problem.values.tokens, x.rng

    def features(units: Float[Array, "k P"]) -> Float[Array, "k n d"]:
        return np.einsum("knt,ntd->knd", attention_weights(keys, norms[1] * units), tokens)

    def score(units: Float[Array, "k P"]) -> Float[Array, " k"]:
        return best_head(features(units), x.problem.labels, norms[0])[0]

    starts = x.sphere(200, rng)
    starts = starts if also is None else np.concatenate([starts, also[None] / keys.norm(also)])
    p = best_direction(score, starts, lambda u: u / keys.norm(u)[:, None], rng=rng, rounds=30, around=40)
    return best_head(features(p[None]), x.problem.labels, norms[0])[1][0], p
