"""Which tokens: selected by a parameter, optimal by score, neighbours of a max-margin solution, and angles.

Notation of *Max-Margin Token Selection in Attention Mechanism*: `alpha_i` are the selected tokens, `gamma_it` the
scores, `T_i` the SVM-neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from tokenmargin.norms import EPS
from tokenmargin.problem.abstract_geometry import AbstractGeometry, as_array, checked_point
from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.names import token_name
from tokenmargin.problem.token_problem import TokenProblem, checked_problem

Selection: TypeAlias = Sequence[int] | Array
"""One token per input, counted from 0."""

# A neighbour's margin is 1 up to the rounding of a polished solve (about 1e-12); a genuine non-neighbour this close
# to 1 is indistinguishable from one in double precision.
NEIGHBOUR_TOLERANCE = 1e-7


def checked_selection(problem: TokenProblem, selected: Selection) -> Int[Array, " n"]:
    """Validate one selected token per input and return it as an integer array."""
    alpha = as_array("selected", selected)
    mask = problem.mask
    n, T = mask.shape
    if alpha.shape != (n,) or alpha.dtype.kind not in "iu":
        raise ValueError(f"selected must be {n} integers, one token per input, got {alpha.dtype} {alpha.shape}")
    if alpha[alpha.argmin()] < 0 or alpha[alpha.argmax()] >= T:
        i = int(((alpha < 0) | (alpha >= T)).argmax())
        raise ValueError(f"selected token {alpha[i]} of input {i} is out of range 0..{T - 1}")
    if not problem.keys.is_full and not (seen := mask[np.arange(n), alpha]).all():
        i = int(seen.argmin())
        raise ValueError(f"selected token {alpha[i]} of input {i} is hidden by the mask; select a visible token")
    return alpha.astype(np.intp, copy=False)


def attention_weights(keys: AbstractGeometry, p: Float[Array, "... D"]) -> Float[Array, "... n T"]:
    """Softmax weights `s_i = softmax(K_i p)`; zero where there is no token.

    >>> from tokenmargin.problem.instances import figure1b
    >>> attention_weights(figure1b().keys, np.array([0.0, np.log(3), 0.0])).round(3)
    array([[0.6, 0.2, 0.2]])
    """
    if not isinstance(keys, AbstractGeometry):
        raise TypeError(f"attention_weights takes the geometry of keys, problem.keys; got {type(keys).__name__}")
    weights = np.exp(_logits_behind(keys, p))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def select(keys: AbstractGeometry, p: Float[Array, "... D"]) -> Int[Array, "... n"]:
    """The token of largest logit in each input, the first of equals: `alpha_i` of (59)."""
    return np.asarray(_logits_behind(keys, p).argmax(axis=-1))


def _logits_behind(keys: AbstractGeometry, p: Float[Array, "... D"]) -> Float[Array, "... n T"]:
    """Each logit less the largest of its input: zero or negative, and right also where the logits overflow."""
    p = checked_point("p", p, keys.dimension)
    with np.errstate(over="ignore", invalid="ignore"):
        logits = keys.logits(p)
        behind = logits - logits.max(axis=-1, keepdims=True)
        if np.isnan(behind).any():
            size = np.ldexp(0.5, np.frexp(np.abs(p).max(axis=-1, keepdims=True))[1])  # powers of two: no rounding
            logits = keys.logits(np.ldexp(p / size, -64))
            behind = np.ldexp(logits - logits.max(axis=-1, keepdims=True), 64) * size[..., None]
    return np.asarray(behind)


def saturation(
    keys: AbstractGeometry, p: Float[Array, "... D"], scores: Float[Array, "n T"] | None = None
) -> Float[Array, "..."]:
    """The mean over the inputs of the selected weight, which is 1 when attention has settled.

    The selected weight is the largest, together with those of the token's copies. With `scores` (the problem's
    `shared_scores`) the weights of all tokens of the same score count as well: training does not tell these apart.
    """
    if scores is not None and np.shape(scores) != keys.index.shape:
        raise ValueError(f"scores must have shape (n, T) = {keys.index.shape}, got {np.shape(scores)}")
    return selected_share(keys, attention_weights(keys, p), scores)


def selected_share(
    keys: AbstractGeometry, weights: Float[Array, "... n T"], scores: Float[Array, "n T"] | None = None
) -> Float[Array, "..."]:
    """The same as `saturation`, of attention weights that are known already."""
    if scores is None and not keys.has_copies:
        return np.asarray(weights.max(axis=-1).mean(axis=-1))
    alike = keys.first_copies if scores is None else scores
    together = alike == _selected_entries(alike, weights.argmax(axis=-1))
    return np.asarray(np.where(together, weights, 0.0).sum(axis=-1).mean(axis=-1))


def cosine(geometry: AbstractGeometry | ArrayLike, p: ArrayLike, q: ArrayLike | None = None) -> Float[Array, "..."]:
    """Cosine of the angle between two parameters, or two plain vectors `cosine(p, q)`; NaN when one of them is zero.

    >>> float(cosine([1.0, 0.0], [3.0, 4.0]))
    0.6
    """
    geometry, one, other = _pair(geometry, p, q)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(geometry.inner(one, other) / (geometry.norm(one) * geometry.norm(other)))


def angle(geometry: AbstractGeometry | ArrayLike, p: ArrayLike, q: ArrayLike | None = None) -> Float[Array, "..."]:
    """Angle in radians of two parameters, `angle(problem.keys, p, q)`, or of two plain vectors, `angle(p, q)`.

    Accurate also when it is tiny: `2 atan2(|u - w|, |u + w|)` for unit vectors u and w. Inner products alone hold half
    of the digits, unless they, or a known number of dimensions, tell on which vectors all others depend.

    >>> f"{angle([1.0, 0.0], [1.0, 1e-12]):.6g}"
    '1e-12'
    """
    geometry, one, other = _pair(geometry, p, q)
    if geometry.frame is not None:
        one, other = one @ geometry.frame, other @ geometry.frame
        geometry = _plain(one.shape[-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        u = one / geometry.norm(one)[..., None]
        w = other / geometry.norm(other)[..., None]
        return np.asarray(2 * np.arctan2(geometry.norm(u - w), geometry.norm(u + w)))


def _pair(
    geometry: AbstractGeometry | ArrayLike, p: ArrayLike, q: ArrayLike | None
) -> tuple[AbstractGeometry, Float[Array, "... D"], Float[Array, "... D"]]:
    """Two parameters and their geometry; of two arguments both are vectors, and the geometry is that of plain ones."""
    if isinstance(geometry, AbstractGeometry):
        if q is None:
            raise TypeError("an angle is between two vectors: angle(problem.keys, p, q) or angle(p, q)")
        return geometry, checked_point("p", p, geometry.dimension), checked_point("q", q, geometry.dimension)
    if q is not None or isinstance(geometry, TokenProblem):
        raise TypeError(f"the geometry of parameters is their problem's keys, not a {type(geometry).__name__}")
    one = as_array("p", geometry, float)
    if not one.ndim or not one.size:
        raise ValueError(f"p must be a vector, got shape {one.shape}")
    return _plain(one.shape[-1]), one, checked_point("q", p, one.shape[-1])


def _plain(dimension: int) -> Coordinates:
    """The geometry of plain vectors."""
    return Coordinates(np.zeros((1, dimension)), [[0]])


def optimal_tokens(problem: TokenProblem) -> Bool[Array, "n T"]:
    """Tokens of highest score in their input (Definition 1); several when they tie.

    >>> from tokenmargin.problem.instances import figure1b
    >>> optimal_tokens(figure1b())
    array([[ True, False, False]])
    """
    scores = np.where(checked_problem(problem, "optimal_tokens").mask, problem.scores, -np.inf)
    return np.asarray(scores == scores.max(axis=1, keepdims=True))


def is_globally_optimal(problem: TokenProblem, selected: Selection) -> bool:
    """Whether every selected token is optimal (Definition 1): no token of its input scores higher.

    Where none scores as high either, their max-margin direction, if there is one, is the GMM.
    """
    alpha = checked_selection(problem, selected)
    return bool(optimal_tokens(problem)[np.arange(problem.n), alpha].all())


def margins(problem: TokenProblem, p: Float[Array, "... D"], selected: Selection) -> Float[Array, "... n T"]:
    """`<k_{i alpha_i} - k_it, p>`: how far the selected token is ahead of each; infinity where there is no token."""
    return lead_over(relative_logits(problem.keys, p), checked_selection(problem, selected))


def relative_logits(keys: AbstractGeometry, p: Float[Array, "... D"]) -> Float[Array, "... n T"]:
    """Logits up to a constant for each input, computed from differences of keys where these are known.

    Tokens far from the origin differ by what their own logits have no digits for. Minus infinity marks no token.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(keys, Coordinates):
            first = keys.index[np.arange(keys.n), keys.mask.argmax(axis=1)]
            ahead = (keys.vectors[keys.index] - keys.vectors[first][:, None]) @ p[..., None, :, None]
            logits = np.where(keys.mask, ahead[..., 0], -np.inf)
        elif isinstance(keys, Gram) and keys.centred is not None and _of_differences(p):
            logits = np.where(keys.mask, keys.gather(p @ keys.centred), -np.inf)
        else:
            return keys.logits(p)
    return keys.logits(p) if np.isnan(logits).any() else logits


