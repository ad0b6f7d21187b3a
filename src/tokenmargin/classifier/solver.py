"""Training of the one-layer classifier on all the data at once, with two sparse products a step.

With C the 0/1 matrix of which text holds which token, `f = b_0 + N / Z^g` is made of `[N, Z] = C [e^a b, e^a]` (and e^c
in Z), and with `G = dL/df` and `H = -g sum_k G_k (f_k - b_0k) / Z`, the loss of Z,

    dL/db = e^a C'(G / Z^g),    dL/da = e^a (b . C'(G / Z^g) + C' H),    dL/dc = e^c sum H,

so a step costs C times a thin matrix and C' times another, whatever the dimension of the embeddings would be: the
decision depends on E, p and v only through a and b, and these are what is trained.

The attention starts at naive Bayes: `e^{a_s} = |r_s| + LEAST_ATTENTION`, where r is the log ratio of a token's smoothed
shares in a class and outside it. The values b start at zero. A ridge penalises the changes of both; without it the
model would not generalise. For b the ridge is measured in units `d_s = i_s (|r_s| + LEAST_UNIT)^power / e^{a_s}`, with
the rarity `i_s = 1 + log(n / n_s)` and an r that is smoothed less. They are scaled so that the features of a text,
`e^{a_s} d_s / Z^g`, have length 1 on average: so the ridge means the same for short and for long texts. Power 0,
g = 1/2 and a small sink are near TF-IDF with texts scaled to length 1. With more than two classes r has a column for
each: the attention is shared and follows the largest of them, the units are those of each class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.optimize import minimize
from scipy.special import log_softmax

from tokenmargin.classifier.token_model import TokenModel

LEAST_ATTENTION = 0.1  # e^a of a token that tells nothing of the classes
SMOOTHING = 3.0  # texts with a token that are added to each class, so that no rare token is selected by chance
LEAST_UNIT, UNIT_SMOOTHING = 0.05, 1.0  # the same for the units; less is enough, since the ridge limits values anyway
SINK_RIDGE = 0.1
SINK_POWER = 5  # e^c starts at g^5 times the sum of a typical text: as large at g = 1, nearly nothing for small g
THREADS = 2


@dataclass(frozen=True)
class Penalty:
    """The ridge on the changes of the logits (infinite: they stay) and on the values, beside the sum of the losses."""

    logits: float
    values: float


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """Texts as a matrix of tokens, with their classes and weights.

    **Attributes**
    - `matrix`: how often each token counts in each text.
    - `codes`: the class of each text, as a number below `k`. `weight`: as how many texts each counts.
    - `counted`: whether every occurrence of a token counts; if not, `matrix` is 1 where a text holds a token.
    """

    matrix: sp.csr_matrix
    codes: Int[Array, " n"]
    weight: Float[Array, " n"]
    k: int
    counted: bool = False

    @cached_property
    def presence(self) -> sp.csr_matrix:
        """1 where a text holds a token."""
        m = self.matrix
        return sp.csr_matrix((np.ones(m.nnz), m.indices, m.indptr), shape=m.shape) if self.counted else m

    def part(self, rows: Array) -> LabelledTexts:
        """The texts of some rows."""
        return replace(self, matrix=self.matrix[rows], codes=self.codes[rows], weight=self.weight[rows])

    def of_tokens(self, kept: Int[Array, " kept"]) -> LabelledTexts:
        """All texts with some of the tokens."""
        return replace(self, matrix=self.matrix[:, kept])

    def with_counts(self, repeats: bool) -> LabelledTexts:
        """The same texts; every occurrence of a token counts if `repeats`, else every token counts once."""
        return self if repeats else replace(self, matrix=self.presence, counted=False)

    @cached_property
    def token_weights(self) -> tuple[Float[Array, " m"], Float[Array, "m columns"]]:
        """How well each token tells the classes apart: for the attention, and smoothed less for the units."""
        texts = np.stack([self.presence.T @ (self.weight * (self.codes == c)) for c in range(self.k)], axis=1)
        attention = LEAST_ATTENTION + np.abs(naive_bayes(texts, SMOOTHING)).max(axis=1, initial=0.0)
        return attention, LEAST_UNIT + np.abs(naive_bayes(texts, UNIT_SMOOTHING))

    @cached_property
    def rarity(self) -> Float[Array, " m"]:
        """`1 + log(n / n_s)` for a token of n_s of n texts."""
        return 1 + np.log((1 + self.weight.sum()) / (1 + self.presence.T @ self.weight)).clip(0)

    @cached_property
    def products(self) -> ThreadedMatrix:
        """The matrix, prepared for products with it and with its transpose."""
        return ThreadedMatrix(self.matrix)

    @property
    def shares(self) -> Float[Array, " k"]:
        """The share of each class in the weight of all texts."""
        return np.maximum(np.bincount(self.codes, self.weight, self.k) / self.weight.sum(), 1e-12)


def join_labelled(parts: Sequence[LabelledTexts]) -> LabelledTexts:
    """The texts of several parts, which have the same tokens."""
    codes, weight = (np.concatenate([getattr(part, name) for part in parts]) for name in ("codes", "weight"))
    matrix = sp.vstack([part.matrix for part in parts], format="csr")
    return replace(parts[0], matrix=matrix, codes=codes, weight=weight)


def naive_bayes(texts: Float[Array, "m k"], smoothing: float) -> Float[Array, "m columns"]:
    """Log of the ratio of a token's smoothed shares inside and outside a class; one column for two classes.

    **Arguments**
    - `texts`: how many texts of each class hold each token. `smoothing`: how many are added to each.
    """
    inside = texts + smoothing
    outside = np.zeros_like(inside)  # summed, not the total less `inside`: beside a weight of 1e16 that would be 0
    outside[:, 1:] += np.cumsum(inside, axis=1)[:, :-1]
    outside[:, :-1] += np.cumsum(inside[:, ::-1], axis=1)[:, -2::-1]
    ratio = np.log(inside / inside.sum(0)) - np.log(outside / outside.sum(0))
    return np.asarray(ratio[:, 1:] if texts.shape[1] == 2 else ratio)


def class_prior(shares: Float[Array, " k"]) -> Float[Array, " columns"]:
    """The f that gives the shares as probabilities: log odds of the second of two classes, else centred logarithms."""
    return np.asarray(np.log(shares[1:] / shares[0]) if len(shares) == 2 else np.log(shares) - np.log(shares).mean())


def start_model(
    data: LabelledTexts, power: float | None, exponent: float
) -> tuple[TokenModel, Float[Array, "m columns"]]:
    """The model that training starts from, and the units of b; its values are zero, so every text gets the base rate.

    **Arguments**
    - `power`: of naive Bayes in the units; None gives all tokens the same attention and unit.
    - `exponent`: g.
    """
    m, prior = data.matrix.shape[1], class_prior(data.shares)
    logits, units = np.zeros(m), np.ones((m, 1))
    if power is not None:
        attention, telling = data.token_weights
        logits, units = np.log(attention), (data.rarity / attention)[:, None] * telling**power
    typical = _weighted_median(data.matrix @ np.exp(logits), data.weight) if m else 1.0
    sink = np.log(max(typical * exponent**SINK_POWER, 1e-9))
    values = np.zeros((m, len(prior)))
    return TokenModel(logits, values, float(sink), prior, prior, exponent, data.counted), units


def _weighted_median(values: Float[Array, " n"], weight: Float[Array, " n"]) -> float:
    """The median of values of which each counts `weight` times."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    middle = (
        np.searchsorted(reached, 0.5 * reached[-1], side="left"),
        np.searchsorted(reached, 0.5 * reached[-1], "right"),
    )
    return float(np.mean([values[order[min(at, len(order) - 1)]] for at in middle]))


