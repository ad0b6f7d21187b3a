"""The table of what a model learned about every token."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import scipy.sparse as sp
from numpy import ndarray as Array

from tokenmargin.estimator.weights import Weights

__all__ = ["TokenTable", "token_statistics"]


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


def token_statistics(presence: sp.csr_matrix, classes: Array, weights: Weights, k: int) -> tuple[Array, Array, Array]:
    """Texts of each class that hold each token; how often each was selected; its mean absolute contribution."""
    counts = np.stack([np.asarray(presence[classes == c].sum(axis=0)).ravel() for c in range(k)], axis=1)
    logits = weights.logits[presence.indices]
    lengths = np.diff(presence.indptr)
    filled = np.flatnonzero(lengths)
    top = np.full(len(lengths), weights.sink_logit)
    selected = np.zeros(presence.shape[1], np.int64)
    if len(filled):
        largest = np.maximum.reduceat(logits, presence.indptr[filled])
        best = np.flatnonzero(logits == np.repeat(largest, lengths[filled]))
        rows = np.repeat(filled, lengths[filled])[best]
        winners = presence.indices[best[np.unique(rows, return_index=True)[1]]]
        selected = np.bincount(winners, minlength=presence.shape[1])
        top[filled] = np.maximum(top[filled], largest)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    share = np.exp(logits - top[rows])
    Z = np.bincount(rows, share, len(lengths)) + np.exp(weights.sink_logit - top)
    attention = np.bincount(presence.indices, share / Z[rows], presence.shape[1])
    return counts, selected, attention / max(len(lengths), 1)
