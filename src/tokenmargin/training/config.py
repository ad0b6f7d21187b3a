"""The settings that decide the result of a training run, besides the data. Importing them does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Conventions:
    """Choices that a formula of attention leaves open. The defaults take the papers' formulas to the letter.

    **Attributes**
    - `trained_head`: whether v is trained; the theory keeps it fixed.
    - `temperature`: what the logits of every softmax are divided by; most implementations divide by `sqrt(d)`.
    - `affine_norm`: whether the layer norm of the two-layer model has a gain and a bias, trained from 1 and 0.
    """

    trained_head: bool = True
    temperature: float = 1.0
    affine_norm: bool = False

    @property
    def trained(self) -> tuple[slice, ...]:
        """The rows of `State.heads` that are trained."""
        return (slice(None),) if self.trained_head else (slice(0, 1), slice(2, None))


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides the result of a run, besides the data.

    The defaults are paper A's printed settings for IMDB and Yelp.
    """

    model: Literal["one-layer", "two-layer"] = "one-layer"
    """One attention layer, or two with a layer norm between."""
    dimension: int = 2048
    """Length of the embeddings."""
    epochs: int = 500
    """Passes over the texts, in all."""
    batch: int = 128
    """Texts in a batch."""
    rate: float = 0.01
    """Learning rate of AdamW."""
    milestones: tuple[int, ...] = (100, 200)
    """Epochs at which the rate is multiplied by the factor, a tenth."""
    factor: float = 0.1
    """What the rate is multiplied by at a milestone."""
    decay: float = 1e-8
    """Weight decay."""
    embedding_scale: float = 1.0
    """Initial size of the embeddings, times 1/sqrt(dimension)."""
    prompt_scale: float = 1.0
    """Initial size of the prompt p, times 1/sqrt(dimension)."""
    head_scale: float = 1.0
    """Initial length of the head v."""
    trained_head: bool = True
    """Whether the head v is trained, or stays as it was drawn, as in the theory."""
    scaled_logits: bool = False
    """Divide the logits of every softmax by sqrt(dimension)."""
    affine_norm: bool = False
    """Give the layer norm of the two-layer model a gain and a bias."""
    max_tokens: int = 0
    """Cut texts after so many tokens; 0 keeps them whole."""
    seed: int = 0
    """Seed of the initial parameters and of the order of the texts."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of the model's numbers."""

    def __post_init__(self) -> None:
        if self.model not in ("one-layer", "two-layer"):
            raise ValueError(f"model must be 'one-layer' or 'two-layer', got {self.model!r}")
        sizes = (self.rate, *self.scales)
        if min(self.dimension, self.epochs, self.batch) < 1 or not all(0 < size < math.inf for size in sizes):
            raise ValueError(f"dimension, epochs, batch, rate and the scales must be positive and finite, got {self}")
        if not 0 <= self.max_tokens < 1 << 63:
            raise ValueError(f"max_tokens must be 0 (whole sequences) or positive, got {self.max_tokens}")
        if self.affine_norm and self.model == "one-layer":
            raise ValueError("the one-layer model has no layer norm; affine_norm is for model='two-layer'")

    @property
    def scales(self) -> tuple[float, float, float]:
        """Initial sizes of E, p and v, as `initial_state` takes them."""
        return self.embedding_scale, self.prompt_scale, self.head_scale

    @property
    def conventions(self) -> Conventions:
        """The choices that the formula of attention leaves open."""
        temperature = math.sqrt(self.dimension) if self.scaled_logits else 1.0
        return Conventions(self.trained_head, temperature, self.affine_norm)

    def rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0.

        >>> [TrainingConfig().rate_at(epoch) for epoch in (0, 99, 100)]
        [0.01, 0.01, 0.001]
        """
        return float(self.rate * self.factor ** sum(epoch >= milestone for milestone in self.milestones))


ViTSize = Literal["nano", "tiny", "small", "base"]


@dataclass(frozen=True)
class VisionSettings:
    """The settings of a vision transformer's training that are also flags of Figures 6 and 7.

    The defaults are what paper B prints: ViT-base, T = 256 patches, 400 epochs, a fixed rate of 3e-3. Where it says
    nothing they are AdamW, batches of 250 and a warm-up of 5 epochs.
    """

    size: ViTSize = "base"
    patch: int = 2
    epochs: int = 400
    batch: int = 250
    rate: float = 3e-3
    schedule: Literal["constant", "cosine"] = "constant"
    warmup: float = 5.0
    optimizer: Literal["adamw", "sgd"] = "adamw"
    decay: float = 0.01
    seed: int = 0


def choose_device(name: str = "auto") -> str:
    """`cpu` or `cuda`; `auto` takes a GPU where there is one.

    >>> choose_device("cpu")
    'cpu'
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name}: torch sees no GPU here; use cpu or auto")
    return name
