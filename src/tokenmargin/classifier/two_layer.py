"""The two-layer model as a classifier: embeddings that attend to each other, then attention with p and v.

On the distinct tokens of a text and the sink, with the rows X of the embeddings,

    H = LayerNorm(softmax(X X') X + X),    f = softmax(H p)' H v,

so a token's logit `(H p)_s` and value `(H v)_s` depend on the text around it. The decision is still a sum over tokens,
and what explains the one-layer model explains this one. Here it is only run, with numpy; `two_layer_training` trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.vocabulary import Encoded
from tokenmargin.classifier.weights import Scores

__all__ = ["EPSILON", "TwoLayerWeights"]

EPSILON = 1e-5  # of the layer norm, as in torch
CELLS = 1 << 22  # products of embeddings kept at a time


@dataclass(frozen=True, eq=False)
class TwoLayerWeights:
    """Embeddings of the tokens and, in the last row, of the sink; the prompt p, and a column v for each output."""

    embeddings: Float[Array, "m_plus_1 d"]
    prompt: Float[Array, " d"]
    heads: Float[Array, "d k"]

    @cached_property
    def logits(self) -> Float[Array, " m"]:
        """`<E, p>` of every token by itself."""
        return np.asarray(self.embeddings[:-1] @ self.prompt, float)

    @cached_property
    def values(self) -> Float[Array, "m k"]:
        """`<E, v>` of every token by itself."""
        return np.asarray(self.embeddings[:-1] @ self.heads, float)

    def within(self, tokens: Int[Array, " u"]) -> tuple[Float[Array, " u_plus_1"], Float[Array, "u_plus_1 k"]]:
        """Logits and values of the distinct tokens of one text and, last, of its sink."""
        X = self.embeddings[np.append(tokens, len(self.embeddings) - 1)].astype(float)
        H = np.empty_like(X)
        rows = max(1, CELLS // len(X))
        for at in range(0, len(X), rows):  # a text of many thousand tokens has too large a matrix of products
            A = X[at : at + rows] @ X.T
            A -= A.max(axis=1, keepdims=True)
            np.exp(A, out=A)
            A /= A.sum(axis=1, keepdims=True)
            H[at : at + rows] = A @ X + X[at : at + rows]
        H -= H.mean(axis=1, keepdims=True)
        H /= np.sqrt((H * H).mean(axis=1, keepdims=True) + EPSILON)
        return H @ self.prompt, H @ self.heads

    def decide(self, presence: sp.csr_matrix) -> Float[Array, "n k"]:
        """f for each text and column of values."""
        outputs = np.empty((presence.shape[0], self.heads.shape[1]))
        for text in range(len(outputs)):
            logits, values = self.within(presence.indices[presence.indptr[text] : presence.indptr[text + 1]])
            weights = np.exp(logits - logits.max())
            outputs[text] = weights @ values / weights.sum()
        return outputs

    def scores_of(self, presence: sp.csr_matrix) -> Scores:
        """Of the entries of the matrix of which text holds which token."""
        n, k = presence.shape[0], self.heads.shape[1]
        logits, values = np.full(presence.nnz + 1, -np.inf), np.zeros((presence.nnz + 1, k))
        sink_logits, sink_values = np.empty(n), np.empty((n, k))
        for text in range(n):
            where = slice(presence.indptr[text], presence.indptr[text + 1])
            found, worth = self.within(presence.indices[where])
            logits[where], sink_logits[text] = found[:-1], found[-1]
            values[where], sink_values[text] = worth[:-1], worth[-1]
        return Scores([np.arange(presence.nnz)], logits, values, presence.indices, sink_logits, sink_values)

    def scores(self, encoded: Encoded) -> Scores:
        """Of the words of texts: each occurrence of a token finds the entry of its text."""
        m = len(self.embeddings) - 1
        presence = encoded.presence(m)
        found = self.scores_of(presence)
        text = np.repeat(np.arange(encoded.n, dtype=np.int64), np.diff(presence.indptr))
        entries, before = text * m + presence.indices, encoded.segment.astype(np.int64) * m
        rows = [np.where(ids >= 0, np.searchsorted(entries, before + ids), -1) for ids in encoded.levels]
        return Scores(rows, found.logits, found.values, found.tokens, found.sink_logits, found.sink_values)

    def tensors(self) -> dict[str, Array]:
        """Arrays for a file."""
        return {"embeddings": self.embeddings, "prompt": self.prompt, "heads": self.heads}

    @staticmethod
    def of_tensors(arrays: Mapping[str, Array]) -> TwoLayerWeights:
        """Weights from the arrays of a file."""
        return TwoLayerWeights(arrays["embeddings"], arrays["prompt"], arrays["heads"])
