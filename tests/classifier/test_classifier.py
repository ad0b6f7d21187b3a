"""The classifier: decisions against a plain softmax, gradients against differences, scikit-learn's habits."""

from __future__ import annotations

import pickle
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import approx_fprime, minimize
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tests.oracles.rounding import rounding

from tokenmargin.classifier import TokenSelectionClassifier
from tokenmargin.classifier.solver import naive_bayes
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.tokenizers import read_tokens
from tokenmargin.data.pipeline import Pipeline, prepare
from tokenmargin.data.sentences import OPINIONS, make_sentences
from tokenmargin.data.sources import binary_labels

ADDED = rounding(5000, 10)  # two sums of some thousand numbers of size up to ten


@pytest.fixture(scope="module")
def sentences():
    made = make_sentences(600, np.random.default_rng(0))
    return made.texts, np.array(made.labels)


@pytest.fixture(scope="module")
def fitted(sentences):
    return TokenSelectionClassifier(random_state=0, ngrams=2).fit(*sentences)


def plain_decision(model, text):
    """f by its definition, from tokens found by another route."""
    words = text.lower().replace(".", " ").replace(",", " ").replace("!", " ").split()
    grams = [*words, *(f"{a} {b}" for a, b in pairwise(words))]
    rows = {name: row for row, name in enumerate(model.vocabulary_.names)}
    ids = sorted({rows[gram] for gram in grams if gram in rows})
    weights = model.token_model_
    e = np.exp(weights.logits[ids])
    return (
        weights.intercept[0] + e @ weights.values[ids, 0] / (np.exp(weights.sink_logit) + e.sum()) ** weights.exponent
    )


def test_an_even_decision_is_the_same_everywhere():
    """Words that say as much for one class as for the other: f is rounding, and all answers take one side of it."""
    rng = np.random.default_rng(1)
    halves = [rng.integers(0, 4, rng.integers(1, 5)).tolist() for _ in range(40)]
    texts = [" ".join(f"{side}{k}" for k in half) for half in halves for side in "pq"]
    given = {"loss": "log", "start_power": 0.5, "exponent": 0.5, "value_penalty": 1.0, "repeats": False}
    model = TokenSelectionClassifier(validation_fraction=0.0, **given).fit(texts, ["a", "b"] * 40)
    even = [" ".join(rng.permutation([f"{side}{k}" for k in half for side in "pq"])) for half in halves]
    decided, chances = model.predict(even), model.predict_proba(even)
    assert (np.abs(model.decision_function(even)) < ADDED).all()
    assert np.array_equal(model.classes_[chances.argmax(1)], decided)
    found = model.explain(even)
    assert np.array_equal(found.labels, decided)
    assert np.array_equal(found.decisions, model.decision_function(even))
    np.testing.assert_allclose(found.sums, found.decisions, rtol=0, atol=ADDED)


