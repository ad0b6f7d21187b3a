"""How far rounding errors grow along a flow: does where it goes still depend on its start, or on them?

A displacement `e` of the path is carried along by the linearised flow `e' = J e`. Rounding adds one of a few times
eps (|p| + 1 / K) at every step, K being the longest derivative of a difference of two logits (for a prompt the longest
difference of two tokens): positions are rounded to eps |p|, and at
p = 0 the weights are still rounded to eps, which is worth a move of eps / K. The covariance of what has been added so
far follows `C -> E C E' + added^2`, with the propagator E of a step. Where its largest deviation, times K, reaches 1,
the logits are off by an amount of order one: which way the path goes from there was decided by rounding.

The solver is less exact than rounding: it may be off by its tolerance. Growth by the inverse of that decides as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.linalg import expm

from tokenmargin.norms import EPS

if TYPE_CHECKING:
    from tokenmargin.dynamics.integrate import UnitField

_ROUNDINGS = 8  # a step of LSODA adds up to 78 numbers, each of them rounded: the root of that
# Where rounding has grown by this share of 1 / tolerance, what the solver is off by has grown to order one: hundreds of
# steps are off by tolerance (1 + |p|) each, of either sign, with |p| of a few: the root of their number times that. It
# was seen to leave unstable rays of symmetric problems after 0.048 to 0.1 / tolerance. Ordinary paths grow by exp(6).
_OF_TOLERANCE = 0.01
_CHUNK = 256  # propagators are computed this many at a time, until the question is decided


@dataclass(frozen=True, eq=False)
class Rounding:
    """How far rounding has grown along a path.

    **Attributes**
    - `log_size`: at every knot up to the decision, the logarithm of the change of a logit that rounding has grown to.
      It begins near -34; at 0 the path is decided by rounding.
    - `log_growth`: largest growth since it was added, as a logarithm: how much more than rounding it has become.
    - `decided`: whether the path is decided by rounding before its end.
    - `arc`, `norm`: where that happens; NaN when it does not.
    - `direction`: the unit vector along which the path is unstable there; None when it is not.
    """

    log_size: Float[Array, " knots"]
    log_growth: float
    decided: bool
    arc: float
    norm: float
    direction: Float[Array, " D"] | None


def rounding_along(
    unit_field: UnitField, arcs: Float[Array, " knots"], pieces: Sequence[Callable[[float], Array]], *, tolerance: float
) -> Rounding:
    """Follow the covariance of all rounding along the steps of a path, until it decides or the path ends.

    Growth is measured against what is added where the path is now, and against the solver's `tolerance`.

    A step's propagator is the exponential of the Jacobian in its middle. The Jacobian itself is known to the rounding
    of the logits, eps K |p| of its size; growth that this could feign is taken off.
    """
    if not pieces:
        return Rounding(np.array([np.log(EPS)]), 0.0, False, np.nan, np.nan, None)
    first = pieces[0](arcs[0])
    covariance = _rounding_of_step(unit_field, first) ** 2 * np.eye(sum(unit_field.sizes))
    sizes, growth = [_largest_deviation(covariance) * unit_field.reach(first)], 0.0
    for begin in range(0, len(pieces), _CHUNK):
        end = min(begin + _CHUNK, len(pieces))
        propagators = _step_propagators(unit_field, arcs[begin : end + 1], pieces[begin:end])
        for k, step in enumerate(propagators, begin):
            y = pieces[k](arcs[k + 1])
            added, reach = _rounding_of_step(unit_field, y), unit_field.reach(y)
            with np.errstate(over="ignore", invalid="ignore"):
                covariance = step @ covariance @ step.T + added**2 * np.eye(len(y))
            sizes.append(_largest_deviation(covariance) * reach)
            growth = max(growth, float(np.log(sizes[-1] / (added * reach))))
            if not sizes[-1] < 1 or growth > np.log(_OF_TOLERANCE / tolerance):
                unstable = _least_stable(unit_field, covariance)
                return Rounding(np.log(sizes), growth, True, float(arcs[k + 1]), unit_field.norm(y), unstable)
    return Rounding(np.log(sizes), growth, False, np.nan, np.nan, None)


def _rounding_of_step(unit_field: UnitField, y: Float[Array, " r"]) -> float:
    return _ROUNDINGS * EPS * (unit_field.norm(y) + 1 / unit_field.reach(y))


def _step_propagators(
    unit_field: UnitField, arcs: Float[Array, " k"], pieces: Sequence[Callable[[float], Array]]
) -> Float[Array, "steps r r"]:
    """The exponentials of the Jacobian in the middle of each step, times the step's length."""
    middles = (arcs[1:] + arcs[:-1]) / 2
    exponents = []
    for piece, middle, length in zip(pieces, middles, np.diff(arcs), strict=True):
        y = piece(middle)
        jacobian = unit_field.jacobian(middle, y)
        feigned = 4 * EPS * unit_field.reach(y) * unit_field.norm(y) * float(np.linalg.norm(jacobian))
        exponents.append(length * (jacobian - feigned * np.eye(len(y))))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(expm(np.clip(np.stack(exponents), -1e300, 1e300)))


def _largest_deviation(covariance: Float[Array, "r r"]) -> float:
    if not np.isfinite(covariance).all():
        return np.inf
    return float(np.sqrt(max(np.linalg.eigvalsh(covariance)[-1], 0.0))) if covariance.size else 0.0


def _least_stable(unit_field: UnitField, covariance: Float[Array, "r r"]) -> Float[Array, " D"] | None:
    if not np.isfinite(covariance).all():
        return None
    vector = unit_field.reduced.lift(np.linalg.eigh(covariance)[1][:, -1])
    return np.asarray(vector / np.linalg.norm(unit_field.original.norms(vector)))