def _of_differences(coefficients: Float[Array, "... m"]) -> bool:
    """Whether coefficients add up to zero: their combination then depends on differences of the vectors alone."""
    total, size = np.abs(coefficients.sum(axis=-1)), np.abs(coefficients).sum(axis=-1)
    return bool((total <= coefficients.shape[-1] * EPS * size).all())


def leads(keys: AbstractGeometry, p: Float[Array, " D"], selected: Int[Array, " n"]) -> Float[Array, "n T"]:
    """How far the selected token is ahead of each other one; infinity at itself and where there is no token."""
    ahead = lead_over(keys.logits(p), selected)
    ahead[np.arange(keys.n), selected] = np.inf
    return ahead


def neighbours(
    problem: TokenProblem, p: Float[Array, "... D"], selected: Selection, *, tolerance: float = NEIGHBOUR_TOLERANCE
) -> Bool[Array, "... n T"]:
    """SVM-neighbours `T_i` at the max-margin solution `p`: margin 1 up to `tolerance` (Definition 2)."""
    logits = relative_logits(problem.keys, p)
    return near_tokens(logits, checked_selection(problem, selected), tolerance=tolerance)


def score_gaps(
    problem: TokenProblem, p: Float[Array, "... D"], selected: Selection, *, tolerance: float = NEIGHBOUR_TOLERANCE
) -> Float[Array, "... n"]:
    """`gamma_{i alpha_i} - max over T_i of gamma_it` for each input; infinity for an input without neighbours."""
    alpha = checked_selection(problem, selected)
    return gaps_over(problem.scores, alpha, neighbours(problem, p, alpha, tolerance=tolerance))


