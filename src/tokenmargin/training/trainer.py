"""The trainer: epochs of batches in an order fixed by the seed, metrics, checkpoints, and a clean end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from tokenmargin.training.batches import Sequences, TokenData, epoch_order
from tokenmargin.training.one_layer import Model, OneLayer
from tokenmargin.training.parameters import AdamW, initial_state
from tokenmargin.training.splits import AbstractSplit, ByTexts
from tokenmargin.training.two_layer import TwoLayer

__all__ = ["Progress", "TrainingConfig", "TrainingRun", "build_model", "train"]

Status = Literal["finished", "loss reached", "out of time", "interrupted"]
Row = dict[str, float | int]
Observe = Callable[[Model], Mapping[str, float]]


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides the result of a run, besides the data.

    The defaults are paper A's printed settings for IMDB and Yelp.
    """

    model: Literal["one-layer", "two-layer"] = "one-layer"
    dimension: int = 2048
    epochs: int = 500
    batch: int = 128
    rate: float = 0.01
    milestones: tuple[int, ...] = (100, 200)
    factor: float = 0.1
    decay: float = 1e-8
    scale: float = 1.0
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        if self.model not in ("one-layer", "two-layer"):
            raise ValueError(f"model must be 'one-layer' or 'two-layer', got {self.model!r}")
        if min(self.dimension, self.epochs, self.batch) < 1 or self.rate <= 0 or self.scale <= 0:
            raise ValueError(f"dimension, epochs, batch, rate and scale must be positive, got {self}")

    def rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [TrainingConfig().rate_at(epoch) for epoch in (0, 99, 100)]
        [0.01, 0.01, 0.001]
        """
        return float(self.rate * self.factor ** sum(epoch >= milestone for milestone in self.milestones))


@dataclass(frozen=True)
class Progress:
    """Where a run stands: for progress bars."""

    epoch: int
    step: int
    steps: int
    loss: float
    steps_per_second: float


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A trained model with its history.

    **Attributes**
    - `metrics`: one row per finished epoch: epoch, rate, loss (mean over the epoch, while training), what was observed.
    - `status`: why it ended.
    - `seconds`: time spent training, that of earlier calls included.
    """

    model: Model
    config: TrainingConfig
    metrics: list[Row]
    status: Status
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def loss(self) -> float:
        """Loss of the last finished epoch."""
        return self.metrics[-1]["loss"] if self.metrics else float("nan")


def build_model(data: Sequences, config: TrainingConfig, *, split: AbstractSplit | None = None) -> Model:
    """A model at its start, on the data's device; with `split`, this rank's part of it."""
    split = split or ByTexts()
    dtype = getattr(torch, config.dtype)
    data, device = data.cast(dtype), data.device
    state = initial_state(
        data.m,
        config.dimension,
        seed=config.seed,
        scale=config.scale,
        dtype=dtype,
        device=device,
        columns=split.columns(config.dimension),
    )
    optimizer = AdamW(rate=config.rate, decay=config.decay)
    if config.model == "two-layer":
        if not isinstance(data, TokenData) or not split.ranks.alone:
            raise ValueError(
                "the two-layer model trains in one process on data in memory: its gradient has no rank two; "
                "use model='one-layer'"
            )
        shape = {"group": 64, "multiple": 32} if device.type == "cuda" else {}  # docs/training.md, speed
        return TwoLayer(data, state, optimizer, **shape)
    if device.type == "cuda" and isinstance(data, TokenData) and not torch.are_deterministic_algorithms_enabled():
        from tokenmargin.training.cuda import OneLayerCuda, kernels_work

        if split.ranks.alone and kernels_work(dtype):
            return OneLayerCuda(data, state, optimizer)
    return OneLayer(data, state, optimizer, split=split)


@dataclass
class _Position:
    """Where training stands, as saved."""

    epoch: int = 0
    batch: int = 0
    total: float = 0.0
    metrics: list[Row] = field(default_factory=list)
    seconds: float = 0.0


def train(
    data: Sequences,
    config: TrainingConfig,
    *,
    folder: str | Path | None = None,
    split: AbstractSplit | None = None,
    checkpoint_every: float = 60.0,
    stop_loss: float = 0.0,
    budget: float = float("inf"),
    observe: Observe | None = None,
    observe_at: Callable[[int], bool] = lambda epoch: True,
    chunk: int = 64,
    progress: Callable[[Progress], None] | None = None,
) -> TrainingRun:
    """Train, or go on with the training that `folder` holds.

    **Arguments**
    - `folder`: where checkpoints and `metrics.parquet` are kept; a run found there is resumed, and on a CPU ends with
        the same bits as one never stopped.
    - `split`: what this process does when it is one of several ranks; all of them make this call.
    - `checkpoint_every`: seconds between checkpoints; one is also written at the end and at Ctrl-C.
    - `stop_loss`, `budget`: end after an epoch below this loss, or after so many seconds.
    - `observe`: numbers to add to an epoch's row, computed from the model where `observe_at(epoch)`.
    - `chunk`: batches run between two looks at the clock.
    """
    split = split or ByTexts()
    model = build_model(data, config, split=split)
    place = None if folder is None else Path(folder)
    position, notes = _resume(model, config, place, split)
    per_epoch = -(-data.n // config.batch)
    first = saved = time.monotonic()
    began = saved - position.seconds
    budget += position.seconds
    status: Status = "finished"
    first_step = model.state.step
    with _interrupts() as interrupted:
        while position.epoch < config.epochs:
            order = torch.as_tensor(epoch_order(data.n, seed=config.seed, epoch=position.epoch), device=data.device)
            rate = config.rate_at(position.epoch)
            while position.batch < per_epoch and status == "finished":
                last = min(position.batch + chunk, per_epoch)
                total = model.run(order, config.batch, first=position.batch, last=last, rate=rate)
                position.total += float(total)
                position.batch = last
                now = time.monotonic()
                if progress is not None:
                    rows = min(last * config.batch, data.n)
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
                row: Row = {"epoch": position.epoch + 1, "rate": rate, "loss": position.total / data.n}
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
    return TrainingRun(model, config, position.metrics, status, position.seconds, notes)


def _resume(
    model: Model, config: TrainingConfig, folder: Path | None, split: AbstractSplit
) -> tuple[_Position, tuple[str, ...]]:
    """Load the newest whole checkpoint of a folder, if there is one."""
    checkpoint = None if folder is None else split.load(folder)
    if checkpoint is None:
        return _Position(), ()
    saved, ours = checkpoint.record["config"], json.loads(json.dumps(asdict(config)))
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


def _save(model: Model, config: TrainingConfig, position: _Position, folder: Path, split: AbstractSplit) -> None:
    record = {"config": asdict(config), "position": asdict(position)}
    split.save(folder, model.state.step, model.tensors(), record)
    if position.metrics and split.ranks.first:
        _write_metrics(position.metrics, folder / "metrics.parquet")


def _write_metrics(metrics: Sequence[Row], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = list(dict.fromkeys(name for row in metrics for name in row))
    table = pa.table({name: pa.array([row.get(name) for row in metrics], pa.float64()) for name in names})
    partial = path.with_name(f".{path.name}")
    pq.write_table(table, partial)
    os.replace(partial, path)


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