@dataclass(eq=False)
class ThreadedMatrix:
    """A sparse matrix and its transpose, each cut into blocks of rows for two threads; the cut changes no digit."""

    matrix: sp.csr_matrix
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._rows, self._columns = self._blocks(self.matrix), self._blocks(self.matrix.T.tocsr())

    def _blocks(self, matrix: sp.csr_matrix) -> list[sp.csr_matrix]:
        if matrix.nnz < 1 << 18:
            return [matrix]
        bounds = np.searchsorted(matrix.indptr, np.linspace(0, matrix.nnz, THREADS + 1)[1:-1])
        edges = [0, *bounds.tolist(), matrix.shape[0]]
        return [matrix[low:high] for low, high in pairwise(edges)]

    def _times(self, blocks: list[sp.csr_matrix], dense: Array) -> Array:
        if len(blocks) == 1:
            return np.asarray(blocks[0] @ dense)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS)
        return np.concatenate(list(self._pool.map(lambda block: block @ dense, blocks)))

    def product(self, columns: Array) -> Array:
        """Product with the matrix."""
        return self._times(self._rows, columns)

    def transpose_product(self, dense: Array) -> Array:
        """Product with the transpose."""
        return self._times(self._columns, dense)


def log_loss(f: Array, classes: Array, share: Array) -> tuple[float, Array]:
    """Mean loss, logistic for one column and multinomial for more, and its gradient in f."""
    if f.shape[1] == 1:
        y = np.where(classes == 1, 1.0, -1.0)
        margin = y * f[:, 0]
        small = np.exp(-np.abs(margin))  # log(1 + e^-margin) and its slope by one exponential that never overflows
        wrong = np.where(margin > 0, small, 1.0) / (1 + small)
        return float(share @ (np.log1p(small) - np.minimum(margin, 0.0))), (-y * share * wrong)[:, None]
    logs = log_softmax(f, axis=1)
    slope = np.exp(logs)
    rows = np.arange(len(f))
    slope[rows, classes] -= 1.0
    return -float(share @ logs[rows, classes]), slope * share[:, None]


