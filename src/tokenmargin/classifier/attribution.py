"""Attention weights and contributions of all words of many texts at once, and the effect of deleting each word.

For each length of n-gram there is an array over the words of all texts (a level). The token that begins at a word has
its logit there; a word at which no known token begins has -inf. So softmax and sums are array operations on segments,
and several threads can work at the same time.

The effect of a deletion has a closed form. The word is deleted wherever it stands in its text, and with it go the
tokens of which every occurrence holds the word. With rho their share of the attention and C their contribution,
`f - b_0 = F` becomes `(F - C) / (1 - rho)^g`. A text that has no known token left gets the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from threadpoolctl import threadpool_limits

from tokenmargin.classifier.explanation import TokenPart
from tokenmargin.classifier.token_model import TokenModel, decided_classes
from tokenmargin.classifier.vocabulary import EncodedTexts, segment_max, segment_sum
from tokenmargin.engines import usable_cores

CHUNK = 1000  # texts handled at a time: their arrays stay in the cache
THREADS = 2
NEARLY_ALL = 0.999  # from this share of the attention on 1 - rho has lost three digits: what is left is summed anew
Result = TypeVar("Result")


def map_chunks(
    documents: Sequence[Any], work: Callable[[Sequence[Any]], Result], threads: int | None = None
) -> list[Result]:
    """The results of `work` on consecutive chunks of documents.

    **Arguments**
    - `threads`: how many chunks are worked on at the same time; two by default, one for each core if -1.
    """
    threads = THREADS if threads is None else usable_cores() if threads < 0 else max(1, threads)
    chunks = [documents[at : at + CHUNK] for at in range(0, len(documents), CHUNK)] or [documents]
    if len(chunks) == 1 or threads == 1:
        return [work(chunk) for chunk in chunks]
    with ThreadPoolExecutor(threads) as pool, threadpool_limits(1, user_api="blas"):
        return list(pool.map(work, chunks))


def attribute_texts(
    encoded: EncodedTexts, model: TokenModel, column: int | None = None
) -> tuple[Float[Array, "n k"], dict[str, Array]]:
    """f of every column, and those arrays of `Explanations` that follow from the tokens.

    **Arguments**
    - `column`: the column to explain; None for that of the class decided on.
    """
    n, offsets, segment = encoded.n, encoded.words.offsets, encoded.segment
    logits, shares, log_Z = logits_and_shares(encoded, model)
    first = np.max([segment_max(x, offsets) for x in logits], axis=0)
    _, token_values = model.padded_arrays
    # The weight e^a / Z^g of a token is its softmax share e^a / Z times this.
    amount = np.exp((1 - model.exponent) * log_Z)
    known = np.isfinite(first)
    outputs = model.decide(encoded.presence(len(model.logits), repeats=model.repeats))  # what `predict` decides by
    columns = np.full(n, column)
    if column is None:
        columns = decided_classes(outputs) if outputs.shape[1] > 1 else np.zeros(n, int)
    at = columns[segment] if outputs.shape[1] > 1 else 0
    scale = amount[segment]
    parts = [share * token_values[ids, at] * scale for ids, share in zip(encoded.levels, shares, strict=True)]
    chosen = _select_tokens(encoded, logits, first)
    rows = np.arange(n)
    lost = deletion_effects(encoded, model, shares, columns, outputs[rows, columns], log_Z)
    words = merge_pieces(encoded, (_share_among_words(shares), _share_among_words(parts)), chosen)
    return outputs, chosen | words | {
        "effects": lost,
        "baselines": model.prior[columns],
        "shifts": np.where(known, (model.intercept - model.prior)[columns], 0.0),
        "decisions": outputs[rows, columns],
    }


def logits_and_shares(encoded: EncodedTexts, model: TokenModel) -> tuple[list[Array], list[Array], Float[Array, " n"]]:
    """For each level the logit and the softmax share of the token that begins at each word; and log Z of each text."""
    offsets, segment = encoded.words.offsets, encoded.segment
    token_logits, _ = model.padded_arrays
    logits = [token_logits[ids] for ids in encoded.levels]
    top = np.maximum(np.max([segment_max(x, offsets) for x in logits], axis=0), model.sink_logit)
    shares = [np.exp(x - top[segment]) for x in logits]
    for share, times in zip(shares, _occurrence_counts(encoded) if not model.repeats else (), strict=not model.repeats):
        share /= times  # a token counts once: its occurrences divide its weight among them
    Z = np.exp(model.sink_logit - top) + sum(segment_sum(share, offsets) for share in shares)
    for share in shares:
        share /= Z[segment]
    return logits, shares, np.log(Z) + top


def token_parts(encoded: EncodedTexts, model: TokenModel, names: Sequence[str], label: int) -> tuple[TokenPart, ...]:
    """The tokens of one text, each once, in the order in which they begin, with their parts of the f of a class."""
    _, shares, log_Z = logits_and_shares(encoded, model)
    column = 0 if model.values.shape[1] == 1 else label
    amount = float(np.exp((1 - model.exponent) * log_Z[0]))
    found: list[TokenPart] = []
    for n, (ids, share) in enumerate(zip(encoded.levels, shares, strict=True)):
        at = np.flatnonzero(ids >= 0)
        tokens, first, row = np.unique(ids[at], return_index=True, return_inverse=True)
        weights = np.bincount(row, share[at])
        for token, place, weight in zip(tokens.tolist(), at[first].tolist(), weights.tolist(), strict=True):
            span = int(encoded.words.starts[place]), int(encoded.words.ends[place + n])
            part = weight * amount * float(model.values[token, column])
            found.append(TokenPart(names[token], *span, weight, part))
    return tuple(sorted(found, key=lambda part: (part.start, part.end)))


def join_attributions(
    found: Sequence[tuple[Float[Array, "n k"], dict[str, Array]]],
) -> tuple[Float[Array, "n k"], dict[str, Array]]:
    """Join what `attribute_texts` returned for consecutive chunks of texts."""
    before = np.concatenate([[0], np.cumsum([arrays["offsets"][-1] for _, arrays in found])])
    for (_, arrays), shift in zip(found, before[:-1], strict=True):
        for name in ("places", "last_places"):
            arrays[name] = arrays[name] + shift
    joined = {name: np.concatenate([arrays[name] for _, arrays in found]) for name in found[0][1] if name != "offsets"}
    lengths = np.concatenate([np.diff(arrays["offsets"]) for _, arrays in found])
    joined["offsets"] = np.concatenate([[0], np.cumsum(lengths)])
    return np.concatenate([outputs for outputs, _ in found]), joined


def _occurrence_counts(encoded: EncodedTexts) -> list[Array]:
    """For each level, how often the text holds the token that begins at each word; 1 where no token begins.

    An n-gram can occur twice only if its first n - 1 words and its last word do, so few have to be counted. That is not
    so where tokens share an id.
    """
    import pyarrow as pa

    repeats: list[Array] = []
    for n, ids in enumerate(encoded.levels):
        asked = ids >= 0
        if n and not encoded.shared:
            asked &= repeats[-1] > 1
            asked[: len(ids) - n] &= repeats[0][n:] > 1
        at = np.flatnonzero(asked)
        keys = encoded.segment[at].astype(np.int64) << 32 | ids[at]  # text and token in one number
        codes = np.asarray(pa.array(keys).dictionary_encode().indices)
        times = np.ones(len(ids))
        times[at] = np.bincount(codes)[codes] if len(at) else 1.0
        repeats.append(times)
    return repeats


def _share_among_words(amounts: list[Array]) -> Array:
    """The sum at each word of the amounts of all n-grams with it; an n-gram gives each of its words the n-th part."""
    total = amounts[0].copy()
    for n, amount in enumerate(amounts[1:], start=2):
        part = amount / n
        for place in range(n):
            total[place:] += part[: len(part) - place]
    return total


def _select_tokens(encoded: EncodedTexts, logits: list[Array], first: Array) -> dict[str, Array]:
    """For each text the token with the largest logit, where it first stands, the token that comes next, and by how
    much it is behind."""
    offsets, segment = encoded.words.offsets, encoded.segment
    selected, places = _largest_logits(encoded, logits, first)
    others = []
    for ids, x in zip(encoded.levels, logits, strict=True):
        others.append(np.where(ids == selected[segment], -np.inf, x))
    second = np.max([segment_max(x, offsets) for x in others], axis=0)
    competitors, _ = _largest_logits(encoded, others, second)
    margins = np.full(len(first), np.inf)
    more = np.isfinite(second)
    margins[more] = first[more] - second[more]
    places = np.where(np.isfinite(first), places, 0)
    length = np.zeros(len(first), np.int64)  # of the selected n-gram, less one: the level that has it at its place
    for n, ids in enumerate(encoded.levels):
        if len(ids):
            length[(ids[np.minimum(places, len(ids) - 1)] == selected) & (selected >= 0)] = n
    return {
        "selected": selected,
        "competitors": competitors,
        "margins": margins,
        "places": places,
        "last_places": places + length,
    }


def _largest_logits(encoded: EncodedTexts, logits: list[Array], largest: Array) -> tuple[Array, Array]:
    """For each text the token with the logit `largest` (the smallest id of several, -1 if none), its first place."""
    # Every level has an entry for each word: the n-gram that begins there. `minimum.at` keeps each text's smallest id.
    none, segment = np.iinfo(np.int64).max, encoded.segment
    tokens, places = np.full(len(largest), none), np.full(len(largest), none)
    # A text without a known token has the largest logit -inf, as have words at which no token begins: those must not
    # be found, so +inf is looked for.
    bound = np.where(np.isfinite(largest), largest, np.inf)[segment]
    at = [np.flatnonzero(x == bound) for x in logits]
    for ids, found in zip(encoded.levels, at, strict=True):
        np.minimum.at(tokens, segment[found], ids[found])
    # The first place comes second: if two tokens have the largest logit, only places of the smaller id count.
    for ids, found in zip(encoded.levels, at, strict=True):
        own = found[ids[found] == tokens[segment[found]]]
        np.minimum.at(places, segment[own], own)
    return np.where(tokens == none, -1, tokens), places


def merge_pieces(encoded: EncodedTexts, by_piece: Sequence[Array], chosen: dict[str, Array]) -> dict[str, Array]:
    """The arrays of `Explanations` by word: the amounts of a word's pieces are added up."""
    words, new = encoded.words, original_words(encoded)
    weights, contributions = by_piece
    places = {name: chosen[name] for name in ("places", "last_places")}
    starts, ends, offsets = words.starts, words.ends, words.offsets
    if not new.all():
        heads, row = np.flatnonzero(new), np.cumsum(new)
        weights, contributions = (np.add.reduceat(amount, heads) for amount in by_piece)
        starts, ends, offsets = starts[heads], ends[heads], np.concatenate([[0], row])[offsets]
        places = {name: row[at] - 1 for name, at in places.items()}
    return {
        "offsets": offsets, "starts": starts, "ends": ends,
        "weights": weights, "contributions": contributions, **places,
    }  # fmt: skip


