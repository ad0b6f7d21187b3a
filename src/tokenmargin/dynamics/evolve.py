"""evolve: run a descent method on an objective, and record quantities on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Drawable, Tabular
from tokenmargin._statistics import Rng, generator
from tokenmargin.dynamics.events import note_interrupt
from tokenmargin.dynamics.methods import AbstractMethod, State, Value, as_method
from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.forward import Descent
from tokenmargin.objective.local_scores import as_objective
from tokenmargin.objective.losses import WeightedInputs
from tokenmargin.problem.abstract_geometry import check_finite, checked_point
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import select

Observable = Callable[[AbstractObjective, Array], Array]
Kept: TypeAlias = "str | Callable[[Array], object]"

OBSERVABLES: Mapping[str, Observable] = MappingProxyType(
    {
        "point": lambda objective, theta: theta.copy(),
        "norm": lambda objective, theta: objective.norms(theta),
        "loss": lambda objective, theta: objective.value(theta),
        "output": lambda objective, theta: objective.outputs(theta),
        "saturation": lambda objective, theta: objective.saturation(theta),
        "selected": lambda objective, theta: select(objective.problem.keys, objective.prompt(theta)),
        "weights": lambda objective, theta: objective.weights(theta),
        "log_gradient": lambda objective, theta: objective.descent(theta).log_norm,
    }
)
"""What a trajectory can keep, by name; each array's first axis is the kept step."""


class Memory(NamedTuple):
    """What a run needs besides its point to go on.

    - `t`: steps taken.
    - `states`: what the method remembers, one for each block.
    """

    t: int
    states: tuple[State, ...]


@dataclass(frozen=True, eq=False)
class Trajectory(Tabular, Drawable):
    """Where a run ended and what was kept on the way.

    **Attributes**
    - `objective`, `method`: what was run.
    - `final`: the last point, with the leading axes of the starts.
    - `steps`: number of steps taken.
    - `at`: the steps at which something was kept.
    - `kept`: the observables asked for, by name; a function's by its own name.
    - `interrupted`: whether the run was stopped by Ctrl-C before its last step.
    - `memory`: `evolve(..., start=path.final, memory=path.memory)` goes on as if nothing had been.
    """

    objective: AbstractObjective
    method: AbstractMethod
    final: Float[Array, "... D"]
    steps: int
    at: Int[Array, " kept"]
    kept: Mapping[str, Array]
    interrupted: bool = False
    memory: Memory = field(default_factory=lambda: Memory(0, ()))

    @property
    def prompt(self) -> Float[Array, "... D_keys"]:
        """The attention parameter p at the end."""
        return self.objective.prompt(self.final)

    @property
    def selected(self) -> Int[Array, "... n"]:
        """The token of largest weight in each input at the end."""
        return select(self.objective.problem.keys, self.prompt)

    @property
    def saturation(self) -> Float[Array, "..."]:
        """Mean selected softmax weight at the end; tokens that training cannot tell apart count together."""
        return self.objective.saturation(self.final)

    def __repr__(self) -> str:
        runs = f"{self.final[..., 0].size} runs, " if self.final.ndim > 1 else ""
        kept = f", kept {', '.join(self.kept)} at {len(self.at)} steps" if self.kept else ""
        stopped = ", interrupted" if self.interrupted else ""
        return (
            f"Trajectory({runs}{self.steps} steps of {self.method!r}, "
            f"|p|={_span_text(self.objective.norms(self.final))}, "
            f"mean selected weight {_span_text(self.saturation)}{kept}{stopped})"
        )

    def _columns(self) -> dict[str, Array]:
        """A row for each recorded step and start, with the quantities that are one number; else the end alone."""
        lead = self.final.shape[:-1]
        kept = {name: array for name, array in self.kept.items() if array.shape == (len(self.at), *lead)}
        at, points = self.at, self.kept.get("point")
        if not kept and points is None:
            at, points = np.array([self.steps]), self.final[None]
            kept = {name: OBSERVABLES[name](self.objective, self.final)[None] for name in ("loss", "saturation")}
        if "norm" not in kept and points is not None:
            kept = {
                "norm": np.sqrt((self.objective.norms(points) ** 2).reshape(len(at), *lead, -1).sum(axis=-1))
            } | kept
        runs = self.final[..., 0].size
        table = {"step": np.repeat(at, runs)} | ({"start": np.tile(np.arange(runs), len(at))} if lead else {})
        return table | {name: array.ravel() for name, array in kept.items()}

    def __getitem__(self, kept: Kept) -> Array:
        name = _name_of(kept)
        if name not in self.kept:
            raise KeyError(f"{name!r} was not kept; ask for it with evolve(..., keep=({name!r},))")
        return self.kept[name]


