"""The two-layer model on a GPU: eight kernels a step over a ragged batch, replayed as one captured graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmargin.training.batches import TokenData
from tokenmargin.training.one_layer_cuda import check_dimension
from tokenmargin.training.parameters import AdamW, State
from tokenmargin.training.two_layer import EPSILON, TwoLayer

SIDE = 64  # of the tiles of the u x u matrices
STEPS = 64  # planned at a time: their occurrences are sorted by token in one call
DEPTH = 32  # terms of a sum that a program takes at a time; with the warps and stages below the fastest on an H200
HEADS_ROWS, HEADS_COLUMNS = 64, 128


class TwoLayerCuda(TwoLayer):
    """The two-layer model on an NVIDIA GPU, float32.

    Sums over tokens use atomic additions, so two runs agree to rounding, not to the bit; with torch's deterministic
    algorithms switched on the trainer uses `TwoLayer` instead.
    """

    def __init__(self, data: TokenData, state: State, optimizer: AdamW, **options: Any) -> None:
        super().__init__(data, state, optimizer, **options)
        m, d = state.embeddings.shape
        check_dimension(d)
        self._width = -(-int(self._widths.max()) // SIDE) * SIDE
        self._tokens, self._float_counts = self._ids.int(), self._counts.to(state.heads.dtype)
        self._sizes = self._offsets.diff()
        device = state.heads.device
        # C as a sum of three bfloat16 numbers, which Triton's interpreter does not have.
        kind = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._parts = torch.empty(3, m, d, dtype=kind, device=device)
        self._columns = torch.empty(3, m, device=device)  # C p, C v, mu: the columns, each along memory
        self._columns_gradient = torch.zeros(3, m, device=device)
        self._old_vectors, self._new_vectors = torch.zeros(2, d, device=device), torch.zeros(2, d, device=device)
        self._heads_sum = torch.zeros(2, d, device=device)  # the gradients of p and v through C
        self._rates = torch.zeros(STEPS, 3, device=device)
        self._counter = torch.zeros(2, dtype=torch.long, device=device)
        self._batch = 0

    def _allocate(self, batch: int) -> None:
        """Buffers for batches of this size; the graph that was captured for another size is dropped."""
        if batch == self._batch:
            return
        self._batch, U = batch, self._width
        (m, d), device = self.state.embeddings.shape, self.state.heads.device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._gram, self._weights, self._product = (torch.empty(batch, U, U, device=device) for _ in range(3))
        self._mixed, self._squares = (torch.empty(2, batch, U, device=device) for _ in range(2))
        self._back = torch.empty(4, batch, U, device=device)
        self._pulled = torch.empty(batch, U, d, device=device)
        self._losses = torch.zeros(STEPS * batch, device=device)
        self._order = torch.zeros(STEPS * batch, dtype=torch.long, device=device)
        self._occurrences = torch.zeros(STEPS * batch * U, dtype=torch.int32, device=device)
        self._starts = torch.zeros(STEPS * m + 1, dtype=torch.int32, device=device)

    @torch.no_grad()
    def run(self, order: Tensor, batch: int, *, first: int, last: int, rate: float) -> Tensor:
        """Train on the batches `first..last-1` of the epoch's `order`; returns the sum of the losses of their rows."""
        self._allocate(batch)
        self._project()
        self._columns.copy_(self._params.columns.T)
        rest = self._params.centred.clone()
        for part in self._parts:
            part.copy_(rest)
            rest -= part
        self._new_vectors.copy_(self._vectors())
        total = torch.zeros((), dtype=torch.float64, device=order.device)
        for begin in range(first, last, STEPS):
            steps = min(STEPS, last - begin)
            rows = order[begin * batch : (begin + steps) * batch]
            self._plan_steps(rows, batch, steps, rate)
            for _ in range(steps):
                self._run_step()
            self.state.step += steps
            total += self._losses[: len(rows)].sum(dtype=torch.float64)
        self._step.fill_(self.state.step)
        return total

    def _plan_steps(self, rows: Tensor, batch: int, steps: int, rate: float) -> None:
        """What the next steps need: their rows, their rates, and where each token stands in each batch."""
        m, U = self.data.m, self._width
        scalars = [self.optimizer.scalars(self.state.step + 1 + k, rate) for k in range(steps)]
        self._rates[:steps] = torch.tensor(scalars, dtype=torch.float32).to(rows.device)
        # The longest sequences of a batch go first, so that no program is left alone with one at the end.
        batches = torch.arange(len(rows), device=rows.device) // batch
        rows = rows[torch.argsort(batches * (self._width + 1) - self._sizes[rows])]
        self._order[: len(rows)] = rows
        self._counter[0], self._counter[1] = 0, len(rows)
        # Every distinct token of every row: the row it is in (`place`), and where in that row it stands (`column`).
        spans = self._sizes[rows]
        place = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), spans)
        column = torch.arange(len(place), device=rows.device) - (spans.cumsum(0) - spans)[place]
        token = self._ids[self._offsets[rows][place] + column]
        key = (place // batch) * m + token  # the batch, then the token in it
        sorted_key, by_token = torch.sort(key, stable=True)
        self._occurrences[: len(key)] = ((place % batch) * U + column)[by_token].int()
        # Sorted by token, the occurrences of token s in step k are entries `starts[k m + s] .. starts[k m + s + 1]`.
        edges = torch.arange(STEPS * m + 1, device=rows.device)
        self._starts.copy_(torch.searchsorted(sorted_key, edges))

    def _run_step(self) -> None:
        """One step: the captured graph, captured at its second use since the first compiles the kernels."""
        if not self._order.is_cuda:
            self._take_step()  # Triton's interpreter
        elif self._graph is not None:
            self._graph.replay()
        else:
            self._take_step()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):  # captures, and runs nothing
                self._take_step()

    def _take_step(self) -> None:
        self._compute_gradient()
        self._update_heads()
        self._update_embeddings()
        self._counter[0] += 1

    def _compute_gradient(self) -> None:
        """The gradient of a batch: six kernels, and the products of p's and v's gradients with C."""
        from tokenmargin.training import two_layer_gradient_kernels as gradients
        from tokenmargin.training import two_layer_kernels as kernels

        data, batch, U = self.data, self._batch, self._width
        m, d = self.state.embeddings.shape
        tiles, centred = U // SIDE, self._params.centred
        where = (self._offsets, self._order, self._counter)
        tokens = (self._tokens, *where)
        shape = {"BATCH": batch, "U": U}
        square = shape | {"SIDE": SIDE, "DEPTH": DEPTH, "num_warps": 4}
        sharpness = 1.0 / self.conventions.temperature
        self._columns_gradient.zero_()
        self._gradient.offset.zero_()
        self._heads_sum.zero_()
        kernels.gram_kernel[(tiles * tiles, batch)](centred, *tokens, self._gram, d, **square, num_stages=4)
        kernels.softmax_kernel[(U // 16, batch)](
            self._gram, self._columns, self._tokens, self._float_counts, *where, self._weights, self._mixed,
            self._squares, m, d, **shape, SIDE=16, COLUMNS=64, SHARPNESS=sharpness, num_warps=4,
        )  # fmt: skip
        kernels.product_kernel[(tiles * tiles, batch)](
            self._weights, self._gram, *where, self._product, self._squares, **square, num_stages=3
        )
        kernels.attend_kernel[(batch,)](
            self._mixed, self._squares, self._columns, self._tokens, self._float_counts, data.labels, *where,
            self._params.offset, self._back, self._losses, self._gradient.offset, m, d,
            **shape, BLOCK=256, SHARPNESS=sharpness, EPSILON=EPSILON, num_warps=4,
        )  # fmt: skip
        # G has done its work: its place takes dG + dG'.
        gradients.gram_gradient_kernel[(tiles * tiles, batch)](
            self._weights, self._product, self._back, self._columns, *tokens, self._gram,
            self._columns_gradient, m, d, **square, SHARPNESS=sharpness, num_stages=2,
        )  # fmt: skip
        columns = 256 if d % 256 == 0 else 64
        gradients.embedding_gradient_kernel[(-(-d // columns), tiles, batch)](
            self._gram, self._parts, *tokens, self._pulled, m, d,
            **shape, ROWS=SIDE, COLUMNS=columns, DEPTH=DEPTH, num_warps=4, num_stages=2,
        )  # fmt: skip
        gradients.heads_gradient_kernel[(-(-d // HEADS_COLUMNS), -(-m // (4 * HEADS_ROWS)))](
            centred, self._columns_gradient, self._heads_sum, m, d, ROWS=HEADS_ROWS, COLUMNS=HEADS_COLUMNS, num_warps=2
        )

    def _update_heads(self) -> None:
        """AdamW on p, v and the layer norm's gain and bias."""
        state, (b1, b2) = self.state, self.optimizer.betas
        gradient = self._heads_gradient(self._heads_sum)
        length, root, shrink = self._rates.index_select(0, self._counter[:1])[0]
        self._old_vectors.copy_(self._new_vectors)
        for rows in self.conventions.trained:
            x, g, mean, square = (t[rows] for t in (state.heads, gradient, state.heads_m, state.heads_w))
            mean.lerp_(g, 1.0 - b1)
            square.mul_(b2).addcmul_(g, g, value=1.0 - b2)
            x.mul_(shrink).sub_(length * mean / (square.sqrt() / root + self.optimizer.eps))
        self._new_vectors.copy_(self._vectors())
        if self.conventions.affine_norm:
            torch.dot(state.heads[3], state.heads[1], out=self._params.offset)

    def _update_embeddings(self) -> None:
        """AdamW on the embeddings."""
        import triton

        from tokenmargin.training.two_layer_gradient_kernels import update_embeddings_kernel

        state, (b1, b2) = self.state, self.optimizer.betas
        m, d = state.embeddings.shape
        update_embeddings_kernel[(m,)](
            state.embeddings, state.embeddings_m, state.embeddings_w, self._params.centred, self._parts,
            self._columns, self._columns_gradient, self._pulled, self._occurrences, self._starts,
            self._old_vectors, self._new_vectors, self._rates, self._counter, m, d,
            B1=b1, B2=b2, EPS=self.optimizer.eps, BLOCK=triton.next_power_of_2(d), num_warps=8,
        )  # fmt: skip
