"""Training of the one-layer classifier on all the data at once, with two sparse products a step.

The decision for class k on a text that holds the tokens S is

    f_k = (e^{a_0} b_0k + sum_{s in S} e^{a_s} b_sk) / Z,    Z = e^{a_0} + sum_{s in S} e^{a_s},

softmax attention with logits `a_s = <E_s, p>` over the distinct tokens of the text and one more, the sink 0, which
every text has. With C the 0/1 matrix of which text holds which token and `g = dL/df`,

    [Z f, Z] = C [e^a b, e^a],    dL/db = e^a C'(g / Z),    dL/da = e^a (b . C'(g / Z) - C'(g . f / Z)),

so a step costs C times a thin matrix and C' times another, whatever the dimension of the embeddings would be: the
decision depends on E, p and v only through a and b, and these are what is trained.

The start is naive Bayes: `a_s = log(|r_s| + SOFT)`, r the log of the ratio of the smoothed shares of a token in the
class and outside it; b starts at zero. Both are held to their start by a ridge, which is what generalises.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.optimize import minimize
from scipy.special import log_softmax

from tokenmargin.classifier.token_model import TokenModel

__all__ = ["SOFT", "Penalty", "TokenObjective", "fit_token_model", "naive_bayes", "start_model"]

SOFT = 0.1  # a token that says nothing keeps some attention
SMOOTHING = 3.0  # texts that hold a token, imagined in each class
SINK_RIDGE = 0.1


@dataclass(frozen=True)
class Penalty:
    """Ridge on the change of the logits (infinite: they stay), and on the values in units of a typical Z."""

    logits: float
    values: float


def naive_bayes(
    presence: sp.csr_matrix, classes: Int[Array, " n"], weight: Float[Array, " n"], k: int
) -> Float[Array, "m columns"]:
    """Log of the ratio of the smoothed shares of each token inside and outside a class: one column for two classes."""
    inside = np.stack([presence.T @ (weight * (classes == c)) for c in range(k)], axis=1) + SMOOTHING
    outside = inside.sum(1, keepdims=True) - inside
    ratio = np.log(inside / inside.sum(0)) - np.log(outside / outside.sum(0))
    return np.asarray(ratio[:, 1:] if k == 2 else ratio)


def start_model(
    presence: sp.csr_matrix, classes: Int[Array, " n"], weight: Float[Array, " n"], k: int, *, uniform: bool = False
) -> TokenModel:
    """Naive Bayes (or uniform) attention; `classes` are 0..k-1 and `weight` says as how many texts each counts."""
    m = presence.shape[1]
    ratio = naive_bayes(presence, classes, weight, k)
    logits = np.log(np.abs(ratio).max(axis=1, initial=0.0) + SOFT) if not uniform else np.zeros(m)
    typical = _median(presence @ np.exp(logits), weight) if m else 1.0
    return TokenModel(logits, np.zeros(ratio.shape), float(np.log(max(typical, SOFT))), np.zeros(ratio.shape[1]))


def _median(values: Float[Array, " n"], weight: Float[Array, " n"]) -> float:
    """The median of values of which each counts `weight` times."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    middle = (
        np.searchsorted(reached, 0.5 * reached[-1], side="left"),
        np.searchsorted(reached, 0.5 * reached[-1], "right"),
    )
    return float(np.mean([values[order[min(at, len(order) - 1)]] for at in middle]))


@dataclass(eq=False)
class _Halves:
    """A sparse matrix and its transpose, cut into two blocks of rows for two threads; the cut changes no digit."""

    matrix: sp.csr_matrix
    threads: int = 2
    _pool: ThreadPoolExecutor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._rows = self._cut(self.matrix)

    def transpose(self) -> None:
        """Prepare products with the transpose."""
        self._columns = self._cut(self.matrix.T.tocsr())

    def _cut(self, matrix: sp.csr_matrix) -> list[sp.csr_matrix]:
        if matrix.nnz < 1 << 18:
            return [matrix]
        bounds = np.searchsorted(matrix.indptr, np.linspace(0, matrix.nnz, self.threads + 1)[1:-1])
        edges = [0, *bounds.tolist(), matrix.shape[0]]
        return [matrix[low:high] for low, high in pairwise(edges)]

    def _times(self, blocks: list[sp.csr_matrix], dense: Array) -> Array:
        if len(blocks) == 1:
            return np.asarray(blocks[0] @ dense)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads)
        return np.concatenate(list(self._pool.map(lambda block: block @ dense, blocks)))

    def decide(self, weights: TokenModel) -> tuple[Array, Array, Array, float]:
        """f, Z, e^a and e^{a_0}, the exponentials scaled alike."""
        columns, sink = weights.exponentials()
        sums = self._times(self._rows, columns)
        Z = sums[:, -1:] + sink
        return (sums[:, :-1] + sink * weights.sink_values) / Z, Z, columns[:, -1], sink

    def back(self, dense: Array) -> Array:
        """Product with the transpose."""
        return self._times(self._columns, dense)