def _span_text(values: Float[Array, "..."]) -> str:
    """A number, or the least and the largest of several."""
    low, high = f"{np.min(values):.4g}", f"{np.max(values):.4g}"
    return low if low == high else f"{low}..{high}"


def evolve(
    objective: AbstractObjective | TokenProblem,
    method: AbstractMethod | str = "ngd",
    *,
    steps: int = 1000,
    start: Float[Array, "... D"] | None = None,
    keep: Iterable[Kept] = (),
    every: int = 1,
    batch: int | None = None,
    rng: Rng | None = None,
    memory: Memory | None = None,
    progress: Callable[[int], None] | None = None,
) -> Trajectory:
    """Run `steps` steps of `method` from `start`, or from many starts at once along its leading axes.

    **Arguments**
    - `objective`: a prompt or joint objective; a problem stands for `prompt_objective(problem)`, the risk of p with the
      logistic loss (the square loss for real labels).
    - `method`: one of `tokenmargin.dynamics.methods`, or its name, such as "ngd", "sign" or "mirror:1.5";
      normalised descent by default.
    - `steps`: how many.
    - `start`: first point; the objective's own start by default.
    - `keep`: what to record, at step 0, every `every` steps, and at the end: names of `OBSERVABLES`, and functions of
      the point, each recorded under its own name.
    - `batch`, `rng`: size of the minibatches that gradients are taken of, drawn anew for every step.
    - `memory`: of the run that is gone on with, from its `Trajectory`.
    - `progress`: called with the number of steps done, about a hundred times in all.

    Ctrl-C ends the run early and returns what was reached, as `interrupted`; within `whole_runs` it is raised.

    >>> from tokenmargin.problem.instances import figure1a
    >>> path = evolve(figure1a())
    >>> path.selected, bool(path.saturation > 0.999)
    (array([0]), True)
    """
    objective, method = as_objective(objective, "evolve"), as_method(method)
    if steps < 0 or every < 1:
        raise ValueError(f"steps must be at least 0 and every at least 1, got {steps} and {every}")
    wanted = _checked_observables(keep)
    theta = _checked_start(objective, start)
    seen_at = _objectives_of_steps(objective.merged, batch, rng)
    method = method.for_objective(objective)
    first, states = (0, _initial(method, objective, theta)) if memory is None else memory

    rows: list[tuple[int, list[Array]]] = []

    def record(step: int, theta: Float[Array, "... D"]) -> None:
        rows.append((step, [np.asarray(observe(objective, theta)) for observe in wanted.values()]))

    tick = max(steps // 100, 1)
    # Point, number of steps, memory: one object, whole at every interrupt.
    reached, interrupted = (theta, 0, states), False
    try:
        for step in range(steps):
            theta, _, states = reached
            if wanted and step % every == 0:
                record(step, theta)
            theta, states = _step_blocks(method, seen_at(), theta, first + step, states)
            reached = (theta, step + 1, states)
            if progress is not None and (step + 1) % tick == 0:
                progress(step + 1)
    except KeyboardInterrupt:
        interrupted = note_interrupt()
    theta, done, states = reached
    if not np.isfinite(theta).all():
        raise ValueError(
            f"after {done} steps the point is no longer finite: its size is beyond doubles; take a smaller step, or a "
            "start of ordinary size"
        )
    if wanted and (not rows or rows[-1][0] != done):
        record(done, theta)
    at = np.array([step for step, _ in rows], dtype=int)
    arrays = {name: np.stack([values[k] for _, values in rows]) for k, name in enumerate(wanted)}
    kept = MappingProxyType(arrays)
    return Trajectory(objective, method, theta, done, at, kept, interrupted, Memory(first + done, states))


def _step_blocks(
    method: AbstractMethod,
    objective: AbstractObjective,
    theta: Float[Array, "... D"],
    t: int,
    states: tuple[State, ...],
) -> tuple[Float[Array, "... D"], tuple[State, ...]]:
    """One step, each block by itself."""
    descent, value = objective.descent(theta), Value(objective, theta)
    if len(states) == 1:
        point, state = method.advance(theta, descent, value, t, states[0])
        return point, (state,)
    points, after = [], []
    ways = objective.split(descent.direction).values()
    for k, (part, way) in enumerate(zip(objective.split(theta).values(), ways, strict=True)):
        point, state = method.advance(part, Descent(way, descent.log_norm[..., k : k + 1]), value, t, states[k])
        points.append(point)
        after.append(state)
    return np.concatenate(points, axis=-1), tuple(after)


def _initial(method: AbstractMethod, objective: AbstractObjective, theta: Float[Array, "... D"]) -> tuple[State, ...]:
    return tuple(method.initial(part) for part in objective.split(theta).values())


def _name_of(kept: Kept) -> str:
    return kept if isinstance(kept, str) else getattr(kept, "__name__", type(kept).__name__)


def _checked_observables(keep: Iterable[Kept]) -> dict[str, Observable]:
    """What to record, by name."""
    found: dict[str, Observable] = {}
    for kept in (keep,) if isinstance(keep, str) else keep:
        name = _name_of(kept)
        if name in found:
            raise ValueError(f"two kept quantities are called {name!r}; give their functions different names")
        if callable(kept):
            found[name] = _of_point(kept)
        elif kept in OBSERVABLES:
            found[name] = OBSERVABLES[kept]
        else:
            raise ValueError(f"cannot keep {kept!r}; choose from {', '.join(OBSERVABLES)}, or give a function of p")
    return found


def _of_point(function: Callable[[Array], object]) -> Observable:
    return lambda objective, theta: np.asarray(function(theta.copy()))


def _checked_start(objective: AbstractObjective, start: Float[Array, "... D"] | None) -> Float[Array, "... D"]:
    theta = objective.start() if start is None else checked_point("start", start, objective.dimension).copy()
    check_finite("start", theta)
    return theta


def _objectives_of_steps(
    objective: AbstractObjective, batch: int | None, rng: Rng | None
) -> Callable[[], AbstractObjective]:
    """What gives the objective of the next step: of all inputs, or of some that are drawn."""
    if batch is None:
        return lambda: objective
    n = objective.outputs(objective.start()).shape[-1]
    if not 1 <= batch <= n:
        raise ValueError(f"batch must be from 1 to the number of inputs {n}, got {batch}")
    if rng is None:
        raise ValueError("minibatches are drawn: give rng, a seed such as 0")
    drawn = generator(rng)
    return lambda: on_inputs(objective, drawn.choice(n, size=batch, replace=False), n)


def on_inputs(objective: AbstractObjective, inputs: Int[Array, " batch"], n: int) -> AbstractObjective:
    """The mean risk of some of the n inputs alone, in the parameters of all."""
    log_weights = np.full(n, -np.inf)
    log_weights[inputs] = np.log(n / len(inputs))
    try:
        return replace(objective, loss=WeightedInputs(objective.loss, log_weights))
    except TypeError:
        raise TypeError(
            f"{type(objective).__name__} has a loss of its own, which does not weigh inputs: train it on all of them"
        ) from None
