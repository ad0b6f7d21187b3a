"""Cut large sources into slices, and open the corpus in shards that is made of them.

A slice is a run of rows of a parquet file, or of bytes of a file of JSON lines. It is the unit of work on a cluster,
and bounds the memory on one machine: a worker reads it from the source in batches of a few million characters. Slices
in order hold the rows in order. The prepared corpus is a folder with shards of ids, which are mapped when they are
used, and statistics of all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin._files import file_digest, open_sealed, read_plain
from tokenmargin.data.prepared import PreparedFileError, PreparedText, Step, load_prepared
from tokenmargin.data.sources import RejectedRow, Row, json_rows, text_and_label
from tokenmargin.data.table_files import SourceError
from tokenmargin.problem.corpus import CountedByLabel

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
    """Some rows: the texts and labels that could be used, the rows that could not, and how many lines both take."""

    texts: list[str]
    labels: list[str]
    rejected: list[tuple[int, str]]
    lines: int


def find_slices(source: str | Path, *, size: int, text: str = "text", label: str = "label") -> list[Slice]:
    """Cut a file, or the files of a folder in the order of their names, into slices of about `size` bytes of text."""
    path = Path(source).resolve()
    files = sorted(file for file in path.iterdir() if _is_shard(file)) if path.is_dir() else [path]
    if not files or not all(file.is_file() and _is_shard(file) for file in files):
        raise SourceError(f"{path}: slices are cut from .parquet and .jsonl files, or a folder of them")
    slices = [part for file in files for part in _slices_of(file, size, (text, label))]
    if not slices:
        raise SourceError(f"{path}: there is no row in it")
    return slices


def read_slice(part: Slice, *, text: str = "text", label: str = "label") -> Iterator[Batch]:
    """The rows of a slice, some at a time. Lines are counted from 1 at the start of the slice."""
    source = _JsonLines(part) if Path(part.path).suffix in JSON_LINES else _ParquetRows(part)
    texts: list[str] = []
    labels: list[str] = []
    rejected: list[tuple[int, str]] = []
    size = before = 0
    for row in source.rows(text, label):
        found = row if isinstance(row, RejectedRow) else text_and_label(row)
        if isinstance(found, RejectedRow):
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


def _slices_of(path: Path, size: int, columns: tuple[str, str]) -> Iterator[Slice]:
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
    """The first place at or after a byte where a line begins."""
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

    def rows(self, text: str, label: str) -> Iterator[Row | RejectedRow]:
        return json_rows(self._lines(), text, label)

    def _lines(self) -> Iterator[bytes]:
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


FORMAT = 3
MANIFEST, STATISTICS = "corpus.json", "vocabulary.parquet"


@dataclass(frozen=True, eq=False)
class ShardedText(CountedByLabel):
    """A prepared corpus that need not fit into memory; it holds what `PreparedText` holds.

    **Attributes**
    - `vocabulary`: the tokens, the most frequent first.
    - `counts`: occurrences of each token in negative (row 0) and in positive (row 1) texts.
    - `signed_share`: the mean over texts of label times share of the token.
    - `texts`: how many texts each shard holds. `checksums`: of each shard.
    - `steps`, `choices`: how many tokens each step left, and the settings of the pipeline.
    - `source`: the labels that count as -1 and +1, and the rows that could not be used.
    """

    folder: Path
    vocabulary: tuple[str, ...]
    counts: Int[Array, "2 m"]
    signed_share: Float[Array, " m"]
    texts: tuple[int, ...]
    checksums: tuple[str, ...]
    steps: tuple[Step, ...]
    choices: Mapping[str, object]
    source: Mapping[str, Any]

    @property
    def n(self) -> int:
        """Number of texts."""
        return sum(self.texts)

    @property
    def m(self) -> int:
        """Size of the vocabulary."""
        return len(self.vocabulary)

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return int(self.counts.sum())

    @cached_property
    def shards(self) -> tuple[PreparedText, ...]:
        """The shards, whose checksums are compared here. Their vocabularies are empty, since they share one."""
        shards = tuple(
            load_prepared(shard_path(self.folder, i), expected=checksum) for i, checksum in enumerate(self.checksums)
        )
        for i, (shard, texts) in enumerate(zip(shards, self.texts, strict=True)):
            if shard.n != texts:
                raise PreparedFileError(f"{shard_path(self.folder, i)}: {shard.n} texts where {MANIFEST} says {texts}")
        return shards


def shard_path(folder: Path, i: int) -> Path:
    """The file of shard `i`."""
    return folder / f"shard-{i:06d}.safetensors"


def load_sharded(folder: str | Path) -> ShardedText:
    """Open a folder written by `prepare_sharded`; its shards are opened when they are first used."""
    import pyarrow.parquet as pq

    folder = Path(folder)
    try:
        manifest = json.loads(read_plain(folder / MANIFEST))
        if isinstance(manifest, dict) and manifest.get("format") != FORMAT:
            raise ValueError(f"its format is {manifest.get('format')}, this version reads {FORMAT}")
        manifest = open_sealed(manifest)
        if file_digest(folder / STATISTICS) != manifest["statistics"]:
            raise ValueError(f"the checksum of {STATISTICS} differs")
        table = pq.read_table(folder / STATISTICS)
        return ShardedText(
            folder=folder,
            vocabulary=tuple(table["token"].to_pylist()),
            counts=np.stack([table[name].to_numpy() for name in ("negative", "positive")]),
            signed_share=table["signed share"].to_numpy(),
            texts=tuple(manifest["texts"]),
            checksums=tuple(manifest["checksums"]),
            steps=tuple(Step(**step) for step in manifest["steps"]),
            choices=manifest["choices"],
            source=manifest["source"],
        )
    except FileNotFoundError as error:
        raise PreparedFileError(
            f"{folder}: no {Path(error.filename).name} in it; write the folder with `tokenmargin prepare`"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PreparedFileError(f"{folder}: not a prepared corpus ({error}); prepare it again") from error
