"""What a worker does with a piece of a sweep: run its cells, and turn results and failures into rows."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy import ndarray as Array

from tokenmargin.dynamics import whole_runs
from tokenmargin.experiments.experiment import FINDINGS, Finding, Table, findings_table
from tokenmargin.experiments.settings import Grid

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
        findings: list[tuple[int, tuple[Finding, ...]]] = []
        groups: dict[tuple[str, ...], list[tuple[int, Table]]] = {}
        for cell in cells:
            try:
                with whole_runs():
                    result = self.grid[cell].run()
                if self.table == FINDINGS:  # many small tables at once: a cell may take but a millisecond
                    findings.append((cell, result.findings))
                else:
                    table = _checked(self.table, result.table(self.table))
                    groups.setdefault(tuple(table), []).append((cell, table))
            except Exception as error:  # one cell must not sink the sweep; the record carries the traceback
                outcome.failures.append(self.failure(cell, error))
        outcome.blocks = [self._joined(names, parts) for names, parts in groups.items()]
        if findings:
            table = findings_table([finding for _, found in findings for finding in found])
            outcome.blocks.append(self._block([(cell, len(found)) for cell, found in findings], table))
        outcome.seconds = time.perf_counter() - started
        return outcome

    def failure(self, cell: int, error: Exception) -> Failure:
        """A failure with its traceback, while the exception is handled."""
        said = f"{type(error).__name__}: {error}"
        return Failure(cell, describe_settings(self.grid, cell), said, traceback.format_exc())

    def _joined(self, names: tuple[str, ...], parts: list[tuple[int, Table]]) -> dict[str, Array]:
        table = {name: np.concatenate([table[name] for _, table in parts]) for name in names}
        return self._block([(cell, len(next(iter(table.values())))) for cell, table in parts], table)

    def _block(self, rows: list[tuple[int, int]], table: Table) -> dict[str, Array]:
        """Rows of several cells with the cells' settings beside them, given how many rows each cell has."""
        cells, lengths = zip(*rows, strict=True)
        settings = [self.grid.settings(cell) for cell in cells]
        keys: dict[str, Any] = {CELL: cells}
        keys |= {axis.name: [_scalar(chosen[axis.name]) for chosen in settings] for axis in self.grid.axes}
        block = {name: np.repeat(np.array(values), lengths) for name, values in keys.items()}
        ends = np.cumsum(lengths)
        block[ROW] = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        return block | {name if name not in block else f"{self.table}_{name}": table[name] for name in table}


def _checked(name: str, table: Table) -> Table:
    lengths = {len(column) for column in table.values()}
    if len(lengths) != 1:
        raise ValueError(f"the columns of table {name!r} have lengths {sorted(lengths)}")
    return table


def describe_settings(grid: Grid, cell: int) -> str:
    """The settings of a cell in words: `d=2 seed=7`."""
    return " ".join(f"{name}={_scalar(value)}" for name, value in grid.settings(cell).items())


def _scalar(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value
