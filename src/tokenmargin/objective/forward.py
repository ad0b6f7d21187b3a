"""The forward pass of attention, and a direction of descent that stays right at any norm.

The textbook gradient `s_t (gamma_t - f)` loses its direction once the selected weight rounds to 1: the selected
token's coefficient is then a difference of equal numbers. Here the selected token is a pivot whose coefficient is
minus the sum of the others, and `gamma_t - f = (gamma_t - gamma_pivot) + sum_u s_u (gamma_pivot - gamma_u)`, in which
nothing cancels. Magnitudes are kept as logarithms, so the unit direction is right long after the gradient itself has
underflowed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from tokenmargin.problem.abstract_geometry import AbstractGeometry


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


def shifted(logs: Float[Array, "..."], axes: tuple[int, ...]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """`exp(logs - largest)` and the largest, for sums in the log domain; zeros when all are minus infinity."""
    largest = np.maximum(logs.max(axis=axes, keepdims=True), np.finfo(float).min)
    return np.exp(logs - largest), np.squeeze(largest, axis=axes)


def sloped(
    log_slope: Float[Array, "... n"], logs: Float[Array, "... n T"]
) -> tuple[Float[Array, "... n T"], Float[Array, "..."]]:
    """`exp(log_slope + logs - largest)` and the largest. The steepest slope is taken off first: beside that of scores
    like 1e20 the logarithm of a weight would lose every digit."""
    with np.errstate(invalid="ignore"):  # where an output has underflowed and its slope is infinite there is none
        steepest = np.where((logs > -np.inf).any(axis=-1), log_slope, -np.inf).max(axis=-1, keepdims=True)
        steepest = np.where(np.isfinite(steepest), steepest, 0.0)
        sizes, log_scale = shifted((log_slope - steepest)[..., None] + logs, (-2, -1))
    return sizes, np.asarray(log_scale + steepest[..., 0])


def attend(logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]) -> Attention:
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
            sizes, largest = shifted(log_weights + np.log(np.abs(ahead)), (-1,))
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
    terms = np.abs(weights).reshape(*weights.shape[:-2], -1) @ geometry.token_lengths.ravel()
    seen = length > geometry.noise * terms[..., None]
    with np.errstate(divide="ignore"):
        log_norm = log_scale + np.log(np.where(seen, length, 0.0))
    return Descent(np.where(seen, vector, 0.0) / np.where(seen, length, 1.0), log_norm)


def descent_weights(
    state: Attention, log_slope: Float[Array, "... n"]
) -> tuple[Float[Array, "... n T"], Float[Array, "..."]]:
    """Weights `w` on the keys with `sum_i |loss'_i| sum_t s_it (gamma_it - f_i) k_it = exp(log_scale) sum w k`."""
    logs = np.where(state.pivot, -np.inf, state.log_weights + state.log_lead)
    sizes, log_scale = sloped(log_slope, logs)
    coefficients = np.copysign(sizes, state.lead_sign)
    coefficients -= coefficients.sum(axis=-1, keepdims=True) * state.pivot
    return coefficients, log_scale


def prompt_descent(keys: AbstractGeometry, state: Attention, log_slope: Float[Array, "... n"]) -> Descent:
    """Minus the gradient in p: `mean_i |loss'_i| sum_t s_it (gamma_it - f_i) k_it`, in the log domain."""
    coefficients, log_scale = descent_weights(state, log_slope)
    return unit_descent(keys, coefficients, log_scale[..., None] - np.log(keys.n))