def squared_hinge(f: Array, classes: Array, share: Array) -> tuple[float, Array]:
    """Mean squared hinge, of each class against the rest if there are more than two, and its gradient in f."""
    if f.shape[1] == 1:
        signs = np.where(classes == 1, 1.0, -1.0)[:, None]
    else:
        signs = -np.ones_like(f)
        signs[np.arange(len(f)), classes] = 1.0
    short = np.maximum(1 - signs * f, 0.0)
    return float(share @ (short * short).sum(1)), -2 * signs * short * share[:, None]


LOSSES = {"log": log_loss, "hinge": squared_hinge}


def _base_rate_loss(loss: str, shares: Float[Array, " k"]) -> float:
    """The loss of the best constant f: the entropy, or the sum over columns of `4 q (1 - q)`, q the class's share."""
    if loss == "log":
        return -float(shares @ np.log(shares))
    q = shares[1:] if len(shares) == 2 else shares
    return float(4 * (q * (1 - q)).sum())


class TokenObjective:
    """The regularised loss of labelled texts and its gradient, as a function of a flat array of unknowns.

    The unknowns are the values over their units, the intercepts, and, unless the attention stays, the changes of the
    logits and of the sink's logit from `origin`. `flat` and `model` translate between them and a model. The loss is
    divided by that of the base rate alone, so that a tolerance means the same for even and for uneven classes.
    """

    def __init__(
        self,
        data: LabelledTexts,
        *,
        origin: TokenModel,
        units: Float[Array, "m columns"],
        penalty: Penalty,
        loss: str = "log",
    ) -> None:
        self._data, self._loss = data.products, LOSSES[loss]
        total = float(data.weight.sum())
        shares = data.shares
        self._classes, self._share = data.codes, data.weight / total
        self._scale = 1 / max(_base_rate_loss(loss, shares), 1e-3)
        self._origin, self._fixed = origin, bool(np.isinf(penalty.logits))
        self._e = np.exp(origin.logits)
        Z = self._data.product(self._e) + np.exp(origin.sink_logit)
        self._power = (Z**-origin.exponent)[:, None]  # of the attention that stays
        squares = data.matrix.power(2).dot if data.counted else self._data.product
        lengths = squares((self._e[:, None] * units) ** 2).mean(1) * self._power[:, 0] ** 2
        self._unit = units / max(float(np.sqrt(self._share @ lengths)), 1e-12)
        self._scaled = self._unit * self._e[:, None]
        self._ridge = 0.0 if self._fixed else penalty.logits / total
        self._value_ridge = penalty.values / total
        m, k = origin.values.shape
        self._split = np.cumsum([m * k, k, m])[: 1 if self._fixed else 3]

    def flat(self, model: TokenModel) -> Float[Array, " unknowns"]:
        """The unknowns that describe a model."""
        parts = [(model.values / self._unit).ravel(), model.intercept]
        if not self._fixed:
            parts += [model.logits - self._origin.logits, np.array([model.sink_logit - self._origin.sink_logit])]
        return np.concatenate(parts)

    def model(self, flat: Float[Array, " unknowns"]) -> TokenModel:
        """The model that the unknowns describe."""
        w, intercept, *attention = np.split(flat, self._split)
        o = self._origin
        logits, sink = o.logits, o.sink_logit
        if attention:
            logits, sink = logits + attention[0], sink + float(attention[1][0])
        values = self._unit * w.reshape(o.values.shape)
        return replace(o, logits=logits, values=values, sink_logit=sink, intercept=intercept)

    def __call__(self, flat: Float[Array, " unknowns"]) -> tuple[float, Float[Array, " unknowns"]]:
        loss, slope = self._with_attention(flat) if not self._fixed else self._values_alone(flat)
        return self._scale * loss, self._scale * slope

    def _values_alone(self, flat: Array) -> tuple[float, Array]:
        """Loss and gradient where the attention stays: a convex problem with fixed features."""
        w, intercept = np.split(flat, self._split)
        values = self._scaled * w.reshape(self._origin.values.shape)
        loss, g = self._loss(intercept + self._data.product(values) * self._power, self._classes, self._share)
        back = self._scaled * self._data.transpose_product(g * self._power)
        return (
            loss + 0.5 * self._value_ridge * float(w @ w),
            np.concatenate([back.ravel() + self._value_ridge * w, g.sum(0)]),
        )

    def _with_attention(self, flat: Array) -> tuple[float, Array]:
        """Loss and gradient where the attention is trained too."""
        model, k = self.model(flat), self._origin.values.shape[1]
        columns, sink, top = model.exponentials()
        sums, e = self._data.product(columns), columns[:, -1]
        Z = sums[:, -1:] + sink
        # All sums are over e^top, and so is Z: this factor gives N / Z^g from them.
        power = np.exp((1 - model.exponent) * top) * Z**-model.exponent
        evidence = sums[:, :-1] * power
        loss, g = self._loss(model.intercept + evidence, self._classes, self._share)
        pulled = -model.exponent * (g * evidence).sum(1, keepdims=True) / Z
        h = self._data.transpose_product(np.concatenate([g * power, pulled], axis=1))
        w, _, da, (ds,) = np.split(flat, self._split)
        along = e * ((model.values * h[:, :k]).sum(1) + h[:, k]) + self._ridge * da
        values = (self._unit * e[:, None] * h[:, :k]).ravel() + self._value_ridge * w
        into_sink = sink * pulled.sum() + SINK_RIDGE * ds
        loss += 0.5 * (self._ridge * da @ da + self._value_ridge * w @ w + SINK_RIDGE * ds**2)
        return loss, np.concatenate([values, g.sum(0), along, [into_sink]])


def fit_token_model(
    objective: TokenObjective,
    start: TokenModel,
    *,
    iterations: int,
    tolerance: float = 1e-4,
    progress: Callable[[int, float], None] | None = None,
) -> tuple[TokenModel, list[float]]:
    """Lower the loss from `start` by L-BFGS; returns the model and the loss at every iteration.

    **Arguments**
    - `tolerance`: stop once an iteration lowers the loss by less than this part of the base rate's loss.
    """
    losses: list[float] = []

    def note(intermediate_result: object) -> None:
        losses.append(float(intermediate_result.fun))  # type: ignore[attr-defined]
        if progress is not None:
            progress(len(losses), losses[-1])

    options = {"maxiter": iterations, "maxcor": 6, "ftol": tolerance, "gtol": 1e-9}
    found = minimize(objective, objective.flat(start), jac=True, method="L-BFGS-B", callback=note, options=options)  # type: ignore[call-overload]
    return objective.model(found.x), losses
