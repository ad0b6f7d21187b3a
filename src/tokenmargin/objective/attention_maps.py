"""Attention maps: how logits become weights. Softmax with a temperature, sparsemax, entmax, sigmoid, or your own.

A map gives the weights of a row of logits, and the product of their derivative with a vector; training needs no more.
A logit of minus infinity marks a position without a token, whose weight must be zero.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.special import expit

from tokenmargin.objective.attention import AbstractObjective, PromptObjective
from tokenmargin.objective.forward import Descent, Linearisation, exp_with_slopes, join_blocks, make_block, unit_descent
from tokenmargin.plugins import find
from tokenmargin.problem.geometry import in_coordinates

_HALVINGS = 60  # of an interval no longer than 1, which holds entmax's threshold
_NOTHING = 1e-17  # a step of the threshold, which lies in -1..0, that changes nothing


class AttentionMap(abc.ABC):
    """How the logits of an input become the weights of its tokens.

    - `margin`: how far in logits a token must be ahead of the others for all the weight to be its own, exactly;
      infinity where it never is.
    - `shares`: whether the weights of an input always sum to 1.
    """

    margin: float = np.inf
    shares: bool = True

    @abc.abstractmethod
    def weights(self, logits: Float[Array, "... n T"]) -> Float[Array, "... n T"]:
        """The weights `s(z)` of each row of logits."""

    @abc.abstractmethod
    def vjp(self, logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]) -> Float[Array, "... n T"]:
        """The gradient of `<s(z), scores>` in the logits: the derivative of the weights, transposed, times scores."""

    def log_vjp(
        self, logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]
    ) -> tuple[Float[Array, "... n T"], Float[Array, "... n T"]]:
        """Logarithm of the size and sign of `vjp`, for maps whose derivative underflows."""
        product = self.vjp(logits, scores)
        with np.errstate(divide="ignore"):
            return np.log(np.abs(product)), np.sign(product)

    def curvature(
        self, logits: Float[Array, "n T"], scores: Float[Array, "n T"], log_scale: Float[Array, " n"]
    ) -> Float[Array, "n T T"]:
        """The second derivative of `<s(z), scores>` in the logits, over `exp(log_scale)`; gradient flow asks for it."""
        raise TypeError(f"{type(self).__name__} has no curvature, which gradient flow needs; train by descent")


@dataclass(frozen=True)
class Softmax(AttentionMap):
    """`exp(z / temperature)` over its sum. At temperature 1 it is the attention of everything else here, to the bit.

    >>> Softmax(temperature=0.5).weights(np.array([[1.0, 0.0]])).round(4)
    array([[0.8808, 0.1192]])
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature must be a positive number, got {self.temperature}")

    def weights(self, logits: Float[Array, "... n T"]) -> Float[Array, "... n T"]:
        logits = logits / self.temperature
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))

    def vjp(self, logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]) -> Float[Array, "... n T"]:
        weights = self.weights(logits)
        return np.asarray(weights * (scores - (weights * scores).sum(axis=-1, keepdims=True)) / self.temperature)


