"""Checks of what the user gives: texts or token lists, labels, weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray as Array

__all__ = ["check_documents", "check_labels"]

LARGEST_WEIGHT = 1e100  # sums of weights, and their squares, stay far from overflow


def check_documents(X: Any) -> list[Any]:
    """Texts, or lists of tokens, as a list; an error names the first that is neither.

    >>> check_documents(["a text", ""])
    ['a text', '']
    """
    if isinstance(X, str | bytes):
        raise ValueError("expected a sequence of texts, got a single text; put it into a list")
    if hasattr(X, "tolist"):
        X = X.tolist()
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
            shown = "NaN (a missing value)" if document is None or document != document else repr(document)[:60]
            raise ValueError(
                f"X must hold texts, or lists of tokens throughout; row {row} is {shown}; drop or fill such rows"
            )
    raise AssertionError("unreachable")


def check_labels(y: Any, sample_weight: Any, n: int) -> tuple[Array, Array]:
    """Labels and weights of `n` texts."""
    if y is None:
        raise ValueError("TokenSelectionClassifier requires y to be passed, but the target y is None")
    labels = np.asarray(y)
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
    if labels.dtype.kind == "O" and any(label is None or label != label for label in labels):
        raise ValueError("some labels are missing (None or NaN); drop those rows")
    weight = np.ones(n) if sample_weight is None else np.asarray(sample_weight, float)
    if weight.shape != (n,) or not (weight <= LARGEST_WEIGHT).all() or (weight < 0).any():
        raise ValueError(
            f"sample_weight must be {n} numbers, none negative, none over {LARGEST_WEIGHT:g}, got shape {weight.shape}"
        )
    if not weight.any():
        raise ValueError("sample_weight is zero for every text; at least one text needs a positive weight")
    return labels, weight
