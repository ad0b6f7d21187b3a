"""The arithmetic of many descents at once: arrays of shape (n, T, lanes), one lane per run.

The state of a run is its logits. With few coordinates a step goes through them, `F = E' w` and then `E F`; otherwise
through the Gram matrix, `G w`, which gives the change of the logits and the length of the step in one product. Either
way the dimension of the space the tokens live in does not enter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.dynamics.methods import AbstractMethod, AbstractStepLength, AbstractValue, State
from tokenmargin.objective.forward import Attention, Descent, attend, descent_weights
from tokenmargin.objective.losses import AbstractLoss, signed_excess

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
        cls,
        vectors: Float[Array, "problems nT r"],
        scores: Float[Array, "problems n T"],
        *,
        tied: bool = False,
        coordinates: bool = False,
    ) -> Tokens:
        """From the coordinates of the tokens, one problem per lane; with `coordinates` they stay as they are."""
        _, tokens, r = vectors.shape
        gram = r > _FEW * tokens and not coordinates
        matrix = vectors @ vectors.transpose(0, 2, 1) if gram else vectors
        return cls(_lanes_last(matrix), gram, _lanes_last(scores), tied)

    def subset(self, lanes: Bool[Array, " lanes"] | Int[Array, " kept"]) -> Tokens:
        """The tokens of some of the runs (by mask), or of each run (by number)."""
        if self.matrix.shape[-1] == 1:
            return self
        return Tokens(np.ascontiguousarray(self.matrix[..., lanes]), self.gram, self.scores[..., lanes], self.tied)

    def step(self, weights: Float[Array, "nT lanes"]) -> tuple[Float[Array, "nT lanes"], Float[Array, " lanes"]]:
        """Logits of the vector `sum w k`, and its length."""
        if self.gram:
            moved = self._times(self.matrix, weights)
            return moved, np.sqrt(np.maximum(np.einsum("kl,kl->l", weights, moved), 0.0))
        vector = self.weighted_sums(weights)
        return self.logits(vector), np.sqrt(np.einsum("rl,rl->l", vector, vector))

    def weighted_sums(self, weights: Float[Array, "nT lanes"]) -> Float[Array, "r lanes"]:
        """The vector `sum w k` of every run, in coordinates."""
        return self._times(self.matrix.swapaxes(0, 1), weights)

    def logits(self, vector: Float[Array, "r lanes"]) -> Float[Array, "nT lanes"]:
        """Its products with the tokens."""
        return self._times(self.matrix, vector)

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


@dataclass(frozen=True, eq=False)
class _ValueOfRuns(AbstractValue):
    """The risk of every run, where it is."""

    runs: BatchState

    @cached_property
    def risk(self) -> Float[Array, " lanes"]:
        return np.asarray(self.runs.loss.value(self._attention.output).mean(axis=-1))

    @cached_property
    def log_excess(self) -> Float[Array, " lanes"]:
        state, scores = self._attention, self._scores
        best = np.where(np.isneginf(state.log_weights), -np.inf, scores).max(axis=-1)
        return signed_excess(self.runs.loss, best, state.log_weights, scores)[0]

    @cached_property
    def _attention(self) -> Attention:
        return attend(self.runs.logits.transpose(2, 0, 1), self._scores)

    @cached_property
    def _scores(self) -> Float[Array, "lanes n T"]:
        return np.broadcast_to(self.runs.tokens.scores, self.runs.logits.shape).transpose(2, 0, 1)


@dataclass(eq=False)
class BatchState:
    """Runs in progress: what they are at, changed in place by `advance`.

    - `logits`: shape (n, T, lanes).
    - `weights`: the combination of tokens that each run has added to its start, shape (n, T, lanes).
    - `points`, `memory`: where the runs are and what their method remembers; for methods that go not only along the
      gradient.
    - `taken`: steps that each run has taken.
    - `batch`, `rng`: how many inputs the gradient of a step is of, drawn anew for every step and run; None for all.
    """

    tokens: Tokens
    loss: AbstractLoss
    logits: Float[Array, "n T lanes"]
    weights: Float[Array, "n T lanes"]
    taken: Int[Array, " lanes"]
    points: Float[Array, "lanes r"] | None = None
    memory: State = field(default_factory=dict)
    batch: int | None = None
    rng: np.random.Generator | None = None

    def __post_init__(self) -> None:
        self.logits, self.weights = np.ascontiguousarray(self.logits), np.ascontiguousarray(self.weights)
        self._pivots: _Pivots | None = None

    def advance(self, methods: tuple[AbstractMethod, ...]) -> None:
        """One step of every run; one method for all, or one per lane."""
        same = (self.taken == self.taken[0]).all()
        t = int(self.taken[0]) if same else self.taken[:, None]
        if self.points is None:
            self._step_along_gradient([method for method in methods if isinstance(method, AbstractStepLength)], t)
        else:
            self._step_to_point(methods[0], self.points, t)
        self.taken += 1

    def _step_along_gradient(self, methods: Sequence[AbstractStepLength], t: int | Int[Array, "lanes 1"]) -> None:
        """A step along the gradient: only the weights of the tokens and the logits change."""
        direction, log_scale = self.descent_weights()
        n, T, lanes = direction.shape
        moved, length = self.tokens.step(direction.reshape(n * T, lanes))
        with np.errstate(divide="ignore"):
            log_norm = (log_scale + np.log(length))[:, None]
        value = _ValueOfRuns(self)
        if len(methods) == 1:
            lengths = methods[0].step_lengths(Descent(np.empty((lanes, 0)), log_norm), value, t)[:, 0]
        else:
            times = np.broadcast_to(t, (lanes, 1))[:, 0].tolist()
            parts = zip(methods, log_norm, times, strict=True)
            lengths = np.array(
                [rule.step_lengths(Descent(np.empty(0), log), value, when)[0] for rule, log, when in parts]
            )
        rate = np.divide(lengths, length, out=np.zeros(lanes), where=length > 0)
        moved *= rate
        self.logits += moved.reshape(n, T, lanes)
        direction *= rate
        self.weights += direction

    def _step_to_point(
        self, method: AbstractMethod, points: Float[Array, "lanes r"], t: int | Int[Array, "lanes 1"]
    ) -> None:
        """A step to a point of the method's choice."""
        weights, log_scale = self.descent_weights()
        n, T, lanes = weights.shape
        vector = self.tokens.weighted_sums(weights.reshape(n * T, lanes)).T
        length = np.sqrt(np.einsum("lr,lr->l", vector, vector))[:, None]
        with np.errstate(divide="ignore"):
            descent = Descent(vector / np.where(length > 0, length, 1.0), log_scale[:, None] + np.log(length))
        self.points, self.memory = method.advance(points, descent, _ValueOfRuns(self), t, self.memory)
        logits = self.tokens.logits(np.ascontiguousarray(self.points.T)).reshape(n, T, lanes)
        self.logits = np.where(np.isneginf(self.logits), -np.inf, logits)

    def _left_out_inputs(self) -> Bool[Array, "n lanes"] | None:
        """The inputs that are not in the minibatch of the next step; None without minibatches."""
        if self.batch is None or self.rng is None:
            return None
        return np.asarray(self.rng.random((len(self.logits), len(self.taken))).argsort(axis=0) >= self.batch)

    def descent_weights(self) -> tuple[Float[Array, "n T lanes"], Float[Array, " lanes"]]:
        """Weights `w` on the tokens with minus the gradient `exp(log_scale) sum w k`; see `objective.forward`."""
        n, T, lanes = self.logits.shape
        top = self.logits.max(axis=1)
        if self._pivots is None or (self.logits.ravel()[self._pivots.flat] < top).any():
            self._pivots = _Pivots(self.logits, self.tokens.scores)
        unseen = self._left_out_inputs()
        if self._pivots.tied:
            return self._descent_weights_with_ties(unseen)
        flat, best, ahead = self._pivots.flat, self._pivots.best, self._pivots.ahead
        # The pivot's weight tends to 1 and the others' to 0. All that descent sees are the others, so they are kept
        # apart from it and scaled by the largest among them in the run: far out they underflow, their ratios do not.
        others = self.logits - top[:, None]
        others.ravel()[flat] = -np.inf
        if unseen is not None:
            others.swapaxes(0, 1)[:, unseen] = -np.inf
        shift = np.maximum(others.reshape(n * T, lanes).max(axis=0), np.finfo(float).min)
        others -= shift
        np.exp(others, out=others)  # weights of the other tokens, scaled
        scale = np.exp(shift)
        total = 1 + scale * others.sum(axis=1)  # of the weights of an input, over that of its pivot
        shortfall = scale * np.einsum("ntl,ntl->nl", others, ahead) / total
        log_slope = self.loss.log_slope(best - shortfall)
        if unseen is not None:
            log_slope[unseen] = -np.inf
        highest = log_slope.max(axis=0)
        others *= (np.exp(log_slope - highest) / total)[:, None]
        others *= shortfall[:, None] - ahead  # score minus output, as both fall short of the pivot's score
        others.ravel()[flat] = -others.sum(axis=1)  # the softmax Jacobian's rows add up to zero
        return others, shift + highest - np.log(self.batch or n)

    def _descent_weights_with_ties(
        self, unseen: Bool[Array, "n lanes"] | None
    ) -> tuple[Float[Array, "n T lanes"], Float[Array, " lanes"]]:
        """The same by logarithms, where some token scores exactly what the selected one does.

        Such a token has a weight of order one and a lead of exp(-|p|), the others have it the other way round: no
        common scale keeps both from underflowing.
        """
        logits, scores = self.logits.transpose(2, 0, 1), self.tokens.scores.transpose(2, 0, 1)
        state = attend(logits, np.broadcast_to(scores, logits.shape))
        log_slope = self.loss.log_slope(state.output)
        if unseen is not None:
            log_slope = np.where(unseen.T, -np.inf, log_slope)
        weights, log_scale = descent_weights(state, log_slope)
        return _lanes_last(weights), log_scale - np.log(self.batch or logits.shape[1])

    def subset(self, lanes: Bool[Array, " lanes"]) -> BatchState:
        """Some of the runs."""
        return replace(
            self,
            tokens=self.tokens.subset(lanes),
            logits=self.logits[..., lanes],
            weights=self.weights[..., lanes],
            taken=self.taken[lanes],
            points=None if self.points is None else self.points[lanes],
            memory={name: array[lanes] for name, array in self.memory.items()},
        )

    def write_ends(self, places: Int[Array, " runs"], ended: BatchState) -> None:
        """Write the ends of some runs into their places."""
        self.logits[..., places], self.weights[..., places] = ended.logits, ended.weights
        self.taken[places] = ended.taken
        if self.points is not None and ended.points is not None:
            self.points[places] = ended.points
            for name, array in ended.memory.items():
                self.memory[name][places] = array

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
