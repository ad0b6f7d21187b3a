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

from tokenmargin.objective.jacobian import Block, Pivoted, pivoted, shifted
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.problem.geometry import AbstractGeometry, Coordinates


class Descent(NamedTuple):
    """The direction of steepest descent, block by block, and how steep it is.

    - `direction`: minus the gradient, each block scaled to unit length (zero where the gradient is exactly zero).
    - `log_norm`: logarithm of each block's gradient norm (minus infinity where it is zero).
    """

    direction: Float[Array, "... D"]
    log_norm: Float[Array, "... blocks"]


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


class Attention(NamedTuple):
    """One forward pass, with what the stable gradient needs of it. The pivot is the token of largest weight."""

    weights: Float[Array, "... n T"]  # softmax weights
    log_weights: Float[Array, "... n T"]
    pivot: Bool[Array, "... n T"]
    output: Float[Array, "... n"]  # Y_i f_i
    lead: Float[Array, "... n T"]  # gamma_t - f, without cancellation
    log_lead: Float[Array, "... n T"]  # log |gamma_t - f|, also where it is below the smallest double
    lead_sign: Float[Array, "... n T"]


def attend(logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]) -> Attention:
    chosen = logits.argmax(axis=-1)[..., None]
    pivot = chosen == np.arange(logits.shape[-1])
    relative = logits - logits.max(axis=-1, keepdims=True)
    weights = np.exp(relative)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= total
    best = scores.sum(axis=-1, keepdims=True, where=pivot)  # gamma_pivot
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
    terms = np.einsum("...nt,nt->...", np.abs(weights), geometry.token_lengths)
    length = np.where(length > geometry.noise * np.asarray(terms)[..., None], length, 0.0)
    with np.errstate(divide="ignore"):
        log_norm = log_scale + np.log(length)
    return Descent(np.where(length > 0, vector, 0.0) / np.where(length > 0, length, 1.0), log_norm)


def descent_weights(
    state: Attention, log_slope: Float[Array, "... n"]
) -> tuple[Float[Array, "... n T"], Float[Array, "..."]]:
    """Weights `w` on the keys with `sum_i |loss'_i| sum_t s_it (gamma_it - f_i) k_it = exp(log_scale) sum w k`."""
    logs = log_slope[..., None] + state.log_weights + state.log_lead
    logs[state.pivot] = -np.inf
    sizes, log_scale = shifted(logs, (-2, -1))
    coefficients = np.copysign(sizes, state.lead_sign)
    coefficients -= coefficients.sum(axis=-1, keepdims=True) * state.pivot
    return coefficients, log_scale


def prompt_descent(keys: AbstractGeometry, state: Attention, log_slope: Float[Array, "... n"]) -> Descent:
    """Minus the gradient in p: `mean_i |loss'_i| sum_t s_it (gamma_it - f_i) k_it`, in the log domain."""
    coefficients, log_scale = descent_weights(state, log_slope)
    return unit_descent(keys, coefficients, log_scale[..., None] - np.log(keys.n))


def seen_from_pivot(keys: AbstractGeometry, state: Attention, loss: AbstractLoss) -> Pivoted:
    return Pivoted(
        keys=pivoted(in_coordinates(keys), state.pivot),
        weights=state.weights,
        log_weights=state.log_weights,
        lead=state.lead,
        log_lead=state.log_lead,
        lead_sign=state.lead_sign,
        log_slope=loss.log_slope(state.output),
        bend=loss.log_slope_derivative(state.output),
    )


def in_coordinates(geometry: AbstractGeometry) -> Float[Array, "n T r"]:
    """The tokens as an array, for derivatives of the field."""
    if not isinstance(geometry, Coordinates):
        raise TypeError("the Jacobian of the field is taken in coordinates; reduce a Gram geometry to its span first")
    return geometry.laid_out


def linearisation(blocks: tuple[Block, ...], n: int) -> Linearisation:
    with np.errstate(divide="ignore"):
        log_norm = np.array([block.log_scale + np.log(block.length) - np.log(n) for block in blocks])
    return Linearisation(
        Descent(np.concatenate([block.direction for block in blocks]), log_norm),
        np.vstack([np.hstack(block.rows) for block in blocks]),
        np.array([block.balance for block in blocks]),
    )
