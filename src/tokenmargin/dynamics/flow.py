"""Gradient flow by arc length: `d theta / d arc = -gradient / |gradient|`, followed to any norm.

The path is that of `d theta / dt = -gradient`. Its direction is known in the log domain at every norm, while the
speed falls below the smallest double near |p| = 1000. The path is stiff: competing tokens equalise over a length O(1)
while the norm grows without bound, so the solver is LSODA with the analytic Jacobian, whose steps grow with the norm.
Physical time is recovered afterwards, as a logarithm.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.integrate import LSODA, DenseOutput
from scipy.optimize import brentq

from tokenmargin.attention import AbstractObjective
from tokenmargin.dynamics.events import AbstractEvent, Crossing, first_change
from tokenmargin.dynamics.quadrature import log_integral
from tokenmargin.dynamics.span import Reduced
from tokenmargin.selection import saturation, select

__all__ = ["FlowPath", "FlowSettings", "Stop", "flow"]

Stop = Literal["norm", "event", "stationary", "flat", "steps", "stalled", "interrupted"]

# Logits differ by O(1) where it matters, so a norm beyond this loses them to the rounding of <k, p>.
LARGEST_NORM = 1e13
_NEAR_STATIONARY = 1e-7  # of the balance: Newton's method takes over
_STATIONARY = 1e-12
_PIECES = 4  # sub-intervals of a solver step at which labels are looked at


@dataclass(frozen=True)
class FlowSettings:
    """How the flow is followed.

    - `tolerance`: relative (and absolute) error allowed per step.
    - `coupling`: "joint" is gradient flow of all blocks; "block" gives every block unit speed, the limit of normalised
      descent with a small step when head and prompt are trained together.
    - `max_steps`: of the solver.
    """

    tolerance: float = 1e-10
    coupling: Literal["joint", "block"] = "joint"
    max_steps: int = 100_000

    def __post_init__(self) -> None:
        if not 1e-13 <= self.tolerance <= 1e-2:
            raise ValueError(f"tolerance must lie in 1e-13..1e-2, got {self.tolerance}")
        if self.coupling not in ("joint", "block"):
            raise ValueError(f"coupling must be 'joint' or 'block', got {self.coupling!r}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")


@dataclass(frozen=True, eq=False)
class FlowPath:
    """A piece of gradient flow: call it with an arc length to get the point there.

    **Attributes**
    - `objective`, `settings`: what was followed, and how.
    - `arcs`: arc lengths at the solver's steps, from 0.
    - `final`: the last point; at a stationary point, after Newton's method has polished it.
    - `stop`: why it ended: "norm" reached, a stopping "event", a "stationary" point, "flat" (the gradient is lost to
      cancellation without a stationary point nearby), the limit of "steps", "stalled" (the solver gave up), or
      "interrupted".
    - `crossings`: the events that happened, in order.
    """

    objective: AbstractObjective
    settings: FlowSettings
    arcs: Float[Array, " knots"]
    final: Float[Array, " D"]
    stop: Stop
    crossings: tuple[Crossing, ...]
    _field: _Field = field(repr=False)
    _pieces: tuple[DenseOutput, ...] = field(repr=False)

    def __call__(self, arc: float | Float[Array, " k"]) -> Float[Array, "... D"]:
        """The point at an arc length in 0..arcs[-1], or one row for each of several."""
        arcs = np.atleast_1d(np.asarray(arc, dtype=np.float64))
        if arcs.min() < 0 or arcs.max() > self.arcs[-1]:
            raise ValueError(f"arc must lie in 0..{self.arcs[-1]:g}, got {arcs.min():g}..{arcs.max():g}")
        if not self._pieces:
            return np.broadcast_to(self.final, (*np.shape(arc), self.final.size)).copy()
        piece = np.clip(np.searchsorted(self.arcs, arcs, side="left") - 1, 0, len(self._pieces) - 1)
        points = np.stack([self._pieces[j](s) for j, s in zip(piece, arcs, strict=True)])
        lifted = self._field.lift(points)
        return lifted[0] if np.ndim(arc) == 0 else lifted

    @property
    def prompt(self) -> Float[Array, " D_keys"]:
        """The attention parameter p at the end."""
        return self.objective.prompt(self.final)

    @property
    def norm(self) -> float:
        """Length of the whole parameter at the end."""
        return float(np.linalg.norm(self.objective.norms(self.final)))

    @property
    def selected(self) -> Int[Array, " n"]:
        """The token of largest weight in each input at the end."""
        return select(self.objective.problem.keys, self.prompt)

    @property
    def saturation(self) -> float:
        """Mean largest softmax weight at the end."""
        return float(saturation(self.objective.problem.keys, self.prompt))

    @property
    def log_gradient(self) -> float:
        """Logarithm of the gradient norm at the end."""
        return float(np.logaddexp.reduce(2 * self.objective.descent(self.final).log_norm) / 2)

    @cached_property
    def log_time(self) -> Float[Array, " knots"]:
        """Logarithm of the time gradient flow takes to each of `arcs`: `t = integral of d arc / |gradient|`.

        Relative error about 1e-5; nothing overflows, since only logarithms are added.
        """
        if len(self.arcs) == 1:
            return np.array([-np.inf])

        def log_slowness(arcs: Float[Array, " k"]) -> Float[Array, " k"]:
            return np.asarray(-np.logaddexp.reduce(2 * self.objective.descent(self(arcs)).log_norm, axis=-1) / 2)

        return log_integral(log_slowness, self.arcs)

    def at_norm(self, norm: float) -> Float[Array, " D"]:
        """The first point whose length is `norm`."""
        lengths = [self._field.norm(piece(end)) for piece, end in zip(self._pieces, self.arcs[1:], strict=True)]
        reached = np.flatnonzero(np.array(lengths) >= norm * (1 - 1e-12))
        if reached.size == 0 or self._field.norm(self._field.reduce(self(0.0))) > norm:
            raise ValueError(f"the path does not cross |theta| = {norm:g}: it ends at {self.norm:g}")
        knot = int(reached[0])
        piece, low, high = self._pieces[knot], self.arcs[knot], self.arcs[knot + 1]

        def excess(arc: float) -> float:
            return self._field.norm(piece(arc)) - norm

        return self(high if excess(high) <= 0 else float(brentq(excess, low, high, xtol=1e-15, rtol=1e-15)))

    def resume(
        self,
        *,
        until_norm: float = 1e8,
        events: Iterable[AbstractEvent] = (),
        progress: Callable[[float], None] | None = None,
    ) -> FlowPath:
        """Go on from the end; the path returned is the whole one."""
        if self.stop == "stationary":
            return self
        run = _Run(self._field, self.settings, until_norm, tuple(events), progress)
        run.follow(self._field.reduce(self.final), float(self.arcs[-1]))
        return replace(
            self,
            arcs=np.concatenate([self.arcs, run.arcs[1:]]),
            final=run.final,
            stop=run.stop,
            crossings=(*self.crossings, *run.crossings),
            _pieces=(*self._pieces, *run.pieces),
        )


def flow(
    objective: AbstractObjective,
    *,
    start: Float[Array, " D"] | None = None,
    until_norm: float = 1e8,
    events: Iterable[AbstractEvent] = (),
    settings: FlowSettings | None = None,
    progress: Callable[[float], None] | None = None,
) -> FlowPath:
    """Follow gradient flow from `start` until its norm is `until_norm`, an event stops it, or it comes to rest.

    **Arguments**
    - `objective`: a prompt, joint or nonlinear-head objective, in either geometry.
    - `start`: first point; the objective's own start by default.
    - `until_norm`: length of the parameter at which to stop.
    - `events`: what to watch for; see `tokenmargin.dynamics.events`.
    - `settings`: tolerance, coupling of the blocks, step limit.
    - `progress`: called with the norm after each step of the solver.

    Ctrl-C ends the run early and returns what was reached; `resume` goes on from there.

    >>> from tokenmargin.attention import PromptObjective
    >>> from tokenmargin.instances import figure1a
    >>> path = flow(PromptObjective(figure1a()), until_norm=1e8)
    >>> path.stop, path.selected, (path.prompt / path.norm).round(6)
    ('norm', array([0]), array([-0.099504,  0.995037,  0.      ]))
    """
    settings = FlowSettings() if settings is None else settings
    theta = objective.start() if start is None else np.array(start, dtype=np.float64)
    if theta.shape != (objective.dimension,):
        raise ValueError(
            f"start must be one point of {objective.dimension} numbers, got shape {theta.shape}; "
            "flow follows one path at a time"
        )
    if not np.isfinite(theta).all():
        raise ValueError("start must be finite")
    along = _Field(Reduced.of(objective), theta, settings.coupling)
    run = _Run(along, settings, until_norm, tuple(events), progress)
    run.follow(along.reduce(theta), 0.0)
    return FlowPath(
        objective, settings, run.arcs, run.final, run.stop, tuple(run.crossings), along, tuple(run.pieces)
    )  # fmt: skip


def _checked_norm(norm: float) -> float:
    if not 0 < norm <= LARGEST_NORM:
        raise ValueError(
            f"until_norm must lie in 0..{LARGEST_NORM:g}, got {norm:g}: beyond it logits of order one are lost to "
            "rounding"
        )
    return norm


class _Field:
    """The unit field and its Jacobian in the coordinates of the span, and the way back."""

    def __init__(self, reduced: Reduced, theta: Float[Array, " D"], coupling: str) -> None:
        self.reduced = reduced
        self.objective = reduced.objective
        self.joint = coupling == "joint" and len(reduced.spans) > 1
        self.sizes = [span.dimension for span in reduced.spans]
        self.original = reduced.original
        self.rest = theta - reduced.lift(reduced.reduce(theta))  # what the start has outside the span stays
        self._rest_length = float(np.linalg.norm(reduced.original.norms(self.rest)))

    def norm(self, y: Float[Array, " r"]) -> float:
        """Length of the whole parameter: the rest is orthogonal to the span."""
        return float(np.hypot(np.linalg.norm(y), self._rest_length))

    def reduce(self, theta: Float[Array, " D"]) -> Float[Array, " r"]:
        return self.reduced.reduce(theta)

    def lift(self, y: Float[Array, "... r"]) -> Float[Array, "... D"]:
        return self.rest + self.reduced.lift(y)

    def shares(self, log_norm: Float[Array, " blocks"]) -> Float[Array, " r"]:
        """How much of the unit speed each coordinate's block gets."""
        if not self.joint:
            return np.ones(sum(self.sizes))
        total = np.logaddexp.reduce(2 * log_norm) / 2
        return np.repeat(np.exp(log_norm - total), self.sizes)

    def direction(self, _: float, y: Float[Array, " r"]) -> Float[Array, " r"]:
        descent = self.objective.descent(y)
        return self.shares(descent.log_norm) * descent.direction

    def jacobian(self, _: float, y: Float[Array, " r"]) -> Float[Array, "r r"]:
        """`(I - u u') J / |F|`, for the whole field or block by block."""
        descent, relative, _balance = self.objective.linearise(y)
        shares = self.shares(descent.log_norm)
        u, rows = shares * descent.direction, shares[:, None] * relative
        if self.joint or len(self.sizes) == 1:
            return rows - np.outer(u, u @ rows)
        begin = 0
        for size in self.sizes:
            block = slice(begin, begin + size)
            rows[block] -= np.outer(u[block], u[block] @ rows[block])
            begin += size
        return rows

    def polish(self, y: Float[Array, " r"]) -> tuple[Float[Array, " r"], float]:
        """Newton's method on the gradient: the point it leads to and the balance there."""
        best, balance = y, np.inf
        for _ in range(8):
            descent, relative, balances = self.objective.linearise(best)
            balance = float(balances.max())
            if balance <= _STATIONARY or not np.isfinite(relative).all():
                break
            best = best - np.linalg.lstsq(relative, descent.direction, rcond=1e-10)[0]
        return best, balance


