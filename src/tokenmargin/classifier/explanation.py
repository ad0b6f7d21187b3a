"""Which words decided: contribution of every word of every text, and what its deletion would change, exact to rounding.

A decision is the sum of the baseline (the base rate of the classes), a shift that every text with known words has, and
the contributions of the tokens: nothing is estimated. The contribution of a token that occurs several times is divided
among its occurrences, that of an n-gram among its words. The *effect* of a word is what the decision loses when the
word is deleted wherever it stands, in every form that is one word to the model. Contribution and effect may differ in
sign, since the attention that a word gives up goes to the others. Such a word is shown neither as speaking for the
decision nor as speaking against it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.vocabulary import segment_sum

DOUBLED_ODDS = math.log(2.0)  # words that change the odds by less do not decide


@dataclass(frozen=True)
class WordPart:
    """A word of the text: its characters `start:end`, its share of the attention and of the decision.

    `effect` is what the decision loses without the word, in every form that is one word to the model;
    `shown_contribution` is its contribution where the effect has the same sign, and zero where it has not: what may be
    shown as speaking for or against.
    """

    start: int
    end: int
    weight: float
    contribution: float
    effect: float

    @property
    def shown_contribution(self) -> float:
        """The contribution; 0 where deleting the word would move the decision the other way."""
        return self.contribution if self.contribution * self.effect > 0 else 0.0


@dataclass(frozen=True)
class TokenPart:
    """A token of the text, word or n-gram: where it first stands, its share of the attention and of the decision."""

    token: str
    start: int
    end: int
    weight: float
    contribution: float


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why one text was decided as it was.

    **Attributes**
    - `label`, `probability`: the class that is explained (the one decided on, or the target) and its probability.
    - `decision`: its f. With two classes f always speaks for the second when positive.
    - `baseline`, `shift`: the base rate's f, and what any text with known words adds; with the contributions of the
        `words` they add up to `decision`. `tokens`: the same by token, n-grams whole.
    - `selected`: the token with the largest logit, None in a text without known words; `span`: where it first stands.
    - `competitor`, `margin`: the token that came next, and by how much the selected one's logit beats it (infinite
        when there is no other).
    """

    text: str
    label: Any
    decision: float
    probability: float
    words: tuple[WordPart, ...]
    baseline: float
    shift: float
    selected: str | None
    span: tuple[int, int] | None
    competitor: str | None
    margin: float
    find_tokens: Callable[[], tuple[TokenPart, ...]]

    @property
    def abstains(self) -> bool:
        """Whether all words together change the odds by less than a factor of two: nothing decides between two."""
        return abs(self.decision - self.baseline - self.shift) < DOUBLED_ODDS

    @cached_property
    def tokens(self) -> tuple[TokenPart, ...]:
        """Every token of the text, n-grams whole, in the order in which they begin."""
        return self.find_tokens()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        words = [{**vars(word), "word": self.text[word.start : word.end]} for word in self.words]
        tokens = [vars(token) for token in self.tokens]
        label = self.label.item() if isinstance(self.label, np.generic) else self.label
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "find_tokens"}
        return {**plain, "label": label, "words": words, "tokens": tokens}

    def __repr__(self) -> str:
        leading = sorted(self.words, key=lambda word: -abs(word.shown_contribution))[:5]
        words = ", ".join(f"{self.text[word.start : word.end]} {word.shown_contribution:+.2f}" for word in leading)
        return f"<Explanation {str(self.label)!r} {self.probability:.1%}: {words}>"

    def _repr_html_(self) -> str:
        """The decision, and the text with its words coloured: green speaks for the decision's sign +, orange for -."""
        largest = max((abs(word.shown_contribution) for word in self.words), default=0.0) or 1.0
        out, place = [], 0
        for word in self.words:
            strength = abs(word.shown_contribution) / largest
            colour = f"rgba({'0,150,110' if word.shown_contribution > 0 else '220,95,0'},{0.75 * strength:.3f})"
            note = f"contribution {word.contribution:+.4f}, deleting it takes {word.effect:+.4f}"
            out.append(html.escape(self.text[place : word.start]))
            shown = html.escape(self.text[word.start : word.end])
            chosen = ";outline:2px solid" if self.span and self.span[0] <= word.start < self.span[1] else ""
            out.append(f'<mark style="background:{colour};color:inherit{chosen}" title="{note}">{shown}</mark>')
            place = word.end
        head = f"<b>{html.escape(str(self.label))}</b> ({self.probability:.1%}), decision {self.decision:+.2f}"
        return f"<p>{head}<br>{''.join(out)}{html.escape(self.text[place:])}</p>"


@dataclass(frozen=True, eq=False, repr=False)
class Explanations(Sequence[Explanation]):
    """Explanations of many texts, kept as arrays; `explanations[i]` is the `Explanation` of text i.

    **Attributes**
    - `decisions`: f of the explained class (with two classes: of the second). `labels`, `probabilities`: of that class.
    - `offsets`: the words of text `i` are `offsets[i]:offsets[i + 1]` in `starts`, `ends`, `weights`, `contributions`,
        `effects`.
    - `baselines`, `shifts`: see `Explanation`. `sums`: these and the contributions, equal to `decisions`.
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
    effects: Float[Array, " words"]
    baselines: Float[Array, " n"]
    shifts: Float[Array, " n"]
    selected: Int[Array, " n"]
    places: Int[Array, " n"]
    competitors: Int[Array, " n"]
    margins: Float[Array, " n"]
    last_places: Int[Array, " n"]
    tokens_of: Callable[[str | Sequence[str], Any], tuple[TokenPart, ...]]
    documents: Sequence[Any]

    def __repr__(self) -> str:
        return f"<Explanations of {len(self)} texts, {len(self.starts)} words>"

    @property
    def sums(self) -> Float[Array, " n"]:
        """The contributions of each text, added up."""
        return self.baselines + self.shifts + segment_sum(self.contributions, self.offsets)

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
                      ("starts", "ends", "weights", "contributions", "effects")), strict=True)  # fmt: skip
        chosen, rival = int(self.selected[i]), int(self.competitors[i])
        first, last = int(self.places[i]), int(self.last_places[i])
        return Explanation(
            text=self.texts[i],
            label=self.labels[i],
            decision=float(self.decisions[i]),
            probability=float(self.probabilities[i]),
            words=tuple(WordPart(*part) for part in parts),
            baseline=float(self.baselines[i]),
            shift=float(self.shifts[i]),
            selected=self.names[chosen] if chosen >= 0 else None,
            span=(int(self.starts[first]), int(self.ends[last])) if chosen >= 0 else None,
            competitor=self.names[rival] if rival >= 0 else None,
            margin=float(self.margins[i]),
            find_tokens=partial(self.tokens_of, self.documents[i], self.labels[i]),
        )
