"""The arithmetic of many descents at once: arrays of shape (n, T, lanes), one lane per run.

The state of a run is its logits. With few coordinates a step goes through them, `F = E' w` and then `E F`; otherwise
through the Gram matrix, `G w`, which gives the change of the logits and the length of the step in one product. Either
way the dimension of the space the tokens live in does not enter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.dynamics.methods import AbstractMethod
from tokenmargin.objective.attention import Descent, attend, descent_weights
from tokenmargin.objective.losses import AbstractLoss

__all__ = ["BatchState", "Tokens"]

_FEW = 0.5  # two products with r columns against one with n T columns: they cost the same near r = n T / 2


@dataclass(frozen=True, eq=False)
class Tokens:
    """The tokens of the runs, laid out for products with all lanes at once.

    - `matrix`: E with shape (nT, r, lanes), or G with shape (nT, nT, lanes); one lane when all runs share the tokens.
    - `gram`: which of the two it is.
    - `scores`: shape (n, T, lanes).
    - `tied`: whether some input has tokens of equal score.

    Positions without a token need no mask: their logits are minus infinity, and stay so.
    """

    matrix: Float[Array, "nT r lanes"]
    gram: bool
    scores: Float[Array, "n T lanes"]
    tied: bool = False

    @classmethod
    def of(
        cls, vectors: Float[Array, "problems nT r"], scores: Float[Array, "problems n T"], *, tied: bool = False
    ) -> Tokens:
        """From the coordinates of the tokens, one problem per lane."""
        _, tokens, r = vectors.shape
        gram = r > _FEW * tokens
        matrix = vectors @ vectors.transpose(0, 2, 1) if gram else vectors
        return cls(_lanes_last(matrix), gram, _lanes_last(scores), tied)

    def kept(self, lanes: Bool[Array, " lanes"] | Int[Array, " kept"]) -> Tokens:
        """The tokens of some of the runs (by mask), or of each run (by number)."""
        if self.matrix.shape[-1] == 1:
            return self
        return Tokens(np.ascontiguousarray(self.matrix[..., lanes]), self.gram, self.scores[..., lanes], self.tied)

    def step(self, weights: Float[Array, "nT lanes"]) -> tuple[Float[Array, "nT lanes"], Float[Array, " lanes"]]:
        """Logits of the vector `sum w k`, and its length."""
        if self.gram:
            moved = self._times(self.matrix, weights)
            return moved, np.sqrt(np.maximum(np.einsum("kl,kl->l", weights, moved), 0.0))
        vector = self._times(self.matrix.swapaxes(0, 1), weights)
        return self._times(self.matrix, vector), np.sqrt(np.einsum("rl,rl->l", vector, vector))

    def _times(self, matrix: Float[Array, "a b #lanes"], columns: Float[Array, "b lanes"]) -> Float[Array, "a lanes"]:
        if matrix.shape[-1] == 1:
            return np.asarray(matrix[..., 0] @ columns)
        return np.asarray(np.einsum("abl,bl->al", matrix, columns))


class _Pivots:
    """The token of largest weight in every input of every run, and how far it is ahead in score.

    It changes rarely, so it is kept from step to step and looked up again only where another token has overtaken it.
    """

    def __init__(self, logits: Float[Array, "n T lanes"], scores: Float[Array, "n T #lanes"]) -> None:
        n, T, lanes = logits.shape
        chosen = logits.argmax(axis=1)
        rows = np.arange(n)[:, None] * T + chosen
        self.flat = rows * lanes + np.arange(lanes)  # positions in a flattened (n, T, lanes) array
        scores = np.broadcast_to(scores, logits.shape)
        self.best = np.take_along_axis(scores, chosen[:, None], axis=1)[:, 0]
        self.ahead = self.best[:, None] - scores
        self.tied = np.count_nonzero(self.ahead == 0) > self.flat.size  # more than the pivots themselves


@dataclass(eq=False)
class BatchState:
    """Runs in progress: what they are at, changed in place by `advance`.

    - `logits`: shape (n, T, lanes).
    - `weights`: the combination of tokens that each run has added to its start, shape (n, T, lanes).
    """

    tokens: Tokens
    loss: AbstractLoss
    logits: Float[Array, "n T lanes"]
    weights: Float[Array, "n T lanes"]

    def __post_init__(self) -> None:
        self.logits, self.weights = np.ascontiguousarray(self.logits), np.ascontiguousarray(self.weights)
        self._pivots: _Pivots | None = None

    def advance(self, methods: tuple[AbstractMethod, ...]) -> None:
        """One step of every run; one method for all, or one per lane."""
        direction, log_scale = self.descent_weights()
        n, T, lanes = direction.shape
        moved, length = self.tokens.step(direction.reshape(n * T, lanes))
        with np.errstate(divide="ignore"):
            log_norm = (log_scale + np.log(length))[:, None]
        descent = Descent(np.empty((lanes, 0)), log_norm)
        if len(methods) == 1:
            lengths = methods[0].lengths(descent)[:, 0]
        else:
            parts = zip(methods, log_norm, strict=True)
            lengths = np.array([method.lengths(Descent(np.empty(0), log))[0] for method, log in parts])
        rate = np.divide(lengths, length, out=np.zeros(lanes), where=length > 0)
        moved *= rate
        self.logits += moved.reshape(n, T, lanes)
        direction *= rate
        self.weights += direction

    def descent_weights(self) -> tuple[Float[Array, "n T lanes"], Float[Array, " lanes"]]:
        """Weights `w` on the tokens with minus the gradient `exp(log_scale) sum w k`; see `attention`."""
        n, T, lanes = self.logits.shape
        top = self.logits.max(axis=1)
        if self._pivots is None or (self.logits.ravel()[self._pivots.flat] < top).any():
            self._pivots = _Pivots(self.logits, self.tokens.scores)
        if self._pivots.tied:
            return self._descent_weights_with_ties()
        flat, best, ahead = self._pivots.flat, self._pivots.best, self._pivots.ahead
        # The pivot's weight tends to 1 and the others' to 0. All that descent sees are the others, so they are kept
        # apart from it and scaled by the largest among them in the run: far out they underflow, their ratios do not.
        others = self.logits - top[:, None]
        others.ravel()[flat] = -np.inf
        shift = np.maximum(others.reshape(n * T, lanes).max(axis=0), np.finfo(float).min)
        others -= shift
        np.exp(others, out=others)  # weights of the other tokens, scaled
        scale = np.exp(shift)
        total = 1 + scale * others.sum(axis=1)  # of the weights of an input, over that of its pivot
        shortfall = scale * np.einsum("ntl,ntl->nl", others, ahead) / total
        log_slope = self.loss.log_slope(best - shortfall)
        highest = log_slope.max(axis=0)
        others *= (np.exp(log_slope - highest) / total)[:, None]
        others *= shortfall[:, None] - ahead  # score minus output, as both fall short of the pivot's score
        others.ravel()[flat] = -others.sum(axis=1)  # the softmax Jacobian's rows add up to zero
        return others, shift + highest - np.log(n)

    def _descent_weights_with_ties(self) -> tuple[Float[Array, "n T lanes"], Float[Array, " lanes"]]:
        """The same by logarithms, where some token scores exactly what the selected one does.

        Such a token has a weight of order one and a lead of exp(-|p|), the others have it the other way round: no
        common scale keeps both from underflowing.
        """
        logits, scores = self.logits.transpose(2, 0, 1), self.tokens.scores.transpose(2, 0, 1)
        state = attend(logits, np.broadcast_to(scores, logits.shape))
        weights, log_scale = descent_weights(state, self.loss.log_slope(state.output))
        return _lanes_last(weights), log_scale - np.log(logits.shape[1])

    def kept(self, lanes: Bool[Array, " lanes"]) -> BatchState:
        """Some of the runs."""
        return BatchState(self.tokens.kept(lanes), self.loss, self.logits[..., lanes], self.weights[..., lanes])

    @property
    def selected(self) -> Int[Array, "lanes n"]:
        """The token of largest weight in each input."""
        return np.asarray(self.logits.argmax(axis=1).T)

    @property
    def saturation(self) -> Float[Array, " lanes"]:
        """Mean over the inputs of the largest softmax weight, with those of tokens of equal score."""
        relative = self.logits - self.logits.max(axis=1, keepdims=True)
        weights = np.exp(relative)
        whole = 1 / weights.sum(axis=1)
        if self.tokens.tied:
            scores = np.broadcast_to(self.tokens.scores, weights.shape)
            leading = np.take_along_axis(scores, weights.argmax(axis=1)[:, None], axis=1)
            whole *= np.where(scores == leading, weights, 0.0).sum(axis=1)
        return np.asarray(whole.mean(axis=0))


def _lanes_last(array: Float[Array, "lanes a b"]) -> Float[Array, "a b lanes"]:
    return np.ascontiguousarray(array.transpose(1, 2, 0))
