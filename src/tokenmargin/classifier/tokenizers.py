"""From texts or lists of tokens to `Words`: the spelling of each token, and the characters it was read from.

A tokenizer is a name (`words`; `plain`, which knows no emoji and no hashtags; `paper`), a `Pipeline` for preparing
texts, a callable from a text to a list of strings, or a Hugging Face `tokenizers.Tokenizer`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy import ndarray as Array

from tokenmargin.data.pipeline import PAPER, Pipeline, cut_words, fold_word, number_tokens, pieces_in_texts
from tokenmargin.data.words import Words, find_words

Tokenizer = str | Callable[[str], list[str]] | Any
NAMED_TOKENIZERS = ("words", "plain", "paper")
DRAWN = re.compile("[\ufe0e\ufe0f]")  # these say how an emoji is drawn, not which one it is
# Scripts written without blanks: Thai to Khmer, Japanese, Chinese. Their characters are the tokens; n-grams join them.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
UNSPACED = re.compile(f"[{_UNSPACED}]")
UNSPACED_PART = re.compile(f"[{_UNSPACED}]|[^{_UNSPACED}]+")


def read_tokens(documents: Sequence[Any], tokenizer: Tokenizer) -> Words:
    """The tokens of documents; `starts` and `ends` are those of the whole word, in the text or the joined list.

    >>> found = read_tokens(["Don't stop"], "words")
    >>> [found.distinct[code] for code in found.codes], found.starts.tolist()
    (['don', 't', 'stop'], [0, 4, 6])
    """
    if len(documents) and not isinstance(documents[0], str):
        return _join_documents([_token_list(tokens) for tokens in documents])
    if isinstance(tokenizer, str):
        if tokenizer not in NAMED_TOKENIZERS:
            raise ValueError(
                f"tokenizer must be 'words', 'plain', 'paper', a callable or a tokenizers.Tokenizer, got {tokenizer!r}"
            )
        return _normalise_words(documents, tokenizer)
    if isinstance(tokenizer, Pipeline):
        return _pipeline_tokens(documents, tokenizer)
    if hasattr(tokenizer, "encode_batch"):
        return _join_documents(
            [_pieces(coding) for coding in tokenizer.encode_batch(list(documents), add_special_tokens=False)]
        )
    if callable(tokenizer):
        return _join_documents([_locate_tokens(text, tokenizer(text)) for text in documents])
    raise ValueError(
        f"tokenizer must be 'words', 'plain', 'paper', a callable or a tokenizers.Tokenizer, got {tokenizer!r}"
    )


def join_tokens(document: str | Sequence[str]) -> str:
    """The text that offsets refer to: the text itself, or the tokens of a list with a blank between."""
    return document if isinstance(document, str) else " ".join(document)


def describe_tokenizer(tokenizer: Tokenizer) -> str:
    """A short name for people."""
    if isinstance(tokenizer, str):
        return tokenizer
    return getattr(tokenizer, "__qualname__", type(tokenizer).__name__)


def _vocabulary_spelling(words: list[str], tokenizer: str) -> list[str]:
    """The spelling of each distinct word in the vocabulary; empty for a stop word."""
    if tokenizer == "paper":
        return ["".join(parts) for parts in cut_words([fold_word(word) for word in words], PAPER)]
    return [
        word.lower() if word.isascii() else DRAWN.sub("", unicodedata.normalize("NFKC", word).lower()) for word in words
    ]


def _normalise_words(texts: Sequence[str], tokenizer: str) -> Words:
    """The words of texts in the vocabulary's spelling, which is found once for each distinct word; no stop words."""
    words = find_words(texts, symbols=tokenizer == "words")
    if any(UNSPACED.search(word) for word in words.distinct if not word.isascii()):
        words = _cut_into_characters(words)
    table: dict[str, int] = {}
    names = _vocabulary_spelling(words.distinct, tokenizer)
    codes = np.array([table.setdefault(name, len(table)) if name else -1 for name in names] or [-1], np.int32)
    codes = codes[words.codes]
    kept = codes >= 0
    if kept.all():
        return Words(list(table), codes, words.starts, words.ends, words.offsets)
    offsets = np.concatenate([[0], np.cumsum(kept)])[words.offsets]
    return Words(list(table), codes[kept], words.starts[kept], words.ends[kept], offsets)


