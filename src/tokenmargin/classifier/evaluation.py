"""Tests of trust for a report: the model and others on the same splits with the same tokens, and the texts held out.

Copies of a text are always on the same side of a split, and one that is held out counts once. The interval of a
difference is corrected for splits that share training texts (Nadeau and Bengio): the variance over k splits counts
1/k + 1/4 instead of 1/k, as a fifth is held out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.stats import t as student
from sklearn.base import ClassifierMixin, clone

from tokenmargin._statistics import spearman
from tokenmargin.classifier.classifier import TokenSelectionClassifier
from tokenmargin.classifier.fitting import document_numbers, draw_numbers, held_out_mask, validate
from tokenmargin.classifier.importance import TokenTable
from tokenmargin.classifier.tokenizers import join_tokens, read_tokens

SPLITS, HELD = 3, 0.2
MOST_TEXTS = 20_000
DOUBTED = 0.02  # probability of a text's own label
DELETED_FROM = 1000  # texts of the deletion test
DELETED = (0, 1, 2, 3, 5, 8, 12, 20)
COMPARED = 200  # tokens of largest importance whose ranks are compared
# Of two methods that are equally good, the one that alone is right is either as likely. So even if they differ on five
# texts alone and all five fall to one of them, that is chance at 5%: 2 / 2^5 is more. Six would be less.
MAY_BE_CHANCE = 5
OURS, UNIFORM, LOGISTIC = "this model", "the same with uniform attention", "TF-IDF and logistic regression"


@dataclass(frozen=True, eq=False)
class ModelScores:
    """A model's accuracy and log loss on the texts held out of each split (NaN where it could not be fitted).

    `texts` says how many different texts were held out, in one split or several.
    """

    name: str
    accuracies: Float[Array, " splits"]
    losses: Float[Array, " splits"]
    texts: int

    @property
    def accuracy(self) -> float:
        """Mean over the splits."""
        return float(self.accuracies.mean())

    def lead_over(self, other: ModelScores) -> tuple[float, float]:
        """Mean difference of the accuracies, and half of its corrected 95% interval.

        Splits that agree do not make it narrower than the lead in texts that may be chance.
        """
        gaps = self.accuracies - other.accuracies
        k = len(gaps)
        if k < 2:
            return float(gaps.mean()), float("nan")
        half = student.ppf(0.975, k - 1) * np.sqrt((1 / k + HELD / (1 - HELD)) * gaps.var(ddof=1))
        return float(gaps.mean()), max(float(half), min(MAY_BE_CHANCE / self.texts, 1.0))


@dataclass(frozen=True, eq=False)
class HeldOutTexts:
    """The texts held out of the first split, decided by a model that was not trained on them.

    **Attributes**
    - `rows`: their rows among the texts given. `truths`: their class numbers. `probabilities`: of each class.
    - `copies`: rows whose words, numbers aside, are those of a training text.
    - `model`: the model that decided.
    """

    rows: Int[Array, " n"]
    truths: Int[Array, " n"]
    probabilities: Float[Array, "n k"]
    copies: Int[Array, " c"]
    model: TokenSelectionClassifier

    @property
    def confusion(self) -> Int[Array, "k k"]:
        """How many texts of each class (rows) were decided to be of each class (columns)."""
        k = self.probabilities.shape[1]
        return np.bincount(self.truths * k + self.probabilities.argmax(1), minlength=k * k).reshape(k, k)

    def surest_errors(self, number: int) -> Int[Array, " number"]:
        """Places of the wrong decisions, those of highest probability first."""
        wrong = np.flatnonzero(self.probabilities.argmax(1) != self.truths)
        return wrong[np.argsort(-self.probabilities[wrong].max(1), kind="stable")][:number]

    def doubted_labels(self) -> Int[Array, " s"]:
        """Places of texts whose own label has a probability below `DOUBTED`: the label itself may be wrong."""
        own = self.probabilities[np.arange(len(self.truths)), self.truths]
        found = np.flatnonzero(own < DOUBTED)
        return found[np.argsort(own[found], kind="stable")]


@dataclass(frozen=True, eq=False)
class DeletionTest:
    """The share of decisions that stay when `k` words are deleted: those of largest contribution, or random ones."""

    k: Sequence[int]
    top: Float[Array, " points"]
    random: Float[Array, " points"]


def deletion_test(model: ClassifierMixin, texts: Sequence[str], *, rng: np.random.Generator) -> DeletionTest:
    """Delete the words that speak most for each decision, and as many random words; count decisions that stay."""
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
            cut = [_without_top_words(texts[i], found, i, score, number) for i in range(len(texts))]
            kept.append(float((model.predict(cut) == decided).mean()))
    return DeletionTest(DELETED, np.array(top), np.array(random))


def _without_top_words(text: str, found: Any, i: int, score: Array, number: int) -> str:
    """The text without its `number` words of largest score."""
    where = np.arange(found.offsets[i], found.offsets[i + 1])
    gone = np.sort(where[np.argsort(-score[where], kind="stable")[:number]])
    parts, place = [], 0
    for start, end in zip(found.starts[gone].tolist(), found.ends[gone].tolist(), strict=True):
        parts.append(text[place:start])
        place = end
    return " ".join([*parts, text[place:]])


def importance_agreement(tables: Sequence[TokenTable]) -> float:
    """The mean over pairs of tables of the rank correlation of |contribution|, over the tokens that lead in either."""
    found = []
    for i, first in enumerate(tables):
        for second in tables[i + 1 :]:
            one, two = (dict(zip(t["token"], np.abs(t["contribution"]), strict=True)) for t in (first, second))
            leading = sorted({*first.head(COMPARED)["token"], *second.head(COMPARED)["token"]})
            parts = [np.array([table.get(token, 0.0) for token in leading]) for table in (one, two)]
            if len(leading) > 2 and np.isfinite(rho := float(spearman(*parts))):
                found.append(rho)
    return float(np.mean(found)) if found else float("nan")


@dataclass(frozen=True, eq=False)
class TrustTests:
    """The results of the tests of trust, from texts held out.

    **Attributes**
    - `models`: this model first, then the models it is compared with, on the same splits with the same tokens.
    - `texts`: of how many. `duplicates`: how many of them are copies of others. `majority`: the share of the most
        frequent class among those that are not.
    - `importance_agreement`: rank correlation of the importance of the leading tokens between the splits.
    """

    texts: int
    duplicates: int
    models: tuple[ModelScores, ...]
    majority: float
    importance_agreement: float
    deletion: DeletionTest
    held: HeldOutTexts

    @property
    def signal(self) -> bool:
        """Whether the decisions on the texts held out can be told from guessing."""
        return validate(self.held.probabilities, self.held.truths, self.held.truths).signal


def run_trust_tests(
    model: TokenSelectionClassifier,
    texts: Sequence[str],
    labels: Sequence[Any],
    *,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
) -> TrustTests:
    """In each split, fit a copy of the model and the references on four fifths of the distinct texts of each class, and
    test on the rest.
    """
    tell = progress or (lambda step: None)
    names = np.array([str(name) for name in model.classes_])
    codes = np.array([int(np.flatnonzero(names == str(label))[0]) for label in labels])
    rows = np.arange(len(codes))
    if len(rows) > MOST_TEXTS:
        rows = np.sort(rng.choice(len(rows), MOST_TEXTS, replace=False))
    documents = [texts[row] for row in rows.tolist()]
    group = document_numbers(documents)
    once = np.zeros(len(rows), bool)  # one row of each text with each of its labels
    once[np.unique(group * len(names) + codes[rows], return_index=True)[1]] = True
    met = np.zeros(len(rows), bool)
    scores: dict[str, list[tuple[float, float]]] = {name: [] for name in (OURS, UNIFORM, LOGISTIC)}
    tables, first = [], None
    for split in range(SPLITS):
        tell(f"split {split + 1} of {SPLITS}")
        held = _split_rows(documents, codes[rows], int(rng.integers(2**31)))
        tested = held & once
        met |= tested
        copy = clone(model).set_params(validation_fraction=0.0, random_state=split, progress=None)
        train, test = ([documents[at] for at in np.flatnonzero(mask)] for mask in (~held, tested))
        y, truths = codes[rows][~held], codes[rows][tested]
        copy.fit(train, y)
        said = _pad_classes(copy, test, len(names))
        scores[OURS].append(_scores(said, truths))
        plain = clone(copy).set_params(attention="uniform").fit(train, y)
        scores[UNIFORM].append(_scores(_pad_classes(plain, test, len(names)), truths))
        scores[LOGISTIC].append(_logistic(copy, (train, y), (test, truths), len(names)))
        tables.append(copy.token_importance_)
        if first is None:
            copies = np.flatnonzero(tested)[_near_copies(test, train)]
            copy.classes_ = model.classes_[copy.classes_]
            first = HeldOutTexts(rows[tested], truths, said, rows[copies], copy)
            shown = test[:DELETED_FROM]
    tell("deleting words")
    assert first is not None
    models = []
    for name, found in scores.items():
        accuracies, losses = np.array(found).T
        models.append(ModelScores(name, accuracies, losses, int(met.sum())))
    return TrustTests(
        texts=len(rows),
        duplicates=len(rows) - int(group.max()) - 1,
        models=tuple(models),
        majority=float(np.bincount(codes[rows][once]).max() / once.sum()),
        importance_agreement=importance_agreement(tables),
        deletion=deletion_test(first.model, shown, rng=rng),
        held=first,
    )


def _split_rows(documents: Sequence[Any], codes: Array, seed: int) -> Array:
    """A mask of a fifth of the distinct texts, with their copies, that holds out where it can a text of every class.

    A text with several labels is held out with the class of the smallest.
    """
    group = document_numbers(documents)
    _, first = np.unique(group, return_index=True)
    chance = draw_numbers([documents[row] for row in first.tolist()], seed)
    stratum = np.full(len(first), codes.max())
    np.minimum.at(stratum, group, codes)
    held = held_out_mask(stratum, chance, HELD)
    for code in np.unique(stratum):
        here = np.flatnonzero(stratum == code)
        if not held[here].any() and len(here) > 1:
            held[here[chance[here].argmin()]] = True
    mask = held[group]
    if not mask.any() or len(np.unique(codes[~mask])) < 2:
        raise ValueError(
            f"tests of trust hold texts out and learn from the others, which must have two classes; {len(first)} "
            "distinct texts are too few for that: give more, or none for a page without tests"
        )
    return mask


def _pad_classes(model: Any, X: Any, k: int) -> Float[Array, "n k"]:
    """Probabilities of all classes; 0 for those that the training texts of the split did not have."""
    given = model.predict_proba(X)
    found = np.zeros((len(given), k))
    found[:, model.classes_] = given
    return found


def _scores(probabilities: Array, truths: Array) -> tuple[float, float]:
    own = probabilities[np.arange(len(truths)), truths]
    return float((probabilities.argmax(1) == truths).mean()), float(-np.log(np.maximum(own, 1e-12)).mean())


def _logistic(
    model: TokenSelectionClassifier, train: tuple[Sequence[Any], Array], test: tuple[Sequence[Any], Array], k: int
) -> tuple[float, float]:
    """TF-IDF over the model's own tokens, and logistic regression with the best of three penalties."""
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    def counts(texts: Sequence[Any]) -> sp.csr_matrix:
        encoded = model.vocabulary_.encode(read_tokens(texts, model.tokenizer))
        return encoded.presence(len(model.vocabulary_), repeats=True)

    if not len(model.vocabulary_) or np.bincount(train[1])[np.unique(train[1])].min() < 3:
        return float("nan"), float("nan")
    transform = TfidfTransformer(sublinear_tf=True)
    features = transform.fit_transform(counts(train[0]))
    search = GridSearchCV(LogisticRegression(max_iter=300, tol=1e-3), {"C": [1, 10, 100]}, cv=3, scoring="neg_log_loss")
    search.fit(features, train[1])
    return _scores(_pad_classes(search, transform.transform(counts(test[0])), k), test[1])


def _near_copies(test: Sequence[Any], train: Sequence[Any]) -> list[int]:
    """Places of test texts that equal a training text but for numbers, capital letters and punctuation."""

    def words(text: Any) -> str:
        return " ".join(re.sub(r"[\W\d_]+", " ", join_tokens(text).lower()).split())

    known = {words(text) for text in train} - {""}
    return [place for place, text in enumerate(test) if words(text) in known]
