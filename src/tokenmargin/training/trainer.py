"""Training attention with its embeddings: the settings, the model they ask for, and the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from tokenmargin.training.batches import Sequences, TokenData
from tokenmargin.training.distributed.splits import AbstractSplit, ByTexts
from tokenmargin.training.epochs import Progress, Row, Status, run_epochs
from tokenmargin.training.one_layer import Model, OneLayer
from tokenmargin.training.parameters import AdamW, initial_state
from tokenmargin.training.two_layer import TwoLayer

__all__ = ["Progress", "TrainingConfig", "TrainingRun", "build_model", "train"]

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
        shape = {"group": 32, "multiple": 32} if device.type == "cuda" else {}  # docs/training.md, speed
        return TwoLayer(data, state, optimizer, **shape)
    if device.type == "cuda" and isinstance(data, TokenData) and not torch.are_deterministic_algorithms_enabled():
        from tokenmargin.training.cuda import OneLayerCuda, kernels_work

        if isinstance(split, ByTexts) and kernels_work(dtype):
            return OneLayerCuda(data, state, optimizer, split=split)
    return OneLayer(data, state, optimizer, split=split)


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
    course = run_epochs(
        model,
        config,
        n=data.n,
        device=data.device,
        folder=folder,
        split=split,
        checkpoint_every=checkpoint_every,
        stop_loss=stop_loss,
        budget=budget,
        observe=observe,
        observe_at=lambda epoch: epoch > 0 and observe_at(epoch),
        chunk=chunk,
        progress=progress,
    )
    return TrainingRun(model, config, course.metrics, course.status, course.seconds, course.notes)
