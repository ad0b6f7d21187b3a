"""What a model decides on one text, word by word, and what it would decide without each of the words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.attribution import attribute
from tokenmargin.classifier.classifier import TokenSelectionClassifier
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.tokenizers import read_tokens
from tokenmargin.classifier.vocabulary import Encoded

__all__ = ["Decision", "WordRole", "decide_by_words"]


@dataclass(frozen=True)
class WordRole:
    """What one word of a text does: the characters `start:end` it was read from, and its part in the decision.

    - `token`: the vocabulary's spelling; None for a word the model does not know or was told to leave out.
    - `weight`, `contribution`: its share of the attention and of the output, those of n-grams shared by their words.
    - `value`: contribution over weight. `without`: the output when this word is left out.
    """

    start: int
    end: int
    token: str | None
    weight: float
    value: float
    contribution: float
    without: float


@dataclass(frozen=True)
class Decision:
    """The output of a model of two classes on one text, the sink's part in it, and the role of every word.

    The contributions of the words and the sink's add up to the output; a positive one speaks for the second class.
    """

    output: float
    sink: float
    words: tuple[WordRole, ...]

    @property
    def label(self) -> int:
        """+1 for the second class, -1 for the first, 0 when the output is exactly zero."""
        return int(np.sign(self.output))


def decide_by_words(model: TokenSelectionClassifier, text: str, *, leave_out: Iterable[int] = ()) -> Decision:
    """The decision on `text`, word by word; n-grams with a word that is left out are gone with it.

    **Arguments**
    - `model`: fitted, with two classes.
    - `leave_out`: numbers of words (in the order of the text, from 0) to decide without.
    """
    if len(model.classes_) != 2:
        raise ValueError(f"word by word only models of two classes are explained, this one has {len(model.classes_)}")
    encoded = model.vocabulary_.encode(read_tokens([text], model.tokenizer))
    word_of = _word_numbers(encoded)
    encoded = _left_out(encoded, np.isin(word_of, list(leave_out)))
    outputs, arrays = attribute(encoded, model.token_model_)
    output = float(outputs[0, 0])
    first = np.flatnonzero(np.diff(word_of, prepend=-1))  # the first piece of every word
    ids = encoded.levels[0][first]
    without = _outputs_without(encoded, word_of, model.token_model_, output)
    words = zip(
        *(arrays[name].tolist() for name in ("starts", "ends", "weights", "contributions")),
        ids.tolist(), without.tolist(), strict=True,
    )  # fmt: skip
    return Decision(
        output,
        float(arrays["sinks"][0]),
        tuple(
            WordRole(start, end, model.vocabulary_.names[token] if token >= 0 else None,
                     weight, part / weight if weight > 0 else 0.0, part, other)
            for start, end, weight, part, token, other in words
        ),
    )  # fmt: skip


def _word_numbers(encoded: Encoded) -> Int[Array, " pieces"]:
    """The number of the original word of each piece: neighbours read from the same characters are one word."""
    starts, ends = encoded.words.starts, encoded.words.ends
    new = np.ones(len(starts), bool)
    new[1:] = (starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1])
    return np.cumsum(new) - 1


def _left_out(encoded: Encoded, gone: Bool[Array, " pieces"]) -> Encoded:
    """The same without the tokens that cover a piece that is gone."""
    levels = []
    for n, ids in enumerate(encoded.levels, start=1):
        covers = gone.copy()
        for place in range(1, n):
            covers[: len(gone) - place] |= gone[place:]
        levels.append(np.where(covers, -1, ids))
    return replace(encoded, levels=levels)


def _outputs_without(
    encoded: Encoded, word_of: Int[Array, " pieces"], model: TokenModel, output: float
) -> Float[Array, " words"]:
    """The output with each word left out: a token is lost with a word that all its occurrences cover.

    With s the weight of what is lost and c its contribution the rest gives `(f - c) / (1 - s)`, which is inaccurate
    only when s is nearly 1; from one half on the rest is summed anew.
    """
    found = np.full(int(word_of.max(initial=-1)) + 1, output)
    tokens, times = np.unique(np.concatenate([ids[ids >= 0] for ids in encoded.levels]), return_counts=True)
    if not len(tokens):
        return found
    a, b = model.logits[tokens], model.values[tokens, 0]
    top = max(float(a.max()), model.sink_logit)
    e, sink = np.exp(a - top), float(np.exp(model.sink_logit - top))
    Z = float(e.sum()) + sink
    for word, lost in _lost(encoded, word_of, tokens, times):
        share = float(e[lost].sum()) / Z
        if share <= 0.5:
            found[word] = (output - float(e[lost] @ b[lost]) / Z) / (1 - share)
        else:
            found[word] = _output(np.delete(a, lost), np.delete(b, lost), model)
    return found


def _lost(encoded: Encoded, word_of: Array, tokens: Array, times: Array) -> Iterable[tuple[int, Int[Array, " lost"]]]:
    """For every word with tokens, those (rows of `tokens`) of which it covers all occurrences."""
    pairs = []
    for n, ids in enumerate(encoded.levels, start=1):
        at = np.flatnonzero(ids >= 0)
        rows = np.searchsorted(tokens, ids[at])
        covered = np.stack([word_of[at + place] for place in range(n)])
        for place in range(n):  # pieces of one word count once
            new = np.ones(len(at), bool) if place == 0 else covered[place] != covered[place - 1]
            pairs.append(np.stack([covered[place][new], rows[new]]))
    (words, rows), seen = np.unique(np.concatenate(pairs, axis=1), axis=1, return_counts=True)
    whole = seen == times[rows]
    words, rows = words[whole], rows[whole]  # sorted by word
    numbers, first = np.unique(words, return_index=True)
    return zip(numbers.tolist(), np.split(rows, first)[1:], strict=True)


def _output(logits: Array, values: Array, model: TokenModel) -> float:
    """The softmax mean of some values and the sink's."""
    top = max(float(logits.max(initial=-np.inf)), model.sink_logit)
    e, sink = np.exp(logits - top), float(np.exp(model.sink_logit - top))
    return float((e @ values + sink * model.sink_values[0]) / (e.sum() + sink))
