"""Basins: which share of the starts goes to which limit, and a map of them in a plane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Drawable, Tabular
from tokenmargin._statistics import Rng, generator, wilson_interval
from tokenmargin.dynamics import AbstractMethod, BatchResult, NormalizedGradientDescent, as_method, evolve_many
from tokenmargin.dynamics.span import Span
from tokenmargin.limits.by_method import NamedLimit
from tokenmargin.limits.constants import LimitConstants, limit_constants
from tokenmargin.limits.limit import limit_of
from tokenmargin.margin import LimitDirection, limit_direction
from tokenmargin.norms import L2, AbstractNorm
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.objective.shared_pulls import SATURATED
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem, checked_problem
from tokenmargin.selection import selection_text

_LOOK = 25  # steps after which a run is first looked at again; then at every doubling


@dataclass(frozen=True, eq=False)
class Basin(NamedLimit):
    """The starts that go to one limit.

    - `named`: its certified direction, and what it is.
    - `count`, `share`, `interval`: how many starts, and their share with Wilson's 95% confidence interval.
    """

    named: LimitDirection
    count: int
    share: float
    interval: tuple[float, float]

    @property
    def selected(self) -> tuple[int, ...]:
        """The token of each input; of a set, the first."""
        return tuple(self.named.selected.tolist())


@dataclass(frozen=True, eq=False)
class Basins(Tabular, Drawable):
    """The limits reached from many starts, largest basin first.

    - `starts`: where the runs began, shape (starts, D).
    - `runs`: where they ended, after how many steps.
    - `labels`: for each start the number of its basin, or -1 where it goes to none: it rests, or keeps a finite part,
      or softmax had not saturated.
    - `basins`: one per limit reached.
    """

    starts: Float[Array, "starts D"]
    runs: BatchResult
    labels: Int[Array, " starts"]
    basins: tuple[Basin, ...]

    @property
    def finals(self) -> Float[Array, "starts D"]:
        """Where the runs ended."""
        return self.runs.finals[0]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C stopped the runs."""
        return self.runs.interrupted

    @property
    def unsettled(self) -> float:
        """Share of starts without a limit that is a direction of selected tokens."""
        return float((self.labels < 0).mean())

    def __repr__(self) -> str:
        found = [f"{one.kind} {selection_text(one.named.chosen)} {one.share:.1%}" for one in self.basins[:4]]
        more = [f"{len(self.basins) - 4} more"] * (len(self.basins) > 4)
        starts = f"{len(self.labels)} start{'s' * (len(self.labels) != 1)}"
        return f"Basins({starts}: {', '.join([*found, *more, f'unsettled {self.unsettled:.1%}'])})"

    def _columns(self) -> dict[str, Array]:
        """A row a basin; shares that no basin has are unsettled."""
        return {
            "kind": np.array([one.kind for one in self.basins], dtype=str),
            "tokens": np.array([selection_text(one.named.chosen) for one in self.basins], dtype=str),
            "count": np.array([one.count for one in self.basins], dtype=int),
            "share": np.array([one.share for one in self.basins]),
            "low": np.array([one.interval[0] for one in self.basins]),
            "high": np.array([one.interval[1] for one in self.basins]),
            "margin": np.array([one.solution.margin for one in self.basins]),
        }

    def resume(self, *, steps: int, progress: Callable[[float], None] | None = None) -> Basins:
        """Go on until every run has settled or taken `steps` steps in all."""
        waiting = self.runs.saturation[0] < SATURATED
        budget = np.where(waiting, steps, self.runs.steps[0])[None]
        runs = self.runs.resume(steps=budget, until_saturation=SATURATED, progress=_as_first_half(progress))
        return _run_until_proven(self.starts, runs, steps, progress)


def random_starts(problem: TokenProblem, count: int, *, radius: float = 3.0, rng: Rng) -> Float[Array, "starts D"]:
    """Starts of length `radius` in uniform directions of the span of the tokens.

    >>> from tokenmargin.problem.instances import figure1b
    >>> starts = random_starts(figure1b(), 5, rng=0)
    >>> starts.shape, bool(np.allclose(np.linalg.norm(starts, axis=1), 3.0))
    ((5, 3), True)
    """
    if count < 1 or not 0 < radius < np.inf:
        raise ValueError(f"count must be at least 1 and radius positive and finite, got {count} and {radius}")
    rng = generator(rng)
    span = Span.of(checked_problem(problem, "random_starts").keys, exact=True)
    directions = span.lift(rng.standard_normal((count, span.dimension)))
    return np.asarray(radius * directions / problem.keys.norm(directions)[:, None])


