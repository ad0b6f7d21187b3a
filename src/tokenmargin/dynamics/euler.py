"""Euler's steps along a field with kinks, as one more solver of gradient flow."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.integrate import DenseOutput, OdeSolver

SHARE = 5e-3  # a step, as a share of the length reached and of a length that changes logits by one
MOST_STEPS = 20_000
_LOOKED_AT = 100  # so many steps are looked at together: have they led away from where they began?
_LEAST_WAY = 0.03  # of their summed length, which is three steps; around a point of rest they lead away by two


class Euler(OdeSolver):
    """Steps of a fixed share of the length reached, which is halved while they go back and forth.

    Under sparsemax and entmax the field has kinks, at which the steps of a stiff solver shrink to nothing, and regions
    where it is exactly zero. Nothing there is exponentially small, so plain steps are right to within their length.
    Where the field pushes against an edge from both sides they follow the edge. They stop where the field is zero.
    """

    def __init__(self, fun: Any, t0: float, y0: Array, t_bound: float, *, step: float, unit: float) -> None:
        super().__init__(fun, t0, y0, t_bound, vectorized=False)
        self.first, self.unit, self.scale, self._before = step, unit, 1.0, self.y  # t is y's length times the unit
        self._seen, self._anchor, self._way = 0, self.y, 0.0

    def _step_impl(self) -> tuple[bool, str | None]:
        """What scipy calls for a step: whether it was taken, and why not."""
        direction = self.fun(self.t, self.y)
        if not direction.any():
            return False, "the field is zero"
        length = self.scale * SHARE * (self.first + float(np.linalg.norm(self.y))) * self.unit
        self._before = self.y
        self.t, self.y = self.t + length, self.y + length * direction
        self._seen, self._way = self._seen + 1, self._way + length
        if self._seen == _LOOKED_AT:
            led = self.unit * float(np.linalg.norm(self.y - self._anchor))
            self.scale = min(1.0, 2 * self.scale) if led > _LEAST_WAY * self._way else self.scale / 2
            self._seen, self._anchor, self._way = 0, self.y, 0.0
        return True, None

    def _dense_output_impl(self) -> DenseOutput:
        return _Line(self.t_old, self.t, self._before, self.y)


class _Line(DenseOutput):
    """The straight line between two points."""

    def __init__(self, t_old: float, t: float, before: Float[Array, " r"], after: Float[Array, " r"]) -> None:
        super().__init__(t_old, t)
        self._before, self._after = before, after

    def _call_impl(self, t: float) -> Float[Array, " r"]:
        share = (t - self.t_old) / (self.t - self.t_old)
        return np.asarray((1 - share) * self._before + share * self._after)
