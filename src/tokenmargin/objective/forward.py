"""The forward pass of attention, a direction of descent that stays right at any norm, and its derivatives.

The textbook gradient `s_t (gamma_t - f)` loses its direction once the selected weight rounds to 1: the selected
token's coefficient is then a difference of equal numbers. Here the selected token is a pivot whose coefficient is
minus the sum of the others, and `gamma_t - f = (gamma_t - gamma_pivot) + sum_u s_u (gamma_pivot - gamma_u)`, in which
nothing cancels. Magnitudes are kept as logarithms, so the unit direction is right long after the gradient itself has
underflowed.

A stiff solver and Newton's method need the derivatives too, in the log domain. Write `d_t = k_t - k_pivot`,
`a_t = s_t (gamma_t - f)`, `g = sum_t a_t d_t` and `m = sum_t s_t d_t` for one input. Minus the gradient of the risk is
`F = sum_i c_i g_i` with `c_i = -loss'_i / n`, and its derivative in p is

    dF = sum_i c_i (sum_t a_t d_t d_t' - g m' - m g' + b g g'),    b = d log(-loss') / du.

In terms of the differences `d_t` the pivot has dropped out, so nothing cancels; the numbers `c_i a_t` enter through
their logarithms minus the largest, so nothing underflows that matters. What is returned is `dF / |F|`: the derivative
relative to the gradient's own length, which stays finite when that length is below the smallest double.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import in_coordinates


class Descent(NamedTuple):
    """The direction of steepest descent, block by block, and how steep it is.

    - `direction`: minus the gradient, each block scaled to unit length (zero where the gradient is exactly zero).
    - `log_norm`: logarithm of each block's gradient norm (minus infinity where it is zero).
    """

    direction: Float[Array, "... D"]
    log_norm: Float[Array, "... blocks"]


class Attention(NamedTuple):
    """One forward pass, with what the stable gradient needs of it. The pivot is the token of largest weight."""

    weights: Float[Array, "... n T"]  # softmax weights
    log_weights: Float[Array, "... n T"]
    pivot: Bool[Array, "... n T"]
    output: Float[Array, "... n"]  # Y_i f_i
    lead: Float[Array, "... n T"]  # gamma_t - f, without cancellation
    log_lead: Float[Array, "... n T"]  # log |gamma_t - f|, also where it is below the smallest double
    lead_sign: Float[Array, "... n T"]


def exp_shifted(logs: Float[Array, "..."], axes: tuple[int, ...]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """`exp(logs - largest)` and the largest, for sums in the log domain; zeros when all are minus infinity."""
    largest = np.maximum(logs.max(axis=axes, keepdims=True), np.finfo(float).min)
    return np.exp(logs - largest), np.squeeze(largest, axis=axes)


def exp_with_slopes(
    log_slope: Float[Array, "... n"], logs: Float[Array, "... n T"]
) -> tuple[Float[Array, "... n T"], Float[Array, "..."]]:
    """`exp(log_slope + logs - largest)` and the largest. The steepest slope is taken off first: beside that of scores
    like 1e20 the logarithm of a weight would lose every digit."""
    with np.errstate(invalid="ignore"):  # where an output has underflowed and its slope is infinite there is none
        steepest = np.where((logs > -np.inf).any(axis=-1), log_slope, -np.inf).max(axis=-1, keepdims=True)
        steepest = np.where(np.isfinite(steepest), steepest, 0.0)
        sizes, log_scale = exp_shifted((log_slope - steepest)[..., None] + logs, (-2, -1))
    return sizes, np.asarray(log_scale + steepest[..., 0])


def attend(logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]) -> Attention:
    """The forward pass: softmax weights, outputs, and by how much the score of each token leads its output."""
    chosen = logits.argmax(axis=-1)[..., None]
    pivot = chosen == np.arange(logits.shape[-1])
    relative = logits - logits.max(axis=-1, keepdims=True)
    weights = np.exp(relative)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= total
    best = (scores * pivot).sum(axis=-1, keepdims=True)  # gamma_pivot
    ahead = best - scores
    shortfall = (weights * ahead).sum(axis=-1, keepdims=True)  # gamma_pivot - f
    log_weights, lead = relative - np.log(total), shortfall - ahead
    with np.errstate(divide="ignore"):
        log_lead, sign = np.log(np.abs(lead)), np.sign(lead)
        # A token that scores exactly what the pivot does leads by the shortfall alone, which underflows near |p| = 700.
        equal = (ahead == 0) & ~pivot
        if equal.any():
            sizes, largest = exp_shifted(log_weights + np.log(np.abs(ahead)), (-1,))
            total = (np.sign(ahead) * sizes).sum(axis=-1)
            log_lead = np.where(equal, (np.log(np.abs(total)) + largest)[..., None], log_lead)
            sign = np.where(equal, np.sign(total)[..., None], sign)
    return Attention(weights, log_weights, pivot, (best - shortfall)[..., 0], lead, log_lead, sign)


def unit_descent(
    geometry: AbstractGeometry, weights: Float[Array, "... n T"], log_scale: Float[Array, "... 1"]
) -> Descent:
    """Scale `exp(log_scale) sum_it w_it k_it` to unit length and report the logarithm of its length.

    A sum that cancels down to rounding has no direction: it is reported as exactly zero.
    """
    vector = geometry.pullback(weights)
    length = geometry.norm(vector)[..., None]
    terms = np.abs(weights).reshape(*weights.shape[:-2], -1) @ geometry.token_norms.ravel()
    seen = length > geometry.noise * terms[..., None]
    with np.errstate(divide="ignore"):
        log_norm = log_scale + np.log(np.where(seen, length, 0.0))
    return Descent(np.where(seen, vector, 0.0) / np.where(seen, length, 1.0), log_norm)


def descent_weights(
    state: Attention, log_slope: Float[Array, "... n"]
) -> tuple[Float[Array, "... n T"], Float[Array, "..."]]:
    """Weights `w` on the keys with `sum_i |loss'_i| sum_t s_it (gamma_it - f_i) k_it = exp(log_scale) sum w k`."""
    logs = np.where(state.pivot, -np.inf, state.log_weights + state.log_lead)
    sizes, log_scale = exp_with_slopes(log_slope, logs)
    coefficients = np.copysign(sizes, state.lead_sign)
    coefficients -= coefficients.sum(axis=-1, keepdims=True) * state.pivot
    return coefficients, log_scale


def prompt_descent(keys: AbstractGeometry, state: Attention, log_slope: Float[Array, "... n"]) -> Descent:
    """Minus the gradient in p: `mean_i |loss'_i| sum_t s_it (gamma_it - f_i) k_it`, in the log domain."""
    coefficients, log_scale = descent_weights(state, log_slope)
    return unit_descent(keys, coefficients, log_scale[..., None] - np.log(keys.n))


def head_descent(
    values: AbstractGeometry, state: Attention, labels: Float[Array, " n"], log_slope: Float[Array, "... n"]
) -> Descent:
    """Minus the gradient in the head: `mean_i |loss'_i| Y_i sum_t s_it x_it`, in the log domain."""
    slopes, log_scale = exp_shifted(log_slope, (-1,))
    weights = (slopes * labels)[..., None] * state.weights
    return unit_descent(values, weights, log_scale[..., None] - np.log(values.n))


class PivotedAttention(NamedTuple):
    """One forward pass at one point, with every key as its difference to the pivot's key."""

    attention: Attention
    keys: Float[Array, "n T r"]  # d_t = k_t - k_pivot
    log_slope: Float[Array, " n"]  # log(-loss')
    bend: Float[Array, " n"]  # d log(-loss') / du

    @classmethod
    def of(cls, keys: AbstractGeometry, attention: Attention, loss: AbstractLoss) -> PivotedAttention:
        """From a forward pass, with the slope of a loss at its outputs and how the slope bends there."""
        output = attention.output
        apart = from_pivot(in_coordinates(keys), attention.pivot)
        return cls(attention, apart, loss.log_slope(output), loss.log_slope_derivative(output))

    @property
    def log_pulls(self) -> Float[Array, "n T"]:
        """`log |a_it|`; minus infinity for the pivot and for tokens at its place, which pull nowhere."""
        return self.log_unless_idle(self.attention.log_weights + self.attention.log_lead)

    def log_unless_idle(self, logs: Float[Array, "n T"]) -> Float[Array, "n T"]:
        """Minus infinity in place of the logarithm where a token has the pivot's key."""
        return np.where((self.keys == 0).all(axis=-1), -np.inf, logs)

    @property
    def mean(self) -> Float[Array, "n r"]:
        """`m_i = sum_t s_it d_it`."""
        return np.asarray(np.einsum("nt,ntr->nr", self.attention.weights, self.keys))

    @property
    def slope(self) -> Float[Array, "n r"]:
        """`g_i`: the derivative of the output `Y_i f_i` in p."""
        return np.asarray(np.einsum("nt,ntr->nr", self.attention.weights * self.attention.lead, self.keys))


