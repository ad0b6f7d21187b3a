"""Find the words of many texts at once, and where each stands in the text it came from.

Texts are joined, turned into an array of code points, and cut by array operations, without a loop over words. Words are
kept as written; later steps (lower case, stems, pieces) are done once for each distinct word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int, UInt8
from numpy import ndarray as Array

PUNCTUATION = ("split", "join")
MARKUP = re.compile(r"<[^<>\n]{1,500}>|&(?:#[0-9]{1,7}|#x[0-9a-fA-F]{1,6}|[A-Za-z]{2,8});")
BLANK, LETTER, OTHER, SYMBOL, JOINER = 0, 1, 2, 3, 4
HASH = ord("#")
LAST_PLANE = 0x33FFF  # the last plane with letters in it; what follows is private use
CHUNK = 4_000_000  # characters handled at a time, which bounds the memory


@dataclass(frozen=True, eq=False)
class Words:
    """The words of `n` texts, in order.

    **Attributes**
    - `distinct`: the distinct spellings.
    - `codes`: for each word its row in `distinct`.
    - `starts`, `ends`: the characters `text[start:end]` that each word was read from.
    - `offsets`: the words of text `i` are `offsets[i]:offsets[i + 1]`.
    """

    distinct: list[str]
    codes: Int[Array, " words"]
    starts: Int[Array, " words"]
    ends: Int[Array, " words"]
    offsets: Int[Array, " n_plus_1"]


def find_words(
    texts: Sequence[str], *, punctuation: str = "split", markup: bool = True, symbols: bool = False
) -> Words:
    """Cut texts into words: runs of letters, digits and combining marks.

    **Arguments**
    - `punctuation`: `split` ends a word at punctuation (`don't` is `don` and `t`); `join` drops it inside a
        word (`dont`).
    - `symbols`: whether emoji and other pictures are words, each by itself, and `#` belongs to the word it begins.
    - `markup`: whether tags and character references (`<br />`, `&amp;`) count as blanks.

    >>> words = find_words(["It's <br />GOOD."])
    >>> [words.distinct[code] for code in words.codes], words.starts.tolist()
    (['It', 's', 'GOOD'], [0, 3, 11])
    >>> find_words(["It's <br />GOOD."], punctuation="join").distinct
    ['Its', 'GOOD']
    >>> find_words(["#late again \U0001f621\U0001f621"], symbols=True).distinct
    ['#late', 'again', '\U0001f621']
    """
    import pyarrow as pa

    if punctuation not in PUNCTUATION:
        raise ValueError(f"punctuation must be 'split' or 'join', got {punctuation!r}")
    parts = [_cut_chunk(chunk, punctuation, markup, symbols) for chunk in _chunks(texts)]
    if not parts:
        empty = np.zeros(0, np.int32)
        return Words([], empty, empty, empty, np.zeros(1, np.int64))
    coded = pa.chunked_array([part[0] for part in parts]).unify_dictionaries()
    codes = np.concatenate([np.asarray(chunk.indices) for chunk in coded.chunks])
    starts, ends, counts = (np.concatenate([part[k] for part in parts]) for k in (1, 2, 3))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Words(coded.chunk(0).dictionary.to_pylist(), codes, starts, ends, offsets)


def _chunks(texts: Sequence[str]) -> list[list[str]]:
    """Runs of consecutive texts with about `CHUNK` characters each."""
    chunks: list[list[str]] = []
    size = CHUNK
    for text in texts:
        if size >= CHUNK:
            chunks.append([])
            size = 0
        chunks[-1].append(text)
        size += len(text) + 1
    return chunks


@lru_cache(maxsize=1)
def _kinds() -> UInt8[Array, " codepoints"]:
    """The kind of each code point: part of words, blank, or other (punctuation)."""
    kinds = np.full(0x110000, OTHER, np.uint8)
    for code in range(LAST_PLANE + 1):
        character = chr(code)
        if character.isalnum():
            kinds[code] = LETTER
        elif character.isspace():
            kinds[code] = BLANK
        elif code > 0x2FF and unicodedata.category(character)[0] == "M":
            kinds[code] = LETTER
    return kinds


@lru_cache(maxsize=1)
def _kinds_with_symbols() -> UInt8[Array, " codepoints"]:
    """The kinds with two more: pictures, and what joins or colours them (variation selectors, joiners, skin tones)."""
    kinds = _kinds().copy()
    for code in range(0x80, LAST_PLANE + 1):
        if kinds[code] == OTHER and unicodedata.category(chr(code)) == "So":
            kinds[code] = SYMBOL
    kinds[[0x200D, 0xFE0E, 0xFE0F, *range(0x1F3FB, 0x1F400)]] = JOINER
    return kinds


def _symbol_breaks(points: Array, kinds: Array) -> Bool[Array, " characters"]:
    """Turn pictures and the `#` before a word into letters, in `kinds`; returns where a word begins in any case."""
    hashes = np.flatnonzero(points == HASH)
    if len(hashes):
        after = kinds[np.minimum(hashes + 1, len(kinds) - 1)] == LETTER
        before = np.where(hashes > 0, kinds[hashes - 1], OTHER) == LETTER
        kinds[hashes[after & ~before & (hashes + 1 < len(kinds))]] = LETTER
    cut = np.zeros(len(kinds), bool)
    symbols, joiners = np.flatnonzero(kinds == SYMBOL), np.flatnonzero(kinds == JOINER)
    cut[symbols] = True
    cut[np.minimum(symbols + 1, len(kinds) - 1)] = True
    for at in joiners.tolist():  # few: each belongs to the picture before it, and U+200D also joins the next one
        joined = at > 0 and kinds[at - 1] in (SYMBOL, JOINER)
        kinds[at] = JOINER if joined else OTHER
        if joined:
            cut[at] = False
            if at + 1 < len(cut):
                cut[at + 1] = points[at] != 0x200D
    kinds[(kinds == SYMBOL) | (kinds == JOINER)] = LETTER
    return cut


def _cut_chunk(texts: list[str], punctuation: str, markup: bool, symbols: bool) -> tuple[object, Array, Array, Array]:
    """The words of a chunk as a dictionary array, their starts and ends, and how many words each text has."""
    # All texts are one array of code points, and `letters` the places of letters in it. A word is a run of letters: in
    # `letters` from entry `heads` to entry `tails`.
    joined = "\n".join(texts)
    points = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = (_kinds_with_symbols() if symbols else _kinds())[points]
    if markup:
        for match in MARKUP.finditer(joined):
            kinds[match.start() : match.end()] = BLANK
    cut = _symbol_breaks(points, kinds) if symbols else None
    letters = np.flatnonzero(kinds == LETTER)
    begins = np.concatenate([[0], np.cumsum([len(text) + 1 for text in texts])])
    if not letters.size:
        return _encode(points[letters], letters), *(np.zeros(0, np.int32),) * 2, np.zeros(len(texts), np.int64)
    if punctuation == "split":
        apart = np.diff(letters) > 1
        breaks = np.flatnonzero(apart if cut is None else apart | cut[letters[1:]]) + 1
    else:
        breaks = np.flatnonzero(np.diff(np.cumsum(kinds == BLANK)[letters]) > 0) + 1
    heads = np.concatenate([[0], breaks])
    tails = np.concatenate([breaks, [letters.size]]) - 1
    starts, ends = letters[heads], letters[tails] + 1
    bounds = np.searchsorted(starts, begins)
    counts = np.diff(bounds)
    shift = np.repeat(begins[:-1], counts)  # from places in the chunk to places in the text
    return _encode(points[letters], heads), (starts - shift).astype(np.int32), (ends - shift).astype(np.int32), counts


def _encode(points: Array, heads: Array) -> object:
    """An Arrow dictionary array of words, given their code points end to end and where each begins."""
    import pyarrow as pa

    width = 1 + (points > 0x7F).astype(np.int32) + (points > 0x7FF) + (points > 0xFFFF)
    ends = np.concatenate([[0], np.cumsum(width)]).astype(np.int32)
    offsets = np.append(ends[heads], ends[-1])
    data = points.tobytes().decode("utf-32-le", "replace").encode("utf-8")
    strings = pa.StringArray.from_buffers(len(heads), pa.py_buffer(offsets), pa.py_buffer(data))
    return strings.dictionary_encode()
