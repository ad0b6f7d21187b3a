"""What a decision loses when a word is deleted wherever it stands in the text, in closed form.

The tokens that go are those whose every occurrence holds the word. With rho their share of the attention and C their
contribution, `f - b_0 = F` becomes `(F - C) / (1 - rho)^g`; a text that has no known token left gets the prior.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.vocabulary import Encoded, segment_sum

CROWDED = 0.999  # from this share on, what is left is summed anew: 1 - rho has lost three digits


def original_words(encoded: Encoded) -> Bool[Array, " pieces"]:
    """Where a word begins: pieces of one word are neighbours in a text with the same characters."""
    words, segment = encoded.words, encoded.segment
    new = np.ones(len(words.starts), bool)
    new[1:] = (
        (words.starts[1:] != words.starts[:-1]) | (words.ends[1:] != words.ends[:-1]) | (segment[1:] != segment[:-1])
    )
    return new


def deletion_effects(
    encoded: Encoded, model: TokenModel, shares: list[Array], columns: Int[Array, " n"],
    decided: tuple[Float[Array, " n"], Float[Array, " n"]], log_Z: Float[Array, " n"],
) -> Float[Array, " words"]:  # fmt: skip
    """`f` less what it is without the word, for every word of every text.

    **Arguments**
    - `shares`: the share of the attention of the token that begins at each piece, for each level.
    - `columns`: the column that is explained. `decided`: its F and f. `log_Z`: of each text.
    """
    new, segment = original_words(encoded), encoded.segment
    kinds = _word_kinds(encoded, new)
    if not len(kinds):
        return np.zeros(0)
    text_of = np.zeros(kinds.max() + 1, np.int64)
    text_of[kinds] = segment
    _, values = model.padded
    rho, gone = np.zeros(len(text_of)), np.zeros(len(text_of))
    pairs = [_covered(encoded, n, kinds, whole_words=bool(new.all())) for n in range(len(shares))]
    for ids, share, (at, kind) in zip(encoded.levels, shares, pairs, strict=True):
        rho += np.bincount(kind, share[at], len(rho))
        gone += np.bincount(kind, share[at] * values[ids[at], columns[segment[at]]], len(rho))
    known = np.sum([segment_sum(share, encoded.words.offsets) for share in shares], axis=0)[text_of]
    gone *= np.exp((1 - model.exponent) * log_Z[text_of])
    without = (
        model.intercept[columns][text_of] + (decided[0][text_of] - gone) / np.maximum(1 - rho, 1e-300) ** model.exponent
    )
    crowded = np.flatnonzero((rho > CROWDED) | (rho > known * (1 - 1e-9)))  # little or nothing is left
    lost = [_rows_of(at, kind, crowded) for at, kind in pairs]
    for row, *of_level in zip(crowded.tolist(), *lost, strict=True):
        without[row] = _left(encoded, model, of_level, text_of[row], columns)
    effects = np.where(rho > 0, decided[1][text_of] - without, 0.0)
    return effects[kinds][new]


def _rows_of(at: Array, kind: Array, asked: Array) -> list[Array]:
    """For each kind of word in `asked`, the entries of `at` that have it."""
    order = np.argsort(kind, kind="stable") if len(asked) else np.zeros(0, np.int64)
    low, high = (np.searchsorted(kind[order], asked, side) for side in ("left", "right"))
    return [at[order[a:b]] for a, b in zip(low.tolist(), high.tolist(), strict=True)]


def _word_kinds(encoded: Encoded, new: Bool[Array, " pieces"]) -> Int[Array, " pieces"]:
    """A number for each piece, equal for the pieces of equal words of one text."""
    import pyarrow as pa

    codes = encoded.words.codes.astype(np.int64)
    if not new.all():
        table: dict[tuple[int, ...], int] = {}
        heads = np.append(np.flatnonzero(new), len(new))
        spelled = [tuple(codes[low:high].tolist()) for low, high in pairwise(heads.tolist())]
        codes = np.repeat([table.setdefault(word, len(table)) for word in spelled], np.diff(heads)).astype(np.int64)
    keys = encoded.segment.astype(np.int64) << 32 | codes  # text and word in one number
    return np.asarray(pa.array(keys).dictionary_encode().indices)


def _covered(encoded: Encoded, n: int, kinds: Int[Array, " pieces"], *, whole_words: bool) -> tuple[Array, Array]:
    """Where tokens of n + 1 pieces begin, beside the kinds of word that they go with; a token once for each kind."""
    at = np.flatnonzero(encoded.levels[n] >= 0)
    found = []
    for place in range(n + 1):
        once = np.ones(len(at), bool)  # a word that stands twice in an n-gram takes it once
        for before in range(place):
            once &= kinds[at + before] != kinds[at + place]
        found.append((at[once], kinds[at[once] + place]))
    begin, kind = (np.concatenate(part) for part in zip(*found, strict=True))
    if whole_words:  # every occurrence of an n-gram holds the same words
        return begin, kind
    # Pieces: a token goes with a word only where the word covers all its occurrences in the text, so both are counted.
    _, token = np.unique(encoded.segment[at].astype(np.int64) << 32 | encoded.levels[n][at], return_inverse=True)
    number = np.zeros(len(kinds), np.int64)
    number[at] = token
    times = np.bincount(token)
    _, pair, seen = np.unique(number[begin] << 32 | kind, return_inverse=True, return_counts=True)
    whole = seen[pair] == times[number[begin]]
    return begin[whole], kind[whole]


def _left(encoded: Encoded, model: TokenModel, lost: list[Array], text: int, columns: Int[Array, " n"]) -> float:
    """f of a text without the tokens that begin at `lost`, summed anew."""
    low, high = encoded.words.offsets[text : text + 2]
    column, kept = int(columns[text]), []
    for ids, at in zip(encoded.levels, lost, strict=True):
        here = ids[low:high] if model.repeats else np.unique(ids[low:high])
        kept.append(here[(here >= 0) & ~np.isin(here, ids[at])])
    return float(model.decide_tokens(np.concatenate(kept))[column])
