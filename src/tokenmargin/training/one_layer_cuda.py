"""The one-layer model on a GPU: four kernels a step, captured as a CUDA graph and replayed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tokenmargin.training.batches import TokenData
from tokenmargin.training.config import Conventions
from tokenmargin.training.one_layer import WithScores, attend
from tokenmargin.training.parameters import AdamW, State, initial_state
from tokenmargin.training.ranks import ByTexts

if TYPE_CHECKING:
    from tokenmargin.training.two_layer_cuda import TwoLayerCuda

LARGEST_DIMENSION = 16384
UNROLLED = 16  # steps in the longer of the two graphs


@cache
def kernels_work(model: type[OneLayerCuda] | type[TwoLayerCuda], dtype: torch.dtype) -> bool:
    """Whether Triton can compile and run a model here. Where it cannot, the trainer uses torch's own kernels."""
    if dtype != torch.float32:
        return False
    try:
        data = TokenData.of(np.array([0, 1]), np.array([0, 2]), np.array([1]), m=2, device="cuda")
        one_step = model(data, initial_state(2, 16, seed=0, device="cuda"), AdamW())
        one_step.run(torch.zeros(1, dtype=torch.long, device="cuda"), 1, first=0, last=1, rate=0.1)
        torch.cuda.synchronize()
    except Exception as error:  # Triton fails in many ways: no compiler, no driver, an unknown chip
        warnings.warn(f"training without Triton kernels, which is slower ({error})", RuntimeWarning, stacklevel=2)
        return False
    return True


def check_dimension(d: int) -> None:
    """Raise unless the kernels can hold an embedding of dimension d."""
    if d > LARGEST_DIMENSION:
        raise ValueError(
            f"the GPU kernels hold one embedding at a time: dimension at most {LARGEST_DIMENSION}, got {d}"
        )


