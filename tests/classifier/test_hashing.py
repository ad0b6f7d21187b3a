"""Hashed words: explanations where tokens collide, parts without words in advance, samples that do not grow, files."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone
from tests.oracles.rounding import rounding

from tokenmargin._files import file_digest
from tokenmargin.classifier import ModelFileError, TokenSelectionClassifier, load_model, save_model
from tokenmargin.classifier.fitting import draw_numbers
from tokenmargin.classifier.what_if import decide_by_words
from tokenmargin.data.sentences import make_sentences

GIVEN = {
    "value_penalty": 1.0, "start_power": 0.5, "exponent": 0.5, "loss": "log", "tol": 1e-13, "max_iter": 2000,
    "validation_fraction": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def data():
    made = make_sentences(160, np.random.default_rng(8))
    return list(made.texts), np.array(made.labels)


def effects_by_deleting(model, text):
    """f less what it is without each word, decided anew."""
    words = decide_by_words(model, text).words
    spelled = [text[word.start : word.end].lower() for word in words]
    f = decide_by_words(model, text).output
    same = [[other for other, name in enumerate(spelled) if name == word] for word in spelled]
    return [f - decide_by_words(model, text, leave_out=gone).output for gone in same]


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("buckets", [7, 60])
def test_explanations_are_exact_where_tokens_collide(data, buckets, repeats):
    texts, labels = data
    model = TokenSelectionClassifier(ngrams=2, buckets=buckets, repeats=repeats, random_state=0).fit(texts, labels)
    assert any(" | " in name for name in model.vocabulary_.names)
    long = [f"{texts[0]} {texts[1]} {texts[2]}", *texts[:3]]
    f, found = model.decision_function(long), model.explain(long)
    np.testing.assert_allclose(np.abs(found.sums), np.abs(f), rtol=0, atol=1e-12)  # sums of some 60 numbers below ten
    for text, one in zip(long, found, strict=True):
        # Differences of two such sums.
        effects = [word.effect for word in one.words]
        np.testing.assert_allclose(effects, effects_by_deleting(model, text), rtol=0, atol=1e-12)
    rows = np.asarray(model.transform(long).sum(1)).ravel() + model.token_model_.intercept[0]
    np.testing.assert_allclose(rows, f, rtol=0, atol=1e-12)  # the same sums


def test_without_collisions_it_is_the_model_of_the_vocabulary(data):
    texts, labels = data
    model = TokenSelectionClassifier(repeats=False, **GIVEN)
    plain, hashed = clone(model).fit(texts, labels), clone(model).set_params(buckets=1 << 16).fit(texts, labels)
    assert sorted(hashed.vocabulary_.names) == list(plain.vocabulary_.words)
    # One convex problem with its unknowns in another order, both stopped where an iteration saves 1e-13 of the loss:
    # with a ridge of 1/160 on features of length one f is within sqrt(2 * 160 * 1e-13) of the minimum.
    gap = np.abs(hashed.decision_function(texts) - plain.decision_function(texts)).max()
    assert gap < 2 * (320e-13) ** 0.5


def test_parts_need_no_words_in_advance(data):
    texts, labels = data
    model = TokenSelectionClassifier(ngrams=2, buckets=1 << 14, repeats=False, **GIVEN)
    whole = clone(model).fit(texts, labels)
    for order in (np.arange(160), np.arange(160)[::-1]):
        parts = clone(model)
        for rows in np.array_split(order, 5):
            parts.partial_fit([texts[row] for row in rows], labels[rows], classes=["-1", "1"])
        assert np.array_equal(parts.vocabulary_.known, whole.vocabulary_.known)
        assert {tuple(sorted(name.split(" | "))) for name in parts.vocabulary_.names} == {
            tuple(sorted(name.split(" | "))) for name in whole.vocabulary_.names
        }
        gap = np.abs(parts.decision_function(texts) - whole.decision_function(texts)).max()
        assert gap < 2 * (320e-13) ** 0.5  # as above
        assert parts.n_texts_ == 160
        for name in ("texts", "occurrences"):
            assert np.array_equal(getattr(parts.token_statistics_, name), getattr(whole.token_statistics_, name))


def test_a_sample_does_not_grow_and_is_the_same_whatever_the_parts(data):
    texts, labels = data
    model = TokenSelectionClassifier(buckets=1 << 12, repeats=False, max_texts=50, min_count=1, **GIVEN)
    kept, twice = np.argsort(draw_numbers(texts, 0))[:50], np.arange(160) % 13 == 0
    sample = [texts[row] for row in kept]
    same = clone(model).fit(sample, labels[kept], sample_weight=1.0 + twice[kept])
    for order in (np.arange(160), np.random.default_rng(0).permutation(160)):
        parts = clone(model)
        for rows in np.array_split(order, 4):
            given = [*rows, *rows[twice[rows]]]  # copies add weight, and take no place
            parts.partial_fit([texts[row] for row in given], labels[given], classes=["-1", "1"])
            assert parts.n_texts_kept_ <= 50
        assert parts.n_texts_ == 160 + twice.sum()
        gap = np.abs(parts.decision_function(sample) - same.decision_function(sample)).max()
        # The tolerance as above, with weights of 62 together at most. Words of dropped texts are no longer known.
        assert gap < 2 * (124e-13) ** 0.5


def test_copies_in_parts_count_as_texts(data):
    """The table of a model fitted in parts counts every copy, as that of one fitted whole does."""
    texts, labels = data
    given = np.r_[np.arange(160), np.arange(0, 160, 3), np.arange(5)]
    parts = TokenSelectionClassifier(random_state=0)
    whole = clone(parts).fit([texts[row] for row in given], labels[given])
    parts.set_params(vocabulary=whole.vocabulary_.words)
    for rows in np.array_split(given, 4):
        parts.partial_fit([texts[row] for row in rows], labels[rows], classes=["-1", "1"])
    assert (parts.n_texts_, parts.n_duplicates_) == (len(given), whole.n_duplicates_)
    for name in ("texts", "occurrences"):
        assert np.array_equal(getattr(parts.token_statistics_, name), getattr(whole.token_statistics_, name))
    assert parts.token_statistics_.selected.sum() == whole.token_statistics_.selected.sum() == len(given)
    decided = [texts[row] for row in given]
    start = (parts.explain(decided).baselines + parts.explain(decided).shifts).mean()
    # Sums over some two hundred texts of numbers of size up to ten.
    added = parts.token_statistics_.contributions.sum() + start
    assert added == pytest.approx(parts.decision_function(decided).mean(), abs=rounding(5000, 10))


def test_class_weights_count_in_every_part(data):
    texts, labels = data
    labels = np.where(labels == "1", "good", "bad")
    model = TokenSelectionClassifier(repeats=False, class_weight={"bad": 3.0, "good": 1.0}, min_count=1, **GIVEN)
    parts, words = clone(model), sorted({word.strip(".,!").lower() for text in texts for word in text.split()})
    parts.set_params(vocabulary=words)
    whole = clone(parts).fit(texts, labels)
    for rows in np.array_split(np.arange(160), 3):
        parts.partial_fit([texts[row] for row in rows], labels[rows], classes=["bad", "good"])
    gap = np.abs(parts.decision_function(texts) - whole.decision_function(texts)).max()
    assert gap < 2 * (640e-13) ** 0.5  # weights of 320 texts together


def test_what_is_forgotten_is_told(data, tmp_path):
    texts, labels = data
    model = TokenSelectionClassifier(buckets=100, random_state=0).fit(texts, labels)
    save_model(model, tmp_path / "model")
    for fitted in (model, load_model(tmp_path / "model")):
        with pytest.warns(UserWarning, match="partial_fit begins anew: .* its texts are not kept"):
            fitted.partial_fit(texts[:20], labels[:20])
        assert fitted.n_texts_ == 20
    for wrong, words in (
        ({"buckets": 0}, "buckets must be None or a whole number of at least 1"),
        ({"buckets": 9, "vocabulary": ["good"]}, "buckets hash every word"),
        ({"buckets": 9, "max_words": 5}, "buckets hash every word"),
        ({"buckets": 1 << 28, "ngrams": 2}, "at most 2\\^28"),
        ({"max_texts": 0}, "max_texts must be None"),
    ):
        with pytest.raises(ValueError, match=words):
            TokenSelectionClassifier(**wrong).fit(texts, labels)


def test_folders_of_hashed_words(data, tmp_path):
    texts, labels = data
    model = TokenSelectionClassifier(ngrams=2, buckets=300, random_state=0).fit(texts, labels)
    folder = save_model(model, tmp_path / "model")
    again = load_model(folder)
    assert np.array_equal(again.decision_function(texts), model.decision_function(texts))
    assert again.vocabulary_.names == model.vocabulary_.names
    assert again.get_params()["buckets"] == 300
    assert again.token_importance_["token"].tolist() == model.token_importance_["token"].tolist()
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == 6
    plain = save_model(TokenSelectionClassifier(random_state=0).fit(texts, labels), tmp_path / "plain")
    assert json.loads((plain / "config.json").read_text())["format"] == 5  # what an earlier version reads
    told = json.loads((folder / "tokenizer.json").read_text())
    for spelled in (told["spellings"][1:], [[], *told["spellings"][1:]], [[3], *told["spellings"][1:]]):
        (folder / "tokenizer.json").write_text(json.dumps(told | {"spellings": spelled}))
        config["sha256"]["tokenizer.json"] = file_digest(folder / "tokenizer.json")
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ModelFileError, match="spellings"):
            load_model(folder)


class Pieces:
    """A tokenizer of pieces, as Hugging Face's: the last two letters of a word are a piece by themselves."""

    def encode_batch(self, texts, add_special_tokens):
        found = []
        for text in texts:
            tokens, offsets, numbers, place = [], [], [], 0
            for number, word in enumerate(text.split()):
                start = text.index(word, place)
                place = start + len(word)
                cut = max(start, place - 2)
                spans = [(start, cut), (cut, place)] if cut > start else [(start, place)]
                tokens += [text[low:high] if low == start else "##" + text[low:high] for low, high in spans]
                offsets += spans
                numbers += [number] * len(spans)
            found.append(SimpleNamespace(tokens=tokens, offsets=offsets, word_ids=numbers))
        return found


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("ngrams", [1, 2])
def test_deleting_a_word_whose_pieces_others_have(repeats, ngrams):
    texts = ["sunny funny day", "funny funny bunny", "rainy day", "grainy rainy night"] * 6
    model = TokenSelectionClassifier(Pieces(), ngrams=ngrams, repeats=repeats, random_state=0).fit(
        texts, [1, 1, 0, 0] * 6
    )
    for text in ["funny bunny funny rainy", "rainy grainy day", "funny funny", "sunny"]:
        found = [word.effect for word in model.explain([text])[0].words]
        # Differences of sums of a few numbers below ten.
        np.testing.assert_allclose(np.abs(found), np.abs(effects_by_deleting(model, text)), rtol=0, atol=1e-12)
