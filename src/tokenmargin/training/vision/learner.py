"""Training a vision transformer: settings, images on the device, augmentation, the optimiser's steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmargin.data.images import ImageSet
from tokenmargin.training.config import VisionSettings
from tokenmargin.training.vision.vit import VisionTransformer, vit_shape

PADDING = 4  # pixels that an augmented image may move, each way


@dataclass(frozen=True)
class VisionConfig(VisionSettings):
    """Everything that decides the result of a run, besides the images: also random shifts and mirroring, and gradients
    cut at norm 1, of which paper B says nothing."""

    clip: float = 1.0
    augment: bool = True
    precision: Literal["bfloat16", "float32"] = "bfloat16"

    def __post_init__(self) -> None:
        vit_shape(self.size, patch=self.patch)
        if min(self.epochs, self.batch) < 1 or self.rate <= 0 or self.clip <= 0 or min(self.warmup, self.decay) < 0:
            raise ValueError(
                f"epochs, batch, rate and clip must be positive, warmup and decay not negative, got {self}"
            )

    def rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0, after the warm-up.

        >>> round(VisionConfig(schedule="cosine", epochs=10, rate=1.0).rate_at(5), 3)
        0.5
        """
        if self.schedule == "constant":
            return self.rate
        return self.rate * 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))


@dataclass(frozen=True, eq=False)
class ImageData:
    """Training and test images as bytes on a device, and how to bring them to mean 0 and deviation 1."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, data: ImageSet, *, device: str | torch.device = "cpu") -> ImageData:
        """From arrays; the mean and deviation of every channel are those of the training images."""
        images, labels = data.training
        levels = np.arange(256) / 255.0
        counts = np.stack([np.bincount(images[..., c].ravel(), minlength=256) for c in range(3)]) / images[..., 0].size
        mean = counts @ levels
        deviation = np.sqrt(counts @ levels**2 - mean**2)
        place = torch.device(device)
        tensors = [torch.as_tensor(np.ascontiguousarray(array), device=place) for array in (images, *data.test)]
        return cls(
            tensors[0],
            torch.as_tensor(labels, device=place).long(),
            tensors[1],
            tensors[2].long(),
            torch.as_tensor(mean, device=place),
            torch.as_tensor(np.maximum(deviation, 1e-3), device=place),
        )

    @property
    def n(self) -> int:
        """Number of training images."""
        return len(self.labels)

    def normal(self, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Bytes to numbers of mean 0 and deviation 1."""
        return (images.to(dtype) / 255 - self.mean.to(dtype)) / self.deviation.to(dtype)


def shift_and_mirror(images: Tensor, moves: Tensor) -> Tensor:
    """Each image moved by up to `PADDING` pixels each way, zeros behind it; mirrored where its third number is 1."""
    size = images.shape[1]
    padded = F.pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING))
    along = torch.arange(size, device=images.device)
    rows = moves[:, :1] + along
    columns = moves[:, 1:2] + torch.where(moves[:, 2:] == 1, along.flip(0), along)
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[batch, rows[:, :, None], columns[:, None, :]]


def epoch_moves(n: int, *, seed: int, epoch: int) -> Array:
    """Shift down, shift across and mirroring of every image in an epoch; a function of seed and epoch alone."""
    rng = np.random.default_rng([seed, epoch, 1])
    moves = rng.integers(0, 2 * PADDING + 1, (n, 3), dtype=np.int64)
    moves[:, 2] = rng.integers(0, 2, n)
    return moves


@dataclass
class StepCount:
    """How many steps have been taken."""

    step: int = 0


