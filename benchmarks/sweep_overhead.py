"""What a sweep costs beside its cells: 10,000 cells of a millisecond each, on the local engine and on ray.

    python -m benchmarks.sweep_overhead                # local
    python -m benchmarks.sweep_overhead --engine ray   # on a cluster of this machine: ray start --head

A cell keeps its core busy for a millisecond by the processor's clock of its own thread, so cells cannot gain by
overlapping; the least possible time is `cells x 1 ms / workers`. Printed are the time on the wall, which other work on
the machine lengthens, and the processor time of this process and all below it (Linux), which it does not; without the
start of the workers (import of the package in each, for ray the start of the cluster), which is given apart.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from benchmarks.tools import run_main
from tokenmargin.experiments import (
    AbstractEngine,
    AbstractExperiment,
    Axis,
    Finding,
    Grid,
    LocalEngine,
    RayEngine,
    Result,
    sweep,
)

CELL_SECONDS = 1e-3


@dataclass(frozen=True)
class Busy(AbstractExperiment):
    """Keeps one core busy for a given time."""

    figure: ClassVar[str] = "busy"
    source: ClassVar[str] = "an experiment of our own"
    title: ClassVar[str] = "A cell of known length"

    seed: int = 0
    seconds_busy: float = CELL_SECONDS

    def run(self, progress: Callable[[float], None] | None = None) -> Result:
        end = time.thread_time() + self.seconds_busy
        while time.thread_time() < end:
            pass
        return Result(self, {}, (Finding("the seed", float(self.seed), self.seed, self.seed),))


def measure(engine: AbstractEngine, cells: int) -> tuple[float, float]:
    """Seconds of a whole sweep, its table written: on the wall, and of all processors together."""
    with tempfile.TemporaryDirectory() as folder:
        started, spent = time.perf_counter(), processor_seconds()
        made = sweep(Grid(Busy(), (Axis("seed", range(cells)),)), Path(folder), engine=engine)
        seconds, spent = time.perf_counter() - started, processor_seconds() - spent
        assert len(made.table("findings")["cell"]) == cells, "every cell has its row"
        return seconds, spent


def processor_seconds() -> float:
    """Processor time of this process and all its descendants that live."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    family = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return sum(ticks[pid] for pid in family) / os.sysconf("SC_CLK_TCK")


def main(*, engine: Literal["local", "ray"] = "local", cells: int = 10_000, repeats: int = 3) -> None:
    started = time.perf_counter()
    chosen: AbstractEngine = LocalEngine() if engine == "local" else RayEngine("auto")
    workers = chosen.workers
    measure(chosen, 4 * workers)
    start = time.perf_counter() - started
    work = cells * CELL_SECONDS
    print(f"{engine}: {cells} cells of 1 ms on {workers} workers, least possible {work / workers:.2f} s")
    print(f"start of the workers {start:.2f} s")
    for _ in range(repeats):
        seconds, spent = measure(chosen, cells)
        wall, processors = seconds * workers / work - 1, spent / work - 1
        print(f"{seconds:.2f} s, overhead {wall:.1%} on the wall, {processors:.1%} in processor time")


if __name__ == "__main__":
    run_main(main, __doc__)
