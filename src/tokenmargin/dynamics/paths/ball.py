"""Regularisation paths: the minimiser of the risk over `|p| <= R`, as R grows.

Values are compared as logarithms of the excess risk, which tell minima apart when the risk itself has rounded to its
infimum. Minima are continued from radius to radius; fresh random starts at every moderate radius look for others. The
global minimum is the lowest one found: a claim about the search, not a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Tabular
from tokenmargin._statistics import Rng, generator
from tokenmargin.dynamics.events import note_interrupt
from tokenmargin.dynamics.paths.newton import Minimum, SecondOrderFunction, Sphere, minimise
from tokenmargin.dynamics.span import ReducedObjective
from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.local_scores import as_objective
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import select

RATIO = 2.0  # largest factor between two radii of the continuation
SMALLEST = 1e-12  # of a radius: logits of order 1 are known to 1e-16
_SEARCH_UP_TO = 50.0  # beyond, random starts land where the excess risk is flat to rounding
_STATIONARY = 1e-9  # of the balance at a minimum inside the ball
_SAME = 1e-6  # of the radius: minima closer than this are one


@dataclass(frozen=True, eq=False)
class Branch:
    """One local minimum over the ball, followed along the radii.

    - `points`: the minimisers, shape (radii, D); NaN at radii where this minimum was not there.
    - `log_excess`: logarithm of risk minus infimum; infinity where it was not there.
    - `residuals`: departure from stationarity, see `Minimum`.
    - `bounded`: whether the minimiser lies inside the ball.
    """

    points: Float[Array, "radii D"]
    log_excess: Float[Array, " radii"]
    residuals: Float[Array, " radii"]
    bounded: Array


@dataclass(frozen=True, eq=False)
class RegularisationPath(Tabular):
    """The minima found over balls of growing radius; the first branch is the lowest at the largest radius.

    - `objective`: whose risk.
    - `radii`: the radii.
    - `branches`: local minima, sorted by their excess risk at the largest radius.
    """

    objective: AbstractObjective
    radii: Float[Array, " radii"]
    branches: tuple[Branch, ...]
    interrupted: bool = False

    def __repr__(self) -> str:
        return f"RegularisationPath({len(self.radii)} radii to {self.radii[-1]:.4g}, {len(self.branches)} local minima)"

    def _columns(self) -> dict[str, Array]:
        rows = [
            {"radius": self.radii, "branch": np.full(len(self.radii), k), "log_excess": one.log_excess,
             "residual": one.residuals, "bounded": one.bounded, "lowest": self.lowest == k}
            for k, one in enumerate(self.branches)
        ]  # fmt: skip
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}

    @property
    def lowest(self) -> Int[Array, " radii"]:
        """Number of the branch with the smallest risk at each radius."""
        return np.argmin(np.stack([branch.log_excess for branch in self.branches]), axis=0)

    @property
    def points(self) -> Float[Array, "radii D"]:
        """The minimiser over the ball at each radius: the regularisation path of Theorem 1; NaN if none was found."""
        return self._of_lowest([branch.points for branch in self.branches], self.objective.dimension)

    @property
    def residuals(self) -> Float[Array, " radii"]:
        """Departure from stationarity along `points`."""
        return self._of_lowest([branch.residuals for branch in self.branches])

    def _of_lowest(self, of_branches: list[Array], *width: int) -> Array:
        if not of_branches:
            return np.full((len(self.radii), *width), np.nan)
        return np.asarray(np.stack(of_branches)[self.lowest, np.arange(len(self.radii))])

    @property
    def selected(self) -> Int[Array, " n"]:
        """The tokens selected at the largest radius."""
        return select(self.objective.problem.keys, self.objective.prompt(self.points[-1]))


def prompt_landscape(objective: AbstractObjective, selected: Int[Array, " n"] | None = None) -> SecondOrderFunction:
    """Logarithm of the excess risk over that of a selection, with gradient and Hessian, in coordinates.

    The excess over the best tokens tells all points apart, but is flat around a local minimum of large norm: the risk
    is there that of another selection up to rounding. The excess over that selection resolves the local minimum.
    """

    return lambda y: log_landscape(objective, y, objective.log_excess(y, selected))


def log_landscape(
    objective: AbstractObjective, y: Float[Array, " r"], value: float, side: float = 1.0
) -> tuple[float, Array, Array]:
    """`side * value` with its gradient and Hessian at a point, `value` being the logarithm of a distance of the risk
    from some number: above it on the side 1, below it on the side -1."""
    descent, relative, _ = objective.linearise(y)
    known = np.exp(descent.log_norm - value) if np.isfinite(value) else np.full_like(descent.log_norm, np.nan)
    steep = objective.expand(known)
    gradient = -steep * descent.direction
    return side * value, gradient, -steep[:, None] * relative - side * np.outer(gradient, gradient)


def regularisation_path(
    objective: AbstractObjective | TokenProblem,
    radii: Sequence[float] | Float[Array, " radii"],
    *,
    rng: Rng,
    starts: int = 16,
    directions: Float[Array, "k D"] | None = None,
    progress: Callable[[float], None] | None = None,
) -> RegularisationPath:
    """`argmin over |p| <= R` of the risk for each R of `radii`, with the other local minima found.

    **Arguments**
    - `objective`: a prompt objective (with a linear head, or a nonlinear one under which no mixture of tokens does
      better than the best single ones), in either geometry; or a factored one, whose ball `|K|^2 + |Q|^2 <= R^2` is
      that of W in the nuclear norm, `|W|_* <= R^2 / 2`. Its minima are unique up to a rotation of the columns.
    - `radii`: growing.
    - `rng`: for the random starts.
    - `starts`: random starts at each radius up to 50.
    - `directions`: directions to start from as well, at every radius. Random starts can miss the branch of a minimum
      that attracts few of them; the directions of an atlas bring it in.
    - `progress`: called with the share of the radii done.

    >>> from tokenmargin.objective.attention import PromptObjective
    >>> from tokenmargin.problem.instances import figure1b
    >>> path = regularisation_path(PromptObjective(figure1b()), [1.0, 1e3], rng=np.random.default_rng(0), starts=1)
    >>> path.selected, (path.points[-1] / 1e3).round(3) + 0.0
    (array([0]), array([-0.1  ,  0.995,  0.   ]))
    """
    rng, objective = generator(rng), as_objective(objective, "regularisation_path")
    if starts < 0:
        raise ValueError(f"starts must be at least 0, got {starts}")
    reduced = ReducedObjective.of(objective, in_units=True)
    wanted, grid = checked_radii(radii, reduced.unit)
    ball = _Ball(reduced.objective)
    guided = reduced.reduce(np.zeros((0, objective.dimension)) if directions is None else directions)
    branches: list[list[Minimum | None]] = []
    interrupted, done = False, 0
    try:
        for done, radius in enumerate(grid.tolist()):
            found = [None if branch[-1] is None else ball.minimum_at_next(branch[-1], radius) for branch in branches]
            fresh = rng.standard_normal((starts if radius <= _SEARCH_UP_TO else 0, reduced.objective.dimension))
            fresh = np.concatenate([fresh, guided])
            _append_to_branches(
                branches, found, [ball.minimum(start, radius) for start in fresh], (done, radius), ball.objective
            )
            if progress is not None:
                progress((done + 1) / len(grid))
    except KeyboardInterrupt:
        if not np.any(grid[:done] >= wanted[0]):
            raise  # nothing is there to be kept
        interrupted, grid = note_interrupt(), grid[:done]
        branches = [branch[:done] for branch in branches]
    kept = np.searchsorted(grid, wanted[wanted <= grid[-1]])
    pieces = [_branch_of([branch[k] for k in kept], reduced) for branch in branches]
    pieces = sorted((b for b in pieces if np.isfinite(b.log_excess).any()), key=lambda b: float(b.log_excess[-1]))
    return RegularisationPath(objective, reduced.unit * grid[kept], tuple(pieces), interrupted)


def minimum_along(objective: AbstractObjective, direction: Float[Array, " D"], radius: float) -> Float[Array, " D"]:
    """The point of the regularisation path, local or global, at one radius, near a limit direction.

    It is NaN where Newton's method, started on the direction, has not found a stationary point of the sphere.

    >>> from tokenmargin.objective.attention import PromptObjective
    >>> from tokenmargin.problem.instances import figure1b
    >>> minimum_along(PromptObjective(figure1b()), np.array([1.0, 0.0, 0.0]), 1e3).round(3) + 0.0
    array([1000.,    0.,    0.])
    """
    reduced = ReducedObjective.of(objective, in_units=True)
    start, radius = reduced.reduce(direction), radius / reduced.unit
    local = prompt_landscape(reduced.objective, select(reduced.objective.problem.keys, reduced.objective.prompt(start)))
    start = start * (radius / np.linalg.norm(start))
    if not np.isfinite(local(start)[0]):  # the risk is lower than that of what is selected: no minimum selects it
        return np.full(objective.dimension, np.nan)
    found = minimise(local, start, sphere=Sphere(radius))
    return reduced.lift(found.point if found.converged else np.full_like(start, np.nan))


def checked_radii(
    radii: Sequence[float] | Float[Array, " radii"], unit: float, *, first: float = 1.0
) -> tuple[Float[Array, " k"], Float[Array, " radii"]]:
    """The radii in the unit, a power of two; and these with others between them, so that none is more than twice the
    one before, from at most `first` on."""
    wanted = np.asarray(radii, dtype=np.float64)
    if (
        wanted.ndim != 1
        or wanted.size == 0
        or not np.isfinite(wanted).all()
        or wanted[0] <= 0
        or (np.diff(wanted) <= 0).any()
    ):
        raise ValueError(f"radii must be positive and growing, got {radii!r}")
    if wanted[0] < SMALLEST * unit:
        raise ValueError(
            f"radii must be at least {SMALLEST * unit:g}: in a smaller ball rounding decides, got {wanted[0]:g}"
        )
    wanted = wanted / unit
    grid = [np.array([min(first, wanted[0])])]
    for radius in wanted:
        last = grid[-1][-1]
        if radius > last:
            steps = int(np.ceil(np.log(radius / last) / np.log(RATIO)))
            between = last * (radius / last) ** (np.arange(1, steps + 1) / steps)
            between[-1] = radius
            grid.append(between)
    return wanted, np.concatenate(grid)


class _Ball:
    """Local minima of an objective over balls, judged by the scale-free residuals of its log-domain field."""

    def __init__(self, objective: AbstractObjective) -> None:
        self.objective = objective
        self.overall = prompt_landscape(objective)

    def minimum(self, start: Float[Array, " r"], radius: float) -> Minimum | None:
        """A minimum over the ball reached from `start`: on the sphere, or inside; None when none was settled."""
        sphere = Sphere(radius)
        if np.isnan(self.overall(sphere.coordinates(start))[0]):
            raise ValueError(
                "the risk falls below that of every choice of one token per input, so that a mixture of tokens is best "
                "and no regularisation path selects tokens; give a head under which single tokens are best"
            )
        found = minimise(self.overall, start, sphere=sphere, max_iterations=100)
        if not found.converged:
            found = self._minimum_near(found, sphere) or found
        if found.outward > 0:
            return found if found.converged else None
        return self._minimum_inside(found.point, radius)

    def minimum_at_next(self, tip: Minimum, radius: float) -> Minimum | None:
        """The minimum at the next radius: an inner one stays, one on the sphere moves out with it."""
        if tip.outward == 0:
            return tip
        start = tip.point * (radius / np.linalg.norm(tip.point))
        found = self._minimum_near(replace(tip, point=start), Sphere(radius))
        settled = found is not None and found.converged and found.outward > 0
        return found if settled else self.minimum(start, radius)

    def _minimum_near(self, rough: Minimum, sphere: Sphere) -> Minimum | None:
        """The minimum, near a point, of the excess risk over what the point selects; None where that is negative."""
        local = prompt_landscape(
            self.objective, select(self.objective.problem.keys, self.objective.prompt(rough.point))
        )
        if not np.isfinite(local(sphere.coordinates(rough.point))[0]):
            return None
        found = minimise(local, rough.point, sphere=sphere, max_iterations=100)
        return replace(found, value=self.objective.log_excess(found.point))

    def _minimum_inside(self, start: Float[Array, " r"], radius: float) -> Minimum | None:
        found = minimise(self.overall, start, max_iterations=100)
        balance = float(self.objective.linearise(found.point).balance.max())
        if balance > _STATIONARY or np.linalg.norm(found.point) >= radius:
            return None
        return replace(found, residual=balance, outward=0.0, converged=True)


def _append_to_branches(
    branches: list[list[Minimum | None]],
    continued: list[Minimum | None],
    fresh: list[Minimum | None],
    at: tuple[int, float],
    objective: AbstractObjective,
) -> None:
    """Append each minimum to the branch it continues, or open a new one; copies of one minimum are dropped.

    Minima are compared by their prompts: K and Q give one W in many ways.
    """
    number, radius = at
    kept: list[Array] = []

    def unless_known(minimum: Minimum | None) -> Minimum | None:
        if minimum is None:
            return None
        prompt = objective.prompt(minimum.point)
        if any(np.linalg.norm(prompt - other) <= _SAME * radius**objective.degree for other in kept):
            return None
        kept.append(prompt)
        return minimum

    for branch, minimum in zip(branches, continued, strict=True):
        branch.append(unless_known(minimum))  # where two branches meet, the earlier one goes on
    for minimum in fresh:
        opened: list[Minimum | None] = [None] * number
        if unless_known(minimum) is not None:
            branches.append([*opened, minimum])


def _branch_of(minima: Sequence[Minimum | None], reduced: ReducedObjective) -> Branch:
    """One minimum per radius as arrays, lifted to the parameter; None is a radius at which it was not there."""
    missing = np.full(reduced.objective.dimension, np.nan)
    points = np.stack([missing if minimum is None else minimum.point for minimum in minima])
    return Branch(
        reduced.lift(points),
        np.array([np.inf if minimum is None else minimum.value for minimum in minima]),
        np.array([np.nan if minimum is None else minimum.residual for minimum in minima]),
        np.array([minimum is not None and minimum.outward == 0.0 for minimum in minima]),
    )
