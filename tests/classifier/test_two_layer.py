"""Two layers, and dimensions: the model against the training room's, exact decompositions, files, ranks."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import approx_fprime

from tokenmargin.classifier import TokenSelectionClassifier, load_model, save_model
from tokenmargin.classifier.low_rank import LowRank
from tokenmargin.classifier.trust import deletion_test
from tokenmargin.classifier.two_layer import TwoLayerWeights
from tokenmargin.data.sentences import make_sentences


@pytest.fixture(scope="module")
def sentences():
    made = make_sentences(600, np.random.default_rng(0))
    return made.texts, np.array(made.labels)


@pytest.fixture(scope="module")
def three():
    """Three classes, each with words of its own among common ones."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 400)
    own = [["red", "rose"], ["green", "leaf"], ["blue", "sky"]]
    return [f"{rng.choice(own[c])} {' '.join(rng.choice(list('abcdefgh'), 4))}" for c in labels], labels


@pytest.fixture(scope="module")
def two_layers(sentences):
    return TokenSelectionClassifier(model="two-layer", dimension=16, random_state=0).fit(*sentences)


def random_weights(rng, m=9, d=6, k=1):
    return TwoLayerWeights(rng.standard_normal((m + 1, d)), rng.standard_normal(d), rng.standard_normal((d, k)))


def test_decision_of_the_training_room():
    """The model of `training`, written with Gram matrices, decides alike on texts of the tokens and a sink."""
    import torch

    from tokenmargin.training.two_layer import Bucket, _columns, _forward

    rng = np.random.default_rng(0)
    weights = random_weights(rng)
    tokens = np.array([[0, 3, 4], [2, 5, 8]])
    ids = torch.tensor(np.column_stack([tokens, [9, 9]]))
    heads = torch.tensor(np.stack([weights.prompt, weights.heads[:, 0]]))
    E, ones = torch.tensor(weights.embeddings), torch.ones(2, dtype=torch.float64)
    bucket = Bucket(ids, torch.ones(ids.shape, dtype=torch.float64), ones, ones)
    expected = _forward(E, E @ _columns(heads).T, heads.sum(1), bucket).f.numpy()
    presence = sp.csr_matrix((np.ones(6), tokens.ravel(), [0, 3, 6]), shape=(2, 9))
    # Both in double precision; the sums have at most ten terms of size 10.
    np.testing.assert_allclose(weights.decide(presence)[:, 0], expected, atol=1e-12)


@pytest.mark.parametrize("k", [2, 3])
def test_trained_and_run_alike(k):
    """The model in torch that is trained and the one in numpy that is run give the same outputs."""
    import torch

    from tokenmargin.classifier.fitting import Labelled, Settings
    from tokenmargin.classifier.two_layer_training import _padded, _TwoLayer

    rng = np.random.default_rng(1)
    holds = (rng.random((7, 9)) < 0.4).astype(float)
    holds[3] = 0  # an empty text
    presence = sp.csr_matrix(holds)
    weights = random_weights(rng, k=1 if k == 2 else k)
    data = Labelled(presence, rng.integers(0, k, 7), np.ones(7), k)
    settings = Settings("learned", 6, 4.0, 4.0, 10, 1e-4, None)
    model = _TwoLayer(data, weights, settings, np.random.RandomState(0))
    with torch.no_grad():
        outputs = model._outputs(torch.from_numpy(_padded(presence, np.arange(7)))).numpy()
    np.testing.assert_allclose(weights.decide(presence), outputs, atol=1e-12)


def test_two_layers_learn_and_explain(two_layers, sentences):
    texts, labels = sentences
    assert two_layers.score(texts, labels) > 0.8
    assert two_layers.validation_.signal
    deletion = deletion_test(two_layers, texts[:200], k=(1, 3), rng=np.random.default_rng(0))
    assert (deletion.top < deletion.random - 0.1).all()
    assert two_layers.embeddings_[0].shape == (len(two_layers.vocabulary_), 16)


def test_contributions_add_up(two_layers, sentences):
    texts = [*sentences[0][:100], "", "dreadful dreadful", "unknownword"]
    found = two_layers.explain(texts)
    np.testing.assert_allclose(found.sums, two_layers.decision_function(texts), atol=1e-12)
    one = found[3]
    assert sum(word.contribution for word in one.words) + one.sink == pytest.approx(one.decision, abs=1e-12)
    tokens = np.unique([two_layers.vocabulary_.words.index(w) for w in ("a", "dreadful")])
    logits, _ = two_layers.weights_.within(tokens)
    (told,) = two_layers.explain(["a dreadful a"])
    assert told.margin == pytest.approx(abs(logits[0] - logits[1]))
    alone = two_layers.explain([texts[3]])[0]
    assert alone.decision == one.decision  # a text is decided by itself, to the last bit


def test_same_seed_same_bits(sentences):
    texts, labels = sentences[0][:200], sentences[1][:200]
    first, second = (
        TokenSelectionClassifier(model="two-layer", dimension=8, random_state=3).fit(texts, labels) for _ in range(2)
    )
    assert np.array_equal(first.weights_.embeddings, second.weights_.embeddings)


def test_importance_adds_up(two_layers, sentences):
    table, found = two_layers.token_importance_, two_layers.explain(sentences[0])
    assert table["selected"].sum() == len(sentences[0])
    assert table["contribution"].sum() + found.sinks.mean() == pytest.approx(found.decisions.mean(), abs=1e-10)
    logits = dict(zip(two_layers.vocabulary_.names, two_layers.weights_.logits, strict=True))
    assert table["attention_logit"][0] == logits[table["token"][0]]


