"""The classifier's commands, and what they say about bad input."""

from __future__ import annotations

import csv
import json

import pytest

from tokenmargin.cli import main


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "sentiment"])
        writer.writerows([["a fine, fine day", "good"], ["dull and grey", "bad"]] * 30)
    return path


@pytest.fixture
def model(reviews, tmp_path):
    folder = tmp_path / "model"
    assert main(["fit", str(reviews), "--text", "review", "--label", "sentiment", "--out", str(folder)]) == 0
    return folder


def test_fit_predict_explain_report(model, reviews, tmp_path, capsys):
    out = tmp_path / "decided.csv"
    assert main(["predict", str(model), str(reviews), "--text", "review", "--out", str(out)]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 60
    assert [row["predicted"] for row in rows[:2]] == ["good", "bad"]
    capsys.readouterr()
    assert main(["explain", str(model), "a fine day", "--json", "--html", str(tmp_path / "page.html")]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["label"] == "good"
    assert sum(word["contribution"] for word in told["words"]) + told["sink"] == pytest.approx(told["decision"])
    assert (tmp_path / "page.html").is_file()
    assert main(["explain", str(model), "a fine day"]) == 0
    assert "good" in capsys.readouterr().out
    page = tmp_path / "report.html"
    arguments = ["report", str(model), str(reviews), "--text", "review", "--label", "sentiment", "--out", str(page)]
    assert main(arguments) == 0
    assert "fine" in page.read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"review,mood\nx,y\n", "no column 'sentiment'"),
        (b"review,sentiment\nx,good\ny,good\n", "two classes are needed"),
        (b"review,sentiment\n,good\n,bad\n", "no usable row"),
        (b'review,sentiment\n"x,good\ny,bad\nz,good\n', "no usable row"),
        (b"review,sentiment\nfine,good\ncaf\xe9,bad\ncaf\xe9,bad\ncaf\xe9,bad\n", "unusable (3)"),
    ],
)
def test_bad_files(content, message, tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    arguments = ["fit", str(path), "--text", "review", "--label", "sentiment", "--out", str(tmp_path / "m")]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["bad.csv"]


def test_no_model(tmp_path, capsys):
    assert main(["explain", str(tmp_path), "text"]) == 2
    assert "not a model folder" in capsys.readouterr().err


def test_parquet_is_predicted(model, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"review": ["a fine day", "dull"]}), tmp_path / "new.parquet")
    out = tmp_path / "decided.csv"
    assert main(["predict", str(model), str(tmp_path / "new.parquet"), "--text", "review", "--out", str(out)]) == 0
    assert [row["predicted"] for row in csv.DictReader(out.read_text().splitlines())] == ["good", "bad"]


def test_what_stands_in_the_way_is_respected(model, reviews, tmp_path, capsys):
    """A link is followed, and a folder refused in one line."""
    arguments = ["predict", str(model), str(reviews), "--text", "review", "--out"]
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real)
    assert main([*arguments, str(link)]) == 0
    assert link.is_symlink()
    assert real.read_text().startswith("text,predicted")
    capsys.readouterr()
    assert main([*arguments, str(model)]) == 1
    assert capsys.readouterr().err == f"error: {model} is a folder and cannot be written to; choose another name\n"
    assert main([*arguments, str(real / "below" / "x.csv")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {real}")
