"""The classifier beside scikit-learn's linear models on many sets of texts, given the same tokens.

    python -m benchmarks.classifier --suite TABLES... --ngrams 2 --seeds 10 --store suite.jsonl --minutes 5

Each table (.csv or .parquet with `text` and `label`, or `stars`: 1, 2 against 4, 5) is a set, cut to slices of 1,000
and 5,000 training texts where it is large, and whole with `--whole`. Added are sets that need no table: texts of two
words, eight classes, 2% positives. Every set is split 80 to 20 by seed; each text counts once. References are TF-IDF
with logistic regression (C by 5-fold cross-validation on log loss) and with a calibrated LinearSVC (C by 5-fold
cross-validation on accuracy), both fed the tokens of our own vocabulary. CPU seconds count from texts to fitted models,
the choice of penalties included. Intervals of mean differences over the seeds are those of Nadeau and Bengio: splits
share training texts, so the variance is multiplied by 1/k + 1/4. With `--store` every split is kept in a file as soon
as it is judged, and those in the file are not judged again: a long run can be made in pieces (`--minutes`).
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from benchmarks.tools import header
from tokenmargin.classifier import TokenSelectionClassifier
from tokenmargin.classifier.fitting import document_numbers, draw_numbers, held_out_mask
from tokenmargin.data.sentences import make_sentences
from tokenmargin.data.sources import read_text_rows

SLICES = (1000, 5000)
Set = tuple[str, list[str], np.ndarray]
METHODS = ("tokenmargin", "logistic regression", "calibrated SVC")


def read_table(path: Path) -> tuple[list[str], np.ndarray]:
    """Texts and labels, each text once."""
    columns = read_text_rows(path).columns
    texts = columns["text"]
    labels = np.array(columns["label" if "label" in columns else "stars"])
    kept = np.ones(len(texts), bool)
    if "stars" in columns:
        kept, labels = labels != 3, np.where(labels > 3, 1, 0)
    _, first = np.unique(document_numbers(texts), return_index=True)
    chosen = [row for row in np.sort(first).tolist() if kept[row]]
    return [texts[row] for row in chosen], labels[chosen]


def made_sets(rng: np.random.Generator) -> Iterator[Set]:
    """Generated sets: two words, eight uneven classes, 2% positives."""
    words = np.array([f"w{k}" for k in range(2000)])
    weights = 1 / np.arange(1, 2001)
    lean = rng.normal(size=(8, 2000)) * (rng.random((8, 2000)) < 0.15)

    def texts(codes: np.ndarray, lengths: np.ndarray, strength: float) -> list[str]:
        tables = [weights * np.exp(strength * row) for row in lean]
        tables = [table / table.sum() for table in tables]
        return [" ".join(rng.choice(words, n, p=tables[c])) for c, n in zip(codes, lengths, strict=True)]

    pair = rng.integers(0, 2, 5000)
    yield "made: 2 words", texts(pair, np.full(5000, 2), 2.0), pair
    eight = rng.choice(8, 4000, p=np.array([8, 7, 6, 5, 4, 3, 2, 1]) / 36)
    yield "made: 8 classes", texts(eight, rng.integers(8, 60, 4000), 1.0), eight
    rare = (rng.random(5000) < 0.02).astype(int)
    yield "made: 2% positive", texts(rare, rng.integers(8, 40, 5000), 1.5), rare
    sentences = make_sentences(3000, rng)
    yield "made: opinions", list(sentences.texts), np.array(sentences.labels)


def slices(name: str, texts: list[str], labels: np.ndarray, *, whole: bool) -> Iterator[Set]:
    """A set in slices (five quarters of the training texts), and whole if asked or small."""
    order = np.random.default_rng(0).permutation(len(texts))
    for size in SLICES:
        rows = order[: size * 5 // 4]
        if len(texts) > size * 2.5:
            yield f"{name} {size}", [texts[row] for row in rows], labels[rows]
    if whole or len(texts) <= SLICES[-1] * 2.5:
        yield name, texts, labels


def judge(texts: list[str], labels: np.ndarray, ngrams: int, seed: int) -> dict[str, tuple[float, ...]]:
    """Accuracy, log loss and CPU seconds of each method on one split."""
    _, codes = np.unique(labels, return_inverse=True)
    order = draw_numbers(texts, 1000 + seed).argsort(kind="stable")  # of rows: a copy counts as a text of its own
    test = held_out_mask(codes, order.argsort(), 0.2)
    train_texts, test_texts = ([texts[row] for row in np.flatnonzero(mask)] for mask in (~test, test))
    begin = time.process_time()
    ours = TokenSelectionClassifier(ngrams=ngrams, random_state=seed, validation_fraction=0.0)
    ours.fit(train_texts, codes[~test])
    spent = time.process_time() - begin
    found = {METHODS[0]: (*_scores(ours.predict_proba(test_texts), codes[test]), spent)}
    begin = time.process_time()
    train, held = _features(ours, train_texts, test_texts)
    reading = (time.process_time() - begin) * len(train_texts) / len(texts)
    for method, fit in zip(METHODS[1:], (_logistic, _svc), strict=True):
        begin = time.process_time()
        model = fit(train, codes[~test])
        spent = time.process_time() - begin + reading
        found[method] = (*_scores(model.predict_proba(held), codes[test]), spent)
    return found


def _scores(probabilities: np.ndarray, codes: np.ndarray) -> tuple[float, float]:
    right = probabilities[np.arange(len(codes)), codes]
    return float((probabilities.argmax(1) == codes).mean()), float(-np.log(np.maximum(right, 1e-15)).mean())


def _features(ours: TokenSelectionClassifier, train: Sequence[str], test: Sequence[str]) -> tuple[object, object]:
    """TF-IDF over exactly the tokens that our model knows."""
    import scipy.sparse as sp
    from sklearn.feature_extraction.text import TfidfTransformer

    from tokenmargin.classifier.tokenizers import read_tokens

    def counts(texts: Sequence[str]) -> sp.csr_matrix:
        encoded = ours.vocabulary_.encode(read_tokens(texts, ours.tokenizer))
        ids = np.concatenate(encoded.levels)
        rows = np.tile(encoded.segment, len(encoded.levels))[ids >= 0]
        shape = (len(texts), len(ours.vocabulary_))
        return sp.csr_matrix((np.ones(len(rows)), (rows, ids[ids >= 0])), shape=shape)

    transform = TfidfTransformer(sublinear_tf=True)
    return transform.fit_transform(counts(train)), transform.transform(counts(test))


def _logistic(features: object, codes: np.ndarray) -> object:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    grid = {"C": [0.3, 1, 3, 10, 30, 100]}
    return GridSearchCV(LogisticRegression(max_iter=300, tol=1e-3), grid, cv=5, scoring="neg_log_loss").fit(
        features, codes
    )


def _svc(features: object, codes: np.ndarray) -> object:
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import LinearSVC

    search = GridSearchCV(LinearSVC(), {"C": [0.03, 0.1, 0.3, 1, 3]}, cv=5).fit(features, codes)
    return CalibratedClassifierCV(search.best_estimator_, cv=5).fit(features, codes)


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Mean and half of the corrected 95% interval of differences over splits."""
    k = len(differences)
    if k < 2:
        return float(differences.mean()), float("nan")
    spread = np.sqrt((1 / k + 1 / 4) * differences.var(ddof=1))
    return float(differences.mean()), float(student.ppf(0.975, k - 1) * spread)


