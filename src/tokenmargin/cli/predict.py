"""`tokenmargin predict`: decide texts with a model."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tokenmargin.cli._common import Delimiter, Encoding, ModelFolder, TextColumn, needs_extra, say, usage_errors
from tokenmargin.cli._texts import open_model

if TYPE_CHECKING:
    from tokenmargin.classifier import TokenSelectionClassifier
    from tokenmargin.data.rows import TextRows


def predict(
    model: ModelFolder,
    source: str,
    /,
    *,
    text: TextColumn = "text",
    out: Path | None = None,
    encoding: Encoding = None,
    delimiter: Delimiter = None,
) -> int:
    """Write the table of texts with the predicted class and the probability of every class beside each row.

    Every row is there, in its order, with its number and all its columns; one without a text has no prediction.
    Texts are written as they are. A spreadsheet takes a text that begins with =, +, - or @ for a formula: open the
    table there only if you trust the texts, or import the column as text.

    Examples:

        tokenmargin predict model reviews.csv --text review --out predictions.csv

    Parameters
    ----------
    source:
        Texts, in any form that tokenmargin fit reads.
    out:
        The .csv file to write; standard output without it.
    """
    classifier = open_model(model)
    with needs_extra("text"):
        from tokenmargin.data.rows import read_text_rows
    with usage_errors():
        rows = read_text_rows(source, text=text, encoding=encoding, delimiter=delimiter)
    empty = sum(one is None for one in rows.texts)
    if empty:
        say(f"{empty} of {len(rows.texts)} rows have no text that can be read: they have no prediction")
    table = _table(classifier, rows)
    if out is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        csv.writer(sys.stdout).writerows(table)
        return 0
    from tokenmargin._files import atomic_path

    with atomic_path(out) as beside, _opened(beside) as file:
        csv.writer(file).writerows(table)
    return 0


def _opened(path: Path) -> TextIO:
    """The output file; half characters, which UTF-8 cannot write, become escapes."""
    return path.open("w", encoding="utf-8", errors="backslashreplace", newline="")


def _table(classifier: TokenSelectionClassifier, rows: TextRows) -> list[list[Any]]:
    """Row number, the row's own columns, then what the model says."""
    known = [k for k, one in enumerate(rows.texts) if one is not None]
    probabilities = classifier.predict_proba([rows.texts[k] for k in known])
    said: dict[int, list[str]] = {}
    for k, row in zip(known, probabilities, strict=True):
        said[k] = [str(classifier.classes_[row.argmax()]), f"{row.max():.6f}", *(f"{value:.6f}" for value in row)]
    names = ["predicted", "probability", *(f"p({name})" for name in classifier.classes_)]
    header = ["row", *rows.columns, *names]
    own = zip(*rows.columns.values(), strict=True)
    blank = [""] * len(names)
    return [header, *([k + 1, *values, *said.get(k, blank)] for k, values in enumerate(own))]