def _pipeline_tokens(texts: Sequence[str], pipeline: Pipeline) -> Words:
    """The tokens that a pipeline makes of texts, including rare ones."""
    words = find_words(texts, punctuation=pipeline.punctuation, markup=pipeline.markup)
    pieces = cut_words([fold_word(word) for word in words.distinct], pipeline)
    table = {name: code for code, name in enumerate(dict.fromkeys(piece for parts in pieces for piece in parts))}
    found = number_tokens(words, np.zeros(len(texts)), pieces, table)  # without the texts that are left empty
    lengths = np.zeros(len(texts), np.int64)
    lengths[found.rows] = np.diff(found.offsets)
    return Words(list(table), found.ids, found.starts, found.ends, np.concatenate([[0], np.cumsum(lengths)]))


def _cut_into_characters(words: Words) -> Words:
    """Cut words in scripts written without blanks into characters; other words stay whole."""
    table: dict[str, int] = {}
    parts = [UNSPACED_PART.findall(word) for word in words.distinct]
    flat = np.array([table.setdefault(part, len(table)) for pieces in parts for part in pieces], np.int32)
    sizes = np.array([len(part) for pieces in parts for part in pieces], np.int32)
    lengths = np.array([len(pieces) for pieces in parts])
    at, repeats = pieces_in_texts(words.codes, lengths)
    first = np.repeat((np.cumsum(lengths) - lengths)[words.codes], repeats)  # of the pieces of the same word
    begins = (np.cumsum(sizes) - sizes)[at] - (np.cumsum(sizes) - sizes)[first]
    starts = np.repeat(words.starts, repeats) + begins
    offsets = np.concatenate([[0], np.cumsum(repeats)])[words.offsets]
    return Words(list(table), flat[at], starts.astype(np.int32), (starts + sizes[at]).astype(np.int32), offsets)


Found = tuple[list[str], list[int], list[int]]


def _token_list(tokens: Sequence[str]) -> Found:
    """The tokens of a list, and their places in the text that they make when joined by blanks."""
    names = [str(token) for token in tokens]
    ends = np.cumsum([len(name) + 1 for name in names]) - 1
    return names, [int(end) - len(name) for end, name in zip(ends, names, strict=True)], ends.tolist()


def _locate_tokens(text: str, tokens: list[str]) -> Found:
    """Find each token in the text after the one before; one that is not found gets an empty place."""
    folded, place = text.lower(), 0
    if len(folded) != len(text):  # a few characters change length in lower case
        folded = text
    starts, ends = [], []
    for token in tokens:
        at = folded.find(token.lower(), place)
        starts.append(place if at < 0 else at)
        ends.append(place if at < 0 else at + len(token))
        place = ends[-1]
    return list(tokens), starts, ends


def _pieces(coding: Any) -> Found:
    """Subword pieces, each with the characters of its whole word."""
    spans: dict[object, tuple[int, int]] = {}
    words = [place if word is None else word for place, word in enumerate(coding.word_ids)]
    for word, (start, end) in zip(words, coding.offsets, strict=True):
        low, high = spans.get(word, (start, end))
        spans[word] = min(low, start), max(high, end)
    return list(coding.tokens), [spans[word][0] for word in words], [spans[word][1] for word in words]


def _join_documents(found: list[Found]) -> Words:
    """The words of all documents, given the tokens of each with their starts and ends."""
    table: dict[str, int] = {}
    codes = [table.setdefault(token, len(table)) for tokens, _, _ in found for token in tokens]
    flat: list[Array] = [np.array([place for document in found for place in document[k]], np.int32) for k in (1, 2)]
    offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens, _, _ in found])]).astype(np.int64)
    return Words(list(table), np.array(codes, np.int32), flat[0], flat[1], offsets)
