"""Train attention with its embeddings: build the model that the settings describe, and run the loop on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tokenmargin._notebook import Tabular
from tokenmargin.data.prepared import PreparedText
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.training.batches import Sequences, TokenData, training_data, truncate
from tokenmargin.training.config import TrainingConfig
from tokenmargin.training.epochs import EpochLoop, Row, Status, TrainingProgress
from tokenmargin.training.one_layer import Model, OneLayer
from tokenmargin.training.parameters import AdamW, initial_state
from tokenmargin.training.ranks import AbstractSplit, ByTexts
from tokenmargin.training.two_layer import TwoLayer

Observe = Callable[[Model], Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class TrainingRun(Tabular):
    """A trained model with its history.

    **Attributes**
    - `metrics`: a row for each finished epoch: its number, the rate, the mean of the losses while training, and what
        was observed.
    - `status`: why the run ended.
    - `seconds`: time spent training, in this call and in earlier ones.
    """

    model: Model
    config: TrainingConfig
    metrics: list[Row]
    status: Status
    seconds: float
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        epochs = f"{len(self.metrics)} epochs"
        return f"TrainingRun({self.status} after {epochs}, loss {self.loss:.4g}, {self.seconds:.3g} s)"

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each epoch."""
        names = list(dict.fromkeys(name for row in self.metrics for name in row))
        return {name: np.array([row.get(name, np.nan) for row in self.metrics]) for name in names}

    @property
    def loss(self) -> float:
        """Loss of the last finished epoch."""
        return self.metrics[-1]["loss"] if self.metrics else float("nan")


def build_model(data: Sequences, config: TrainingConfig, *, split: AbstractSplit | None = None) -> Model:
    """A model with its initial parameters on the data's device; with `split`, this rank's part of it."""
    split = split or ByTexts()
    dtype = getattr(torch, config.dtype)
    data, device = truncate(data, config.max_tokens).cast(dtype), data.device
    state = initial_state(
        data.m,
        config.dimension,
        seed=config.seed,
        scales=config.scales,
        affine_norm=config.affine_norm,
        dtype=dtype,
        device=device,
        columns=split.own_columns(config.dimension),
    )
    optimizer, conventions = AdamW(rate=config.rate, decay=config.decay), config.conventions
    if config.model == "two-layer":
        if not isinstance(data, TokenData) or not split.ranks.is_alone:
            raise ValueError(
                "the two-layer model trains in one process on data in memory: its gradient has no rank two; "
                "use model='one-layer'"
            )
        if device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
            from tokenmargin.training.one_layer_cuda import kernels_work
            from tokenmargin.training.two_layer_cuda import TwoLayerCuda

            if kernels_work(TwoLayerCuda, dtype):
                return TwoLayerCuda(data, state, optimizer, conventions=conventions)
        return TwoLayer(data, state, optimizer, conventions=conventions)
    if device.type == "cuda" and isinstance(data, TokenData) and not torch.are_deterministic_algorithms_enabled():
        from tokenmargin.training.one_layer_cuda import OneLayerCuda, kernels_work

        if isinstance(split, ByTexts) and kernels_work(OneLayerCuda, dtype):
            return OneLayerCuda(data, state, optimizer, conventions=conventions, split=split)
    return OneLayer(data, state, optimizer, conventions=conventions, split=split)


def train(
    data: Sequences | PreparedText | TokenCorpus,
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
    progress: Callable[[TrainingProgress], None] | None = None,
) -> TrainingRun:
    """Train a model, or go on with the run that `folder` holds.

    **Arguments**
    - `data`: prepared texts, a corpus, or `TokenData` on the device of your choice.
    - `folder`: where checkpoints and `metrics.parquet` are kept. A run found there is resumed; on a CPU it ends with
        the same bits as a run that was never stopped.
    - `split`: the part that this process takes when it is one of several ranks, all of which make this call.
    - `checkpoint_every`: seconds between checkpoints; one is also written at the end and at Ctrl-C.
    - `stop_loss`, `budget`: end after an epoch with a loss up to this, or after so many seconds.
    - `observe`: called with the model after each epoch for which `observe_at(epoch)` is true; it returns numbers for
        the row of the epoch.
    - `chunk`: how many batches are run before clocks and interrupts are looked at again.
    """
    data, split = training_data(data), split or ByTexts()
    model = build_model(data, config, split=split)
    history = EpochLoop(
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
    ).run()
    return TrainingRun(model, config, history.metrics, history.status, history.seconds, history.notes)
