"""How far to trust a model: accuracy on texts held out, whether labels carry a signal, tests of its explanations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.stats import binomtest
from sklearn.base import ClassifierMixin

from tokenmargin._statistics import spearman, wilson_interval
from tokenmargin.classifier.importance import TokenTable
from tokenmargin.classifier.token_model import decided_classes

DELETED = (0, 1, 2, 3, 5, 8, 12, 20)
COMPARED = 200  # tokens of largest importance whose ranks are compared
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
            low, high = wilson_interval(self.rarest_found * self.rarest, self.rarest)
            found = f"{self.rarest_found:.0%} of its {self.rarest} held-out texts (95%: {low:.0%} to {high:.0%})"
            text += (
                f"; what counts is the rarest class: {found}" if self.rarest else "; none of the rarest class held out"
            )
        return text


def enough(codes: Array, held: Array) -> bool:
    """Whether enough texts are held out to judge by, and every class is left to learn from."""
    return bool(held.sum() >= LEAST and len(np.unique(codes[~held])) == len(np.unique(codes)))


def validate(outputs: Array, codes: Array, all_codes: Array) -> Validation:
    """Judge decisions on held-out texts; `all_codes` says which class is the most frequent."""
    right = decided_classes(outputs) == codes
    n, hits = len(codes), int(right.sum())
    most = int(np.bincount(all_codes).argmax())
    majority = float((codes == most).mean())
    guess = binomtest(hits, n, min(max(majority, 1e-9), 1 - 1e-9), alternative="greater").pvalue
    recall = [right[codes == code].mean() for code in np.unique(codes)]
    p = min(1.0, 2 * min(float(guess), _rank_p(outputs, codes)))
    rare = codes == int(np.bincount(all_codes).argmin())
    found = float(right[rare].mean()) if rare.any() else 0.0
    return Validation(
        n, hits / n, *wilson_interval(hits, n), majority, float(np.mean(recall)), int(rare.sum()), found, p
    )


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


@dataclass(frozen=True, eq=False)
class Deletion:
    """Part of the decisions that stay when `k` words are deleted: those of largest contribution, or any."""

    k: Sequence[int]
    top: Float[Array, " points"]
    random: Float[Array, " points"]


def deletion_test(model: ClassifierMixin, texts: Sequence[str], *, rng: np.random.Generator) -> Deletion:
    """Delete the words that speak most for each decision, and as many chosen by chance; count decisions that stay."""
    found = model.explain(texts)
    decided = found.labels
    sign = np.where(np.asarray(decided == model.classes_[1]), 1.0, -1.0) if len(model.classes_) == 2 else 1.0
    spoken = np.where(found.contributions * found.effects > 0, found.contributions, 0.0)
    towards = spoken * np.repeat(np.broadcast_to(sign, len(texts)), np.diff(found.offsets))
    chance = rng.random(len(towards))
    top: list[float] = []
    random: list[float] = []
    for number in DELETED:
        for score, kept in ((towards, top), (chance, random)):
            cut = [_without(texts[i], found, i, score, number) for i in range(len(texts))]
            kept.append(float((model.predict(cut) == decided).mean()))
    return Deletion(DELETED, np.array(top), np.array(random))


def _without(text: str, found: Any, i: int, score: Array, number: int) -> str:
    """The text without its `number` words of largest score."""
    where = np.arange(found.offsets[i], found.offsets[i + 1])
    gone = np.sort(where[np.argsort(-score[where], kind="stable")[:number]])
    parts, place = [], 0
    for start, end in zip(found.starts[gone].tolist(), found.ends[gone].tolist(), strict=True):
        parts.append(text[place:start])
        place = end
    return " ".join([*parts, text[place:]])


def agreement(tables: Sequence[TokenTable]) -> float:
    """Mean rank correlation of |contribution| over the tokens that lead in any of two tables."""
    found = []
    for i, first in enumerate(tables):
        for second in tables[i + 1 :]:
            one, two = (dict(zip(t["token"], np.abs(t["contribution"]), strict=True)) for t in (first, second))
            leading = sorted({*first.head(COMPARED)["token"], *second.head(COMPARED)["token"]})
            parts = [np.array([table.get(token, 0.0) for token in leading]) for table in (one, two)]
            if len(leading) > 2 and np.isfinite(rho := float(spearman(*parts))):
                found.append(rho)
    return float(np.mean(found)) if found else float("nan")
