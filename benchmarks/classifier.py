"""Accuracy and time of the classifier on IMDB beside TF-IDF + logistic regression, NB-SVM and fastText.

    python -m benchmarks.classifier imdb.parquet --ngrams 1 --seeds 5
    python -m benchmarks.classifier imdb.parquet --ngrams 3 --seeds 5
    python -m benchmarks.classifier --suite imdb.parquet yelp.parquet --ngrams 2 --seeds 3   (see classifier_suite.py)

The table holds `text` and `label`, the released 25,000 training rows first. Test texts that occur in the training half
are removed. Settings are the defaults of each method, chosen on a part of the training half. Times are wall clock and
CPU seconds from texts to a fitted model.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow.parquet as pq
from cyclopts import Parameter

from benchmarks.classifier_suite import suite
from benchmarks.tools import run_main
from tokenmargin.classifier import TokenSelectionClassifier
from tokenmargin.classifier.evaluation import deletion_test, importance_agreement
from tokenmargin.classifier.explanation import Explanation

TRAIN = 25_000
WORDS = r"(?u)\b\w+\b"  # with words of one letter, as ours
Halves = tuple[list[str], np.ndarray, list[str], np.ndarray]


def read(path: Path) -> Halves:
    """Training and test halves, without test texts that are in the training half."""
    table = pq.read_table(path)
    texts, labels = table["text"].to_pylist(), np.array(table["label"].to_pylist())
    known = set(texts[:TRAIN])
    kept = [row for row in range(TRAIN, len(texts)) if texts[row] not in known]
    return texts[:TRAIN], labels[:TRAIN], [texts[row] for row in kept], labels[kept]


def timed(work: Callable[[], object]) -> tuple[object, float, float]:
    """The answer, wall clock and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer = work()
    return answer, time.perf_counter() - wall, time.process_time() - cpu


def line(name: str, accuracy: str, wall: float, cpu: float, rate: float) -> None:
    """One row of the table."""
    print(f"{name:34} {accuracy:>18} {wall:9.1f} {cpu:9.1f} {rate:12.0f}", flush=True)


def judge(name: str, fit: Callable[[], object], test: list[str], truth: np.ndarray) -> None:
    """Fit, predict, print."""
    model, wall, cpu = timed(fit)
    decided, seconds, _ = timed(lambda: model.predict(test))  # type: ignore[attr-defined]
    line(name, f"{(np.asarray(decided) == truth).mean():.2%}", wall, cpu, len(test) / seconds)


def tfidf(ngrams: int) -> object:
    """TF-IDF and logistic regression."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    return make_pipeline(
        TfidfVectorizer(ngram_range=(1, ngrams), min_df=2, sublinear_tf=True, token_pattern=WORDS),
        LogisticRegression(C=10.0, max_iter=300),
    )


class NaiveBayesRegression:
    """NB-SVM with a logistic loss: presence times log-count ratio, then a linear model."""

    def __init__(self, ngrams: int) -> None:
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression

        self.count = CountVectorizer(ngram_range=(1, ngrams), min_df=2, binary=True, token_pattern=WORDS)
        self.linear = LogisticRegression(C=0.1, max_iter=300)

    def fit(self, texts: list[str], labels: np.ndarray) -> NaiveBayesRegression:
        """Learn."""
        counts = self.count.fit_transform(texts)
        positive, negative = (1 + np.asarray(counts[labels == sign].sum(0)).ravel() for sign in (1, -1))
        self.ratio = np.log(positive / positive.sum()) - np.log(negative / negative.sum())
        self.linear.fit(counts.multiply(self.ratio).tocsr(), labels)
        return self

    def predict(self, texts: list[str]) -> np.ndarray:
        """Decide."""
        return self.linear.predict(self.count.transform(texts).multiply(self.ratio).tocsr())


class FastText:
    """fastText's supervised classifier, two threads."""

    def __init__(self, ngrams: int) -> None:
        self.ngrams = ngrams

    @staticmethod
    def _plain(text: str) -> str:
        return re.sub(r"[^a-z0-9]+", " ", text.lower().replace("<br />", " ")).strip()

    def fit(self, texts: list[str], labels: np.ndarray) -> FastText:
        """Learn."""
        import fasttext

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "train.txt")
            path.write_text("".join(f"__label__{y} {self._plain(t)}\n" for t, y in zip(texts, labels, strict=True)))
            self.model = fasttext.train_supervised(
                str(path), wordNgrams=self.ngrams, epoch=5, lr=0.5, dim=10, thread=2, verbose=0
            )
        return self

    def predict(self, texts: list[str]) -> np.ndarray:
        """Decide."""
        return np.array([int(self.model.f.predict(self._plain(t), 1, 0.0, "strict")[0][1][9:]) for t in texts])


