"""Training attention with its embeddings: the settings, the model they ask for, and the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from tokenmargin._notebook import Tabular
from tokenmargin.training.batches import Sequences, TokenData, truncated
from tokenmargin.training.distributed.splits import AbstractSplit, ByTexts
from tokenmargin.training.epochs import Progress, Row, Status, run_epochs
from tokenmargin.training.one_layer import Model, OneLayer
from tokenmargin.training.parameters import AdamW, Conventions, Scales, initial_state
from tokenmargin.training.two_layer import TwoLayer

__all__ = ["Progress", "TrainingConfig", "TrainingRun", "build_model", "train"]

Observe = Callable[[Model], Mapping[str, float]]


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides the result of a run, besides the data.

    The defaults are paper A's printed settings for IMDB and Yelp.

    **Attributes**
    - `embedding_scale`, `prompt_scale`, `head_scale`: E and p start from `N(0, scale^2 I/d)`, v with this length.
    - `trained_head`: v is trained; the theory keeps it fixed.
    - `scaled_logits`: every softmax sees its logits over `sqrt(d)`.
    - `affine_norm`: the two-layer model's layer norm has a gain and a bias.
    - `max_tokens`: sequences are cut after so many tokens; 0 keeps them whole.
    """

    model: Literal["one-layer", "two-layer"] = "one-layer"
    dimension: int = 2048
    epochs: int = 500
    batch: int = 128
    rate: float = 0.01
    milestones: tuple[int, ...] = (100, 200)
    factor: float = 0.1
    decay: float = 1e-8
    embedding_scale: float = 1.0
    prompt_scale: float = 1.0
    head_scale: float = 1.0
    trained_head: bool = True
    scaled_logits: bool = False
    affine_norm: bool = False
    max_tokens: int = 0
    seed: int = 0
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        if self.model not in ("one-layer", "two-layer"):
            raise ValueError(f"model must be 'one-layer' or 'two-layer', got {self.model!r}")
        scales = (self.embedding_scale, self.prompt_scale, self.head_scale)
        if min(self.dimension, self.epochs, self.batch) < 1 or not all(0 < x < math.inf for x in (self.rate, *scales)):
            raise ValueError(f"dimension, epochs, batch, rate and the scales must be positive and finite, got {self}")
        if not 0 <= self.max_tokens < 1 << 63:
            raise ValueError(f"max_tokens must be 0 (whole sequences) or positive, got {self.max_tokens}")
        if self.affine_norm and self.model == "one-layer":
            raise ValueError("the one-layer model has no layer norm; affine_norm is for model='two-layer'")

    @property
    def scales(self) -> Scales:
        """Sizes of the start."""
        return Scales(self.embedding_scale, self.prompt_scale, self.head_scale)

    @property
    def conventions(self) -> Conventions:
        """What the formula leaves open."""
        temperature = math.sqrt(self.dimension) if self.scaled_logits else 1.0
        return Conventions(self.trained_head, temperature, self.affine_norm)

    def rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [TrainingConfig().rate_at(epoch) for epoch in (0, 99, 100)]
        [0.01, 0.01, 0.001]
        """
        return float(self.rate * self.factor ** sum(epoch >= milestone for milestone in self.milestones))


@dataclass(frozen=True, eq=False)
class TrainingRun(Tabular):
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

    def __repr__(self) -> str:
        epochs = f"{len(self.metrics)} epochs"
        return f"TrainingRun({self.status} after {epochs}, loss {self.loss:.4g}, {self.seconds:.3g} s)"

    def _columns(self) -> dict[str, np.ndarray]:
        """A row an epoch."""
        names = list(dict.fromkeys(name for row in self.metrics for name in row))
        return {name: np.array([row.get(name, np.nan) for row in self.metrics]) for name in names}

    @property
    def loss(self) -> float:
        """Loss of the last finished epoch."""
        return self.metrics[-1]["loss"] if self.metrics else float("nan")


def build_model(data: Sequences, config: TrainingConfig, *, split: AbstractSplit | None = None) -> Model:
    """A model at its start, on the data's device; with `split`, this rank's part of it."""
    split = split or ByTexts()
    dtype = getattr(torch, config.dtype)
    data, device = truncated(data, config.max_tokens).cast(dtype), data.device
    state = initial_state(
        data.m,
        config.dimension,
        seed=config.seed,
        scales=config.scales,
        affine_norm=config.affine_norm,
        dtype=dtype,
        device=device,
        columns=split.columns(config.dimension),
    )
    optimizer, conventions = AdamW(rate=config.rate, decay=config.decay), config.conventions
    if config.model == "two-layer":
        if not isinstance(data, TokenData) or not split.ranks.alone:
            raise ValueError(
                "the two-layer model trains in one process on data in memory: its gradient has no rank two; "
                "use model='one-layer'"
            )
        if device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
            from tokenmargin.training.cuda import kernels_work
            from tokenmargin.training.two_layer_cuda import TwoLayerCuda

            if kernels_work(TwoLayerCuda, dtype):
                return TwoLayerCuda(data, state, optimizer, conventions=conventions)
        return TwoLayer(data, state, optimizer, conventions=conventions)
    if device.type == "cuda" and isinstance(data, TokenData) and not torch.are_deterministic_algorithms_enabled():
        from tokenmargin.training.cuda import OneLayerCuda, kernels_work

        if isinstance(split, ByTexts) and kernels_work(OneLayerCuda, dtype):
            return OneLayerCuda(data, state, optimizer, conventions=conventions, split=split)
    return OneLayer(data, state, optimizer, conventions=conventions, split=split)


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
