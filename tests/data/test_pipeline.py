"""The pipeline against a plain loop over words, and its file format."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import Stemmer
from bm25s.stopwords import STOPWORDS_EN_PLUS
from hypothesis import given
from hypothesis import strategies as st

from tokenmargin.data.pipeline import PAPER, PLAIN, Pipeline, prepare
from tokenmargin.data.prepared import PreparedFileError, load_prepared
from tokenmargin.data.sentences import OPINIONS, make_sentences

PIECES = ["[PAD]", "[UNK]", "a", "b", "ab", "##a", "##b", "##ab", "c", "##c", "don", "play", "##er"]


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(PIECES) + "\n")
    return path


def longest_pieces(word: str) -> list[str]:
    """WordPiece as defined: the longest known piece first."""
    found, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = word[start:end] if start == 0 else "##" + word[start:end]
            if piece in PIECES:
                break
        else:
            return ["[UNK]"]
        found.append(piece)
        start = end
    return found


@given(st.lists(st.text(alphabet="abcz ", max_size=30), min_size=1, max_size=5))
def test_wordpiece_is_the_longest_match(texts):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text("\n".join(PIECES))
        found = prepare(texts, [1] * len(texts), Pipeline(vocabulary=path))
    for row, i in enumerate(found.rows):
        wanted = [piece for word in texts[i].split() for piece in longest_pieces(word)]
        assert [found.vocabulary[token] for token in found.sequence(row)] == wanted
    assert found.n == sum(bool(text.split()) for text in texts)


def test_paper_pipeline_equals_a_plain_loop():
    made = make_sentences(200, np.random.default_rng(3))
    texts = [text.replace("the", "THE").replace(". ", ".<br />") for text in made.texts]
    labels = [int(label) for label in made.labels]
    found = prepare(texts, labels, replace(PAPER, minimum_count=20))
    stops = {part for word in STOPWORDS_EN_PLUS for part in re.findall(r"\w+", word)}
    stem = Stemmer.Stemmer("english").stemWord
    plain = [
        [stem(word) for word in re.findall(r"\w+", text.replace("<br />", " ").lower()) if word not in stops]
        for text in texts
    ]
    counts = Counter(word for words in plain for word in words)
    kept = [[word for word in words if counts[word] >= 20] for words in plain]
    assert [[found.vocabulary[t] for t in found.sequence(i)] for i in range(found.n)] == [
        words for words in kept if words
    ]
    assert found.vocabulary == tuple(sorted((w for w in counts if counts[w] >= 20), key=lambda w: (-counts[w], w)))
    assert [step.after for step in found.steps][-1] == len(found.ids) == sum(map(len, kept))
    assert [step.name for step in found.steps] == [
        "words",
        "stop words (nltk)",
        "stems (english)",
        "seen at least 20 times",
    ]


def test_tokens_point_at_whole_words_of_the_original(vocabulary):
    text = "Players, <b>PLAYER</b>! don't"
    found = prepare([text], [1], Pipeline(stemmer="english", vocabulary=vocabulary))
    pairs = [(found.vocabulary[t], text[a:b]) for t, (a, b) in zip(found.sequence(0), found.spans(0), strict=True)]
    assert pairs == [
        ("play", "Players"),
        ("##er", "Players"),
        ("play", "PLAYER"),
        ("##er", "PLAYER"),
        ("don", "don"),
        ("[UNK]", "t"),
    ]


def test_choices_are_kept_with_the_result(vocabulary, tmp_path):
    found = prepare(["ab c", "", "b"], [1, 1, -1], Pipeline(vocabulary=vocabulary))
    assert found.rows.tolist() == [0, 2]
    found.save(tmp_path / "text.safetensors")
    back = load_prepared(tmp_path / "text.safetensors")
    assert isinstance(back.ids, np.memmap)
    for name in ("ids", "offsets", "labels", "starts", "ends", "rows"):
        assert (getattr(back, name) == getattr(found, name)).all()
    assert back.vocabulary == found.vocabulary
    assert back.steps == found.steps
    assert back.choices["vocabulary"].startswith("vocab.txt sha256:")
    assert back.choices["stemmer"] == "none"


def test_damaged_files_are_refused(tmp_path):
    found = prepare(["a b", "b"], [1, -1], PLAIN)
    path = tmp_path / "text.safetensors"
    found.save(path)
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole[:40], b"", b"x" * 100):
        path.write_bytes(damaged)
        with pytest.raises(PreparedFileError, match="not a prepared text"):
            load_prepared(path)
    with pytest.raises(PreparedFileError, match="no such file"):
        load_prepared(tmp_path / "none")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stop_words": "french"}, "stop_words must be 'none', 'nltk' or a tuple of words"),
        ({"stemmer": "latin"}, "stemmer must be"),
        ({"minimum_count": 0}, "minimum_count must be at least 1, got 0"),
    ],
)
def test_bad_choices_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        Pipeline(**settings)


def test_bad_labels_are_named():
    with pytest.raises(ValueError, match="labels must be -1 or \\+1, got 0"):
        prepare(["a"], [0])
    with pytest.raises(ValueError, match="one number for each of the 2 texts"):
        prepare(["a", "b"], [1])


def test_generated_opinions_have_the_stated_strength():
    """Posterior of each opinion word over 4000 texts, within four standard deviations."""
    made = make_sentences(4000, np.random.default_rng(0))
    labels = np.array([int(label) for label in made.labels])
    expected_positive = sum(OPINIONS.values())
    for word, strength in OPINIONS.items():
        rows = np.array([word in text for text in made.texts])
        odds = strength / expected_positive, (1 - strength) / (len(OPINIONS) - expected_positive)
        posterior = odds[0] / sum(odds)
        spread = np.sqrt(posterior * (1 - posterior) / rows.sum())
        assert abs((labels[rows] == 1).mean() - posterior) < 4 * spread
    again = make_sentences(4000, np.random.default_rng(0))
    assert again.texts == made.texts
