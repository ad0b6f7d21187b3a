"""Accuracy on texts held out of the first training, with an interval, and whether the labels carry any signal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array
from numpy.random import RandomState
from scipy.stats import binomtest

__all__ = ["Validation", "split_held_out", "validate", "wilson"]

LEAST = 20  # texts that must be left on the smaller side of a split
UNBALANCED = 0.8  # part of the most frequent class from which the accuracy by itself says little


@dataclass(frozen=True)
class Validation:
    """How a model trained on the rest decided the texts held out.

    **Attributes**
    - `accuracy`, `low`, `high`: with a 95% Wilson interval. `majority`: always the most frequent class.
    - `balanced_accuracy`: the mean over classes.
    - `rarest`, `rarest_found`: held-out texts of the rarest class, and the part of them decided rightly.
    - `p_value`: of doing at least as well by always guessing the majority, or of a balanced accuracy of chance when the
        classes are uneven: whichever is smaller, doubled.
    """

    texts: int
    accuracy: float
    low: float
    high: float
    majority: float
    balanced_accuracy: float
    rarest: int
    rarest_found: float
    p_value: float

    @property
    def signal(self) -> bool:
        """Whether the labels can be told from the texts at all (p below 0.01)."""
        return self.p_value < 0.01

    def __str__(self) -> str:
        text = f"{self.accuracy:.1%} of {self.texts} held-out texts (95%: {self.low:.1%} to {self.high:.1%})"
        if self.signal:
            text += f", against {self.majority:.1%} for the most frequent class"
        else:
            guessing = f"{self.majority:.1%}, p = {self.p_value:.2f}"
            text += f"; NO SIGNAL: not distinguishable from guessing ({guessing})"
        if self.majority >= UNBALANCED:
            low, high = wilson(self.rarest_found * self.rarest, self.rarest)
            found = f"{self.rarest_found:.0%} of its {self.rarest} held-out texts (95%: {low:.0%} to {high:.0%})"
            text += (
                f"; what counts is the rarest class: {found}" if self.rarest else "; none of the rarest class held out"
            )
        return text


def wilson(right: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson interval of a proportion.

    >>> [round(bound, 3) for bound in wilson(8, 10)]
    [0.49, 0.943]
    """
    if n == 0:
        return 0.0, 1.0
    p = right / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return float(centre - half), float(centre + half)


def split_held_out(codes: Array, fraction: float, rng: RandomState) -> Array | None:
    """A mask of texts to hold out, the same part of every class; None when there are too few."""
    held = np.zeros(len(codes), bool)
    for code in np.unique(codes):
        rows = rng.permutation(np.flatnonzero(codes == code))
        held[rows[: round(fraction * len(rows))]] = True
    few = held.sum() < LEAST or len(np.unique(codes[~held])) < len(np.unique(codes))
    return None if few else held


def validate(outputs: Array, codes: Array, all_codes: Array) -> Validation:
    """Judge decisions on held-out texts; `all_codes` says which class is the most frequent."""
    decided = (outputs[:, 0] > 0).astype(int) if outputs.shape[1] == 1 else outputs.argmax(1)
    right = decided == codes
    n, hits = len(codes), int(right.sum())
    most = int(np.bincount(all_codes).argmax())
    majority = float((codes == most).mean())
    guess = binomtest(hits, n, min(max(majority, 1e-9), 1 - 1e-9), alternative="greater").pvalue
    recall = [right[codes == code].mean() for code in np.unique(codes)]
    p = min(1.0, 2 * min(float(guess), _rank_p(outputs, codes)))
    rare = codes == int(np.bincount(all_codes).argmin())
    found = float(right[rare].mean()) if rare.any() else 0.0
    return Validation(n, hits / n, *wilson(hits, n), majority, float(np.mean(recall)), int(rare.sum()), found, p)


def _rank_p(outputs: Array, codes: Array) -> float:
    """Whether each class has larger outputs than the rest (Mann-Whitney), corrected for the number of classes."""
    from scipy.stats import mannwhitneyu

    columns = [(outputs[:, 0], 1)] if outputs.shape[1] == 1 else [(outputs[:, c], c) for c in range(outputs.shape[1])]
    found = []
    for column, code in columns:
        inside = codes == code
        if inside.any() and not inside.all():
            found.append(float(mannwhitneyu(column[inside], column[~inside], alternative="greater").pvalue))
    return min(1.0, len(found) * min(found)) if found else 1.0
