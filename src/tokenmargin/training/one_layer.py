"""The one-layer model (1) of paper A, trained in vocabulary space.

The loss sees the embeddings only through the two vectors `a = E p` and `b = E v`, so its gradient in E has rank two:
`dL/dE_s = c_s p + e_s v`, where `e_s` sums `g_i s_t` and `c_s` sums `g_i s_t (b_{x_t} - f_i)` over the occurrences of
s, and `dL/dp = E' c`, `dL/dv = E' e`. A step gathers numbers, not vectors. The AdamW update runs over blocks of rows
small enough for the cache, and leaves the next step's a and b behind: E and its two moments are read once and written
once, and E is read once more for the heads' gradient, so a step moves seven times the matrix.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from tokenmargin.training.batches import RaggedBatch, Sequences
from tokenmargin.training.config import Conventions
from tokenmargin.training.parameters import AdamW, State
from tokenmargin.training.ranks import AbstractSplit, ByTexts

Result = TypeVar("Result")


class RowBlocks:
    """The rows `0..m-1` in blocks of `size`, shared out among `workers` threads.

    torch splits every single operation over its threads and waits for all of them after each; a pass of hundreds of
    small operations then stands still whenever one core is busy elsewhere. Here each core takes its own run of blocks
    through the whole pass. What a block computes does not depend on the number of cores, so neither does the result.
    """

    def __init__(self, m: int, size: int, workers: int) -> None:
        self.blocks = [slice(i, min(i + size, m)) for i in range(0, m, size)]
        self.workers = min(workers, len(self.blocks))
        self._pool = (
            ThreadPoolExecutor(self.workers, initializer=lambda: torch.set_num_threads(1)) if self.workers > 1 else None
        )

    def each(self, work: Callable[[slice], None]) -> None:
        """Do `work` on every block."""
        share = -(-len(self.blocks) // self.workers)
        runs = [self.blocks[i : i + share] for i in range(0, len(self.blocks), share)]

        def work_through(run: list[slice]) -> None:
            for block in run:
                work(block)

        self._map(work_through, runs)

    def gather(self, work: Callable[[slice], Result], parts: int = 8) -> list[Result]:
        """The results of `work` on `parts` runs of neighbouring blocks, in order."""
        share = -(-len(self.blocks) // parts)
        runs = [self.blocks[i : i + share] for i in range(0, len(self.blocks), share)]
        return self._map(lambda run: work(slice(run[0].start, run[-1].stop)), runs)

    def _map(self, work: Callable[[list[slice]], Result], runs: list[list[slice]]) -> list[Result]:
        return [work(run) for run in runs] if self._pool is None else list(self._pool.map(work, runs))


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Keep torch's own threads out of the way of ours, and give them back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


BLOCK_BYTES = 1 << 20  # of one matrix; four of them stay in a core's cache together


@runtime_checkable
class Model(Protocol):
    """What the trainer asks of a model: parameters, and the running of batches."""

    state: State

    def run(self, order: Tensor, batch: int, *, first: int, last: int, rate: float) -> Tensor:
        """Train on batches `first..last-1` of the epoch's `order`; the sum of the losses of their rows."""

    def scores(self) -> Tensor:
        """`<E_s, p>` and `<E_s, v>` of all tokens, of shape (2, m)."""

    def outputs(self, rows: Tensor) -> Tensor:
        """f for some rows."""

    def tensors(self) -> dict[str, Tensor]:
        """Everything that must be saved to go on exactly."""

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Go on from saved tensors."""


def attend(scores: Tensor, batch: RaggedBatch, *, temperature: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax weights, outputs f, and `b - f` for every token of a ragged batch.

    `b - f` is taken from the selected token's b, which keeps its direction when one weight has rounded to 1. Logits are
    the scores `a` over `temperature`.
    """
    n = len(batch.labels)
    a, b = scores[0][batch.ids] / temperature, scores[1][batch.ids]
    lowest = torch.full((n,), -torch.inf, dtype=scores.dtype, device=scores.device)
    top = lowest.scatter_reduce(0, batch.segment, a, "amax")[batch.segment]
    pivot = lowest.scatter_reduce(0, batch.segment, b.masked_fill(a < top, -torch.inf), "amax")
    weights = torch.exp(a - top)
    zeros = torch.zeros_like(pivot)
    weights = weights / zeros.index_add(0, batch.segment, weights)[batch.segment]
    gap = b - pivot[batch.segment]
    mean = zeros.index_add(0, batch.segment, weights * gap)
    return weights, pivot + mean, gap - mean[batch.segment]


