"""The classifier's commands, and what they say about bad input."""

from __future__ import annotations

import csv
import gzip
import json

import pytest

from tokenmargin.classifier import TokenSelectionClassifier, save_model
from tokenmargin.cli import main


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "sentiment"])
        some = [
            ["a fine, fine day", "good"],
            ["dull and grey", "bad"],
            ["fine weather", "good"],
            ["dull, dull sky", "bad"],
        ]
        writer.writerows(some * 15)
    return path


@pytest.fixture
def model(reviews, tmp_path):
    folder = tmp_path / "model"
    assert main(["fit", str(reviews), "--text", "review", "--label", "sentiment", "--out", str(folder)]) == 0
    return folder


def test_words_that_are_one_to_the_model_share_a_row(tmp_path, capsys):
    """Under stems the loss of one form is that of all: what is said of a row is what comes of deleting it."""
    texts = ["loved the film", "loves this movie", "hated films", "hates movies", "loved it", "hated it"] * 8
    paper = TokenSelectionClassifier("paper", random_state=0).fit(texts, ["p", "p", "n", "n", "p", "n"] * 8)
    folder, text = str(save_model(paper, tmp_path / "stems")), "She loved, loves and hates films"
    assert main(["explain", folder, text]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("loved")]
    assert row[:2] == ["loved,", "loves"]
    lost = paper.decision_function([text, "She and hates films"])
    assert row[3] == f"{lost[0] - lost[1]:+.2f}"


def test_fit_predict_explain_report(model, reviews, tmp_path, capsys):
    out = tmp_path / "decided.csv"
    assert main(["predict", str(model), str(reviews), "--text", "review", "--out", str(out)]) == 0
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 60
    assert list(rows[0]) == ["row", "review", "sentiment", "predicted", "probability", "p(bad)", "p(good)"]
    assert (rows[59]["row"], rows[59]["sentiment"]) == ("60", "bad")
    assert [row["predicted"] for row in rows[:2]] == ["good", "bad"]
    capsys.readouterr()
    assert main(["explain", str(model), "a fine day", "--json", "--html", str(tmp_path / "page.html")]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["label"] == "good"
    words = sum(word["contribution"] for word in told["words"])
    # Sums of a handful of numbers of size up to ten, written with all digits.
    assert told["baseline"] + told["shift"] + words == pytest.approx(told["decision"], abs=1e-11)
    arguments = ["explain", str(model), "a fine day", "--target", "bad", "--replace", "fine=dull", "--json"]
    assert main(arguments) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["label"] == "bad"
    assert told["what_if"]["edited"] == "a dull day"
    assert told["what_if"]["after"][0] > told["what_if"]["before"][0]
    assert main(["explain", str(model), "a fine day", "--target", "awful"]) == 2
    assert "target must be one of the classes ('bad', 'good'), got 'awful'" in capsys.readouterr().err
    assert (tmp_path / "page.html").is_file()
    assert main(["explain", str(model), "a fine day", "--target", "bad"]) == 0
    assert "(+ speaks for good, - for bad)" in capsys.readouterr().out
    page = tmp_path / "report.html"
    arguments = ["report", str(model), str(reviews), "--text", "review", "--label", "sentiment", "--out", str(page)]
    assert main(arguments) == 0
    assert "fine" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"review,mood\nx,y\n", "no column 'sentiment'"),
        (b"review,sentiment\nx,good\ny,good\n", "two classes are needed"),
        (b"review,sentiment\n,good\n,bad\n", "no usable row"),
        (b'review,sentiment\n"x,good\ny,bad\nz,good\n', "no usable row"),
        (b"", "the file is empty"),
        (b"review;sentiment\nfine;good\n", "separated by ';'; read it with --delimiter ';'"),
        ("review,sentiment\nfine,good\n".encode("utf-16"), "most likely UTF-16"),
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
    assert [row["predicted"] for row in csv.DictReader(out.read_text(encoding="utf-8").splitlines())] == ["good", "bad"]


def test_what_stands_in_the_way_is_respected(model, reviews, tmp_path, capsys):
    """A link is followed, and a folder refused in one line."""
    arguments = ["predict", str(model), str(reviews), "--text", "review", "--out"]
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old")
    link.symlink_to(real)
    assert main([*arguments, str(link)]) == 0
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8").startswith("row,review,sentiment,predicted")
    capsys.readouterr()
    assert main([*arguments, str(model)]) == 1
    assert capsys.readouterr().err == f"error: {model} is a folder and cannot be written to; choose another name\n"
    assert main([*arguments, str(real / "below" / "x.csv")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {real}")


def test_every_row_is_predicted_in_its_place(model, tmp_path, capsys):
    """Rows without a text stay, with their columns; a foreign encoding and delimiter can be said."""
    source, out = tmp_path / "new.csv", tmp_path / "out.csv"
    source.write_bytes("id;review\n7;a fine day\n8;\n9;caf\xe9 dull\n".encode("latin-1"))
    arguments = ["predict", str(model), str(source), "--text", "review", "--out", str(out)]
    assert main(arguments) == 2
    assert "separated by ';'" in capsys.readouterr().err
    assert main([*arguments, "--delimiter", ";", "--encoding", "latin-1"]) == 0
    assert "1 of 3 rows have no text" in capsys.readouterr().err
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [(row["row"], row["id"], row["predicted"]) for row in rows] == [
        ("1", "7", "good"), ("2", "8", ""), ("3", "9", "bad")
    ]  # fmt: skip
    for row in (rows[0], rows[2]):
        # Written with six digits: the two round by 5e-7 each.
        assert float(row["p(good)"]) + float(row["p(bad)"]) == pytest.approx(1, abs=1e-6)


def test_emoji_alone_can_be_learned(tmp_path, capsys):
    source = tmp_path / "moods.csv"
    source.write_text(
        "text,label\n" + "".join(f"\U0001f600{'!' * k},up\n\U0001f621{'!' * k},down\n" for k in range(40)),
        encoding="utf-8",
    )
    assert main(["fit", str(source), "--out", str(tmp_path / "m"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["tokens"], told["accuracy"], told["signal"]) == (2, None, None)
    source.write_text("text,label\n" + "!!!,up\n???,down\n" * 40, encoding="utf-8")
    assert main(["fit", str(source), "--out", str(tmp_path / "none")]) == 0
    assert "NO TOKEN is known" in capsys.readouterr().err


@pytest.mark.parametrize("ending", [".csv.gz", ".jsonl.gz"])
def test_compressed_tables_are_read(model, reviews, tmp_path, capsys, ending):
    rows = list(csv.DictReader(reviews.read_text(encoding="utf-8").splitlines()))
    plain = (
        reviews.read_text(encoding="utf-8") if ending == ".csv.gz" else "".join(json.dumps(row) + "\n" for row in rows)
    )
    path, out = tmp_path / f"texts{ending}", tmp_path / "decided.csv"
    path.write_bytes(gzip.compress(plain.encode()))
    columns = ["--text", "review", "--label", "sentiment"]
    assert main(["fit", str(path), *columns, "--out", str(tmp_path / "again")]) == 0
    assert main(["predict", str(model), str(path), "--text", "review", "--out", str(out)]) == 0
    assert len(out.read_text(encoding="utf-8").splitlines()) == 61
    if ending == ".csv.gz":
        path.write_bytes(plain.encode())
        assert main(["fit", str(path), *columns, "--out", str(tmp_path / "again")]) == 2
        assert "not a readable .gz file" in capsys.readouterr().err