def _loss(f: Array, classes: Array, share: Array) -> tuple[float, Array]:
    """Mean loss, logistic for one column and multinomial for more, and its gradient in f."""
    if f.shape[1] == 1:
        y = np.where(classes == 1, 1.0, -1.0)
        margin = y * f[:, 0]
        slope = -y * share * np.exp(-np.logaddexp(0.0, margin))
        return float(share @ np.logaddexp(0.0, -margin)), slope[:, None]
    logs = log_softmax(f, axis=1)
    slope = np.exp(logs)
    rows = np.arange(len(f))
    slope[rows, classes] -= 1.0
    return -float(share @ logs[rows, classes]), slope * share[:, None]


class TokenObjective:
    """The regularised loss of labelled texts as a function of the flat unknowns of a model, with its gradient.

    The unknowns are the change of the logits from `origin`, the values over the sink's exponential there, then the
    change of the sink's logit, and its values: `flat` and `model` translate.

    **Arguments**
    - `classes`, `weight`: the class of each text, and as how many texts it counts.
    - `origin`: what the ridge pulls the logits to.
    """

    def __init__(
        self,
        presence: sp.csr_matrix,
        classes: Int[Array, " n"],
        weight: Float[Array, " n"],
        *,
        origin: TokenModel,
        penalty: Penalty,
    ) -> None:
        self._data = _Halves(presence)
        self._data.transpose()
        self._classes, self._share = classes, weight / weight.sum()
        self._origin, self._unit = origin, float(np.exp(origin.sink_logit))
        self._fixed = np.isinf(penalty.logits)
        self._ridge, self._value_ridge = 0.0 if self._fixed else penalty.logits, penalty.values
        m, k = origin.values.shape
        self._split = np.cumsum([m, m * k, 1])

    def flat(self, model: TokenModel) -> Float[Array, " unknowns"]:
        """The unknowns of a model."""
        origin = self._origin
        return np.concatenate(
            [model.logits - origin.logits, model.values.ravel() / self._unit, [model.sink_logit - origin.sink_logit],
             model.sink_values]
        )  # fmt: skip

    def model(self, flat: Float[Array, " unknowns"]) -> TokenModel:
        """The model of some unknowns."""
        da, w, ds, b0 = np.split(flat, self._split)
        origin = self._origin
        values = self._unit * w.reshape(origin.values.shape)
        return TokenModel(origin.logits + da, values, origin.sink_logit + float(ds[0]), b0)

    def __call__(self, flat: Float[Array, " unknowns"]) -> tuple[float, Float[Array, " unknowns"]]:
        model, k = self.model(flat), self._origin.values.shape[1]
        f, Z, e, sink = self._data.decide(model)
        loss, g = _loss(f, self._classes, self._share)
        scaled, pulled = g / Z, (g * f).sum(1, keepdims=True) / Z
        h = self._data.back(np.concatenate([scaled, pulled], axis=1))  # C'(g / Z) beside C'(g f / Z)
        da, w, ds, _ = np.split(flat, self._split)
        along = np.zeros(len(da))
        if not self._fixed:
            along = e * ((model.values * h[:, :k]).sum(1) - h[:, k]) + self._ridge * da
        values = self._unit * (e[:, None] * h[:, :k]).ravel() + self._value_ridge * w
        total = scaled.sum(0)
        into_sink = sink * (model.sink_values @ total - pulled.sum()) + SINK_RIDGE * ds[0]
        loss += 0.5 * (self._ridge * da @ da + self._value_ridge * w @ w + SINK_RIDGE * ds[0] ** 2)
        return loss, np.concatenate([along, values, [into_sink], sink * total])


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
    - `tolerance`: stop once an iteration lowers the loss by less than this.
    """
    losses: list[float] = []

    def note(intermediate_result: object) -> None:
        losses.append(float(intermediate_result.fun))  # type: ignore[attr-defined]
        if progress is not None:
            progress(len(losses), losses[-1])

    options = {"maxiter": iterations, "maxcor": 6, "ftol": tolerance, "gtol": 1e-9}
    found = minimize(objective, objective.flat(start), jac=True, method="L-BFGS-B", callback=note, options=options)  # type: ignore[call-overload]
    return objective.model(found.x), losses
