"""The report of a classifier: one HTML file with its tokens, its decisions, its tests and its origin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy import ndarray as Array

from tokenmargin._version import __version__
from tokenmargin.classifier import Explanation, TokenSelectionClassifier, TokenTable
from tokenmargin.classifier.evaluation import TrustTests
from tokenmargin.report.explore.page import join_modules
from tokenmargin.report.model_evidence import (
    MOST_CLASSES,
    PartsFound,
    example,
    parts_context,
    trial_context,
    trust_rows,
)
from tokenmargin.report.page import write_template
from tokenmargin.report.word_model import can_be_read_by_pages, class_names, page_model

PLOTTED, LISTED, FIRST = 2000, 5000, 50
SHAREABLE, OWN_TOKENS = 10, 40_000
NAMED, CONSIDERED, LONGEST_NAME = 16, 200, 16  # tokens written into a plot
COLUMNS = {
    "token": "token",
    "count": "texts",
    "posterior_difference": "posterior difference",
    "signed_frequency": "signed frequency",
    "attention_logit": "⟨E,p⟩",
    "value": "⟨E,v⟩",
    "selected": "selected",
    "contribution": "contribution",
    "influence": "influence",
    "class": "class",
}


HINTS = {
    "count": "Texts that hold it",
    "posterior_difference": "Of its occurrences, the part in its class less the part in the others: (37) of paper A",
    "signed_frequency": "Its occurrences in its class less those in the others, over those of all known tokens: (3) of "
    "paper A",
    "attention_logit": "How much attention it draws: the logarithm of its weight before all weights are divided",
    "value": "What it says when attended to: positive speaks for its class",
    "selected": "Texts in which its ⟨E,p⟩ is the largest, or the first of the largest",
    "contribution": "What it adds to a decision, on average over all texts",
    "influence": "How far it moves decisions apart: the spread over texts of its average contribution, there or not",
}


@dataclass(frozen=True, eq=False)
class ModelReport:
    """What a report shows; without `examples` and `texts` it holds no text, only tokens."""

    model: TokenSelectionClassifier
    trust: TrustTests | None = None
    examples: Sequence[Explanation] = ()
    truths: Sequence[Any] = ()
    texts: Sequence[str] = ()  # those that `trust` was found on; without them no text of the data is in the page
    parts: PartsFound | None = None  # of the same texts
    private: bool = False  # leave out rare tokens and those with digits
    provenance: Mapping[str, Any] = field(default_factory=dict)
    command: str = "tokenmargin report"


def write_model_report(report: ModelReport, path: Path) -> Path:
    """Write the page, whole or not at all."""
    return write_template(path, "model.html", _context(report))


def _context(report: ModelReport) -> dict[str, Any]:
    """What the template shows: the model, its trials, a box to type into, its tokens, and where it comes from."""
    model = report.model
    full = _shareable(model.token_importance_) if report.private else model.token_importance_
    names = list(class_names(model))
    called = dict(zip(map(str, model.classes_.tolist()), names, strict=True))
    return {
        "title": "Which words decide",
        "lead": f"This model sorts texts into {len(names)} classes ({', '.join(names[:6])}"
        f"{', ...' if len(names) > 6 else ''}). It knows {len(model.vocabulary_):,} words and phrases from "
        f"{model.n_texts_:,} texts and adds up what each says.",
        "trusted": report.trust.signal if report.trust else model.validation_ is None or model.validation_.signal,
        "class_names": names[:MOST_CLASSES],
        "tokens": f"{len(model.vocabulary_):,}",
        **dict(
            zip(("negative", "positive"), names if len(names) == 2 else ("other classes", "its class"), strict=True)
        ),
        **_token_context(full.head(LISTED)),
        **_own_text_context(model, full),
        **parts_context(report.trust, report.parts, {*full["token"].tolist()}),
        **trial_context(report.trust, report.texts, model.validation_, called),
        "examples": [example(one, truth, called) for one, truth in _with_truths(report)],
        "trust": trust_rows(report.trust),
        "curves": _curves(model.loss_curve_, report.trust),
        "provenance": [(name, str(value)) for name, value in report.provenance.items()],
        "version": __version__,
        "command": report.command,
    }


def _token_context(table: TokenTable) -> dict[str, Any]:
    """The table of tokens, as a list and in two plots."""
    shown = {name: title for name, title in COLUMNS.items() if name in table.columns}
    rows = [list(row) for row in zip(*(_plain(table[name]) for name in shown), strict=True)]
    return {
        "plots": [_scatter(table.head(PLOTTED).columns, name) for name in ("attention_logit", "value")],
        "columns": [(title, HINTS.get(name, "")) for name, title in shown.items()],
        "first_rows": [[_short(value) for value in row] for row in rows[:FIRST]],
        "data": _script({"columns": list(shown.values()), "rows": rows}),
    }


def _own_text_context(model: TokenSelectionClassifier, table: TokenTable) -> dict[str, Any]:
    """What the page needs to decide a text typed into it."""
    own = _own_text(model, table)
    tokens = own["tokens"].count("\n") + 1 if own else 0
    return {
        "own_text": own is not None,
        "own_complete": tokens == len(model.vocabulary_),
        "own_tokens": f"{tokens:,}",
        "deciding": Markup(join_modules(("wordmodel.js",))),
        "model_data": _script(own),
    }


def _script(data: object) -> Markup:
    """JSON inside a script element, which only a "<" could end or change."""
    return Markup(json.dumps(data, ensure_ascii=False).replace("<", "\\u003c"))


def _with_truths(report: ModelReport) -> list[tuple[Explanation, Any]]:
    truths = list(report.truths) or [None] * len(report.examples)
    return list(zip(report.examples, truths, strict=True))


def _plain(column: Array) -> list[Any]:
    return [float(f"{value:.6g}") for value in column] if column.dtype.kind == "f" else column.tolist()


def _short(value: Any) -> str:
    """A cell for people: three digits and a true minus."""
    return f"{value:.3g}".replace("-", "−") if isinstance(value, float) else str(value)


def _scatter(columns: Mapping[str, Array], name: str) -> dict[str, Any]:
    x, y = columns["posterior_difference"], columns[name]
    low, high = (float(y.min()), float(y.max())) if len(y) else (0.0, 1.0)
    if name == "value":
        low, high = min(low, 0.0), max(high, 0.0)
    span = high - low or 1.0
    right, up = 230 + 176 * x, 275 - 255 * (y - low) / span
    size = 1.5 + 4.5 * np.sqrt(columns["count"] / max(columns["count"].max(initial=1), 1))
    zero = 275 - 255 * (0 - low) / span
    return {
        "label": COLUMNS[name] + (": attention" if name == "attention_logit" else ": value"),
        "low": _short(low),
        "high": _short(high),
        "zero": f"{zero:.1f}" if low <= 0 <= high else "280",
        "zero_label": f"{zero + 4:.1f}" if 40 < zero < 262 else "",
        "points": [(f"{a:.1f}", f"{b:.1f}", f"{c:.1f}") for a, b, c in zip(right, up, size, strict=True)],
        "names": _names(columns["token"], right, up),
    }


def _names(tokens: Array, right: Array, up: Array) -> list[tuple[str, str, str, str]]:
    """Where the leading tokens are written beside their dots: as many as find a place of their own."""
    taken: list[tuple[float, float, float]] = []
    names = []
    for token, x, y in zip(tokens[:CONSIDERED].tolist(), right, up, strict=False):
        width = 5.4 * len(token) + 6
        left = x + 5 if x < 230 else x - 5 - width
        if left < 52 or left + width > 418 or y < 18 or len(token) > LONGEST_NAME:
            continue
        if any(abs(y - b) < 11 and left < a + w and a < left + width for a, b, w in taken):
            continue
        taken.append((left, float(y), width))
        names.append((f"{x + 5 if x < 230 else x - 5:.1f}", f"{y + 3:.1f}", "start" if x < 230 else "end", token))
        if len(names) == NAMED:
            break
    return names


def _shareable(table: TokenTable) -> TokenTable:
    """Tokens that tell nothing of a single text: in ten texts at least, and without digits."""
    kept = [
        row
        for row, (token, count) in enumerate(zip(table["token"], table["count"], strict=True))
        if count >= SHAREABLE and not any(character.isdigit() for character in token)
    ]
    return TokenTable({name: column[kept] for name, column in table.columns.items()})


def _own_text(model: TokenSelectionClassifier, table: TokenTable) -> dict[str, Any] | None:
    """What the page needs to decide a text typed into it: only where its own script cuts words as the model does."""
    if not can_be_read_by_pages(model):
        return None
    rows = {name: row for row, name in enumerate(model.vocabulary_.names)}
    chosen = [rows[name] for name in table["token"][:OWN_TOKENS].tolist()]
    return page_model(model, rows=np.array(chosen, dtype=int))


def _curves(losses: Sequence[float], trust: TrustTests | None) -> list[dict[str, Any]]:
    curves = []
    if trust is not None:
        deletion = trust.deletion
        curves.append(
            _curve(
                np.array(deletion.k, float),
                [deletion.top, deletion.random],
                label="Decisions that stay when words are deleted: the strongest (solid), any (dashed). "
                "A text that runs empty falls back to the base rate.",
                across="words deleted",
                bounds=(0.0, 1.0),
                ends=("0%", "100%"),
            )
        )
    if len(losses) > 1:
        steps = np.arange(1, len(losses) + 1, dtype=float)
        values = np.array(losses)
        bounds = (float(values.min()), float(values.max()))
        label = "Training: loss with penalties; a jump is where the texts held out are added"
        curves.append(_curve(steps, [values], label=label, across="iteration", bounds=bounds))
    return curves


def _curve(
    x: Array,
    lines: list[Array],
    *,
    label: str,
    across: str,
    bounds: tuple[float, float],
    ends: tuple[str, str] | None = None,
) -> dict[str, Any]:
    low, high = bounds
    shown = ends or (_short(low), _short(high))
    left = 50 + 360 * (x - x[0]) / ((x[-1] - x[0]) or 1.0)
    paths = []
    for y in lines:
        up = 215 - 195 * (y - low) / ((high - low) or 1.0)
        paths.append("M" + " L".join(f"{a:.1f},{b:.1f}" for a, b in zip(left, up, strict=True)))
    return {
        "label": label, "across": across, "paths": paths, "low": shown[0], "high": shown[1],
        "first": f"{x[0]:g}", "last": f"{x[-1]:g}",
    }  # fmt: skip


def model_figures(report: ModelReport) -> dict[str, Figure]:
    """The report's pictures for print: two scatter plots, the loss, and the deletion test."""
    table = report.model.token_importance_.head(PLOTTED)
    figures = {}
    for name in ("attention_logit", "value"):
        figure, axes = _empty_axes("posterior difference", COLUMNS[name])
        axes.scatter(table["posterior_difference"], table[name], s=6, alpha=0.4, color="#0072B2", linewidths=0)
        for token, x, y in zip(*(table.head(12)[key] for key in ("token", "posterior_difference", name)), strict=True):
            axes.annotate(str(token).replace("$", r"\$"), (x, y), fontsize=6)
        figures[name] = figure
    figure, axes = _empty_axes("iteration", "loss")
    axes.plot(np.arange(1, len(report.model.loss_curve_) + 1), report.model.loss_curve_, color="#0072B2")
    figures["training"] = figure
    if report.trust is not None:
        deletion = report.trust.deletion
        figure, axes = _empty_axes("words deleted", "decisions that stay")
        axes.plot(deletion.k, deletion.top, color="#0072B2", label="the strongest")
        axes.plot(deletion.k, deletion.random, color="#D55E00", linestyle="--", label="any")
        axes.legend(frameon=False)
        figures["deletion"] = figure
    return figures


def _empty_axes(across: str, up: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up.replace("⟨", "<").replace("⟩", ">"))
    return figure, axes
