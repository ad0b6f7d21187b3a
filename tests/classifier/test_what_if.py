"""One text word by word: sums, and the output without each word, against decisions on token lists."""

from __future__ import annotations

import numpy as np
import pytest
from tests.oracles.rounding import rounding

from tokenmargin.classifier import TokenModel, TokenSelectionClassifier, load_model, what_if
from tokenmargin.classifier.what_if import decide_by_words
from tokenmargin.data.sentences import OPINIONS, make_sentences
from tokenmargin.report.playground.server import SENTENCES

LETTERS = list("abcdefgh")


@pytest.fixture(scope="module")
def letters():
    """A model of single letters with weights of our choice."""
    rng = np.random.default_rng(0)
    model = TokenSelectionClassifier(str.split, min_count=1).fit([" ".join(LETTERS)] * 2, ["no", "yes"])
    shared = (0.5, np.array([0.2]), np.array([-0.7]), 0.6)
    model.token_model_ = TokenModel(rng.normal(scale=3, size=8), rng.normal(size=(8, 1)), *shared)
    return model


def test_decision_is_the_formula_over_the_known_words(letters):
    found = decide_by_words(letters, "a b unknown c c")
    weights = letters.token_model_
    e, b = np.exp(weights.logits[:3]), weights.values[:3, 0]
    Z = np.exp(0.5) + e.sum()
    # Sums of four terms of size one: a few units in the last place.
    assert found.output == pytest.approx(0.2 + e @ b / Z**0.6, rel=1e-13, abs=0)
    assert [word.token for word in found.words] == ["a", "b", None, "c", "c"]
    share = e / Z
    few = 1e-13  # as above
    assert [word.weight for word in found.words] == pytest.approx(
        [*share[:2], 0, share[2] / 2, share[2] / 2], rel=few, abs=0
    )
    assert found.start + sum(word.contribution for word in found.words) == pytest.approx(found.output, rel=few, abs=0)
    assert found.words[0].value == pytest.approx(weights.values[0, 0] * Z**0.4, rel=few, abs=0)


@pytest.mark.parametrize("text", ["a b c d e f g h a", "a", "h h", "x", ""])
def test_output_without_a_word_is_that_of_leaving_it_out(letters, text):
    words = text.split()
    for place, word in enumerate(decide_by_words(letters, text).words):
        rest = letters.decision_function([words[:place] + words[place + 1 :]])[0]
        # Both sum a few terms of size one anew: a few roundings apart.
        assert word.without == pytest.approx(rest, rel=1e-12, abs=1e-13)
        assert decide_by_words(letters, text, leave_out=[place]).output == pytest.approx(rest, rel=1e-12, abs=1e-13)


def test_extreme_logits_stay_finite(letters):
    model = TokenSelectionClassifier(str.split, min_count=1).fit(["x y"] * 2, [0, 1])
    model.token_model_ = TokenModel(
        np.array([1000.0, -1000.0]), np.array([[1.0], [-1.0]]), -3000.0, np.zeros(1), np.zeros(1)
    )
    found = decide_by_words(model, "x y")
    assert (found.output, found.words[0].without, found.words[1].without) == (1.0, -1.0, 1.0)
    assert decide_by_words(model, "x").words[0].without == 0.0
    assert [word.effect for word in model.explain(["x y"])[0].words] == [2.0, 0.0]


def test_ngrams_go_with_their_words():
    made = make_sentences(300, np.random.default_rng(2))
    model = TokenSelectionClassifier(ngrams=3, random_state=0).fit(made.texts, made.labels)
    for text in made.texts[:5]:
        found = decide_by_words(model, text)
        # Sums of some tens of numbers of size up to ten, which cancel to decisions of size one.
        assert found.output == pytest.approx(model.decision_function([text])[0], abs=rounding(100, 10))
        shown = model.explain([text])[0]
        assert [word.contribution for word in found.words] == pytest.approx(
            [word.contribution for word in shown.words], abs=rounding(100, 10)
        )
        for place in range(0, len(found.words), 5):
            again = decide_by_words(model, text, leave_out=[place])
            assert found.words[place].without == pytest.approx(again.output, abs=rounding(100, 10))
            assert again.words[place].token is None


