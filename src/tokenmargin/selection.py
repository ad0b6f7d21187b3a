"""Which tokens: selected by a parameter, optimal by score, neighbours of a max-margin solution, and angles.

Notation of *Max-Margin Token Selection in Attention Mechanism*: `alpha_i` are the selected tokens, `gamma_it` the
scores, `T_i` the SVM-neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.geometry import AbstractGeometry
from tokenmargin.problem import TokenProblem

__all__ = [
    "NEIGHBOUR_TOLERANCE",
    "Selection",
    "angle",
    "attention_weights",
    "checked_selection",
    "cosine",
    "is_globally_optimal",
    "is_locally_optimal",
    "margins",
    "neighbours",
    "optimal_tokens",
    "saturation",
    "score_gaps",
    "select",
]

Selection: TypeAlias = Sequence[int] | Array
"""One token per input, counted from 0."""

# A neighbour's margin is 1 up to the rounding of a polished solve (about 1e-12); a genuine non-neighbour this close
# to 1 is indistinguishable from one in double precision.
NEIGHBOUR_TOLERANCE = 1e-7


def checked_selection(problem: TokenProblem, selected: Selection) -> Int[Array, " n"]:
    """Validate one selected token per input and return it as an integer array."""
    alpha = np.asarray(selected)
    if alpha.shape != (problem.n,) or alpha.dtype.kind not in "iu":
        raise ValueError(f"selected must be {problem.n} integers, one token per input, got {alpha.dtype} {alpha.shape}")
    out = np.flatnonzero((alpha < 0) | (alpha >= problem.T))
    if out.size:
        raise ValueError(f"selected token {alpha[out[0]]} of input {out[0]} is out of range 0..{problem.T - 1}")
    hidden = np.flatnonzero(~problem.mask[np.arange(problem.n), alpha])
    if hidden.size:
        raise ValueError(
            f"selected token {alpha[hidden[0]]} of input {hidden[0]} is hidden by the mask; select a visible token"
        )
    return alpha.astype(np.intp, copy=False)


def attention_weights(keys: AbstractGeometry, p: Float[Array, "... D"]) -> Float[Array, "... n T"]:
    """Softmax weights `s_i = softmax(K_i p)`; zero where there is no token."""
    logits = keys.logits(p)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def select(keys: AbstractGeometry, p: Float[Array, "... D"]) -> Int[Array, "... n"]:
    """The token of largest logit in each input, the first of equals: `alpha_i` of (59)."""
    return np.asarray(keys.logits(p).argmax(axis=-1))


def saturation(keys: AbstractGeometry, p: Float[Array, "... D"]) -> Float[Array, "..."]:
    """Mean over the inputs of the largest softmax weight: 1 when attention has selected one token per input."""
    return np.asarray(attention_weights(keys, p).max(axis=-1).mean(axis=-1))


def cosine(geometry: AbstractGeometry, p: Float[Array, "... D"], q: Float[Array, "... D"]) -> Float[Array, "..."]:
    """Cosine of the angle between two parameters; NaN when one of them is zero."""
    lengths = geometry.norm(p) * geometry.norm(q)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(geometry.inner(p, q) / lengths)


def angle(geometry: AbstractGeometry, p: Float[Array, "... D"], q: Float[Array, "... D"]) -> Float[Array, "..."]:
    """Angle in radians, accurate also when it is tiny: `2 atan2(|u - w|, |u + w|)` for unit vectors u and w.

    >>> from tokenmargin.geometry import Coordinates
    >>> plane = Coordinates.of([[[1.0, 0.0], [0.0, 1.0]]])
    >>> float(angle(plane, np.array([1.0, 0.0]), np.array([1.0, 1e-12])))
    1e-12
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        u = p / geometry.norm(p)[..., None]
        w = q / geometry.norm(q)[..., None]
    return np.asarray(2 * np.arctan2(geometry.norm(u - w), geometry.norm(u + w)))


def optimal_tokens(problem: TokenProblem) -> Bool[Array, "n T"]:
    """Tokens of highest score in their input (Definition 1); several when they tie."""
    scores = np.where(problem.mask, problem.scores, -np.inf)
    return np.asarray(scores == scores.max(axis=1, keepdims=True))


def is_globally_optimal(problem: TokenProblem, selected: Selection) -> bool:
    """Whether every selected token is optimal (Definition 1): its max-margin direction is a GMM."""
    alpha = checked_selection(problem, selected)
    return bool(optimal_tokens(problem)[np.arange(problem.n), alpha].all())


def margins(problem: TokenProblem, p: Float[Array, " D"], selected: Selection) -> Float[Array, "n T"]:
    """`<k_{i alpha_i} - k_it, p>`: how far the selected token is ahead of each; infinity where there is no token."""
    alpha = checked_selection(problem, selected)
    logits = problem.keys.logits(p)
    return np.asarray(logits[np.arange(problem.n), alpha][:, None] - logits)


def neighbours(
    problem: TokenProblem,
    p: Float[Array, " D"],
    selected: Selection,
    *,
    tolerance: float = NEIGHBOUR_TOLERANCE,
) -> Bool[Array, "n T"]:
    """SVM-neighbours `T_i` at the max-margin solution `p`: margin 1 up to `tolerance` (Definition 2)."""
    alpha = checked_selection(problem, selected)
    near = margins(problem, p, alpha) <= 1 + tolerance
    near[np.arange(problem.n), alpha] = False
    return near


def score_gaps(
    problem: TokenProblem,
    p: Float[Array, " D"],
    selected: Selection,
    *,
    tolerance: float = NEIGHBOUR_TOLERANCE,
) -> Float[Array, " n"]:
    """`gamma_{i alpha_i} - max over T_i of gamma_it` for each input; infinity for an input without neighbours."""
    alpha = checked_selection(problem, selected)
    near = neighbours(problem, p, alpha, tolerance=tolerance)
    best = np.where(near, problem.scores, -np.inf).max(axis=1)
    return np.asarray(problem.scores[np.arange(problem.n), alpha] - best)


def is_locally_optimal(
    problem: TokenProblem,
    p: Float[Array, " D"],
    selected: Selection,
    *,
    tolerance: float = NEIGHBOUR_TOLERANCE,
) -> bool:
    """Whether every selected token outscores its SVM-neighbours strictly (Definition 2): `p` is an LMM direction."""
    return bool((score_gaps(problem, p, selected, tolerance=tolerance) > 0).all())