@dataclass(frozen=True)
class Entmax(AttentionMap):
    """`[(alpha - 1) z - threshold]_+^(1 / (alpha - 1))`, the threshold such that the weights sum to 1.

    Between softmax (alpha = 1) and sparsemax (alpha = 2), and beyond. A token ahead by `1 / (alpha - 1)` has all the
    weight: p reaches it at a finite length, and then its gradient is exactly zero.

    >>> Entmax(1.5).weights(np.array([[2.0, 0.0], [0.5, 0.0]])).round(3)
    array([[1.   , 0.   ],
           [0.674, 0.326]])
    """

    alpha: float = 1.5

    def __post_init__(self) -> None:
        if not (np.isfinite(self.alpha) and self.alpha > 1):
            raise ValueError(f"alpha must be above 1 (where entmax is softmax), got {self.alpha}")

    @property
    def margin(self) -> float:  # type: ignore[override]
        return 1 / (self.alpha - 1)

    def weights(self, logits: Float[Array, "... n T"]) -> Float[Array, "... n T"]:
        ahead = (self.alpha - 1) * (logits - logits.max(axis=-1, keepdims=True))
        weights = self._power(ahead - self._threshold(ahead))
        # A row whose runner-up is the margin behind has one weight exactly, whatever the rounding of its threshold.
        weights = np.where((ahead <= -1).sum(axis=-1, keepdims=True) == ahead.shape[-1] - 1, ahead == 0, weights)
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))

    def _threshold(self, ahead: Float[Array, "... n T"]) -> Float[Array, "... n 1"]:
        """The threshold at which the weights of each row sum to 1.

        It is at least -1, where the largest logit alone has weight 1, and at most its value for equal logits. Up to
        alpha = 2 the sum is convex in the threshold and Newton's method rises to it from below; beyond, the interval is
        halved.
        """
        count = np.isfinite(ahead).sum(axis=-1, keepdims=True)
        low, high = np.full(count.shape, -1.0), -(count ** (1 - self.alpha))
        for _ in range(_HALVINGS):
            if self.alpha <= 2:
                over = self._power(ahead - low).sum(axis=-1, keepdims=True) - 1
                slopes = np.maximum(ahead - low, 0.0) ** (1 / (self.alpha - 1) - 1)
                slope = slopes.sum(axis=-1, keepdims=True, where=ahead > low)
                step = np.maximum(over, 0.0) * (self.alpha - 1) / slope
                if not (step > _NOTHING).any():
                    break
                low = np.minimum(low + step, high)
            else:
                middle = (low + high) / 2
                above = self._power(ahead - middle).sum(axis=-1, keepdims=True) >= 1
                low, high = np.where(above, middle, low), np.where(above, high, middle)
        return low

    def vjp(self, logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]) -> Float[Array, "... n T"]:
        tilted, centred = self._support_weights(logits, scores)
        return np.asarray(tilted * centred)

    def curvature(
        self, logits: Float[Array, "n T"], scores: Float[Array, "n T"], log_scale: Float[Array, " n"]
    ) -> Float[Array, "n T T"]:
        weights = self.weights(logits)
        tilted, centred = self._support_weights(logits, scores)
        with np.errstate(divide="ignore"):
            bend = np.where(weights > 0, weights, 1.0) ** (3 - 2 * self.alpha) * (2 - self.alpha) * centred
        bend = np.where(weights > 0, bend, 0.0)
        off = np.eye(logits.shape[-1]) - (tilted / tilted.sum(axis=-1, keepdims=True))[:, None, :]
        scale = np.exp(np.minimum(-log_scale, 300.0))[:, None, None]  # where nothing pulls, as large as sums allow
        return np.asarray(np.einsum("nts,nt,ntu->nsu", off, bend, off) * scale)

    def _power(self, x: Float[Array, "... n T"]) -> Float[Array, "... n T"]:
        return np.asarray(np.maximum(x, 0.0) ** (1 / (self.alpha - 1)))

    def _support_weights(
        self, logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]
    ) -> tuple[Float[Array, "... n T"], Float[Array, "... n T"]]:
        """`s^(2 - alpha)` on the support, and the scores less their mean under it."""
        weights = self.weights(logits)
        tilted = np.where(weights > 0, np.where(weights > 0, weights, 1.0) ** (2 - self.alpha), 0.0)
        mean = (tilted * scores).sum(axis=-1, keepdims=True) / tilted.sum(axis=-1, keepdims=True)
        return tilted, np.where(tilted > 0, scores - mean, 0.0)


@dataclass(frozen=True)
class Sparsemax(Entmax):
    """The nearest point of the simplex to the logits, by sorting: entmax with alpha = 2.

    A token ahead by 1 has all the weight. So the p at which every input attends to one token are those that the
    max-margin problem of that selection allows, and the shortest of them is its solution.

    >>> Sparsemax().weights(np.array([[1.0, 0.0, -3.0], [0.5, 0.0, 0.0]]))
    array([[1.        , 0.        , 0.        ],
           [0.66666667, 0.16666667, 0.16666667]])
    """

    alpha: float = field(default=2.0, init=False)

    def weights(self, logits: Float[Array, "... n T"]) -> Float[Array, "... n T"]:
        ahead = logits - logits.max(axis=-1, keepdims=True)
        ranked = -np.sort(-ahead, axis=-1)
        counts = np.arange(1, logits.shape[-1] + 1)
        sums = np.where(np.isfinite(ranked), ranked, 0.0).cumsum(axis=-1)
        support = np.isfinite(ranked) & (1 + counts * ranked > sums)
        size = support.sum(axis=-1, keepdims=True)
        threshold = (np.take_along_axis(sums, size - 1, axis=-1) - 1) / size
        return np.asarray(np.maximum(ahead - threshold, 0.0))


