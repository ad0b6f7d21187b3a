"""Read a table of texts with every row and column, in order, so that decisions can be written beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmargin.data import table_files
from tokenmargin.data.sources import UNDECODED, read_labelled
from tokenmargin.data.table_files import SourceError


@dataclass(frozen=True, eq=False)
class TextRows:
    """The columns of a table by name, all of one length, and its texts (None where a row has none)."""

    columns: dict[str, list[Any]]
    texts: list[str | None]


def read_text_rows(
    source: str | Path, *, text: str = "text", encoding: str | None = None, delimiter: str | None = None
) -> TextRows:
    """All rows of a .csv, .tsv, .jsonl, .json or .parquet file; of other sources, the rows with a text.

    **Arguments**
    - `text`: the column with the texts. `encoding`, `delimiter`: as for `read_labelled`.
    """
    path = Path(source)
    suffix = table_files.table_kind(path)
    if suffix not in (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet") or not path.is_file():
        found = read_labelled(source, text=text, label=text).texts
        return TextRows({text: list(found)}, list(found))
    if suffix in (".csv", ".tsv"):
        columns = _read_delimited(path, delimiter or ("," if suffix == ".csv" else "\t"), text, encoding)
    elif suffix == ".parquet":
        columns = table_files.read_parquet(path)
    else:
        columns = _by_key(table_files.read_json(path) if suffix == ".json" else _json_lines(path))
    if text not in columns:
        raise SourceError(f"{path}: no column {text!r}; it has {', '.join(map(repr, columns))}")
    texts: list[str | None] = [value if _is_text(value) else None for value in columns[text]]
    if not any(texts):
        raise SourceError(f"{path}: no row has a text in the column {text!r}")
    return TextRows(columns, texts)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not UNDECODED.search(value)


def _read_delimited(path: Path, delimiter: str, text: str, encoding: str | None) -> dict[str, list[Any]]:
    with table_files.open_table(path, encoding, delimiter) as file:
        reader = csv.reader(file, delimiter=delimiter)
        header = table_files.read_header(reader, path, (text,), delimiter)
        rows = [row for row in reader if row]
    # A row that is too short has empty fields at its end; of one that is too long, the rest is left out.
    return _by_name(header, [(row + [""] * len(header))[: len(header)] for row in rows])


def _by_name(header: Sequence[str], rows: list[list[Any]]) -> dict[str, list[Any]]:
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def _by_key(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


def _json_lines(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with table_files.open_bytes(path) as file:
        lines = file.read().splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SourceError(f"{path}: line {number} is not JSON ({error})") from error
            rows.append(row if isinstance(row, dict) else {})
    return rows