def test_a_text_of_faint_tokens_is_decided_by_them():
    """900 below the largest logit of the model e^a is no double: the largest of the text itself is what counts."""
    model = TokenModel(np.array([0.0, -900.0]), np.array([[1.0], [2.0]]), -1800.0, np.zeros(1), np.zeros(1), 1.0)
    presence = sp.csr_matrix([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    assert model.decide(presence).ravel().tolist() == [1.0, 2.0, 0.0]
    assert model.contributions(presence, np.zeros(3, int)).toarray().tolist() == [[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, "auto"])
def test_decision_is_the_formula(exponent, sentences):
    fitted = TokenSelectionClassifier(random_state=0, ngrams=2, exponent=exponent).fit(*sentences)
    assert exponent == "auto" or fitted.token_model_.exponent == exponent
    texts = sentences[0][:50]
    # Sums of some fifty numbers of size 10: rounding stays below 1e-11.
    np.testing.assert_allclose(
        fitted.decision_function(texts), [plain_decision(fitted, t) for t in texts], rtol=0, atol=1e-11
    )


def test_contributions_add_up(fitted, sentences):
    found = fitted.explain(sentences[0])
    # Sums of some fifty numbers of size up to ten, a few times over.
    np.testing.assert_allclose(found.sums, fitted.decision_function(sentences[0]), rtol=0, atol=ADDED)
    one = found[3]
    words = sum(word.contribution for word in one.words)
    assert one.baseline + one.shift + words == pytest.approx(one.decision, abs=ADDED)
    assert sum(token.contribution for token in one.tokens) == pytest.approx(words, abs=ADDED)
    assert any(one.text[t.start : t.end].lower() == t.token for t in one.tokens if " " in t.token)
    assert 0 < sum(word.weight for word in one.words) < 1


def test_selected_tokens_are_opinions(fitted, sentences):
    found = fitted.explain(sentences[0])
    words = [set(e.selected.split()) & set(OPINIONS) for e in found]
    assert np.mean([bool(word) for word in words]) > 0.85
    assert all(e.margin >= 0 for e in found)
    assert fitted.score(*sentences) > 0.8


def test_selected_span_and_margin(fitted):
    one = fitted.explain(["In short: a DREADFUL kettle"])[0]
    assert one.text[slice(*one.span)].lower() == one.selected
    logits = dict(zip(fitted.vocabulary_.names, fitted.token_model_.logits, strict=True))
    assert one.margin == pytest.approx(logits[one.selected] - logits[one.competitor], abs=ADDED)


@pytest.mark.parametrize("held", [np.inf, 0.1], ids=["values", "attention"])
@pytest.mark.parametrize("g", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("loss", ["log", "hinge"])
@pytest.mark.parametrize("repeats", [False, True])
def test_gradient_against_differences(repeats, loss, k, g, held):
    import scipy.sparse as sp

    from tokenmargin.classifier import solver

    rng = np.random.default_rng(1)
    presence = sp.csr_matrix((rng.random((12, 7)) < 0.4).astype(float))
    matrix = presence.multiply(rng.integers(1, 5, (12, 7))).tocsr() if repeats else presence
    codes, weight = rng.integers(0, k, 12), rng.integers(1, 4, 12).astype(float)
    data = solver.LabelledTexts(matrix, codes, weight, k, counted=repeats)
    start, units = solver.start_model(data, 0.5, g)
    objective = solver.TokenObjective(data, origin=start, units=units, penalty=solver.Penalty(held, 0.2), loss=loss)
    # In the units that the ridge is measured in, the features of a text have length 1 in the mean of their squares.
    unit = objective.model(np.ones(len(objective.flat(start)))).values * np.exp(start.logits)[:, None]
    Z = data.matrix @ np.exp(start.logits) + np.exp(start.sink_logit)
    squares = (data.matrix.toarray()[:, :, None] * unit / Z[:, None, None] ** g) ** 2
    # Sums of 84 products of some ten roundings: at most 1e3 of 1.1e-16. Ten times that is allowed.
    assert data.weight @ squares.sum(1).mean(1) == pytest.approx(data.weight.sum(), rel=1e-12, abs=0)
    # Losses are counted in what the best constant decision loses: found here by a search over constants.
    f = np.zeros((12, start.values.shape[1]))
    best = minimize(lambda b: solver.LOSSES[loss](f + b, data.codes, data.weight / data.weight.sum())[0], f[0]).fun
    # Over the least loss of a constant, which a search finds: it is flat there, by the square of a slope of 1e-5.
    assert objective(np.zeros(len(objective.flat(start))))[0] >= 1 - 1e-9
    # The search for the best constant ends at slopes of 1e-5.
    assert solver.LOSSES[loss](f, data.codes, data.weight / data.weight.sum())[0] == pytest.approx(
        objective(np.zeros(len(objective.flat(start))))[0] * best, rel=1e-5, abs=0
    )
    at = objective.flat(start)
    at = at + 0.3 * rng.standard_normal(len(at))
    np.testing.assert_allclose(
        objective.flat(objective.model(at)), at, rtol=0, atol=rounding(20, float(np.abs(at).max()))
    )
    slope = objective(at)[1]
    # Forward differences with step 1e-7: truncation about 1e-7 times the curvature, rounding about 1e-9.
    np.testing.assert_allclose(slope, approx_fprime(at, lambda x: objective(x)[0], 1e-7), rtol=0, atol=2e-5)


def test_same_seed_same_bits(sentences):
    first, second = (TokenSelectionClassifier(random_state=3).fit(*sentences) for _ in range(2))
    assert np.array_equal(first.token_model_.values, second.token_model_.values)
    assert np.array_equal(first.explain(sentences[0]).contributions, second.explain(sentences[0]).contributions)


def test_clone_pickle_grid_pipeline(sentences):
    texts, labels = sentences[0][:200], sentences[1][:200]
    search = GridSearchCV(TokenSelectionClassifier(), {"ngrams": [1, 2]}, cv=2, n_jobs=1).fit(texts, labels)
    model = clone(search.best_estimator_).fit(texts, labels)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(texts), model.predict_proba(texts))
    pipe = make_pipeline(FunctionTransformer(), TokenSelectionClassifier()).fit(texts, labels)
    assert pipe.score(texts, labels) > 0.7


def test_several_classes_and_string_labels():
    rng = np.random.default_rng(0)
    names = np.array([f"topic {k}" for k in range(20)])
    labels = np.repeat(names, 30)
    texts = [f"{' '.join(rng.choice(['the', 'a', 'of', 'and'], 6))} w{label.split()[1]}" for label in labels]
    model = TokenSelectionClassifier(random_state=0).fit(texts, labels)
    assert model.score(texts, labels) > 0.99
    assert model.predict_proba(texts).shape == (600, 20)
    np.testing.assert_allclose(model.explain(texts).sums, model.decision_function(texts).max(1), rtol=0, atol=ADDED)
    assert model.token_importance_["class"].shape == model.token_importance_["token"].shape


def test_no_signal_is_said():
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(list("abcdefghij"), 8)) for _ in range(1000)]
    model = TokenSelectionClassifier(random_state=0).fit(texts, rng.integers(0, 2, 1000))
    assert not model.validation_.signal
    assert "NO SIGNAL" in str(model.validation_)


