"""Sweeps: run an experiment on every cell of a grid and make one table; an interrupted sweep can be resumed."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool
from numpy import ndarray as Array

from tokenmargin._files import remove_leftovers
from tokenmargin.engines import AbstractEngine, LocalEngine, LostTask
from tokenmargin.experiments.experiment import FINDING_COLUMNS, FINDINGS
from tokenmargin.experiments.records import Run, describe, locked_run, run_id
from tokenmargin.experiments.settings import Grid, command
from tokenmargin.experiments.sweep_rows import (
    CELL,
    ROW,
    CellRunner,
    Failure,
    Outcome,
    PartFolder,
    describe_settings,
    runs_of_neighbours,
)

FAILURES = "failures"
FLUSH_SECONDS = 1.0  # a killed sweep loses the results of so long at most
PIECE_SECONDS = 0.25  # of work in a piece: an engine needs 0.1 ms to 2 ms for each, and a flush should not wait long
LARGEST_PIECE = 10_000
ATTEMPTS_ALONE = 2  # how often a cell may take a worker down, alone, before it counts as failed


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is."""

    done: int
    total: int
    failed: int
    seconds_left: float


def sweep(
    grid: Grid,
    root: Path,
    *,
    engine: AbstractEngine | None = None,
    table: str = FINDINGS,
    fail_fast: bool = False,
    retry_failed: bool = False,
    progress: Callable[[SweepProgress], None] | None = None,
    waiting: Callable[[], None] | None = None,
    found_damaged: Callable[[list[str]], None] | None = None,
) -> Run:
    """Run every cell of a grid and keep one table of each result, with the cell's settings beside its rows.

    Cells that are done are not done again; a killed sweep loses at most the last second. A cell that raises is recorded
    with its traceback in the table `failures`, a cell that takes its worker down likewise.

    **Arguments**
    - `root`: the folder of all runs.
    - `engine`: where cells run; by default processes on this machine.
    - `table`: which table of each result to keep; by default its findings.
    - `fail_fast`: stop at the first failure (the run is then unfinished).
    - `retry_failed`: run the cells again that failed before.
    - `progress`: called about once a second.
    - `waiting`: called when another process is at the same sweep.
    - `found_damaged`: called with what is damaged of a sweep that is there; it is then done again.
    """
    axes = {"axes": [axis.text for axis in grid.axes], "table": table}
    run = Run(root / run_id(grid.base, axes, prefix="sweep-"))
    with locked_run(run, waiting=waiting):
        state = _State(grid, run, engine or LocalEngine(), table, progress or (lambda _: None))
        if run.whole and not (retry_failed and run.details()["failed"]):
            state.clear()
            return run
        damaged = [*(run.damage() if run.finished else ()), *state.prepare(retry_failed=retry_failed)]
        if damaged and found_damaged is not None:
            found_damaged(damaged)
        if state.work(fail_fast=fail_fast):
            state.finish()
    return run