class WithScores:
    """A model whose state in files is its parameters and the scores of all tokens, kept up to date."""

    state: State
    _scores: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """The state, and the scores as the last step left them."""
        return self.state.tensors() | {"scores": self._scores}

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Go on from saved tensors."""
        self.state.load(tensors, step)
        self._scores.copy_(tensors["scores"])


class OneLayer(WithScores):
    """`f(X) = softmax(p' E_X') E_X v` on a CPU, or on any device through torch's own kernels.

    `split` says what this process does of each step when it is one of several ranks.
    """

    def __init__(
        self,
        data: Sequences,
        state: State,
        optimizer: AdamW,
        *,
        conventions: Conventions | None = None,
        split: AbstractSplit | None = None,
    ) -> None:
        self.data, self.state, self.optimizer = data, state, optimizer
        self.conventions, self.split = conventions or Conventions(), split or ByTexts()
        m, d = state.embeddings.shape
        state.check_rows(data.m)
        on_cpu = state.embeddings.device.type == "cpu"
        rows = BLOCK_BYTES // (d * state.embeddings.element_size()) if on_cpu else m
        self._rows = RowBlocks(m, max(rows, 1), torch.get_num_threads() if on_cpu else 1)
        self._scores = torch.empty(2, m, dtype=state.embeddings.dtype, device=state.embeddings.device)
        with one_thread_each():
            self._rows.each(self._project)

    def scores(self) -> Tensor:
        """`<E_s, p>` and `<E_s, v>` of all tokens."""
        return self.split.all_scores(self._scores)

    def outputs(self, rows: Tensor) -> Tensor:
        """f for some rows."""
        batch = self.data.batch(rows)
        return attend(self.split.complete(self._scores, batch), batch, temperature=self.conventions.temperature)[1]

    def gradient(self, batch: RaggedBatch, *, among: int | None = None) -> tuple[Tensor, Tensor]:
        """Losses of the rows, and their part of the vectors c and e of the mean loss over `among` rows."""
        scores = self.split.complete(self._scores, batch)
        weights, f, gap = attend(scores, batch, temperature=self.conventions.temperature)
        margin = batch.labels * f
        slope = -batch.labels * torch.sigmoid(-margin) / (among or len(margin))
        e = slope[batch.segment] * weights
        out = torch.zeros_like(self._scores)
        out[0].index_add_(0, batch.ids, e * gap / self.conventions.temperature)
        out[1].index_add_(0, batch.ids, e)
        return torch.nn.functional.softplus(-margin), out

    @torch.no_grad()
    def run(self, order: Tensor, batch: int, *, first: int, last: int, rate: float) -> Tensor:
        """Train on batches `first..last-1` of the epoch's `order`; the sum of the losses of their rows."""
        total = torch.zeros((), dtype=torch.float64, device=order.device)
        with one_thread_each():
            for k in range(first, last):
                rows = order[k * batch : (k + 1) * batch]
                ours = self.data.batch(rows[self.split.rows(len(rows))])
                losses, weights = self.gradient(ours, among=len(rows))
                total += losses.sum(dtype=torch.float64)
                self._update(self.split.gather(weights), rate)
        return self.split.total(total)

    def _update(self, weights: Tensor, rate: float) -> None:
        """One step of AdamW on everything, given c and e."""
        state, E = self.state, self.state.embeddings
        state.step += 1
        step = torch.tensor(float(state.step), device=E.device)
        old = state.heads.clone()
        pulled = torch.stack(self._rows.gather(lambda run: weights[:, run] @ E[run])).sum(0)
        for rows in self.conventions.trained:
            self._adamw(state.heads[rows], pulled[rows], state.heads_m[rows], state.heads_w[rows], step, rate)

        def work(block: slice) -> None:
            gradient = weights[:, block].T @ old
            self._adamw(E[block], gradient, state.embeddings_m[block], state.embeddings_w[block], step, rate)
            self._project(block)

        self._rows.each(work)

    def _project(self, block: slice) -> None:
        self._scores[:, block] = self.state.heads @ self.state.embeddings[block].T

    def _adamw(self, x: Tensor, gradient: Tensor, m: Tensor, w: Tensor, step: Tensor, rate: float) -> None:
        self.optimizer.update([x], [gradient], [m], [w], step=step, rate=rate)
