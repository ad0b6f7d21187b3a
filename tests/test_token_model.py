"""Decisions against the plain softmax, the file format, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from tokenmargin.data.sentences import OPINIONS, make_sentences
from tokenmargin.data.words import find_words
from tokenmargin.token_model import WORD, TokenModel, TokenModelError, load_token_model

SHIPPED = Path(__file__).parent.parent / "src/tokenmargin/report/playground/sentences.json"


@pytest.fixture
def model() -> TokenModel:
    rng = np.random.default_rng(0)
    return TokenModel(tuple("abcdefgh"), rng.normal(scale=3, size=8), rng.normal(size=8), "letters")


def test_decision_is_the_softmax_of_the_known_words(model: TokenModel) -> None:
    decision = model.explain("A b, unknown; c c!")
    rows = [0, 1, 2, 2]
    weights = np.exp(model.logits[rows]) / np.exp(model.logits[rows]).sum()
    known = [word for word in decision.words if word.token]
    np.testing.assert_allclose([word.weight for word in known], weights, rtol=1e-14)
    np.testing.assert_allclose(sum(word.contribution for word in known), decision.output, rtol=1e-13)
    np.testing.assert_allclose(decision.output, weights @ model.values[rows], rtol=1e-13)
    assert decision.words[2].token is None
    assert decision.words[2].weight == 0


def test_output_without_a_word_is_that_of_leaving_it_out(model: TokenModel) -> None:
    text = "a b c d e f g h a"
    for place, word in enumerate(model.explain(text).words):
        # 1 - s_t is at least 1/2 for all words but the heaviest, which is computed anew: a few roundings remain
        np.testing.assert_allclose(word.without, model.explain(text, leave_out=[place]).output, rtol=1e-12, atol=1e-13)


def test_extreme_logits_stay_finite() -> None:
    model = TokenModel(("x", "y"), [1000.0, -1000.0], [1.0, -1.0])
    decision = model.explain("x y")
    assert decision.output == 1.0
    assert decision.words[0].without == -1.0
    assert model.explain("").output == 0.0
    assert model.explain("x").words[0].without == 0.0


def test_words_are_those_of_the_text_pipeline() -> None:
    texts = make_sentences(50, np.random.default_rng(1)).texts
    found = find_words(texts)
    for i, text in enumerate(texts):
        where = slice(found.offsets[i], found.offsets[i + 1])
        spans = list(zip(found.starts[where].tolist(), found.ends[where].tolist(), strict=True))
        assert [match.span() for match in WORD.finditer(text)] == spans


def test_save_and_load_keep_every_digit(model: TokenModel, tmp_path: Path) -> None:
    model.save(tmp_path / "token_model.json")
    for path in (tmp_path, tmp_path / "token_model.json"):
        back = load_token_model(path)
        assert back.vocabulary == model.vocabulary
        assert back.about == "letters"
        np.testing.assert_array_equal(back.logits, model.logits)
        np.testing.assert_array_equal(back.values, model.values)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a token model"),
        ("[]", "does not say"),
        ('{"format": "tokenmargin token model 1", "vocabulary": ["a"], "logits": [1]}', "no field 'values'"),
        ('{"format": "tokenmargin token model 1", "vocabulary": ["a"], "logits": [1], "values": [NaN]}', "finite"),
        (
            '{"format": "tokenmargin token model 1", "vocabulary": ["a", "a"], "logits": [1, 1], "values": [1, 1]}',
            "dist",
        ),
        ('{"format": "tokenmargin token model 1", "vocabulary": 3, "logits": [1], "values": [1]}', "not a token model"),
        ("[" * 100000, "not a token model"),
    ],
)
def test_damaged_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(content)
    with pytest.raises(TokenModelError, match=message):
        load_token_model(path)


def test_missing_file_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(TokenModelError, match="folder with token_model"):
        load_token_model(tmp_path / "nothing.json")


def test_shipped_model_selects_the_opinion_words() -> None:
    model = load_token_model(SHIPPED)
    order = [model.vocabulary[row] for row in np.argsort(-model.logits)]
    assert set(order[: len(OPINIONS)]) == set(OPINIONS)
    value = dict(zip(model.vocabulary, model.values.tolist(), strict=True))
    assert all(np.sign(value[word]) == np.sign(chance - 0.5) for word, chance in OPINIONS.items() if chance != 0.5)
    made = make_sentences(400, np.random.default_rng(7))
    right = [model.explain(text).label == int(label) for text, label in zip(made.texts, made.labels, strict=True)]
    # Opinion words mislead with known probability: the best rule that sees one of them is right on 86% of the texts.
    assert np.mean(right) > 0.75
    assert json.loads(SHIPPED.read_text())["format"] == "tokenmargin token model 1"
