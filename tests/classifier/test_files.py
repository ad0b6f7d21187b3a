"""Model folders: the same decisions after reading, and refusals."""

from __future__ import annotations

import hashlib
import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tokenmargin.classifier import ModelFileError, TokenSelectionClassifier, load_model, save_model
from tokenmargin.data.sentences import make_sentences


@pytest.fixture(scope="module")
def texts():
    return make_sentences(200, np.random.default_rng(0))


@pytest.fixture
def folder(texts, tmp_path):
    model = TokenSelectionClassifier(ngrams=3, random_state=0).fit(texts.texts, texts.labels)
    return save_model(model, tmp_path / "model", notes={"data": "sentences"})


def test_same_decisions(folder, texts):
    model = TokenSelectionClassifier(ngrams=3, random_state=0).fit(texts.texts, texts.labels)
    again = load_model(folder)
    assert np.array_equal(again.decision_function(texts.texts), model.decision_function(texts.texts))
    assert again.predict(texts.texts).tolist() == model.predict(texts.texts).tolist()
    assert again.validation_ == model.validation_
    assert again.token_importance_["token"].tolist() == model.token_importance_["token"].tolist()
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model"]
    assert "data: sentences" in (folder / "README.md").read_text()


def test_a_fit_that_chose_nothing_is_kept_in_plain_json(tmp_path):
    model = TokenSelectionClassifier(min_count=1, exponent=1.0).fit(["a good day", "a bad day"] * 4, ["pos", "neg"] * 4)
    assert np.isnan(model.chosen_.log_loss)
    folder = save_model(model, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text(), parse_constant=pytest.fail)
    assert config["chosen"]["log_loss"] is None
    assert np.isnan(load_model(folder).chosen_.log_loss)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "README.md"])
def test_damage_is_refused(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ModelFileError, match="damaged"):
        load_model(folder)
    (folder / name).unlink()
    with pytest.raises(ModelFileError, match=f"{name} is missing"):
        load_model(folder)


def test_newer_and_foreign_are_refused(folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"format": 99}))
    with pytest.raises(ModelFileError, match="upgrade"):
        load_model(folder)
    (folder / "config.json").write_text(json.dumps(config | {"format": 1}))
    with pytest.raises(ModelFileError, match=r"written in format 1 .* train again with `tokenmargin fit`"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match="damaged"):
        load_model(folder)
    with pytest.raises(ModelFileError, match="not a model folder"):
        load_model(tmp_path / "nothing")


def test_other_folders_are_left_alone(folder, texts, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("years of work")
    with pytest.raises(ModelFileError, match="in the way"):
        save_model(load_model(folder), precious)
    save_model(load_model(folder), folder)
    assert load_model(folder).ngrams == 3


def test_functions_are_not_stored(texts, tmp_path):
    model = TokenSelectionClassifier(str.split, random_state=0).fit(texts.texts, texts.labels)
    folder = save_model(model, tmp_path / "split")
    with pytest.raises(ModelFileError, match="code is not stored"):
        load_model(folder)
    again = load_model(folder, tokenizer=str.split)
    assert np.array_equal(again.decision_function(texts.texts), model.decision_function(texts.texts))


def test_earlier_token_models_are_refused_in_one_line(tmp_path):
    (tmp_path / "token_model.json").write_text('{"format": "tokenmargin token model 1"}')
    for place in (tmp_path, tmp_path / "token_model.json"):
        with pytest.raises(ModelFileError, match="earlier versions is not read any more: train again"):
            load_model(place)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("logits", lambda x: np.append(x, 0.0), "logits must be finite numbers of shape"),
        ("values", lambda x: x * np.nan, "values must be finite numbers"),
        ("shared", lambda x: np.r_[0.5, 1e5, x[2:]], "of a size that doubles can add up"),  # e^((1 - 0.5) 1e5)
        ("values", lambda x: x * 1e306, "of a size that doubles can add up"),
        ("shared", lambda x: np.r_[1.5, x[1:]], "the exponent within 0 and 1"),
        ("selected", lambda x: x[1:], "selected must be finite numbers of shape"),
        ("occurrences", lambda x: x[:, :1], "occurrences must be finite numbers of shape"),
        ("grams_2", lambda x: x + 0.5, "n-grams must be whole numbers"),
        ("grams_3", lambda x: x[::-1].copy(), "n-grams must be whole numbers that rise"),
        ("grams_2", lambda x: x + (1 << 40), "n-grams must be made of words and shorter n-grams"),
        ("loss_curve", lambda x: x * np.inf, "loss_curve must be finite numbers"),
    ],
)
def test_hostile_arrays_are_refused(folder, name, change, message):
    """Checksums that match, arrays that do not: whoever wrote them could write the checksums too."""
    place = folder / "model.safetensors"
    arrays = load_file(place)
    save_file(arrays | {name: change(arrays[name])}, place)
    config = json.loads((folder / "config.json").read_text())
    config["sha256"][place.name] = hashlib.sha256(place.read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=message):
        load_model(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"class_type": "|V400000000"}, "class_type must be numbers or text"),
        ({"class_type": "400000000i4"}, "class_type must be numbers or text"),
        ({"classes": 5}, "classes must be a list"),
        ({"classes": [["a"], ["b"]]}, "classes must be a list"),
        ({"classes": ["a"]}, "classes must be a list"),
        ({"settings": 3}, "not a readable model"),
        ({"sha256": []}, "not a readable model"),
    ],
)
def test_hostile_settings_are_refused(folder, change, message):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelFileError, match=message):
        load_model(folder)


def test_the_width_of_classes_is_that_of_their_names(folder):
    """A type of 1.6 GB for each name costs nothing: the folder is not asked how wide a name is."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"class_type": "<U400000000"}))
    model = load_model(folder)
    assert model.classes_.dtype.itemsize == 4 * max(map(len, config["classes"]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", ["README.md", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "endless device", "folder"])
def test_what_is_no_file_is_not_read(folder, name, kind):
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to("/dev/zero")
    with pytest.raises(ModelFileError, match="not a plain file"):
        load_model(folder)
