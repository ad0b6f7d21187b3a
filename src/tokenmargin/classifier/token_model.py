"""TokenModel: everything the decisions of one attention layer depend on, two numbers per token and a few for all.

The decision on a text that holds the distinct tokens S is

    f = b_0 + sum_{s in S} e^{a_s} b_s / Z^g,    Z = e^c + sum_{s in S} e^{a_s}.

With g = 1 this is the papers' attention with a sink: a softmax average of values, which five words of the same value
move hardly further than one. With g = 0 it is a linear model, in which evidence adds up. Embeddings, prompt and head
enter only through the logit `a_s = <E_s, p>` and the value `b_s = <E_s, v>` of each token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.special import expit, softmax

from tokenmargin.classifier.vocabulary import segment_max


def probabilities(outputs: Float[Array, "n k"]) -> Float[Array, "n classes"]:
    """The probabilities of the classes, given f: one column, of the second of two classes, or one for each class."""
    if outputs.shape[1] == 1:
        positive = expit(outputs[:, 0])
        return np.stack([1 - positive, positive], axis=1)
    return np.asarray(softmax(outputs, axis=1))


def decided_classes(outputs: Float[Array, "n k"]) -> Int[Array, " n"]:
    """The number of the class that is decided on, given f: the one of largest probability, of equal ones the first."""
    return np.asarray(probabilities(outputs).argmax(1))


@dataclass(frozen=True, eq=False, repr=False)
class TokenModel:
    """Logits a and values b of the tokens of a vocabulary, in its order, and the numbers that all texts share.

    There is one column of values for two classes (positive speaks for the second), else one for each class.

    **Attributes**
    - `exponent`: g, from 0 (evidence adds up) to 1 (softmax attention with a sink).
    - `sink_logit`: c. `intercept`: b_0.
    - `prior`: the f of a text without any known token: the base rate of the classes.
    - `repeats`: whether every occurrence of a token counts, as in the papers; S is then a list with repetitions.

    >>> model = TokenModel(np.array([2.0, 0.0]), np.array([[1.0], [0.0]]), 0.0, np.zeros(1), np.zeros(1), exponent=1.0)
    >>> model.decide(sp.csr_matrix([[1.0, 1.0], [0.0, 0.0]])).round(3).tolist()
    [[0.787], [0.0]]
    """

    logits: Float[Array, " m"]
    values: Float[Array, "m k"]
    sink_logit: float
    intercept: Float[Array, " k"]
    prior: Float[Array, " k"]
    exponent: float = 1.0
    repeats: bool = False

    def __post_init__(self) -> None:
        m, k = self.values.shape
        if self.logits.shape != (m,) or self.intercept.shape != (k,) or self.prior.shape != (k,):
            raise ValueError(
                f"a token model needs a logit and {k} values for each of {m} tokens, {k} intercepts and {k} priors, "
                f"got {self.logits.shape} logits, {self.intercept.shape} intercepts and {self.prior.shape} priors"
            )

    def __repr__(self) -> str:
        tokens, columns = self.values.shape
        return f"<TokenModel of {tokens} tokens, {columns} column(s) of values, g = {self.exponent:g}>"

    def change_since(self, origin: TokenModel) -> TokenModel:
        """What training changed: this model with the logits of `origin` subtracted."""
        return replace(self, logits=self.logits - origin.logits, sink_logit=self.sink_logit - origin.sink_logit)

    def with_change(self, change: TokenModel | None) -> TokenModel:
        """This start, changed as training changed another start (by what `change_since` returned)."""
        if change is None:
            return self
        return replace(
            self, logits=self.logits + change.logits, values=change.values,
            sink_logit=self.sink_logit + change.sink_logit, intercept=change.intercept,
        )  # fmt: skip

    def with_temperature(self, temperature: float, offset: float) -> TokenModel:
        """The model with `temperature f + offset prior` for f; contributions keep their proportions."""
        intercept = temperature * self.intercept + offset * self.prior
        return replace(self, values=temperature * self.values, intercept=intercept)

    def plus(self, other: TokenModel, weight: float) -> TokenModel:
        """The model with f plus `weight` times the other's f; both must have the same attention."""
        values, intercept = self.values + weight * other.values, self.intercept + weight * other.intercept
        return replace(self, values=values, intercept=intercept)

    @cached_property
    def padded_arrays(self) -> tuple[Float[Array, " m_plus_1"], Float[Array, "m_plus_1 k"]]:
        """Logits and values with one more row at the end, so that the id -1 has logit -inf and value 0."""
        k = self.values.shape[1]
        return np.append(self.logits, -np.inf), np.concatenate([self.values, np.zeros((1, k))])

    def exponentials(self) -> tuple[Float[Array, "m k_plus_1"], float, float]:
        """The columns `e^a b` and `e^a`, and `e^c`, all divided by `e^top`; and top, the largest logit."""
        top = max(float(self.logits.max(initial=-np.inf)), self.sink_logit)
        e = np.exp(self.logits - top)[:, None]
        return np.concatenate([e * self.values, e], axis=1), float(np.exp(self.sink_logit - top)), top

    def decide(self, presence: sp.csr_matrix) -> Float[Array, "n k"]:
        """f of each text, for each column of values, given which text holds which token."""
        weights, amount = self._weights(presence)
        found = self.intercept + np.asarray(weights @ self.values) * amount[:, None]
        found[np.diff(presence.indptr) == 0] = self.prior
        return np.asarray(found)

    def contributions(self, presence: sp.csr_matrix, column: Int[Array, " n"]) -> sp.csr_matrix:
        """`e^a b / Z^g` of every token of every text; `column` says for each text which values b are meant."""
        weights, amount = self._weights(presence)
        text = np.repeat(np.arange(presence.shape[0]), np.diff(presence.indptr))
        weights.data *= self.values[presence.indices, column[text]] * amount[text]
        return weights

    def _weights(self, presence: sp.csr_matrix) -> tuple[sp.csr_matrix, Float[Array, " n"]]:
        """`e^a` of every token of every text over that of its largest, and what makes of it `e^a / Z^g`.

        The largest logit is that of the text: one of all tokens would let a text of tokens far below it underflow.
        """
        logits, lengths = self.logits[presence.indices], np.diff(presence.indptr)
        top = np.maximum(segment_max(logits, presence.indptr), self.sink_logit)
        data = presence.data * np.exp(logits - np.repeat(top, lengths))
        weights = sp.csr_matrix((data, presence.indices, presence.indptr), shape=presence.shape)
        Z = np.asarray(weights.sum(1)).ravel() + np.exp(self.sink_logit - top)
        return weights, np.exp((1 - self.exponent) * top) / Z**self.exponent

    def decide_tokens(self, tokens: Int[Array, " t"]) -> Float[Array, " k"]:
        """f of one text, given its tokens, each as often as it counts; accurate whatever the logits are."""
        if not len(tokens):
            return self.prior
        a = self.logits[tokens]
        top = max(float(a.max()), self.sink_logit)
        e = np.exp(a - top)
        Z = float(e.sum()) + float(np.exp(self.sink_logit - top))
        return self.intercept + (e @ self.values[tokens]) * np.exp((1 - self.exponent) * top) / Z**self.exponent

    def tensors(self) -> dict[str, Array]:
        """Arrays for a file."""
        shared = np.concatenate([[self.exponent, self.sink_logit], self.intercept, self.prior])
        found = {"logits": self.logits, "values": self.values, "shared": shared}
        return found | ({"repeats": np.array([1])} if self.repeats else {})

    @staticmethod
    def of_tensors(arrays: Mapping[str, Array]) -> TokenModel:
        """The model from the arrays of a file. A file with a `sink` has format 2, in which the sink had a value.

        There `f = (e^c b_0 + sum e^a b) / Z`. With g = 1 that is `b_0 + sum e^a (b - b_0) / Z`, the same decisions.
        """
        logits, values = arrays["logits"].astype(float), arrays["values"].astype(float)
        if "sink" in arrays:
            start = arrays["sink"][1:]
            return TokenModel(logits, values - start, float(arrays["sink"][0]), start, start, 1.0)
        shared, k = arrays["shared"], values.shape[1]
        return TokenModel(
            logits, values, float(shared[1]), shared[2 : 2 + k], shared[2 + k :], float(shared[0]),
            "repeats" in arrays,
        )  # fmt: skip