def main(
    tables: list[Path] | None = None,
    /,
    *,
    ngrams: int = 1,
    seeds: int = 5,
    only: Literal["all", "ours", "references"] = "all",
    many: Annotated[bool, Parameter(name="--suite")] = False,
    whole: bool = False,
    match: str = "",
    store: Path | None = None,
    minutes: float = float("inf"),
) -> None:
    """Print the table, or those of the suite: of sets with `match` in their name, also of `whole` ones."""
    if many:
        suite(tables or [], ngrams=ngrams, seeds=seeds, whole=whole, only=match, store=store, minutes=minutes)
        return
    texts, labels, test, truth = read((tables or [Path("imdb.parquet")])[0])
    print(f"IMDB: {len(texts)} training texts, {len(test)} test texts, n-grams up to {ngrams}")
    print(f"{'method':34} {'accuracy':>18} {'fit s':>9} {'fit CPU s':>9} {'texts/s':>12}")
    if only != "references":
        ours((texts, labels, test, truth), ngrams, seeds=seeds)
    if only != "ours":
        judge("TF-IDF + logistic regression", lambda: tfidf(ngrams).fit(texts, labels), test, truth)  # type: ignore[attr-defined]
        judge("NB-SVM (logistic loss)", lambda: NaiveBayesRegression(ngrams).fit(texts, labels), test, truth)
        try:
            judge("fastText", lambda: FastText(ngrams).fit(texts, labels), test, truth)
        except ImportError:
            print("fastText: not installed, skipped")


def strengthening(explanations: Iterable[Explanation]) -> float:
    """Of the five words with the largest contributions for each decision, the share whose deletion strengthens it."""
    gone: list[bool] = []
    for one in explanations:
        side = np.sign(one.decision)
        parts = sorted((part for part in one.words if side * part.contribution > 0), key=lambda p: -abs(p.contribution))
        gone += [bool(side * part.effect < 0) for part in parts[:5]]
    return float(np.mean(gone))


def ours(data: Halves, n: int, *, seeds: int) -> None:
    """The classifier over seeds; how far the seeds agree; uniform attention; its explanations; the deletion test."""
    texts, labels, test, truth = data
    rows, tables = [], []
    for seed in range(seeds):
        fitted = TokenSelectionClassifier(ngrams=n, random_state=seed)
        _, wall, cpu = timed(lambda fitted=fitted: fitted.fit(texts, labels))
        decided, seconds, _ = timed(lambda fitted=fitted: fitted.predict(test))
        rows.append(((decided == truth).mean(), wall, cpu, len(test) / seconds, fitted.validation_.accuracy))
        tables.append(fitted.token_importance_.head(10_000))
    accuracy, wall, cpu, rate, expected = np.mean(rows, axis=0)
    line(f"tokenmargin, {seeds} seeds", f"{accuracy:.2%} +- {np.std(rows, axis=0)[0]:.2%}", wall, cpu, rate)
    agreement = importance_agreement(tables)
    print(f"held out while training: {expected:.2%}; importance of leading tokens over seeds: {agreement:.4f}")
    for kind in ("uniform", "learned"):
        judge(
            f"  the same, {kind} attention",
            lambda kind=kind: TokenSelectionClassifier(ngrams=n, attention=kind, random_state=0).fit(texts, labels),
            test,
            truth,
        )
    found, wall, cpu = min((timed(lambda: fitted.explain(test)) for _ in range(3)), key=lambda run: run[1])
    gap = np.abs(found.sums - fitted.decision_function(test)).max()  # type: ignore[attr-defined]
    print(f"explanations, best of 3: {len(test) / wall:.0f} texts/s ({cpu:.1f} CPU s), largest gap of sums {gap:.1e}")
    print(f"of the five words that speak most for a decision, {strengthening(fitted.explain(test[:1000])):.1%} would "
          "strengthen it when deleted")  # fmt: skip
    curve = deletion_test(fitted, test[:1000], rng=np.random.default_rng(0))
    for k, top, chance in zip(curve.k, curve.top, curve.random, strict=True):
        print(f"{k:3} words deleted: {top:.1%} of decisions stay (the strongest), {chance:.1%} (any)")


if __name__ == "__main__":
    run_main(main, __doc__)
