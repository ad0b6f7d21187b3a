"""The loop that trains every model: batches in an order fixed by the seed, metrics, checkpoints, and a clean end."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from tokenmargin._files import atomic_path, locked_folder, remove_leftovers
from tokenmargin.training.batches import epoch_order
from tokenmargin.training.checkpoint import damaged_checkpoints
from tokenmargin.training.ranks import AbstractSplit, ByTexts

Status = Literal["finished", "loss reached", "out of time", "interrupted", "diverged"]
Row = dict[str, float | int]


class StepCounter(Protocol):
    """A state that knows how many steps have been taken."""

    step: int


class Trainable(Protocol):
    """What the loop asks of a model."""

    @property
    def state(self) -> StepCounter:
        """What has been trained so far."""

    def run(self, order: Tensor, batch: int, *, first: int, last: int, rate: float) -> Tensor:
        """Train on the batches `first..last-1` of the epoch's `order`; returns the sum of the losses of their rows."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything that must be saved to go on exactly."""

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Go on from saved tensors."""


class Schedule(Protocol):
    """What the loop asks of a config, which is a frozen dataclass."""

    @property
    def epochs(self) -> int:
        """Number of epochs."""

    @property
    def batch(self) -> int:
        """Number of rows in a batch."""

    @property
    def seed(self) -> int:
        """Decides the order of the rows."""

    def rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0."""


Learner = TypeVar("Learner", bound=Trainable)


@dataclass(frozen=True)
class TrainingProgress:
    """How far a run is, for progress bars."""

    epoch: int
    step: int
    steps: int
    loss: float
    steps_per_second: float


