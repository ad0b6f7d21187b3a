"""What the decision of the one-layer model depends on, and the scores that any model gives to the tokens of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.estimator.encoder import Encoded

__all__ = ["Scores", "Weights"]


@dataclass(frozen=True, eq=False)
class Scores:
    """Logits and values of the tokens of `n` texts and of their sinks: all that attention and decision depend on.

    **Attributes**
    - `rows`: for each level of the texts, the row of the n-gram that begins at each word, -1 where there is none.
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
        """A token has the same logit and value in every text."""
        n, (logits, values, tokens) = encoded.n, self._padded
        sink_values = np.broadcast_to(self.sink_values, (n, len(self.sink_values)))
        return Scores(encoded.levels, logits, values, tokens, np.full(n, self.sink_logit), sink_values)
