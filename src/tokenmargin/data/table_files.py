"""Read the columns of one table on disk; an error says in one line what is wrong with the file."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast


class SourceError(ValueError):
    """A source of text that cannot be read at all."""


def table_kind(path: Path) -> str:
    """The ending of a table's name, without the .gz of a compressed one.

    >>> table_kind(Path("Reviews.CSV.gz"))
    '.csv'
    """
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    return kind if kind != ".parquet" else path.suffix.lower()


def open_bytes(path: Path) -> BinaryIO:
    """A file opened to read bytes; it is decompressed if its name ends in .gz."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


def open_table(path: Path, encoding: str | None, delimiter: str) -> TextIO:
    """A file of delimited text; bytes that are not in its encoding become surrogates, so that their row can be told."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise SourceError(f"{path}: the delimiter must be one character, such as ; or a tab, got {delimiter!r}")
    try:
        with open_bytes(path) as file:
            begin = file.read(4096)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SourceError(f"{path}: not a readable .gz file ({error})") from error
    if encoding is None and (begin[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in begin):
        raise SourceError(f"{path}: not UTF-8 but most likely UTF-16; read it with --encoding utf-16 (encoding=)")
    if not begin:
        raise SourceError(f"{path}: the file is empty; it needs a first line with the names of the columns")
    file = open_bytes(path)
    try:
        return io.TextIOWrapper(file, encoding or "utf-8-sig", "surrogateescape", newline="")
    except (LookupError, ValueError) as error:  # unknown, or no name at all
        file.close()
        raise SourceError(f"{path}: {error}; encodings are named like utf-8, utf-16, latin-1, cp1252") from error


def read_header(reader: Any, path: Path, wanted: Sequence[str], delimiter: str) -> list[str]:
    """The names of the columns; if one is missing and another delimiter would help, the error says which."""
    try:
        header = [str(name) for name in next(reader, [])]
    except (csv.Error, UnicodeError) as error:
        raise SourceError(f"{path}: the header is not readable ({error}); look at its quotes and encoding") from error
    if any(name not in header for name in wanted):
        for other in (";", "\t", "|", ","):
            if other != delimiter and set(wanted) <= set(
                next(csv.reader([delimiter.join(header)], delimiter=other), [])
            ):
                name, given = ("a tab", "$'\\t'") if other == "\t" else (repr(other), repr(other))
                remedy = f"read it with --delimiter {given} (delimiter=)"
                raise SourceError(f"{path}: its columns are separated by {name}; {remedy}")
    return header


def read_json(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON file: a list of them, or one on each line."""
    with open_bytes(path) as file:
        content = file.read()
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError):
        try:
            rows = [json.loads(line) for line in content.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise SourceError(f"{path}: not JSON ({error})") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SourceError(f"{path}: a list of objects is wanted, such as [{{'text': ..., 'label': ...}}, ...]")
    return rows


def read_parquet(path: Path, wanted: Sequence[str] | None = None) -> dict[str, list[Any]]:
    """The columns of a parquet file by name: the `wanted` ones, which must all be there, or by default all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for name in wanted or ():
            column_number(pq.read_schema(path).names, name, path)
        table = pq.read_table(path, columns=None if wanted is None else list(dict.fromkeys(wanted)))
        values = [column.to_pylist() for column in table.columns]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: not a readable parquet file ({error})") from error
    return dict(zip(table.column_names, values, strict=True))


def column_number(names: Sequence[str], name: str, source: object) -> int:
    """The place of a column among `names`; SourceError if there is none of that name."""
    if name not in names:
        raise SourceError(f"{source}: no column {name!r}; it has {', '.join(map(repr, names))}")
    return list(names).index(name)
