"""What a model decides on one text, word by word, and what it would decide without each of the words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as with_changes

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin.classifier.attribution import attribute
from tokenmargin.classifier.classifier import TokenSelectionClassifier
from tokenmargin.classifier.explanation import LEAST
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.tokenizers import read_tokens
from tokenmargin.classifier.vocabulary import EncodedTexts


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
    """The output of a model of two classes on one text, where it starts from, and the role of every word.

    `start` (the base rate, and the shift of any text with known words) and the contributions of the words add up to the
    output; a positive one speaks for the second class.
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
        return abs(self.output - self.start) < LEAST


@dataclass(frozen=True)
class EditedText:
    """A text before and after an edit, and the probability of each class (in the order of `classes_`) for both."""

    text: str
    edited: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    changed: int


def what_if(
    model: TokenSelectionClassifier, text: str, *, delete: Iterable[str] = (), replace: Mapping[str, str] | None = None
) -> EditedText:
    """Decide a text as it is, and with words deleted or replaced wherever they stand (capital letters do not matter).

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
    """The decision on `text`, word by word; n-grams with a word that is left out are gone with it.

    **Arguments**
    - `model`: fitted, with two classes.
    - `leave_out`: numbers of words (in the order of the text, from 0) to decide without.
    """
    if len(model.classes_) != 2:
        raise ValueError(f"word by word only models of two classes are explained, this one has {len(model.classes_)}")
    encoded = model.vocabulary_.encode(read_tokens([text], model.tokenizer))
    word_of = _word_numbers(encoded)
    encoded = _leave_out(encoded, np.isin(word_of, list(leave_out)))
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
        float(arrays["baselines"][0] + arrays["shifts"][0]),
        tuple(
            WordRole(start, end, model.vocabulary_.names[token] if token >= 0 else None,
                     weight, part / weight if weight > 0 else 0.0, part, other)
            for start, end, weight, part, token, other in words
        ),
    )  # fmt: skip


def _word_numbers(encoded: EncodedTexts) -> Int[Array, " pieces"]:
    """The number of the original word of each piece: neighbours read from the same characters are one word."""
    starts, ends = encoded.words.starts, encoded.words.ends
    new = np.ones(len(starts), bool)
    new[1:] = (starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1])
    return np.cumsum(new) - 1


def _leave_out(encoded: EncodedTexts, gone: Bool[Array, " pieces"]) -> EncodedTexts:
    """The same without the tokens that cover a piece that is gone."""
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