def basins(
    problem: TokenProblem,
    starts: Float[Array, "starts D"],
    *,
    method: AbstractMethod | str | None = None,
    steps: int = 10_000,
    loss: AbstractLoss | None = None,
    progress: Callable[[float], None] | None = None,
) -> Basins:
    """Run every start until its limit is proven, and sort the starts by their limits.

    A saturated softmax may still change its tokens, or come to rest. So a run goes on until gradient flow from where it
    stands is proven to converge to the direction of its tokens (`LimitConstants.attracts`); where `steps` steps do not
    show it, `limit_of` follows the flow from there. Of a method whose norm is not the Euclidean one that proof says
    nothing, and a start is filed by the tokens of the first saturated softmax.

    **Arguments**
    - `problem`: in either geometry.
    - `starts`: one row each; `random_starts` draws them.
    - `method`: normalised descent with step 0.1 by default. It follows gradient flow to a tenth of a unit of length;
      a start closer to the border of two basins than that may be filed on its other side. Where the longest difference
      of two keys is below 2^-10 or above 2^10 the step is 0.1 in a unit in which it is of order one, as in `flow`. Of
      another method, or of its name, the directions are those of its own norm.
    - `steps`: limit for the runs.
    - `loss`: logistic by default.
    - `progress`: called with the share of the work done.

    Ctrl-C ends early and returns what was reached; `Basins.resume` goes on from there.

    >>> from tokenmargin.problem.instances import figure1b
    >>> plane = np.array([[0.0, 1.0, 0.0], [0.0, -1.5, 0.0], [0.0, 0.5, 0.0]])
    >>> [(basin.selected, basin.kind, basin.count) for basin in basins(figure1b(), plane).basins]
    [((0,), 'GMM', 2), ((1,), 'LMM', 1)]
    """
    problem = checked_problem(problem, "basins")
    rule = (
        NormalizedGradientDescent(0.1 * Span.of(problem.keys).in_its_unit().unit)
        if method is None
        else as_method(method)
    )
    runs = evolve_many(
        [problem],
        rule,
        steps=steps,
        starts=[starts],
        loss=loss,
        until_saturation=SATURATED,
        progress=_as_first_half(progress),
    )
    return _run_until_proven(starts, runs, steps, progress)


def _as_first_half(progress: Callable[[float], None] | None) -> Callable[[float], None] | None:
    """The first half of the work."""
    return None if progress is None else lambda share: progress(share / 2)


@dataclass(eq=False)
class _Names:
    """The directions and constants of the selections that runs of one problem come to, each computed once."""

    problem: TokenProblem
    loss: AbstractLoss
    norm: AbstractNorm
    known: dict[bytes, LimitDirection] = field(default_factory=dict)
    constants: dict[bytes, LimitConstants] = field(default_factory=dict)

    def direction_of(self, selected: Int[Array, " n"]) -> LimitDirection:
        """The direction of a selection, in the norm of the method."""
        name = selected.tobytes()
        if name not in self.known:
            self.known[name] = limit_direction(self.problem, selected, loss=self.loss, norm=self.norm)
        return self.known[name]

    def proves_limit(self, selected: Int[Array, "runs n"], points: Float[Array, "runs D"]) -> Bool[Array, " runs"]:
        """Of runs that stand at `points`: from which flow is proven to converge to the direction of their tokens."""
        found = np.zeros(len(points), dtype=bool)
        distinct, which = np.unique(selected, axis=0, return_inverse=True)
        for number, one in enumerate(distinct):
            if not self.direction_of(one).is_limit:
                continue
            here, name = which.ravel() == number, one.tobytes()
            if name not in self.constants:
                self.constants[name] = limit_constants(self.problem, one, loss=self.loss)
            found[here] = self.constants[name].attracts(points[here])
        return found


