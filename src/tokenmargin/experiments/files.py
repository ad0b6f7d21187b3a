"""Files that are whole or absent: each is written beside its place, synced, and moved there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray as Array

from tokenmargin.experiments.experiment import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "arrow_table",
    "atomic_path",
    "file_digest",
    "plain",
    "plain_columns",
    "read_table",
    "remove_leftovers",
    "write_json",
    "write_table",
]

LEFTOVER = ".unfinished-"


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A path to write to; on success the file is synced and takes its place at once, on failure nothing is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{LEFTOVER}{uuid.uuid4().hex}{path.suffix}")
    try:
        yield beside
        _sync(beside)
        os.replace(beside, path)
        _sync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing; only for who holds the folder's lock."""
    for path in folder.rglob(f"{LEFTOVER}*"):
        path.unlink(missing_ok=True)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write a JSON file; numbers that JSON cannot write become null."""
    text = json.dumps(plain(data), indent=2, allow_nan=False)
    with atomic_path(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")


def write_table(path: Path, table: Table) -> None:
    """Write a table as parquet; the same table gives the same bytes."""
    import pyarrow.parquet as pq

    with atomic_path(path) as beside:
        pq.write_table(arrow_table(table), beside)


def read_table(path: Path) -> Table:
    """Read a parquet table into columns of numpy."""
    import pyarrow.parquet as pq

    return plain_columns(pq.read_table(path))


def arrow_table(table: Table) -> pa.Table:
    """The columns for parquet."""
    import pyarrow as pa

    for name, column in table.items():
        if column.ndim != 1:
            raise ValueError(f"column {name!r} must have one dimension, got shape {column.shape}")
    return pa.table({name: pa.array(column.tolist() if column.dtype.kind == "U" else column)
                     for name, column in table.items()})  # fmt: skip


def plain_columns(table: pa.Table) -> dict[str, Array]:
    """The columns of a parquet table: numbers as numbers, text as text."""
    import pyarrow as pa

    columns = {}
    for name in table.column_names:
        column = table[name]
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        columns[name] = np.array(column.to_pylist(), dtype=str) if text else column.to_numpy()
    return columns


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def plain(data: Any) -> Any:
    match data:
        case Mapping():
            return {str(key): plain(value) for key, value in data.items()}
        case list() | tuple():
            return [plain(value) for value in data]
        case np.ndarray() | np.generic():
            return plain(data.tolist())
        case float() if not np.isfinite(data):
            return None
        case _:
            return data
