"""Which words decided: attention weight and contribution of every word of every text, exact to rounding.

A decision is a sum over tokens, `f = sum_s weight_s value_s`, so the contributions `weight * value` add up to it:
nothing is estimated. The weight of a token that occurs several times is shared by its occurrences, and that of an
n-gram by its words. The sink, which every text has, carries the rest.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.estimator.encoder import Encoded, Vocabulary
from tokenmargin.estimator.solver import Weights
from tokenmargin.estimator.tokenizers import Tokenizer, read_tokens

__all__ = ["Explanation", "Explanations", "WordPart", "explain_all", "explain_encoded"]


CHUNK = 2000  # texts explained at a time


@dataclass(frozen=True)
class WordPart:
    """A word of the text: its characters `start:end`, its share of the attention and of the decision."""

    start: int
    end: int
    weight: float
    contribution: float


@dataclass(frozen=True)
class Explanation:
    """Why one text was decided as it was.

    **Attributes**
    - `label`, `decision`, `probability`: the class, its decision value f and its probability. With two classes f speaks
        for the second when positive.
    - `words`: every word the model knows, in order. `sink`: the contribution of the sink; with those of the words it
        adds up to `decision`.
    - `selected`: the token with the largest logit, None in a text without known words; `span`: where it first stands.
    - `competitor`, `margin`: the token that came next, and by how much the selected one's logit beats it (infinite
        when there is no other).
    """

    text: str
    label: Any
    decision: float
    probability: float
    words: tuple[WordPart, ...]
    sink: float
    selected: str | None
    span: tuple[int, int] | None
    competitor: str | None
    margin: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        words = [{**vars(word), "word": self.text[word.start : word.end]} for word in self.words]
        label = self.label.item() if isinstance(self.label, np.generic) else self.label
        return {**vars(self), "label": label, "words": words}

    def _repr_html_(self) -> str:
        """The text with its words coloured: green speaks for the decision's sign +, orange for -."""
        largest = max((abs(word.contribution) for word in self.words), default=0.0) or 1.0
        out, place = [], 0
        for word in self.words:
            strength = abs(word.contribution) / largest
            colour = f"rgba({'0,150,110' if word.contribution > 0 else '220,95,0'},{0.75 * strength:.3f})"
            note = f"weight {word.weight:.4f}, contribution {word.contribution:+.4f}"
            out.append(html.escape(self.text[place : word.start]))
            shown = html.escape(self.text[word.start : word.end])
            chosen = ";outline:2px solid" if self.span == (word.start, word.end) else ""
            out.append(f'<mark style="background:{colour};color:inherit{chosen}" title="{note}">{shown}</mark>')
            place = word.end
        return f"<p>{''.join(out)}{html.escape(self.text[place:])}</p>"


@dataclass(frozen=True, eq=False)
class Explanations(Sequence[Explanation]):
    """Explanations of many texts, kept as arrays; `explanations[i]` is the `Explanation` of text i.

    **Attributes**
    - `decisions`: f of the decided class (with two classes: of the second). `labels`, `probabilities`: of that class.
    - `offsets`: the words of text `i` are `offsets[i]:offsets[i + 1]` in `starts`, `ends`, `weights`, `contributions`.
    - `sinks`: the sink's contribution. `sums`: contributions of the words plus the sink's, equal to `decisions`.
    - `selected`, `competitors`: token ids, -1 for none. `margins`: their difference of logits.
    """

    texts: Sequence[str]
    names: Sequence[str]
    labels: Array
    decisions: Float[Array, " n"]
    probabilities: Float[Array, " n"]
    offsets: Int[Array, " n_plus_1"]
    starts: Int[Array, " words"]
    ends: Int[Array, " words"]
    weights: Float[Array, " words"]
    contributions: Float[Array, " words"]
    sinks: Float[Array, " n"]
    selected: Int[Array, " n"]
    places: Int[Array, " n"]
    competitors: Int[Array, " n"]
    margins: Float[Array, " n"]

    @property
    def sums(self) -> Float[Array, " n"]:
        """The contributions of each text, added up."""
        return self.sinks + _segment_sum(self.contributions, self.offsets)

    def __len__(self) -> int:
        return len(self.decisions)

    def __iter__(self) -> Iterator[Explanation]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        where = slice(self.offsets[i], self.offsets[i + 1])
        parts = zip(*(getattr(self, name)[where].tolist() for name in
                      ("starts", "ends", "weights", "contributions")), strict=True)  # fmt: skip
        chosen, rival, place = int(self.selected[i]), int(self.competitors[i]), int(self.places[i])
        return Explanation(
            text=self.texts[i],
            label=self.labels[i],
            decision=float(self.decisions[i]),
            probability=float(self.probabilities[i]),
            words=tuple(WordPart(*part) for part in parts),
            sink=float(self.sinks[i]),
            selected=self.names[chosen] if chosen >= 0 else None,
            span=(int(self.starts[place]), int(self.ends[place])) if chosen >= 0 else None,
            competitor=self.names[rival] if rival >= 0 else None,
            margin=float(self.margins[i]),
        )


def _segment_sum(values: Array, offsets: Array) -> Array:
    """Sums over consecutive segments, some of them empty."""
    segment = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return np.bincount(segment, values, minlength=len(offsets) - 1)


@dataclass(frozen=True, eq=False)
class _Occurrences:
    """Known tokens one by one: id, text, first word, number of words, and how often the text has it."""

    ids: Array
    text: Array
    first: Array
    length: Array
    times: Array