def test_weights_of_texts(sentences):
    texts, labels = sentences
    doubled, weighted = (TokenSelectionClassifier(ngrams=2, validation_fraction=0.0, random_state=0) for _ in range(2))
    doubled.fit([*texts[1:], texts[1], texts[2]], [*labels[1:], labels[1], labels[2]])
    weighted.fit(texts, labels, [0.0, 2.0, 2.0] + [1.0] * (len(texts) - 3))
    assert doubled.vocabulary_.names == weighted.vocabulary_.names
    # The same objective, summed in another order; some twenty iterations multiply the rounding.
    np.testing.assert_allclose(doubled.decision_function(texts), weighted.decision_function(texts), rtol=0, atol=1e-7)
    rare = labels.copy()
    rare[: len(rare) // 2] = "1"
    balanced = TokenSelectionClassifier(class_weight="balanced", random_state=0).fit(texts, rare)
    plain = TokenSelectionClassifier(random_state=0).fit(texts, rare)
    assert (balanced.predict(texts) == "-1").sum() >= (plain.predict(texts) == "-1").sum()


def test_warm_start_keeps_the_vocabulary(sentences):
    texts, labels = sentences
    given = {"value_penalty": 1.0, "start_power": 0.5, "exponent": 0.5, "loss": "log", "repeats": False}  # no choice
    model = TokenSelectionClassifier(warm_start=True, random_state=0, **given).fit(texts, labels)
    before, iterations = model.vocabulary_, model.n_iter_
    model.fit(texts, labels)
    assert model.vocabulary_ is before
    assert model.n_iter_ < iterations


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a", "b"], [1, 1], "one class only"),
        (["a", float("nan")], [1, 2], "row 1 is missing"),
        (["a", None], [1, 2], "row 1 is missing"),
        (["a", ["b"]], [1, 2], "row 1"),
        (["a", "b"], [1], "one label for each"),
        ("ab", [1, 2], "single text"),
        ([], [], "no text"),
    ],
)
def test_bad_input(texts, labels, message):
    with pytest.raises(ValueError, match=message):
        TokenSelectionClassifier().fit(texts, labels)


@pytest.mark.parametrize("name", ["ngrams", "min_count", "max_iter"])
def test_bad_settings(name):
    with pytest.raises(ValueError, match=name):
        TokenSelectionClassifier(**{name: 0}).fit(["a", "b"], [0, 1])


def test_empty_texts_scripts_and_long_documents():
    texts = ["", "хорошо очень", "плохо", "良い映画", "悪い映画", "अच्छा", "बुरा", "สนุกมาก", "x " * 5_000] * 20
    labels = [0, 1, 0, 1, 0, 1, 0, 1, 0] * 20
    model = TokenSelectionClassifier(random_state=0).fit(texts, labels)
    assert model.score(texts, labels) == 1.0
    found = model.explain(texts)
    assert found[0].words == ()
    assert found[0].selected is None
    assert found[0].baseline == pytest.approx(found[0].decision, abs=ADDED)
    assert [found[3].text[w.start : w.end] for w in found[3].words] == list("良い映画")


