"""The table of what a model learned about every token."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.weights import Scores

__all__ = ["TokenStatistics", "TokenTable", "token_statistics"]


@dataclass(frozen=True, eq=False)
class TokenTable:
    """Columns of equal length, one row per token, the largest importance first.

    >>> table = TokenTable({"token": np.array(["good", "film"]), "count": np.array([3, 5])})
    >>> table["count"].tolist(), len(table), table.head(1)["token"].tolist()
    ([3, 5], 2, ['good'])
    """

    columns: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def head(self, n: int = 20) -> TokenTable:
        """The first rows."""
        return TokenTable({name: column[:n] for name, column in self.columns.items()})

    def write_csv(self, target: Path | TextIO) -> None:
        """Write comma-separated values with a header."""
        if isinstance(target, Path):
            with target.open("w", encoding="utf-8", newline="") as file:
                return self.write_csv(file)
        writer = csv.writer(target)
        writer.writerow(self.columns)
        writer.writerows(zip(*(column.tolist() for column in self.columns.values()), strict=True))
        return None

    def to_pandas(self) -> object:
        """A pandas DataFrame, where pandas is installed."""
        import pandas as pd  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return pd.DataFrame(dict(self.columns))


@dataclass(frozen=True, eq=False)
class TokenStatistics:
    """What the training texts say of every token.

    **Attributes**
    - `counts`: texts of each class that hold it. `selected`: texts in which its logit is the largest.
    - `attention`: its mean weight over all texts. `contributions`: its mean contribution to each column.
    """

    counts: Float[Array, "m classes"]
    selected: Int[Array, " m"]
    attention: Float[Array, " m"]
    contributions: Float[Array, "m k"]


def token_statistics(presence: sp.csr_matrix, classes: Array, scores: Scores, *, k: int) -> TokenStatistics:
    """Statistics over texts of `k` classes, given the scores of the entries of `presence`."""
    (n, m), tokens, (rows,) = presence.shape, presence.indices, scores.rows
    counts = np.stack([np.asarray(presence[classes == c].sum(axis=0)).ravel() for c in range(k)], axis=1)
    logits, lengths = scores.logits[rows], np.diff(presence.indptr)
    text = np.repeat(np.arange(n), lengths)
    largest = np.full(n, -np.inf)
    filled = np.flatnonzero(lengths)
    if len(filled):
        largest[filled] = np.maximum.reduceat(logits, presence.indptr[filled])
    best = np.flatnonzero(logits == largest[text])
    winners = tokens[best[np.unique(text[best], return_index=True)[1]]]
    top = np.maximum(largest, scores.sink_logits)
    share = np.exp(logits - top[text])
    share /= (np.bincount(text, share, n) + np.exp(scores.sink_logits - top))[text]
    columns = scores.values.shape[1]
    parts = [np.bincount(tokens, share * scores.values[rows, column], m) for column in range(columns)]
    return TokenStatistics(
        counts, np.bincount(winners, minlength=m), np.bincount(tokens, share, m) / max(n, 1),
        np.stack(parts, axis=1) / max(n, 1),
    )  # fmt: skip
