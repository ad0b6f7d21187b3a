"""The rows of a sweep: workers compute them by cell, parts keep them on disk, and at the end they become one table.

Each part is one parquet file, written whole. Its metadata say which cells it holds, and its name has a checksum of its
bytes. So after a crash it is known what is done, no cell is in two parts, and a damaged part is noticed. The final
table is written window by window in the order of the cells: so its bytes depend on the results alone, and only one
window must fit into memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray as Array

from tokenmargin._files import arrow_table, atomic_path, file_digest
from tokenmargin.dynamics import whole_runs
from tokenmargin.experiments.experiment import FINDINGS, Finding, Table, findings_table
from tokenmargin.experiments.settings import Grid

if TYPE_CHECKING:
    import pyarrow as pa


CELL, ROW = "cell", "row"


@dataclass(frozen=True)
class Failure:
    """A cell that raised an exception or killed its worker."""

    cell: int
    settings: str
    error: str
    traceback: str = ""


@dataclass
class Outcome:
    """The outcome of a piece: rows in blocks of equal columns, failures, and the seconds it took."""

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
                    table = _check_lengths(self.table, result.table(self.table))
                    groups.setdefault(tuple(table), []).append((cell, table))
            except Exception as error:  # one cell must not sink the sweep; the record carries the traceback
                outcome.failures.append(self.failure(cell, error))
        outcome.blocks = [self._join_tables(names, parts) for names, parts in groups.items()]
        if findings:
            table = findings_table([finding for _, found in findings for finding in found])
            outcome.blocks.append(self._block([(cell, len(found)) for cell, found in findings], table))
        outcome.seconds = time.perf_counter() - started
        return outcome

    def failure(self, cell: int, error: Exception) -> Failure:
        """The failure of a cell with its traceback; called while the exception is handled."""
        said = f"{type(error).__name__}: {error}"
        return Failure(cell, describe_settings(self.grid, cell), said, traceback.format_exc())

    def _join_tables(self, names: tuple[str, ...], parts: list[tuple[int, Table]]) -> dict[str, Array]:
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


def _check_lengths(name: str, table: Table) -> Table:
    lengths = {len(column) for column in table.values()}
    if len(lengths) != 1:
        raise ValueError(f"the columns of table {name!r} have lengths {sorted(lengths)}")
    return table


def describe_settings(grid: Grid, cell: int) -> str:
    """The settings of a cell in words: `d=2 seed=7`."""
    return " ".join(f"{name}={_scalar(value)}" for name, value in grid.settings(cell).items())


def _scalar(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


WINDOW_ROWS = 200_000
CELLS_KEY = b"tokenmargin.cells"
DIGITS = 16  # of a checksum


@dataclass(frozen=True)
class PartFolder:
    """A folder of parts. Only the process that holds the run's lock may use it."""

    folder: Path

    def paths(self) -> list[Path]:
        """The parts, oldest first."""
        return sorted(self.folder.glob("[0-9]*.parquet"))

    def append(self, blocks: Sequence[dict[str, Array]], cells: Iterable[int]) -> None:
        """Write a part with these rows, which are all rows of these cells."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = [arrow_table(block) for block in blocks if block]
        rows = pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})
        held = json.dumps(runs_of_neighbours(np.fromiter(cells, dtype=np.int64)))
        rows = rows.replace_schema_metadata({CELLS_KEY: held.encode()})
        paths, content = self.paths(), io.BytesIO()
        pq.write_table(rows, content)
        number = int(paths[-1].stem.partition("-")[0]) + 1 if paths else 0
        mark = hashlib.sha256(content.getbuffer()).hexdigest()[:DIGITS]
        if any(path.stem.partition("-")[2] == mark for path in paths):
            return  # written already, and a Ctrl-C came before the writer knew
        with atomic_path(self.folder / f"{number:09d}-{mark}.parquet") as beside:
            beside.write_bytes(content.getbuffer())

    def drop_damaged(self) -> list[str]:
        """Remove parts whose bytes are not those that were written; their cells are then to be done again."""
        damaged = [path for path in self.paths() if path.stem.partition("-")[2] != file_digest(path)[:DIGITS]]
        for path in damaged:
            path.unlink()
        return [f"{self.folder.name}/{path.name}" for path in damaged]

    def cells_in(self, path: Path) -> list[tuple[int, int]]:
        """First and last cell of each run of cells in a part."""
        import pyarrow.parquet as pq

        return [(first, last) for first, last in json.loads(pq.read_schema(path).metadata[CELLS_KEY])]

    def done(self, total: int) -> Bool[Array, " total"]:
        """Which cells are in some part."""
        done = np.zeros(total, dtype=bool)
        for path in self.paths():
            for first, last in self.cells_in(path):
                if done[first : last + 1].any():
                    raise RuntimeError(f"{path} holds a cell from {first} to {last} that another part holds too")
                done[first : last + 1] = True
        return done

    def assemble(self, target: Path, *, total: int, keys: Sequence[str], order: Sequence[str]) -> int:
        """Write all rows, in the order of the cells, as one table; returns the number of rows.

        **Arguments**
        - `keys`: the columns that come first.
        - `order`: the columns that follow, as far as they occur; any others come last, by name.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        paths = self.paths()
        schemas = [schema for path in paths if len(schema := pq.read_schema(path).remove_metadata()) > 0]
        unified = pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
        names = [name for name in (*keys, *order) if name in unified.names]
        names += sorted(set(unified.names) - set(names))
        schema = pa.schema([unified.field(name) for name in names])
        rows = 0
        with atomic_path(target) as beside, pq.ParquetWriter(beside, schema) as writer:
            for window in self._windows(paths, schema, total):
                writer.write_table(window)
                rows += len(window)
        return rows

    def _windows(self, paths: Sequence[Path], schema: pa.Schema, total: int) -> Iterator[pa.Table]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if not schema.names:
            return
        rows = sum(pq.read_metadata(path).num_rows for path in paths)
        width = max(total * WINDOW_ROWS // max(rows, 1), 1)  # cells in a window: depends on the results alone
        held = {path: self.cells_in(path) for path in paths}
        for start in range(0, total, width):
            stop = start + width
            near = [path for path in paths if any(first < stop and last >= start for first, last in held[path])]
            wanted = [(CELL, ">=", start), (CELL, "<", stop)]
            found = [pq.read_table(path, filters=wanted) for path in near if CELL in pq.read_schema(path).names]
            if found:
                table: Any = pa.concat_tables(found, promote_options="permissive")
                missing = [name for name in schema.names if name not in table.column_names]
                for name in missing:
                    table = table.append_column(name, pa.nulls(len(table), schema.field(name).type))
                table = table.select(schema.names).cast(schema)
                yield table.sort_by([(CELL, "ascending"), (ROW, "ascending")])


def runs_of_neighbours(cells: Int[Array, " k"]) -> list[tuple[int, int]]:
    """The first and the last cell of each run of neighbouring cells.

    >>> runs_of_neighbours(np.array([7, 1, 2, 3, 8]))
    [(1, 3), (7, 8)]
    """
    if not len(cells):
        return []
    cells = np.sort(cells)
    cuts = np.flatnonzero(np.diff(cells) > 1)
    firsts, lasts = cells[np.r_[0, cuts + 1]], cells[np.r_[cuts, len(cells) - 1]]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