def test_ten_megabytes_in_one_text(sentences):
    texts, labels = sentences[0][:100], sentences[1][:100]
    huge = "a dreadful day. " * 625_000
    model = TokenSelectionClassifier(ngrams=2, random_state=0).fit([huge, *texts], ["-1", *labels])
    found = model.explain([huge])
    assert len(found.weights) == 3 * 625_000
    # 1.9 million terms of one sign for each token: rounding of sums stays far below the 1e-6 that is promised.
    np.testing.assert_allclose(found.sums, model.decision_function([huge]), rtol=0, atol=1e-9)


def test_tokenizers(sentences):
    from tokenizers import Tokenizer, models, pre_tokenizers

    texts, labels = sentences
    hugging_face = Tokenizer(models.WordPiece({"[UNK]": 0, "dread": 1, "##ful": 2, "fine": 3}, unk_token="[UNK]"))
    hugging_face.pre_tokenizer = pre_tokenizers.Whitespace()
    docs = ["a dreadful day", "fine weather"] * 20
    model = TokenSelectionClassifier(hugging_face, random_state=0).fit(docs, [0, 1] * 20)
    words = model.explain(["a dreadful day"])[0].words
    assert ["a dreadful day"[w.start : w.end] for w in words] == ["a", "dreadful", "day"]
    listed = TokenSelectionClassifier(str.split, random_state=0).fit(texts, labels)
    lists = TokenSelectionClassifier(random_state=0).fit([t.split() for t in texts], labels)
    np.testing.assert_array_equal(listed.decision_function(texts), lists.decision_function([t.split() for t in texts]))
    stems = TokenSelectionClassifier("paper", random_state=0).fit(texts, labels)
    assert "delight" in stems.vocabulary_.words
    one = stems.explain(["It was delightful"])[0]
    assert "It was delightful"[slice(*one.span)] == "delightful"


def test_token_importance(fitted, sentences):
    table = fitted.token_importance_
    row = table["token"].tolist().index("dreadful")
    times = np.array([text.lower().count("dreadful") for text in sentences[0]])
    signs = np.where(sentences[1] == "1", 1, -1)
    assert table["count"][row] == (times > 0).sum()
    assert table["occurrences"][row] == times.sum()
    assert table["posterior_difference"][row] == pytest.approx(
        (signs * times).sum() / times.sum(), rel=rounding(4), abs=0
    )
    assert table["signed_frequency"][row] == pytest.approx(
        (signs * times).sum() / table["occurrences"].sum(), rel=rounding(4), abs=0
    )
    assert table["selected"].sum() == len(signs)
    found = fitted.explain(sentences[0])
    start = (found.baselines + found.shifts).mean()
    # Over all texts, hundreds of them.
    assert table["contribution"].sum() + start == pytest.approx(found.decisions.mean(), abs=ADDED)


def test_frequencies_count_occurrences():
    """(3) and (37) of paper A count every occurrence: *good* stands four times under + and once under -."""
    texts = ["good good good film", "good film", "bad film", "bad bad bad bad good film"]
    table = TokenSelectionClassifier().fit(texts, [1, 1, -1, -1]).token_importance_
    found = dict(zip(table["token"], zip(table["count"], table["occurrences"], strict=True), strict=True))
    assert found == {"good": (3, 5), "bad": (2, 5), "film": (4, 4)}
    posterior = dict(zip(table["token"], table["posterior_difference"], strict=True))
    assert posterior == pytest.approx({"good": 3 / 5, "bad": -1, "film": 0}, abs=rounding(4))
    signed = dict(zip(table["token"], table["signed_frequency"], strict=True))
    assert signed == pytest.approx({"good": 3 / 14, "bad": -5 / 14, "film": 0}, abs=rounding(4))


def test_frequencies_are_those_of_the_corpus(sentences):
    """The same texts as a corpus of the data room: the table and `TokenCorpus` count alike."""
    texts, labels = sentences
    table = TokenSelectionClassifier(random_state=0).fit(texts, labels).token_importance_
    corpus = prepare(texts, binary_labels(labels.tolist()), Pipeline(minimum_count=2)).corpus()
    expected = dict(zip(corpus.vocabulary, corpus.posterior_difference.tolist(), strict=True))
    assert dict(zip(table["token"], table["posterior_difference"].tolist(), strict=True)) == pytest.approx(
        expected, abs=rounding(4)
    )


def test_weights_that_would_overflow_are_refused():
    with pytest.raises(ValueError, match="none over 1e\\+100"):
        TokenSelectionClassifier(min_count=1).fit(["good film", "bad film"] * 5, [1, 0] * 5, sample_weight=[1e308] * 10)