class _Run:
    """One call of the solver: it fills in arcs, pieces, crossings, the final point and the reason to stop."""

    def __init__(
        self,
        along: _Field,
        settings: FlowSettings,
        until_norm: float,
        events: tuple[AbstractEvent, ...],
        progress: Callable[[float], None] | None,
    ) -> None:
        self.field, self.settings, self.until, self.events = along, settings, _checked_norm(until_norm), events
        self.progress = progress
        self.pieces: list[DenseOutput] = []
        self.crossings: list[Crossing] = []
        self.stop: Stop = "steps"

    def follow(self, y: Float[Array, " r"], arc: float) -> None:
        knots = [arc]
        self.final = self.field.lift(y)
        self.labels = [event.label(self.field.original, self.final) for event in self.events]
        if self.field.norm(y) >= self.until:
            self.stop = "norm"
        elif not self._at_rest(y):
            tolerance = self.settings.tolerance
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # LSODA's own words; its failure is our "stalled"
                    solver = LSODA(
                        self.field.direction, arc, y, np.inf, rtol=tolerance, atol=tolerance, jac=self.field.jacobian
                    )
                    for _ in range(self.settings.max_steps):
                        if not self._step(solver, knots):
                            break
            except KeyboardInterrupt:
                self.stop = "interrupted"
        self.arcs = np.array(knots)

    def _step(self, solver: LSODA, knots: list[float]) -> bool:
        """One step of the solver; False when the run is over."""
        solver.step()
        if solver.status == "failed":
            if not self._at_rest(solver.y):
                self.stop = "stalled"
            return False
        piece, end = solver.dense_output(), float(solver.t)
        self.stop, end = self._watch(piece, knots[-1], end)
        self.pieces.append(piece)
        knots.append(end)
        y = piece(end)
        self.final = self.field.lift(y)
        if self.progress is not None:
            self.progress(self.field.norm(y))
        return self.stop == "steps" and not self._at_rest(y)

    def _watch(self, piece: DenseOutput, begin: float, end: float) -> tuple[Stop, float]:
        """Record the events of a piece; why and where the run stops in it, or "steps" and its end."""
        stop: Stop = "steps"
        nodes = np.linspace(begin, end, _PIECES + 1).tolist()
        for low, high in pairwise(nodes):
            if self.field.norm(piece(high)) >= self.until:
                stop = "norm"
                high = brentq(lambda s: self.field.norm(piece(s)) - self.until, low, high, xtol=1e-15, rtol=1e-15)
            for crossing in self._crossings(piece, low, high):
                self.crossings.append(crossing)
                if crossing.event.stops:
                    return "event", crossing.arc
            if stop == "norm":
                return stop, high
        return stop, end

    def _crossings(self, piece: DenseOutput, low: float, high: float) -> list[Crossing]:
        """The events between two nodes, in order; the labels at the left one are known."""
        if not self.events:
            return []
        original, point = self.field.original, self.field.lift(piece(high))
        found = []
        for j, event in enumerate(self.events):
            label = event.label(original, point)
            if label != self.labels[j]:
                found.append(first_change(event, original, lambda s: self.field.lift(piece(s)), (low, high)))
                self.labels[j] = label
        return sorted(found, key=lambda crossing: crossing.arc)

    def _at_rest(self, y: Float[Array, " r"]) -> bool:
        """Whether the gradient has all but cancelled: at a "stationary" point, polished, or where it is "flat"."""
        if float(self.field.objective.linearise(y).balance.max()) > _NEAR_STATIONARY:
            return False
        polished, reached = self.field.polish(y)
        moved = float(np.linalg.norm(polished - y))
        self.stop = "flat"
        if reached <= _STATIONARY and moved <= 1e-3 * max(1.0, float(np.linalg.norm(y))):
            self.final = self.field.lift(polished)
            self.stop = "stationary"
        return True