def original_words(encoded: EncodedTexts) -> Bool[Array, " pieces"]:
    """Whether a word of the text begins at each piece: neighbours with the same characters are pieces of one word."""
    words, segment = encoded.words, encoded.segment
    new = np.ones(len(words.starts), bool)
    new[1:] = (
        (words.starts[1:] != words.starts[:-1]) | (words.ends[1:] != words.ends[:-1]) | (segment[1:] != segment[:-1])
    )
    return new


def deletion_effects(
    encoded: EncodedTexts, model: TokenModel, shares: list[Array], columns: Int[Array, " n"],
    decided: Float[Array, " n"], log_Z: Float[Array, " n"],
) -> Float[Array, " words"]:  # fmt: skip
    """For every word of every text, f less the f of the text without that word.

    **Arguments**
    - `shares`: for each level the share of the attention of the token that begins at each piece.
    - `columns`: for each text the column that is explained. `decided`: the f of that column.
    - `log_Z`: of each text.
    """
    new, segment = original_words(encoded), encoded.segment
    kinds = _word_kinds(encoded, new)
    if not len(kinds):
        return np.zeros(0)
    text_of = np.zeros(kinds.max() + 1, np.int64)
    text_of[kinds] = segment
    _, values = model.padded_arrays
    rho, gone = np.zeros(len(text_of)), np.zeros(len(text_of))
    # If every occurrence counts, each goes with its own words. Else a token goes only if all its occurrences do.
    alone = model.repeats or (bool(new.all()) and not encoded.shared)
    pairs = [_tokens_with_words(encoded, n, kinds, alone=alone) for n in range(len(shares))]
    for ids, share, (at, kind) in zip(encoded.levels, shares, pairs, strict=True):
        rho += np.bincount(kind, share[at], len(rho))
        gone += np.bincount(kind, share[at] * values[ids[at], columns[segment[at]]], len(rho))
    known = np.sum([segment_sum(share, encoded.words.offsets) for share in shares], axis=0)[text_of]
    gone *= np.exp((1 - model.exponent) * log_Z[text_of])
    start = model.intercept[columns][text_of]
    without = start + (decided[text_of] - start - gone) / np.maximum(1 - rho, 1e-300) ** model.exponent
    crowded = np.flatnonzero((rho > NEARLY_ALL) | (rho > known * (1 - 1e-9)))  # little or nothing is left
    lost = [_entries_of_kinds(at, kind, crowded) for at, kind in pairs]
    for row, *of_level in zip(crowded.tolist(), *lost, strict=True):
        without[row] = _output_without(encoded, model, of_level, int(text_of[row]), columns)
    effects = np.where(rho > 0, decided[text_of] - without, 0.0)
    return effects[kinds][new]