def test_a_weight_beside_which_all_others_round_to_nothing() -> None:
    texts, labels = ["good film", "bad film", "good tea", "bad tea"] * 4, ["pos", "neg"] * 8
    weights = np.ones(16)
    said = []
    for weights[8] in (1e14, 1e16, 1e100):
        model = TokenSelectionClassifier(min_count=1, exponent=1.0).fit(texts, labels, sample_weight=weights)
        said.append(model.predict_proba(["good day"]))
    # All other texts together have a share of 1.5e-13 at most of the weight, and change no probability by more.
    np.testing.assert_allclose(said, np.broadcast_to(said[-1], (3, 1, 2)), rtol=0, atol=1.5e-13)


def test_naive_bayes_beside_rational_numbers() -> None:
    texts = np.array([[1e16, 1.0, 2.0], [0.0, 3.0, 1e30]])
    exact = [[Fraction(x) + 1 for x in row] for row in texts.tolist()]
    for c in range(3):
        outside = [sum(row) - row[c] for row in exact]
        for t, row in enumerate(exact):
            ratio = (row[c] / sum(r[c] for r in exact)) / (outside[t] / sum(outside))
            # A handful of roundings, each of its size, in logarithms of up to 70.
            assert naive_bayes(texts, 1.0)[t, c] == pytest.approx(
                float(mpmath.log(mpmath.mpf(ratio.numerator) / ratio.denominator)), abs=1e-13
            )


@pytest.mark.parametrize("k", [2, 3])
def test_transform_adds_up_to_the_decision(sentences, k):
    texts = sentences[0][:200]
    labels = sentences[1][:200] if k == 2 else np.arange(200) % 3
    model = TokenSelectionClassifier(ngrams=2, exponent=0.5, random_state=0).fit(texts, labels)
    found = model.transform(texts)
    assert found.shape == (200, len(model.get_feature_names_out()))
    f = model.decision_function(texts)
    start = model.token_model_.intercept[0 if k == 2 else f.argmax(1)]
    # Sums of some fifty numbers of size one.
    np.testing.assert_allclose(np.asarray(found.sum(1)).ravel() + start, f if k == 2 else f.max(1), rtol=0, atol=1e-11)
    assert not hasattr(model, "coef_")
    linear = TokenSelectionClassifier(exponent=0.0, random_state=0).fit(texts, labels)
    encoded = linear.vocabulary_.encode(read_tokens(texts, "words"))
    counts = encoded.presence(len(linear.vocabulary_), repeats=linear.token_model_.repeats)
    expected = counts @ linear.coef_.T + linear.token_model_.intercept
    np.testing.assert_allclose(linear.decision_function(texts).reshape(200, -1), expected, rtol=0, atol=ADDED)


def test_partial_fit_is_a_fit_of_all_parts(sentences):
    texts, labels = sentences
    model = TokenSelectionClassifier(value_penalty=1.0, start_power=0.5, exponent=0.5, tol=1e-9, max_iter=500)
    model.set_params(validation_fraction=0.0)
    parts = clone(model)
    order = np.argsort(labels, kind="stable")  # the first part has one class only
    for rows in np.array_split(order, 3):
        parts.partial_fit([texts[row] for row in rows], labels[rows], classes=["-1", "1"])
    assert parts.n_texts_ == len(texts)
    again = parts.decision_function(texts)
    with pytest.raises(ValueError, match="'other' is none of the classes"):
        parts.partial_fit(["a"], ["other"])
    assert np.array_equal(parts.decision_function(texts), again)
    same, thirds = clone(model), np.array_split(order, 3)
    for rows in (thirds[0], np.concatenate(thirds[1:])):
        same.partial_fit([texts[row] for row in rows], labels[rows], classes=["-1", "1"])
    # The same convex problem in the same vocabulary, each stopped where an iteration saves 1e-9: the ridge of 1/600
    # bounds the distance of their values by some sqrt(2 * 600 * 1e-8), and features have length one.
    np.testing.assert_allclose(same.decision_function(texts), again, rtol=0, atol=0.01)
    anew = clone(model).fit(["of other words", "other words"] * 5, ["-1", "1"] * 5)
    with pytest.warns(UserWarning, match="partial_fit begins anew: .* its texts are not kept"):
        anew.partial_fit([texts[row] for row in thirds[0]], labels[thirds[0]], classes=["-1", "1"])
    for rows in thirds[1:]:
        anew.partial_fit([texts[row] for row in rows], labels[rows], classes=["-1", "1"])
    assert np.array_equal(anew.decision_function(texts), again)


