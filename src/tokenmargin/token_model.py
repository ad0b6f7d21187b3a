"""TokenModel: what a trained one-layer model decides by, in one JSON file that is only read, never run.

The decision `f(X) = sum_t s_t b_t`, `s = softmax(a)`, needs two numbers per token of the vocabulary: its attention
logit `a = <E, p>` and its value `b = <E, v>`. Nothing else of the model has to be shipped to explain its decisions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from numpy.typing import ArrayLike

__all__ = ["Decision", "TokenModel", "TokenModelError", "WordRole", "load_token_model"]

FORMAT = "tokenmargin token model 1"
FILE_NAME = "token_model.json"
LARGEST_FILE = 64 << 20
WORD = re.compile(r"[^\W_]+")  # runs of letters and digits


class TokenModelError(ValueError):
    """A model file that cannot be read, with the file and what is wrong in the message."""


@dataclass(frozen=True)
class WordRole:
    """What one word of a text does: the characters `start:end` it was read from, and its part in the decision.

    - `token`: the vocabulary's spelling; None for a word the model does not know or was told to leave out.
    - `weight`: softmax weight. `value`: `b`. `contribution`: their product; the contributions add up to the output.
    - `without`: the output of the model when this word is left out.
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
    """The output of a model on one text, its sign as a label, and the role of every word."""

    output: float
    words: tuple[WordRole, ...]

    @property
    def label(self) -> int:
        """+1, -1, or 0 when the output is exactly zero (no known word)."""
        return int(np.sign(self.output))


@dataclass(frozen=True, eq=False)
class TokenModel:
    """Attention logit and value of every token of a vocabulary of lower-case words.

    >>> model = TokenModel(("dull", "film", "fine"), logits=[2.0, 0.0, 2.0], values=[-1.0, 0.1, 1.0])
    >>> decision = model.explain("A fine film!")
    >>> [(word.token, round(word.weight, 3)) for word in decision.words], round(decision.output, 3)
    ([(None, 0.0), ('fine', 0.881), ('film', 0.119)], 0.893)
    """

    vocabulary: tuple[str, ...]
    logits: Float[Array, " m"]
    values: Float[Array, " m"]
    about: str = ""

    def __init__(self, vocabulary: Sequence[str], logits: ArrayLike, values: ArrayLike, about: str = "") -> None:
        words = tuple(vocabulary)
        if not words or not all(isinstance(word, str) and word for word in words) or len(set(words)) != len(words):
            raise ValueError("vocabulary must be distinct, non-empty words, at least one")
        object.__setattr__(self, "vocabulary", words)
        for name, numbers in (("logits", logits), ("values", values)):
            array = np.asarray(numbers)
            if array.shape != (len(words),) or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
                raise ValueError(f"{name} must be {len(words)} finite numbers, one per word, got shape {array.shape}")
            object.__setattr__(self, name, array.astype(np.float64))
        object.__setattr__(self, "about", about)

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {word: row for row, word in enumerate(self.vocabulary)}

    def explain(self, text: str, *, leave_out: Iterable[int] = ()) -> Decision:
        """The decision on `text`, word by word.

        **Arguments**
        - `leave_out`: numbers of words (in the order of the text, from 0) to decide without.
        """
        spans = [match.span() for match in WORD.finditer(text)]
        away = set(leave_out)
        rows = [
            -1 if place in away else self._rows.get(text[start:end].lower(), -1)
            for place, (start, end) in enumerate(spans)
        ]
        known = np.array([place for place, row in enumerate(rows) if row >= 0], dtype=int)
        found = np.array([rows[place] for place in known], dtype=int)
        weights, values = _softmax(self.logits[found]), self.values[found]
        output = float(weights @ values)
        roles = [WordRole(start, end, None, 0.0, 0.0, 0.0, output) for start, end in spans]
        for place, row, weight, without in zip(
            known.tolist(), found.tolist(), weights.tolist(), _without(self.logits[found], values), strict=True
        ):
            (start, end), value = spans[place], float(self.values[row])
            roles[place] = WordRole(start, end, self.vocabulary[row], weight, value, weight * value, without)
        return Decision(output, tuple(roles))

    def save(self, path: str | Path) -> None:
        """Write the model as JSON; numbers keep all their digits."""
        content = {
            "format": FORMAT,
            "about": self.about,
            "vocabulary": list(self.vocabulary),
            "logits": self.logits.tolist(),
            "values": self.values.tolist(),
        }
        Path(path).write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


def load_token_model(path: str | Path) -> TokenModel:
    """Read a file written by `TokenModel.save`, or the `token_model.json` of a folder."""
    path = Path(path)
    if path.is_dir():
        path = path / FILE_NAME
    if not path.is_file():
        raise TokenModelError(f"{path}: no such file; a token model is a JSON file, or a folder with {FILE_NAME}")
    if path.stat().st_size > LARGEST_FILE:
        raise TokenModelError(f"{path}: {path.stat().st_size} bytes, more than the {LARGEST_FILE} allowed")
    try:
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f'it does not say "format": "{FORMAT}"')
        return TokenModel(content["vocabulary"], content["logits"], content["values"], str(content.get("about", "")))
    except KeyError as error:
        raise TokenModelError(f"{path}: no field {error}; write it with TokenModel.save") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise TokenModelError(f"{path}: not a token model ({error}); write it with TokenModel.save") from error


def _softmax(logits: Float[Array, " t"]) -> Float[Array, " t"]:
    weights = np.exp(logits - logits.max(initial=-np.inf))
    return np.asarray(weights / max(float(weights.sum()), np.finfo(float).tiny))


def _without(logits: Float[Array, " t"], values: Float[Array, " t"]) -> list[float]:
    """The output with each word left out: `(f - s_t b_t) / (1 - s_t)`, which cancels only for the heaviest word."""
    if len(logits) < 2:
        return [0.0] * len(logits)
    weights = _softmax(logits)
    heaviest = int(weights.argmax())
    rest = np.delete(np.arange(len(logits)), heaviest)
    with np.errstate(divide="ignore", invalid="ignore"):
        outputs = (weights @ values - weights * values) / (1 - weights)
    outputs[heaviest] = _softmax(logits[rest]) @ values[rest]
    return [float(output) for output in outputs]
