"""Several processes that train one model: which rank each has, what each computes, and what they exchange.

`torchrun` starts the processes and gives each its rank. Without it there is one process, and nothing is exchanged. All
communication goes through `Ranks`, which counts in `moved` the bytes that one rank hands over. A step of the one-layer
model is split by texts or by the embedding dimension.

By texts, each rank attends over its part of the batch, and the partial c and e are added up: two vectors as long as the
vocabulary, whatever the dimension. Every rank then takes the same step, so all hold the same bits.

By dimension, each of n ranks holds some columns of E, p, v and their moments, so it needs an n-th of the memory and of
the time of the update. The scores `<E_s, p>` and `<E_s, v>` are sums over the columns, so the partial scores of the
batch's tokens are added up. The gradient in a rank's columns needs nothing else.
"""

from __future__ import annotations

import abc
import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous as torch_rendezvous

from tokenmargin.training.batches import RaggedBatch
from tokenmargin.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint, whole_steps

PAUSE = 0.01  # seconds between two looks at the store
PATIENCE = 600.0  # seconds after which a rank gives up waiting for another

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Ranks:
    """One process among `size`; all of them call the same methods in the same order.

    **Attributes**
    - `device`: where this rank computes.
    - `moved`: how many bytes this rank has handed over, by purpose.

    >>> ranks = Ranks()
    >>> ranks.is_first, ranks.any_true(False, True), ranks.sum_(torch.ones(2), "vectors").tolist()
    (True, (False, True), [1.0, 1.0])
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable
    moved: dict[str, int] = field(default_factory=dict)

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that writes files and prints."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether this is the only rank."""
        return self.size == 1

    def own_part(self, n: int) -> slice:
        """This rank's part of `n` things; the parts of all ranks cover them, and their sizes differ by one at most.

        >>> [Ranks(rank, 3).own_part(7) for rank in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
        """
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def sum_(self, tensor: Tensor, purpose: str) -> Tensor:
        """Replace a tensor by its sum over the ranks, which has the same bits on all of them."""
        if not self.is_alone:
            self._count(tensor, purpose)
            dist.all_reduce(tensor)
        return tensor

    def copy_from_first_(self, tensor: Tensor, purpose: str) -> Tensor:
        """Replace a tensor by the first rank's tensor."""
        if not self.is_alone:
            self._count(tensor, purpose)
            dist.broadcast(tensor, 0)
        return tensor

    def any_true(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is true on some rank."""
        if self.is_alone:
            return flags
        votes = self.sum_(torch.tensor(flags, dtype=torch.int32, device=self.device), "flags")
        return tuple(bool(vote) for vote in votes.tolist())

    def wait_for_all(self) -> None:
        """Return when all ranks have made this call."""
        if not self.is_alone:
            dist.barrier()

    def from_first(self, value: Value) -> Value:
        """The value that the first rank gives; it may be any object that can be pickled."""
        if self.is_alone:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0, device=self.device)
        return box[0]

    def from_all(self, value: Value) -> list[Value]:
        """The values that the ranks give, in order of rank."""
        found: list[Value | None] = [value] * self.size
        if not self.is_alone:
            dist.all_gather_object(found, value)
        return [item for item in found if item is not None]

    def _count(self, tensor: Tensor, purpose: str) -> None:
        self.moved[purpose] = self.moved.get(purpose, 0) + tensor.numel() * tensor.element_size()


@contextlib.contextmanager
def join_ranks(device: str = "cpu") -> Iterator[Ranks]:
    """The ranks that `torchrun` started, or this process alone.

    **Arguments**
    - `device`: `cpu` (the ranks exchange by gloo) or `cuda` (by NCCL; each rank uses the GPU of its local number).
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", local % max(torch.cuda.device_count(), 1)) if device == "cuda" else torch.device("cpu")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if size == 1:
        yield Ranks(device=place)
        return
    # NCCL does not connect ranks that share a GPU; gloo copies through the host.
    crowded = int(os.environ.get("LOCAL_WORLD_SIZE", size)) > torch.cuda.device_count()
    backend = "nccl" if place.type == "cuda" and not crowded else "gloo"
    store, rank, size = next(torch_rendezvous("env://", timeout=timedelta(seconds=PATIENCE)))
    store = rendezvous(store, rank, size, timeout=PATIENCE)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=PATIENCE))
    try:
        yield Ranks(rank, size, place)
    finally:
        dist.destroy_process_group()