def test_a_blend_is_the_sum_of_its_fits(sentences):
    """The model chosen is `temperature f + sum of weight_i f_i + offset prior`, each f_i of a classifier of its own."""
    texts, labels = sentences[0][:300], sentences[1][:300]
    model = TokenSelectionClassifier(ngrams=2, random_state=0, validation_fraction=0.0, tol=1e-9, max_iter=500)
    chosen = model.fit(texts, labels).chosen_
    assert chosen.partners
    expected = chosen.offset * model.token_model_.prior[0]
    for member, weight in [(chosen, chosen.temperature), *((one, one.weight) for one in chosen.partners)]:
        alone = clone(model).set_params(
            value_penalty=member.value_penalty, start_power=member.start_power, loss=member.loss,
            exponent=chosen.exponent, repeats=chosen.repeats,
        )  # fmt: skip
        expected = expected + weight * alone.fit(texts, labels).decision_function(texts)
    # Each fit stops where an iteration saves 1e-9 of the loss; the ridge over 300 texts then bounds its f within some
    # sqrt(2 * 300 / ridge * 1e-9), and the weights here are below five.
    ridge = min(chosen.value_penalty, *(one.value_penalty for one in chosen.partners))
    np.testing.assert_allclose(model.decision_function(texts), expected, rtol=0, atol=5 * (600e-9 / ridge) ** 0.5)


def test_occurrences_count_where_they_decide():
    """Both words stand in every text: only how often tells the classes apart."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 300)
    words = (["good"] * (1 + 2 * y) + ["bad"] * (3 - 2 * y) + [f"w{rng.integers(9)}" for _ in "ab"] for y in labels)
    texts = [" ".join(rng.permutation(one)) for one in words]
    model = TokenSelectionClassifier(random_state=0).fit(texts, labels)
    assert model.chosen_.repeats
    assert model.score(texts, labels) == 1
    # Sums of six tokens of some ten roundings, decisions below 100: at most 60 roundings of 1.1e-14.
    assert model.explain(texts).sums == pytest.approx(model.decision_function(texts), abs=1e-12)
    once = TokenSelectionClassifier(repeats=False, random_state=0).fit(texts, labels)
    assert once.score(texts, labels) < 0.7
    with pytest.raises(ValueError, match="repeats must be"):
        TokenSelectionClassifier(repeats="often").fit(texts, labels)


@pytest.mark.parametrize("settings", [{"repeats": True, "exponent": 0.0}, {}])
def test_validation_counts_occurrences_as_the_model_does(settings):
    """The classes differ in how often one word stands, so a model that counts decides all held-out texts rightly."""
    rng = np.random.default_rng(0)
    words = [["tick"] * (1 + 3 * (i % 2)) + [f"w{k}" for k in rng.integers(0, 30, 4)] + [f"n{i}"] for i in range(300)]
    model = TokenSelectionClassifier(random_state=0, **settings).fit(words, np.arange(300) % 2)
    assert model.token_model_.repeats
    assert model.validation_.accuracy == 1.0
    assert model.validation_.signal


def test_words_of_the_texts_held_out_alone_are_not_known_on_their_fold():
    import scipy.sparse as sp

    from tokenmargin.classifier import model_choice, solver

    # Texts 0 and 1 are held out. Token 0 stands everywhere, 1 in one text held out and one to learn from, 2 in texts
    # held out alone, 3 in two texts to learn from, 4 in a single text to learn from (twice, or it was asked for).
    rows = [[1, 1, 1, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 0, 1, 1]]
    data = solver.LabelledTexts(sp.csr_matrix(np.array(rows, float)), np.array([0, 1, 0, 1]), np.ones(4), 2)
    for least, kept in ((2, [0, 3, 4]), (1, [0, 1, 3, 4]), (0, [0, 1, 2, 3, 4])):
        (fold,) = model_choice.make_folds(data, np.array([0, 0, 1, 1]), 1, least)
        assert fold.kept.tolist() == kept
        assert fold.test.presence.toarray().tolist() == np.array(rows, float)[:2][:, kept].tolist()


def test_short_reprs(fitted):
    for shown in (fitted.explain(["a dreadful day"]), fitted.explain(["a dreadful day"])[0], fitted.token_importance_):
        assert len(repr(shown)) < 200
