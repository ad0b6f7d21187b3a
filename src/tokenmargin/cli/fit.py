"""`tokenmargin fit` and `report`: train the classifier on labelled text; one page to share about a model."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tokenmargin.cli._common import (
    Delimiter,
    Encoding,
    Json,
    LabelColumn,
    ModelFolder,
    Seed,
    TextColumn,
    UsageError,
    emit_json,
    needs_extra,
    print_error,
    print_message,
    progress_bar,
    usage_errors,
)
from tokenmargin.cli._texts import command_line, data_hash, open_model, package_versions, read_rows

if TYPE_CHECKING:
    from tokenmargin.classifier import TokenSelectionClassifier
    from tokenmargin.data.sources import LabelledText


def fit(
    source: str,
    /,
    *,
    out: Path,
    text: TextColumn = "text",
    label: LabelColumn = "label",
    encoding: Encoding = None,
    delimiter: Delimiter = None,
    ngrams: int = 1,
    tokenizer: Literal["words", "plain", "paper"] = "words",
    min_count: int = 2,
    words: int | None = None,
    exponent: float | None = None,
    balanced: bool = False,
    light: bool = False,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Train a classifier that says which tokens decide, and write a model folder.

    Examples:

        tokenmargin fit sentences --out model
        tokenmargin fit reviews.csv --text review --label sentiment --ngrams 3 --out model
        tokenmargin fit imdb --words 20000 --light --out english

    Parameters
    ----------
    source:
        A .csv, .tsv, .jsonl, .json or .parquet file, a folder with one folder of .txt files per label, hf:owner/name,
        imdb or yelp (fetched once, see tokenmargin data), or sentences (built in).
    out:
        The model folder to write.
    ngrams:
        The longest n-gram that counts as a token.
    tokenizer:
        Lower-case words with numbers, hashtags and emoji; plain words; or the paper's pipeline (stop words dropped,
        stems).
    min_count:
        How often a word must occur to be known.
    words:
        How many words are known at most, the most frequent ones.
    exponent:
        How evidence adds up: 1 is the papers' softmax attention with a sink, 0 a linear model; chosen if not given.
    balanced:
        Give rare classes the weight of frequent ones.
    light:
        Keep two numbers per word and no statistics: a small folder that explains texts but makes no report.
    seed:
        Chooses the texts held out to measure the accuracy.
    """
    with needs_extra("classify"):
        from tokenmargin.classifier import ModelFileError, TokenSelectionClassifier, save_model
    rows = read_rows(source, text=text, label=label, encoding=encoding, delimiter=delimiter)
    classes = _count_classes(source, rows, label)
    with progress_bar("training", 50) as advance, usage_errors():
        classifier = TokenSelectionClassifier(
            tokenizer,
            ngrams=ngrams,
            min_count=min_count,
            max_words=words,
            exponent="auto" if exponent is None else exponent,
            class_weight="balanced" if balanced else None,
            random_state=seed,
            progress=lambda step, loss: advance(step),
        ).fit(rows.texts, rows.labels)
    notes = {
        "data": source,
        "data sha256": data_hash(rows.texts, rows.labels),
        "seed": seed,
        "command": command_line(),
        "versions": package_versions(),
    }
    try:
        save_model(classifier, out, notes=notes, light=light)
    except ModelFileError as error:
        print_error(str(error))
        return 1
    _print_fit(classifier, len(rows.texts))
    check = classifier.validation_
    if json:
        emit_json(
            {
                "model": str(out),
                "texts": len(rows.texts),
                "classes": dict(classes),
                "tokens": len(classifier.vocabulary_),
                "duplicates": classifier.n_duplicates_,
                "exponent": classifier.token_model_.exponent,
                "accuracy": check.accuracy if check else None,
                "signal": check.signal if check else None,
            }
        )
    else:
        print(out)
    return 0


def _count_classes(source: str, rows: LabelledText, label: str) -> Counter[str]:
    """How many texts each class has; UsageError if there is one class only, or as many as if they were no classes."""
    classes = Counter(rows.labels)
    if len(classes) < 2:
        raise UsageError(
            f"{source}: all {len(rows.texts)} rows have the label {rows.labels[0]!r}; two classes are needed"
        )
    if len(classes) > max(100, len(rows.texts) // 5):
        raise UsageError(f"{source}: column {label!r} has {len(classes)} distinct labels; is it the label column?")
    return classes


def _print_fit(classifier: TokenSelectionClassifier, texts: int) -> None:
    """Print what was learned."""
    check, tokens = classifier.validation_, len(classifier.vocabulary_)
    print_message(
        f"{texts} texts, {len(classifier.classes_)} classes, {tokens} tokens, {classifier.n_iter_} iterations"
    )
    if classifier.n_duplicates_:
        print_message(f"{classifier.n_duplicates_} texts are copies of others: copies stay on one side of every split")
    if not tokens:
        print_message(
            "NO TOKEN is known: no word (punctuation is none) occurs --min-count times; every text gets the base rate"
        )
    print_message(str(check) if check else "too few texts to hold any out: the accuracy was not measured")


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

        from tokenmargin.classifier.confined_tokens import confined_tokens, parts_by_length, parts_by_value
        from tokenmargin.classifier.evaluation import run_trust_tests
        from tokenmargin.classifier.files import model_notes
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
        groups = parts_by_length(rows.texts)
        if slice is not None:
            groups = parts_by_value(slice, _column_values(source, slice, rows, (text, label), encoding, delimiter))
        with usage_errors():
            content["trust"] = run_trust_tests(classifier, rows.texts, rows.labels, rng=rng, progress=print_message)
        names = [str(name) for name in classifier.classes_]
        codes = np.array([names.index(one) for one in rows.labels])
        content["parts"] = PartsFound(groups, confined_tokens(classifier, rows.texts, codes, groups))
        notes |= {"tests, data": source, "tests, data sha256": data_hash(rows.texts, rows.labels), "tests, seed": seed}
        if not no_texts:
            content["texts"] = rows.texts
    notes["report, versions"] = package_versions()
    page = ModelReport(classifier, provenance=notes, command=command_line(), private=no_texts, **content)
    write_model_report(page, out)
    if figures is not None:
        for name, figure in model_figures(page).items():
            save_figure(figure, figures, name)
    print(out)
    return 0


def _column_values(
    source: str, name: str, rows: LabelledText, columns: tuple[str, str], encoding: str | None, delimiter: str | None
) -> list[Any]:
    """The values of another column in the rows that have a text and a label."""
    from tokenmargin.data.sources import RejectedRow, read_text_rows, text_and_label

    table = read_text_rows(source, text=columns[0], encoding=encoding, delimiter=delimiter).columns
    if name not in table:
        raise UsageError(f"{source}: no column {name!r} for --slice; it has {', '.join(map(repr, table))}")
    found = []
    for number, row in enumerate(zip(table[columns[0]], table.get(columns[1], []), table[name], strict=False)):
        if not isinstance(text_and_label((number, *row[:2])), RejectedRow):
            found.append((row[0], row[2]))
    if [text for text, _ in found] != rows.texts:
        raise UsageError(f"{source}: rows with an open quote cannot be sliced; mend its quotes, or leave --slice out")
    return [value for _, value in found]
