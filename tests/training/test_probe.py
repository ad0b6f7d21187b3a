"""The probe against independent computations: scipy's rank correlation, loops, and the max-margin engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.gpu_training import PLANS, load_corpus, main
from scipy.stats import spearmanr
from tests.oracles.trained_models import as_problem, selected

from tokenmargin.margin import max_margin
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.instances import balanced_sequences, selective_corpus, some_sequences
from tokenmargin.selection import attention_weights, cosine
from tokenmargin.training.batches import TokenData
from tokenmargin.training.config import TrainingConfig
from tokenmargin.training.one_layer import OneLayer
from tokenmargin.training.parameters import AdamW, initial_state
from tokenmargin.training.probe import (
    alignment,
    attention_mass,
    evaluate,
    learned_direction,
    token_scores,
    train_observed,
)


@pytest.fixture
def corpus() -> TokenCorpus:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 9, 60)
    return TokenCorpus(
        rng.integers(0, 25, lengths.sum()), lengths, rng.choice([-1.0, 1.0], 60), tuple(map(str, range(25)))
    )


@pytest.fixture
def model(corpus) -> OneLayer:
    offsets = np.append(0, np.cumsum(corpus.lengths))
    data = TokenData.of(corpus.tokens, offsets, corpus.labels, m=corpus.size, dtype=torch.float64)
    model = OneLayer(data, initial_state(25, 30, seed=0, scales=(4.0, 4.0, 1.0), dtype=torch.float64), AdamW())
    model.run(torch.arange(60), 20, first=0, last=3, rate=0.01)
    return model


def test_alignment_is_spearmans(corpus, model):
    scores = token_scores(model)
    found = alignment(scores, corpus)
    posterior = corpus.posterior_difference
    # Sums of products of some tens of ranks, halves of integers.
    assert found.rho_v == pytest.approx(spearmanr(scores[1], posterior).statistic, abs=1e-12)
    assert found.rho_p == pytest.approx(spearmanr(scores[0], np.abs(posterior)).statistic, abs=1e-12)
    flat = alignment(np.zeros((2, 25)), corpus)
    assert np.isnan(flat.rho_v)


def test_problem_of_a_trained_model_computes_what_the_model_does(corpus, model):
    rows = np.array([3, 0, 41])
    problem = as_problem(model.state, corpus, rows)
    p = model.state.prompt.numpy()
    f = PromptObjective(problem).outputs(p)
    wanted = corpus.labels[rows] * model.outputs(torch.as_tensor(rows)).numpy()
    # Outputs of size one, in a handful of dimensions; the same below.
    np.testing.assert_allclose(f, wanted, rtol=0, atol=1e-12)
    found = evaluate(model, model.data, batch=7)
    margins = corpus.labels * model.outputs(torch.arange(60)).numpy()
    # As above.
    assert found.loss == pytest.approx(np.log1p(np.exp(-margins)).mean(), abs=1e-12)
    assert found.accuracy == (margins > 0).mean()


def test_selection_and_mass_by_loops(corpus, model):
    logits = token_scores(model)[0]
    for i, token in enumerate(selected(logits, corpus)):
        row = corpus.index[i, : corpus.lengths[i]]
        assert logits[token] == logits[row].max()
    problem = as_problem(model.state, corpus, np.arange(corpus.n))
    weights = attention_weights(problem.keys, model.state.prompt.numpy())
    counts = corpus.counts.sum(axis=0)
    clear = np.abs(corpus.posterior_difference) * np.sqrt(counts) > 2
    kind = np.where(clear, np.sign(corpus.posterior_difference), 0)[corpus.index]
    mass = attention_mass(logits, corpus)
    for name, value in (("negative", -1), ("irrelevant", 0), ("positive", 1)):
        # As above, summed over sixty texts.
        assert mass[name] == pytest.approx((weights * corpus.mask)[(kind == value)].sum() / corpus.n, abs=1e-12)
    assert mass["negative uniform"] + mass["irrelevant uniform"] + mass["positive uniform"] == pytest.approx(
        1, rel=1e-12, abs=0
    )


def test_learned_direction_is_the_max_margin_of_the_learned_selection():
    corpus = selective_corpus(6, 4, rng=np.random.default_rng(2))
    state = initial_state(corpus.size, 40, seed=1, dtype=torch.float64)
    found = learned_direction(state, corpus)
    assert found.margin.status == "optimal"
    problem = as_problem(state, corpus, np.arange(corpus.n))
    logits = problem.keys.logits(state.prompt.numpy())
    solution = max_margin(problem, np.where(corpus.mask, logits, -np.inf).argmax(axis=1))
    # A cosine is quadratic in the angle of two certified vectors.
    assert cosine(problem.keys, solution.vector, found.margin.vector) == pytest.approx(1, abs=1e-9)
    # The angle of the two to first order: the square root of their residuals at worst, 1e-7.
    assert found.cosine == pytest.approx(cosine(problem.keys, solution.vector, state.prompt.numpy()), abs=1e-6)


def test_subsets_keep_sequences_and_vocabulary(corpus):
    part = some_sequences(corpus, np.array([5, 2]))
    assert part.tokens.tolist() == [*corpus.index[2, : corpus.lengths[2]], *corpus.index[5, : corpus.lengths[5]]]
    assert part.vocabulary == corpus.vocabulary
    even = balanced_sequences(corpus, np.random.default_rng(0))
    assert (
        (even.labels > 0).sum() == (even.labels < 0).sum() == min((corpus.labels > 0).sum(), (corpus.labels < 0).sum())
    )


def test_study_reads_carried_ids_and_writes_two_files(tmp_path):
    from tokenmargin.data.pipeline import PLAIN, prepare
    from tokenmargin.data.sentences import make_sentences

    made = make_sentences(300, np.random.default_rng(0))
    prepared = prepare(made.texts, [int(label) for label in made.labels], PLAIN)
    prepared.save_ids(tmp_path / "yelp.npz")
    corpus = load_corpus("yelp", tmp_path)
    assert (corpus.tokens == prepared.ids).all()
    trial = ["one-layer", "--data", str(tmp_path), "--out", str(tmp_path / "out"), "--device", "cpu"]
    main([*trial, "--only", "yelp one-layer paper", "--epochs", "1", "--dimension", "8"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "results-one-layer.json",
        "scores-one-layer.npz",
    ]
    with np.load(tmp_path / "out" / "scores-one-layer.npz") as file:
        assert file["yelp one-layer paper seed 0/scores"].shape == (2, corpus.size)
    config = TrainingConfig(dimension=8, epochs=3, rate=1e-3)
    _, record, _ = train_observed(config, corpus, device="cpu")
    assert record["final rho_v"] == record["metrics"][-1]["rho_v"]
    cut, earlier, _ = train_observed(config, corpus, device="cpu", budget=0.0, folder=tmp_path / "keep")
    assert cut.status == "out of time"
    whole, resumed, _ = train_observed(config, corpus, device="cpu", folder=tmp_path / "keep")
    assert whole.status == "finished"
    assert resumed["seconds"] > earlier["seconds"] > 0
    assert resumed["metrics"] == record["metrics"]


def test_every_plan_has_distinct_names():
    for jobs in PLANS.values():
        names = [job.name for job in jobs]
        assert len(set(names)) == len(names)