class Linearisation(NamedTuple):
    """The descent field at one point and its derivative, all relative to the gradient's own length.

    - `descent`: the unit directions and log norms.
    - `jacobian`: derivative of minus the gradient; the rows of each block are divided by that block's gradient norm.
    - `balance`: per block, the length of the gradient over the summed lengths of its terms: a scale-free measure of
      stationarity that does not mistake an exponentially small gradient for a zero one.
    """

    descent: Descent
    jacobian: Float[Array, "D D"]
    balance: Float[Array, " blocks"]


class Block(NamedTuple):
    """Minus the gradient in one block of the parameter, and its derivative.

    - `direction`: unit vector.
    - `log_scale`: logarithm of what the gradient was divided by to be computed (without the 1/n).
    - `length`: length of the scaled gradient; the gradient's norm is `exp(log_scale) length / n`.
    - `balance`: length of the sum over the sum of the lengths of its terms. It is scale-free: zero exactly at a
      stationary point, and bounded away from zero on a path that diverges along a max-margin direction.
    - `rows`: derivative over length, in the columns of each block (head first when it is trained).
    """

    direction: Float[Array, " r"]
    log_scale: float
    length: float
    balance: float
    rows: tuple[Float[Array, "r c"], ...]


def make_block(
    total: Float[Array, " r"], terms: Float[Array, "... r"], log_scale: float, rows: tuple[Float[Array, "r c"], ...]
) -> Block:
    """A block from the scaled gradient, its terms, their scale, and the derivative in the columns of each block."""
    length = float(np.linalg.norm(total))
    sizes = float(np.linalg.norm(terms, axis=-1).sum())
    safe = length if length > 0 else 1.0
    balance = length / sizes if sizes > 0 else 0.0
    return Block(total / safe, log_scale, length, balance, tuple(row / safe for row in rows))


