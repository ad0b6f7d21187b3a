"""What other tools hand over or keep: skops, Hugging Face datasets, fixed vocabularies, folders of earlier versions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import skops.io
from sklearn.base import clone

from tokenmargin.classifier import TokenSelectionClassifier, load_model
from tokenmargin.data.sentences import make_sentences
from tokenmargin.data.sources import read_labelled
from tokenmargin.data.table_files import SourceError

FOLDERS = Path(__file__).parent / "folders"


class Column:
    """One column of a Hugging Face dataset: values by row and by iteration, without a shape."""

    def __init__(self, values):
        self._values = values

    def __len__(self):
        return len(self._values)

    def __getitem__(self, row):
        return self._values[row]

    def __iter__(self):
        return iter(self._values)


class Dataset:
    """A Hugging Face dataset, as far as its users see it."""

    def __init__(self, names=None, **columns):
        self._columns, self.column_names = columns, list(columns)
        self.features = {name: SimpleNamespace(names=names if name == "label" else None) for name in columns}

    def __len__(self):
        return len(self._columns["text"])

    def __getitem__(self, name):
        return Column(self._columns[name])

    def __iter__(self):
        return (dict(zip(self._columns, row, strict=True)) for row in zip(*self._columns.values(), strict=True))


@pytest.fixture(scope="module")
def data():
    made = make_sentences(80, np.random.default_rng(5))
    return Dataset(["bad", "good"], text=made.texts, label=[int(label == "1") for label in made.labels])


def test_columns_of_a_dataset(data):
    model = TokenSelectionClassifier(random_state=0).fit(data["text"], data["label"])
    same = TokenSelectionClassifier(random_state=0).fit(list(data["text"]), list(data["label"]))
    assert np.array_equal(model.decision_function(data["text"]), same.decision_function(list(data["text"])))
    with pytest.raises(ValueError, match="got a table with the columns 'text', 'label'; choose one"):
        model.predict(data)


def test_a_dataset_by_its_name(data, monkeypatch):
    module = ModuleType("datasets")
    module.load_dataset = lambda name, split: {("owner/name", "test"): data}[name, split]
    monkeypatch.setitem(sys.modules, "datasets", module)
    found = read_labelled("hf:owner/name:test")
    assert found.texts == list(data["text"])
    assert found.labels == [("bad", "good")[label] for label in data["label"]]
    with pytest.raises(SourceError, match="'stars'"):
        read_labelled("hf:owner/name:test", label="stars")


def test_skops_asks_for_our_types_and_no_others(data):
    model = TokenSelectionClassifier(ngrams=2, random_state=0).fit(data["text"], data["label"])
    written = skops.io.dumps(model)
    asked = skops.io.get_untrusted_types(data=written)
    assert all(name.startswith("tokenmargin.classifier.") for name in asked)
    again = skops.io.loads(written, trusted=asked)
    assert np.array_equal(again.decision_function(data["text"]), model.decision_function(data["text"]))
    assert again.chosen_ == model.chosen_


def test_parts_with_a_fixed_vocabulary(data):
    """Words are fixed before the first text: parts in any order end at the fit of all."""
    texts, labels = list(data["text"]), np.array(list(data["label"]))
    words = sorted({word for text in texts for word in text.lower().replace(".", "").replace(",", "").split()})
    model = TokenSelectionClassifier(
        vocabulary=words, value_penalty=1.0, start_power=0.5, exponent=0.5, loss="log", repeats=False, tol=1e-10,
        max_iter=500, validation_fraction=0.0,
    )  # fmt: skip
    whole = clone(model).fit(texts, labels)
    assert whole.vocabulary_.words == tuple(words)
    for order in (np.arange(80), np.arange(80)[::-1]):
        parts = clone(model)
        for rows in np.array_split(order, 4):
            parts.partial_fit([texts[row] for row in rows], labels[rows], classes=[0, 1])
        assert parts.vocabulary_.words == tuple(words)
        # Both stop where an iteration saves 1e-10 of the loss; f is then some 1e-4 from the common minimum.
        gap = np.abs(parts.decision_function(texts) - whole.decision_function(texts)).max()
        assert gap < 2e-3 * np.abs(whole.decision_function(texts)).max()
    unseen = clone(model).set_params(vocabulary=["never", "seen"]).fit(texts, labels)
    assert np.unique(unseen.decision_function(texts)).size == 1
    for wrong in ("a word", ["good", ""], ["good", 3]):
        with pytest.raises(ValueError, match="vocabulary must be a list of words"):
            clone(model).set_params(vocabulary=wrong).fit(texts, labels)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_folders_of_earlier_versions_decide_as_they_did(number):
    folder = FOLDERS / f"format-{number}"
    told = json.loads((folder / "decisions.json").read_text())
    model = load_model(folder)
    # Sums of fewer than twenty numbers of size one, in another order.
    np.testing.assert_allclose(model.decision_function(told["texts"]), told["decisions"], rtol=0, atol=1e-13)
    assert model.predict(told["texts"]).tolist() == told["labels"]
    why = model.explain(told["texts"][:1])[0]
    # The same sums again.
    assert why.baseline + why.shift + sum(word.contribution for word in why.words) == pytest.approx(
        told["decisions"][0], abs=1e-13
    )
    assert model.chosen_.loss == "log"


@pytest.mark.parametrize("k", [2, 3])
def test_calibration_is_never_surer_than_the_texts_allow(k):
    """All decided rightly: with one text imagined of no class, the surest is about 1 - 1/(k n)."""
    rng = np.random.default_rng(0)
    texts = [f"{'abc'[i % k]}{'abc'[i % k]} w{rng.integers(30)} w{rng.integers(30)}" for i in range(600)]
    model = TokenSelectionClassifier(random_state=0, validation_fraction=0.0).fit(texts, np.arange(600) % k)
    said = model.predict_proba(texts)
    assert (said.argmax(1) == np.arange(600) % k).all()
    n = 600  # texts held out in all folds together
    assert 1 - 1 / n < said.max(1).mean() < 1 - 0.05 / (k * n)
