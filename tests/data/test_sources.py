"""Readers: every format gives the same rows, and bad rows are reported, not fatal."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenmargin.data.sources import RejectedRow, binary_labels, read_labelled, read_text_rows
from tokenmargin.data.table_files import SourceError

ROWS = [("a good\nfilm", "pos"), ('so "bad", really', "neg"), ("naïve", "pos")]


def write(path, kind):
    match kind:
        case "csv" | "tsv":
            import csv

            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, delimiter="," if kind == "csv" else "\t")
                writer.writerows([("text", "label"), *ROWS])
        case "jsonl":
            path.write_text("\n".join(json.dumps({"text": t, "label": y}) for t, y in ROWS))
        case "parquet":
            pq.write_table(pa.table({"text": [t for t, _ in ROWS], "label": [y for _, y in ROWS]}), path)
        case "arrow":
            path.mkdir()
            table = pa.table({"text": [t for t, _ in ROWS], "label": [["neg", "pos"].index(y) for _, y in ROWS]})
            with pa.ipc.new_stream(str(path / "data-00000-of-00001.arrow"), table.schema) as stream:
                stream.write_table(table)
            names = {"features": {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}
            (path / "dataset_info.json").write_text(json.dumps(names))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "arrow"])
def test_formats_agree(tmp_path, kind):
    path = tmp_path / f"data.{kind}"
    write(path, kind)
    found = read_labelled(path)
    assert list(zip(found.texts, found.labels, strict=True)) == ROWS
    assert found.rejected == ()


def test_folder_of_files(tmp_path):
    for k, (text, label) in enumerate(ROWS):
        (tmp_path / label).mkdir(exist_ok=True)
        (tmp_path / label / f"{k}.txt").write_text(text, encoding="utf-8")
    (tmp_path / "pos" / "9.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "pos" / "8.txt").write_text(" ")
    found = read_labelled(tmp_path)
    assert sorted(zip(found.texts, found.labels, strict=True)) == sorted(ROWS)
    assert found.rejected == (
        RejectedRow("pos/8.txt", "no text"),
        RejectedRow("pos/9.txt", "not readable as UTF-8 (UnicodeDecodeError)"),
    )


def test_bad_csv_rows_are_reported_with_their_lines(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(b'text,label\ngood,1\n"two\nlines",0\nonly one\n,1\nfine,\n\xff\xfe,1\nlast,0\n')
    found = read_labelled(path)
    assert found.texts == ["good", "two\nlines", "last"]
    assert found.rejected == (
        RejectedRow("line 5", "1 fields where the header has 2"),
        RejectedRow("line 6", "no text"),
        RejectedRow("line 7", "no label"),
        RejectedRow("line 8", "text is not UTF-8"),
    )


def test_bad_json_lines_are_reported(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a", "label": 1}\n{"text"\n[1]\n{"label": 0}\n{"text": "b", "label": 0.0}\n')
    found = read_labelled(path)
    assert found.labels == ["1", "0"]
    assert [rejected.place for rejected in found.rejected] == ["line 2", "line 3", "line 4"]
    assert found.rejected[1].reason == "a list where an object is wanted"


def test_what_cannot_be_read_at_all_is_named(tmp_path):
    with pytest.raises(SourceError, match="no such file or folder"):
        read_labelled(tmp_path / "none.csv")
    (tmp_path / "x.doc").write_text("x")
    with pytest.raises(SourceError, match=r"got '\.doc'"):
        read_labelled(tmp_path / "x.doc")
    (tmp_path / "x.csv").write_text("review,label\na,1\n")
    with pytest.raises(SourceError, match="no column 'text'; it has 'review', 'label'"):
        read_labelled(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("text,label\n,1\n")
    with pytest.raises(SourceError, match="no usable row \\(1 rejected, the first at line 2: no text"):
        read_labelled(tmp_path / "x.csv")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match="not a readable parquet file"):
        read_labelled(tmp_path / "x.parquet")
    written = pa.StringArray.from_buffers(
        1, pa.py_buffer(np.array([0, 2], np.int32).tobytes()), pa.py_buffer(b"\xff\xfe")
    )
    pq.write_table(pa.table({"text": written, "label": ["1"]}), tmp_path / "bytes.parquet")
    for read in (read_labelled, read_text_rows):
        with pytest.raises(SourceError, match=r"not a readable parquet file .*decode"):
            read(tmp_path / "bytes.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=r"one folder of \.txt files for each label"):
        read_labelled(tmp_path / "empty")


def test_labels_need_two_values_and_a_positive_one():
    assert binary_labels(["0", "1", "0"]).tolist() == [-1, 1, -1]
    assert binary_labels(["Negative", "Positive"]).tolist() == [-1, 1]
    with pytest.raises(SourceError, match="exactly two values, got 3: a, b, c"):
        binary_labels(["a", "b", "c"])
    with pytest.raises(SourceError, match="which of the labels 'x' and 'y' is positive"):
        binary_labels(["x", "y"])
    with pytest.raises(SourceError, match="positive must be one of the labels 'x' and 'y', got 'z'"):
        binary_labels(["x", "y"], positive="z")


@pytest.mark.parametrize(
    ("content", "kept", "place", "reason"),
    [
        # a quote that opens and closes only three rows later
        ('good day,1\n"bad,0\nfine,1\ndull,0\nso-so",1\ngrey,0\n', ["good day", "grey"], "lines 3 to 6", "(2 found)"),
        # the next quoted text ends it in the middle of a line
        ('good day,1\n"bad,0\n"fine",1\nnice,1\n', ["good day", "nice"], "lines 3 to 4", "is a quote open"),
        # never closed
        ('good day,1\n"bad,0\nfine,1\n', ["good day"], "lines 3 to 4", "is a quote open"),
        # quotes inside quotes, not doubled
        ('good day,1\n"he said "no" to me",0\n', ["good day"], "line 3", "not doubled"),
    ],
)
def test_quotes_that_swallow_rows(content, kept, place, reason, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("text,label\n" + content)
    found = read_labelled(path)
    assert found.texts == kept
    assert [(row.place, reason in row.reason) for row in found.rejected] == [(place, True)]


def test_texts_of_several_lines_are_kept(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('text,label\n"first, then\nsecond, third\n1,000 people",1\n"a ""quoted"" word",0\n')
    found = read_labelled(path)
    assert found.texts == ["first, then\nsecond, third\n1,000 people", 'a "quoted" word']
    assert found.rejected == ()


def test_a_json_file_is_a_list_of_objects_or_one_on_each_line(tmp_path):
    path = tmp_path / "data.json"
    rows = [{"text": "a", "label": 1, "id": 7}, {"text": None, "label": 0}, {"text": "b", "label": "x"}]
    for written in (json.dumps(rows), "\n".join(map(json.dumps, rows))):
        path.write_text(written)
        found = read_labelled(path)
        assert (found.texts, found.labels) == (["a", "b"], ["1", "x"])
        assert found.rejected == (RejectedRow("line 2", "no text"),)
        assert read_text_rows(path).columns == {
            "text": ["a", None, "b"], "label": [1, 0, "x"], "id": [7, None, None]
        }  # fmt: skip
    for written, message in (
        ("{", "not JSON"), ('{"text": "a"}', "a list of objects is wanted"), ("[1]", "a list of objects is wanted"),
        ("[]", "no column 'text'"), ('[{"text": "a"}]', "no column 'label'"),
    ):  # fmt: skip
        path.write_text(written)
        with pytest.raises(SourceError, match=message):
            read_labelled(path)
    (tmp_path / "sheet.xlsx").write_bytes(b"PK")
    with pytest.raises(SourceError, match=r"got '\.xlsx'; save the sheet as CSV"):
        read_labelled(tmp_path / "sheet.xlsx")
