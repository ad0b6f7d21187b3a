"""The one-layer model (1) of paper A, trained in vocabulary space.

The loss sees the embeddings only through the two vectors `a = E p` and `b = E v`, so its gradient in E has rank two:
`dL/dE_s = c_s p + e_s v`, where `e_s` sums `g_i s_t` and `c_s` sums `g_i s_t (b_{x_t} - f_i)` over the occurrences of
s, and `dL/dp = E' c`, `dL/dv = E' e`. A step gathers numbers, not vectors. The AdamW update runs over blocks of rows
small enough for the cache, and computes the next step's a and b while a block is there. So E and its two moments are
read once and written once, and E is read once more for the gradient of p and v: a step moves seven times the matrix.
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
from tokenmargin.training.epochs import Trainable
from tokenmargin.training.parameters import AdamW, State
from tokenmargin.training.ranks import AbstractSplit, ByTexts

Result = TypeVar("Result")


class RowBlocks:
    """The rows `0..m-1` in blocks of `size`, worked on by `workers` threads.

    torch splits every operation over its threads and waits for all of them after each. A pass of hundreds of small
    operations then stops whenever one core is busy elsewhere. Here each thread takes a run of neighbouring blocks
    through the whole pass. What is computed for a block does not depend on the number of threads.
    """

    def __init__(self, m: int, size: int, workers: int) -> None:
        self.blocks = [slice(i, min(i + size, m)) for i in range(0, m, size)]
        self.workers = min(workers, len(self.blocks))
        self._pool = (
            ThreadPoolExecutor(self.workers, initializer=lambda: torch.set_num_threads(1)) if self.workers > 1 else None
        )

    def for_each(self, work: Callable[[slice], None]) -> None:
        """Call `work` with every block."""
        share = -(-len(self.blocks) // self.workers)
        runs = [self.blocks[i : i + share] for i in range(0, len(self.blocks), share)]

        def work_through(run: list[slice]) -> None:
            for block in run:
                work(block)

        self._map(work_through, runs)

    def results(self, work: Callable[[slice], Result]) -> list[Result]:
        """The results of `work` on a few runs of neighbouring rows, in order."""
        share = -(-len(self.blocks) // PARTS)
        runs = [self.blocks[i : i + share] for i in range(0, len(self.blocks), share)]
        return self._map(lambda run: work(slice(run[0].start, run[-1].stop)), runs)

    def _map(self, work: Callable[[list[slice]], Result], runs: list[list[slice]]) -> list[Result]:
        return [work(run) for run in runs] if self._pool is None else list(self._pool.map(work, runs))


@contextlib.contextmanager
def one_thread_each() -> Iterator[None]:
    """Let torch use one thread for each operation, since ours run at the same time; undone afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


PARTS = 8  # whose sums are added up in order, whatever the number of threads
BLOCK_BYTES = 1 << 20  # a block of one matrix; the blocks of four matrices fit into a core's cache together


@runtime_checkable
class Model(Trainable, Protocol):
    """What the training loop asks of a model, and what a trained model is asked for."""

    state: State

    def scores(self) -> Tensor:
        """`<E_s, p>` and `<E_s, v>` of all tokens, of shape (2, m)."""

    def outputs(self, rows: Tensor) -> Tensor:
        """The output f of each of the given rows."""


def attend(scores: Tensor, batch: RaggedBatch, *, temperature: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax weights of all tokens of a ragged batch, the outputs f of its rows, and `b - f` of all tokens.

    `b - f` is computed from differences to the b of the selected token, so it keeps its direction when one weight has
    rounded to 1. The logits are the scores `a` over `temperature`.
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
    """A model that keeps the scores of all tokens up to date, and saves them beside its parameters."""

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

    **Arguments**
    - `split`: the part of each step that this process takes, when it is one of several ranks.
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
            self._rows.for_each(self._project)

    def scores(self) -> Tensor:
        """`<E_s, p>` and `<E_s, v>` of all tokens."""
        return self.split.all_scores(self._scores)

    def outputs(self, rows: Tensor) -> Tensor:
        """The output f of each of the given rows."""
        batch = self.data.batch(rows)
        return attend(self.split.batch_scores(self._scores, batch), batch, temperature=self.conventions.temperature)[1]

    def gradient(self, batch: RaggedBatch, *, among: int | None = None) -> tuple[Tensor, Tensor]:
        """The losses of the rows, and what they add to the vectors c and e of the mean loss over `among` rows."""
        scores = self.split.batch_scores(self._scores, batch)
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
        """Train on the batches `first..last-1` of the epoch's `order`; returns the sum of the losses of their rows."""
        total = torch.zeros((), dtype=torch.float64, device=order.device)
        with one_thread_each():
            for k in range(first, last):
                rows = order[k * batch : (k + 1) * batch]
                ours = self.data.batch(rows[self.split.own_rows(len(rows))])
                losses, weights = self.gradient(ours, among=len(rows))
                total += losses.sum(dtype=torch.float64)
                self._update(self.split.batch_weights(weights), rate)
        return self.split.total(total)

    def _update(self, weights: Tensor, rate: float) -> None:
        """One step of AdamW on E, p and v, given c and e."""
        state, E = self.state, self.state.embeddings
        state.step += 1
        step = torch.tensor(float(state.step), device=E.device)
        old = state.heads.clone()
        pulled = torch.stack(self._rows.results(lambda run: weights[:, run] @ E[run])).sum(0)
        for rows in self.conventions.trained:
            self._adamw(state.heads[rows], pulled[rows], state.heads_m[rows], state.heads_w[rows], step, rate)

        def work(block: slice) -> None:
            gradient = weights[:, block].T @ old
            self._adamw(E[block], gradient, state.embeddings_m[block], state.embeddings_w[block], step, rate)
            self._project(block)

        self._rows.for_each(work)

    def _project(self, block: slice) -> None:
        """Compute the scores of a block of tokens."""
        self._scores[:, block] = self.state.heads @ self.state.embeddings[block].T

    def _adamw(self, x: Tensor, gradient: Tensor, m: Tensor, w: Tensor, step: Tensor, rate: float) -> None:
        self.optimizer.update([x], [gradient], [m], [w], step=step, rate=rate)
