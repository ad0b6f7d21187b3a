"""The parts of a running sweep: rows on disk in the order in which cells ended, and one table of them in the end.

Each part is one parquet file, written whole, that says in its metadata which cells it holds, and in its name a checksum
of its bytes; so what is done is known after any crash, no cell is in two parts, and a damaged part is seen. The final
table is put together window by window, in the order of the cells, so its bytes depend on the results alone, and its
making needs the memory of one window.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray as Array

from tokenmargin._files import arrow_table, atomic_path, file_digest
from tokenmargin.experiments.sweep_worker import CELL, ROW

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_ROWS = 200_000
CELLS_KEY = b"tokenmargin.cells"
DIGITS = 16  # of a checksum


@dataclass(frozen=True)
class Parts:
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
        held = json.dumps(spans(np.fromiter(cells, dtype=np.int64)))
        rows = rows.replace_schema_metadata({CELLS_KEY: held.encode()})
        paths, content = self.paths(), io.BytesIO()
        pq.write_table(rows, content)
        number = int(paths[-1].stem.partition("-")[0]) + 1 if paths else 0
        mark = hashlib.sha256(content.getbuffer()).hexdigest()[:DIGITS]
        with atomic_path(self.folder / f"{number:09d}-{mark}.parquet") as beside:
            beside.write_bytes(content.getbuffer())

    def drop_damaged(self) -> list[str]:
        """Remove parts whose bytes are not those that were written; their cells are then to be done again."""
        damaged = [path for path in self.paths() if path.stem.partition("-")[2] != file_digest(path)[:DIGITS]]
        for path in damaged:
            path.unlink()
        return [f"{self.folder.name}/{path.name}" for path in damaged]

    def held(self, path: Path) -> list[tuple[int, int]]:
        """First and last cell of each run of cells in a part."""
        import pyarrow.parquet as pq

        return [(first, last) for first, last in json.loads(pq.read_schema(path).metadata[CELLS_KEY])]

    def done(self, total: int) -> Bool[Array, " total"]:
        """Which cells are in some part."""
        done = np.zeros(total, dtype=bool)
        for path in self.paths():
            for first, last in self.held(path):
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
        held = {path: self.held(path) for path in paths}
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


def spans(cells: Int[Array, " k"]) -> list[tuple[int, int]]:
    """Cells as runs of neighbours.

    >>> spans(np.array([7, 1, 2, 3, 8]))
    [(1, 3), (7, 8)]
    """
    if not len(cells):
        return []
    cells = np.sort(cells)
    cuts = np.flatnonzero(np.diff(cells) > 1)
    firsts, lasts = cells[np.r_[0, cuts + 1]], cells[np.r_[cuts, len(cells) - 1]]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))
