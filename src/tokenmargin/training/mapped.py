"""Sequences that stay on the disk: shards are mapped, and a batch reads the pages of its own rows."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray as Array
from torch import Tensor

from tokenmargin.data.prepared import PreparedText
from tokenmargin.training.batches import Ragged


@dataclass(frozen=True, eq=False)
class MappedSequences:
    """The texts of some shards, end to end, as training data.

    **Attributes**
    - `ids`, `offsets`, `labels`: of each shard, wherever they lie.
    - `firsts`: the number of each shard's first text, and how many texts there are.
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
        """Over shards whose texts all have a token, as `prepare` leaves them."""
        if not sum(shard.n for shard in shards):
            raise ValueError("there is no text in the shards; prepare some with a token in them")
        for shard in shards:
            for array in (shard.ids, shard.offsets, shard.labels):
                _expect_jumps(array)
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

    def batch(self, rows: Tensor) -> Ragged:
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
        return Ragged(
            ids.to(self.device), segment.to(self.device), torch.from_numpy(labels).to(self.device, self.dtype)
        )


def _expect_jumps(array: Array) -> None:
    """Tell the kernel that a mapped array is read here and there: reading ahead would fetch far more than is used."""
    mapping = getattr(array, "_mmap", None)
    if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
        mapping.madvise(mmap.MADV_RANDOM)