def suite(
    tables: Sequence[Path], *, ngrams: int, seeds: int, whole: bool, only: str, store: Path | None, minutes: float
) -> None:
    """Print a row for each set, then the means over sets; what is not judged within the minutes is left out."""
    warnings.simplefilter("ignore")
    sets = [one for path in tables for one in slices(path.stem, *read_table(path), whole=whole)]
    sets += list(made_sets(np.random.default_rng(1)))
    known = {}
    if store is not None and store.is_file():
        known = {(one["set"], one["seed"]): one["found"] for one in map(json.loads, store.read_text().splitlines())}
    end = time.process_time() + 60 * minutes
    print(header("set", "accuracy: ours, LR, SVC", "less LR", "less SVC", "log loss: ours, LR, SVC", "CPU / LR"))
    rows = []
    for name, texts, labels in sets:
        if only not in name:
            continue
        for seed in range(seeds):
            if (name, seed) not in known and time.process_time() < end:
                known[name, seed] = judge(texts, labels, ngrams, seed)
                if store is not None:
                    with store.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"set": name, "seed": seed, "found": known[name, seed]}) + "\n")
        found = [known[name, seed] for seed in range(seeds) if (name, seed) in known]
        if found:
            scores = np.array([[one[method] for method in METHODS] for one in found])  # seeds, methods, what
            rows.append(scores.mean(0))
            print(_line(f"{name} ({len(found)} seeds)" if len(found) < seeds else name, scores), flush=True)
    print(_line("mean over sets", np.array(rows)[:, None].mean(0)))


def _line(name: str, scores: np.ndarray) -> str:
    mean = scores.mean(0)
    accuracy = ", ".join(f"{100 * value:.2f}" for value in mean[:, 0])
    loss = ", ".join(f"{value:.4f}" for value in mean[:, 1])
    less = []
    for k in (1, 2):
        middle, half = interval(100 * (scores[:, 0, 0] - scores[:, k, 0]))
        less.append(f"{middle:+.2f}" + (f" ± {half:.2f}" if np.isfinite(half) else ""))
    return f"| {name} | {accuracy} | {less[0]} | {less[1]} | {loss} | {mean[0, 2] / mean[1, 2]:.2f} |"
