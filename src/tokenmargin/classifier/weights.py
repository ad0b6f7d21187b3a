"""What the decision of the one-layer model depends on, and the scores that any model gives to the tokens of texts.

A model of the estimator (`Weights` here, `TwoLayerWeights`) has `logits` and `values` of the tokens by themselves, can
`decide` on texts, and gives the `Scores` of the tokens within texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.vocabulary import Encoded

__all__ = ["Scores", "Weights"]


@dataclass(frozen=True, eq=False)
class Scores:
    """Logits and values of the tokens of `n` texts and of their sinks: all that attention and decision depend on.

    **Attributes**
    - `rows`: for each level of the texts, the row of the n-gram that begins at each word, -1 where there is none; or
        for a matrix of which text holds which token, the row of each entry.
    - `logits`, `values`: of each row; the last belongs to what is not there, with logit -inf and value 0.
    - `tokens`: the id in the vocabulary of each row but the last.
    """

    rows: Sequence[Int[Array, " words"]]
    logits: Float[Array, " r_plus_1"]
    values: Float[Array, "r_plus_1 k"]
    tokens: Int[Array, " r"]
    sink_logits: Float[Array, " n"]
    sink_values: Float[Array, "n k"]


@dataclass(frozen=True, eq=False)
class Weights:
    """What the decision depends on: logits a and values b of the tokens, and those of the sink.

    There is one column of values for two classes (positive speaks for the second), else one for each class.
    """

    logits: Float[Array, " m"]
    values: Float[Array, "m k"]
    sink_logit: float
    sink_values: Float[Array, " k"]

    def since(self, origin: Weights) -> Weights:
        """The same with logits counted from those of `origin`: what training changed."""
        return Weights(self.logits - origin.logits, self.values, self.sink_logit - origin.sink_logit, self.sink_values)

    def moved(self, learned: Weights | None) -> Weights:
        """These weights with what training changed elsewhere, as `since` gives it."""
        if learned is None:
            return self
        return Weights(
            self.logits + learned.logits, learned.values, self.sink_logit + learned.sink_logit, learned.sink_values
        )

    @cached_property
    def _padded(self) -> tuple[Array, Array, Array]:
        m, k = self.values.shape
        return np.append(self.logits, -np.inf), np.concatenate([self.values, np.zeros((1, k))]), np.arange(m)

    def scores(self, encoded: Encoded) -> Scores:
        """Of the words of texts: a token has the same logit and value in every text."""
        return self._scores(encoded.levels, encoded.n)

    def scores_of(self, presence: sp.csr_matrix) -> Scores:
        """Of the entries of the matrix of which text holds which token."""
        return self._scores([presence.indices], presence.shape[0])

    def _scores(self, rows: Sequence[Array], n: int) -> Scores:
        logits, values, tokens = self._padded
        sink_values = np.broadcast_to(self.sink_values, (n, len(self.sink_values)))
        return Scores(rows, logits, values, tokens, np.full(n, self.sink_logit), sink_values)

    def exponentials(self) -> tuple[Float[Array, "m k_plus_1"], float]:
        """`e^a b` beside `e^a`, and the sink's `e^a`, scaled alike: sums over the tokens of a text give Z f and Z."""
        top = max(float(self.logits.max(initial=-np.inf)), self.sink_logit)
        e = np.exp(self.logits - top)[:, None]
        return np.concatenate([e * self.values, e], axis=1), float(np.exp(self.sink_logit - top))

    def decide(self, presence: sp.csr_matrix) -> Float[Array, "n k"]:
        """f for each text and column of values."""
        e, sink = self.exponentials()
        sums = np.asarray(presence @ e)
        return (sums[:, :-1] + sink * self.sink_values) / (sums[:, -1:] + sink)

    def tensors(self) -> dict[str, Array]:
        """Arrays for a file."""
        sink = np.concatenate([[self.sink_logit], self.sink_values])
        return {"logits": self.logits, "values": self.values, "sink": sink}

    @staticmethod
    def of_tensors(arrays: Mapping[str, Array]) -> Weights:
        """Weights from the arrays of a file."""
        return Weights(arrays["logits"], arrays["values"], float(arrays["sink"][0]), arrays["sink"][1:])
