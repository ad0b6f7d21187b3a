"""What a model of 20,000 words makes of reviews it has not seen: `python -m benchmarks.english imdb.parquet`.

The file holds the 50,000 reviews as `tokenmargin data get imdb` writes them, those to learn from first. Trained on the
first half as `tokenmargin fit imdb --words 20000 --light` trains on all; judged on the reviews of the second half that
are not copies of the first, on their first sentences and on their last: how often it abstains, how often it is right.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from numpy import ndarray as Array

from benchmarks.tools import run_main
from tokenmargin.classifier import TokenSelectionClassifier
from tokenmargin.classifier.what_if import DOUBLED_ODDS, decide_by_words
from tokenmargin.data.sources import binary_labels, read_labelled

WORDS = 20_000
BREAK = re.compile(r"(?<=[.!?])\s+|<br />")


def judged(model: TokenSelectionClassifier, texts: list[str], labels: Array) -> str:
    """A row of the table: texts, accuracy, abstentions, and the accuracy on either side."""
    f = model.decision_function(texts)
    known = np.asarray(abs(model.transform(texts)).sum(1)).ravel() > 0
    start = np.where(known, model.token_model_.intercept[0], model.token_model_.prior[0])
    decided, right = np.abs(f - start) >= DOUBLED_ODDS, (f > 0) == (labels > 0)
    return (
        f"{len(texts):7,}  {right.mean():7.1%}  {1 - decided.mean():8.1%}  {right[decided].mean():7.1%}  "
        f"{right[~decided].mean():7.1%}"
    )


def main(reviews: Path, /) -> None:
    read = read_labelled(reviews)
    labels, half = binary_labels(read.labels), len(read.texts) // 2
    model = TokenSelectionClassifier(max_words=WORDS, random_state=0).fit(read.texts[:half], labels[:half])
    seen = set(read.texts[:half])
    rows = [row for row in range(half, len(read.texts)) if read.texts[row] not in seen]
    sentences = [[part for part in BREAK.split(read.texts[row]) if part.strip()] for row in rows]
    print(f"{len(model.vocabulary_):,} words, exponent {model.token_model_.exponent:g}")
    print(f"{'':18}  texts    right  abstains  decided   others")
    for name, texts in (
        ("reviews", [read.texts[row] for row in rows]),
        ("first sentences", [parts[0] for parts in sentences]),
        ("last sentences", [parts[-1] for parts in sentences]),
    ):
        print(f"{name:18}{judged(model, texts, labels[rows])}")
    table = model.token_importance_
    frequent = [str(table["token"][k]) for k in np.argsort(-table["count"], kind="stable")[:100]]
    alone = [word for word in frequent if not decide_by_words(model, word).abstains]
    print(f"of the 100 words that stand in most reviews {len(alone)} decide alone: {' '.join(alone)}")


if __name__ == "__main__":
    run_main(main, __doc__)
