"""Corpus statistics against plain loops over the formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.instances import k_level_corpus, selective_corpus, varied_selective_corpus
from tokenmargin.problem.next_token import NextTokenProblem

WORDS = st.sampled_from("abcdef")


@st.composite
def corpora(draw, equal_lengths=False):
    n = draw(st.integers(1, 6))
    length = draw(st.integers(1, 5))
    sizes = [length] * n if equal_lengths else draw(st.lists(st.integers(1, 5), min_size=n, max_size=n))
    sequences = [draw(st.lists(WORDS, min_size=k, max_size=k)) for k in sizes]
    return sequences, draw(st.lists(st.sampled_from([-1, 1]), min_size=n, max_size=n))


@given(corpora())
def test_statistics_are_the_formulas(drawn):
    sequences, labels = drawn
    corpus = TokenCorpus.of(sequences, labels)
    for s, word in enumerate(corpus.vocabulary):
        share = sum(y * x.count(word) / len(x) for x, y in zip(sequences, labels, strict=True)) / len(sequences)
        up = sum(x.count(word) for x, y in zip(sequences, labels, strict=True) if y == 1)
        down = sum(x.count(word) for x, y in zip(sequences, labels, strict=True) if y == -1)
        # a handful of additions of numbers of at most 5
        assert corpus.signed_share[s] == pytest.approx(share, abs=1e-14)
        assert corpus.signed_frequency[s] == (up - down) / sum(map(len, sequences))
        assert corpus.posterior_difference[s] == (up - down) / (up + down)
        assert corpus.sole_label[s] == (1 if down == 0 else -1 if up == 0 else 0)
        assert corpus.counts[:, s].tolist() == [down, up]


@given(corpora(equal_lengths=True))
def test_cancelling_frequencies_are_exactly_zero(drawn):
    sequences, labels = drawn
    corpus = TokenCorpus.of(sequences, labels)
    negative, positive = corpus.counts
    assert (corpus.token_class == np.sign(positive - negative)).all()
    np.testing.assert_array_equal(corpus.signed_share, corpus.signed_frequency)


def test_the_printed_frequency_counts_occurrences_and_the_share_weighs_texts():
    texts = ["good good good film", "good film", "bad film", "bad bad bad bad good film"]
    corpus = TokenCorpus.of([text.split() for text in texts], [1, 1, -1, -1])
    good, film, bad = (corpus.vocabulary.index(word) for word in ("good", "film", "bad"))
    assert corpus.posterior_difference[good] == 0.6  # 4 times against 1
    assert corpus.signed_frequency[[good, film, bad]].tolist() == [3 / 14, 0, -5 / 14]
    assert corpus.token_class[film] == 0  # twice under either label: irrelevant by Definition 1
    assert corpus.signed_share[film] == pytest.approx((1 / 4 + 1 / 2 - 1 / 2 - 1 / 6) / 4, rel=1e-12, abs=0)


@given(corpora())
def test_assumption_4_by_its_definition(drawn):
    sequences, labels = drawn
    corpus = TokenCorpus.of(sequences, labels)
    alpha = dict(zip(corpus.vocabulary, corpus.signed_frequency, strict=True))
    complete = {w for w, sign in zip(corpus.vocabulary, corpus.sole_label, strict=True) if sign}

    def fine(sequence):
        decisive = [w for w in sequence if w in complete]
        return len(decisive) == 1 and all(alpha[w] == 0 for w in sequence if w not in complete)

    broken = [i for i, sequence in enumerate(sequences) if not fine(sequence)]
    assert [i for i, _ in corpus.assumption4().offending] == broken


def test_offending_sequences_are_named_with_their_tokens():
    corpus = TokenCorpus.of([["good", "great"], ["bad", "film"], ["bad", "bad"]], [1, -1, -1])
    reasons = dict(corpus.assumption4().offending)
    assert "good, great" in reasons[0]
    assert set(reasons) == {0, 1, 2}
    mixed = TokenCorpus.of([["good", "film"], ["bad", "film"], ["good2", "film"]], [1, -1, 1])
    assert "film is neither" in mixed.assumption4().offending[0][1]


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize(("n", "T", "irrelevant"), [(4, 2, None), (4, 3, 2), (8, 4, 3), (6, 5, 20)])
def test_selective_corpora_satisfy_assumption_4(n, T, irrelevant, equal, repeats):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        corpus = selective_corpus(n, T, rng=rng, irrelevant=irrelevant, equal=equal, repeats=repeats)
        assert corpus.assumption4().holds
        sizes = np.abs(corpus.signed_frequency[corpus.sole_label != 0])
        assert (len(set(sizes.tolist())) == 1) == equal
        assert set(range(corpus.size)) == set(corpus.tokens.tolist())


@pytest.mark.parametrize(("n", "T"), [(2, 2), (4, 3), (8, 4), (6, 5)])
def test_varied_corpora_satisfy_assumption_4_and_vary(n, T):
    corpora = [varied_selective_corpus(n, T, rng=np.random.default_rng(seed)) for seed in range(40)]
    assert all(corpus.assumption4().holds and (corpus.lengths == T).all() for corpus in corpora)
    assert all(set(range(corpus.size)) == set(corpus.tokens.tolist()) for corpus in corpora)
    repeated = [any(len(set(row)) < T for row in corpus.index.tolist()) for corpus in corpora]
    assert any(repeated) == (T > 2)  # one irrelevant token has nothing to repeat
    unequal = [len(set(np.abs(c.signed_frequency[c.sole_label != 0]).tolist())) > 1 for c in corpora]
    assert any(unequal) == (n > 2)


def test_one_irrelevant_token():
    corpus = selective_corpus(4, 3, rng=np.random.default_rng(0), irrelevant=1, repeats=True)
    assert (corpus.sole_label == 0).sum() == 1
    assert corpus.assumption4().holds


def test_k_level_sizes_and_law():
    corpus = k_level_corpus(2000, 64, rng=np.random.default_rng(0))
    assert corpus.size == 2048
    relevant = np.array([not w.startswith("irrelevant") for w in corpus.vocabulary])
    assert relevant.sum() == 1084
    share = relevant[corpus.tokens].mean()
    assert abs(share - 0.05) < 5 * np.sqrt(0.05 * 0.95 / corpus.tokens.size)
    # level 8, delta = 0.02: a positive token's posterior is 0.98 - 0.02 (35)
    level = np.array([w.startswith("+8.") for w in corpus.vocabulary])
    negative, positive = corpus.counts[:, level].sum(axis=1)
    total = negative + positive
    assert abs(positive / total - 0.98) < 5 * np.sqrt(0.02 * 0.98 / total)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda rng: selective_corpus(3, 3, rng=rng), "even"),
        (lambda rng: selective_corpus(4, 4, rng=rng, irrelevant=1), "repeats=True"),
        (lambda rng: varied_selective_corpus(4, 1, rng=rng), "T at least 2"),
        (lambda rng: selective_corpus(2, 3, rng=rng, equal=False), "n >= 4"),
        (lambda rng: TokenCorpus.of([], []), "at least one sequence"),
        (lambda rng: TokenCorpus.of([["a"]], [0]), "-1 or"),
        (lambda rng: TokenCorpus(np.array([5]), np.array([1]), np.array([1.0]), ("a",)), "vocabulary"),
        (lambda rng: TokenCorpus(np.array([0]), np.array([2]), np.array([1.0]), ("a",)), "lengths"),
    ],
)
def test_errors_say_what_to_do(make, words):
    with pytest.raises(ValueError, match=words):
        make(np.random.default_rng(0))


@pytest.mark.parametrize(
    ("kind", "labels"), [(TokenCorpus, np.ones(1)), (NextTokenProblem, np.ones(1, dtype=np.int64))]
)
def test_arrays_stay_their_owners(kind, labels):
    """What is posed is read-only; the arrays it was made of may go on to be written to."""
    given = [np.array([0, 1]), np.array([2]), labels]
    posed = kind(*given, ("a", "b"))
    assert all(array.flags.writeable for array in given)
    assert not any(array.flags.writeable for array in (posed.tokens, posed.lengths, posed.labels))
