"""What users hand over: right, or one line with the remedy; copies of texts; emoji, hashtags and numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.multioutput import MultiOutputClassifier

from tokenmargin.classifier import TokenSelectionClassifier
from tokenmargin.classifier.fitting import document_numbers, draw_numbers, fold_numbers, held_out_mask
from tokenmargin.classifier.tokenizers import read_tokens
from tokenmargin.data.sentences import make_sentences


@pytest.fixture(scope="module")
def fitted():
    return TokenSelectionClassifier(random_state=0).fit(["fine film", "dull film"] * 20, [1, 0] * 20)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (pd.DataFrame({"text": ["a", "b"], "n": [1, 2]}), "got a table with the columns 'text', 'n'; choose one"),
        (pl.DataFrame({"text": ["a", "b"]}), "choose one, such as X\\['text'\\]"),
        (pa.table({"text": ["a", "b"]}), "got a table"),
        (np.array([["a"], ["b"]]), "got an array of shape \\(2, 1\\); flatten it"),
        (pd.Series(["a", pd.NA]), "row 1 is missing \\(None, NaN or NA\\); drop or fill"),
        (["a", 3], "row 1 is 3"),
    ],
)
def test_wrong_shapes_are_refused(fitted, X, message):
    for call in (fitted.predict, lambda X: fitted.fit(X, [0, 1])):
        with pytest.raises(ValueError, match=message):
            call(X)


@pytest.mark.parametrize(
    "X",
    [
        pd.Series(["fine", "dull"]),
        pd.Series(["fine", "dull"], dtype="string"),
        pl.Series(["fine", "dull"]),
        pa.array(["fine", "dull"]),
        pa.chunked_array([["fine"], ["dull"]]),
        (text for text in ["fine", "dull"]),
    ],
    ids=lambda X: type(X).__name__,
)
def test_columns_are_read(fitted, X):
    assert fitted.predict(X).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "weights", "message"),
    [
        (["a", 1], None, "labels mix text and numbers"),
        (["a", None], None, "label 1 is missing"),
        (pd.Series(["a", pd.NA]), None, "label 1 is missing"),
        ([0, np.inf], None, "label 1 is missing \\(NaN or infinite\\)"),
        ([0, 1], [1.0, -1.0], "row 1 has -1"),
        ([0, 1], [1.0], "got shape"),
    ],
)
def test_labels_and_weights(labels, weights, message):
    with pytest.raises(ValueError, match=message):
        TokenSelectionClassifier().fit(["a", "b"], labels, sample_weight=weights)


def test_emoji_hashtags_and_numbers_are_tokens():
    text = "#Late 42 times \U0001f621\U0001f621 \u2764\ufe0f a#b \U0001f468\u200d\U0001f469 x\ufe0f C# #"
    words = read_tokens([text], "words")
    assert [words.distinct[code] for code in words.codes] == [
        "#late", "42", "times", "\U0001f621", "\U0001f621", "\u2764", "a", "b", "\U0001f468\u200d\U0001f469", "x", "c",
    ]  # fmt: skip
    spans = [text[start:end] for start, end in zip(words.starts, words.ends, strict=True)]
    assert (spans[0], spans[3], spans[5]) == ("#Late", "\U0001f621", "\u2764\ufe0f")
    plain = read_tokens([text], "plain")
    assert [plain.distinct[code] for code in plain.codes[:3]] == ["late", "42", "times"]


def test_copies_stay_on_one_side():
    texts, codes = [f"text {k % 30}" for k in range(90)], np.arange(90) % 3
    group, chance = document_numbers(texts), draw_numbers(texts, 5)
    strata = np.zeros(90, int)
    for mask in (held_out_mask(strata, chance, 0.3), fold_numbers(strata, chance, 3) == 0):
        assert len(np.unique(group[mask])) in (9, 10)
        assert not set(group[mask]) & set(group[~mask])
    shuffled = np.random.default_rng(0).permutation(90)
    again = draw_numbers([texts[k] for k in shuffled], 5)
    assert np.array_equal(again, chance[shuffled])
    assert len(np.unique(chance)) == len(np.unique(group)) == 30
    model = TokenSelectionClassifier(random_state=0).fit(texts, codes)
    assert model.n_duplicates_ == 60


def test_copies_do_not_flatter_the_accuracy():
    """Random labels on texts that all stand four times: a split that tears copies apart would find them again."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice([f"w{k}" for k in range(500)], 12)) for _ in range(300)]
    labels = rng.integers(0, 2, 300)
    model = TokenSelectionClassifier(random_state=0).fit(texts * 4, np.tile(labels, 4))
    assert model.n_duplicates_ == 900
    assert model.validation_.texts == 30
    assert not model.validation_.signal


def test_several_labels_at_once():
    made = make_sentences(120, np.random.default_rng(0))
    lengths = np.array([len(text) for text in made.texts])
    short = lengths < np.median(lengths)
    both = np.stack([np.array(made.labels) == "1", short], axis=1).astype(int)
    model = MultiOutputClassifier(TokenSelectionClassifier(random_state=0, validation_fraction=0.0)).fit(
        made.texts, both
    )
    assert model.predict(made.texts).shape == (120, 2)
    alone = TokenSelectionClassifier(random_state=0, validation_fraction=0.0).fit(made.texts, both[:, 0])
    assert np.array_equal(model.predict(made.texts)[:, 0], alone.predict(made.texts))


def test_an_empty_text_has_the_base_rate():
    made = make_sentences(200, np.random.default_rng(0))
    rare = np.where(np.arange(200) % 10 == 0, "rare", "common")
    model = TokenSelectionClassifier(random_state=0).fit(made.texts, rare)
    # The prior is the logarithm of 20 / 180 and back again: a few roundings.
    assert model.predict_proba(["", "zzz"])[:, 1] == pytest.approx([0.1, 0.1], rel=1e-12, abs=0)
