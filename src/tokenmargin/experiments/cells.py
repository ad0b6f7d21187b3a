"""What a worker does with a piece of a sweep: run its cells, and turn results and failures into rows."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray as Array

from tokenmargin.experiments.experiment import Table
from tokenmargin.experiments.settings import Grid

__all__ = ["CELL", "ROW", "CellRunner", "Failure", "Outcome"]

CELL, ROW = "cell", "row"


@dataclass(frozen=True)
class Failure:
    """A cell that raised, or took its worker down."""

    cell: int
    settings: str
    error: str
    traceback: str = ""


@dataclass
class Outcome:
    """What became of a piece: rows in blocks of equal columns, failures, and the time it took."""

    blocks: list[dict[str, Array]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class CellRunner:
    """Runs cells of a grid and keeps one table of each result."""

    grid: Grid
    table: str

    def __call__(self, cells: range) -> Outcome:
        outcome, started = Outcome(), time.perf_counter()
        groups: dict[tuple[str, ...], list[tuple[int, Table]]] = {}
        for cell in cells:
            try:
                table = self.grid[cell].run().table(self.table)
                lengths = {len(column) for column in table.values()}
                if len(lengths) != 1:
                    raise ValueError(f"the columns of table {self.table!r} have lengths {sorted(lengths)}")
                groups.setdefault(tuple(table), []).append((cell, table))
            except Exception as error:  # one cell must not sink the sweep; the record carries the traceback
                outcome.failures.append(self.failure(cell, error))
        outcome.blocks = [self._block(names, parts) for names, parts in groups.items()]
        outcome.seconds = time.perf_counter() - started
        return outcome

    def failure(self, cell: int, error: Exception) -> Failure:
        """A failure with its traceback, while the exception is handled."""
        said = f"{type(error).__name__}: {error}"
        return Failure(cell, describe_settings(self.grid, cell), said, traceback.format_exc())

    def _block(self, names: tuple[str, ...], parts: list[tuple[int, Table]]) -> dict[str, Array]:
        lengths = [len(next(iter(table.values()))) for _, table in parts]
        keys: dict[str, Any] = {CELL: [cell for cell, _ in parts]}
        settings = [self.grid.settings(cell) for cell, _ in parts]
        keys |= {axis.name: [_scalar(chosen[axis.name]) for chosen in settings] for axis in self.grid.axes}
        block = {name: np.repeat(np.array(values), lengths) for name, values in keys.items()}
        block[ROW] = np.concatenate([np.arange(length) for length in lengths])
        return block | {
            name if name not in block else f"{self.table}_{name}": np.concatenate([table[name] for _, table in parts])
            for name in names
        }


def describe_settings(grid: Grid, cell: int) -> str:
    """The settings of a cell in words: `d=2 seed=7`."""
    return " ".join(f"{name}={_scalar(value)}" for name, value in grid.settings(cell).items())


def _scalar(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value
