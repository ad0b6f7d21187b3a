"""Paper A's random start: the bounds (14), where they fail, and a proof of where they hold."""

from __future__ import annotations

import numpy as np
from scipy.special import erfc
from scipy.stats import chi2

from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.theory.claim import Claim, Findings, Slack, above, below, sampled, searched
from tokenmargin.theory.paper_a.conditions import concentrated, deviation, mostly
from tokenmargin.theory.settings import EmbeddingInstance

CELLS = 4000
"""Steps of the sums that bracket an integral over |p|^2."""


def probability_beyond(size: int, dimension: float, delta: float) -> tuple[float, float]:
    """Between which bounds the probability lies that (14) fails, for a vocabulary of `size` tokens.

    `<E_s, v>` and `<p, v>` are independent normals of variance 1/d. Given `|p|^2 = r`, so are the `<E_s, p>`, of
    variance r/d; r is chi-squared over d. Below, the larger of the two groups' probabilities; above, the sum of all.
    The integral over r is bracketed by sums over cells, in dimensions where cells are wider than rounding.
    """
    d, L = float(dimension), np.log(size**2 / delta)
    one = erfc(np.sqrt(L))
    too_long = (size + 1) * (chi2.sf(4 * d, d) if d <= 1e9 else np.exp(-0.8 * d))
    low, high = -np.expm1((size + 1) * np.log1p(-one)), (size + 1) * one + too_long
    if d > 1e9:
        return float(low), float(high + size * one * _tilted(L, d))
    r = np.linspace(0, 1 + 60 / np.sqrt(d), CELLS)[1:]
    mass = -np.diff(chi2.sf(d * r, d))  # exact in the upper tail, where products are too large
    beyond = erfc(np.sqrt(L / r))
    some = -np.expm1(size * np.log1p(-beyond[:-1])) @ mass
    every = size * (beyond[1:] @ mass + chi2.cdf(d * r[0], d) * beyond[0] + chi2.sf(d * r[-1], d))
    return float(max(low, some)), float(high + every)


def _tilted(L: float, d: float) -> float:
    """`E exp(L - L/r) sqrt(r) <= (1 - u)^(-1/2) exp(-(d/2)(log(1 - u) + u))`, u = 2L/d: how much likelier an `<E_s, p>`
    is than an `<E_s, v>` to be too large, at most (the proof of `initialisation_repaired`)."""
    u = 2 * L / d
    return float(np.exp(-(d / 2) * (np.log1p(-u) + u)) / np.sqrt(1 - u))


def initialisation(x: EmbeddingInstance) -> Findings:
    """With probability 1 - delta all `|<E_s, v>|, |<E_s, p>|, |<p, v>|` are at most `sqrt(2 log(|S|^2/delta) / d)`
    and all lengths of `E_s` and p at most 2 (14)."""
    return Findings((), _conclusion(x))


def _conclusion(x: EmbeddingInstance) -> tuple[Slack, ...]:
    """From the bracketed probability where it decides, and from draws where it does not."""
    low, high = probability_beyond(x.corpus.size, float(x.dimension), x.delta)
    if high <= x.delta:
        return (searched(below("probability that (14) fails, at most", high, x.delta)),)
    if low > x.delta:
        return (sampled(below("probability that (14) fails, at least", low, x.delta)),)
    bound = deviation(x) / np.sqrt(float(x.dimension))
    facts = []
    for start in x.starts():
        a, b = start.overlaps
        along = abs(start.geometry.inner(start.prompt, start.head))
        product = float(max(np.abs(a).max(), np.abs(b).max(), along))
        facts.append(product <= bound and float(start.norms[:-1].max()) <= 2)
    return (mostly("all of (14)", facts, x),)


def initialisation_repaired(x: EmbeddingInstance) -> Findings:
    """(14) holds with probability 1 - delta for two tokens or more, `d >= 256` and `d >= (2 log(|S|^2/delta))^2`.

    Proof. Let m = |S| and L = log(m^2/delta). Each of the m + 1 products with v is normal of variance 1/d, and too
    large with probability `erfc(sqrt(L)) <= (delta/m^2) / sqrt(pi L)`. Given `r = |p|^2` a product with p is too large
    with probability `erfc(sqrt(L/r)) <= sqrt(r / (pi L)) exp(-L/r)`, and `1/r >= 2 - r`. As r is chi-squared over d,
    the mean of `sqrt(r) exp(L (r - 1))` is at most `(1 - u)^(-1/2) exp(-(d/2)(log(1 - u) + u))` with u = 2L/d: tilting
    by `exp(L r)` divides the scale of r by 1 - u. The exponent is at most `(L^2/d) / (1 - u)`; with d >= 4 L^2 and
    d >= 256 that is `1/4 / (1 - 1/16)`, and the mean at most 1.35. A length beyond 2 has probability at most
    `exp(-0.8 d)`. In all `delta (2.35 m + 1) / (m^2 sqrt(pi L)) + (m + 1) exp(-0.8 d)`, and as L >= log(m^2) this is
    at most 0.69 delta for m = 2 and less for more tokens.
    """
    return Findings((above("|S|", x.corpus.size, 2), *concentrated(x)), _conclusion(x))


def _one_token() -> EmbeddingInstance:
    corpus = TokenCorpus.of([["film"], ["film"]], [1, -1])
    return EmbeddingInstance(corpus, 300, step=1.0, delta=0.5, draws=5000)


def _tiny_delta() -> EmbeddingInstance:
    corpus = TokenCorpus.of([["good", "film"], ["bad", "film"]], [1, -1])
    return EmbeddingInstance(corpus, 256, step=1.0, delta=1e-20)


CLAIMS = (
    Claim("A.initialisation", initialisation, "exact", about="(14): inner products and lengths at the start",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=256), refutation=_one_token,
        unconditional="Printed without a condition; A.initialisation-repaired has the ones it needs.",
        note=(
            "With one token and delta = 1/2 three normals are each allowed 1.18 deviations, and (14) holds with "
            "probability 0.441 in high dimension. It also fails for very small delta: see the repair."
        )),
    Claim("A.initialisation-repaired", initialisation_repaired, "exact",
        about="(14) for two tokens or more, d >= 256 and d >= (2 log(|S|^2/delta))^2",
        example=lambda: EmbeddingInstance.of(4, 3, dimension=256), outside=(_one_token, _tiny_delta),
        unneeded={"d": "Used for the constants of the proof; no instance is known that breaks it alone and fails."},
        note="The conditions on d are the paper's own, from Lemma 2 on. The proof is in the statement."),
)  # fmt: skip