@dataclass(frozen=True)
class Sigmoid(AttentionMap):
    """`1 / (1 + exp(-(z + bias)))`: every token for itself. Training separates the tokens that help from the others."""

    bias: float = 0.0
    shares = False

    def __post_init__(self) -> None:
        if not np.isfinite(self.bias):
            raise ValueError(f"bias must be finite, got {self.bias}")

    def weights(self, logits: Float[Array, "... n T"]) -> Float[Array, "... n T"]:
        return np.asarray(expit(logits + self.bias))

    def vjp(self, logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]) -> Float[Array, "... n T"]:
        sizes, signs = self.log_vjp(logits, scores)
        return np.asarray(signs * np.exp(sizes))

    def log_vjp(
        self, logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]
    ) -> tuple[Float[Array, "... n T"], Float[Array, "... n T"]]:
        far = np.abs(logits + self.bias)
        with np.errstate(divide="ignore"):
            return np.asarray(-far - 2 * np.log1p(np.exp(-far)) + np.log(np.abs(scores))), np.sign(scores)

    def curvature(
        self, logits: Float[Array, "n T"], scores: Float[Array, "n T"], log_scale: Float[Array, " n"]
    ) -> Float[Array, "n T T"]:
        sizes, signs = self.log_vjp(logits, scores)
        bend = -signs * np.exp(np.minimum(sizes - log_scale[:, None], 300.0)) * np.tanh((logits + self.bias) / 2)
        return np.asarray(np.where(np.isneginf(logits), 0.0, bend)[:, :, None] * np.eye(logits.shape[-1]))


def attention_named(name: str) -> AttentionMap:
    """softmax, sparsemax, entmax, sigmoid, with a number if need be (`entmax=1.25`, `softmax=0.5`, `sigmoid=-2`), a map
    that another package adds, or the one at `MODULE:OBJECT`.

    >>> attention_named("entmax=1.25"), attention_named("sparsemax")
    (Entmax(alpha=1.25), Sparsemax(alpha=2.0))
    """
    plain, equals, number = name.partition("=")
    found: AttentionMap = find("attention_maps", plain)
    if not equals:
        return found
    kinds: dict[type[AttentionMap], type[AttentionMap]] = {kind: kind for kind in (Softmax, Entmax, Sigmoid)}
    kind = kinds.get(type(found))
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"{name!r}: what follows {plain}= must be a number") from None
    if kind is None:
        raise ValueError(f"{name!r}: {plain} takes no number; softmax, entmax and sigmoid do")
    return kind(value)  # type: ignore[call-arg]


