"""`data`, `prepare` and `train`: from a file of text to a trained model, and what is said when something is wrong."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from tokenmargin.cli import main

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMARGIN_CACHE", str(tmp_path / "cache"))


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_sentences_to_a_trained_model(capsys, tmp_path):
    prepared, folder = str(tmp_path / "sentences.safetensors"), str(tmp_path / "run")
    code, out, _ = run(capsys, "prepare", "sentences", "--out", prepared)
    assert code == 0
    assert "4,000 texts" in out
    settings = ("--out", folder, "--dimension", "16", "--rate", "0.01", "--json")
    code, out, _ = run(capsys, "train", prepared, *settings, "--epochs", "1")
    assert code == 0
    assert json.loads(out)["epochs"] == 1
    code, out, _ = run(capsys, "train", prepared, *settings, "--epochs", "3", "--margin")  # goes on where it stopped
    report = json.loads(out)
    assert code == 0
    assert report["margin"]["status"] == "optimal"  # p itself selects these tokens, so some p does
    assert report["margin"]["residual"] <= 1e-7
    assert 0 < report["margin"]["cosine"] <= 1
    assert report["epochs"] == 3
    assert report["accuracy"] > 0.75
    assert {"delightful", "dreadful"} <= {
        row["token"] for side in ("positive", "negative") for row in report[f"most {side}"]
    }
    assert pq.read_table(tmp_path / "run" / "metrics.parquet").num_rows == 3
    code, _, err = run(capsys, "train", prepared, *settings, "--model", "two-layer", "--margin")
    assert code == 2
    assert "--margin needs the one-layer model" in err
    code, _, err = run(capsys, "train", prepared, "--out", folder, "--dimension", "8")
    assert code == 2
    assert "holds a run with dimension = 16, not 8" in err


def test_prepare_reports_steps_and_bad_rows(capsys, tmp_path):
    source = tmp_path / "reviews.csv"
    source.write_text("review,stars\n" + "good film,yes\nbad film,no\nbroken\n" * 3)
    options = ("--text", "review", "--label", "stars", "--positive", "yes", "--out", str(tmp_path / "x.npz"))
    code, out, err = run(capsys, "prepare", str(source), *options)
    assert code == 0
    assert "6 texts (50.0% positive)" in out
    assert "line 4: 1 fields where the header has 2" in err
    code, out, _ = run(capsys, "prepare", str(source), *options, "--json")
    report = json.loads(out)
    assert report["vocabulary"] == 3
    assert len(report["rejected"]) == 3
    code, _, err = run(capsys, "prepare", str(source), "--out", str(tmp_path / "x.npz"))
    assert code == 2
    assert "no column 'text'; it has 'review', 'stars'" in err


def test_data_from_a_copy_then_by_name(capsys, tmp_path):
    source = tmp_path / "mine.jsonl"
    rows = [{"text": f"{word} thing", "label": label} for word, label in (("fine", 1), ("poor", -1)) for _ in range(3)]
    source.write_text("\n".join(map(json.dumps, rows)))
    code, out, err = run(capsys, "data", "get", "imdb", "--from", str(source), "--json")
    assert code == 0
    assert json.loads(out)["path"].endswith("imdb.parquet")
    assert "Maas" in err
    code, out, _ = run(capsys, "prepare", "imdb", "--out", str(tmp_path / "imdb.safetensors"))
    assert code == 0
    assert "6 texts" in out
    code, out, _ = run(capsys, "data", "list")
    assert "cifar10" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("data", "get", "mnist"), 2, "which dataset? choose from imdb, yelp, cifar10, bert-vocabulary"),
        (("data", "get", "imdb", "--from", "nowhere"), 1, "nowhere: no such file or folder"),
        (("prepare", "yelp", "--out", "x.npz"), 2, "yelp is not in the cache: tokenmargin data get yelp"),
        (("prepare", "sentences", "--out", "x.txt"), 2, "--out writes a .safetensors or .npz file"),
        (("prepare", "sentences", "--out", "x.npz", "--vocabulary", "none"), 2, "get BERT's with"),
        (("train", "nothing.safetensors", "--out", "x"), 2, "nothing.safetensors: no such file"),
    ],
)
def test_mistakes_are_explained(capsys, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    found, out, err = run(capsys, *arguments)
    assert found == code
    assert message in err
    assert out == ""


def test_what_training_prints_is_so(capsys, tmp_path):
    """Few tokens: none is most positive whose product is negative, none most selected that never is, and no nan%."""
    rows, prepared = tmp_path / "rows.csv", str(tmp_path / "rows.safetensors")
    rows.write_text("text,label\n" + "good film,1\nbad film,0\n" * 8 + "good\u2003bad film,1\n")
    assert run(capsys, "prepare", str(rows), "--out", prepared)[0] == 0
    settings = ("--dimension", "4", "--rate", "0.05", "--epochs", "20")
    code, out, _ = run(capsys, "train", prepared, "--out", str(tmp_path / "run"), *settings, "--json")
    report = json.loads(out)
    assert code == 0
    assert all(row["selected"] > 0 for row in report["most selected"])
    assert sum(row["selected"] for row in report["most selected"]) == 17
    assert all(row["E.v"] > 0 for row in report["most positive"])
    assert all(row["E.v"] < 0 for row in report["most negative"])
    assert len(report["most positive"]) + len(report["most negative"]) == 3
    rows.write_text("text,label\ngood,1\nbad,0\ngood bad,1\n")
    assert run(capsys, "prepare", str(rows), "--out", prepared)[0] == 0
    code, out, _ = run(capsys, "train", prepared, "--out", str(tmp_path / "few"), *settings)
    assert code == 0
    assert "nan" not in out
    assert "sign of E.v clear of no token" in out