def near_tokens(
    logits: Float[Array, "... n T"], selected: Int[Array, "... n"], *, tolerance: float = NEIGHBOUR_TOLERANCE
) -> Bool[Array, "... n T"]:
    """Tokens whose logit is at most 1 below that of the selected token; leading axes are a stack of problems.

    Minus infinity in `logits` marks a position without a token.
    """
    near = lead_over(logits, selected) <= 1 + tolerance
    np.put_along_axis(near, np.broadcast_to(selected, near.shape[:-1])[..., None], False, axis=-1)
    return near


def gaps_over(
    scores: Float[Array, "... n T"], selected: Int[Array, "... n"], near: Bool[Array, "... n T"]
) -> Float[Array, "... n"]:
    """Score of the selected token less the best among those `near` it; infinity where there is none."""
    return np.asarray(_selected_entries(scores, selected)[..., 0] - np.where(near, scores, -np.inf).max(axis=-1))


def lead_over(logits: Float[Array, "... n T"], selected: Int[Array, "... n"]) -> Float[Array, "... n T"]:
    """How far the logit of the selected token is above that of each token of its input."""
    return np.asarray(_selected_entries(logits, selected) - logits)


def _selected_entries(tokens: Float[Array, "... n T"], selected: Int[Array, "... n"]) -> Float[Array, "... n 1"]:
    """The entry of the selected token of every input; leading axes of the two arguments are broadcast."""
    lead = np.broadcast_shapes(tokens.shape[:-1], selected.shape)
    full = np.broadcast_to(tokens, (*lead, tokens.shape[-1]))
    return np.take_along_axis(full, np.broadcast_to(selected, lead)[..., None], axis=-1)


