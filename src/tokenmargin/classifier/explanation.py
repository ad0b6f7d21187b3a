"""Which words decided: attention weight and contribution of every word of every text, exact to rounding.

A decision is a sum over tokens, `f = sum_s weight_s value_s`, so the contributions `weight * value` add up to it:
nothing is estimated. The weight of a token that occurs several times is shared by its occurrences, and that of an
n-gram by its words. The sink, which every text has, carries the rest.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.attribution import segment_sum

__all__ = ["Explanation", "Explanations", "WordPart"]


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
        return self.sinks + segment_sum(self.contributions, self.offsets)

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