def _entries_of_kinds(at: Array, kind: Array, asked: Array) -> list[Array]:
    """For each kind of word in `asked`, the entries of `at` whose kind it is."""
    order = np.argsort(kind, kind="stable") if len(asked) else np.zeros(0, np.int64)
    low, high = (np.searchsorted(kind[order], asked, side) for side in ("left", "right"))
    return [at[order[a:b]] for a, b in zip(low.tolist(), high.tolist(), strict=True)]


def _word_kinds(encoded: EncodedTexts, new: Bool[Array, " pieces"]) -> Int[Array, " pieces"]:
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


def _tokens_with_words(
    encoded: EncodedTexts, n: int, kinds: Int[Array, " pieces"], *, alone: bool
) -> tuple[Array, Array]:
    """Pairs of a place where a token of n + 1 pieces begins and a kind of word with which the token goes.

    **Arguments**
    - `alone`: whether an occurrence goes with its words, whatever other occurrences its token has.
    """
    at = np.flatnonzero(encoded.levels[n] >= 0)
    found = []
    for place in range(n + 1):
        once = np.ones(len(at), bool)  # one pair for a word that stands twice in an n-gram
        for before in range(place):
            once &= kinds[at + before] != kinds[at + place]
        found.append((at[once], kinds[at[once] + place]))
    begin, kind = (np.concatenate(part) for part in zip(*found, strict=True))
    if alone:
        return begin, kind
    # With pieces, or where tokens share an id, a token goes with a word only if each of its occurrences in the text
    # holds the word: so the occurrences and those with the word are counted and compared.
    _, token = np.unique(encoded.segment[at].astype(np.int64) << 32 | encoded.levels[n][at], return_inverse=True)
    number = np.zeros(len(kinds), np.int64)
    number[at] = token
    times = np.bincount(token)
    _, pair, seen = np.unique(number[begin] << 32 | kind, return_inverse=True, return_counts=True)
    whole = seen[pair] == times[number[begin]]
    return begin[whole], kind[whole]


def _output_without(
    encoded: EncodedTexts, model: TokenModel, lost: list[Array], text: int, columns: Int[Array, " n"]
) -> float:
    """f of a text without the tokens that begin at the places `lost`, computed from the tokens that are left."""
    low, high = encoded.words.offsets[text : text + 2]
    column, kept = int(columns[text]), []
    for ids, at in zip(encoded.levels, lost, strict=True):
        here = ids[low:high].copy()
        here[at - low] = -1
        kept.append(here[here >= 0] if model.repeats else np.unique(here[here >= 0]))
    return float(model.decide_tokens(np.concatenate(kept))[column])
