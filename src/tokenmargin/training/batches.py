"""Labelled token sequences for training, in batches without padding: all in memory, or left on the disk."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray as Array
from torch import Tensor

from tokenmargin.data.prepared import PreparedText
from tokenmargin.problem.corpus import TokenCorpus


@dataclass(frozen=True, eq=False)
class RaggedBatch:
    """A batch: the tokens of its rows end to end, the row of each token, and the rows' labels."""

    ids: Tensor
    segment: Tensor
    labels: Tensor


@runtime_checkable
class Sequences(Protocol):
    """What training asks of its data: labelled sequences, wherever they are kept."""

    @property
    def n(self) -> int:
        """Number of sequences."""

    @property
    def m(self) -> int:
        """Size of the vocabulary."""

    @property
    def device(self) -> torch.device:
        """The device of the batches."""

    def batch(self, rows: Tensor) -> RaggedBatch:
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
        """Tensors from plain arrays, which are checked here and nowhere later."""
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
        """The device of the tokens and of the batches."""
        return self.ids.device

    def cast(self, dtype: torch.dtype) -> TokenData:
        """The same with labels of another type."""
        return self if self.labels.dtype == dtype else replace(self, labels=self.labels.to(dtype))

    def batch(self, rows: Tensor) -> RaggedBatch:
        """The tokens of some rows, in the given order."""
        begin = self.offsets[rows]
        lengths = self.offsets[rows + 1] - begin
        ends = lengths.cumsum(0)
        segment = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), lengths)
        # Row k fills `ends[k] - lengths[k] .. ends[k]` of the batch, from `begin[k]` on in `ids`: add the difference.
        place = torch.arange(len(segment), device=rows.device) + (begin - ends + lengths)[segment]
        return RaggedBatch(self.ids[place], segment, self.labels[rows])


def training_data(data: Sequences | PreparedText | TokenCorpus, *, device: str | torch.device = "cpu") -> Sequences:
    """Prepared texts or a corpus as tensors on the device; what is training data already as it is."""
    if isinstance(data, PreparedText):
        return TokenData.of(data.ids, np.asarray(data.offsets), data.labels, m=data.m, device=device)
    if isinstance(data, TokenCorpus):
        offsets = np.concatenate([[0], np.cumsum(data.lengths)])
        return TokenData.of(data.tokens, offsets, data.labels, m=data.size, device=device)
    if not isinstance(data, Sequences):
        raise TypeError(
            "training needs prepared texts (tm.prepare, tm.load_prepared), a TokenCorpus or TokenData, "
            f"got {type(data).__name__}"
        )
    return data


def truncate(data: Sequences, tokens: int) -> Sequences:
    """The sequences cut after their first `tokens` tokens; 0 keeps them whole."""
    if not tokens:
        return data
    if not isinstance(data, TokenData):
        raise ValueError("max_tokens needs the data in memory; cut the texts when they are prepared")
    lengths = data.offsets.diff()
    kept = lengths.clamp(max=tokens)
    # The place of each token in its own sequence, counted from 0.
    place = torch.arange(len(data.ids), device=data.device) - torch.repeat_interleave(data.offsets[:-1], lengths)
    offsets = torch.cat([kept.new_zeros(1), kept.cumsum(0)])
    return replace(data, ids=data.ids[place < tokens], offsets=offsets)


def epoch_order(n: int, *, seed: int, epoch: int) -> Array:
    """The order of the rows in an epoch. It depends on seed and epoch alone, so a checkpoint need not hold it.

    >>> epoch_order(4, seed=0, epoch=0).tolist() == epoch_order(4, seed=0, epoch=0).tolist()
    True
    """
    return np.random.default_rng([seed, epoch]).permutation(n)


@dataclass(frozen=True, eq=False)
class MappedSequences:
    """The texts of some shards as training data; the files are mapped, and a batch reads the pages of its own rows.

    **Attributes**
    - `ids`, `offsets`, `labels`: those of each shard.
    - `firsts`: the number of each shard's first text, and at the end the number of all texts.
    """

    ids: tuple[Int[Array, " tokens"], ...]
    offsets: tuple[Int[Array, " n_plus_1"], ...]
    labels: tuple[Int[Array, " n"], ...]
    firsts: Int[Array, " shards_plus_1"]
    m: int
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable

    @classmethod
    def of(cls, shards: Sequence[PreparedText], *, m: int, device: str | torch.device = "cpu") -> MappedSequences:
        """Training data over shards in which every text has a token, as `prepare` writes them."""
        if not sum(shard.n for shard in shards):
            raise ValueError("there is no text in the shards; prepare some with a token in them")
        for shard in shards:
            for array in (shard.ids, shard.offsets, shard.labels):
                _disable_readahead(array)
        # Plain arrays over the mapping: slicing a memmap costs three times as much.
        return cls(
            tuple(np.asarray(shard.ids).view(np.ndarray) for shard in shards),
            tuple(np.asarray(shard.offsets).view(np.ndarray) for shard in shards),
            tuple(np.asarray(shard.labels).view(np.ndarray) for shard in shards),
            np.cumsum([0, *(shard.n for shard in shards)]),
            m,
            device=torch.device(device),
        )

    @property
    def n(self) -> int:
        """Number of sequences."""
        return int(self.firsts[-1])

    def cast(self, dtype: torch.dtype) -> MappedSequences:
        """The same with labels of another type."""
        return replace(self, dtype=dtype)

    def batch(self, rows: Tensor) -> RaggedBatch:
        """The tokens of some rows, in the given order."""
        wanted = rows.cpu().numpy()
        shards = np.searchsorted(self.firsts, wanted, side="right") - 1
        pieces, labels = [np.zeros(0, np.int32)], np.empty(len(wanted), np.int8)
        for k, (shard, row) in enumerate(zip(shards.tolist(), (wanted - self.firsts[shards]).tolist(), strict=True)):
            offsets = self.offsets[shard]
            pieces.append(self.ids[shard][offsets[row] : offsets[row + 1]])
            labels[k] = self.labels[shard][row]
        lengths = torch.tensor([len(piece) for piece in pieces[1:]], dtype=torch.long)
        segment = torch.repeat_interleave(torch.arange(len(wanted)), lengths)
        ids = torch.from_numpy(np.concatenate(pieces).astype(np.int64))
        return RaggedBatch(
            ids.to(self.device), segment.to(self.device), torch.from_numpy(labels).to(self.device, self.dtype)
        )


def _disable_readahead(array: Array) -> None:
    """Tell the operating system not to read ahead in a mapped array, since few neighbouring pages are used."""
    mapping = getattr(array, "_mmap", None)
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)
