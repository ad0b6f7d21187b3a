"""TokenModel: all that the decisions of one attention layer depend on, two numbers per token and those of a sink.

The decision on a text that holds the distinct tokens S is `f = sum_s w_s b_s` over S and the sink, `w = softmax(a)`.
Embeddings, prompt and head enter only through the logit `a_s = <E_s, p>` and the value `b_s = <E_s, v>` of each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from numpy import ndarray as Array

__all__ = ["TokenModel"]


@dataclass(frozen=True, eq=False)
class TokenModel:
    """Logits a and values b of the tokens of a vocabulary, in its order, and those of the sink.

    There is one column of values for two classes (positive speaks for the second), else one for each class.

    >>> model = TokenModel(np.array([2.0, 0.0]), np.array([[1.0], [0.0]]), sink_logit=0.0, sink_values=np.zeros(1))
    >>> model.decide(sp.csr_matrix([[1.0, 1.0], [0.0, 0.0]])).round(3).tolist()
    [[0.787], [0.0]]
    """

    logits: Float[Array, " m"]
    values: Float[Array, "m k"]
    sink_logit: float
    sink_values: Float[Array, " k"]

    def __post_init__(self) -> None:
        m, k = self.values.shape
        if self.logits.shape != (m,) or self.sink_values.shape != (k,):
            raise ValueError(
                f"a token model needs a logit and {k} values for each of {m} tokens and {k} values for the sink, "
                f"got {self.logits.shape} logits and {self.sink_values.shape} values"
            )

    def change_since(self, origin: TokenModel) -> TokenModel:
        """The same with logits counted from those of `origin`: what training changed."""
        return TokenModel(
            self.logits - origin.logits, self.values, self.sink_logit - origin.sink_logit, self.sink_values
        )

    def with_change(self, change: TokenModel | None) -> TokenModel:
        """This start with what training changed from another, as `change_since` gives it."""
        if change is None:
            return self
        return TokenModel(
            self.logits + change.logits, change.values, self.sink_logit + change.sink_logit, change.sink_values
        )

    @cached_property
    def padded(self) -> tuple[Float[Array, " m_plus_1"], Float[Array, "m_plus_1 k"]]:
        """Logits and values with a last row for what is no token, so that id -1 has logit -inf and value 0."""
        k = self.values.shape[1]
        return np.append(self.logits, -np.inf), np.concatenate([self.values, np.zeros((1, k))])

    def exponentials(self) -> tuple[Float[Array, "m k_plus_1"], float]:
        """`e^a b` beside `e^a`, and the sink's `e^a`, scaled alike: sums over the tokens of a text give Z f and Z."""
        top = max(float(self.logits.max(initial=-np.inf)), self.sink_logit)
        e = np.exp(self.logits - top)[:, None]
        return np.concatenate([e * self.values, e], axis=1), float(np.exp(self.sink_logit - top))

    def decide(self, presence: sp.csr_matrix) -> Float[Array, "n k"]:
        """f for each text and column of values, given which text holds which token."""
        e, sink = self.exponentials()
        sums = np.asarray(presence @ e)
        return (sums[:, :-1] + sink * self.sink_values) / (sums[:, -1:] + sink)

    def tensors(self) -> dict[str, Array]:
        """Arrays for a file."""
        sink = np.concatenate([[self.sink_logit], self.sink_values])
        return {"logits": self.logits, "values": self.values, "sink": sink}

    @staticmethod
    def of_tensors(arrays: Mapping[str, Array]) -> TokenModel:
        """The model from the arrays of a file."""
        return TokenModel(arrays["logits"], arrays["values"], float(arrays["sink"][0]), arrays["sink"][1:])