class VisionLearner:
    """A vision transformer with its optimiser, as the training loop wants it.

    **Arguments**
    - `compiled`: compile the blocks with torch.compile (one compilation serves all of them).
    """

    def __init__(self, data: ImageData, config: VisionConfig, *, compiled: bool = False) -> None:
        shape = vit_shape(
            config.size,
            patch=config.patch,
            image=data.images.shape[1],
            classes=int(max(data.labels.max(), data.test_labels.max())) + 1,
        )
        self.data, self.config, self.state = data, config, StepCount()
        self.model = VisionTransformer(shape, seed=config.seed).to(data.images.device)
        if compiled:
            for block in self.model.blocks:
                block.compile(dynamic=False)
        self.optimizer = _optimizer(self.model, config)
        self._moves: tuple[int, Tensor | None] = (-1, None)

    def run(self, order: Tensor, batch: int, *, first: int, last: int, rate: float) -> Tensor:
        """Train on the batches `first..last-1` of the epoch's `order`; returns the sum of their images' losses."""
        per_epoch = -(-self.data.n // batch)
        total = torch.zeros((), dtype=torch.float64, device=order.device)
        moves = self._epoch_moves(self.state.step // per_epoch) if self.config.augment else None
        for place in range(first, last):
            rows = order[place * batch : (place + 1) * batch]
            images = self.data.images[rows]
            if moves is not None:
                images = shift_and_mirror(images, moves[rows])
            warm = min(1.0, (self.state.step + 1) / max(self.config.warmup * per_epoch, 1.0))
            for group in self.optimizer.param_groups:
                group["lr"] = rate * warm
            loss = self.loss(images, self.data.labels[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.state.step += 1
            total += loss.detach() * len(rows)
        return total

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of images given as bytes."""
        with self._autocast():
            logits = self.model(self.data.normal(images))
        return F.cross_entropy(logits.float(), labels)

    @torch.no_grad()
    def evaluate(self, images: Tensor, labels: Tensor, *, batch: int = 500) -> tuple[float, float]:
        """Mean loss and accuracy, in the precision of training."""
        loss, right = 0.0, 0
        for part, truth in zip(torch.split(images, batch), torch.split(labels, batch), strict=True):
            with self._autocast():
                logits = self.model(self.data.normal(part), plain=True).float()
            loss += float(F.cross_entropy(logits, truth, reduction="sum"))
            right += int((logits.argmax(dim=1) == truth).sum())
        return loss / len(labels), right / len(labels)

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and the optimiser's moments, by name."""
        found = {}
        for name, parameter in self.model.named_parameters():
            found[name] = parameter.detach()
            moments = self.optimizer.state.get(parameter, {})
            found |= {f"{kind} {name}": moments[kind] for kind in MOMENTS[self.config.optimizer] if kind in moments}
        return found

    def load(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Go on from saved tensors."""
        self.state.step = step
        for name, parameter in self.model.named_parameters():
            parameter.data.copy_(tensors[name])
            kinds = [kind for kind in MOMENTS[self.config.optimizer] if f"{kind} {name}" in tensors]
            if kinds:
                moments = {kind: tensors[f"{kind} {name}"].to(parameter.device).clone() for kind in kinds}
                if self.config.optimizer == "adamw":
                    fused = self.optimizer.defaults.get("fused")
                    moments["step"] = torch.tensor(float(step), device=parameter.device if fused else "cpu")
                self.optimizer.state[parameter] = moments

    def _epoch_moves(self, epoch: int) -> Tensor:
        if self._moves[0] != epoch or self._moves[1] is None:
            moves = epoch_moves(self.data.n, seed=self.config.seed, epoch=epoch)
            self._moves = epoch, torch.as_tensor(moves, device=self.data.images.device)
        assert self._moves[1] is not None
        return self._moves[1]

    def _autocast(self) -> torch.autocast:
        kind = self.data.images.device.type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=self.config.precision == "bfloat16")


MOMENTS = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}


def _optimizer(model: nn.Module, config: VisionConfig) -> torch.optim.Optimizer:
    """Weight decay on matrices alone: not on biases, norms, [CLS] and positions."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": config.decay},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.rate, momentum=0.9)
    return torch.optim.AdamW(groups, lr=config.rate, fused=parameters[0].is_cuda)
