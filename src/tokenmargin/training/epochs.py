"""The loop of every trainer: epochs of batches in an order fixed by the seed, metrics, checkpoints, and a clean end."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from tokenmargin._files import atomic_path, remove_leftovers
from tokenmargin.training.batches import epoch_order
from tokenmargin.training.distributed.splits import AbstractSplit, ByTexts

__all__ = ["Progress", "Row", "Schedule", "Status", "Trainable", "TrainingHistory", "run_epochs"]

Status = Literal["finished", "loss reached", "out of time", "interrupted"]
Row = dict[str, float | int]


class Counted(Protocol):
    """A state that knows how many steps have been taken."""

    step: int


class Trainable(Protocol):
    """What the loop asks of a model."""

    @property
    def state(self) -> Counted:
        """Where it stands."""

    def run(self, order: Tensor, batch: int, *, first: int, last: int, rate: float) -> Tensor:
        """Train on batches `first..last-1` of the epoch's `order`; the sum of the losses of their rows."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything that must be saved to go on exactly."""

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Go on from saved tensors."""


class Schedule(Protocol):
    """What the loop asks of a config, which is a frozen dataclass."""

    @property
    def epochs(self) -> int:
        """How many."""

    @property
    def batch(self) -> int:
        """Rows of a batch."""

    @property
    def seed(self) -> int:
        """Of the order of the rows."""

    def rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""


Learner = TypeVar("Learner", bound=Trainable)


@dataclass(frozen=True)
class Progress:
    """Where a run stands: for progress bars."""

    epoch: int
    step: int
    steps: int
    loss: float
    steps_per_second: float


@dataclass(frozen=True)
class TrainingHistory:
    """How a run went: one row of metrics per finished epoch, why it ended, seconds of all calls, notes."""

    metrics: list[Row]
    status: Status
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass
class _Position:
    """Where training stands, as saved."""

    epoch: int = 0
    batch: int = 0
    total: float = 0.0
    metrics: list[Row] = field(default_factory=list)
    seconds: float = 0.0


def run_epochs(
    model: Learner,
    config: Schedule,
    *,
    n: int,
    device: torch.device,
    folder: str | Path | None = None,
    split: AbstractSplit | None = None,
    checkpoint_every: float = 60.0,
    stop_loss: float = 0.0,
    budget: float = float("inf"),
    observe: Callable[[Learner], Mapping[str, float]] | None = None,
    observe_at: Callable[[int], bool] = lambda epoch: True,
    chunk: int = 64,
    progress: Callable[[Progress], None] | None = None,
) -> TrainingHistory:
    """Train on n rows, or go on with the training that `folder` holds; the arguments are those of `train`.

    Where `observe_at(0)`, the model is also observed before the first step, in a row of its own without a loss.
    """
    split = split or ByTexts()
    place = None if folder is None else Path(folder)
    if place is not None and split.ranks.first:
        remove_leftovers(place)
    position, notes = _resume(model, config, place, split)
    per_epoch = -(-n // config.batch)
    first = saved = time.monotonic()
    began = first - position.seconds
    budget += position.seconds
    status: Status = "finished"
    first_step = model.state.step
    if observe is not None and first_step == 0 and not position.metrics and observe_at(0):
        position.metrics.append({"epoch": 0, "rate": 0.0, **observe(model)})
    with _interrupts() as interrupted:
        while position.epoch < config.epochs:
            order = torch.as_tensor(epoch_order(n, seed=config.seed, epoch=position.epoch), device=device)
            rate = config.rate_at(position.epoch)
            while position.batch < per_epoch and status == "finished":
                last = min(position.batch + chunk, per_epoch)
                total = model.run(order, config.batch, first=position.batch, last=last, rate=rate)
                position.total += float(total)
                position.batch = last
                now = time.monotonic()
                if progress is not None:
                    rows = min(last * config.batch, n)
                    speed = (model.state.step - first_step) / max(now - first, 1e-9)
                    steps = per_epoch * config.epochs
                    progress(Progress(position.epoch, model.state.step, steps, position.total / rows, speed))
                position.seconds = now - began
                # Ranks have clocks of their own; what one of them decides, all do.
                due, late, stop = split.ranks.any(
                    now - saved > checkpoint_every, position.seconds > budget, interrupted.is_set()
                )
                if place is not None and due:
                    _save(model, config, position, place, split)
                    saved = time.monotonic()
                if late or stop:
                    status = "interrupted" if stop else "out of time"
            if position.batch == per_epoch:
                row: Row = {"epoch": position.epoch + 1, "rate": rate, "loss": position.total / n}
                if observe is not None and (observe_at(position.epoch + 1) or position.epoch + 1 == config.epochs):
                    row |= observe(model)
                position.metrics.append(row)
                position.epoch, position.batch, position.total = position.epoch + 1, 0, 0.0
                if row["loss"] <= stop_loss and status == "finished":
                    status = "loss reached"
            if status != "finished":
                break
    position.seconds = time.monotonic() - began
    if place is not None:
        _save(model, config, position, place, split)
    return TrainingHistory(position.metrics, status, position.seconds, notes)


def _resume(
    model: Trainable, config: Schedule, folder: Path | None, split: AbstractSplit
) -> tuple[_Position, tuple[str, ...]]:
    """Load the newest whole checkpoint of a folder, if there is one."""
    checkpoint = None if folder is None else split.load(folder)
    if checkpoint is None:
        return _Position(), ()
    saved, ours = checkpoint.record["config"], json.loads(json.dumps(_settings(config)))
    different = [name for name in ours if name != "epochs" and saved.get(name) != ours[name]]
    if different:
        name = different[0]
        raise ValueError(
            f"{folder} holds a run with {name} = {saved.get(name)!r}, not {ours[name]!r}; choose another folder"
        )
    if checkpoint.tensors:
        model.load(checkpoint.tensors, checkpoint.record["step"])
    split.align(model.tensors())
    model.state.step = checkpoint.record["step"]
    notes = tuple(f"damaged checkpoint passed over: {name}" for name in checkpoint.skipped)
    return _Position(**checkpoint.record["position"]), notes


def _settings(config: Any) -> dict[str, Any]:
    return asdict(config)


def _save(model: Trainable, config: Schedule, position: _Position, folder: Path, split: AbstractSplit) -> None:
    record = {"config": _settings(config), "position": asdict(position)}
    split.save(folder, model.state.step, model.tensors(), record)
    if position.metrics and split.ranks.first:
        _write_metrics(position.metrics, folder / "metrics.parquet")


def _write_metrics(metrics: Sequence[Row], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in metrics for name in row))
    table = pa.table({name: pa.array([row.get(name) for row in metrics], pa.float64()) for name in names})
    with atomic_path(path) as beside:
        pq.write_table(table, beside)


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Ctrl-C asks for the end of the chunk in hand, so that no step is left half done; a second one is immediate."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def on_interrupt(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