def _run_until_proven(
    starts: Float[Array, "starts D"], runs: BatchResult, steps: int, progress: Callable[[float], None] | None
) -> Basins:
    """Go on with the saturated runs until their limits are proven; after `steps` steps, name them by gradient flow."""
    names = _Names(runs.problems[0], runs.loss, runs.method.margin_norm)
    settled, elsewhere = runs.saturation[0] >= SATURATED, {}
    open_ = settled & (runs.method.margin_norm == L2)
    while open_.any() and not runs.interrupted:
        open_[open_] = ~names.proves_limit(runs.selected[0][open_], runs.finals[0][open_])
        # Looks are at the same steps whatever `steps` is, so that a run that is resumed is the one that was not.
        until = _LOOK * 2 ** np.ceil(np.log2((runs.steps[0] + 1) / _LOOK)).clip(min=0).astype(int)
        going = open_ & (until <= steps)
        if not going.any():
            break
        runs = runs.resume(steps=np.where(going, until, runs.steps[0])[None])
    for done, start in enumerate(np.flatnonzero(open_) if not runs.interrupted else ()):
        limit = limit_of(names.problem, runs.finals[0][start], loss=names.loss)
        settled[start] = limit.outcome == "direction"
        elsewhere[int(start)] = limit.named
        if progress is not None:
            progress((1 + (done + 1) / open_.sum()) / 2)
    return _group_by_limit(starts, runs, settled, elsewhere, names)


def _group_by_limit(
    starts: Float[Array, "starts D"],
    runs: BatchResult,
    settled: Bool[Array, " starts"],
    elsewhere: dict[int, LimitDirection],
    names: _Names,
) -> Basins:
    """Group the runs of one problem by their limits; `elsewhere` has the limits of runs that flow was followed for."""
    # Several selections are one limit where copies, or equals that tie, are selected together.
    limits: dict[tuple[bytes, str], LimitDirection] = {}
    labels = np.full(len(settled), -1)
    for start in np.flatnonzero(settled).tolist():
        named = elsewhere[start] if start in elsewhere else names.direction_of(runs.selected[0][start])
        limits.setdefault((named.chosen.tobytes(), named.solution.status), named)
        labels[start] = list(limits).index((named.chosen.tobytes(), named.solution.status))
    found = []
    for number, named in enumerate(limits.values()):
        count = int((labels == number).sum())
        found.append(Basin(named, count, count / len(settled), wilson_interval(count, len(settled))))
    order = sorted(range(len(found)), key=lambda j: -found[j].count)
    rank = np.append(np.argsort(order), -1).astype(int)  # the last entry is for the label -1
    return Basins(starts, runs, rank[labels], tuple(found[j] for j in order))


def basin_map(
    problem: TokenProblem,
    *,
    extent: float = 4.0,
    resolution: int = 61,
    plane: Float[Array, "2 D"] | None = None,
    method: AbstractMethod | str | None = None,
    steps: int = 3000,
    progress: Callable[[float], None] | None = None,
) -> Basins:
    """The basins of a square grid of starts in a plane through the origin, row by row from the lower left.

    **Arguments**
    - `extent`: the grid covers `-extent..extent` on both axes.
    - `resolution`: points along each axis.
    - `plane`: two directions; by default the first two coordinates.
    - `method`, `steps`, `progress`: as for `basins`.

    >>> from tokenmargin.problem.instances import figure1b
    >>> basin_map(figure1b(), resolution=3).labels.reshape(3, 3)[::-1]  # the upper row of the plane first
    array([[0, 0, 0],
           [0, 0, 1],
           [0, 1, 1]])
    """
    problem = checked_problem(problem, "basin_map")
    if plane is None:
        if not isinstance(problem.keys, Coordinates) or problem.keys.dimension < 2:
            raise ValueError("basin_map needs a plane: give two directions of the parameter's space")
        plane = np.eye(2, problem.keys.dimension)
    if resolution < 2 or not 0 < extent < np.inf:
        raise ValueError(f"resolution must be at least 2 and extent positive and finite, got {resolution} and {extent}")
    ticks = np.linspace(-extent, extent, resolution)
    across, up = np.meshgrid(ticks, ticks)
    starts = np.stack([across.ravel(), up.ravel()], axis=1) @ plane
    return basins(problem, starts, method=method, steps=steps, progress=progress)