def prompt_block(
    seen: PivotedAttention,
    *,
    features: Float[Array, "n d"] | None = None,
    spread: Float[Array, "n T d"] | None = None,
    bending: Float[Array, "n r r"] | None = None,
    slope: Float[Array, "n r"] | None = None,
) -> Block:
    """The block of p; with the columns of the head when `features` and `spread` are given.

    **Arguments**
    - `features`: `Y_i sum_t s_it x_it`, the derivative of the output in the head.
    - `spread`: `Y_i (x_it - sum_u s_iu x_iu)`, the derivative of the lead in the head.
    - `bending`: what the curvature of a nonlinear head adds to the derivative of `g_i`, per input.
    - `slope`: the derivative of the output that the loss sees, where it is more than `Y_i f_i`: a sum of heads.
    """
    sizes, scale = exp_with_slopes(seen.log_slope, seen.log_pulls)
    log_scale = float(scale)
    pulls = np.copysign(sizes, seen.attention.lead_sign)[..., None] * seen.keys  # c_i a_it d_it
    pull = pulls.sum(axis=1)  # c_i g_i
    cross = np.einsum("nr,nq->rq", pull, seen.mean)
    own = np.einsum("ntr,ntq->rq", pulls, seen.keys) - cross - cross.T
    with np.errstate(invalid="ignore"):
        bent = seen.bend[:, None] * (seen.slope if slope is None else slope)
    if np.isneginf(seen.bend).any():  # -log of an output that has underflowed: -g / u is minus the pull itself
        bent = np.where(np.isneginf(seen.bend)[:, None], -np.exp(log_scale) * pull, bent)
    own += np.einsum("nr,nq->rq", pull, bent)
    if bending is not None:
        own += np.einsum("n,nrq->rq", np.exp(np.minimum(seen.log_slope - log_scale, 700.0)), bending)
    rows: tuple[Array, ...] = (own,)
    if features is not None and spread is not None:
        logs = seen.log_unless_idle((seen.log_slope - log_scale)[:, None] + seen.attention.log_weights)
        plain = np.exp(np.minimum(logs, 700.0))  # c_i s_it
        mixed = np.einsum("nt,ntr,ntd->rd", plain, seen.keys, spread)
        rows = (mixed + np.einsum("nr,n,nd->rd", pull, seen.bend, features), own)
    return make_block(pull.sum(axis=0), pulls, log_scale, rows)


def head_block(seen: PivotedAttention, features: Float[Array, "n d"], spread: Float[Array, "n T d"]) -> Block:
    """The block of the head: `sum_i c_i Y_i x_i` with the attended `x_i`, and its derivative in head and prompt."""
    slopes, scale = exp_shifted(seen.log_slope, (0,))
    pulls = slopes[:, None] * features
    in_head = np.einsum("nd,n,ne->de", pulls, seen.bend, features)
    in_prompt = np.einsum("nd,n,nr->dr", pulls, seen.bend, seen.slope)
    in_prompt += np.einsum("n,nt,ntd,ntr->dr", slopes, seen.attention.weights, spread, seen.keys)
    return make_block(pulls.sum(axis=0), pulls, float(scale), (in_head, in_prompt))


def from_pivot(vectors: Float[Array, "n T r"], pivot: Bool[Array, "n T"]) -> Float[Array, "n T r"]:
    """`k_t - k_pivot` for every token."""
    return vectors - vectors[pivot][:, None]


def join_blocks(blocks: tuple[Block, ...], n: int) -> Linearisation:
    """The field and its derivative from those of its blocks, for the mean risk of n inputs."""
    with np.errstate(divide="ignore"):
        log_norm = np.array([block.log_scale + np.log(block.length) - np.log(n) for block in blocks])
    return Linearisation(
        Descent(np.concatenate([block.direction for block in blocks]), log_norm),
        np.vstack([np.hstack(block.rows) for block in blocks]),
        np.array([block.balance for block in blocks]),
    )
