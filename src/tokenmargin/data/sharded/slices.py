"""Large sources as slices: runs of rows of parquet files, runs of bytes of JSON lines, each read on its own.

A slice is the unit of work on a cluster and the bound on memory on one machine: it is read in batches of a few million
characters, by whoever does the work, from where the file lies. Slices in order hold the rows in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tokenmargin.data.sources import Rejected, Row, SourceError, json_rows, usable

JSON_LINES = (".jsonl", ".ndjson")
BATCH_CHARACTERS = 4_000_000  # what is read before it is worked on


@dataclass(frozen=True)
class Slice:
    """Rows (parquet) or bytes (JSON lines) `begin..end-1` of a file."""

    path: str
    begin: int
    end: int


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows: what could be used, what could not, and how many lines both came from."""

    texts: list[str]
    labels: list[str]
    rejected: list[tuple[int, str]]
    lines: int


def find_slices(source: str | Path, *, size: int, text: str = "text", label: str = "label") -> list[Slice]:
    """Cut a file or a folder of files into slices of about `size` bytes of text, in order of file name."""
    path = Path(source).resolve()
    files = sorted(file for file in path.iterdir() if _is_shard(file)) if path.is_dir() else [path]
    if not files or not all(file.is_file() and _is_shard(file) for file in files):
        raise SourceError(f"{path}: slices are cut from .parquet and .jsonl files, or a folder of them")
    slices = [part for file in files for part in _cut(file, size, (text, label))]
    if not slices:
        raise SourceError(f"{path}: there is no row in it")
    return slices


def read_slice(part: Slice, *, text: str = "text", label: str = "label") -> Iterator[Batch]:
    """The rows of a slice, some at a time. Lines are counted from 1 at the beginning of the slice."""
    source = _JsonLines(part) if Path(part.path).suffix in JSON_LINES else _ParquetRows(part)
    texts: list[str] = []
    labels: list[str] = []
    rejected: list[tuple[int, str]] = []
    size = before = 0
    for row in source.rows(text, label):
        found = row if isinstance(row, Rejected) else usable(row)
        if isinstance(found, Rejected):
            rejected.append((int(found.place.removeprefix("line ")), found.reason))
        else:
            texts.append(found[0])
            labels.append(found[1])
            size += len(found[0])
        if size >= BATCH_CHARACTERS:
            yield Batch(texts, labels, rejected, source.lines - before)
            texts, labels, rejected, size, before = [], [], [], 0, source.lines
    yield Batch(texts, labels, rejected, source.lines - before)


def _is_shard(path: Path) -> bool:
    return path.suffix == ".parquet" or path.suffix in JSON_LINES


def _cut(path: Path, size: int, columns: tuple[str, str]) -> Iterator[Slice]:
    if path.suffix in JSON_LINES:
        end = path.stat().st_size
        marks = sorted({_line_start(path, begin) for begin in range(0, end, size)} | {end})
        yield from (Slice(str(path), *pair) for pair in pairwise(marks))
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        about = pq.read_metadata(path)
    except pa.ArrowException as error:
        raise SourceError(f"{path}: not a readable parquet file ({error})") from error
    names = about.schema.to_arrow_schema().names
    for name in columns:
        if name not in names:
            raise SourceError(f"{path}: no column {name!r}; it has {', '.join(map(repr, names))}")
    column = about.schema.names.index(columns[0])
    text = sum(about.row_group(k).column(column).total_uncompressed_size for k in range(about.num_row_groups))
    rows = max(about.num_rows * size // max(text, 1), 1)
    for begin in range(0, about.num_rows, rows):
        yield Slice(str(path), begin, min(begin + rows, about.num_rows))


def _line_start(path: Path, place: int) -> int:
    """The first beginning of a line at or after a byte."""
    if place == 0:
        return 0
    with path.open("rb") as file:
        file.seek(place - 1)
        file.readline()
        return file.tell()


@dataclass
class _JsonLines:
    """The lines of a slice, counted as they are read."""

    part: Slice
    lines: int = 0

    def rows(self, text: str, label: str) -> Iterator[Row | Rejected]:
        return json_rows(self._read(), text, label)

    def _read(self) -> Iterator[bytes]:
        with Path(self.part.path).open("rb") as file:
            file.seek(self.part.begin)
            while file.tell() < self.part.end:
                self.lines += 1
                yield file.readline()


@dataclass
class _ParquetRows:
    """The rows of a slice, by polars, which decodes only the pages that hold them."""

    part: Slice
    lines: int = 0

    def rows(self, text: str, label: str) -> Iterator[Row]:
        import polars as pl

        table = pl.scan_parquet(self.part.path).select(text, label)
        frame = table.slice(self.part.begin, self.part.end - self.part.begin).collect(engine="streaming")
        for row in frame.iter_rows():
            self.lines += 1
            yield self.lines, *row