def test_uniform_attention_and_many_classes(three):
    texts, labels = three
    model = TokenSelectionClassifier(model="two-layer", dimension=8, random_state=0).fit(texts, labels)
    assert model.score(texts, labels) > 0.95
    assert model.decision_function(texts[:2]).shape == (2, 3)
    np.testing.assert_allclose(model.explain(texts).sums, model.decision_function(texts).max(1), atol=1e-12)
    uniform = TokenSelectionClassifier(model="two-layer", attention="uniform", random_state=0).fit(texts, labels)
    weights = uniform.explain(["red a b"])[0].words
    assert {round(word.weight, 12) for word in weights} == {0.25}  # three words and the sink


def test_long_texts(sentences, two_layers, monkeypatch):
    from tokenmargin.classifier import two_layer, two_layer_training

    texts, labels = sentences[0][:60], sentences[1][:60]
    whole = two_layers.decision_function(texts)
    monkeypatch.setattr(two_layer, "CELLS", 50)  # two or three rows at a time
    np.testing.assert_allclose(two_layers.decision_function(texts), whole, atol=1e-12)
    monkeypatch.setattr(two_layer_training, "MOST_CELLS", 500)  # one text in a batch
    assert TokenSelectionClassifier(model="two-layer", dimension=4, max_iter=1).fit(texts, labels).n_iter_ == 1
    monkeypatch.setattr(two_layer_training, "LONGEST", 5)
    with pytest.raises(ValueError, match="distinct tokens"):
        TokenSelectionClassifier(model="two-layer").fit(texts, labels)


def test_warm_start_goes_on(sentences):
    texts, labels = sentences[0][:200], sentences[1][:200]
    model = TokenSelectionClassifier(model="two-layer", dimension=8, max_iter=1, warm_start=True, random_state=0)
    first = model.fit(texts, labels).loss_curve_[0]
    assert model.fit(texts, labels).loss_curve_[0] < first


def test_files(two_layers, sentences, tmp_path):
    folder = save_model(two_layers, tmp_path / "model")
    again = load_model(folder)
    assert (again.model, again.dimension) == ("two-layer", 16)
    assert np.array_equal(again.decision_function(sentences[0]), two_layers.decision_function(sentences[0]))
    assert again.token_importance_["contribution"].tolist() == two_layers.token_importance_["contribution"].tolist()
    assert "Two softmax attention layers" in (folder / "README.md").read_text()


def test_command_line(tmp_path, capsys):
    from tokenmargin.cli import main

    folder = str(tmp_path / "model")
    assert main(["fit", "sentences", "--model", "two-layer", "--dimension", "8", "--out", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.7
    assert main(["explain", folder, "What a dreadful ferry!", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert sum(word["contribution"] for word in told["words"]) + told["sink"] == pytest.approx(told["decision"])


def test_without_torch(sentences, monkeypatch):
    monkeypatch.delitem(sys.modules, "tokenmargin.classifier.two_layer_training", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match=r"tokenmargin\[train\]"):
        TokenSelectionClassifier(model="two-layer").fit(*sentences)


@pytest.mark.parametrize("dimension", [2, 7])
def test_an_ample_dimension_changes_nothing(sentences, dimension):
    texts, labels = sentences[0][:200], sentences[1][:200]
    free = TokenSelectionClassifier(random_state=0).fit(texts, labels)
    held = TokenSelectionClassifier(dimension=dimension, random_state=0).fit(texts, labels)
    assert np.array_equal(free.decision_function(texts), held.decision_function(texts))
    E, p, v = held.embeddings_
    assert E.shape == (len(held.vocabulary_), dimension)
    np.testing.assert_allclose(E @ p, held.weights_.logits, atol=1e-12)
    np.testing.assert_allclose(E @ v, held.weights_.values, atol=1e-12)


def test_a_small_dimension_bounds_the_rank(three):
    texts, labels = three
    free = TokenSelectionClassifier(random_state=0).fit(texts, labels)
    held = TokenSelectionClassifier(dimension=2, random_state=0).fit(texts, labels)
    sizes = [
        np.linalg.svd(np.column_stack([m.weights_.logits, m.weights_.values]), compute_uv=False) for m in (free, held)
    ]
    # Rounding of the products is about 1e-16 of the largest singular value.
    assert sizes[0][2] > 0.01 * sizes[0][0]
    assert sizes[0][3] < 1e-13 * sizes[0][0]  # three dimensions hold all that training reaches with three classes
    assert sizes[1][2] < 1e-13 * sizes[1][0]
    assert held.score(texts, labels) > 0.95
    E, p, _ = held.embeddings_
    np.testing.assert_allclose(E @ p, held.weights_.logits, atol=1e-12)


def test_gradient_in_the_factors():
    rng = np.random.default_rng(2)
    rank = LowRank(rng.standard_normal(5), 3, 2)
    target = rng.standard_normal(5 + 15 + 4)

    def objective(flat):
        return 0.25 * float(((flat - target) ** 4).sum()), (flat - target) ** 3

    at = rng.standard_normal(5 * 2 + 2 + 2 * 3 + 4)
    slope = rank.through(objective, at)[1]
    # Forward differences with step 1e-7 of a quartic with slopes of some hundreds.
    np.testing.assert_allclose(
        slope, approx_fprime(at, lambda x: rank.through(objective, x)[0], 1e-7), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(("setting", "value"), [("model", "three-layer"), ("dimension", 1), ("dimension", 2.5)])
def test_bad_settings(setting, value):
    with pytest.raises(ValueError, match=setting):
        TokenSelectionClassifier(**{setting: value}).fit(["a", "b"], [0, 1])
