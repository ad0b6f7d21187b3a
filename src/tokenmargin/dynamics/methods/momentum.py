"""Methods with a velocity, and steepest descent in any norm.

The velocity is kept as a vector of moderate size times the exponential of a logarithm, so that it keeps its direction
when the gradients that it sums have underflowed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics.methods.method import AbstractMethod, AbstractValue, State
from tokenmargin.dynamics.methods.step_size import StepNumber, StepSize, checked_step, step_at
from tokenmargin.norms import L2, AbstractNorm, SchattenNorm, norm_named
from tokenmargin.objective.attention import AbstractObjective
from tokenmargin.objective.forward import Descent

Scaled = tuple[Float[Array, "... D"], Float[Array, "... 1"]]


@dataclass(frozen=True)
class Momentum(AbstractMethod):
    """Heavy ball: `velocity = beta velocity - gradient`, `p += step velocity`; or Nesterov's variant of it.

    The numbers are those of torch's SGD with momentum and no dampening. Far out the gradient is too small for it to
    move, as for gradient descent; `SteepestDescent(momentum=...)` moves on.
    """

    step: StepSize = 0.1
    beta: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        checked_step(self.step)
        checked_decay("beta", self.beta)

    def initial(self, theta: Float[Array, "... D"]) -> State:
        return zero_velocity(theta)

    def advance(
        self, theta: Float[Array, "... D"], descent: Descent, value: AbstractValue, t: StepNumber, state: State
    ) -> tuple[Float[Array, "... D"], State]:
        (ahead, log_scale), state = velocity_after(state, descent, self.beta, nesterov=self.nesterov)
        return theta + step_at(self.step, t) * np.exp(log_scale) * ahead, state


@dataclass(frozen=True)
class SteepestDescent(AbstractMethod):
    """`p += step x`, with x of norm one and steepest: the largest `<x, velocity>` among them.

    The norm decides the direction: `l2` gives normalised descent, `linf` the signs (SignGD), `l1` one coordinate at a
    time, `spectral` the polar factor of a matrix (Muon). Without momentum the velocity is minus the gradient.

    **Attributes**
    - `norm`: as a value of `tokenmargin.norms`, or by name.
    - `step`: length of a step, in that norm.
    - `momentum`: share of the velocity that is kept, from 0 to below 1.
    - `nesterov`: look ahead by one more share, as Nesterov's variant does.

    >>> from tokenmargin.dynamics.evolve import evolve
    >>> from tokenmargin.problem.instances import figure1b
    >>> evolve(figure1b(), SteepestDescent("linf", 0.5), steps=3).final
    array([1.5, 1.5, 0. ])
    """

    norm: AbstractNorm | str = L2
    step: StepSize = 0.1
    momentum: float = 0.0
    nesterov: bool = False

    coordinates = True

    def __post_init__(self) -> None:
        checked_step(self.step)
        checked_decay("momentum", self.momentum)
        if isinstance(self.norm, str):
            object.__setattr__(self, "norm", norm_named(self.norm))

    def prepared(self, objective: AbstractObjective) -> SteepestDescent:
        super().prepared(objective)
        return replace(self, norm=for_blocks(self.margin_norm, objective))

    def initial(self, theta: Float[Array, "... D"]) -> State:
        return zero_velocity(theta) if self.momentum else {}

    def advance(
        self, theta: Float[Array, "... D"], descent: Descent, value: AbstractValue, t: StepNumber, state: State
    ) -> tuple[Float[Array, "... D"], State]:
        ahead = descent.direction
        if self.momentum:
            (ahead, _), state = velocity_after(state, descent, self.momentum, nesterov=self.nesterov)
        return theta + step_at(self.step, t) * self.margin_norm.steepest(ahead), state

    @property
    def margin_norm(self) -> AbstractNorm:
        assert not isinstance(self.norm, str)
        return self.norm


def for_blocks(norm: AbstractNorm, objective: AbstractObjective) -> AbstractNorm:
    """The norm for what is trained: one of matrices learns their shape."""
    shapes = {geometry.matrix_shape for _, geometry in objective.blocks} - {None}
    if len(shapes) == 1:
        return norm.of_shape(shapes.pop())
    if isinstance(norm, SchattenNorm) and norm.shape is None:
        raise ValueError(
            f"the {norm.name} norm is one of matrices, and what is trained here is a vector: train W, as in "
            "problem.with_matrix(queries), or say what matrix it is, as in norm.of_shape((rows, columns))"
        )
    return norm


def checked_decay(name: str, share: float) -> None:
    """What is kept of the past must be a share of it."""
    if not 0 <= share < 1:
        raise ValueError(f"{name} must be from 0 to below 1, got {share}")


def zero_velocity(theta: Float[Array, "... D"]) -> State:
    """No velocity yet."""
    return {"velocity": np.zeros_like(theta), "log_scale": np.full((*theta.shape[:-1], 1), -np.inf)}


def velocity_after(state: State, descent: Descent, beta: float, *, nesterov: bool) -> tuple[Scaled, State]:
    """Where to go by the velocity after a gradient, as a vector and the logarithm of its scale; and the velocity."""
    log_beta = np.log(beta) if beta > 0 else -np.inf
    velocity = scaled_sum((state["velocity"], state["log_scale"] + log_beta), descent)
    ahead = scaled_sum((velocity[0], velocity[1] + log_beta), descent) if nesterov else velocity
    return ahead, {"velocity": velocity[0], "log_scale": velocity[1]}


def scaled_sum(one: Scaled, other: Scaled) -> Scaled:
    """The sum of two vectors that are given with the logarithms of their scales."""
    scale = np.maximum(one[1], other[1])
    shift = np.where(np.isneginf(scale), 0.0, scale)
    return one[0] * np.exp(one[1] - shift) + other[0] * np.exp(other[1] - shift), scale
