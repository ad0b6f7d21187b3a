"""The regularisation path in a cone: `argmin over p in cone(q), R0 <= |p| <= R` (Theorem 4).

Theorem 4: unless q is locally optimal, the path either stays bounded or does not converge to q. In a thin cone the risk
differs from that of what q selects by numbers of either sign that underflow, so points are compared by the logarithm
and the sign of that difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from scipy.linalg import null_space

from tokenmargin._notebook import Tabular
from tokenmargin._statistics import Rng, generator
from tokenmargin.dynamics.paths.ball import checked_radii, log_landscape
from tokenmargin.dynamics.paths.newton import SecondOrderFunction, Sphere, minimise
from tokenmargin.dynamics.span import ReducedObjective
from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.local_scores import as_objective
from tokenmargin.problem.token_problem import TokenProblem, checked_vector
from tokenmargin.selection import angle, select

_INSIDE = 1e-9  # of the cosine
_NARROW = 1e-6  # of the norm, where the minimiser lies inside
_GOLDEN = (np.sqrt(5) - 1) / 2
_ITERATIONS = 40  # a minimum that takes longer is found again, better, from the next radius


@dataclass(frozen=True, eq=False)
class ConePath(Tabular):
    """The minimisers over a cone around `direction`, between the first radius and each radius.

    - `direction`: q, of unit length.
    - `width`: the cone holds the p with cosine to q at least `1 - width`.
    - `radii`: the largest norm allowed; the first is R0.
    - `points`: the minimisers found.
    """

    objective: AbstractObjective
    direction: Float[Array, " D"]
    width: float
    radii: Float[Array, " radii"]
    points: Float[Array, "radii D"]

    @cached_property
    def norms(self) -> Float[Array, " radii"]:
        """The lengths of the minimisers."""
        return np.asarray(self.objective.problem.keys.norm(self.points))

    @cached_property
    def angles(self) -> Float[Array, " radii"]:
        """Their angles to q."""
        return angle(self.objective.problem.keys, self.points, np.broadcast_to(self.direction, self.points.shape))

    @cached_property
    def on_border(self) -> Bool[Array, " radii"]:
        """Whether the minimiser of each radius lies on the border of the cone, which holds it back."""
        return np.asarray(np.cos(self.angles) <= 1 - self.width + _INSIDE)

    def __repr__(self) -> str:
        return f"ConePath({self.verdict}, {len(self.radii)} radii to {self.radii[-1]:.4g}, angle {self.angles[-1]:.3g})"

    def _columns(self) -> dict[str, Array]:
        return {"radius": self.radii, "norm": self.norms, "angle": self.angles, "on_border": self.on_border}

    @property
    def verdict(self) -> str:
        """ "bounded" when the last doubling of the radius did not move the minimiser, "leaves" when its direction is
        held by the border or settles away from q, and "converges" when its angle to q falls with the radius."""
        if self.norms[-1] < 0.5 * self.radii[-1]:
            return "bounded"
        falls = self.angles[-1] < 0.5 * self.angles[len(self.angles) // 2] or self.angles[-1] < 1e-7
        return "converges" if falls and not self.on_border[-1] else "leaves"


def cone_path(
    objective: AbstractObjective | TokenProblem,
    direction: Float[Array, " D"],
    radii: Sequence[float] | Float[Array, " radii"],
    *,
    width: float,
    rng: Rng,
    starts: int = 2,
) -> ConePath:
    """The local regularisation path of `direction`: (9) of *Max-Margin Token Selection*.

    **Arguments**
    - `objective`: a prompt objective in either geometry.
    - `direction`: q, in the span of the tokens.
    - `radii`: growing; the first one is R0.
    - `width`: the cone's epsilon, between 0 and 1.
    - `rng`, `starts`: random starts in the cone at every radius, besides q and the last minimiser.

    The norm is searched on the radii and on others between them, at most a factor of two apart; where the lowest of
    these lies inside, its neighbourhood is narrowed down by golden sections.
    """
    rng, objective = generator(rng), as_objective(objective, "cone_path")
    if not (0 < width < 1 and 1 - width < 1):
        raise ValueError(f"width must lie between 0 and 1, and not vanish beside 1, got {width}")
    if starts < 0:
        raise ValueError(f"starts must be at least 0, got {starts}")
    direction = checked_vector("direction", direction, objective.dimension, "one direction of the parameter")
    reduced = ReducedObjective.of(objective, in_units=True)
    q = reduced.reduce(direction)
    length = float(np.linalg.norm(q))
    if length == 0 or reduced.unit * length < (1 - 1e-9) * float(np.linalg.norm(objective.norms(direction))):
        raise ValueError("direction must be a non-zero vector in the span of the tokens")
    cap = _Cap(reduced.objective, q / length, width)
    ends, grid = checked_radii(radii, reduced.unit, first=np.inf)
    found: list[Ranked] = []
    for radius in grid.tolist():
        near = [cap.q, *(found[-1][1] / np.linalg.norm(found[-1][1]) for _ in found[-1:])]
        found.append(cap.minimum(radius, [*near, *cap.random(starts, rng)]))
    wanted = [_lowest_up_to(cap, grid, found[: k + 1]) for k in np.searchsorted(grid, ends)]
    points = reduced.lift(np.stack([point for _, point in wanted]))
    return ConePath(objective, direction / (reduced.unit * length), width, reduced.unit * ends, points)


Ranked = tuple[tuple[float, float], Array]
"""A point after its rank."""


def _lowest_up_to(cap: _Cap, grid: Float[Array, " radii"], found: Sequence[Ranked]) -> Ranked:
    """The lowest of the minimisers on the first radii, and between the radii next to it where it is an inner one."""
    last = len(found) - 1
    j = min(range(len(found)), key=lambda k: found[k][0])
    towards = found[j][1] / np.linalg.norm(found[j][1])
    outermost = j == last and found[j][0] <= cap.minimum((1 - _NARROW) * float(grid[j]), [towards])[0]
    if j == 0 or outermost:
        return found[j]
    low, high = float(grid[j - 1]), float(grid[min(j + 1, last)])
    inner, outer = (cap.minimum(low + part * (high - low), [towards]) for part in (1 - _GOLDEN, _GOLDEN))
    while high - low > _NARROW * high:
        if inner[0] < outer[0]:
            high = low + _GOLDEN * (high - low)
            inner, outer = cap.minimum(low + (1 - _GOLDEN) * (high - low), [towards]), inner
        else:
            low = high - _GOLDEN * (high - low)
            inner, outer = outer, cap.minimum(low + _GOLDEN * (high - low), [towards])
    return min(found[j], inner, outer, key=lambda candidate: candidate[0])


class _Cap:
    """The points of a sphere within a cone, and the excess risk over what its axis selects."""

    def __init__(self, objective: AbstractObjective, q: Float[Array, " r"], width: float) -> None:
        self.objective, self.q, self.width = objective, q, width
        self.selected: Int[Array, " n"] = select(objective.problem.keys, q)
        self.across = null_space(q[None]).T

    def random(self, count: int, rng: np.random.Generator) -> list[Float[Array, " r"]]:
        """Unit vectors in the cone."""
        tilt = np.arccos(1 - self.width) * rng.random(count)
        sides = rng.standard_normal((count, len(self.across))) @ self.across
        sides /= np.linalg.norm(sides, axis=1, keepdims=True)
        return list(np.cos(tilt)[:, None] * self.q + np.sin(tilt)[:, None] * sides)

    def minimum(self, radius: float, starts: Sequence[Float[Array, " r"]]) -> Ranked:
        """The lowest point found on the sphere within the cone, after its rank."""
        cosine = 1 - self.width
        border = Sphere(radius * float(np.sqrt(1 - cosine**2)), radius * cosine * self.q, self.across)
        found = []
        for start in starts:
            point = radius * start
            found.append(self._ranked(point))
            inside = minimise(self.landscape(point), point, sphere=Sphere(radius), max_iterations=_ITERATIONS).point
            if inside @ self.q >= (cosine - _INSIDE) * radius:
                found.append(self._ranked(inside))
            edge = border.embed(border.coordinates(point))
            held = minimise(self.landscape(edge), edge, sphere=border, max_iterations=_ITERATIONS).point
            found.append(self._ranked(held))
        return min(found, key=lambda candidate: candidate[0])

    def _ranked(self, y: Float[Array, " r"]) -> Ranked:
        return self.objective.excess_rank(y, self.selected), y

    def landscape(self, start: Float[Array, " r"]) -> SecondOrderFunction:
        """The logarithm of the excess on the start's side of zero, so that lower is better; NaN on the other side."""
        side = float(self.objective.excess(start, self.selected)[1])
        if side == 0:  # equal scores in every input: the risk is the same everywhere
            return lambda y: (0.0, np.zeros_like(y), np.zeros((len(y), len(y))))

        def landscape(y: Float[Array, " r"]) -> tuple[float, Array, Array]:
            size, sign = self.objective.excess(y, self.selected)
            return log_landscape(self.objective, y, float(size) if sign == side else np.nan, side)

        return landscape
