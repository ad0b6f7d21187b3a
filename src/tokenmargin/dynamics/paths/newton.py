"""A trust-region Newton method on a sphere, or in free space: minimise a smooth function known with its Hessian.

On the sphere the Hessian is `P (H - (n . g) / R) P` with the normal n and the tangent projector P: the second term is
the curvature of the sphere itself, and it is what makes max-margin directions strict minima at every radius.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.norms import EPS

SecondOrderFunction = Callable[[Array], tuple[float, Array, Array]]
"""Value, gradient and Hessian at a point."""

TOLERANCE = 1e-9


def _tolerance(point: Float[Array, " k"]) -> float:
    """What the residual can be brought to: functions of logits know them to a few eps of the point's length."""
    return max(TOLERANCE, 32 * EPS * float(np.linalg.norm(point)))


@dataclass(frozen=True, eq=False)
class Sphere:
    """The points `centre + basis' w` with `|w| = radius`; all of space when there is no basis."""

    radius: float
    centre: Float[Array, " r"] | None = None
    basis: Float[Array, "k r"] | None = None

    def embed(self, w: Float[Array, " k"]) -> Float[Array, " r"]:
        """The point with coordinates `w`."""
        return w if self.basis is None else self.centre + w @ self.basis

    def coordinates(self, point: Float[Array, " r"]) -> Float[Array, " k"]:
        """Coordinates of the point of the sphere nearest to `point`."""
        w = point if self.basis is None else self.basis @ (point - self.centre)
        length = float(np.linalg.norm(w))
        if length == 0:
            w, length = np.eye(1, len(w))[0], 1.0
        return np.asarray(self.radius * w / length)


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where the method ended.

    - `point`, `value`: the minimiser found.
    - `residual`: length of the part of the gradient that the sphere does not hold, relative to the gradient; in free
      space the gradient's length. Zero at a stationary point.
    - `outward`: cosine between minus the gradient and the outer normal; a minimum on the sphere is one on the ball
      when it is not negative.
    - `converged`: whether the residual is below the tolerance.
    """

    point: Float[Array, " r"]
    value: float
    residual: float
    outward: float
    converged: bool


def minimise(
    landscape: SecondOrderFunction,
    start: Float[Array, " r"],
    *,
    sphere: Sphere | None = None,
    max_iterations: int = 300,
) -> Minimum:
    """A local minimum of `landscape` near `start`, on the sphere when one is given.

    Points at which the function or a derivative is no number (an output that has underflowed, under -log) are not gone
    to; a start at such a point ends there, unconverged.
    """
    w = start if sphere is None else sphere.coordinates(start)
    value, gradient, hessian = _evaluate(landscape, w, sphere)
    if not _is_finite(value, gradient, hessian):
        return Minimum(w if sphere is None else sphere.embed(w), value, np.inf, 0.0, False)
    reach = 0.25 * (max(float(np.linalg.norm(w)), 1.0) if sphere is None else sphere.radius)
    evaluations = 1
    while True:
        tangent, bent, residual, outward = _on_tangent(w, gradient, hessian, sphere)
        converged = bool(residual <= _tolerance(w))
        if converged or evaluations >= max_iterations or reach < 1e-14 * max(float(np.linalg.norm(w)), 1.0):
            point = w if sphere is None else sphere.embed(w)
            return Minimum(point, value, residual, outward, converged)
        step, promised = _trust_region_step(tangent, bent, reach)
        candidate = w + step
        if sphere is not None:
            candidate *= sphere.radius / np.linalg.norm(candidate)
        trial = _evaluate(landscape, candidate, sphere)
        evaluations += 1
        gained = value - trial[0] if _is_finite(*trial) else -np.inf
        # Near the minimum both numbers are rounding: a step that does not rise visibly is taken.
        noise = 1e-14 * max(abs(value), 1.0)
        good = (gained + noise) / (promised + noise)
        length = float(np.linalg.norm(step))
        if not good >= 0.25:
            reach = 0.25 * min(length, reach)
        elif good > 0.75 and length > 0.9 * reach:
            reach = 2 * reach
        if good > 0.05:
            w, (value, gradient, hessian) = candidate, trial


def _is_finite(value: float, gradient: Float[Array, " k"], hessian: Float[Array, "k k"]) -> bool:
    return bool(np.isfinite(value) and np.isfinite(gradient).all() and np.isfinite(hessian).all())


def _evaluate(
    landscape: SecondOrderFunction, w: Float[Array, " k"], sphere: Sphere | None
) -> tuple[float, Array, Array]:
    if sphere is None or sphere.basis is None:
        return landscape(w)
    value, gradient, hessian = landscape(sphere.embed(w))
    return value, sphere.basis @ gradient, sphere.basis @ hessian @ sphere.basis.T


def _on_tangent(
    w: Float[Array, " k"], gradient: Float[Array, " k"], hessian: Float[Array, "k k"], sphere: Sphere | None
) -> tuple[Array, Array, float, float]:
    """Gradient and Hessian along the sphere, the residual and the outward cosine."""
    size = float(np.linalg.norm(gradient))
    if sphere is None:
        return gradient, hessian, size, 0.0
    normal = w / sphere.radius
    radial = float(normal @ gradient)
    tangent = gradient - radial * normal
    tangent -= (normal @ tangent) * normal  # once more: rounding
    projector = np.eye(len(w)) - np.outer(normal, normal)
    bent = projector @ hessian @ projector - radial / sphere.radius * projector
    # The normal is no direction to go: give it a large curvature of its own.
    bent += (1.0 + np.abs(bent).max()) * np.outer(normal, normal)
    safe = size if size > 0 else 1.0
    return tangent, bent, float(np.linalg.norm(tangent)) / safe, -radial / safe


def _trust_region_step(
    gradient: Float[Array, " k"], hessian: Float[Array, "k k"], reach: float
) -> tuple[Float[Array, " k"], float]:
    """The minimiser of the quadratic model within `reach`, by the eigenvectors of the Hessian, and what it promises."""
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    along = vectors.T @ gradient
    scale = max(float(np.abs(values).max()), np.finfo(float).tiny)

    def step(shift: float) -> Array:
        with np.errstate(over="ignore"):  # a step that is no double is longer than the reach
            return -along / np.maximum(values + shift, 1e-16 * scale)

    shift = max(0.0, -float(values[0])) + (1e-12 * scale if values[0] <= 0 else 0.0)
    if np.linalg.norm(step(shift)) > reach:
        low, high = shift, shift + float(np.linalg.norm(along)) / reach
        for _ in range(60):
            shift = (low + high) / 2
            low, high = (shift, high) if np.linalg.norm(step(shift)) > reach else (low, shift)
            if high - low <= 1e-3 * high:
                break
        shift = high
    y = step(shift)
    return vectors @ y, float(-(along @ y + 0.5 * (values * y) @ y))