def test_pieces_of_a_word_are_left_out_together():
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "dread": 1, "##ful": 2, "fine": 3}, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    model = TokenSelectionClassifier(pieces, ngrams=2, random_state=0).fit(
        ["dreadful fine dreadful", "fine"] * 20, [0, 1] * 20
    )
    found = decide_by_words(model, "fine dreadful fine")
    assert [(word.start, word.end) for word in found.words] == [(0, 4), (5, 13), (14, 18)]
    for place, word in enumerate(found.words):
        again = decide_by_words(model, "fine dreadful fine", leave_out=[place])
        assert word.without == pytest.approx(again.output, abs=rounding(100, 10))


def test_three_classes_are_refused():
    model = TokenSelectionClassifier().fit(["a b", "b c", "c a"] * 3, [0, 1, 2] * 3)
    with pytest.raises(ValueError, match="models of two classes are explained, this one has 3"):
        decide_by_words(model, "a")


def test_the_playground_s_own_model_selects_the_opinion_words():
    model = load_model(SENTENCES)
    names = model.vocabulary_.names
    telling = {word: chance for word, chance in OPINIONS.items() if chance != 0.5}
    leading = [names[row] for row in np.argsort(-model.token_model_.logits)[: len(telling)]]
    assert set(leading) == set(telling)
    value = dict(zip(names, model.token_model_.values[:, 0].tolist(), strict=True))
    assert all(np.sign(value[word]) == np.sign(chance - 0.5) for word, chance in telling.items())
    made = make_sentences(400, np.random.default_rng(7))
    # Opinion words mislead with known probability: the best rule that sees one of them is right on 86% of the texts.
    assert (model.predict(made.texts) == made.labels).mean() > 0.75


def masked(model, text, word):
    """The decision values with every token that holds the word gone: spelled out over the names of the tokens."""
    words = text.lower().replace(".", " ").replace(",", " ").replace("!", " ").split()
    known = {name: row for row, name in enumerate(model.vocabulary_.names)}
    grams = {" ".join(words[at : at + n]) for n in (1, 2, 3) for at in range(len(words) - n + 1)}
    ids = sorted(known[gram] for gram in grams if gram in known and word not in gram.split())
    weights = model.token_model_
    parts = [model.vocabulary_.names[row].split() for row in ids]
    times = [sum(words[at : at + len(part)] == part for at in range(len(words))) for part in parts]
    e = np.exp(weights.logits[ids]) * (times if weights.repeats else 1)
    Z = np.exp(weights.sink_logit) + e.sum()
    return weights.intercept + e @ weights.values[ids] / Z**weights.exponent if ids else weights.prior


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("repeats", [False, True])
def test_effects_are_those_of_deleting_the_word_everywhere(repeats, exponent, classes):
    made = make_sentences(300, np.random.default_rng(2))
    labels = np.arange(300) % 3 if classes == 3 else made.labels
    model = TokenSelectionClassifier(ngrams=3, exponent=exponent, repeats=repeats, random_state=0)
    model.fit(made.texts, labels)
    texts = [*made.texts[:6], "dreadful", "the the", "", "unheard of", "the dreadful the dreadful the"]
    for target in (None, *model.classes_):
        for one in model.explain(texts, target=target):
            column = 0 if classes == 2 else model.classes_.tolist().index(one.label)
            for word in one.words:
                rest = masked(model, one.text, one.text[word.start : word.end].lower())[column]
                # F - C and 1 - rho are sums of some fifty terms of size one, and rho stays below 0.999.
                assert word.effect == pytest.approx(one.decision - rest, abs=1e-10)
                assert word.shown_contribution == 0 or word.shown_contribution * word.effect > 0


def test_what_if_edits_the_text():
    made = make_sentences(300, np.random.default_rng(2))
    model = TokenSelectionClassifier(random_state=0).fit(made.texts, made.labels)
    found = what_if(model, "A Dreadful day, dreadful food", replace={"dreadful": "superb"}, delete=["day"])
    assert (found.edited, found.changed) == ("A superb , superb food", 3)
    np.testing.assert_allclose(
        [found.before, found.after], model.predict_proba([found.text, found.edited]), rtol=rounding(100, 10)
    )
    assert what_if(model, "a  b", delete=["c"]).edited == "a  b"
