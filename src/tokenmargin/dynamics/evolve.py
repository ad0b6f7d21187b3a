"""evolve: run a descent method on an objective and keep what was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Drawn, Tabular
from tokenmargin.dynamics.interrupts import interrupted_run
from tokenmargin.dynamics.methods import AbstractMethod
from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.selection import attention_weights, saturation, select

__all__ = ["OBSERVABLES", "Trajectory", "evolve"]

Observable = Callable[[AbstractObjective, Array], Array]

OBSERVABLES: Mapping[str, Observable] = MappingProxyType(
    {
        "point": lambda objective, theta: theta.copy(),
        "norm": lambda objective, theta: objective.norms(theta),
        "loss": lambda objective, theta: objective.value(theta),
        "output": lambda objective, theta: objective.outputs(theta),
        "saturation": lambda objective, theta: saturation(
            objective.problem.keys, objective.prompt(theta), objective.constant_scores
        ),
        "selected": lambda objective, theta: select(objective.problem.keys, objective.prompt(theta)),
        "weights": lambda objective, theta: attention_weights(objective.problem.keys, objective.prompt(theta)),
        "log_gradient": lambda objective, theta: objective.descent(theta).log_norm,
    }
)
"""What a trajectory can keep, by name; each array's first axis is the kept step."""


@dataclass(frozen=True, eq=False)
class Trajectory(Tabular, Drawn):
    """Where a run ended and what was kept on the way.

    **Attributes**
    - `objective`, `method`: what was run.
    - `final`: the last point, with the leading axes of the starts.
    - `steps`: number of steps taken.
    - `at`: the steps at which something was kept.
    - `kept`: the observables asked for, by name.
    - `interrupted`: whether the run was stopped by Ctrl-C before its last step.
    """

    objective: AbstractObjective
    method: AbstractMethod
    final: Float[Array, "... D"]
    steps: int
    at: Int[Array, " kept"]
    kept: Mapping[str, Array]
    interrupted: bool = False

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
        return saturation(self.objective.problem.keys, self.prompt, self.objective.constant_scores)

    def __repr__(self) -> str:
        runs = f"{self.final[..., 0].size} runs, " if self.final.ndim > 1 else ""
        kept = f", kept {', '.join(self.kept)} at {len(self.at)} steps" if self.kept else ""
        stopped = ", interrupted" if self.interrupted else ""
        return (
            f"Trajectory({runs}{self.steps} steps of {self.method!r}, |p|={_extent(self.objective.norms(self.final))}, "
            f"mean selected weight {_extent(self.saturation)}{kept}{stopped})"
        )

    def _columns(self) -> dict[str, Array]:
        """A row a kept step and start; what was kept as one number a run, or what is known of the end."""
        lead = self.final.shape[:-1]
        kept = {name: array for name, array in self.kept.items() if array.shape == (len(self.at), *lead)}
        at = self.at
        if not kept:
            at = np.array([self.steps])
            kept = {name: OBSERVABLES[name](self.objective, self.final)[None] for name in ("loss", "saturation")}
        if (
            "norm" not in kept
            and (points := self.kept.get("point", self.final[None] if at is not self.at else None)) is not None
        ):
            kept = {
                "norm": np.sqrt((self.objective.norms(points) ** 2).reshape(len(at), *lead, -1).sum(axis=-1))
            } | kept
        runs = self.final[..., 0].size
        table = {"step": np.repeat(at, runs)} | ({"start": np.tile(np.arange(runs), len(at))} if lead else {})
        return table | {name: array.ravel() for name, array in kept.items()}

    def __getitem__(self, name: str) -> Array:
        if name not in self.kept:
            raise KeyError(f"{name!r} was not kept; ask for it with evolve(..., keep=({name!r},))")
        return self.kept[name]


def _extent(values: Float[Array, "..."]) -> str:
    """A number, or the least and the largest of several."""
    low, high = f"{np.min(values):.4g}", f"{np.max(values):.4g}"
    return low if low == high else f"{low}..{high}"


def evolve(
    objective: AbstractObjective,
    method: AbstractMethod,
    *,
    steps: int,
    start: Float[Array, "... D"] | None = None,
    keep: Iterable[str] = (),
    every: int = 1,
    progress: Callable[[int], None] | None = None,
) -> Trajectory:
    """Run `steps` steps of `method` from `start`, or from many starts at once along its leading axes.

    **Arguments**
    - `objective`: a prompt or joint objective.
    - `method`: gradient descent or normalised gradient descent.
    - `steps`: how many.
    - `start`: first point; the objective's own start by default.
    - `keep`: names of `OBSERVABLES` to record, at step 0, every `every` steps, and at the end.
    - `progress`: called with the number of steps done, about a hundred times in all.

    Ctrl-C ends the run early and returns what was reached, as `interrupted`; within `whole_runs` it is raised.

    >>> from tokenmargin.objective.attention import PromptObjective
    >>> from tokenmargin.dynamics.methods import NormalizedGradientDescent
    >>> from tokenmargin.problem.instances import figure1a
    >>> path = evolve(PromptObjective(figure1a()), NormalizedGradientDescent(0.1), steps=1000)
    >>> path.selected, bool(path.saturation > 0.999)
    (array([0]), True)
    """
    if steps < 0 or every < 1:
        raise ValueError(f"steps must be at least 0 and every at least 1, got {steps} and {every}")
    names = tuple(keep)
    unknown = [name for name in names if name not in OBSERVABLES]
    if unknown:
        raise ValueError(f"cannot keep {unknown[0]!r}; choose from {', '.join(OBSERVABLES)}")
    theta = objective.start() if start is None else np.array(start, dtype=np.float64)
    if theta.ndim < 1 or theta.shape[-1] != objective.dimension:
        raise ValueError(f"start must have {objective.dimension} numbers in its last axis, got shape {theta.shape}")
    if not np.isfinite(theta).all():
        raise ValueError("start must be finite")
    method = method.prepared(objective)

    rows: list[tuple[int, list[Array]]] = []

    def record(step: int, theta: Float[Array, "... D"]) -> None:
        rows.append((step, [OBSERVABLES[name](objective, theta) for name in names]))

    tick = max(steps // 100, 1)
    reached, interrupted = (theta, 0), False  # point and number of steps: one object, whole at every interrupt
    try:
        for step in range(steps):
            theta = reached[0]
            if names and step % every == 0:
                record(step, theta)
            descent = objective.descent(theta)
            reached = (theta + objective.expand(method.lengths(descent)) * descent.direction, step + 1)
            if progress is not None and (step + 1) % tick == 0:
                progress(step + 1)
    except KeyboardInterrupt:
        interrupted = interrupted_run()
    theta, done = reached
    if names and (not rows or rows[-1][0] != done):
        record(done, theta)
    at = np.array([step for step, _ in rows], dtype=int)
    arrays = {name: np.stack([values[k] for _, values in rows]) for k, name in enumerate(names)}
    return Trajectory(objective, method, theta, done, at, MappingProxyType(arrays), interrupted)
