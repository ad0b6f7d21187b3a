"""A vision transformer, compact and our own: patches, a [CLS] token, pre-norm blocks, a linear head on [CLS].

Training goes through torch's fused attention; `class_attention` computes the weights themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tokenmargin.training.config import ViTSize


@dataclass(frozen=True)
class ViTShape:
    """Widths and counts of a vision transformer."""

    width: int
    depth: int
    heads: int
    patch: int = 2
    image: int = 32
    classes: int = 10

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width} and {self.heads}")
        if self.image % self.patch:
            raise ValueError(f"the image's {self.image} pixels must be a multiple of the patch's {self.patch}")

    @property
    def tokens(self) -> int:
        """Number of patches T, without [CLS]."""
        return (self.image // self.patch) ** 2


SIZES: dict[ViTSize, tuple[int, int, int]] = {
    "nano": (64, 4, 4),
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
}
"""Width, depth and heads: base of Dosovitskiy et al. (2021), small and tiny of Touvron et al. (2021), nano ours."""


def vit_shape(size: ViTSize, *, patch: int = 2, image: int = 32, classes: int = 10) -> ViTShape:
    """The shape of a named size."""
    if size not in SIZES:
        raise ValueError(f"size must be one of {', '.join(SIZES)}, got {size!r}")
    width, depth, heads = SIZES[size]
    return ViTShape(width, depth, heads, patch, image, classes)


class Attention(nn.Module):
    """Multi-head self-attention; queries, keys and values from one linear layer, in this order."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._query_key_value(x)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def weights(self, x: Tensor, *, token: int) -> Tensor:
        """Attention of one token to all tokens, of shape (batch, heads, tokens)."""
        q, k, _ = self._query_key_value(x)
        logits = q[:, :, token : token + 1] @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return logits.softmax(dim=-1)[:, :, 0]

    def key_query(self) -> tuple[Tensor, Tensor]:
        """The weights of queries and of keys, each of shape (width, width)."""
        query, key, _ = self.qkv.weight.chunk(3)
        return query, key

    def _query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return q, k, v


class Block(nn.Module):
    """Attention and a perceptron, each behind a layer norm and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(F.gelu(self.widen(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Images of shape (batch, height, width, 3) to the logits of the classes.

    Parameters are drawn on the CPU from `seed`, so that every device starts at the same point: matrices from a normal
    distribution of deviation 0.02 cut at two deviations (the first layer: one over the root of its inputs), biases and
    the head zero.
    """

    def __init__(self, shape: ViTShape, *, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        inputs = 3 * shape.patch**2
        self.patches = nn.Linear(inputs, shape.width)
        self.cls = nn.Parameter(torch.empty(1, 1, shape.width))
        self.positions = nn.Parameter(torch.empty(1, shape.tokens + 1, shape.width))
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.width, eps=1e-6)
        self.head = nn.Linear(shape.width, shape.classes)
        if not self.cls.is_meta:
            self._draw(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _draw(self, rng: torch.Generator) -> None:
        for name, parameter in self.named_parameters():
            if name == "patches.weight":
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=rng)
            elif "norm" in name or name.endswith("bias") or name == "head.weight":
                parameter.fill_(1.0 if name.endswith("weight") and "norm" in name else 0.0)
            else:
                nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04, generator=rng)

    def forward(self, images: Tensor, *, plain: bool = False) -> Tensor:
        """The logits; `plain` goes past anything that compiling put in place."""
        x = self.embed(images)
        for block in self.blocks:
            x = block.forward(x) if plain else block(x)
        return self.head(self.norm(x[:, 0]))

    @torch.no_grad()
    def class_attention(self, images: Tensor) -> Tensor:
        """The weights with which [CLS] attends, of shape (depth, batch, heads, 1 + T); [CLS] itself comes first.

        Computed layer by layer in the parameters' own precision, outside of anything that compiling put in place.
        """
        found = []
        with torch.autocast(images.device.type, enabled=False):
            x = self.embed(images)
            for block in self.blocks:
                assert isinstance(block, Block)
                found.append(block.attention.weights(block.norm1(x), token=0))
                x = block.forward(x)
        return torch.stack(found)

    def embed(self, images: Tensor) -> Tensor:
        """Tokens of the first block: [CLS], then the patches row by row."""
        n, side, patch = len(images), self.shape.image // self.shape.patch, self.shape.patch
        cut = images.view(n, side, patch, side, patch, 3).transpose(2, 3).reshape(n, side * side, patch * patch * 3)
        x = self.patches(cut)
        return torch.cat([self.cls.to(x.dtype).expand(n, -1, -1), x], dim=1) + self.positions
