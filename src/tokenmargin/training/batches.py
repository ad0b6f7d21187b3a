"""Ragged token ids on a device, and batches of them without padding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Ragged:
    """A batch: the tokens of its rows end to end, the row of each token, and the rows' labels."""

    ids: Tensor
    segment: Tensor
    labels: Tensor


@runtime_checkable
class Sequences(Protocol):
    """Labelled sequences, wherever they are kept: what training asks of its data."""

    @property
    def n(self) -> int:
        """Number of sequences."""

    @property
    def m(self) -> int:
        """Size of the vocabulary."""

    @property
    def device(self) -> torch.device:
        """Where batches are."""

    def batch(self, rows: Tensor) -> Ragged:
        """The tokens of some rows, in the given order."""

    def cast(self, dtype: torch.dtype) -> Sequences:
        """The same with labels of another type."""


@dataclass(frozen=True, eq=False)
class TokenData:
    """All sequences of a corpus as tensors: row `i` is `ids[offsets[i]:offsets[i + 1]]`."""

    ids: Tensor
    offsets: Tensor
    labels: Tensor
    m: int

    @classmethod
    def of(
        cls,
        ids: Array,
        offsets: Array,
        labels: Array,
        *,
        m: int,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> TokenData:
        """From plain arrays; checked once here, trusted afterwards."""
        if (np.diff(offsets) < 1).any():
            raise ValueError(f"sequence {int(np.argmin(np.diff(offsets)))} has no token; drop empty texts first")
        if len(offsets) != len(labels) + 1 or offsets[0] != 0 or offsets[-1] != len(ids):
            raise ValueError(f"offsets must run from 0 to {len(ids)} with one more entry than the {len(labels)} labels")
        if len(ids) and (ids.min() < 0 or ids.max() >= m):
            raise ValueError(f"token ids must lie in 0..{m - 1}, got {ids.min()}..{ids.max()}")
        if not np.isin(labels, (-1, 1)).all():
            raise ValueError("labels must be -1 or +1")
        return cls(
            torch.as_tensor(np.array(ids), device=device).long(),
            torch.as_tensor(np.array(offsets), device=device).long(),
            torch.as_tensor(np.array(labels), device=device).to(dtype),
            m,
        )

    @property
    def n(self) -> int:
        """Number of sequences."""
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """Where the tokens are."""
        return self.ids.device

    def cast(self, dtype: torch.dtype) -> TokenData:
        """The same with labels of another type."""
        return self if self.labels.dtype == dtype else replace(self, labels=self.labels.to(dtype))

    def batch(self, rows: Tensor) -> Ragged:
        """The tokens of some rows, in the given order."""
        begin = self.offsets[rows]
        lengths = self.offsets[rows + 1] - begin
        ends = lengths.cumsum(0)
        segment = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), lengths)
        place = torch.arange(len(segment), device=rows.device) + (begin - ends + lengths)[segment]
        return Ragged(self.ids[place], segment, self.labels[rows])


def truncated(data: Sequences, tokens: int) -> Sequences:
    """The same sequences cut after so many tokens; 0 keeps them whole."""
    if not tokens:
        return data
    if not isinstance(data, TokenData):
        raise ValueError("max_tokens needs the data in memory; cut the texts when they are prepared")
    lengths = data.offsets.diff()
    kept = lengths.clamp(max=tokens)
    place = torch.arange(len(data.ids), device=data.device) - torch.repeat_interleave(data.offsets[:-1], lengths)
    offsets = torch.cat([kept.new_zeros(1), kept.cumsum(0)])
    return replace(data, ids=data.ids[place < tokens], offsets=offsets)


def epoch_order(n: int, *, seed: int, epoch: int) -> Array:
    """The order of the rows in an epoch: a function of seed and epoch alone, so nothing need be saved to resume.

    >>> epoch_order(4, seed=0, epoch=0).tolist() == epoch_order(4, seed=0, epoch=0).tolist()
    True
    """
    return np.random.default_rng([seed, epoch]).permutation(n)
