"""`tokenmargin explain` and `predict`: which words of a text decided, and what many texts are."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmargin.cli._common import (
    Delimiter,
    Encoding,
    ModelFolder,
    TextColumn,
    UsageError,
    console_for,
    emit_json,
    needs_extra,
    print_answer,
    print_message,
    print_table,
    printable,
    signed_text,
    usage_errors,
)  # fmt: skip
from tokenmargin.cli._texts import command_line, open_model

if TYPE_CHECKING:
    from rich.text import Text

    from tokenmargin.classifier import EditedText, Explanation, TokenSelectionClassifier
    from tokenmargin.data.sources import TextRows


LEADING = 5


def explain(
    model: ModelFolder,
    /,
    *texts: str,
    target: str | None = None,
    delete: str = "",
    replace: str = "",
    json: bool = False,
    html: Path | None = None,
) -> int:
    """Colour each word by its part in the decision, and say what its deletion would change.

    Examples:

        tokenmargin explain model "What a dreadful ferry!"
        tokenmargin explain model "What a dreadful ferry!" --replace dreadful=lovely
        tokenmargin explain model "What a dreadful ferry!" --target 1 --json

    Parameters
    ----------
    texts:
        The texts to explain.
    target:
        The class to explain instead of the one decided on: why not this one?
    delete:
        Words to delete and decide again, with commas between.
    replace:
        Words to replace and decide again, such as bad=good,slow=quick.
    json:
        Write one JSON array to standard output.
    html:
        Also write the page of the model with these texts.
    """
    if not texts:
        raise UsageError("which text? give it in quotes after the model")
    classifier = open_model(model)
    with usage_errors():
        found = list(classifier.explain(list(texts), target=_class_named(classifier, target)))
    edits = _edited_texts(classifier, texts, delete, replace)
    if html is not None:
        with needs_extra("report"):
            from tokenmargin.report.model_page import ModelReport, write_model_report
        write_model_report(ModelReport(classifier, examples=found, command=command_line()), html)
    if json:
        emit_json(
            [one.to_dict() | ({"what_if": asdict(edit)} if edit else {}) for one, edit in _with_edits(found, edits)]
        )
        return 0
    console = console_for(sys.stdout)
    for number, (one, edit) in enumerate(_with_edits(found, edits)):
        if number:
            console.print()
        console.print(_colour_words(one))
        print_answer(_decision_line(one))
        if len(classifier.classes_) == 2 and one.selected and one.abstains:
            print_answer("no word here that decides: together they do not even double the odds")
        _print_words(one, classifier)
        print_answer(_sign_line([str(name) for name in classifier.classes_], one))
        for line in _edit_lines(classifier, edit) if edit else ():
            print_answer(printable(line))
    return 0


def _class_named(model: TokenSelectionClassifier, name: str | None) -> object:
    """The class that a word on the command line names."""
    named = {str(value): value for value in model.classes_.tolist()}
    return None if name is None else named.get(name, name)


def _edited_texts(model: TokenSelectionClassifier, texts: Sequence[str], delete: str, replace: str) -> list[EditedText]:
    if not delete and not replace:
        return []
    from tokenmargin.classifier import what_if

    pairs = [pair.partition("=") for pair in replace.split(",") if pair]
    if any(not sign for _, sign, _ in pairs):
        raise UsageError(f"--replace must be pairs such as bad=good, with commas between, got {replace!r}")
    changes = {word.strip(): other.strip() for word, _, other in pairs}
    gone = [word.strip() for word in delete.split(",") if word.strip()]
    return [what_if(model, text, delete=gone, replace=changes) for text in texts]


def _with_edits(found: list[Explanation], edits: list[EditedText]) -> list[tuple[Explanation, EditedText | None]]:
    beside: Sequence[EditedText | None] = edits or [None] * len(found)
    return list(zip(found, beside, strict=True))


def _colour_words(one: Explanation) -> Text:
    """The text; words that speak for a positive decision stand on green, those that speak against it on red."""
    from rich.text import Text

    text = Text(printable(one.text))  # as long as it was: the places of words stay
    largest = max((abs(word.shown_contribution) for word in one.words), default=0.0) or 1.0
    for word in one.words:
        strength = abs(word.shown_contribution) / largest
        if strength > 0.05:
            shade = round(60 + 150 * strength)
            colour = f"rgb(0,{shade},80)" if word.shown_contribution > 0 else f"rgb({shade},60,0)"
            text.stylize(f"white on {colour}", word.start, word.end)
    return text


def _decision_line(one: Explanation) -> str:
    """The decision, and which token was selected."""
    selected = f"selected {one.selected!r}" if one.selected else "no known word: the base rate"
    if one.competitor:
        selected += f" by {one.margin:.2f} over {one.competitor!r}"
    return printable(f"{one.label} ({one.probability:.1%}), decision {one.decision:+.3f}: {selected}")


def _sign_line(classes: list[str], one: Explanation) -> str:
    """What a positive and a negative number speak for: of two classes, the second and the first."""
    two = len(classes) == 2
    return printable(
        f"(+ speaks for {classes[1] if two else one.label}, - {f'for {classes[0]}' if two else 'against it'})"
    )


def _print_words(one: Explanation, model: TokenSelectionClassifier) -> None:
    """Print where the decision starts, and for the words with the largest contributions what is lost without them.

    Words that are one to the model, such as those with one stem, share a row: they are lost together.
    """
    from tokenmargin.classifier.tokenizers import read_tokens

    read, pieces = read_tokens([one.text], model.tokenizer), dict[tuple[int, int], tuple[str, ...]]()
    for code, *place in zip(read.codes.tolist(), read.starts.tolist(), read.ends.tolist(), strict=True):
        pieces[place[0], place[1]] = (*pieces.get((place[0], place[1]), ()), read.distinct[code])
    forms, amounts = dict[tuple[str, ...], dict[str, str]](), dict[tuple[str, ...], tuple[float, float]]()
    for word in one.words:
        alike = pieces[word.start, word.end]
        written = one.text[word.start : word.end]
        forms.setdefault(alike, {}).setdefault(written.lower(), written)
        amounts[alike] = amounts.get(alike, (0.0, 0.0))[0] + word.contribution, word.effect
    ranked = sorted(((", ".join(forms[alike].values()), parts) for alike, parts in amounts.items()),
                    key=lambda row: -abs(row[1][0]))  # fmt: skip
    rows = [("(base rate)", signed_text(one.baseline), "", "")]
    if one.shift:
        rows.append(("(any known text)", signed_text(one.shift), "", ""))
    for name, (part, effect) in ranked[:LEADING]:
        mixed = "" if part * effect > 0 else "neither for nor against"
        rows.append((name, signed_text(part), signed_text(effect), mixed))
    if rest := ranked[LEADING:]:
        rows.append((f"({len(rest)} other words)", signed_text(sum(part for _, (part, _) in rest)), "", ""))
    print_table((("word", "<"), ("contribution", ">"), ("lost without it", ">"), ("", "<")), rows)


def _edit_lines(model: TokenSelectionClassifier, edit: EditedText) -> list[str]:
    if not edit.changed:
        return ["what if: none of these words stands in the text"]
    names = [str(value) for value in model.classes_]
    best = max(range(len(names)), key=lambda k: edit.after[k])
    shown = ", ".join(
        f"{name} {before:.1%} -> {after:.1%}"
        for k, (name, before, after) in enumerate(zip(names, edit.before, edit.after, strict=True))
        if len(names) <= LEADING or k == best
    )
    return [f"what if: {edit.edited}", f"  {shown}"]


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
        from tokenmargin.data.sources import read_text_rows
    with usage_errors():
        rows = read_text_rows(source, text=text, encoding=encoding, delimiter=delimiter)
    empty = sum(one is None for one in rows.texts)
    if empty:
        print_message(f"{empty} of {len(rows.texts)} rows have no text that can be read: they have no prediction")
    table = _prediction_rows(classifier, rows)
    if out is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        csv.writer(sys.stdout).writerows(table)
        return 0
    from tokenmargin._files import atomic_path

    with atomic_path(out) as beside, beside.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        csv.writer(file).writerows(table)  # half characters, which UTF-8 cannot write, become escapes
    return 0


def _prediction_rows(classifier: TokenSelectionClassifier, rows: TextRows) -> list[list[Any]]:
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