@dataclass(frozen=True)
class TrainingHistory:
    """How a run went: a row of metrics for each finished epoch, why it ended, the seconds of all calls, and notes."""

    metrics: list[Row]
    status: Status
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass
class _Position:
    """How far training is, as a checkpoint keeps it; `total` is the sum of the losses of the epoch in hand."""

    epoch: int = 0
    batch: int = 0
    total: float = 0.0
    metrics: list[Row] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class EpochLoop(Generic[Learner]):
    """Training on n rows, or going on with the training that `folder` holds; the other arguments are those of `train`.

    Where `observe_at(0)`, the model is also observed before the first step, in a row of its own without a loss.
    """

    model: Learner
    config: Schedule
    _: KW_ONLY
    n: int
    device: torch.device
    folder: str | Path | None = None
    split: AbstractSplit = field(default_factory=ByTexts)
    checkpoint_every: float = 60.0
    stop_loss: float = 0.0
    budget: float = float("inf")
    observe: Callable[[Learner], Mapping[str, float]] | None = None
    observe_at: Callable[[int], bool] = lambda epoch: True
    chunk: int = 64
    progress: Callable[[TrainingProgress], None] | None = None

    def run(self) -> TrainingHistory:
        """Train to the end, and say how it went."""
        self.place = None if self.folder is None else Path(self.folder)
        with _lock_folder(self.place if self.split.ranks.is_first else None):
            self.position, notes = _resume(self.model, self.config, self.place, self.split)
            at = self.position
            self._start_clocks()
            if self.observe is not None and self.model.state.step == 0 and not at.metrics and self.observe_at(0):
                at.metrics.append({"epoch": 0, "rate": 0.0, **self.observe(self.model)})
            status: Status = "finished"
            with _interrupts() as interrupted:
                while at.epoch < self.config.epochs and status == "finished":
                    status = self._run_epoch(interrupted)
            self._update_seconds()
            if self.place is not None and status != "diverged":  # the last good checkpoint stays
                _save(self.model, self.config, at, self.place, self.split)
        return TrainingHistory(at.metrics, status, at.seconds, notes)

    def _start_clocks(self) -> None:
        self.per_epoch = -(-self.n // self.config.batch)
        self.first = self.saved = time.monotonic()
        self.began = self.first - self.position.seconds  # as if all calls had been one
        self.last_second = self.budget + self.position.seconds
        self.first_step = self.model.state.step

    def _update_seconds(self) -> float:
        """Note how long training has taken in all calls; returns the time now."""
        now = time.monotonic()
        self.position.seconds = now - self.began
        return now

    def _run_epoch(self, interrupted: threading.Event) -> Status:
        """Train to the end of the epoch in hand, or until the run has to end."""
        at = self.position
        order = torch.as_tensor(epoch_order(self.n, seed=self.config.seed, epoch=at.epoch), device=self.device)
        rate = self.config.rate_at(at.epoch)
        status: Status = "finished"
        while at.batch < self.per_epoch and status == "finished":
            last = min(at.batch + self.chunk, self.per_epoch)
            at.total += float(self.model.run(order, self.config.batch, first=at.batch, last=last, rate=rate))
            at.batch = last
            status = self._after_chunk(interrupted)
        if at.batch < self.per_epoch or status == "diverged":
            return status
        loss = self._finish_epoch(rate)
        return "loss reached" if loss <= self.stop_loss and status == "finished" else status

    def _after_chunk(self, interrupted: threading.Event) -> Status:
        """Report progress, save a checkpoint if one is due, and say whether the run has to end."""
        now, at = self._update_seconds(), self.position
        if self.progress is not None:
            step = self.model.state.step
            speed = (step - self.first_step) / max(now - self.first, 1e-9)
            rows = min(at.batch * self.config.batch, self.n)
            self.progress(TrainingProgress(at.epoch, step, self.per_epoch * self.config.epochs, at.total / rows, speed))
        # Every rank has a clock of its own: what one of them decides, all do.
        due, late, stop = self.split.ranks.any_true(
            now - self.saved > self.checkpoint_every, at.seconds > self.last_second, interrupted.is_set()
        )
        if not math.isfinite(at.total):  # the same number on all ranks
            return "diverged"
        if self.place is not None and due:
            _save(self.model, self.config, at, self.place, self.split)
            self.saved = time.monotonic()
        if stop:
            return "interrupted"
        return "out of time" if late else "finished"

    def _finish_epoch(self, rate: float) -> float:
        """Add the row of the epoch, with what is observed, and go to the next epoch; returns the loss of the row."""
        at = self.position
        loss = at.total / self.n
        row: Row = {"epoch": at.epoch + 1, "rate": rate, "loss": loss}
        if self.observe is not None and (self.observe_at(at.epoch + 1) or at.epoch + 1 == self.config.epochs):
            row |= self.observe(self.model)
        at.metrics.append(row)
        at.epoch, at.batch, at.total = at.epoch + 1, 0, 0.0
        return loss


@contextlib.contextmanager
def _lock_folder(folder: Path | None) -> Iterator[None]:
    """Hold the lock of the folder, if there is one, and remove what a killed run left half written."""
    if folder is None:
        yield
        return
    with locked_folder(folder):
        remove_leftovers(folder)
        yield


def _resume(
    model: Trainable, config: Schedule, folder: Path | None, split: AbstractSplit
) -> tuple[_Position, tuple[str, ...]]:
    """Load the newest checkpoint of the folder that is whole; returns the position and notes on damaged ones."""
    checkpoint = None if folder is None else split.load(folder)
    if checkpoint is None:
        damaged = () if folder is None else damaged_checkpoints(folder)
        return _Position(), tuple(f"damaged checkpoint, so training began anew: {name}" for name in damaged)
    saved, ours = checkpoint.record["config"], json.loads(json.dumps(asdict(config)))  # type: ignore[call-overload]
    different = [name for name in ours if name != "epochs" and saved.get(name) != ours[name]]
    if different:
        name = different[0]
        raise ValueError(
            f"{folder} holds a run with {name} = {saved.get(name)!r}, not {ours[name]!r}; choose another folder"
        )
    if checkpoint.tensors:
        model.load(checkpoint.tensors, checkpoint.record["step"])
    split.share_loaded(model.tensors())
    model.state.step = checkpoint.record["step"]
    notes = tuple(f"damaged checkpoint passed over: {name}" for name in checkpoint.skipped)
    return _Position(**checkpoint.record["position"]), notes


def _save(model: Trainable, config: Schedule, position: _Position, folder: Path, split: AbstractSplit) -> None:
    record = {"config": asdict(config), "position": asdict(position)}  # type: ignore[call-overload]
    split.save(folder, model.state.step, model.tensors(), record)
    if position.metrics and split.ranks.is_first:
        _write_metrics(position.metrics, folder / "metrics.parquet")


def _write_metrics(metrics: Sequence[Row], path: Path) -> None:
    """Write the rows as parquet; a number that an epoch does not have is missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in metrics for name in row))
    table = pa.table({name: pa.array([row.get(name) for row in metrics], pa.float64()) for name in names})
    with atomic_path(path) as beside:
        pq.write_table(table, beside)


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Sets the event at Ctrl-C, so that the chunk in hand is finished; a second Ctrl-C raises at once."""
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
