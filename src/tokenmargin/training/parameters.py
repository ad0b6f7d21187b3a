"""What is trained, the embeddings E and the two heads p and v, with the moments that AdamW keeps of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

DRAWN = 1 << 20  # normal numbers drawn at a time


@dataclass(frozen=True)
class AdamW:
    """Settings of AdamW (decoupled weight decay), with torch's defaults.

    One step with gradient g: `m = b1 m + (1-b1) g`, `w = b2 w + (1-b2) g^2`, then
    `x = (1 - rate decay) x - rate m^ / (sqrt(w^) + eps)` with the bias-corrected m^ and w^.
    """

    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: float = 1e-2

    def __post_init__(self) -> None:
        if not (self.rate > 0 and 0 <= self.betas[0] < 1 and 0 <= self.betas[1] < 1 and self.eps > 0 <= self.decay):
            raise ValueError(f"AdamW needs rate > 0, betas in [0, 1), eps > 0 and decay >= 0, got {self}")

    def scalars(self, step: int, rate: float) -> tuple[float, float, float]:
        """Step length, root of the second bias correction, and factor of the weight decay, at step 1, 2, ..."""
        b1, b2 = self.betas
        return rate / (1 - b1**step), math.sqrt(1 - b2**step), 1 - rate * self.decay

    def update(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        first_moments: list[Tensor],
        second_moments: list[Tensor],
        *,
        step: Tensor,
        rate: float,
    ) -> None:
        """One step, in place and in one call for all parameters; `step` counts from 1."""
        b1, b2 = self.betas
        torch._fused_adamw_(
            parameters,
            gradients,
            first_moments,
            second_moments,
            [],
            [step] * len(parameters),
            lr=rate,
            beta1=b1,
            beta2=b2,
            weight_decay=self.decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )


@dataclass(eq=False)
class State:
    """Parameters and their moments; the tensors are updated in place.

    **Attributes**
    - `embeddings`: E, of shape (m, d).
    - `heads`: p and v, of shape (2, d); with an affine layer norm its gain and bias are two more rows.
    - `step`: how many steps of AdamW have been taken.
    """

    embeddings: Tensor
    heads: Tensor
    embeddings_m: Tensor
    embeddings_w: Tensor
    heads_m: Tensor
    heads_w: Tensor
    step: int = 0

    @property
    def prompt(self) -> Tensor:
        """p, the embedding of the token that attends."""
        return self.heads[0]

    @property
    def head(self) -> Tensor:
        """v, the regression coefficients."""
        return self.heads[1]

    def check_rows(self, m: int) -> None:
        """Raise unless there is an embedding for each of m tokens."""
        rows = len(self.embeddings)
        if rows != m:
            raise ValueError(f"the embeddings have {rows} rows and the data {m} tokens")

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def load(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Overwrite the state with saved tensors."""
        for name, tensor in self.tensors().items():
            if tensors[name].shape != tensor.shape:
                raise ValueError(
                    f"saved {name} has shape {tuple(tensors[name].shape)}, this model {tuple(tensor.shape)}"
                )
            tensor.copy_(tensors[name])
        self.step = step


def initial_state(
    m: int,
    d: int,
    *,
    seed: int,
    scales: tuple[float, float, float] = (1.0, 1.0, 1.0),
    affine_norm: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    columns: slice | None = None,
) -> State:
    """`E_s` and p drawn from `N(0, I/d)`, v from the unit sphere, each times its scale; the moments are zero.

    The numbers are drawn on the CPU in float64 from `seed`, so that every device and dtype starts at the same point.

    **Arguments**
    - `scales`: of E, of p and of v.
    - `columns`: keep these columns of the draw only; they are the same numbers as without it.
    """
    rng = torch.Generator().manual_seed(seed)
    of_embeddings, of_prompt, of_head = scales
    spread = 1.0 / math.sqrt(d)
    kept = columns or slice(0, d)
    embeddings = torch.empty(m, kept.stop - kept.start, dtype=dtype, device=device)
    for rows in _draws(m, d):
        drawn = torch.randn(rows.stop - rows.start, d, generator=rng, dtype=torch.float64)
        embeddings[rows] = drawn[:, kept].mul_(of_embeddings * spread).to(device, dtype)
    prompt = torch.randn(d, generator=rng, dtype=torch.float64) * (of_prompt * spread)
    head = torch.randn(d, generator=rng, dtype=torch.float64)
    vectors = [prompt, head * (of_head / head.norm())]
    if affine_norm:
        vectors += [torch.ones_like(head), torch.zeros_like(head)]
    heads = torch.stack(vectors)[:, kept].to(device, dtype).contiguous()
    return State(
        embeddings,
        heads,
        embeddings_m=torch.zeros_like(embeddings),
        embeddings_w=torch.zeros_like(embeddings),
        heads_m=torch.zeros_like(heads),
        heads_w=torch.zeros_like(heads),
    )


def _draws(m: int, d: int) -> Iterator[slice]:
    """Blocks of rows that give the numbers of one large draw when they are drawn one after the other.

    torch draws normal numbers sixteen at a time, so blocks of a multiple of sixteen rows continue its stream. A short
    rest is drawn together with the block before it.
    """
    size = 16 * max(DRAWN // (16 * d), 1)
    first = 0
    while first < m:
        last = first + size if m - first >= 2 * size else m
        yield slice(first, last)
        first = last
