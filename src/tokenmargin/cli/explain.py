"""`tokenmargin explain`: which words of a text decided."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenmargin.cli._common import UsageError, emit_json, needs_extra, printable
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
    from rich.console import Console

    console = Console(highlight=False)
    for one in found:
        console.print(_coloured(one), soft_wrap=True)
        console.print(printable(_told(one)), style="dim", markup=False, soft_wrap=True)
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
    leading = sorted(one.words, key=lambda word: -abs(word.contribution))[:LEADING]
    words = ", ".join(f"{one.text[word.start : word.end]} {word.contribution:+.2f}" for word in leading)
    selected = f"selected {one.selected!r}" if one.selected else "no known word"
    if one.competitor:
        selected += f" by {one.margin:.2f} over {one.competitor!r}"
    return (
        f"{one.label} ({one.probability:.1%}), decision {one.decision:+.3f}: {words}; sink {one.sink:+.2f}; {selected}"
    )
