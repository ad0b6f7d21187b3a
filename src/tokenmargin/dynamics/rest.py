"""Where the gradient has all but cancelled: a stationary point, or a limit with a finite part beside its direction.

Tokens whose pulls balance at a finite distance from one another (the next words of a corpus, in the proportion in which
they occur) keep their weights for ever, while together they leave the other tokens behind: `p = R q + w`, where w, in
the span of the differences of the tied tokens, minimises the risk over the tied tokens alone. Along such a path the
gradient falls to nothing beside its own terms, which is also how a stationary point looks. The two are told apart by
the pull of the other tokens, taken by itself and across the tied span, where the large terms do not reach.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.dynamics.events import AbstractEvent
from tokenmargin.objective.attention import AbstractObjective, PromptObjective
from tokenmargin.objective.forward import Attention, attend
from tokenmargin.objective.local_scores import AbstractLocalObjective
from tokenmargin.objective.losses import CorrelationLoss
from tokenmargin.problem.geometry import Coordinates, in_coordinates
from tokenmargin.problem.token_problem import TokenProblem

if TYPE_CHECKING:
    from tokenmargin.dynamics.flow import FlowPath
    from tokenmargin.dynamics.integrate import FlowSettings, UnitField

Piece = Callable[[float], Array]
"""A stretch of a path, by arc length."""

NEAR_STATIONARY = 1e-7  # of the balance: Newton's method takes over
# A finite part is looked for a little earlier. Rounding turns the direction by eps over the balance, which from here on
# is as much as the solver's own tolerance (1e-10); and the error of dropping the others falls with their weights.
NEAR_FINITE = 1e-6
STATIONARY = 1e-12
# Where the balance is 1e-7, tied tokens have weights of order one and the others about 1e-7: half-way, in logarithms.
# At 1e-6 the others are still well below it.
_TIED = float(np.sqrt(NEAR_STATIONARY))
# At a stationary point the pull of the others is zero where Newton's method ends; dropping them from the tied problem
# moves it by their weights, at most _TIED of its own size. On a path that diverges it is a margin over a key length.
_DRIFTS = 10 * _TIED
_SAME = 1e-10  # share of the longest difference of keys below which one is rounding


def polish(objective: AbstractObjective, y: Float[Array, " r"]) -> tuple[Float[Array, " r"], float]:
    """Newton's method on the gradient: the point it leads to and the balance there."""
    best, balance = y, np.inf
    for _ in range(8):
        descent, relative, balances = objective.linearise(best)
        balance = float(balances.max())
        if not np.isfinite(relative).all():  # a step has led to where an output underflows
            return y, np.inf
        if balance <= STATIONARY:
            break
        best = best - np.linalg.lstsq(relative, descent.direction, rcond=1e-10)[0]
    return best, balance


@dataclass(frozen=True)
class DivergentRisk(PromptObjective):
    """What is left of a risk when its finite part is settled: the other tokens against the tied ones, merged into one.

    The logits are `<k, z> + offset` with keys across the tied span.
    """

    offset: Float[Array, "n T"] = field(kw_only=True)

    @property
    def merged(self) -> AbstractObjective:
        return self  # copies of a key have logits of their own

    def forward(self, theta: Float[Array, "... D"]) -> Attention:
        logits = self.problem.keys.logits(theta) + self.offset
        return attend(logits, np.broadcast_to(self.problem.scores, logits.shape))


