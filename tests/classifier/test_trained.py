"""A run of `tokenmargin train` opened as a classifier: it decides, explains and is shown as the trained model."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.asking import ask, ask_for_json

from tokenmargin.classifier import ModelFileError, TokenSelectionClassifier, load_model, save_model
from tokenmargin.classifier.tokenizers import read_tokens
from tokenmargin.classifier.what_if import decide_by_words
from tokenmargin.cli import main
from tokenmargin.data.pipeline import Pipeline
from tokenmargin.data.prepared import load_prepared
from tokenmargin.data.sentences import make_sentences
from tokenmargin.report.playground.server import create_app


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    made = make_sentences(120, np.random.default_rng(3))
    with (folder / "texts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(zip(made.texts, ["neg" if label == "-1" else "pos" for label in made.labels], strict=True))
    assert main(["prepare", str(folder / "texts.csv"), "--out", str(folder / "p.safetensors")]) == 0
    arguments = ["--dimension", "8", "--epochs", "3", "--rate", "0.05", "--scaled-logits", "--device", "cpu"]
    assert main(["train", str(folder / "p.safetensors"), "--out", str(folder / "run"), *arguments]) == 0
    return folder


def test_decisions_are_those_of_the_embeddings(run):
    """f = softmax(E p / sqrt(d)) E v over all occurrences, from the checkpoint and the prepared ids."""
    tensors = load_file(max((run / "run").glob("step-*.safetensors")))
    text, model = load_prepared(run / "p.safetensors"), load_model(run / "run")
    E, (p, v) = tensors["embeddings"].astype(float), tensors["heads"].astype(float)
    texts = [row["text"] for row in csv.DictReader((run / "texts.csv").read_text().splitlines())]
    expected = []
    for i in range(text.n):
        X = E[text.sequence(i)]
        weights = np.exp(X @ p / np.sqrt(8))
        expected.append(weights / weights.sum() @ X @ v)
    found = model.decision_function([texts[row] for row in text.rows])
    # The run is in single precision: eight products of numbers of size one, 2^-24 each.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert model.classes_.tolist() == ["neg", "pos"]
    # A text without a known word has the base rate.
    assert model.predict_proba(["never seen"])[0, 1] == pytest.approx((text.labels > 0).mean(), abs=1e-12)


def test_explanations_count_every_occurrence(run):
    model = load_model(run / "run")
    text = "the crowd was splendid, splendid, dreadful"
    why = model.explain([text])[0]
    f = float(model.decision_function([text])[0])
    # Sums of a handful of numbers of size one.
    assert why.baseline + why.shift + sum(word.contribution for word in why.words) == pytest.approx(f, abs=1e-12)
    parts = model.transform([text])
    # The same sums again, and once more without a word.
    assert parts.sum() + model.token_model_.intercept[0] == pytest.approx(f, abs=1e-12)
    for word in why.words:  # deleting a word is deciding without all of its occurrences
        spelled = text[word.start : word.end]
        gone = " ".join(other for other in text.replace(",", "").split() if other != spelled)
        # As above.
        assert word.effect == pytest.approx(f - float(model.decision_function([gone])[0]), abs=1e-12)
    # Word by word, each occurrence goes alone.
    by_word = decide_by_words(model, text).words[3].without
    once = float(model.decision_function(["the crowd was splendid, dreadful"])[0])
    # As above.
    assert by_word == pytest.approx(once, abs=1e-12)
    assert abs(once - f) > 1e-6  # that it stands twice matters


def test_the_commands_open_it(run, capsys, tmp_path):
    out = tmp_path / "decided.csv"
    assert main(["predict", str(run / "run"), str(run / "texts.csv"), "--out", str(out)]) == 0
    assert {row["predicted"] for row in csv.DictReader(out.read_text().splitlines())} <= {"neg", "pos"}
    capsys.readouterr()
    assert main(["explain", str(run / "run"), "a splendid crowd", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["label"] in ("neg", "pos")
    page = tmp_path / "report.html"
    assert main(["report", str(run / "run"), str(run / "texts.csv"), "--out", str(page)]) == 0
    assert "tokenmargin train" in page.read_text(encoding="utf-8")


def test_the_playground_decides_with_it(run):
    model = load_model(run / "run")
    text = "a splendid, splendid crowd"
    app = create_app(model)
    answer = ask_for_json(app, "/api/text", {"text": text})
    page = ask(app, "GET", "/", {"host": "127.0.0.1"})[1]
    assert b'"remote":true' in page  # a page cannot cut texts as this model does: the server decides
    assert answer["output"] == pytest.approx(float(model.decision_function([text])[0]), abs=1e-12)
    assert [word["token"] for word in answer["words"]] == ["a", "splendid", "splendid", "crowd"]


def test_a_run_without_a_model_says_why(run, tmp_path):
    (tmp_path / "metrics.parquet").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"a run of `tokenmargin train` without a model .*finish it"):
        load_model(tmp_path)


def test_a_pipeline_is_a_tokenizer(tmp_path):
    made = make_sentences(60, np.random.default_rng(0))
    pipeline = Pipeline(stop_words=("the", "a"), stemmer="english")
    found = read_tokens(["", "The walking, walked", "a"], pipeline)
    assert [found.distinct[code] for code in found.codes] == ["walk", "walk"]
    assert found.offsets.tolist() == [0, 0, 2, 2]
    assert found.starts.tolist() == [4, 13]
    model = TokenSelectionClassifier(pipeline, random_state=0).fit(made.texts, made.labels)
    again = load_model(save_model(model, tmp_path / "model"))
    assert again.tokenizer == pipeline
    assert np.array_equal(again.decision_function(made.texts), model.decision_function(made.texts))
