"""Attention weights and contributions of all words of many texts at once.

Everything is an array over the words of the texts, one for each length of n-gram: the token that begins at a word has
its logit there, and a word where no known token begins has -inf. So softmax and sums are array operations on segments,
which two threads can do at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from threadpoolctl import threadpool_limits

from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.vocabulary import Encoded

__all__ = ["attribute", "in_chunks", "join_attributions", "segment_sum"]

CHUNK = 1000  # texts handled at a time: their arrays stay in the cache
THREADS = 2
Result = TypeVar("Result")


def in_chunks(documents: Sequence[Any], work: Callable[[Sequence[Any]], Result]) -> list[Result]:
    """`work` on consecutive documents, two chunks at a time."""
    chunks = [documents[at : at + CHUNK] for at in range(0, len(documents), CHUNK)] or [documents]
    if len(chunks) == 1:
        return [work(chunks[0])]
    with ThreadPoolExecutor(THREADS) as pool, threadpool_limits(1, user_api="blas"):
        return list(pool.map(work, chunks))


def attribute(encoded: Encoded, model: TokenModel) -> tuple[Float[Array, "n k"], dict[str, Array]]:
    """f of every column, and the arrays of `Explanations` that follow from the tokens, for the column decided on."""
    n, offsets, segment = encoded.n, encoded.words.offsets, encoded.segment
    token_logits, token_values = model.padded
    logits = [token_logits[ids] for ids in encoded.levels]
    first = np.max([_segment_max(x, offsets) for x in logits], axis=0)
    top = np.maximum(first, model.sink_logit)
    shares = [np.exp(x - top[segment]) for x in logits]
    for share, times in zip(shares, _repeats(encoded), strict=True):
        share /= times  # the occurrences of a token share its weight
    sink = np.exp(model.sink_logit - top)
    Z = sink + sum(segment_sum(share, offsets) for share in shares)
    for share in shares:
        share /= Z[segment]
    outputs = (sink / Z)[:, None] * model.sink_values
    for k in range(outputs.shape[1]):
        for ids, share in zip(encoded.levels, shares, strict=True):
            outputs[:, k] += segment_sum(share * token_values[ids, k], offsets)
    column = outputs.argmax(axis=1)  # with one column: that one
    at = column[segment] if outputs.shape[1] > 1 else 0
    parts = [share * token_values[ids, at] for ids, share in zip(encoded.levels, shares, strict=True)]
    chosen = _select(encoded, logits, first)
    return outputs, chosen | _per_original_word(encoded, (_spread(shares), _spread(parts)), chosen["places"]) | {
        "sinks": sink / Z * model.sink_values[column],
        "decisions": outputs[np.arange(n), column],
    }


def join_attributions(
    found: Sequence[tuple[Float[Array, "n k"], dict[str, Array]]],
) -> tuple[Float[Array, "n k"], dict[str, Array]]:
    """One answer for consecutive chunks of texts."""
    before = np.concatenate([[0], np.cumsum([arrays["offsets"][-1] for _, arrays in found])])
    for (_, arrays), shift in zip(found, before[:-1], strict=True):
        arrays["places"] = arrays["places"] + shift
    joined = {name: np.concatenate([arrays[name] for _, arrays in found]) for name in found[0][1] if name != "offsets"}
    lengths = np.concatenate([np.diff(arrays["offsets"]) for _, arrays in found])
    joined["offsets"] = np.concatenate([[0], np.cumsum(lengths)])
    return np.concatenate([outputs for outputs, _ in found]), joined


def segment_sum(values: Float[Array, " words"], offsets: Int[Array, " n_plus_1"]) -> Float[Array, " n"]:
    """Sums over consecutive segments, some of them empty.

    >>> segment_sum(np.array([1.0, 2.0, 4.0]), np.array([0, 2, 2, 3])).tolist()
    [3.0, 0.0, 4.0]
    """
    total = np.zeros(len(offsets) - 1)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        total[filled] = np.add.reduceat(values, offsets[filled])
    return total


def _segment_max(values: Array, offsets: Array) -> Array:
    largest = np.full(len(offsets) - 1, -np.inf)
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        largest[filled] = np.maximum.reduceat(values, offsets[filled])
    return largest


def _repeats(encoded: Encoded) -> list[Array]:
    """How often the text holds the token that begins at each word, for each level; 1 where none begins.

    An n-gram occurs twice only where its first n-1 words and its last one do, so few have to be counted.
    """
    import pyarrow as pa

    repeats: list[Array] = []
    for n, ids in enumerate(encoded.levels):
        asked = ids >= 0
        if n:
            asked &= repeats[-1] > 1
            asked[: len(ids) - n] &= repeats[0][n:] > 1
        at = np.flatnonzero(asked)
        keys = encoded.segment[at].astype(np.int64) << 32 | ids[at]
        codes = np.asarray(pa.array(keys).dictionary_encode().indices)
        times = np.ones(len(ids))
        times[at] = np.bincount(codes)[codes] if len(at) else 1.0
        repeats.append(times)
    return repeats


def _spread(amounts: list[Array]) -> Array:
    """Amounts of n-grams, shared by their words."""
    total = amounts[0].copy()
    for n, amount in enumerate(amounts[1:], start=2):
        part = amount / n
        for place in range(n):
            total[place:] += part[: len(part) - place]
    return total


def _select(encoded: Encoded, logits: list[Array], first: Array) -> dict[str, Array]:
    """The token with the largest logit in each text, where it first stands, and the best of the others."""
    offsets, segment = encoded.words.offsets, encoded.segment
    selected, places = _holders(encoded, logits, first)
    others = []
    for ids, x in zip(encoded.levels, logits, strict=True):
        others.append(np.where(ids == selected[segment], -np.inf, x))
    second = np.max([_segment_max(x, offsets) for x in others], axis=0)
    competitors, _ = _holders(encoded, others, second)
    margins = np.full(len(first), np.inf)
    more = np.isfinite(second)
    margins[more] = first[more] - second[more]
    return {
        "selected": selected,
        "competitors": competitors,
        "margins": margins,
        "places": np.where(np.isfinite(first), places, 0),
    }


def _holders(encoded: Encoded, logits: list[Array], largest: Array) -> tuple[Array, Array]:
    """The token with the largest logit of each text (of several the first, -1 for none), and where it first stands."""
    # Every level has an entry per word: the n-gram that begins there. `minimum.at` keeps the smallest id of each text.
    none, segment = np.iinfo(np.int64).max, encoded.segment
    tokens, places = np.full(len(largest), none), np.full(len(largest), none)
    # A text without a known token has the largest logit -inf, which must not be met by the words that begin no token.
    bound = np.where(np.isfinite(largest), largest, np.inf)[segment]
    at = [np.flatnonzero(x == bound) for x in logits]
    for ids, found in zip(encoded.levels, at, strict=True):
        np.minimum.at(tokens, segment[found], ids[found])
    # Only then the first place: of two tokens with one logit, the places of the other do not count.
    for ids, found in zip(encoded.levels, at, strict=True):
        own = found[ids[found] == tokens[segment[found]]]
        np.minimum.at(places, segment[own], own)
    return np.where(tokens == none, -1, tokens), places


def _per_original_word(encoded: Encoded, by_word: Sequence[Array], places: Array) -> dict[str, Array]:
    """Merge the pieces of one word: neighbours in a text with the same characters."""
    words, segment = encoded.words, encoded.segment
    new = np.ones(len(words.starts), bool)
    new[1:] = (
        (words.starts[1:] != words.starts[:-1]) | (words.ends[1:] != words.ends[:-1]) | (segment[1:] != segment[:-1])
    )
    weights, contributions = by_word
    starts, ends, offsets = words.starts, words.ends, words.offsets
    if not new.all():
        heads, row = np.flatnonzero(new), np.cumsum(new)
        weights, contributions = (np.add.reduceat(amount, heads) for amount in by_word)
        starts, ends, offsets = starts[heads], ends[heads], np.concatenate([[0], row])[offsets]
        places = row[places] - 1
    return {
        "offsets": offsets, "starts": starts, "ends": ends,
        "weights": weights, "contributions": contributions, "places": places,
    }  # fmt: skip
