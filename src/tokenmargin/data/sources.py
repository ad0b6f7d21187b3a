"""Read labelled text: CSV, JSON, JSON lines, parquet, a folder of text files, a Hugging Face dataset.

A row that cannot be used does not stop the reading: it is set aside with its line number and the reason. So is a row
of a CSV file that holds the rows after it because a quote was left open.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy import ndarray as Array

from tokenmargin._files import check_plain, read_plain
from tokenmargin.data.table_files import (
    SourceError,
    column_number,
    open_bytes,
    open_table,
    read_header,
    read_json,
    read_parquet,
    table_kind,
)

KNOWN_PAIRS = (("-1", "1"), ("0", "1"), ("neg", "pos"), ("negative", "positive"), ("false", "true"), ("ham", "spam"))
UNDECODED = re.compile("[\ud800-\udfff]")  # surrogates: halves of characters, or in the place of bytes not in UTF-8
csv.field_size_limit(1 << 27)

Row = tuple[int, object, object]


@dataclass(frozen=True)
class RejectedRow:
    """A row that was set aside: its line (or file), and why."""

    place: str
    reason: str


@dataclass(frozen=True, eq=False)
class LabelledText:
    """Texts with the label each was given, and the rows that could not be used."""

    texts: list[str]
    labels: list[str]
    rejected: tuple[RejectedRow, ...] = ()


def read_labelled(
    source: str | Path,
    *,
    text: str = "text",
    label: str = "label",
    encoding: str | None = None,
    delimiter: str | None = None,
) -> LabelledText:
    """Read the texts and labels of a source.

    **Arguments**
    - `source`: a `.csv`, `.tsv`, `.jsonl`, `.json` (each also with `.gz`) or `.parquet` file; a folder with one folder
        of `.txt` files per label; a folder written by Hugging Face's `save_to_disk`; or `hf:owner/name` or
        `hf:owner/name:split`, for which the package `datasets` is needed.
    - `text`, `label`: names of the two columns.
    - `encoding`, `delimiter`: of a .csv or .tsv file; by default UTF-8, and a comma or a tab.
    """
    if isinstance(source, str) and source.startswith("hf:"):
        return _collect(source, _hugging_face(source[3:], text, label))
    path = Path(source)
    if path.is_dir():
        shards = sorted(path.glob("*.arrow"))
        return _collect(path, _arrow(shards, text, label) if shards else _folder(path))
    if not path.is_file():
        raise SourceError(f"{path}: {'no file of text' if path.exists() else 'no such file or folder'}")
    match table_kind(path):
        case ".csv":
            return _collect(path, _csv(path, delimiter or ",", text, label, encoding))
        case ".tsv":
            return _collect(path, _csv(path, delimiter or "\t", text, label, encoding))
        case ".jsonl" | ".ndjson":
            return _collect(path, _json_lines(path, text, label))
        case ".json":
            return _collect(path, _json(path, text, label))
        case ".parquet":
            return _collect(path, _parquet(path, text, label))
    remedy = "; save the sheet as CSV (UTF-8)" if path.suffix.lower() in (".xlsx", ".xls", ".ods") else ""
    kinds = ".csv, .tsv, .jsonl, .json, .parquet or a folder"
    raise SourceError(f"{path}: text is read from {kinds}, got {path.suffix!r}{remedy}")


def binary_labels(labels: Sequence[str], *, positive: str | None = None) -> Int[Array, " n"]:
    """Labels as -1 and +1. For the usual pairs it is known which label is +1; else give it as `positive`.

    >>> binary_labels(["pos", "neg"]).tolist(), binary_labels(["cat", "dog"], positive="dog").tolist()
    ([1, -1], [-1, 1])
    """
    values = sorted(set(labels))
    if len(values) != 2:
        shown = ", ".join(values[:6]) + (" ..." if len(values) > 6 else "")
        remedy = "keep two of them" if len(values) > 2 else "add texts with another label"
        raise SourceError(f"labels must have exactly two values, got {len(values)}: {shown}; {remedy}")
    if positive is None:
        pairs = [pair for pair in KNOWN_PAIRS if set(pair) == {value.lower() for value in values}]
        if not pairs:
            raise SourceError(f"which of the labels {values[0]!r} and {values[1]!r} is positive? say it with positive=")
        positive = next(value for value in values if value.lower() == pairs[0][1])
    elif positive not in values:
        raise SourceError(f"positive must be one of the labels {values[0]!r} and {values[1]!r}, got {positive!r}")
    return np.where(np.array(labels) == positive, 1, -1).astype(np.int8)


def _collect(source: object, rows: Iterable[Row | RejectedRow]) -> LabelledText:
    """The rows that have a text and a label, and the others with the reason."""
    texts: list[str] = []
    labels: list[str] = []
    rejected: list[RejectedRow] = []
    for row in rows:
        if isinstance(row, RejectedRow):
            rejected.append(row)
            continue
        found = text_and_label(row)
        if isinstance(found, RejectedRow):
            rejected.append(found)
        else:
            texts.append(found[0])
            labels.append(found[1])
    if not texts:
        if not rejected:
            raise SourceError(f"{source}: no row; it needs a text and a label in each")
        remedy = (
            "; say it, such as --encoding latin-1 (encoding=) or cp1252"
            if "not UTF-8" in _first_reason(rejected)
            else ""
        )
        raise SourceError(f"{source}: no usable row ({len(rejected)} rejected{_first_reason(rejected)}){remedy}")
    return LabelledText(texts, labels, tuple(rejected))


def text_and_label(row: Row) -> tuple[str, str] | RejectedRow:
    """The text and the label of a row, or the row as rejected if it lacks one.

    >>> text_and_label((3, "Good.", 1.0)), text_and_label((4, " ", 1)).reason
    (('Good.', '1'), 'no text')
    """
    line, text, label = row
    if not isinstance(text, str) or not text.strip():
        return RejectedRow(f"line {line}", "no text")
    if label is None or label != label or not str(label).strip():  # a float that is not a number is no label either
        return RejectedRow(f"line {line}", "no label")
    for what, written in (("text", text), ("label", label)):
        if isinstance(written, str) and not written.isascii() and UNDECODED.search(written):
            return RejectedRow(f"line {line}", f"{what} is not UTF-8")
    if isinstance(label, float) and not math.isfinite(label):
        return RejectedRow(f"line {line}", "label is not finite")
    return text, str(int(label)) if isinstance(label, bool | float) and label == int(label) else str(label)


def _first_reason(rejected: list[RejectedRow]) -> str:
    return f", the first at {rejected[0].place}: {rejected[0].reason}" if rejected else ""


def _csv(path: Path, delimiter: str, text: str, label: str, encoding: str | None) -> Iterator[Row | RejectedRow]:
    with open_table(path, encoding, delimiter) as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        header = read_header(reader, path, (text, label), delimiter)
        columns = [column_number(header, name, path) for name in (text, label)]
        rows = list(_csv_rows(reader, len(header)))
    labels = {row[columns[1]] for _, _, row in rows if not isinstance(row, str)}
    for first, last, row in rows:
        if isinstance(row, str):
            yield RejectedRow(_line_range(first, last), row)
            continue
        swallowed = (
            sum(_swallowed_rows(field, columns, delimiter, len(row), labels) for field in row) if last > first else 0
        )
        if swallowed:
            yield RejectedRow(
                _line_range(first, last), f"an open quote has swallowed the rows after it ({swallowed} found)"
            )
        else:
            yield first, row[columns[0]], row[columns[1]]


def _csv_rows(reader: Any, width: int) -> Iterator[tuple[int, int, list[str] | str]]:
    """For each row its first line, its last line, and its fields or what is wrong with it."""
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield first, reader.line_num, f"{error}; is a quote open, or not doubled?"
            continue
        if row and len(row) != width:
            yield first, reader.line_num, f"{len(row)} fields where the header has {width}"
        elif row:
            yield first, reader.line_num, row


def _line_range(first: int, last: int) -> str:
    return f"line {first}" if last <= first else f"lines {first} to {last}"


def _swallowed_rows(field: str, columns: Sequence[int], delimiter: str, width: int, labels: set[str]) -> int:
    """How many lines inside a field look like rows, with the width of the table and a known label."""
    count = 0
    for line in field.splitlines()[1:]:
        row = next(csv.reader([line], delimiter=delimiter), [])
        count += len(row) == width and bool(row[columns[0]].strip()) and row[columns[1]] in labels
    return count


def _json_lines(path: Path, text: str, label: str) -> Iterator[Row | RejectedRow]:
    with open_bytes(path) as file:
        yield from json_rows(file, text, label)


def json_rows(lines: Iterable[bytes], text: str, label: str) -> Iterator[Row | RejectedRow]:
    """The rows of JSON lines, numbered from 1."""
    for line, content in enumerate(lines, start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except (ValueError, RecursionError) as error:
            yield RejectedRow(f"line {line}", f"not JSON ({error})")
            continue
        if not isinstance(row, dict):
            yield RejectedRow(f"line {line}", f"a {type(row).__name__} where an object is wanted")
            continue
        yield line, row.get(text), row.get(label)


def _json(path: Path, text: str, label: str) -> Iterator[Row]:
    rows = read_json(path)
    for name in (text, label):
        column_number(list(dict.fromkeys(key for row in rows for key in row)), name, path)
    return ((number, row.get(text), row.get(label)) for number, row in enumerate(rows, start=1))


def _parquet(path: Path, text: str, label: str) -> Iterator[Row]:
    columns = read_parquet(path, (text, label))
    rows = zip(columns[text], columns[label], strict=True)
    return ((number, *row) for number, row in enumerate(rows, start=1))


def _arrow(shards: list[Path], text: str, label: str) -> Iterator[Row]:
    """The rows of a dataset written by `datasets.save_to_disk`; the names of labels come from its description."""
    import pyarrow as pa

    info = shards[0].parent / "dataset_info.json"
    classes = _class_names(info, label) if info.is_file() else []
    number = 0
    for shard in shards:
        try:
            table = pa.ipc.open_stream(pa.memory_map(str(shard))).read_all()
            for name in (text, label):
                column_number(table.column_names, name, shard)
            rows = list(zip(table[text].to_pylist(), table[label].to_pylist(), strict=True))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(f"{shard}: not a readable arrow file ({error})") from error
        for words, value in rows:
            number += 1
            known = isinstance(value, int) and 0 <= value < len(classes)
            yield number, words, classes[value] if known else value


def _class_names(info: Path, label: str) -> list[str]:
    """The names of the labels 0, 1, ... in the description of a dataset; empty if it gives none."""
    try:
        features = json.loads(read_plain(info))["features"]
        names = features[label].get("names") or []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(
            f"{info}: does not describe the column {label!r} ({error!r}); write the dataset again"
        ) from error
    if not isinstance(names, list):
        raise SourceError(f"{info}: the names of {label!r} must be a list, got {names!r}")
    return [str(name) for name in names]


def _folder(path: Path) -> Iterator[Row | RejectedRow]:
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    if not folders:
        raise SourceError(f"{path}: a folder of text holds one folder of .txt files for each label")
    for folder in folders:
        for number, file in enumerate(sorted(folder.glob("*.txt")), start=1):
            try:
                check_plain(file)
                content = file.read_text(encoding="utf-8")
            except (ValueError, OSError) as error:
                yield RejectedRow(f"{folder.name}/{file.name}", f"not readable as UTF-8 ({error.__class__.__name__})")
                continue
            if content.strip():
                yield number, content, folder.name
            else:
                yield RejectedRow(f"{folder.name}/{file.name}", "no text")


def _hugging_face(name: str, text: str, label: str) -> Iterator[Row]:
    try:
        from datasets import load_dataset  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise SourceError(f"hf:{name}: reading from the Hugging Face hub needs `pip install datasets`") from error
    place, _, split = name.partition(":")
    dataset = load_dataset(place, split=split or "train")
    for column in (text, label):
        column_number(dataset.column_names, column, f"hf:{name}")
    names = getattr(dataset.features[label], "names", None)
    for number, row in enumerate(dataset, start=1):
        value = row[label]
        yield number, row[text], names[value] if names and value is not None and value >= 0 else value


@dataclass(frozen=True, eq=False)
class TextRows:
    """The columns of a table by name, all of the same length, and its texts (None where a row has none)."""

    columns: dict[str, list[Any]]
    texts: list[str | None]


def read_text_rows(
    source: str | Path, *, text: str = "text", encoding: str | None = None, delimiter: str | None = None
) -> TextRows:
    """All rows and columns of a table, in order, so that decisions can be written beside them.

    Of a source that is no .csv, .tsv, .jsonl, .json or .parquet file, only the rows with a text are returned.

    **Arguments**
    - `text`: the column with the texts. `encoding`, `delimiter`: as for `read_labelled`.
    """
    path = Path(source)
    suffix = table_kind(path)
    if suffix not in (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet") or not path.is_file():
        found = read_labelled(source, text=text, label=text).texts
        return TextRows({text: list(found)}, list(found))
    if suffix in (".csv", ".tsv"):
        columns = _read_delimited(path, delimiter or ("," if suffix == ".csv" else "\t"), text, encoding)
    elif suffix == ".parquet":
        columns = read_parquet(path)
    else:
        objects = read_json(path) if suffix == ".json" else _read_json_lines(path)
        names = list(dict.fromkeys(name for row in objects for name in row))
        columns = {name: [row.get(name) for row in objects] for name in names}
    if text not in columns:
        raise SourceError(f"{path}: no column {text!r}; it has {', '.join(map(repr, columns))}")
    texts = [
        value if isinstance(value, str) and value.strip() and not UNDECODED.search(value) else None
        for value in columns[text]
    ]
    if not any(texts):
        raise SourceError(f"{path}: no row has a text in the column {text!r}")
    return TextRows(columns, texts)


def _read_delimited(path: Path, delimiter: str, text: str, encoding: str | None) -> dict[str, list[Any]]:
    """The columns of a file of delimited text; fields that a short row lacks are empty, those beyond the header go."""
    with open_table(path, encoding, delimiter) as file:
        reader = csv.reader(file, delimiter=delimiter)
        header = read_header(reader, path, (text,), delimiter)
        rows = [row + [""] * len(header) for row in reader if row]
    return {name: [row[k] for row in rows] for k, name in enumerate(header)}


def _read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; a line with something else is an empty object."""
    rows: list[dict[str, Any]] = []
    with open_bytes(path) as file:
        lines = file.read().splitlines()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SourceError(f"{path}: line {number} is not JSON ({error})") from error
            rows.append(row if isinstance(row, dict) else {})
    return rows