@dataclass(frozen=True, eq=False)
class FinitePart:
    """A limit `p = R q + w`: the part w that stays, and what drives the direction q.

    **Attributes**
    - `tied`: the tokens that keep their weights.
    - `span`: an orthonormal basis of the span of their differences, as parameters.
    - `point`: w, in that span.
    - `balance`: of the gradient of the tied tokens alone at w: its length over the summed lengths of its terms.
    - `error`: length of the step that Newton's method would still take: how far w is from the minimum, to first order.
    - `curvature`: least over largest eigenvalue of the Hessian of the tied tokens in their span; positive at a minimum,
      NaN where their risk does not change along their span.
    - `drift`: the unit direction in which the other tokens drive the rest of p.
    - `drift_balance`: length of their pull over the summed lengths of its terms; far from zero, so that this is no
      stationary point.
    """

    tied: Bool[Array, "n T"]
    span: Float[Array, "s D"]
    point: Float[Array, " D"]
    balance: float
    error: float
    curvature: float
    drift: Float[Array, " D"]
    drift_balance: float
    _divergent: DivergentRisk
    _start: Float[Array, " q"]
    _across: Float[Array, "q r"]
    _settled: Float[Array, " r"]
    _field: UnitField

    def __repr__(self) -> str:
        return (
            f"FinitePart({len(self.span)} dimensions, {self.size} tokens keep their weights, "
            f"balance={self.balance:.1e}; the others' pull: balance={self.drift_balance:.2g})"
        )

    @property
    def size(self) -> int:
        """Number of tokens that tie with another one of their input."""
        sizes = self.tied.sum(axis=1)
        return int(sizes[sizes > 1].sum())

    def follow(
        self,
        *,
        until_norm: float = 1e8,
        events: Iterable[AbstractEvent] = (),
        settings: FlowSettings | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> FlowPath:
        """Follow the diverging part alone, across the tied span, until the whole parameter has length `until_norm`.

        It is the flow of the merged problem, in which the speed of the others is not lost beside the pulls of the tied
        tokens; `lift` brings its points back. What it leaves out falls like the weights of the other tokens, which are
        below 1e-6 from the start on.
        """
        from tokenmargin.dynamics.flow import flow  # flow finds finite parts

        return flow(
            self._divergent, start=self._start, until_norm=self._remaining_norm(until_norm), settings=settings,
            events=self._lift_events(events), progress=self._lift_progress(progress),
        )  # fmt: skip

    def resume(
        self,
        tail: FlowPath,
        until_norm: float,
        events: tuple[AbstractEvent, ...],
        progress: Callable[[float], None] | None,
    ) -> FlowPath:
        """Go on with a path that `follow` began."""
        return tail.resume(
            until_norm=self._remaining_norm(until_norm),
            events=self._lift_events(events),
            progress=self._lift_progress(progress),
        )

    def _remaining_norm(self, until_norm: float) -> float:
        """How long the diverging part is, in its unit, where the whole parameter has length `until_norm`."""
        far, beside = until_norm / self.unit, self._field.norm(self._settled) / self.unit
        return float(np.sqrt(max(far**2 - beside**2, 0.0))) or float(np.finfo(float).tiny)

    def _lift_events(self, events: Iterable[AbstractEvent]) -> tuple[AbstractEvent, ...]:
        return tuple(_LiftedEvent(event, self) for event in events)

    def _lift_progress(self, progress: Callable[[float], None] | None) -> Callable[[float], None] | None:
        beside = self._field.norm(self._settled)
        return None if progress is None else lambda norm: progress(float(np.hypot(self.unit * norm, beside)))

    @property
    def unit(self) -> float:
        """Length of the parameter for a diverging part of length one."""
        return self._field.unit

    def lift(self, z: Float[Array, "... q"]) -> Float[Array, "... D"]:
        """The parameter with the diverging part `z` and the finite part beside it."""
        return self._field.lift(self.beside(z))

    def beside(self, z: Float[Array, "... q"]) -> Float[Array, "... r"]:
        """As `lift`, in the coordinates of the flow."""
        return np.asarray(self._settled + z @ self._across)

    def distance_to_rest(self, theta: Float[Array, "... D"]) -> Float[Array, "..."]:
        """How far the part of `theta` in the tied span is from w."""
        apart = self._field.reduce(theta) - self._settled
        return np.asarray(self.unit * np.linalg.norm(apart - apart @ self._across.T @ self._across, axis=-1))


@dataclass(frozen=True, eq=False)
class BesidePiece:
    """A piece of a diverging part, in the coordinates of its own flow, as one of the path that came `begin` before."""

    part: FinitePart
    unit_field: UnitField
    piece: Piece
    begin: float

    def __call__(self, arc: float) -> Float[Array, " r"]:
        return self.part.beside(self.unit_field.lift(self.piece((arc - self.begin) / self.part.unit)))


@dataclass(frozen=True, eq=False)
class _LiftedEvent(AbstractEvent):
    """An event of the whole parameter, watched on the diverging part."""

    event: AbstractEvent
    part: FinitePart

    @property
    def stops(self) -> bool:  # type: ignore[override]  # a field there, a property here
        return self.event.stops

    def label(self, objective: AbstractObjective, theta: Float[Array, " D"]) -> Hashable:
        return self.event.label(self.part._field.original, self.part.lift(theta))


def finite_part(unit_field: UnitField, y: Float[Array, " r"]) -> FinitePart | None:
    """The finite part of the limit near whose path `y` lies; None where the others' pull cancels, or no tokens tie."""
    objective = unit_field.objective
    if not isinstance(objective, PromptObjective | AbstractLocalObjective):
        return None
    problem, state = objective.problem, objective.forward(y)
    keys = in_coordinates(problem.keys)
    away = keys - keys[state.pivot][:, None]
    tied = _tied_mask(objective, state, problem.mask & (state.weights > _TIED), np.linalg.norm(away, axis=-1))
    apart = away[tied]
    if not apart.size:  # weights that are no numbers: nothing is known to tie
        return None
    _, sizes, rows = np.linalg.svd(apart)
    rank = int((sizes > _SAME * max(sizes[0], np.finfo(float).tiny)).sum())
    within, across = rows[:rank], rows[rank:]
    if rank == 0 or len(across) == 0:
        return None
    # Nothing across the span takes them from their pivot: they stay as well, however little they weigh.
    tied |= problem.mask & (np.linalg.norm(away @ across.T, axis=-1) <= _SAME * sizes[0])
    alone = replace(objective, problem=_with_mask(problem, tied))
    polished, balance = polish(alone, y)
    near = float(np.linalg.norm(polished - y)) <= 1e-3 * max(1.0, float(np.linalg.norm(y)))
    if balance > STATIONARY or not near:
        return None
    divergent, z = _divergent(objective, polished, tied, across), across @ y
    drift, _, pulls = divergent.linearise(z)
    if not float(pulls.max()) > _DRIFTS:
        return None
    back, settled, unit = unit_field.reduced.lift, within.T @ (within @ polished), unit_field.unit
    error, curvature = _newton_step_and_curvature(alone, polished, within)
    return FinitePart(
        tied, back(within) / unit, back(settled), balance, error * unit, curvature,
        back(across.T @ drift.direction) / unit, float(pulls.max()), divergent, z, across, settled, unit_field,
    )  # fmt: skip


def _tied_mask(
    objective: PromptObjective | AbstractLocalObjective,
    state: Attention,
    tied: Bool[Array, "n T"],
    distance: Float[Array, "n T"],
) -> Bool[Array, "n T"]:
    """The tied tokens of the inputs in which they score differently; of the others that of largest weight, with copies.

    Tokens of one score do not pull at one another: beside tokens that rest they may still be parting, at any pace.
    Where scores depend on the weights, tokens that rest have reached equal scores and balance one another.
    """
    scores = objective.constant_scores
    if scores is None:
        return tied
    spread = np.where(tied, scores, -np.inf).max(axis=1) - np.where(tied, scores, np.inf).min(axis=1)
    return np.where((spread > 0)[:, None], tied, tied & (distance <= _SAME * distance.max()))


def _newton_step_and_curvature(
    alone: AbstractObjective, w: Float[Array, " r"], within: Float[Array, "s r"]
) -> tuple[float, float]:
    """The step that Newton's method would still take in the tied span, and least over largest curvature there."""
    descent, relative, _ = alone.linearise(w)
    bend = within @ relative @ within.T  # of minus the gradient, in units of its length
    rates = np.linalg.eigvalsh(-(bend + bend.T) / 2)
    step = np.linalg.lstsq(bend, within @ descent.direction, rcond=1e-12)[0]
    curvature = np.nan if _never_pulls(alone, w, within) else float(rates[0] / np.abs(rates).max())
    return float(np.linalg.norm(step)), curvature


def _never_pulls(alone: AbstractObjective, w: Float[Array, " r"], within: Float[Array, "s r"]) -> bool:
    """Whether the pulls of the tied tokens cancel wherever they are, not only at `w`: a logit to either side too."""
    longest = float(np.abs(in_coordinates(alone.problem.keys) @ within.T).max())
    beside = (w + side * axis / longest for axis in within for side in (1.0, -1.0))
    return all(float(alone.linearise(point)[2].max()) <= STATIONARY for point in beside)


def _divergent(
    objective: PromptObjective | AbstractLocalObjective,
    w: Float[Array, " r"],
    tied: Bool[Array, "n T"],
    across: Float[Array, "q r"],
) -> DivergentRisk:
    """The others against the merged token, which stands at the pivot's place with the output of the tied tokens.

    To first order in their weights the others pull by `c_i s_it (gamma_it - f_i)`, with the slope `c_i` of the loss and
    the output `f_i` of the tied tokens: the gradient of the correlation loss with weights `c_i s_it`.
    """
    problem = objective.problem
    alone = replace(objective, problem=_with_mask(problem, tied))
    state = alone.forward(w)
    keys = in_coordinates(problem.keys)
    away = keys - keys[state.pivot][:, None]
    kept = (problem.mask & ~tied) | state.pivot
    # The logits of the new problem are z's alone; w, the summed weights of the tied and c_i go into the offset.
    ahead = state.log_weights[state.pivot] + objective.loss.log_slope(state.output)
    lean = away @ (w - across.T @ (across @ w)) + ahead[:, None]
    if isinstance(objective, DivergentRisk):
        lean = lean + objective.offset - objective.offset[state.pivot][:, None]
    offset = np.where(state.pivot, 0.0, lean)
    scores = np.where(state.pivot, state.output[:, None], objective.around(state.weights).scores)
    merged = Coordinates.of(np.where(kept[..., None], away @ across.T, 0.0), kept)
    return DivergentRisk(TokenProblem(merged, problem.labels, scores=scores), CorrelationLoss(), offset=offset)


def _with_mask(problem: TokenProblem, mask: Bool[Array, "n T"]) -> TokenProblem:
    keys = problem.keys
    assert isinstance(keys, Coordinates), "reduced problems have coordinates"
    values = problem.values
    kept = Coordinates(values.vectors, values.index, mask) if isinstance(values, Coordinates) else None
    return problem.with_keys(Coordinates(keys.vectors, keys.index, mask), kept)
