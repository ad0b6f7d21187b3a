"""A classifier as pages read it: its words, and their two numbers in 32 bits, small enough to go into one file."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy import ndarray as Array

from tokenmargin.classifier import TokenSelectionClassifier
from tokenmargin.classifier.what_if import decide_by_words

SIDES: dict[tuple[str, ...], tuple[str, ...]] = {(low, "1"): ("negative", "positive") for low in ("-1", "0")}


EXAMPLES = (
    "I loved this movie, it was brilliant and moving.",
    "Two hours of my life: dull, predictable and far too long.",
    "The waiter was rude and the soup was cold, but the cake was wonderful.",
    "What a delightful hotel! Somebody asked about the pillow.",
    "We took the ferry after work. It was dreadful.",
    "We went there after work and somebody asked about it.",
)
SHOWN = 3  # of the examples, one of which decides nothing


def can_be_read_by_pages(model: TokenSelectionClassifier) -> bool:
    """Whether the script of a page cuts a text into words as the model does, and knows them by their spelling."""
    return model.tokenizer in ("words", "plain") and model.buckets is None


def class_names(model: TokenSelectionClassifier) -> tuple[str, ...]:
    """The classes as people call them: -1 and 1, or 0 and 1, are negative and positive."""
    classes = tuple(map(str, model.classes_.tolist()))
    return SIDES.get(classes, classes)


def page_model(
    model: TokenSelectionClassifier, *, about: str = "", rows: Int[Array, " kept"] | None = None
) -> dict[str, Any]:
    """What `words.js` of the pages decides with; `rows` are the tokens to keep, None for all."""
    weights, names = model.token_model_, model.vocabulary_.names
    kept = np.arange(len(names)) if rows is None else rows
    numbers = np.column_stack([weights.logits[kept], weights.values[kept]]).astype("<f4")
    return {
        "about": about,
        "classes": class_names(model),
        "ngrams": model.ngrams,
        "symbols": model.tokenizer == "words",
        "exponent": weights.exponent,
        "sink": weights.sink_logit,
        "repeats": weights.repeats,
        "intercept": weights.intercept.tolist(),
        "prior": weights.prior.tolist(),
        "tokens": "\n".join(names[row] for row in kept),
        "numbers": base64.b64encode(numbers.tobytes()).decode(),
    }


def explore_model(model: TokenSelectionClassifier, *, data: str = "") -> dict[str, Any]:
    """A model of two classes for the explorable page, with sentences to begin with: some decided, one not."""
    texts = f"{model.n_texts_:,} texts" + (f" ({data})" if data else "")
    found = model.validation_
    check = f" It was right on {found.accuracy:.1%} of {found.texts:,} held-out texts." if found else ""
    about = f"The model of this page: {len(model.vocabulary_):,} words, two numbers each, learned from {texts}.{check}"
    silent = [decide_by_words(model, text).abstains for text in EXAMPLES]
    decided = [text for text, quiet in zip(EXAMPLES, silent, strict=True) if not quiet][: SHOWN - 1]
    undecided = [text for text, quiet in zip(EXAMPLES, silent, strict=True) if quiet][-1:]
    return page_model(model, about=about) | {"examples": decided + undecided}


def served_model(model: TokenSelectionClassifier) -> dict[str, Any]:
    """The same for a page with a server behind it, which decides where the page cannot cut a text as the model does."""
    told = explore_model(model)
    return told if can_be_read_by_pages(model) else told | {"remote": True, "tokens": "", "numbers": ""}