def rendezvous(store: Store, rank: int, size: int, *, timeout: float) -> Store:
    """A key-value store that only the living ranks of this attempt use.

    After a restart, `torchrun` lets the new ranks share one store with the dead ones, so a rank could read what a dead
    rank left there and wait for it for ever. Here every process proves that it is alive. Each writes a random token.
    The first rank answers with all tokens and a name for the attempt. Each accepts only an answer to its own token.
    """
    deadline = time.monotonic() + timeout
    name = _agree_as_first(store, size, deadline) if rank == 0 else _agree_as_other(store, rank, deadline)
    return PrefixStore(name, store)


def _agree_as_first(store: Store, size: int, deadline: float) -> str:
    """The first rank: answer the tokens, again whenever one changes, until every rank has agreed to the name."""
    name, last_answer = secrets.token_hex(8), ""
    others = range(1, size)
    while not store.check([f"agreed/{name}/{rank}" for rank in others]):
        known = [rank for rank in others if store.check([f"token/{rank}"])]
        answer = json.dumps([name, {str(rank): store.get(f"token/{rank}").decode() for rank in known}])
        if answer != last_answer:
            store.set("answer", answer)
            last_answer = answer
        _pause(deadline, f"{len(known)} of {size - 1} other ranks came")
    return name


def _agree_as_other(store: Store, rank: int, deadline: float) -> str:
    """The other ranks: write a token and wait for the answer to it."""
    token = secrets.token_hex(8)
    store.set(f"token/{rank}", token)
    while True:
        if store.check(["answer"]):
            name, tokens = json.loads(store.get("answer"))
            if tokens.get(str(rank)) == token:
                store.set(f"agreed/{name}/{rank}", "")
                return str(name)
        _pause(deadline, "the first rank did not answer")


def _pause(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"the ranks did not meet in time: {what}; do all of them run, and reach the same address?")
    time.sleep(PAUSE)


