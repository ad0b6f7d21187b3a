"""`tokenmargin report`: one page to share about a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmargin.cli._common import (
    Delimiter,
    Encoding,
    LabelColumn,
    ModelFolder,
    Seed,
    TextColumn,
    UsageError,
    needs_extra,
    say,
)
from tokenmargin.cli._texts import command_line, data_hash, open_model, read_rows, versions

if TYPE_CHECKING:
    from tokenmargin.data.sources import LabelledText


def report(
    model: ModelFolder,
    source: str | None = None,
    /,
    *,
    out: Path = Path("report.html"),
    text: TextColumn = "text",
    label: LabelColumn = "label",
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    slice: str | None = None,
    no_texts: bool = False,
    figures: Path | None = None,
    seed: Seed = 0,
) -> int:
    """Write one self-contained HTML page: tokens, examples, tests of trust, origin.

    With labelled texts the model is trained again on parts of them, to test it and its explanations on the rest.

    Examples:

        tokenmargin report model reviews.csv --text review --label sentiment --out report.html
        tokenmargin report model reviews.csv --text review --label sentiment --slice shop --no-texts

    Parameters
    ----------
    source:
        Labelled texts, in any form that tokenmargin fit reads; without them the page has no tests and no examples.
    out:
        The page to write.
    slice:
        A column of groups (a source, a year): words that decide in one of them only are told. Without it, groups by
        length.
    no_texts:
        No text of the data is in the page, no token with digits, and none that fewer than ten texts hold.
    figures:
        Also write the figures as SVG, PDF and PNG into this folder.
    seed:
        Of the tests.
    """
    classifier = open_model(model)
    if not hasattr(classifier, "token_statistics_"):
        raise UsageError(
            f"{model}: written by fit --light, without the statistics a report shows; fit it without --light"
        )
    with needs_extra("report"):
        import numpy as np

        from tokenmargin.classifier.files import model_notes
        from tokenmargin.classifier.slices import by_length, confined_tokens, name_slices
        from tokenmargin.classifier.trust import assess
        from tokenmargin.report.figures import save_figure
        from tokenmargin.report.model_evidence import PartsFound
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
        groups = by_length(rows.texts)
        if slice is not None:
            groups = name_slices(slice, _column(source, slice, rows, (text, label), encoding, delimiter))
        content["trust"] = assess(classifier, rows.texts, rows.labels, rng=rng, progress=say)
        names = [str(name) for name in classifier.classes_]
        codes = np.array([names.index(one) for one in rows.labels])
        content["parts"] = PartsFound(groups, confined_tokens(classifier, rows.texts, codes, groups))
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


def _column(
    source: str, name: str, rows: LabelledText, columns: tuple[str, str], encoding: str | None, delimiter: str | None
) -> list[Any]:
    """The values of one more column, of the rows that have a text and a label."""
    from tokenmargin.data.rows import read_text_rows
    from tokenmargin.data.sources import Rejected, usable

    table = read_text_rows(source, text=columns[0], encoding=encoding, delimiter=delimiter).columns
    if name not in table:
        raise UsageError(f"{source}: no column {name!r} for --slice; it has {', '.join(map(repr, table))}")
    found = []
    for number, row in enumerate(zip(table[columns[0]], table.get(columns[1], []), table[name], strict=False)):
        if not isinstance(usable((number, *row[:2])), Rejected):
            found.append((row[0], row[2]))
    if [text for text, _ in found] != rows.texts:
        raise UsageError(f"{source}: rows with an open quote cannot be sliced; mend its quotes, or leave --slice out")
    return [value for _, value in found]
