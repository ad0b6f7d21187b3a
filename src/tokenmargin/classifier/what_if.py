"""What a model decides on one text word by word, and what it would decide on the text with words changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as with_changes

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.attribution import attribute_texts, original_words
from tokenmargin.classifier.classifier import TokenSelectionClassifier
from tokenmargin.classifier.explanation import DOUBLED_ODDS
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.tokenizers import read_tokens
from tokenmargin.classifier.vocabulary import EncodedTexts


@dataclass(frozen=True)
class WordRole:
    """One word of a text, read from the characters `start:end`, and its part in the decision.

    - `token`: the word as the vocabulary spells it; None if the model does not know it or it was left out.
    - `weight`, `contribution`: its share of the attention and of the output; an n-gram's are divided among its words.
    - `value`: contribution over weight. `without`: the output without this word.
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
    """The output of a model of two classes on one text, and the role of every word.

    `start` (the base rate and the shift of any text with known words) and the contributions of the words add up to the
    output. A positive number speaks for the second class.
    """

    output: float
    start: float
    words: tuple[WordRole, ...]

    @property
    def label(self) -> int:
        """+1 for the second class, -1 for the first, 0 when the output is exactly zero."""
        return int(np.sign(self.output))

    @property
    def abstains(self) -> bool:
        """Whether all words together change the odds by less than a factor of two: there is nothing to decide on."""
        return abs(self.output - self.start) < DOUBLED_ODDS


@dataclass(frozen=True)
class EditedText:
    """A text before and after an edit, and the probabilities of the classes (in the order of `classes_`) for both."""

    text: str
    edited: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    changed: int


def what_if(
    model: TokenSelectionClassifier, text: str, *, delete: Iterable[str] = (), replace: Mapping[str, str] | None = None
) -> EditedText:
    """Decide a text as it is, and with words deleted or replaced wherever they stand, in capital letters or not.

    >>> model = TokenSelectionClassifier().fit(["fine film", "dull film"] * 10, ["good", "bad"] * 10)
    >>> what_if(model, "A dull film", replace={"dull": "fine"}).edited
    'A fine film'
    """
    changes = {word.lower(): other for word, other in (replace or {}).items()} | {word.lower(): "" for word in delete}
    words = read_tokens([text], model.tokenizer)
    parts, place, changed = [], 0, 0
    for start, end in sorted(set(zip(words.starts.tolist(), words.ends.tolist(), strict=True))):
        if start < place or (other := changes.get(text[start:end].lower())) is None:
            continue
        parts += [text[place:start], other]
        place, changed = end, changed + 1
    edited = " ".join("".join([*parts, text[place:]]).split()) if changed else text
    before, after = model.predict_proba([text, edited])
    return EditedText(text, edited, tuple(before.tolist()), tuple(after.tolist()), changed)


def decide_by_words(model: TokenSelectionClassifier, text: str, *, leave_out: Iterable[int] = ()) -> Decision:
    """The decision on a text, word by word.

    **Arguments**
    - `model`: a fitted model of two classes.
    - `leave_out`: words to leave out, by their number in the text, from 0. N-grams with such a word go too.
    """
    if len(model.classes_) != 2:
        raise ValueError(f"word by word only models of two classes are explained, this one has {len(model.classes_)}")
    encoded = model.vocabulary_.encode(read_tokens([text], model.tokenizer))
    word_of = np.cumsum(original_words(encoded)) - 1  # the number of each piece's word in the text
    encoded = _leave_out(encoded, np.isin(word_of, list(leave_out)))
    outputs, arrays = attribute_texts(encoded, model.token_model_)
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
        float(arrays["baselines"][0] + arrays["shifts"][0]),
        tuple(
            WordRole(start, end, model.vocabulary_.names[token] if token >= 0 else None,
                     weight, part / weight if weight > 0 else 0.0, part, other)
            for start, end, weight, part, token, other in words
        ),
    )  # fmt: skip


def _leave_out(encoded: EncodedTexts, gone: Bool[Array, " pieces"]) -> EncodedTexts:
    """The encoded text without the tokens that hold a piece that is gone."""
    levels = []
    for n, ids in enumerate(encoded.levels, start=1):
        covers = gone.copy()
        for place in range(1, n):
            covers[: len(gone) - place] |= gone[place:]
        levels.append(np.where(covers, -1, ids))
    return with_changes(encoded, levels=levels)


def _outputs_without(
    encoded: EncodedTexts, word_of: Int[Array, " pieces"], model: TokenModel, output: float
) -> Float[Array, " words"]:
    """The output with each word left out."""
    found = np.full(int(word_of.max(initial=-1)) + 1, output)
    for word in range(len(found)):
        left = np.concatenate([ids[ids >= 0] for ids in _leave_out(encoded, word_of == word).levels])
        found[word] = model.decide_tokens(left if model.repeats else np.unique(left))[0]
    return found
