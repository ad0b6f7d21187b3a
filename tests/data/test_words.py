"""Finding words: against regular expressions, on any text."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenmargin.data.words import find_words

TEXTS = st.lists(st.text(alphabet="aB\u00e9\u00df9 _'-.<br/>\n&;\u4e2d\U0001f600", max_size=40), max_size=6)


@given(TEXTS)
def test_split_words_are_those_of_a_regular_expression(texts):
    words = find_words(texts, markup=False)
    assert len(words.offsets) == len(texts) + 1
    for i, text in enumerate(texts):
        wanted = [match.span() for match in re.finditer(r"[^\W_]+", text)]
        here = slice(words.offsets[i], words.offsets[i + 1])
        assert list(zip(words.starts[here].tolist(), words.ends[here].tolist(), strict=True)) == wanted
        assert [words.distinct[code] for code in words.codes[here]] == [text[a:b] for a, b in wanted]


@given(TEXTS)
def test_joined_words_are_blank_separated_without_punctuation(texts):
    words = find_words(texts, punctuation="join", markup=False)
    for i, text in enumerate(texts):
        here = slice(words.offsets[i], words.offsets[i + 1])
        wanted = [re.sub(r"[\W_]", "", part) for part in text.split()]
        assert [words.distinct[code] for code in words.codes[here]] == [word for word in wanted if word]


def test_chunks_do_not_show(monkeypatch):
    texts = [f"word{i} and <i>more</i> {'x' * i}" for i in range(30)]
    whole = find_words(texts)
    monkeypatch.setattr("tokenmargin.data.words.CHUNK", 20)
    parts = find_words(texts)
    assert [parts.distinct[code] for code in parts.codes] == [whole.distinct[code] for code in whole.codes]
    assert (parts.starts == whole.starts).all()
    assert (parts.offsets == whole.offsets).all()


def test_markup_is_blank_and_spans_stay_true():
    text = "fish &amp; chips<br />2 < 3 lone\ud800 surrogate caf\u0065\u0301"
    words = find_words([text])
    found = [text[a:b] for a, b in zip(words.starts, words.ends, strict=True)]
    assert found == ["fish", "chips", "2", "3", "lone", "surrogate", "cafe\u0301"]


def test_unknown_punctuation_is_refused():
    with pytest.raises(ValueError, match="punctuation must be 'split' or 'join', got 'keep'"):
        find_words(["a"], punctuation="keep")


@given(st.lists(st.text(alphabet="aB\u00e9 #_.", max_size=12), max_size=6))
@example(["# a", "#", "a#b", "##a", "a#", "#a"])
def test_a_hash_belongs_to_the_word_that_follows_it_at_once(texts):
    words = find_words(texts, markup=False, symbols=True)
    for i, text in enumerate(texts):
        here = slice(words.offsets[i], words.offsets[i + 1])
        wanted = re.findall(r"(?:(?<![^\W_])#)?[^\W_]+", text)
        assert [words.distinct[code] for code in words.codes[here]] == wanted
