"""How far to trust a model: tests of the model and of its explanations on texts it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from scipy.stats import rankdata
from sklearn.base import clone

from tokenmargin.classifier.classifier import TokenSelectionClassifier
from tokenmargin.classifier.importance import TokenTable
from tokenmargin.classifier.validation import wilson

__all__ = ["Deletion", "Trust", "agreement", "assess", "deletion_test"]

DELETED = (0, 1, 2, 3, 5, 8, 12, 20)
SEEDS = 3
MOST_TEXTS = 20_000
COMPARED = 200  # tokens of largest importance whose ranks are compared


@dataclass(frozen=True, eq=False)
class Deletion:
    """Part of the decisions that stay when `k` words are deleted: those of largest contribution, or any."""

    k: Sequence[int]
    top: Float[Array, " points"]
    random: Float[Array, " points"]


@dataclass(frozen=True, eq=False)
class Trust:
    """The tests, each on texts held out.

    **Attributes**
    - `accuracy`, `low`, `high`: mean over the seeds, and the 95% interval of the first.
    - `spread`: standard deviation of the accuracy over the seeds, which hold out different texts.
    - `balanced`: the mean over classes, then over the seeds: what to look at when classes are uneven.
    - `uniform`: the same model with equal attention for all tokens. `logistic`: TF-IDF and logistic regression.
    - `agreement`: rank correlation of the importance of the leading tokens between models of different seeds.
    """

    texts: int
    held_out: int
    accuracy: float
    low: float
    high: float
    spread: float
    balanced: float
    majority: float
    uniform: float
    logistic: float
    agreement: float
    deletion: Deletion


def deletion_test(
    model: TokenSelectionClassifier, texts: Sequence[str], *, k: Sequence[int] = DELETED, rng: np.random.Generator
) -> Deletion:
    """Delete the words that speak most for each decision, and as many chosen by chance; count decisions that stay."""
    found = model.explain(texts)
    decided = found.labels
    sign = np.where(np.asarray(decided == model.classes_[1]), 1.0, -1.0) if len(model.classes_) == 2 else 1.0
    towards = found.contributions * np.repeat(np.broadcast_to(sign, len(texts)), np.diff(found.offsets))
    chance = rng.random(len(towards))
    top: list[float] = []
    random: list[float] = []
    for number in k:
        for score, kept in ((towards, top), (chance, random)):
            cut = [_without(texts[i], found, i, score, number) for i in range(len(texts))]
            kept.append(float((model.predict(cut) == decided).mean()))
    return Deletion(tuple(k), np.array(top), np.array(random))


def _without(text: str, found: Any, i: int, score: Array, number: int) -> str:
    """The text without its `number` words of largest score."""
    where = np.arange(found.offsets[i], found.offsets[i + 1])
    gone = np.sort(where[np.argsort(-score[where], kind="stable")[:number]])
    parts, place = [], 0
    for start, end in zip(found.starts[gone].tolist(), found.ends[gone].tolist(), strict=True):
        parts.append(text[place:start])
        place = end
    return " ".join([*parts, text[place:]])


def assess(
    model: TokenSelectionClassifier,
    texts: Sequence[str],
    labels: Sequence[Any],
    *,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
) -> Trust:
    """Fit copies of the model on four fifths of the texts, once per seed, and judge them on the rest."""
    tell = progress or (lambda step: None)
    y, documents = np.asarray(labels), np.array(texts, dtype=object)
    if len(y) > MOST_TEXTS:
        chosen = np.sort(rng.choice(len(y), MOST_TEXTS, replace=False))
        y, documents = y[chosen], documents[chosen]
    right, even, tables, splits, models = [], [], [], [], []
    for seed in range(SEEDS):
        tell(f"training again, seed {seed}")
        train, test = _split(y, rng)
        copy = clone(model).set_params(validation_fraction=0.0, random_state=seed, progress=None)
        copy.fit(documents[train], y[train])
        hits = copy.predict(documents[test]) == y[test]
        right.append(float(hits.mean()))
        even.append(float(np.mean([hits[y[test] == value].mean() for value in np.unique(y[test])])))
        tables.append(copy.token_importance_)
        splits.append((train, test))
        models.append(copy)
    train, test = splits[0]
    tell("references")
    plain = _uniform(models[0], documents[train], y[train])
    tell("deleting words")
    shown = documents[test][: min(len(test), 1000)].tolist()
    values, counts = np.unique(y[train], return_counts=True)
    return Trust(
        texts=len(y),
        held_out=len(test),
        accuracy=float(np.mean(right)),
        **dict(zip(("low", "high"), wilson(right[0] * len(test), len(test)), strict=True)),
        spread=float(np.std(right)),
        balanced=float(np.mean(even)),
        majority=float((y[test] == values[counts.argmax()]).mean()),
        uniform=float((plain.predict(documents[test]) == y[test]).mean()),
        logistic=_logistic(documents, y, train, test, model.ngrams),
        agreement=agreement(tables),
        deletion=deletion_test(models[0], shown, rng=rng),
    )


def _split(y: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Four fifths and one fifth of every class."""
    test = np.zeros(len(y), bool)
    for value in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == value))
        test[rows[: max(1, len(rows) // 5) if len(rows) > 1 else 0]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def _uniform(model: TokenSelectionClassifier, texts: Array, y: Array) -> TokenSelectionClassifier:
    """The same vocabulary and training with the attention fixed to be equal."""
    copy = clone(model).set_params(attention="uniform")
    return copy.fit(texts, y)


def _logistic(texts: Array, y: Array, train: Array, test: Array, ngrams: int) -> float:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    try:
        vectorizer = TfidfVectorizer(ngram_range=(1, ngrams), min_df=2, sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
        features = vectorizer.fit_transform(texts[train])
    except ValueError:  # no word occurs in two texts
        return float("nan")
    reference = LogisticRegression(C=10.0, max_iter=300, tol=1e-3).fit(features, y[train])
    return float((reference.predict(vectorizer.transform(texts[test])) == y[test]).mean())


def agreement(tables: Sequence[TokenTable]) -> float:
    """Mean rank correlation of |contribution| over the tokens that lead in any of two tables."""
    found = []
    for i, first in enumerate(tables):
        for second in tables[i + 1 :]:
            one, two = (dict(zip(t["token"], np.abs(t["contribution"]), strict=True)) for t in (first, second))
            leading = sorted({*first.head(COMPARED)["token"], *second.head(COMPARED)["token"]})
            ranks = [rankdata([table.get(token, 0.0) for token in leading]) for table in (one, two)]
            if len(leading) > 2 and all(np.ptp(rank) > 0 for rank in ranks):
                found.append(float(np.corrcoef(np.stack(ranks))[0, 1]))
    return float(np.mean(found)) if found else float("nan")