def tokens_of_equal_score(problem: TokenProblem, selected: Int[Array, "... n"]) -> Bool[Array, "... n T"]:
    """Tokens with the score of the selected token, itself included; training does not prefer one to another."""
    scores = problem.shared_scores
    return np.asarray(problem.mask & (scores == _selected_entries(scores, selected)))


def copies_of(problem: TokenProblem, selected: Int[Array, " n"]) -> Bool[Array, "n T"]:
    """The selected tokens and their copies."""
    first = problem.keys.first_copies
    return np.asarray(problem.mask & (first == first[np.arange(problem.n), selected][:, None]))


def named_sets(chosen: Bool[Array, "n T"]) -> list[int | list[int]]:
    """A selection in plain numbers: the token of each input, or the list of them where a set is selected.

    >>> named_sets(np.array([[True, False, False], [False, True, True]]))
    [0, [1, 2]]
    """
    tokens = [np.flatnonzero(row).tolist() for row in chosen]
    return [row[0] if len(row) == 1 else row for row in tokens]


def selection_text(chosen: Bool[Array, "n T"]) -> str:
    """A selection in a line of text; tokens that are selected together are joined by a plus.

    >>> selection_text(np.array([[True, False, False], [False, True, True]]))
    'A1 B2+B3'
    """
    return " ".join("+".join(token_name(i, t) for t in np.flatnonzero(row).tolist()) for i, row in enumerate(chosen))


def is_locally_optimal(problem: TokenProblem, p: Float[Array, " D"], selected: Selection) -> bool:
    """Whether every selected token outscores its SVM-neighbours strictly (Definition 2): `p` is an LMM direction."""
    return bool((score_gaps(problem, p, selected) > 0).all())


def checked_token_sets(problem: TokenProblem, selection: Bool[Array, "n T"]) -> Bool[Array, "n T"]:
    """Validate a set of tokens per input, none empty, and return it as a boolean array."""
    chosen = np.asarray(selection)
    if chosen.dtype != bool or chosen.shape != problem.mask.shape:
        raise ValueError(
            f"a selection with ties must be booleans of shape (n, T) = {problem.mask.shape}, "
            f"got {chosen.dtype} {chosen.shape}"
        )
    hidden = chosen & ~problem.mask
    if hidden.any():
        i, t = np.argwhere(hidden)[0].tolist()
        raise ValueError(f"selected token {t} of input {i} is hidden by the mask; select visible tokens")
    if not chosen.any(axis=1).all():
        raise ValueError(f"input {int(chosen.any(axis=1).argmin())} has no selected token; select at least one")
    return chosen


def selected_tokens(
    keys: AbstractGeometry, p: Float[Array, " D"], *, tolerance: float = NEIGHBOUR_TOLERANCE
) -> Bool[Array, "n T"]:
    """All tokens of largest logit in each input: `S_X(p)` of *Attention with Trained Embeddings* (8).

    Logits within `tolerance` of the largest, relative to the spread of all logits, are tied with it.
    """
    logits = np.where(keys.mask, keys.logits(p), -np.inf)
    visible = logits[keys.mask]
    return np.asarray(logits >= logits.max(axis=1, keepdims=True) - tolerance * np.ptp(visible))