@dataclass(frozen=True)
class MapObjective(AbstractObjective):
    """The risk as a function of p under any attention map; the head is fixed.

    >>> from tokenmargin.problem.instances import figure1b
    >>> objective = MapObjective(figure1b(), attention=Sparsemax())
    >>> objective.weights(np.array([0.0, 0.5, 0.0])).round(3)
    array([[0.667, 0.167, 0.167]])
    """

    attention: AttentionMap = field(kw_only=True)

    def __post_init__(self) -> None:
        PromptObjective(self.problem, self.loss)  # it refuses labels that do not fit
        if not isinstance(self.attention, AttentionMap):
            raise TypeError(
                f"attention must be an AttentionMap such as Sparsemax(), got {self.attention!r}; attention_named finds "
                "one by name"
            )

    @property
    def merged(self) -> AbstractObjective:
        return replace(self, problem=self.problem.merged)

    @property
    def constant_scores(self) -> Float[Array, "n T"] | None:
        return self.problem.shared_scores

    @property
    def has_kinks(self) -> bool:
        return bool(np.isfinite(self.attention.margin))

    def has_exact_weights(self, theta: Float[Array, " D"]) -> bool:
        keys = self.problem.keys
        distinct = keys.first_copies == np.arange(self.problem.T)  # copies have equal weights, and count as one
        return self.has_kinks and bool(((self.weights(theta) > 0) & distinct).sum(axis=-1).max(initial=0) == 1)

    def weights(self, theta: Float[Array, "... D"]) -> Float[Array, "... n T"]:
        return self.attention.weights(self.problem.keys.logits(theta))

    def saturation(self, theta: Float[Array, "... D"]) -> Float[Array, "..."]:
        """Mean over the inputs of the selected weight; of weights that do not sum to 1, how near they are to 0 or 1."""
        if self.attention.shares:
            return super().saturation(theta)
        weights = self.weights(theta)
        return np.asarray(np.maximum(weights, 1 - weights)[..., self.problem.mask].mean(axis=-1))

    def outputs(self, theta: Float[Array, "... D"]) -> Float[Array, "... n"]:
        if isinstance(self.attention, Softmax):
            return self._softmax.outputs(theta / self.attention.temperature)
        return np.asarray((self.weights(theta) * self.problem.scores).sum(axis=-1))

    def descent(self, theta: Float[Array, "... D"]) -> Descent:
        if isinstance(self.attention, Softmax):
            direction, log_norm = self._softmax.descent(theta / self.attention.temperature)
            return Descent(direction, log_norm - np.log(self.attention.temperature))
        keys = self.problem.keys
        logits = keys.logits(theta)
        sizes, signs = self._log_pulls(logits, np.broadcast_to(self.problem.scores, logits.shape))
        pulls, log_scale = exp_with_slopes(self.loss.log_slope(self.outputs(theta)), sizes)
        return unit_descent(keys, signs * pulls, log_scale[..., None] - np.log(keys.n))

    def linearise(self, theta: Float[Array, " D"]) -> Linearisation:
        if isinstance(self.attention, Softmax):
            found, temperature = self._softmax.linearise(theta / self.attention.temperature), self.attention.temperature
            descent = found.descent._replace(log_norm=found.descent.log_norm - np.log(temperature))
            return found._replace(descent=descent, jacobian=found.jacobian / temperature)
        logits, keys = self.problem.keys.logits(theta), in_coordinates(self.problem.keys)
        if self.attention.shares:  # the pulls of an input sum to zero: its keys are seen from one of them
            keys = keys - np.take_along_axis(keys, logits.argmax(axis=1)[:, None, None], axis=1)
        keys = np.where(self.problem.mask[..., None], keys, 0.0)
        sizes, signs = self._log_pulls(logits, self.problem.scores)
        output = self.outputs(theta)
        log_slope, bend = self.loss.log_slope(output), self.loss.log_slope_derivative(output)
        pulls, scale = exp_with_slopes(log_slope, sizes)
        terms = (signs * pulls)[..., None] * keys
        pull = terms.sum(axis=1)
        slope = np.einsum("nt,ntr->nr", signs * np.exp(sizes), keys)
        curvature = self.attention.curvature(logits, self.problem.scores, scale - log_slope)
        own = np.einsum("ntr,ntu,nuq->rq", keys, curvature, keys) + np.einsum("nr,n,nq->rq", pull, bend, slope)
        return join_blocks((make_block(pull.sum(axis=0), terms, float(scale), (own,)),), self.problem.n)

    def _log_pulls(
        self, logits: Float[Array, "... n T"], scores: Float[Array, "... n T"]
    ) -> tuple[Float[Array, "... n T"], Float[Array, "... n T"]]:
        """Logarithms of how much each token pulls along its key, and the signs.

        Of weights that do not share, that of a token whose key is zero never falls and moves nothing: it does not
        count, or all others would be lost beside it.
        """
        sizes, signs = self.attention.log_vjp(logits, scores)
        if not self.attention.shares:
            sizes = np.where(self.problem.keys.token_norms > 0, sizes, -np.inf)
        return sizes, signs

    @property
    def _softmax(self) -> PromptObjective:
        return PromptObjective(self.problem, self.loss)
