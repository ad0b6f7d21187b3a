"""Gradient flow by arc length: `d theta / d arc = -gradient / |gradient|`, followed to any norm.

The path is that of `d theta / dt = -gradient`. Its direction is known in the log domain at every norm, while the
speed falls below the smallest double near |p| = 1000. The path is stiff: competing tokens equalise over a length O(1)
while the norm grows without bound, so the solver is LSODA with the analytic Jacobian, whose steps grow with the norm;
where they do not, Radau takes over.
Physical time is recovered afterwards, as a logarithm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.optimize import brentq

from tokenmargin._notebook import Drawable, Tabular
from tokenmargin.dynamics.events import AbstractEvent, Crossing
from tokenmargin.dynamics.integrate import FlowSettings, Integration, Stop, UnitField, norm_limit
from tokenmargin.dynamics.log_integral import log_integral
from tokenmargin.dynamics.rest import STATIONARY, BesidePiece, DivergentRisk, FinitePart, Piece, polish
from tokenmargin.dynamics.rounding import Rounding, rounding_along
from tokenmargin.dynamics.span import ReducedObjective
from tokenmargin.objective.attention import AbstractObjective, PromptObjective
from tokenmargin.objective.local_scores import as_objective
from tokenmargin.objective.shared_pulls import pulls_cancel
from tokenmargin.problem.abstract_geometry import as_array, check_finite
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import select

Progress = Callable[[float], None] | None


@dataclass(frozen=True, eq=False)
class FlowPath(Tabular, Drawable):
    """A piece of gradient flow: call it with an arc length to get the point there.

    **Attributes**
    - `objective`, `settings`: what was followed, and how.
    - `arcs`: arc lengths at the solver's steps, from 0.
    - `final`: the last point; at a stationary point, after Newton's method has polished it.
    - `stop`: why it ended: "norm" reached, a stopping "event", a "stationary" point, "saturated" (all weights are
      exact, under sparsemax or entmax: p rests there for ever), "flat" (the gradient is lost to cancellation, and it is
      neither at a stationary point nor beside a finite part), the limit of "steps" (or of evaluations of the field),
      "stalled" (the solver failed, or makes no headway), or "interrupted".
    - `crossings`: the events that happened, in order.
    - `finite_part`: where the limit is a direction and a finite vector beside it: the tied tokens, that vector, and
      what drives the rest.
    - `tail`: the path from where the finite part is settled: the rest alone, across the tied span. It is part of this
      path already.
    """

    objective: AbstractObjective
    settings: FlowSettings
    arcs: Float[Array, " knots"]
    final: Float[Array, " D"]
    stop: Stop
    crossings: tuple[Crossing, ...]
    _field: UnitField = field(repr=False)
    _pieces: tuple[Piece, ...] = field(repr=False)
    finite_part: FinitePart | None = None
    tail: FlowPath | None = None

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
    def steps(self) -> int:
        """Number of steps the solver took."""
        return len(self.arcs) - 1

    @property
    def interrupted(self) -> bool:
        """Whether the run was stopped by Ctrl-C."""
        return self.stop == "interrupted"

    @property
    def unit(self) -> float:
        """The length in which the path is measured: 1, unless keys are so long or short that logits need another."""
        return self._field.unit

    @property
    def unfinished(self) -> str:
        """What the solver could not do, in words; empty where it came to rest or went as far as it was asked."""
        match self.stop:
            case "steps":
                return f"the solver has used up its steps at |p| = {self.norm:.3g}"
            case "stalled":
                return f"the solver stalled at |p| = {self.norm:.3g}"
            case "flat" if self.pulls_cancel:
                return "the pulls along a difference that inputs share cancel: smaller terms decide, if there are any"
            case "flat":
                return "its gradient cancels, but no point of rest and no finite part is found near it"
        return ""

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
        """Mean selected softmax weight at the end; tokens that training cannot tell apart count together."""
        return float(self.objective.saturation(self.final))

    @property
    def log_gradient(self) -> float:
        """Logarithm of the gradient norm at the end; beside a finite part, of the gradient across the tied span."""
        if self.tail is not None:
            return self.tail.log_gradient - float(np.log(self.unit))
        with np.errstate(invalid="ignore"):  # "flat" ends may have no gradient
            return float(np.logaddexp.reduce(2 * self.objective.descent(self.final).log_norm) / 2)

    @cached_property
    def log_time(self) -> Float[Array, " knots"]:
        """Logarithm of the time gradient flow takes to each of `arcs`: `t = integral of d arc / |gradient|`.

        Relative error about 1e-5; nothing overflows, since only logarithms are added.
        """
        if len(self.arcs) == 1:
            return np.array([-np.inf])
        if self.objective.has_kinks:  # Euler's steps take their length over the gradient where they begin
            steps = np.log(np.diff(self.arcs)) + self._log_slowness(self.arcs[:-1])
            return np.append(-np.inf, np.logaddexp.accumulate(steps))
        return log_integral(self._log_slowness, self.arcs)

    def log_time_at(self, arcs: Float[Array, " k"]) -> Float[Array, " k"]:
        """As `log_time`, at any arc lengths, in ascending order."""
        knots = np.union1d(self.arcs[self.arcs <= arcs.max()], arcs)
        return np.asarray(log_integral(self._log_slowness, knots)[np.searchsorted(knots, arcs)])

    def _log_slowness(self, arcs: Float[Array, " k"]) -> Float[Array, " k"]:
        """Minus the logarithm of the gradient norm at some arcs."""
        slow = -np.logaddexp.reduce(2 * self.objective.descent(self(arcs)).log_norm, axis=-1) / 2
        if self.tail is not None and (late := arcs > self._tail_start).any():
            unit = self.unit
            slow[late] = self.tail._log_slowness((arcs[late] - self._tail_start) / unit) + np.log(unit)
        return np.asarray(slow)

    @property
    def _tail_start(self) -> float:
        """Arc length from which the tail is followed; infinite without one."""
        return np.inf if self.tail is None else float(self.arcs[len(self.arcs) - len(self.tail.arcs)])

    @property
    def _head(self) -> FlowPath:
        """The path up to where its tail begins."""
        if self.tail is None:
            return self
        knots = len(self.arcs) - len(self.tail.arcs) + 1
        before = tuple(crossing for crossing in self.crossings if crossing.arc <= self._tail_start)
        return replace(self, arcs=self.arcs[:knots], _pieces=self._pieces[: knots - 1], crossings=before, tail=None)

    @cached_property
    def rounding(self) -> Rounding:
        """How far the rounding of every step has grown by the linearised flow, and where it decides the path."""
        head = self._head
        found = rounding_along(self._field, head.arcs, head._pieces, tolerance=self.settings.tolerance)
        if self.tail is None or self.finite_part is None or found.decided:
            return found
        late = self.tail.rounding
        unit = self.unit
        return (
            late if not late.decided else replace(late, arc=unit * late.arc + self._tail_start, norm=unit * late.norm)
        )

    @property
    def pulls_cancel(self) -> bool:
        """Whether attention is saturated and the pulls along a difference that inputs share cancel, to rounding: the
        gradient is lost there, and smaller terms decide, if there are any."""
        objective = self.objective
        return type(objective) is PromptObjective and pulls_cancel(objective.problem, self.prompt, objective.loss)

    @property
    def decided_by_rounding(self) -> bool:
        """Whether another rounding could lead elsewhere: the path was unstable for so long that the rounding of its
        early steps (or what the solver was off by) has grown to a change of order one in the logits, or it rests on a
        point that is no minimum. An exactly symmetric problem followed from its axis is the common case."""
        return self.rounding.decided or (self.stop == "stationary" and self._rests_unstably)

    @property
    def _rests_unstably(self) -> bool:
        """Whether some direction leads down from the stationary point, by the Hessian there.

        The point and the Hessian are known to a balance of 1e-12, so that eigenvalues count from its square root on.
        """
        relative = self._field.objective.linearise(self._field.reduce(self.final)).jacobian
        rates = np.linalg.eigvals(relative).real
        return bool(rates.max(initial=0.0) > np.sqrt(STATIONARY) * np.abs(rates).max(initial=0.0))

    def _continue_past_rest(self, until_norm: float, events: tuple[AbstractEvent, ...], progress: Progress) -> FlowPath:
        """The path with what follows after its finite part has come to rest, while the rest of p still grows."""
        if self.finite_part is None or self.stop != "finite part":
            return self
        whole = self._with_tail(
            self.finite_part.follow(until_norm=until_norm, events=events, settings=self.settings, progress=progress)
        )._rest_point()
        if whole.finite_part is None or isinstance(self.objective, DivergentRisk):
            return whole
        # A tail holds the others to first order in their weights. Where these grow again it is no path of this risk,
        # which flow never raises; what the tail leaves out of it is below a thousandth.
        before, after = (float(self.objective.value(point)) for point in (self.final, whole.final))
        return whole if after <= before + 1e-3 * abs(before) else replace(self, stop="flat", finite_part=None)

    def _rest_point(self) -> FlowPath:
        """Where the tail rests too there was no finite part but a stationary point: the one near it, if it is found.

        The tail holds the others' weights, at most 3e-4, to first order, and is off by about as much of its length.
        """
        if self.tail is None or self.tail.stop != "stationary":
            return self
        y = self._field.reduce(self.final)
        polished, balance = polish(self._field.objective, y)
        if balance > STATIONARY or np.linalg.norm(polished - y) > 1e-2 * max(1.0, float(np.linalg.norm(y))):
            return self
        return replace(self, final=self._field.lift(polished), finite_part=None, tail=None)

    def _with_tail(self, tail: FlowPath) -> FlowPath:
        """This path, and a tail from its end on."""
        assert self.finite_part is not None, "a tail is followed beside a finite part"
        part, begin, unit = self.finite_part, float(self.arcs[-1]), self.unit
        pieces = (BesidePiece(part, tail._field, piece, begin) for piece in tail._pieces)
        later = (
            replace(crossing, event=crossing.event.event, arc=begin + unit * crossing.arc)  # type: ignore[attr-defined]
            for crossing in tail.crossings
        )
        return replace(
            self,
            arcs=np.concatenate([self.arcs, begin + unit * tail.arcs[1:]]),
            final=part.lift(tail.final),
            stop=tail.stop,
            crossings=(*self.crossings, *later),
            _pieces=(*self._pieces, *pieces),
            tail=tail,
        )

    def __repr__(self) -> str:
        return (
            f"FlowPath(stopped by {self.stop} at |p|={self.norm:.4g} after {self.steps} steps of the solver, "
            f"mean selected weight {self.saturation:.6g})"
        )

    def _columns(self) -> dict[str, Array]:
        points = self(self.arcs)
        norms = np.sqrt((self.objective.norms(points) ** 2).reshape(len(self.arcs), -1).sum(axis=1))
        return {
            "arc": self.arcs, "norm": norms, "log_time": self.log_time, "loss": self.objective.value(points),
            "saturation": self.objective.saturation(points),
        }  # fmt: skip

    def at_norm(self, norm: float) -> Float[Array, " D"]:
        """The first point whose length is `norm`."""
        lengths = [self._field.norm(piece(end)) for piece, end in zip(self._pieces, self.arcs[1:], strict=True)]
        reached = np.flatnonzero(np.array(lengths) >= norm * (1 - 1e-12))
        if reached.size == 0 and lengths and norm <= self.norm:
            return self(float(self.arcs[-1]))  # inner products know lengths less well than the path's own coordinates
        if reached.size == 0 or self._field.norm(self._field.reduce(self(0.0))) > norm:
            raise ValueError(f"the path does not cross |theta| = {norm:g}: it ends at {self.norm:g}")
        knot = int(reached[0])
        piece, low, high = self._pieces[knot], self.arcs[knot], self.arcs[knot + 1]

        def excess(arc: float) -> float:
            return self._field.norm(piece(arc)) - norm

        return self(high if excess(high) <= 0 else float(brentq(excess, low, high, xtol=1e-15 * high, rtol=1e-15)))

    def resume(
        self,
        *,
        until_norm: float | None = None,
        events: Iterable[AbstractEvent] = (),
        progress: Callable[[float], None] | None = None,
    ) -> FlowPath:
        """Go on from the end; the path returned is the whole one."""
        if self.stop in ("stationary", "saturated"):
            return self
        watched = tuple(events)
        if self.tail is not None and self.finite_part is not None:
            until = norm_limit(until_norm, self.objective.degree, self.unit)
            return self._head._with_tail(self.finite_part.resume(self.tail, until, watched, progress))
        run = Integration(self._field, self.settings, until_norm, watched, progress)
        run.follow(self._field.reduce(self.final), float(self.arcs[-1]))
        path = replace(
            self,
            settings=run.settings,
            arcs=np.concatenate([self.arcs, run.arcs[1:]]),
            final=run.final,
            stop=run.stop,
            crossings=(*self.crossings, *run.crossings),
            _pieces=(*self._pieces, *run.pieces),
            finite_part=run.finite,
        )
        return path._continue_past_rest(run.until, watched, progress)


def flow(
    objective: AbstractObjective | TokenProblem,
    *,
    start: Float[Array, " D"] | None = None,
    until_norm: float | None = None,
    events: Iterable[AbstractEvent] = (),
    settings: FlowSettings | None = None,
    progress: Callable[[float], None] | None = None,
) -> FlowPath:
    """Follow gradient flow from `start` until its norm is `until_norm`, an event stops it, or it comes to rest.

    Where tied tokens come to rest and the others do not, the path goes on beside the finite part (`tail`).

    **Arguments**
    - `objective`: a problem (its prompt objective is meant), or a prompt, joint or nonlinear-head objective, in either
      geometry; or a factored one.
    - `start`: first point; the objective's own start by default.
    - `until_norm`: length of the parameter at which to stop; 1e8 by default, 1e4 for a factored one, whose logits
      grow with its square. Where the longest difference of two keys is below 2^-10 or above
      2^10, it is 1e8 of a unit, a power of two, in which that is of order one.
    - `events`: what to watch for; see `tokenmargin.dynamics.events`.
    - `settings`: tolerance, coupling of the blocks, step limit.
    - `progress`: called with the norm after each step of the solver.

    Ctrl-C ends the run early and returns what was reached; `resume` goes on from there. Within `whole_runs` it is
    raised instead.

    >>> from tokenmargin.objective.attention import PromptObjective
    >>> from tokenmargin.problem.instances import figure1a
    >>> path = flow(PromptObjective(figure1a()), until_norm=1e8)
    >>> path.stop, path.selected, (path.prompt / path.norm).round(6) + 0.0
    ('norm', array([0]), array([-0.099504,  0.995037,  0.      ]))
    """
    settings = FlowSettings() if settings is None else settings
    objective = as_objective(objective, "flow").merged
    theta = objective.start() if start is None else as_array("start", start, float).copy()
    if theta.shape != (objective.dimension,):
        raise ValueError(
            f"start must be one point of {objective.dimension} numbers, got shape {theta.shape}; "
            "flow follows one path at a time"
        )
    check_finite("start", theta)
    unit_field = UnitField(ReducedObjective.of(objective, in_units=True), theta, settings.coupling)
    watched = tuple(events)
    run = Integration(unit_field, settings, until_norm, watched, progress)
    run.follow(unit_field.reduce(theta), 0.0)
    path = FlowPath(
        objective, run.settings, run.arcs, run.final, run.stop, tuple(run.crossings), unit_field, tuple(run.pieces),
        run.finite,
    )  # fmt: skip
    if path.stop == "stationary" and path.pulls_cancel:  # a gradient of zero that any p out there has
        return replace(path, stop="flat")
    return path._continue_past_rest(run.until, watched, progress)
