"""Checks of what the user gives: texts or lists of tokens, labels, weights, settings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray as Array

LONGEST_NGRAM = 100
MOST_BUCKETS = 1 << 28  # a number of eight bytes is kept for each
LARGEST_WEIGHT = 1e100  # sums of weights, and their squares, stay far from overflow


def check_documents(X: Any) -> list[Any]:
    """Texts, or lists of tokens, as a list; an error names the first that is neither.

    >>> check_documents(["a text", ""])
    ['a text', '']
    """
    if isinstance(X, str | bytes):
        raise ValueError("expected a sequence of texts, got a single text; put it into a list")
    X = _column(X)
    documents = list(X)
    kinds = {type(document) for document in documents}
    if kinds <= {str}:
        return documents
    if str not in kinds and all(
        isinstance(document, list | tuple) and all(isinstance(token, str) for token in document)
        for document in documents
    ):
        return documents
    for row, document in enumerate(documents):
        if not isinstance(document, str):
            shown = "missing (None, NaN or NA)" if is_missing(document) else repr(document)[:60]
            remedy = "decode such rows" if isinstance(document, bytes) else "drop or fill such rows"
            raise ValueError(f"X must hold texts, or lists of tokens throughout; row {row} is {shown}; {remedy}")
    raise AssertionError("unreachable")


def is_missing(value: Any) -> bool:
    """Whether a value is None, NaN, or pandas' NA, whose comparisons are neither true nor false."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, float | np.floating) and bool(np.isnan(value))


def _column(X: Any) -> Any:
    """One column of a table, array or series as plain values; a table of several columns is refused."""
    shape = getattr(X, "shape", None)
    if hasattr(X, "columns") or hasattr(X, "column_names"):  # pandas, polars, Arrow and Hugging Face tables
        names = [str(name) for name in (X.column_names if hasattr(X, "column_names") else X.columns)]
        shown, first = ", ".join(map(repr, names[:6])), (names or ["text"])[0]
        raise ValueError(
            f"X must be one column of texts, got a table with the columns {shown}; choose one, such as X[{first!r}]"
        )
    if shape is not None and len(shape) == 2:
        raise ValueError(
            f"X must be one column of texts, got an array of shape {tuple(shape)}; "
            + ("flatten it: X[:, 0]" if shape[1] == 1 else "choose a column: X[:, 0]")
        )
    for method in ("to_pylist", "tolist", "to_list"):  # Arrow arrays, chunked or not; numpy and pandas; polars
        if hasattr(X, method):
            return getattr(X, method)()
    return X


def check_labels(y: Any, sample_weight: Any, n: int) -> tuple[Array, Array]:
    """Labels and weights of `n` texts."""
    return _labels(y, n), _weights(sample_weight, n)


def check_seed(random_state: Any) -> np.random.RandomState:
    """The generator that scikit-learn makes of a `random_state`."""
    from sklearn.utils import check_random_state

    try:
        return check_random_state(random_state)
    except ValueError as error:
        raise ValueError(
            f"random_state must be None, an integer of 0..2**32 - 1 or a RandomState, got {random_state!r}"
        ) from error


def _labels(y: Any, n: int) -> Array:
    if y is None:
        raise ValueError("TokenSelectionClassifier requires y to be passed, but the target y is None")
    y = y.to_pylist() if hasattr(y, "to_pylist") else y
    labels = np.asarray(y)
    kinds = {"text" if isinstance(label, str) else "number" for label in y} if labels.dtype.kind in "UO" else set()
    if len(kinds) > 1 and not any(is_missing(label) for label in y):
        raise ValueError("labels mix text and numbers; make them one kind, such as [str(label) for label in y]")
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (n,):
        raise ValueError(f"y must have one label for each of the {n} texts, got shape {labels.shape}")
    if n == 0:
        raise ValueError("there is no text to learn from: 0 sample(s)")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"label {int(np.flatnonzero(~np.isfinite(labels))[0])} is missing (NaN or infinite)")
    if labels.dtype.kind == "f" and (labels != labels.astype(np.int64)).any():
        raise ValueError("Unknown label type: continuous; labels must be classes")
    missing = [row for row, label in enumerate(labels) if is_missing(label)] if labels.dtype.kind == "O" else []
    if missing:
        raise ValueError(f"label {missing[0]} is missing (None, NaN or NA), {len(missing)} in all; drop those rows")
    return labels


def _weights(sample_weight: Any, n: int) -> Array:
    weight = np.ones(n) if sample_weight is None else np.asarray(sample_weight, float)
    if weight.shape != (n,):
        raise ValueError(f"sample_weight must be one number for each of the {n} texts, got shape {weight.shape}")
    wrong = ~(weight <= LARGEST_WEIGHT) | (weight < 0)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ValueError(
            f"sample_weight must be numbers, none negative, none over {LARGEST_WEIGHT:g}; row {row} has {weight[row]:g}"
        )
    if not weight.any():
        raise ValueError("sample_weight is zero for every text; at least one text needs a positive weight")
    return weight


def check_settings(model: Any) -> None:
    """The settings of a classifier, before it is fitted."""
    for name, least in (("ngrams", 1), ("min_count", 1), ("max_iter", 1)):
        value = getattr(model, name)
        if not isinstance(value, int | np.integer) or value < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    for name in ("max_words", "max_texts", "buckets"):
        value = getattr(model, name)
        if value is not None and (not isinstance(value, int | np.integer) or value < 1):
            raise ValueError(f"{name} must be None or a whole number of at least 1, got {value!r}")
    if model.buckets is not None and (model.max_words is not None or model.vocabulary is not None):
        raise ValueError("buckets hash every word, so no words can be given: leave max_words and vocabulary None")
    if model.buckets is not None and model.buckets * model.ngrams > MOST_BUCKETS:
        raise ValueError(f"buckets times ngrams must be at most 2^28, got {model.buckets} times {model.ngrams}")
    if model.ngrams > LONGEST_NGRAM:
        raise ValueError(f"ngrams must be at most {LONGEST_NGRAM}, got {model.ngrams}: longer ones hardly repeat")
    if model.attention not in ("counted", "learned", "uniform"):
        raise ValueError(f"attention must be 'counted', 'learned' or 'uniform', got {model.attention!r}")
    words = model.vocabulary
    if words is not None and (isinstance(words, str) or not all(isinstance(word, str) and word for word in words)):
        raise ValueError(f"vocabulary must be a list of words, none empty, got {words!r:.60}")
    if model.loss not in ("auto", "log", "hinge"):
        raise ValueError(f"loss must be 'auto', 'log' or 'hinge', got {model.loss!r}")
    if model.repeats not in ("auto", True, False):
        raise ValueError(f"repeats must be 'auto', True or False, got {model.repeats!r}")
    for name in ("value_penalty", "start_power", "exponent", "logit_penalty", "tol"):
        value = getattr(model, name)
        if value == "auto" and name not in ("logit_penalty", "tol"):
            continue
        if isinstance(value, str) or not value >= 0:
            raise ValueError(f"{name} must be a number that is not negative, got {value!r}")
    if not isinstance(model.exponent, str) and not model.exponent <= 1:
        raise ValueError(f"exponent must be between 0 (linear) and 1 (softmax attention), got {model.exponent!r}")
    if not 0 <= model.validation_fraction < 1:
        raise ValueError(f"validation_fraction must be in [0, 1), got {model.validation_fraction!r}")
