"""`tokenmargin explain`: which words of a text decided."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmargin.cli._common import UsageError, console_for, emit_json, needs_extra, printable, show, show_table
from tokenmargin.cli._model import command_line, open_model

if TYPE_CHECKING:
    from rich.text import Text

    from tokenmargin.classifier import Explanation

__all__ = ["explain"]

LEADING = 5


def explain(model: Path, /, *texts: str, json: bool = False, html: Path | None = None) -> int:
    """Colour each word by its part in the decision.

    Examples:

        tokenmargin explain model "What a dreadful ferry!"
        tokenmargin explain model "What a dreadful ferry!" --json

    Parameters
    ----------
    model:
        A model folder, written by tokenmargin fit.
    texts:
        The texts to explain.
    json:
        Write one JSON array to standard output.
    html:
        Also write the page of the model with these texts.
    """
    if not texts:
        raise UsageError("which text? give it in quotes after the model")
    classifier = open_model(model)
    found = list(classifier.explain(list(texts)))
    if html is not None:
        with needs_extra("report"):
            from tokenmargin.report.model_page import ModelReport, write_model_report
        write_model_report(ModelReport(classifier, examples=found, command=command_line()), html)
    if json:
        emit_json([one.to_dict() for one in found])
        return 0
    console = console_for(sys.stdout)
    for number, one in enumerate(found):
        if number:
            console.print()
        console.print(_coloured(one))
        show(_told(one))
        _tell_words(one)
    return 0


def _coloured(one: Explanation) -> Text:
    """The text on green where a word speaks for a positive decision, on red where against."""
    from rich.text import Text

    text = Text(printable(one.text))  # as long as it was: the places of words stay
    largest = max((abs(word.contribution) for word in one.words), default=0.0) or 1.0
    for word in one.words:
        strength = abs(word.contribution) / largest
        if strength > 0.05:
            shade = round(60 + 150 * strength)
            colour = f"rgb(0,{shade},80)" if word.contribution > 0 else f"rgb({shade},60,0)"
            text.stylize(f"white on {colour}", word.start, word.end)
    return text


def _told(one: Explanation) -> str:
    """The decision, and which token was selected."""
    selected = f"selected {one.selected!r}" if one.selected else "no known word"
    if one.competitor:
        selected += f" by {one.margin:.2f} over {one.competitor!r}"
    return printable(f"{one.label} ({one.probability:.1%}), decision {one.decision:+.3f}: {selected}")


def _tell_words(one: Explanation) -> None:
    """The words with the largest parts in the decision, and what the others and the sink add to it."""
    ranked = sorted(one.words, key=lambda word: -abs(word.contribution))
    rows = [
        (one.text[word.start : word.end], f"{word.weight:.1%}", f"{word.contribution:+.2f}")
        for word in ranked[:LEADING]
    ]
    if rest := ranked[LEADING:]:
        weight, part = sum(word.weight for word in rest), sum(word.contribution for word in rest)
        rows.append((f"({len(rest)} other words)", f"{weight:.1%}", f"{part:+.2f}"))
    rows.append(("(sink)", f"{1 - sum(word.weight for word in ranked):.1%}", f"{one.sink:+.2f}"))
    show_table((("word", "<"), ("weight", ">"), ("contribution", ">")), rows)