class OneLayerCuda(WithScores):
    """`f(X) = softmax(p' E_X') E_X v` on an NVIDIA GPU, float32.

    Sums over tokens use atomic additions, so two runs agree to rounding, not to the bit; with torch's deterministic
    algorithms switched on the trainer uses `OneLayer` instead. Several ranks exchange c and e between two graphs.
    """

    def __init__(
        self,
        data: TokenData,
        state: State,
        optimizer: AdamW,
        *,
        conventions: Conventions | None = None,
        split: ByTexts | None = None,
    ) -> None:
        m, d = state.embeddings.shape
        state.check_rows(data.m)
        check_dimension(d)
        self.data, self.state, self.optimizer = data, state, optimizer
        self.conventions, self.split = conventions or Conventions(), split or ByTexts()
        device = state.embeddings.device
        self._ids = data.ids.int()
        self._scores = (state.heads @ state.embeddings.T).contiguous()
        self._weights = torch.zeros_like(self._scores)
        self._old_heads = state.heads.clone()
        self._parts = min(132, m)
        self._partial = torch.empty(self._parts, 2, d, device=device)
        self._losses = torch.zeros(data.n, device=device)
        self._order = torch.zeros(data.n, dtype=torch.long, device=device)
        self._counters = torch.zeros(2, dtype=torch.long, device=device)
        self._rates = torch.zeros(data.n, 3, device=device)  # as many batches as there are rows, at most
        self._graphs: dict[tuple[str, int], torch.cuda.CUDAGraph] = {}

    def scores(self) -> Tensor:
        """`<E_s, p>` and `<E_s, v>` of all tokens."""
        return self._scores

    def outputs(self, rows: Tensor) -> Tensor:
        """The output f of each of the given rows."""
        return attend(self._scores, self.data.batch(rows), temperature=self.conventions.temperature)[1]

    @torch.no_grad()
    def run(self, order: Tensor, batch: int, *, first: int, last: int, rate: float) -> Tensor:
        """Train on the batches `first..last-1` of the epoch's `order`; returns the sum of the losses of their rows."""
        scalars = [self.optimizer.scalars(self.state.step + 1 + k, rate) for k in range(last - first)]
        self._rates[first:last] = torch.tensor(scalars, dtype=torch.float32).to(order.device)
        self._order.copy_(order)
        self._counters.fill_(first)
        ours = self._losses[first * batch : last * batch].zero_()
        done = first
        while done < last:
            steps = self._take_some_steps(batch, last - done)
            done += steps
        self.state.step += last - first
        return self.split.total(ours.sum(dtype=torch.float64))

    def _take_some_steps(self, batch: int, left: int) -> int:
        """Take some of the steps that are left; returns how many were taken."""
        if not self.split.ranks.is_alone:
            self._captured("attend", batch, lambda: self._attend(batch)).replay()
            self.split.batch_weights(self._weights)
            self._captured("update", batch, self._update).replay()
            return 1
        steps = UNROLLED if left >= UNROLLED else 1

        def launch() -> None:
            for _ in range(steps):
                self._take_step(batch)

        self._captured(f"{steps} steps", batch, launch).replay()
        return steps

    def _captured(self, name: str, batch: int, launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """The graph of some launches. It is captured once, after a step that compiles the kernels and is undone."""
        if (name, batch) not in self._graphs:
            saved = {key: tensor.clone() for key, tensor in self._all_tensors().items()}
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._take_step(batch)
            torch.cuda.current_stream().wait_stream(stream)
            for key, tensor in self._all_tensors().items():
                tensor.copy_(saved[key])
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                launch()
            self._graphs[name, batch] = graph
        return self._graphs[name, batch]

    def _all_tensors(self) -> dict[str, Tensor]:
        return self.tensors() | {
            "weights": self._weights,
            "before": self._old_heads,
            "losses": self._losses,
            "counters": self._counters,
        }

    def _take_step(self, batch: int) -> None:
        """The four kernels of one step."""
        self._attend(batch)
        self._update()

    def _attend(self, batch: int) -> None:
        """The first kernel: this rank's part of c and e."""
        from tokenmargin.training.one_layer_kernels import attend_kernel

        data, ranks = self.data, self.split.ranks
        attend_kernel[(-(-batch // ranks.size),)](
            self._ids, data.offsets, data.labels, self._order, self._counters[:1], self._scores, self._weights,
            self._losses, data.n, data.m,
            BATCH=batch, BLOCK=256, RANK=ranks.rank, RANKS=ranks.size,
            SHARPNESS=1.0 / self.conventions.temperature, num_warps=4,
        )  # fmt: skip

    def _update(self) -> None:
        """The other three kernels: given c and e, the gradient of p and v, and AdamW on p, v and E."""
        import triton

        from tokenmargin.training.one_layer_kernels import (
            heads_gradient_kernel,
            update_embeddings_kernel,
            update_heads_kernel,
        )

        state, (b1, b2), eps = self.state, self.optimizer.betas, self.optimizer.eps
        m, d = state.embeddings.shape
        a, b = self._counters[:1], self._counters[1:]
        share, columns = -(-m // self._parts), min(512, triton.next_power_of_2(d))
        heads_gradient_kernel[(self._parts, triton.cdiv(d, columns))](
            state.embeddings, self._weights, self._partial, a, b, m, d, share, ROWS=8, COLUMNS=columns, num_warps=4
        )
        update_heads_kernel[(triton.cdiv(2 * d, 64),)](
            self._partial, state.heads, self._old_heads, state.heads_m, state.heads_w, self._rates, a, b, self._parts,
            d, TRAINED=2 if self.conventions.trained_head else 1, B1=b1, B2=b2, EPS=eps, BLOCK=64, num_warps=2,
        )  # fmt: skip
        update_embeddings_kernel[(m,)](
            state.embeddings, state.embeddings_m, state.embeddings_w, self._weights, self._scores, state.heads,
            self._old_heads, self._rates, b, m, d,
            B1=b1, B2=b2, EPS=eps, BLOCK=triton.next_power_of_2(d), num_warps=8,
        )  # fmt: skip
