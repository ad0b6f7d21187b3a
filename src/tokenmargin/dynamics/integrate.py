"""The unit field with its Jacobian in the span, and the integration of one path along it by a stiff solver."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.integrate import LSODA, DenseOutput, OdeSolver, Radau
from scipy.optimize import brentq

from tokenmargin.dynamics.euler import MOST_STEPS, Euler
from tokenmargin.dynamics.events import AbstractEvent, Crossing, first_change, note_interrupt
from tokenmargin.dynamics.rest import NEAR_FINITE, NEAR_STATIONARY, STATIONARY, FinitePart, finite_part, polish
from tokenmargin.dynamics.span import ReducedObjective, longest_difference
from tokenmargin.norms import EPS
from tokenmargin.objective.products import ProductObjective
from tokenmargin.problem.geometry import Coordinates

Stop = Literal["norm", "event", "stationary", "saturated", "finite part", "flat", "steps", "stalled", "interrupted"]

# Logits differ by O(1) where it matters, so a norm beyond this loses them to the rounding of <k, p>.
LARGEST_NORM = 1e13
DEFAULT_NORM = 1e8
SOLVERS = {"LSODA": LSODA, "Radau": Radau}
_PIECES = 4  # sub-intervals of a solver step at which labels are looked at
# A solver makes no headway when this many steps add less than this share to the arc length (to 1, while that is
# shorter). Healthy runs have been seen to take up to 350 steps for a tenth.
_PATIENCE, _HEADWAY = 500, 0.1
# Where the field is mostly rounding (scores of 1e150) solvers creep on. Paths that arrive ask for the field up to 4,300
# times (360 flows of `benchmarks.limits_audit`, and those of the tests): ten times as much is enough, and what is left
# of it is shared evenly by the attempts that are left, so that one that creeps does not use up what the next needs.
MOST_EVALUATIONS = 40_000
_LOOSER, _LOOSEST = (1e2, 1e4), 1e-6  # factors of the tolerance where solvers stall, and what it stays below
# Where pulls cancel to less than this share, tied tokens may be coming to rest beside others that are not: the field is
# as stiff as that share, and less patience is due. Paths that only diverge have been seen to cancel to 0.009.
_CANCELLING, _LESS_PATIENCE = 1e-4, 100
# On a line (one dimension, an axis of symmetry) the unit field is constant and steps grow without bound, so that one
# may leap over a point where the field turns back. Inside a step the field is looked at whenever the part of p along
# the motion has changed by this share of itself (or of what moves a logit by 1): logits tie where that part is of
# order one, however far p is from there. Where the field turns back, so many short steps are taken.
_LOOKED_AT, _SHORT_STEPS = 1 / 16, 40


@dataclass(frozen=True)
class FlowSettings:
    """How the flow is followed.

    - `tolerance`: relative (and absolute) error allowed per step. Where lengths of keys span decades and pulls cancel,
      rounding is larger than this, and no solver gets on: "auto" then goes on with a hundred times as much, and once
      more, to at most 1e-6; a path's own settings say what was used last.
    - `coupling`: "joint" is gradient flow of all blocks; "block" gives every block unit speed, the limit of normalised
      descent with a small step when head and prompt are trained together.
    - `max_steps`: of the solver, which may also ask for the field 40,000 times and no more; `resume` goes on.
    - `solver`: "LSODA" is fastest where it works. On highly symmetric data, whose path is a straight line, its error
      estimate drowns in rounding and its steps do not grow; "Radau" does not mind. "auto" begins with LSODA and goes on
      with Radau from where LSODA fails, or adds less than a tenth to the arc length in 500 steps.
    """

    tolerance: float = 1e-10
    coupling: Literal["joint", "block"] = "joint"
    max_steps: int = 100_000
    solver: Literal["auto", "LSODA", "Radau"] = "auto"

    def __post_init__(self) -> None:
        if not 1e-13 <= self.tolerance <= 1e-2:
            raise ValueError(f"tolerance must lie in 1e-13..1e-2, got {self.tolerance}")
        if self.coupling not in ("joint", "block"):
            raise ValueError(f"coupling must be 'joint' or 'block', got {self.coupling!r}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be at least 1, got {self.max_steps}")
        if self.solver != "auto" and self.solver not in SOLVERS:
            raise ValueError(f"solver must be one of auto, {', '.join(SOLVERS)}, got {self.solver!r}")


def norm_limit(norm: float | None, degree: int, unit: float) -> float:
    """The norm to follow a path to, checked; by default that at which logits have a fixed size, of either degree."""
    largest = LARGEST_NORM ** (1 / degree) * unit
    if norm is None:
        return DEFAULT_NORM ** (1 / degree) * unit
    if not 0 < norm <= largest:
        raise ValueError(
            f"until_norm must lie in 0..{largest:g}, got {norm:g}: beyond it logits of order one are lost to rounding"
        )
    return norm


def _without_radial(rows: Float[Array, "b r"], unit: Float[Array, " b"]) -> Float[Array, "b r"]:
    """`(I - u u') J`; what cancels down to the rounding of the two terms is zero.

    With huge scores J is 1e100 and all of it along u: the rounding that is left would be taken for stiffness.
    """
    along = np.outer(unit, unit @ rows)
    left = rows - along
    known = np.abs(left) > 8 * EPS * (np.abs(rows) + np.abs(along))
    return np.where(known, left, 0.0)


class UnitField:
    """The unit field and its Jacobian in the coordinates of the span, and the way back.

    Coordinates are in the unit of the span; norms and arc lengths are those of the parameter.
    """

    def __init__(self, reduced: ReducedObjective, theta: Float[Array, " D"], coupling: str) -> None:
        self.reduced = reduced
        self.objective = reduced.objective
        self.joint = coupling == "joint" and len(reduced.spans) > 1
        self.sizes = [span.dimension for span in reduced.spans]
        self.original = reduced.original
        self.rest = theta - reduced.lift(reduced.reduce(theta))  # what the start has outside the span stays
        self._rest_length = float(np.linalg.norm(reduced.original.norms(self.rest)))
        self.unit = reduced.unit
        self._longest = max(longest_difference(span.tokens) for span in reduced.spans) or 1.0

    def norm(self, y: Float[Array, " r"]) -> float:
        """Length of the whole parameter: the rest is orthogonal to the span."""
        return float(np.hypot(self.unit * np.linalg.norm(y), self._rest_length))

    def reach(self, y: Float[Array, " r"]) -> float:
        """How far the difference of two logits moves, at most, when the parameter moves by one."""
        if isinstance(self.objective, ProductObjective):
            keys = self.objective.problem.keys
            assert isinstance(keys, Coordinates), "reduced problems have coordinates"
            return (longest_difference(keys) or 1.0) * self.objective.reach(y)
        return self._longest / self.unit

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
        return self.shares(descent.log_norm) * descent.direction / self.unit

    def jacobian(self, _: float, y: Float[Array, " r"]) -> Float[Array, "r r"]:
        """`(I - u u') J / |F|`, for the whole field or block by block."""
        descent, relative, _balance = self.objective.linearise(y)
        shares = self.shares(descent.log_norm)
        u, rows = shares * descent.direction, shares[:, None] * relative
        if self.joint or len(self.sizes) == 1:
            return _without_radial(rows, u) / self.unit
        ends = np.cumsum(self.sizes)[:-1]
        pairs = zip(np.split(rows, ends), np.split(u, ends), strict=True)
        return np.vstack([_without_radial(block, unit) for block, unit in pairs])


def _absolute_tolerance(tolerance: float, y: Float[Array, " r"]) -> float:
    """The absolute tolerance to ask of every coordinate of a point, however small that coordinate is.

    The field is a function of the logits `<k, p>`, known to eps |k| |p|: it places a point to eps |p| in every
    direction, also along an axis on which p is small. Newton's method inside Radau asks for 10 eps / tolerance of the
    error scale, so that the scale must be at least a tenth of `tolerance |p|`; with less the steps shrink for ever.
    """
    return tolerance * (1.0 + float(np.linalg.norm(y)))


class Integration:
    """One call of the solver: it fills in arcs, pieces, crossings, the final point and the reason to stop."""

    def __init__(
        self,
        unit_field: UnitField,
        settings: FlowSettings,
        until_norm: float | None,
        events: tuple[AbstractEvent, ...],
        progress: Callable[[float], None] | None,
    ) -> None:
        self.field, self.settings, self.events = unit_field, settings, events
        self.until = norm_limit(until_norm, unit_field.original.degree, unit_field.unit)
        self.progress = progress
        self.pieces: list[DenseOutput] = []
        self.crossings: list[Crossing] = []
        self.stop: Stop = "steps"
        self.finite: FinitePart | None = None
        self._balance = 1.0
        self._asked = 0  # how often solvers have asked for the field
        self._turns_back: float | None = None  # how far from the last knot, where a step leapt over such a point

    def follow(self, y: Float[Array, " r"], arc: float) -> None:
        """Follow the path from a point of the span, at which it has the length `arc`."""
        knots = [arc]
        self.final, self._y = self.field.lift(y), y
        self.labels = [event.label(self.field.original, self.final) for event in self.events]
        at_rest = self._at_rest(y)
        if not at_rest and self.field.norm(y) >= self.until:
            self.stop = "norm"
        elif not at_rest:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # LSODA's own words; its failure is our "stalled"
                    attempts = self._attempts()
                    any(
                        self._follow_by(name, tolerance, knots, attempts=len(attempts) - k)
                        for k, (name, tolerance) in enumerate(attempts)
                    )
            except KeyboardInterrupt:
                if note_interrupt():
                    self.stop = "interrupted"
                    self._keep_whole_steps(knots)
        self.arcs = np.array(knots)

    def _attempts(self) -> tuple[tuple[str, float], ...]:
        """Solvers and their tolerances, each to go on from where the last one stalled; a field with kinks has one."""
        asked = self.settings.tolerance
        if self.field.original.has_kinks:
            return (("Euler", asked),)
        if self.settings.solver != "auto":
            return ((self.settings.solver, asked),)
        allowed = (asked, *(asked * more for more in _LOOSER if asked * more <= _LOOSEST))
        return tuple((name, tolerance) for tolerance in allowed for name in SOLVERS)

    def _keep_whole_steps(self, knots: list[float]) -> None:
        """Drop what an interrupted step has left half written."""
        whole = min(len(self.pieces), len(knots) - 1)
        del self.pieces[whole:], knots[whole + 1 :]
        if whole:
            self.final = self.field.lift(self.pieces[-1](knots[-1]))

    def _follow_by(self, name: str, tolerance: float, knots: list[float], *, attempts: int) -> bool:
        """Follow from the last point by one solver, the first of so many attempts that are left.

        False when it "stalled": it failed, makes no headway, or has used up its share of the evaluations.
        """
        self.settings = replace(self.settings, tolerance=tolerance)
        begin = len(knots)
        most = min(self.settings.max_steps, MOST_STEPS) if name == "Euler" else self.settings.max_steps
        most_asked = self._asked + (MOST_EVALUATIONS - self._asked) / attempts
        solver, short_until = self._solver(name, knots[-1]), np.inf
        while len(knots) <= most:
            if self._asked > most_asked:
                self.stop = "stalled" if attempts > 1 else "steps"
                return attempts == 1
            if name == "Radau":
                solver.atol = _absolute_tolerance(tolerance, solver.y)  # type: ignore[attr-defined]
            if not self._step(solver, knots):
                return self.stop != "stalled"
            if self._turns_back is not None:
                solver = self._solver(name, knots[-1], longest=self._turns_back / 4)
                short_until = len(knots) + _SHORT_STEPS
                continue
            if len(knots) >= short_until:
                solver, short_until = self._solver(name, knots[-1]), np.inf
            patience = _PATIENCE if name == "Radau" or self._balance > _CANCELLING else _LESS_PATIENCE
            if len(knots) >= begin + patience:
                headway = knots[-1] - knots[-1 - patience]
                if headway < _HEADWAY * max(self.field.unit, knots[-1]):
                    if name == "Euler" and self._at_rest(self._y, cornered=True) and self.stop != "flat":
                        return True
                    self.stop = "stalled"
                    return False
        return True

    def _solver(self, name: str, arc: float, *, longest: float = np.inf) -> OdeSolver:
        """A solver that begins at the end of the path so far, with steps of at most `longest`."""
        if name == "Euler":
            tokens = max(float(span.tokens.token_norms.max()) for span in self.field.reduced.spans)
            step = 1 / max(2 * tokens, np.finfo(float).tiny)  # as long a p changes no logit by more than 1
            return Euler(self._direction, arc, self._y, np.inf, step=step, unit=self.field.unit)
        tolerance = self.settings.tolerance
        return SOLVERS[name](
            self._direction, arc, self._y, np.inf, rtol=tolerance, atol=tolerance, jac=self.field.jacobian,
            max_step=longest,
        )  # fmt: skip

    def _direction(self, arc: float, y: Float[Array, " r"]) -> Float[Array, " r"]:
        self._asked += 1
        return self.field.direction(arc, y)

    def _distance_to_turn(self, piece: DenseOutput, begin: float, end: float) -> float | None:
        """How far into a step the field first points back along it; None where it does not, or the step is short."""
        if self.field.original.has_kinks or not np.isfinite(end):
            return None
        shortest, arc, before = 1 / self.field.reach(self._y), begin, self._y
        end = min(end, begin + self.field.norm(before) + self.until)  # farther out it does not matter
        chord = piece(end) - before
        while arc < end:
            along = self.field.unit * abs(float(before @ chord)) / (float(np.linalg.norm(chord)) or 1.0)
            arc = min(arc + _LOOKED_AT * (shortest + along), end)
            if arc == end and before is self._y:
                return None
            y = piece(arc)
            chord = y - before
            if float(self.field.direction(arc, y) @ chord) < 0:
                return arc - begin
            before = y
        return None

    def _step(self, solver: OdeSolver, knots: list[float]) -> bool:
        """Take one step of the solver, unless it leaps over a point where the field turns back; False at the end."""
        with np.errstate(invalid="ignore", over="ignore"):  # of trials that are rejected; an accepted step is checked
            solver.step()
        if solver.status == "failed":
            if not self._at_rest(solver.y, cornered=self.field.original.has_kinks):
                self.stop = "stalled"
            return False
        piece, end = solver.dense_output(), float(solver.t)
        if not (np.isfinite(end) and np.isfinite(piece(end)).all()):  # beyond doubles: known is the path up to here
            self.stop = "stalled"
            return False
        self._turns_back = self._distance_to_turn(piece, knots[-1], end)
        if self._turns_back is not None:
            return True
        self.stop, end = self._record_events(piece, knots[-1], end)
        self.pieces.append(piece)
        knots.append(end)
        before, self._y = self._y, piece(end)
        self.final = self.field.lift(self._y)
        if np.array_equal(before, self._y):  # the gradient is lost to rounding, and reported as zero
            self.stop = "flat"
            return False
        if self.progress is not None:
            self.progress(self.field.norm(self._y))
        return self.stop == "steps" and not self._at_rest(self._y)

    def _record_events(self, piece: DenseOutput, begin: float, end: float) -> tuple[Stop, float]:
        """Record the events of a piece; why and where the run stops in it, or "steps" and its end."""
        stop: Stop = "steps"
        nodes = np.linspace(begin, end, _PIECES + 1).tolist()
        for low, high in pairwise(nodes):
            if self.field.norm(piece(high)) >= self.until:
                stop = "norm"
                high = brentq(
                    lambda s: self.field.norm(piece(s)) - self.until, low, high, xtol=1e-15 * high, rtol=1e-15
                )
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

    def _at_rest(self, y: Float[Array, " r"], *, cornered: bool = False) -> bool:
        """Whether the path ends here because its gradient has all but cancelled; `stop` then says why.

        It is "saturated" where all weights are exact, "stationary" at a point that Newton's method has polished,
        "finite part" where tied tokens balance and the others go on, and "flat" where none of these explains it.
        """
        if self.field.objective.has_exact_weights(y):
            self.stop = "saturated"
            return True
        if self.field.original.has_kinks and not cornered:  # Euler's steps are long, and shrink before a point of rest
            return False
        self._balance = float(self.field.objective.linearise(y).balance.max())
        if not cornered and self._balance > NEAR_FINITE:
            return False
        polished, reached = polish(self.field.objective, y)
        moved = float(np.linalg.norm(polished - y))
        found = reached <= STATIONARY and moved <= 1e-3 * max(1.0, float(np.linalg.norm(y)))
        self.finite = finite_part(self.field, polished if found else y)
        if self.finite is None and self._balance > NEAR_STATIONARY and not (cornered and found):
            return False
        self.stop = "flat" if self.finite is None else "finite part"
        if found and self.finite is None:
            self.final = self.field.lift(polished)
            self.stop = "stationary"
        return True
