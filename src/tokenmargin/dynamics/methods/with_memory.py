"""Methods that remember past gradients: with a velocity, steepest descent in any norm, Adam and AdamW.

The velocity is kept as a vector of moderate size times the exponential of a logarithm, so that it keeps its direction
when the gradients that it sums have underflowed; Adam has no guard in its denominator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin.dynamics.methods.method import (
    AbstractMethod,
    AbstractValue,
    State,
    StepNumber,
    StepSize,
    checked_step,
    step_at,
)
from tokenmargin.norms import L2, LINF, AbstractNorm, SchattenNorm, norm_named
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

    def for_objective(self, objective: AbstractObjective) -> SteepestDescent:
        super().for_objective(objective)
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
    """The norm for the parameter of an objective; a norm of matrices is given their shape."""
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
    """The step that the velocity gives after a gradient, as a vector and the logarithm of its scale; and the state."""
    log_beta = np.log(beta) if beta > 0 else -np.inf
    velocity = scaled_sum((state["velocity"], state["log_scale"] + log_beta), descent)
    ahead = scaled_sum((velocity[0], velocity[1] + log_beta), descent) if nesterov else velocity
    return ahead, {"velocity": velocity[0], "log_scale": velocity[1]}


def scaled_sum(one: Scaled, other: Scaled) -> Scaled:
    """The sum of two vectors that are given with the logarithms of their scales."""
    scale = np.maximum(one[1], other[1])
    shift = np.where(np.isneginf(scale), 0.0, scale)
    return one[0] * np.exp(one[1] - shift) + other[0] * np.exp(other[1] - shift), scale


@dataclass(frozen=True)
class Adam(AbstractMethod):
    """Adam, and AdamW with a weight decay: the numbers of torch's, where gradients are large enough for those.

    With m the mean of past gradients and v that of their squares, `m / sqrt(v)` and `log sqrt(v)` are remembered,
    each by coordinate. The first is of order one and the second a moderate number at any size of the gradient, so no
    guard is needed: `eps` is 0. A coordinate whose gradients were all exactly zero stays.

    **Attributes**
    - `step`: about how far each coordinate moves, at most.
    - `beta1`, `beta2`: shares kept of the two means.
    - `eps`: added to `sqrt(v)`; a run with one stops once the gradient is below it.
    - `weight_decay`: AdamW's; p is multiplied by `1 - step weight_decay` first.
    """

    step: StepSize = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 0.0
    weight_decay: float = 0.0

    coordinates = True

    def __post_init__(self) -> None:
        checked_step(self.step)
        checked_decay("beta1", self.beta1)
        checked_decay("beta2", self.beta2)
        for name in ("eps", "weight_decay"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be zero or a positive number, got {getattr(self, name)}")

    def initial(self, theta: Float[Array, "... D"]) -> State:
        return {"ratio": np.zeros_like(theta), "log_scale": np.full_like(theta, -np.inf)}

    def advance(
        self, theta: Float[Array, "... D"], descent: Descent, value: AbstractValue, t: StepNumber, state: State
    ) -> tuple[Float[Array, "... D"], State]:
        step, count = step_at(self.step, t), t + 1
        with np.errstate(divide="ignore", over="ignore"):
            log_gradient = np.log(np.abs(descent.direction)) + descent.log_norm
            kept, new = np.log([self.beta2, 1 - self.beta2])
            log_scale = np.logaddexp(kept + 2 * state["log_scale"], new + 2 * log_gradient) / 2
            shift = np.where(np.isneginf(log_scale), 0.0, log_scale)
            ratio = self.beta1 * state["ratio"] * np.exp(state["log_scale"] - shift)
            ratio += (1 - self.beta1) * np.sign(descent.direction) * np.exp(log_gradient - shift)
            guard = self.eps * np.exp(-shift) if self.eps else 0.0
        # Both means start at zero, so they fall short of those of the gradients seen by these factors.
        short1, short2 = 1 - self.beta1**count, 1 - self.beta2**count
        move = step / short1 * ratio / (1 / np.sqrt(short2) + guard)
        kept_point = theta * (1 - step * self.weight_decay) if self.weight_decay else theta
        return kept_point + move, {"ratio": ratio, "log_scale": log_scale}

    @property
    def margin_norm(self) -> AbstractNorm:
        return LINF
