"""Work over blocks of rows on several cores.

torch splits every single operation over its threads and waits for all of them after each; a pass made of hundreds of
small operations then stands still whenever one core is busy elsewhere. Here each core takes its own run of blocks
through the whole pass. What a block computes does not depend on how many cores there are, so neither does the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")


class RowBlocks:
    """The rows `0..m-1` in blocks of `size`, shared out among `workers` threads."""

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
