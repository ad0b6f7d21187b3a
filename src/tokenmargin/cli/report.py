"""`tokenmargin report`: one page to share about a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenmargin.cli._common import Seed, UsageError, needs_extra, say
from tokenmargin.cli._model import command_line, data_hash, open_model, read_rows, versions


def report(
    model: Path,
    source: str | None = None,
    /,
    *,
    out: Path = Path("report.html"),
    text: str = "text",
    label: str = "label",
    encoding: str | None = None,
    delimiter: str | None = None,
    no_texts: bool = False,
    figures: Path | None = None,
    seed: Seed = 0,
) -> int:
    """Write one self-contained HTML page: tokens, examples, tests of trust, origin.

    With labelled texts the model is trained again on parts of them, to test it and its explanations on the rest.

    Examples:

        tokenmargin report model reviews.csv --text review --label sentiment --out report.html
        tokenmargin report model reviews.csv --text review --label sentiment --no-texts

    Parameters
    ----------
    model:
        A model folder, written by tokenmargin fit.
    source:
        Labelled texts, in any form that tokenmargin fit reads; without them the page has no tests and no examples.
    out:
        The page to write.
    text:
        The column with the texts.
    label:
        The column with the labels.
    encoding:
        Of a .csv or .tsv file, if it is not UTF-8: utf-16, latin-1, cp1252.
    delimiter:
        Of a .csv or .tsv file, if it is not a comma or a tab.
    no_texts:
        No text of the data is in the page, no token with digits, and none that fewer than ten texts hold.
    figures:
        Also write the figures as SVG, PDF and PNG into this folder.
    seed:
        Of the tests.
    """
    classifier = open_model(model)
    with needs_extra("report"):
        import numpy as np

        from tokenmargin.classifier.files import model_notes
        from tokenmargin.classifier.trust import assess
        from tokenmargin.report.figures import save_figure
        from tokenmargin.report.model_page import ModelReport, model_figures, write_model_report
    notes: dict[str, Any] = {f"model, {key}": value for key, value in model_notes(model).items()}
    content: dict[str, Any] = {}
    if source is not None:
        rows = read_rows(source, text=text, label=label, encoding=encoding, delimiter=delimiter)
        unknown = sorted(set(rows.labels) - {str(c) for c in classifier.classes_})
        if unknown:
            raise UsageError(f"{source}: the label {unknown[0]!r} is none of the model's classes")
        if len(set(rows.labels)) < 2:
            raise UsageError(f"{source}: all rows have one label; tests of trust need two classes")
        rng = np.random.default_rng(seed)
        content["trust"] = assess(classifier, rows.texts, rows.labels, rng=rng, progress=say)
        notes |= {"tests, data": source, "tests, data sha256": data_hash(rows.texts, rows.labels), "tests, seed": seed}
        if not no_texts:
            content["texts"] = rows.texts
    notes["report, versions"] = versions()
    page = ModelReport(classifier, provenance=notes, command=command_line(), private=no_texts, **content)
    write_model_report(page, out)
    if figures is not None:
        for name, figure in model_figures(page).items():
            save_figure(figure, figures, name)
    print(out)
    return 0