@dataclass(frozen=True, eq=False)
class AbstractSplit(abc.ABC):
    """How a step is split among the ranks: what each computes, and what they exchange."""

    ranks: Ranks = field(default_factory=Ranks)

    @abc.abstractmethod
    def own_rows(self, n: int) -> slice:
        """The rows of a batch of `n` that this rank attends over."""

    @abc.abstractmethod
    def own_columns(self, d: int) -> slice:
        """The columns of the embeddings that this rank holds."""

    @abc.abstractmethod
    def batch_scores(self, scores: Tensor, batch: RaggedBatch) -> Tensor:
        """The scores of the batch's tokens, given the part of every score that comes from this rank's columns."""

    @abc.abstractmethod
    def batch_weights(self, weights: Tensor) -> Tensor:
        """c and e of the whole batch, given those of this rank's rows."""

    @abc.abstractmethod
    def total(self, value: Tensor, purpose: str = "scalars") -> Tensor:
        """The sum over all rows, given the sum over this rank's rows."""

    @abc.abstractmethod
    def all_scores(self, scores: Tensor) -> Tensor:
        """The scores of the whole vocabulary, given this rank's part of them."""

    @abc.abstractmethod
    def save(self, folder: Path, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Write a checkpoint of all ranks."""

    @abc.abstractmethod
    def load(self, folder: Path) -> Checkpoint | None:
        """The newest checkpoint that is whole on all ranks."""

    @abc.abstractmethod
    def share_loaded(self, tensors: Mapping[str, Tensor]) -> None:
        """Give every rank the tensors that were loaded."""

    def _refuse_foreign(self, folder: Path, foreign: list[str]) -> None:
        """Raise on all ranks if one of them has found files of another split in the folder."""
        found = [names[0] for names in self.ranks.from_all(foreign) if names]
        if found:
            raise ValueError(
                f"{folder} holds {found[0]}, of a run that was split in another way or over another number of ranks; "
                "split as it was, or choose another folder"
            )


@dataclass(frozen=True, eq=False)
class ByTexts(AbstractSplit):
    """Each rank takes its part of every batch. With one rank this is plain training."""

    def own_rows(self, n: int) -> slice:
        return self.ranks.own_part(n)

    def own_columns(self, d: int) -> slice:
        return slice(0, d)

    def batch_scores(self, scores: Tensor, batch: RaggedBatch) -> Tensor:
        return scores

    def batch_weights(self, weights: Tensor) -> Tensor:
        return self.ranks.sum_(weights, "vectors")

    def total(self, value: Tensor, purpose: str = "scalars") -> Tensor:
        return self.ranks.sum_(value, purpose)

    def all_scores(self, scores: Tensor) -> Tensor:
        return scores

    def save(self, folder: Path, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """The first rank writes. That all ranks hold the same bits is checked before."""
        if not self.ranks.is_alone and len(set(self.ranks.from_all(_bit_sum(tensors)))) > 1:
            raise RuntimeError(
                f"the ranks differ after step {step}: they must run the same torch on processors of the same kind"
            )
        if self.ranks.is_first:
            save_checkpoint(folder, step, tensors, record)

    def load(self, folder: Path) -> Checkpoint | None:
        """Only the first rank reads, so the others need no access to the folder; `share_loaded` does the rest."""
        self._refuse_foreign(folder, [place.name for place in folder.glob("columns-*")])
        found = load_checkpoint(folder) if self.ranks.is_first else None
        known = self.ranks.from_first(None if found is None else replace(found, tensors={}))
        return found if self.ranks.is_first else known

    def share_loaded(self, tensors: Mapping[str, Tensor]) -> None:
        for tensor in tensors.values():
            self.ranks.copy_from_first_(tensor, "start")


@dataclass(frozen=True, eq=False)
class ByDimension(AbstractSplit):
    """Each rank holds its columns of the embeddings and attends over the whole batch.

    A checkpoint is one folder per rank. It is used only if every rank has it whole.
    """

    def own_rows(self, n: int) -> slice:
        return slice(0, n)

    def own_columns(self, d: int) -> slice:
        if d < self.ranks.size:
            raise ValueError(f"a dimension of {d} cannot be split over {self.ranks.size} ranks; use fewer ranks")
        return self.ranks.own_part(d)

    def batch_scores(self, scores: Tensor, batch: RaggedBatch) -> Tensor:
        """Only the scores of the batch's tokens are exchanged; the other entries of the answer are not filled in."""
        seen = torch.zeros(scores.shape[1], dtype=torch.bool, device=scores.device)
        seen[batch.ids] = True
        tokens = seen.nonzero().squeeze(1)  # in order, and without the sorting of torch.unique
        whole = torch.empty_like(scores)
        whole[:, tokens] = self.ranks.sum_(scores[:, tokens], "vectors")
        return whole

    def batch_weights(self, weights: Tensor) -> Tensor:
        return weights

    def total(self, value: Tensor, purpose: str = "scalars") -> Tensor:
        return value

    def all_scores(self, scores: Tensor) -> Tensor:
        return self.ranks.sum_(scores.clone(), "all scores")

    def save(self, folder: Path, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Each rank writes its columns, once all have finished the checkpoint before, since only two are kept."""
        self.ranks.wait_for_all()
        save_checkpoint(self._place(folder), step, tensors, record)

    def load(self, folder: Path) -> Checkpoint | None:
        names = [place.name for pattern in ("step-*.json", "columns-*") for place in folder.glob(pattern)]
        self._refuse_foreign(folder, [name for name in names if not name.endswith(f"-of-{self.ranks.size}")])
        steps = self.ranks.from_all(whole_steps(self._place(folder)))
        common = set.intersection(*map(set, steps))
        return load_checkpoint(self._place(folder), step=max(common)) if common else None

    def share_loaded(self, tensors: Mapping[str, Tensor]) -> None:
        """Every rank has loaded its own columns."""

    def _place(self, folder: Path) -> Path:
        return folder / f"columns-{self.ranks.rank}-of-{self.ranks.size}"


def _bit_sum(tensors: Mapping[str, Tensor]) -> int:
    """The sum of the tensors' bits read as whole numbers, which changes when any one bit does."""
    words = {4: torch.int32, 8: torch.int64}
    return sum(int(tensor.view(words[tensor.element_size()]).sum(dtype=torch.int64)) for tensor in tensors.values())
