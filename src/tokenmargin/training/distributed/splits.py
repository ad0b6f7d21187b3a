"""How the one-layer step is shared among ranks: by texts, or by the embedding dimension.

By texts, each rank attends over its part of the batch and the partial c and e are added up: two vectors of vocabulary
length, whatever the dimension. Every rank then takes the same step, so all hold the same bits.

By dimension, each rank holds some columns of E, p, v and their moments: an n-th of the memory and of the update. The
scores `<E_s, p>` and `<E_s, v>` are sums over the columns, so the partial scores of the batch's tokens are added up;
the gradient in a rank's columns needs nothing else.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tokenmargin.training.batches import Ragged
from tokenmargin.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, whole_steps
from tokenmargin.training.distributed.ranks import Ranks


@dataclass(frozen=True, eq=False)
class AbstractSplit(abc.ABC):
    """What each rank does of a step, and what it exchanges."""

    ranks: Ranks = field(default_factory=Ranks)

    @abc.abstractmethod
    def rows(self, n: int) -> slice:
        """The rows of a batch of `n` that this rank attends over."""

    @abc.abstractmethod
    def columns(self, d: int) -> slice:
        """The columns of the embeddings that this rank holds."""

    @abc.abstractmethod
    def complete(self, scores: Tensor, batch: Ragged) -> Tensor:
        """The scores of the batch's tokens from this rank's part of them."""

    @abc.abstractmethod
    def gather(self, weights: Tensor) -> Tensor:
        """c and e of the whole batch from those of this rank's rows."""

    @abc.abstractmethod
    def total(self, value: Tensor, purpose: str = "scalars") -> Tensor:
        """A sum over all rows from the sum over this rank's."""

    @abc.abstractmethod
    def all_scores(self, scores: Tensor) -> Tensor:
        """The scores of the whole vocabulary."""

    @abc.abstractmethod
    def save(self, folder: Path, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Write a checkpoint of all ranks."""

    @abc.abstractmethod
    def load(self, folder: Path) -> Checkpoint | None:
        """The newest checkpoint that is whole on all ranks."""

    @abc.abstractmethod
    def align(self, tensors: Mapping[str, Tensor]) -> None:
        """Bring the ranks to the same state after loading."""

    def _refuse(self, folder: Path, foreign: list[str]) -> None:
        """Say it, on all ranks, when one of them finds the files of another split in the folder."""
        found = [names[0] for names in self.ranks.all(foreign) if names]
        if found:
            raise ValueError(
                f"{folder} holds {found[0]}, of a run that was split in another way or over another number of ranks; "
                "split as it was, or choose another folder"
            )


@dataclass(frozen=True, eq=False)
class ByTexts(AbstractSplit):
    """Each rank takes its part of every batch. With one rank this is plain training."""

    def rows(self, n: int) -> slice:
        return self.ranks.portion(n)

    def columns(self, d: int) -> slice:
        return slice(0, d)

    def complete(self, scores: Tensor, batch: Ragged) -> Tensor:
        return scores

    def gather(self, weights: Tensor) -> Tensor:
        return self.ranks.sum_(weights, "vectors")

    def total(self, value: Tensor, purpose: str = "scalars") -> Tensor:
        return self.ranks.sum_(value, purpose)

    def all_scores(self, scores: Tensor) -> Tensor:
        return scores

    def save(self, folder: Path, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """The first rank writes; all hold the same, which is checked first."""
        if not self.ranks.alone and len(set(self.ranks.all(_bits(tensors)))) > 1:
            raise RuntimeError(
                f"the ranks differ after step {step}: they must run the same torch on processors of the same kind"
            )
        if self.ranks.first:
            save_checkpoint(folder, step, tensors, record)

    def load(self, folder: Path) -> Checkpoint | None:
        """The first rank reads, so only it needs the folder; `align` hands out what it read."""
        self._refuse(folder, [place.name for place in folder.glob("columns-*")])
        found = load_checkpoint(folder) if self.ranks.first else None
        known = self.ranks.tell(None if found is None else replace(found, tensors={}))
        return found if self.ranks.first else known

    def align(self, tensors: Mapping[str, Tensor]) -> None:
        for tensor in tensors.values():
            self.ranks.copy_(tensor, "start")


@dataclass(frozen=True, eq=False)
class ByDimension(AbstractSplit):
    """Each rank holds its columns of the embeddings and attends over the whole batch.

    A checkpoint is one folder per rank, and counts when every rank has it whole.
    """

    def rows(self, n: int) -> slice:
        return slice(0, n)

    def columns(self, d: int) -> slice:
        if d < self.ranks.size:
            raise ValueError(f"a dimension of {d} cannot be split over {self.ranks.size} ranks; use fewer ranks")
        return self.ranks.portion(d)

    def complete(self, scores: Tensor, batch: Ragged) -> Tensor:
        """Only the tokens of the batch are exchanged; the others' scores are not filled in."""
        seen = torch.zeros(scores.shape[1], dtype=torch.bool, device=scores.device)
        seen[batch.ids] = True
        tokens = seen.nonzero().squeeze(1)  # in order, and without the sorting of torch.unique
        whole = torch.empty_like(scores)
        whole[:, tokens] = self.ranks.sum_(scores[:, tokens], "vectors")
        return whole

    def gather(self, weights: Tensor) -> Tensor:
        return weights

    def total(self, value: Tensor, purpose: str = "scalars") -> Tensor:
        return value

    def all_scores(self, scores: Tensor) -> Tensor:
        return self.ranks.sum_(scores.clone(), "all scores")

    def save(self, folder: Path, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Each rank writes its columns. All have finished the checkpoint before when one begins: two are kept."""
        self.ranks.wait()
        save_checkpoint(self._place(folder), step, tensors, record)

    def load(self, folder: Path) -> Checkpoint | None:
        names = [place.name for pattern in ("step-*.json", "columns-*") for place in folder.glob(pattern)]
        self._refuse(folder, [name for name in names if not name.endswith(f"-of-{self.ranks.size}")])
        steps = self.ranks.all(whole_steps(self._place(folder)))
        common = set.intersection(*map(set, steps))
        return load_checkpoint(self._place(folder), step=max(common)) if common else None

    def align(self, tensors: Mapping[str, Tensor]) -> None:
        return

    def _place(self, folder: Path) -> Path:
        return folder / f"columns-{self.ranks.rank}-of-{self.ranks.size}"


def _bits(tensors: Mapping[str, Tensor]) -> int:
    """A number that changes when a bit of the tensors does: the sum of the words that hold them."""
    words = {4: torch.int32, 8: torch.int64}
    return sum(int(tensor.view(words[tensor.element_size()]).sum(dtype=torch.int64)) for tensor in tensors.values())
