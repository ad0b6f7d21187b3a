"""`tokenmargin predict`: decide texts with a model."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from tokenmargin.cli._model import open_model, read_rows

__all__ = ["predict"]


def predict(model: Path, source: str, /, *, text: str = "text", out: Path | None = None) -> int:
    """Write a table with the predicted class of each text and its probability.

    Texts are written as they are. A spreadsheet takes a text that begins with =, +, - or @ for a formula: open the
    table there only if you trust the texts, or import the column as text.

    Examples:

        tokenmargin predict model reviews.csv --text review --out predictions.csv

    Parameters
    ----------
    model:
        A model folder, written by tokenmargin fit.
    source:
        Texts, in any form that tokenmargin fit reads.
    text:
        The column with the texts.
    out:
        The .csv file to write; standard output without it.
    """
    classifier = open_model(model)
    texts = read_rows(source, text=text, label=None).texts
    probabilities = classifier.predict_proba(texts)
    decided = classifier.classes_[probabilities.argmax(axis=1)]
    table = [["text", "predicted", "probability"]]
    table += [[t, str(c), f"{p:.6f}"] for t, c, p in zip(texts, decided, probabilities.max(axis=1), strict=True)]
    if out is None:
        csv.writer(sys.stdout).writerows(table)
        return 0
    from tokenmargin._files import atomic_path

    with atomic_path(out) as beside, beside.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(table)
    return 0
