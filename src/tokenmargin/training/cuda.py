"""The one-layer model on a GPU: four kernels a step, replayed as a captured graph."""

from __future__ import annotations

import warnings
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tokenmargin.training.batches import TokenData
from tokenmargin.training.one_layer import attend
from tokenmargin.training.parameters import AdamW, State, initial_state

__all__ = ["OneLayerCuda", "kernels_work"]

UNROLLED = 16  # steps in the longer of the two graphs


@lru_cache(maxsize=1)
def kernels_work(dtype: torch.dtype) -> bool:
    """Whether Triton can compile and run here; without it the model trains through torch's own kernels."""
    if dtype != torch.float32:
        return False
    try:
        data = TokenData.of(np.array([0, 1]), np.array([0, 2]), np.array([1]), m=2, device="cuda")
        model = OneLayerCuda(data, initial_state(2, 16, seed=0, device="cuda"), AdamW())
        model.run(torch.zeros(1, dtype=torch.long, device="cuda"), 1, first=0, last=1, rate=0.1)
        torch.cuda.synchronize()
    except Exception as error:  # Triton fails in many ways: no compiler, no driver, an unknown chip
        warnings.warn(f"training without Triton kernels, which is slower ({error})", RuntimeWarning, stacklevel=2)
        return False
    return True


class OneLayerCuda:
    """`f(X) = softmax(p' E_X') E_X v` on an NVIDIA GPU, float32.

    Sums over tokens use atomic additions, so two runs agree to rounding, not to the bit; with torch's deterministic
    algorithms switched on the trainer uses `OneLayer` instead.
    """

    def __init__(self, data: TokenData, state: State, optimizer: AdamW, *, warps: int = 8) -> None:
        m, d = state.embeddings.shape
        if m != data.m:
            raise ValueError(f"the embeddings have {m} rows and the data {data.m} tokens")
        if d > 16384:
            raise ValueError(f"the GPU kernels hold one embedding at a time: dimension at most 16384, got {d}")
        self.data, self.state, self.optimizer, self.warps = data, state, optimizer, warps
        device = state.embeddings.device
        self._ids = data.ids.int()
        self._scores = (state.heads @ state.embeddings.T).contiguous()
        self._weights = torch.zeros_like(self._scores)
        self._before = state.heads.clone()
        self._parts = min(132, m)
        self._partial = torch.empty(self._parts, 2, d, device=device)
        self._losses = torch.zeros(data.n, device=device)
        self._order = torch.zeros(data.n, dtype=torch.long, device=device)
        self._counters = torch.zeros(2, dtype=torch.long, device=device)
        self._rates = torch.zeros(data.n, 3, device=device)  # as many batches as there are rows, at most
        self._graphs: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    def scores(self) -> Tensor:
        """`<E_s, p>` and `<E_s, v>` of all tokens."""
        return self._scores

    def tensors(self) -> dict[str, Tensor]:
        """The state, and the scores as the last step left them."""
        return self.state.tensors() | {"scores": self._scores}

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Go on from saved tensors."""
        self.state.load(tensors, step)
        self._scores.copy_(tensors["scores"])

    def outputs(self, rows: Tensor) -> Tensor:
        """f for some rows."""
        return attend(self._scores, self.data.batch(rows))[1]

    @torch.no_grad()
    def run(self, order: Tensor, batch: int, *, first: int, last: int, rate: float) -> Tensor:
        """Train on batches `first..last-1` of the epoch's `order`; the sum of the losses of their rows."""
        scalars = [self.optimizer.scalars(self.state.step + 1 + k, rate) for k in range(last - first)]
        self._rates[first:last] = torch.tensor(scalars, dtype=torch.float32).to(order.device)
        self._order.copy_(order)
        self._counters.fill_(first)
        done = first
        while done < last:
            steps = UNROLLED if last - done >= UNROLLED else 1
            self._graph(batch, steps).replay()
            done += steps
        self.state.step += last - first
        return self._losses[first * batch : last * batch].sum(dtype=torch.float64)

    def _graph(self, batch: int, steps: int) -> torch.cuda.CUDAGraph:
        """The captured launches of some steps; captured once, after a rehearsal that compiles the kernels."""
        if (batch, steps) not in self._graphs:
            saved = {name: tensor.clone() for name, tensor in self._everything().items()}
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._launch(batch)
            torch.cuda.current_stream().wait_stream(stream)
            for name, tensor in self._everything().items():
                tensor.copy_(saved[name])
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(steps):
                    self._launch(batch)
            self._graphs[batch, steps] = graph
        return self._graphs[batch, steps]

    def _everything(self) -> dict[str, Tensor]:
        return self.tensors() | {
            "weights": self._weights,
            "before": self._before,
            "losses": self._losses,
            "counters": self._counters,
        }

    def _launch(self, batch: int) -> None:
        """The four kernels of one step."""
        import triton

        from tokenmargin.training.kernels import attend_kernel, heads_kernel, pull_kernel, update_kernel

        state, data, (b1, b2), eps = self.state, self.data, self.optimizer.betas, self.optimizer.eps
        m, d = state.embeddings.shape
        a, b = self._counters[:1], self._counters[1:]
        attend_kernel[(batch,)](
            self._ids, data.offsets, data.labels, self._order, a, self._scores, self._weights, self._losses, data.n, m,
            BATCH=batch, BLOCK=256, num_warps=4,
        )  # fmt: skip
        share, columns = -(-m // self._parts), min(512, triton.next_power_of_2(d))
        pull_kernel[(self._parts, triton.cdiv(d, columns))](
            state.embeddings, self._weights, self._partial, a, b, m, d, share, ROWS=8, COLUMNS=columns, num_warps=4
        )
        heads_kernel[(triton.cdiv(2 * d, 64),)](
            self._partial, state.heads, self._before, state.heads_m, state.heads_w, self._rates, a, b, self._parts, d,
            B1=b1, B2=b2, EPS=eps, BLOCK=64, num_warps=2,
        )  # fmt: skip
        update_kernel[(m,)](
            state.embeddings, state.embeddings_m, state.embeddings_w, self._weights, self._scores, state.heads,
            self._before, self._rates, b, m, d,
            B1=b1, B2=b2, EPS=eps, BLOCK=triton.next_power_of_2(d), num_warps=self.warps,
        )  # fmt: skip
