"""Losses of the margin `u = Y f`: value, slope and bend (how the slope changes), as logarithms where they underflow."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from tokenmargin._notebook import one_line
from tokenmargin.norms import EPS
from tokenmargin.plugins import find, own_objects

# Gauss-Legendre nodes on [0, 1]: ten integrate the slopes below to rounding over an interval of length one.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
_SHORT = 1.0
_TRIED = np.sqrt([2.0, 0.7, 0.1]) * [[-1.0], [1.0]]  # where a loss of one's own is tried: roots, to meet no kink


LogSigned: TypeAlias = tuple[Float[Array, "..."], Float[Array, "..."]]
"""Numbers by the logarithms of their sizes, and their signs."""


class AbstractLoss(abc.ABC):
    """A decreasing loss of the margin `u = Y f` (Assumption A)."""

    @abc.abstractmethod
    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """`loss(u)`."""

    @abc.abstractmethod
    def log_slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """`log(-loss'(u))`: finite where the slope itself has underflowed."""

    @abc.abstractmethod
    def log_slope_derivative(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """`d/du log(-loss'(u)) = loss''(u) / loss'(u)`: how fast an output stops mattering."""

    def log_value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        """`log(loss(u))`, for positive losses."""
        value = self.value(u)
        if not (value > 0).all():
            raise ValueError(f"{type(self).__name__} is not positive, so it has no logarithm; use a positive loss")
        return np.asarray(np.log(value))

    def log_excess(self, best: Float[Array, "..."], log_gap: Float[Array, "..."]) -> Float[Array, "..."]:
        """`log(loss(best - gap) - loss(best))` for a gap given by its logarithm, however small.

        The difference is the integral of the slope over the gap, and positive numbers add without cancellation.
        """
        gap = np.exp(np.minimum(log_gap, 0.0))[..., None]
        slopes = self.log_slope(np.asarray(best)[..., None] - gap * _NODES)
        top = slopes.max(axis=-1, keepdims=True)
        top = np.where(np.isneginf(top), 0.0, top)  # where every slope is zero
        with np.errstate(divide="ignore"):
            short = log_gap + top[..., 0] + np.log((np.exp(slopes - top) * _WEIGHTS).sum(axis=-1))
        if (log_gap <= np.log(_SHORT)).all():
            return np.asarray(short)
        long_gap = np.exp(np.maximum(log_gap, 0.0))
        difference = self.value(np.asarray(best - long_gap)) - self.value(np.asarray(best))
        return np.where(log_gap > np.log(_SHORT), np.log(np.maximum(difference, np.finfo(float).tiny)), short)

    @abc.abstractmethod
    def constants(self, low: float, high: float) -> tuple[float, float]:
        """`(M0, M1)` on [low, high]: Lipschitz constant of the slope, and a bound on its modulus."""


@dataclass(frozen=True)
class LogisticLoss(AbstractLoss):
    """`log(1 + exp(-u))`."""

    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.asarray(np.logaddexp(0.0, -u))

    def log_slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.asarray(-np.logaddexp(0.0, u))

    def log_slope_derivative(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        from scipy.special import expit  # it takes a fifth of a second to load

        return np.asarray(-expit(u))

    def log_value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        # log(1 + x) = x (1 - x / 2) to rounding below x = exp(-20).
        return np.where(u > 20, -u - np.exp(-np.maximum(u, 20.0)) / 2, np.log(np.logaddexp(0.0, -np.minimum(u, 20.0))))

    def constants(self, low: float, high: float) -> tuple[float, float]:
        # loss'' = s(u) s(-u) peaks at 0; |loss'| = s(-u) is largest at the left end.
        nearest = abs(min(max(0.0, low), high))
        return float(np.exp(-nearest) / (1 + np.exp(-nearest)) ** 2), float(np.exp(self.log_slope(np.asarray(low))))


@dataclass(frozen=True)
class ExponentialLoss(AbstractLoss):
    """`exp(-u)`."""

    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.asarray(np.exp(-u))

    def log_slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.asarray(-u)

    def log_slope_derivative(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.full_like(u, -1.0)

    def log_value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.asarray(-u)

    def constants(self, low: float, high: float) -> tuple[float, float]:
        return float(np.exp(-low)), float(np.exp(-low))


@dataclass(frozen=True)
class CorrelationLoss(AbstractLoss):
    """`-u`."""

    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.asarray(-u)

    def log_slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.zeros_like(u)

    def log_slope_derivative(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.zeros_like(u)

    def constants(self, low: float, high: float) -> tuple[float, float]:
        return 0.0, 1.0


@dataclass(frozen=True)
class LogLoss(AbstractLoss):
    """`-log(u)` of an output u in (0, 1]: the loss of a probability, as in next-token prediction.

    Where u has underflowed, some 700 below the other logits, loss and slope of u are infinite; a `PromptObjective`
    goes on by the logarithm of the output.
    """

    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.asarray(-self._log(u))

    def log_slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.asarray(-self._log(u))

    def log_slope_derivative(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(-1 / np.asarray(u))

    def log_excess(self, best: Float[Array, "..."], log_gap: Float[Array, "..."]) -> Float[Array, "..."]:
        share = np.minimum(log_gap - self._log(best), 0.0)  # of the best output that is lost
        with np.errstate(divide="ignore"):  # all of it: the excess is infinite
            near = np.log(-np.log1p(-np.exp(np.maximum(share, -40.0))))
        return np.where(share < -40, share, near)

    def constants(self, low: float, high: float) -> tuple[float, float]:
        if low <= 0:
            raise ValueError("-log(u) has no bounded slope down to u = 0: there is no step-size rule; give a step")
        return 1 / low**2, 1 / low

    @staticmethod
    def _log(u: Float[Array, "..."]) -> Float[Array, "..."]:
        if np.min(u, initial=1.0) < 0:
            raise ValueError(f"-log(u) is for outputs above 0, got {np.min(u):g}; use scores of 0 and 1")
        with np.errstate(divide="ignore"):  # an output that has underflowed has an infinite loss
            return np.asarray(np.log(u))


@dataclass(frozen=True)
class SquareLoss(AbstractLoss):
    """`u^2` of `u = -|y - f|`, minus the distance to a real label: it falls as u rises to zero."""

    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.asarray(np.square(u))

    def log_slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(2.0) + np.log(-np.minimum(u, 0.0)))

    def log_slope_derivative(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        with np.errstate(divide="ignore"):
            return np.asarray(1 / u)

    def constants(self, low: float, high: float) -> tuple[float, float]:
        return 2.0, float(2 * max(-low, 0.0))


@dataclass(frozen=True)
class CustomLoss(AbstractLoss):
    """A loss of your own: any differentiable, strictly decreasing function.

    **Arguments**
    - `function`: `loss(u)`, applied to arrays elementwise.
    - `derivative`: `loss'(u)`, negative at every output. Differences of the function at a few points tell one that is
      another function's.
    - `second`: `loss''(u)`, used by the flow and the regularisation path; by default a central difference of
      `log(-loss')` over `eps^(1/3) max(1, |u|)`, right to about ten digits.
    - `lipschitz`, `bound`: `M0` and `M1` of Assumption A, needed only for the step-size rule.

    >>> hinge = CustomLoss(lambda u: np.arctan(-u), lambda u: -1 / (1 + u**2), lipschitz=0.65, bound=1.0)
    >>> float(hinge.log_slope(np.array(0.0)))
    0.0
    """

    function: Callable[[Float[Array, "..."]], Float[Array, "..."]]
    derivative: Callable[[Float[Array, "..."]], Float[Array, "..."]]
    second: Callable[[Float[Array, "..."]], Float[Array, "..."]] | None = None
    lipschitz: float | None = None
    bound: float | None = None

    __repr__ = one_line

    def __post_init__(self) -> None:
        check_derivative("the derivative", lambda h: self.function(_TRIED + h), lambda: self.derivative(_TRIED))

    def value(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        return np.asarray(self.function(u))

    def log_slope(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        slope = np.asarray(self.derivative(u))
        if not (slope < 0).all():
            raise ValueError(
                f"the loss must be strictly decreasing: its derivative is {slope.max():g} on outputs in "
                f"[{np.min(u):g}, {np.max(u):g}]; return a negative derivative there"
            )
        return np.asarray(np.log(-slope))

    def log_slope_derivative(self, u: Float[Array, "..."]) -> Float[Array, "..."]:
        if self.second is not None:
            return np.asarray(self.second(u) / self.derivative(u))
        h = np.cbrt(EPS) * np.maximum(1.0, np.abs(u))
        return np.asarray((self.log_slope(u + h) - self.log_slope(u - h)) / (2 * h))

    def constants(self, low: float, high: float) -> tuple[float, float]:
        if self.lipschitz is None or self.bound is None:
            raise ValueError("the step-size rule needs CustomLoss(lipschitz=M0, bound=M1); give them, or give a step")
        return self.lipschitz, self.bound


def check_derivative(name: str, moved: Callable[[float], ArrayLike], derivative: Callable[[], ArrayLike]) -> None:
    """Refuse a derivative that is over a hundredth off the central differences of its function.

    Two steps tell how well differences know it: what they disagree about, or rounding may have done, is not counted.

    **Arguments**
    - `name`: what it is, for the message.
    - `moved`: the function at each point tried, moved by so much.
    - `derivative`: what was given for it, at the same points.
    """
    with np.errstate(all="ignore"):  # points outside the domain of the function tell nothing
        given = np.asarray(derivative(), dtype=np.float64)
        digits = np.finfo(np.result_type(np.asarray(moved(0.0)), np.float16)).eps
        step = float(np.cbrt(digits))
        ends = [(np.asarray(moved(h)), np.asarray(moved(-h))) for h in (step, step / 4)]
        rough, fine = ((up - down) / (2 * h) for (up, down), h in zip(ends, (step, step / 4), strict=True))
        doubt = np.abs(rough - fine) + 8 * digits * (np.abs(ends[1][0]) + np.abs(ends[1][1])) / step
        off = np.abs(given - fine) > doubt + 0.01 * (np.abs(given) + np.abs(fine))
    if off.any():
        told, seen = (np.broadcast_to(part, off.shape)[off][0] for part in (given, fine))
        raise ValueError(f"{name} is not that of the function: {told:.4g} where its differences tell {seen:.4g}")


@dataclass(frozen=True, eq=False)
class WeightedInputs(AbstractLoss):
    """A loss times a weight for each input: the last axis of what it is given counts the inputs."""

    loss: AbstractLoss
    log_weights: Float[Array, " n"]

    def value(self, u: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return np.asarray(self.loss.value(u) * np.exp(self.log_weights))

    def log_slope(self, u: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return np.asarray(self.loss.log_slope(u) + self.log_weights)

    def log_slope_derivative(self, u: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return self.loss.log_slope_derivative(u)

    def log_excess(self, best: Float[Array, "... n"], log_gap: Float[Array, "... n"]) -> Float[Array, "... n"]:
        return np.asarray(self.loss.log_excess(best, log_gap) + self.log_weights)

    def constants(self, low: float, high: float) -> tuple[float, float]:
        m0, m1 = self.loss.constants(low, high)
        largest = float(np.exp(self.log_weights.max()))
        return m0 * largest, m1 * largest


def loss_named(name: str) -> AbstractLoss:
    """One of `LOSSES`, one that another package adds, or the loss at `MODULE:OBJECT`.

    >>> loss_named("logistic")
    LogisticLoss()
    """
    loss: AbstractLoss = find("losses", name)
    return loss


def signed_excess(
    loss: AbstractLoss,
    reference: Float[Array, "... n"],
    log_weights: Float[Array, "... n T"],
    scores: Float[Array, "... n T"],
) -> LogSigned:
    """Log size and sign of `mean_i (loss(f_i) - loss(reference_i))` for outputs `f_i = sum_t s_it scores_it`.

    The outputs fall short of the reference by `sum_t s_it (reference_i - scores_it)`, a sum of terms of either sign
    that is taken by their logarithms.
    """
    from scipy.special import logsumexp  # it takes a fifth of a second to load

    gaps = reference[..., None] - scores
    with np.errstate(divide="ignore"):
        sizes = log_weights + np.log(np.abs(gaps))
    log_gap, sign = logsumexp(
        np.where(np.isneginf(log_weights), -np.inf, sizes), b=np.sign(gaps), axis=-1, return_sign=True
    )
    # Where the output is above the reference, the loss falls from there to it by the same integral.
    base = np.where(sign < 0, reference + np.exp(np.minimum(log_gap, 700.0)), reference)
    total, total_sign = logsumexp(loss.log_excess(base, log_gap), b=sign, axis=-1, return_sign=True)
    return np.asarray(total - np.log(reference.shape[-1])), np.asarray(total_sign)


LOSSES: tuple[tuple[str, AbstractLoss], ...] = own_objects("losses")
"""The package's own losses by name."""