def _occurrences(encoded: Encoded, m: int) -> _Occurrences:
    import pyarrow as pa

    first = [np.flatnonzero(ids >= 0) for ids in encoded.levels]
    ids = np.concatenate([level[at] for level, at in zip(encoded.levels, first, strict=True)])
    length = np.repeat(np.arange(1, len(first) + 1), [len(at) for at in first])
    at = np.concatenate(first)
    text = encoded.segment[at]
    coded = np.asarray(pa.array(text.astype(np.int64) * m + ids).dictionary_encode().indices)
    times = np.bincount(coded)[coded] if len(coded) else np.zeros(0, int)
    return _Occurrences(ids, text, at, length, times)


def explain_encoded(encoded: Encoded, weights: Weights) -> tuple[Float[Array, "n k"], dict[str, Any]]:
    """f of every column, and the arrays of `Explanations` that follow from the tokens, for the column decided on."""
    found, n = _occurrences(encoded, len(weights.logits)), encoded.n
    top = np.full(n, weights.sink_logit)
    logits = weights.logits[found.ids]
    np.maximum.at(top, found.text, logits)
    e = np.exp(logits - top[found.text]) / found.times
    sink = np.exp(weights.sink_logit - top)
    Z = sink + np.bincount(found.text, e, minlength=n)
    share = e / Z[found.text]
    outputs = (sink / Z)[:, None] * weights.sink_values
    for k in range(outputs.shape[1]):
        outputs[:, k] += np.bincount(found.text, share * weights.values[found.ids, k], minlength=n)
    column = outputs.argmax(axis=1)  # with one column: that one
    parts = share * weights.values[found.ids, column[found.text]]
    words = len(encoded.words.codes)
    by_word = [
        np.bincount(found.first, share / found.length, words),
        np.bincount(found.first, parts / found.length, words),
    ]
    for n_words in range(2, int(found.length.max(initial=1)) + 1):
        long = found.length >= n_words
        for total, amount in zip(by_word, (share, parts), strict=True):
            total += np.bincount(found.first[long] + n_words - 1, amount[long] / found.length[long], words)
    sinks = sink / Z * weights.sink_values[column]
    chosen = _select(found, logits, n)
    return outputs, _per_original_word(encoded, by_word, chosen) | {
        "sinks": sinks,
        "decisions": outputs[np.arange(n), column],
        "margins": chosen["margins"],
        "selected": chosen["selected"],
        "competitors": chosen["competitors"],
    }


def explain_all(
    documents: Sequence[Any], tokenizer: Tokenizer, vocabulary: Vocabulary, weights: Weights
) -> tuple[Float[Array, "n k"], dict[str, Any]]:
    """`explain_encoded` for documents, in chunks on two threads; the chunks change no digit."""
    chunks = [documents[at : at + CHUNK] for at in range(0, len(documents), CHUNK)] or [documents]

    def work(chunk: Sequence[Any]) -> tuple[Array, dict[str, Any]]:
        return explain_encoded(vocabulary.encode(read_tokens(chunk, tokenizer)), weights)

    if len(chunks) == 1:
        return work(chunks[0])
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(work, chunks))
    before = np.concatenate([[0], np.cumsum([arrays["offsets"][-1] for _, arrays in found])])
    for (_, arrays), shift in zip(found, before[:-1], strict=True):
        arrays["places"] = arrays["places"] + shift
    joined = {name: np.concatenate([arrays[name] for _, arrays in found]) for name in found[0][1] if name != "offsets"}
    lengths = np.concatenate([np.diff(arrays["offsets"]) for _, arrays in found])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return np.concatenate([outputs for outputs, _ in found]), joined | {"offsets": offsets}


def _select(found: _Occurrences, logits: Array, n: int) -> dict[str, Array]:
    """The token with the largest logit in each text, and the best among the others; ties go to the smaller id."""
    selected, competitors = np.full(n, -1), np.full(n, -1)
    first, second = np.full(n, -np.inf), np.full(n, -np.inf)
    np.maximum.at(first, found.text, logits)
    best = logits == first[found.text]
    high = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(high, found.text[best], found.ids[best])
    known = np.isfinite(first)
    selected[known] = high[known]
    rest = found.ids != selected[found.text]
    np.maximum.at(second, found.text[rest], logits[rest])
    rival = rest & (logits == second[found.text])
    next_best = np.full(n, np.iinfo(np.int64).max)
    np.minimum.at(next_best, found.text[rival], found.ids[rival])
    more = np.isfinite(second)
    competitors[more] = next_best[more]
    place = np.full(n, np.iinfo(np.int64).max)
    own = found.ids == selected[found.text]
    np.minimum.at(place, found.text[own], found.first[own])
    margins = np.full(n, np.inf)
    margins[more] = first[more] - second[more]
    return {"selected": selected, "competitors": competitors, "margins": margins, "places": np.where(known, place, 0)}


def _per_original_word(encoded: Encoded, by_word: list[Array], chosen: dict[str, Array]) -> dict[str, Array]:
    """Merge the pieces of one word: neighbours in a text with the same characters."""
    words, segment = encoded.words, encoded.segment
    new = np.ones(len(words.starts), bool)
    new[1:] = (
        (words.starts[1:] != words.starts[:-1]) | (words.ends[1:] != words.ends[:-1]) | (segment[1:] != segment[:-1])
    )
    row = np.cumsum(new) - 1
    heads = np.flatnonzero(new)
    weight, contribution = (np.bincount(row, amount, len(heads)) for amount in by_word)
    offsets = np.concatenate([[0], np.cumsum(new)])[words.offsets]
    places = row[chosen["places"]] if len(row) else chosen["places"]
    return {
        "offsets": offsets, "starts": words.starts[heads], "ends": words.ends[heads],
        "weights": weight, "contributions": contribution, "places": places,
    }  # fmt: skip