def directional_margin(keys: AbstractGeometry, q: Float[Array, " D"]) -> float:
    """`Gamma_q` of (60): how far the selected tokens of `q` are ahead of all others, at the least.

    Infinity when no input has a second token; zero when `q` ties two tokens at the top.
    """
    return float(leads(keys, q, select(keys, q)).min())


def directional_neighbours(
    keys: AbstractGeometry, q: Float[Array, " D"], *, tolerance: float = NEIGHBOUR_TOLERANCE
) -> Bool[Array, "n T"]:
    """`M_q` of (61): the tokens at the directional margin, up to `tolerance` relative to the margin."""
    ahead = leads(keys, q, select(keys, q))
    least = ahead.min()
    return np.asarray(np.isfinite(ahead) & (ahead <= least + tolerance * abs(least)))


def is_neighbour_optimal(problem: TokenProblem, q: Float[Array, " D"]) -> bool:
    """Whether every selected token of `q` outscores its directional neighbours strictly (Definition 3)."""
    alpha, near = select(problem.keys, q), directional_neighbours(problem.keys, q)
    ahead = problem.scores[np.arange(problem.n), alpha][:, None] > problem.scores
    return bool(ahead[near].all())


@dataclass(frozen=True)
class ConeConstants:
    """A cone around an LMM direction that holds no stationary point beyond a radius (Lemma 7, Theorem 3).

    **Attributes**
    - `theta`: the margin `1 / |p^mm|`.
    - `delta`: half the distance of the nearest non-neighbour from the neighbours, in logits; infinity without one.
    - `reach`: `A`, the longest key over `theta`.
    - `mu`: the cone holds the directions of cosine at least `1 - mu` with `p^mm`.
    - `spread`: `Gamma`, the largest score difference within an input.
    - `gap`: the smallest score gap over the neighbours.
    - `radius`: the cone holds no stationary point of at least this norm.
    """

    theta: float
    delta: float
    reach: float
    mu: float
    spread: float
    gap: float
    radius: float


def cone_constants(
    problem: TokenProblem, p: Float[Array, " D"], selected: Selection, *, as_printed: bool = False
) -> ConeConstants:
    """Width and radius of the cone of Lemma 7 at the max-margin solution `p` of a locally optimal selection.

    The lemma says that there is such a cone. Its proof gives one by (32) and (39); `as_printed` returns that one. It
    looks for delta only in inputs that have SVM-neighbours and bounds each input by itself, so that it is too wide
    where an input has no neighbours (`B.lemma7-proof-constants`). By default delta is taken over the non-neighbours of
    all inputs; only half of it is used, since neighbours move closer within the cone; and the radius is so large that
    the neighbours of one input outweigh the non-neighbours of all n.
    """
    alpha = checked_selection(problem, selected)
    gap = float(score_gaps(problem, p, alpha).min())
    if not gap > 0:
        raise ValueError(
            f"the cone is defined at a locally optimal selection; the smallest score gap here is {gap:g}, not positive"
        )
    near, ahead = neighbours(problem, p, alpha), margins(problem, p, alpha)
    far = problem.mask & ~near
    far[np.arange(problem.n), alpha] = False
    counted = far & near.any(axis=1, keepdims=True) if as_printed else far
    delta = 0.5 * float((ahead[counted] - 1).min(initial=np.inf))
    theta = 1 / float(problem.keys.norm(p))
    reach = float(problem.keys.vector_norms[problem.keys.index[problem.mask]].max()) / theta
    scores = np.where(problem.mask, problem.scores, np.nan)
    spread = float((np.nanmax(scores, axis=1) - np.nanmin(scores, axis=1)).max())
    inner, inputs = (delta, 1) if as_printed else (delta / 2, problem.n)
    return ConeConstants(
        theta=theta,
        delta=delta,
        reach=reach,
        mu=(min(0.5, inner) / reach) ** 2 / 8,
        spread=spread,
        gap=gap,
        radius=max(2, 1 / delta) / theta * math.log(64 * inputs * problem.T * spread * reach / gap),
    )