@dataclass
class _State:
    """The state of a sweep while it runs."""

    grid: Grid
    run: Run
    engine: AbstractEngine
    table: str
    progress: Callable[[SweepProgress], None]
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.perf_counter)
    held: list[tuple[range, Outcome]] = field(default_factory=list)
    flushed: float = field(default_factory=time.perf_counter)
    done: int = 0
    failed: int = 0
    fresh: int = 0
    busy: float = 0.0

    @property
    def results(self) -> PartFolder:
        return PartFolder(self.run.folder / "parts")

    @property
    def failures(self) -> PartFolder:
        return PartFolder(self.run.folder / "failed")

    def prepare(self, *, retry_failed: bool) -> list[str]:
        """Remove half-written files, damaged parts, and failures to try again; returns the damaged parts."""
        (self.run.folder / "run.json").unlink(missing_ok=True)
        remove_leftovers(self.run.folder)
        if retry_failed:
            shutil.rmtree(self.failures.folder, ignore_errors=True)
        return self.results.drop_damaged() + self.failures.drop_damaged()

    def work(self, *, fail_fast: bool) -> bool:
        """Run what is not done yet; returns whether everything is done now."""
        over, failed = self.results.done(len(self.grid)), self.failures.done(len(self.grid))
        self.done, self.failed = int((over | failed).sum()), int(failed.sum())
        runner = CellRunner(self.grid, self.table)
        todo, suspects = ~(over | failed), list[int]()
        try:
            while todo.any() or suspects:
                with contextlib.closing(self._results(runner, todo, suspects)) as results:
                    for piece, outcome in results:
                        todo[piece.start : piece.stop] = False
                        if isinstance(outcome, LostTask):
                            suspects += piece
                            continue
                        self._add_outcome(piece, outcome)
                        if fail_fast and self.failed:
                            return False
        finally:
            self._flush()
        return True

    def _results(
        self, runner: CellRunner, todo: Bool[Array, " total"], suspects: list[int]
    ) -> Generator[tuple[range, Outcome | LostTask]]:
        """The outcomes of all pieces; after a worker was lost, those of the cells it may have had, one at a time."""
        if suspects:
            yield self._run_alone(runner, suspects.pop())
        else:
            yield from self.engine.map(runner, self._pieces(todo.copy()))

    def _run_alone(self, runner: CellRunner, cell: int) -> tuple[range, Outcome]:
        """The outcome of a cell that may have killed its worker, run with no other cell beside it."""
        piece, reason = range(cell, cell + 1), ""
        for _ in range(ATTEMPTS_ALONE):
            for _, outcome in self.engine.map(runner, iter([piece])):
                if not isinstance(outcome, LostTask):
                    return piece, outcome
                reason = outcome.reason
        said = f"the worker died while it ran this cell alone, {ATTEMPTS_ALONE} times: {reason}"
        return piece, Outcome(failures=[Failure(cell, describe_settings(self.grid, cell), said)])

    def _pieces(self, todo: Bool[Array, " total"]) -> Iterator[range]:
        """Pieces of neighbouring cells that take about `PIECE_SECONDS`; towards the end they are smaller."""
        left, workers = int(todo.sum()), self.engine.workers
        for first, last in runs_of_neighbours(np.flatnonzero(todo)):
            while first <= last:
                steady = PIECE_SECONDS * self.fresh / self.busy if self.busy > 0 else 1.0
                size = int(max(min(steady, -(-left // (2 * workers)), LARGEST_PIECE, last - first + 1), 1))
                yield range(first, first + size)
                first, left = first + size, left - size

    def _add_outcome(self, piece: range, outcome: Outcome) -> None:
        self.held.append((piece, outcome))
        self.done += len(piece)
        self.fresh += len(piece)
        self.failed += len(outcome.failures)
        self.busy += outcome.seconds
        if time.perf_counter() - self.flushed >= FLUSH_SECONDS or self.done == len(self.grid):
            self._flush()
            passed = time.perf_counter() - self.clock
            left = (len(self.grid) - self.done) * passed / self.fresh
            self.progress(SweepProgress(self.done, len(self.grid), self.failed, left))

    def _flush(self) -> None:
        self.flushed = time.perf_counter()
        failures = [failure for _, outcome in self.held for failure in outcome.failures]
        bad = {failure.cell for failure in failures}
        good = [cell for piece, _ in self.held for cell in piece if cell not in bad]
        if good:
            self.results.append([block for _, outcome in self.held for block in outcome.blocks], good)
        if failures:
            columns = {name: np.array([asdict(failure)[name] for failure in failures]) for name in asdict(failures[0])}
            self.failures.append([{**columns, ROW: np.zeros(len(failures), dtype=int)}], bad)
        self.held.clear()

    def finish(self) -> None:
        """Join the parts to tables, write `run.json`, and remove the parts."""
        total, keys = len(self.grid), [CELL, *(axis.name for axis in self.grid.axes), ROW]
        self.results.assemble(self.run.table_path(self.table), total=total, keys=keys, order=FINDING_COLUMNS)
        if self.failed:
            self.failures.assemble(self.run.table_path(FAILURES), total=total, keys=[CELL], order=("settings", "error"))
        else:
            self.run.table_path(FAILURES).unlink(missing_ok=True)
        seconds = time.perf_counter() - self.clock
        self.run.finish({**describe(self.grid.base, started=self.started, seconds=seconds), **self._facts()})
        self.clear()

    def clear(self) -> None:
        """Remove the parts of a finished sweep, unless cells failed, which may be tried again."""
        if not self.run.details()["failed"]:
            shutil.rmtree(self.results.folder, ignore_errors=True)
            shutil.rmtree(self.failures.folder, ignore_errors=True)

    def _facts(self) -> dict[str, Any]:
        words = [command(self.grid.base, verb="sweep"), *(f"--over {axis.text}" for axis in self.grid.axes)]
        return {
            "kind": "sweep",
            "command": " ".join(words + ([f"--table {self.table}"] if self.table != FINDINGS else [])),
            "axes": [axis.text for axis in self.grid.axes],
            "cells": len(self.grid),
            "failed": self.failed,
            "engine": type(self.engine).__name__,
            "workers": self.engine.workers,
            "verdict": "finished",
            "notes": [],
        }
