"""Several processes training one model: the place of each among them, what each does, and what they exchange.

`torchrun` starts the processes and tells each its rank; without it a process is alone and nothing is exchanged. Every
collective goes through `Ranks`, so `moved` is what training really hands to the network: the payload of one rank, in
bytes. A step of the one-layer model is split by texts or by the embedding dimension.

By texts, each rank attends over its part of the batch and the partial c and e are added up: two vectors of vocabulary
length, whatever the dimension. Every rank then takes the same step, so all hold the same bits.

By dimension, each rank holds some columns of E, p, v and their moments: an n-th of the memory and of the update. The
scores `<E_s, p>` and `<E_s, v>` are sums over the columns, so the partial scores of the batch's tokens are added up;
the gradient in a rank's columns needs nothing else.
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

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Ranks:
    """One process among `size`, all of which call the same methods in the same order.

    **Attributes**
    - `device`: where this rank computes.
    - `moved`: bytes given to collectives, by purpose.

    >>> ranks = Ranks()
    >>> ranks.first, ranks.any(False, True), ranks.sum_(torch.ones(2), "vectors").tolist()
    (True, (False, True), [1.0, 1.0])
    """

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - immutable
    moved: dict[str, int] = field(default_factory=dict)

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes and speaks."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is nobody to exchange anything with."""
        return self.size == 1

    def portion(self, n: int) -> slice:
        """Our run of `n` things; the runs of all ranks cover them and differ by one in length.

        >>> [Ranks(rank, 3).portion(7) for rank in range(3)]
        [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
        """
        return slice(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def sum_(self, tensor: Tensor, purpose: str) -> Tensor:
        """Replace a tensor by its sum over the ranks: the same bits on all of them."""
        if not self.alone:
            self._count(tensor, purpose)
            dist.all_reduce(tensor)
        return tensor

    def copy_(self, tensor: Tensor, purpose: str) -> Tensor:
        """Replace a tensor by that of the first rank."""
        if not self.alone:
            self._count(tensor, purpose)
            dist.broadcast(tensor, 0)
        return tensor

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Which of the flags is raised on some rank."""
        if self.alone:
            return flags
        votes = self.sum_(torch.tensor(flags, dtype=torch.int32, device=self.device), "flags")
        return tuple(bool(vote) for vote in votes.tolist())

    def wait(self) -> None:
        """Go on when all ranks have come here."""
        if not self.alone:
            dist.barrier()

    def tell(self, value: Value) -> Value:
        """What the first rank holds: any plain object."""
        if self.alone:
            return value
        box = [value]
        dist.broadcast_object_list(box, 0, device=self.device)
        return box[0]

    def all(self, value: Value) -> list[Value]:
        """What every rank holds, in order of rank."""
        found: list[Value | None] = [value] * self.size
        if not self.alone:
            dist.all_gather_object(found, value)
        return [item for item in found if item is not None]

    def _count(self, tensor: Tensor, purpose: str) -> None:
        self.moved[purpose] = self.moved.get(purpose, 0) + tensor.numel() * tensor.element_size()


@contextlib.contextmanager
def join_ranks(device: str = "cpu", *, timeout: float = 600.0) -> Iterator[Ranks]:
    """The ranks that `torchrun` started, or this process alone.

    **Arguments**
    - `device`: `cpu` (exchange by gloo) or `cuda` (by NCCL, each rank on the GPU of its local number).
    - `timeout`: seconds after which a rank that waits for a dead one gives up.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    place = torch.device("cuda", local % max(torch.cuda.device_count(), 1)) if device == "cuda" else torch.device("cpu")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if size == 1:
        yield Ranks(device=place)
        return
    # Ranks that share a GPU cannot speak NCCL with each other; gloo copies through the host.
    crowded = int(os.environ.get("LOCAL_WORLD_SIZE", size)) > torch.cuda.device_count()
    backend = "nccl" if place.type == "cuda" and not crowded else "gloo"
    store, rank, size = next(torch_rendezvous("env://", timeout=timedelta(seconds=timeout)))
    store = rendezvous(store, rank, size, timeout=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout))
    try:
        yield Ranks(rank, size, place)
    finally:
        dist.destroy_process_group()


def rendezvous(store: Store, rank: int, size: int, *, timeout: float) -> Store:
    """A store that only the living ranks of this attempt use.

    `torchrun` lets the ranks of all attempts share one store of keys, so a new rank can read what a dead one left there
    and wait for it for ever. Here every process proves that it is alive: each puts down a token of its own, the first
    rank answers with all of them and a name for the attempt, and each accepts only an answer to its own token.
    """
    deadline = time.monotonic() + timeout
    name = _invite(store, size, deadline) if rank == 0 else _answer(store, rank, deadline)
    return PrefixStore(name, store)


def _invite(store: Store, size: int, deadline: float) -> str:
    """Answer to the tokens that are there, again when one changes, until every rank has agreed to our name."""
    name, said = secrets.token_hex(8), ""
    others = range(1, size)
    while not store.check([f"agreed/{name}/{rank}" for rank in others]):
        known = [rank for rank in others if store.check([f"token/{rank}"])]
        answer = json.dumps([name, {str(rank): store.get(f"token/{rank}").decode() for rank in known}])
        if answer != said:
            store.set("answer", answer)
            said = answer
        _pause(deadline, f"{len(known)} of {size - 1} other ranks came")
    return name


def _answer(store: Store, rank: int, deadline: float) -> str:
    """Put down a token and wait for the answer to it."""
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
    """What each rank does of a step, and what it exchanges."""

    ranks: Ranks = field(default_factory=Ranks)

    @abc.abstractmethod
    def rows(self, n: int) -> slice:
        """The rows of a batch of `n` that this rank attends over."""

    @abc.abstractmethod
    def columns(self, d: int) -> slice:
        """The columns of the embeddings that this rank holds."""

    @abc.abstractmethod
    def complete(self, scores: Tensor, batch: RaggedBatch) -> Tensor:
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

    def complete(self, scores: Tensor, batch: RaggedBatch) -> Tensor:
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

    def complete(self, scores: Tensor, batch: RaggedBatch) -> Tensor:
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
