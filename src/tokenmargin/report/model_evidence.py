"""What a report shows of a model's trials, in plain words: verdict, confusion, calibration, errors, comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import pairwise
from typing import Any

import numpy as np
from numpy import ndarray as Array

from tokenmargin._statistics import wilson_interval
from tokenmargin.classifier import Explanation, WordPart
from tokenmargin.classifier.confined_tokens import ConfinedToken, TextParts
from tokenmargin.classifier.evaluation import TrustTests
from tokenmargin.classifier.fitting import UNBALANCED, Validation

TAG = re.compile(r"<[^<>\n]{1,500}>")
BINS = (0.0, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0001)
MOST_CLASSES = 20
ERRORS, SUSPECTS, COPIES, MIX_UPS = 8, 12, 6, 5
MOST_WORDS = 90  # of a long text, the part that says most
COUNTED = ("No text", "One text", "Two texts", "Three texts")
LIT, SHORT = 3, 240
CONFINED = 25
KINDS = {"confined": "stands only there", "one-sided": "says so only there", "gives away": "gives the part away"}


@dataclass(frozen=True, eq=False)
class PartsFound:
    """The parts of the data, and the words that decide in one of them only."""

    division: TextParts
    confined: Sequence[ConfinedToken]


def in_plain_words(trust: TrustTests, names: Sequence[str]) -> str:
    """How often it is right, against guessing and against the usual method; of uneven classes, how the rarest fares."""
    ours, *others = trust.models
    n = len(trust.held.truths)
    low, high = wilson_interval(ours.accuracies[0] * n, n)
    text = (
        f"Of 100 texts it has not seen it gets about {100 * ours.accuracies[0]:.0f} right "
        f"(with 95% confidence between {100 * low:.0f} and {100 * high:.0f}; {n:,} texts were kept aside to count). "
        f"Always answering with the most frequent class would get {100 * trust.majority:.0f} right."
    )
    if not trust.signal:
        text += " NO SIGNAL: this is not distinguishable from guessing, and what it says of words may be chance."
    counts = trust.held.confusion
    rare = int(counts.sum(1).argmin())
    hits, own, given = int(counts[rare, rare]), int(counts[rare].sum()), int(counts[:, rare].sum())
    if trust.majority >= UNBALANCED and own:
        text += f" Of the {own:,} texts of the rarest class, {names[rare]}, it found {hits:,}"
        text += f", and {hits:,} of the {given:,} that it called so were." if given else "."
    usual = others[-1]
    if np.isfinite(usual.accuracy):
        gap, half = ours.lead_over(usual)
        lead = f"{_signed(100 * gap, 1)} points, give or take {100 * half:.1f}, over {len(ours.accuracies)} splits"
        level = abs(gap) <= half
        standing = "level with" if level else "better than" if gap > 0 else "worse than"
        text += f" On the same texts and words it is {standing} the usual method, {usual.name} "
        text += f"({lead}{': that may be chance' if level else ''})."
    return text


def _signed(number: float, digits: int) -> str:
    return f"{number:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def compared_rows(trust: TrustTests) -> list[tuple[str, ...]]:
    """All models on the same splits: accuracy, log loss, and the first model's lead with its interval."""
    ours = trust.models[0]
    rows: list[tuple[str, ...]] = []
    for one in trust.models:
        lead = ""
        if not np.isfinite(one.accuracy):
            rows.append((one.name, "not fitted", "no known word, or fewer than three texts of a class", "", ""))
            continue
        if one is not ours:
            gap, half = ours.lead_over(one)
            lead = f"{_signed(100 * gap, 2)} \u00b1 {100 * half:.2f}"
        each = ", ".join(f"{100 * value:.1f}%" for value in one.accuracies)
        rows.append((one.name, f"{one.accuracy:.1%}", each, f"{one.losses.mean():.3f}", lead))
    return rows


def confusion(trust: TrustTests, names: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of the confusion matrix, shaded by the part of the true class."""
    counts = trust.held.confusion[:MOST_CLASSES, :MOST_CLASSES]
    total = np.maximum(counts.sum(1, keepdims=True), 1)
    return [
        {
            "name": names[k],
            "cells": [
                (int(count), f"{0.7 * count / total[k, 0]:.2f}", "plus" if j == k else "minus")
                for j, count in enumerate(row)
            ],
        }
        for k, row in enumerate(counts)
    ]


def mix_ups(trust: TrustTests, names: Sequence[str]) -> list[str]:
    """The classes that are most often taken for another, in words; of two classes the matrix says it all."""
    counts = trust.held.confusion.copy()
    total = counts.sum(1)
    np.fill_diagonal(counts, 0)
    if len(counts) < 3:
        return []
    order = np.argsort(-counts, axis=None, kind="stable")[:MIX_UPS]
    pairs = [(int(at) // len(counts), int(at) % len(counts)) for at in order if counts.flat[at] > 1]
    return [f"{counts[a, b]} of {total[a]} texts of {names[a]} were taken for {names[b]}" for a, b in pairs]


def class_rows(trust: TrustTests, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Texts, precision and recall of each class, with intervals."""
    counts = trust.held.confusion
    rows: list[tuple[str, ...]] = []
    for k, name in enumerate(names):
        hits, own, given = int(counts[k, k]), int(counts[k].sum()), int(counts[:, k].sum())
        rows.append((name, str(own), _share(hits, given), _share(hits, own)))
    return rows


def _share(hits: int, total: int) -> str:
    if not total:
        return "none"
    low, high = wilson_interval(hits, total)
    return f"{hits / total:.0%} ({low:.0%} to {high:.0%})"


def calibration_rows(trust: TrustTests) -> list[tuple[str, ...]]:
    """How often it was right among the texts it was so sure about."""
    sure = trust.held.probabilities.max(1)
    right = trust.held.probabilities.argmax(1) == trust.held.truths
    rows: list[tuple[str, ...]] = []
    for low, high in pairwise(BINS):
        here = (sure >= low) & (sure < high)
        if here.any():
            name = f"{low:.0%} to {min(high, 1):.0%}" if low else f"below {high:.0%}"
            rows.append(
                (
                    name,
                    str(int(here.sum())),
                    f"{sure[here].mean():.1%}",
                    _share(int(right[here].sum()), int(here.sum())),
                )
            )
    return rows


def part_rows(trust: TrustTests, parts: PartsFound) -> list[tuple[str, ...]]:
    """Of each part: texts in all, texts held out, and how many of these were decided rightly."""
    held, of = trust.held, parts.division.of
    right = held.probabilities.argmax(1) == held.truths
    rows: list[tuple[str, ...]] = []
    for number, name in enumerate(parts.division.names):
        here = of[held.rows] == number
        rows.append((name, str(int((of == number).sum())), _share(int(right[here].sum()), int(here.sum()))))
    return rows


def confined_rows(parts: PartsFound, shown: Callable[[str], bool]) -> list[tuple[str, ...]]:
    """The words that decide in one part only, in words for people."""
    rows: list[tuple[str, ...]] = []
    for one in [one for one in parts.confined if shown(one.token)][:CONFINED]:
        sides = [
            f"{side.share:.0%} of {side.texts}, without it {side.without:.0%}" if side.texts else "in no text"
            for side in (one.here, one.elsewhere)
        ]
        rows.append((one.token, KINDS[one.kind], one.part, str(one.label), *sides))
    return rows


def sure_examples(trust: TrustTests, texts: Sequence[str]) -> list[tuple[Explanation, Any]]:
    """Three short texts that were decided rightly and surely, of different classes where there are."""
    held = trust.held
    right = held.probabilities.argmax(1) == held.truths
    lengths = np.array([len(texts[row]) for row in held.rows])
    good = np.flatnonzero(right & (lengths <= SHORT) & (lengths >= 20))
    if len(good) < LIT:  # all are long, or nearly all
        good = np.flatnonzero(right)
        good = good[np.argsort(lengths[good], kind="stable")[: 10 * LIT]]
    order = good[np.argsort(-held.probabilities[good].max(1), kind="stable")]
    chosen: list[int] = []
    for code in list(dict.fromkeys(held.truths[order].tolist())) * LIT:
        chosen += [at for at in order.tolist() if held.truths[at] == code and at not in chosen][:1]
    return _explain_places(trust, np.array(chosen[:LIT], int), texts)


def shown_errors(trust: TrustTests, texts: Sequence[str]) -> dict[str, list[tuple[Explanation, Any]]]:
    """The surest wrong decisions, labels to look at again, and texts that were nearly learned by heart."""
    held = trust.held
    copies = np.flatnonzero(np.isin(held.rows, held.copies))
    suspects = held.doubted_labels()
    return {
        "worst": _explain_places(trust, held.surest_errors(ERRORS), texts),
        "suspects": _explain_places(trust, suspects[~np.isin(suspects, held.surest_errors(ERRORS))][:SUSPECTS], texts),
        "copies": _explain_places(trust, copies[:COPIES], texts),
    }


def _explain_places(trust: TrustTests, places: Array, texts: Sequence[str]) -> list[tuple[Explanation, Any]]:
    held = trust.held
    if not len(places):
        return []
    found = held.model.explain([texts[row] for row in held.rows[places]])
    return list(zip(found, held.model.classes_[held.truths[places]].tolist(), strict=True))


def parts_context(trust: TrustTests | None, parts: PartsFound | None, listed: set[str]) -> dict[str, Any]:
    """The parts of the data, and the words among those `listed` that decide in one of them only."""
    return {
        "parts": part_rows(trust, parts) if trust and parts and len(parts.division.names) > 1 else [],
        "parts_by": parts.division.what if parts else "",
        "confined": confined_rows(parts, listed.__contains__) if parts else [],
    }


def trial_context(
    trust: TrustTests | None, texts: Sequence[str], check: Validation | None, called: Mapping[str, str]
) -> dict[str, Any]:
    """What texts held out showed; without trials, what was seen while training."""
    if trust is None:
        held = f"Held out while training: {check}." if check else "No texts were held out while training."
        tables: dict[str, Any] = {name: [] for name in ("lit", "confusion", "by_class", "calibration", "compared")}
        counts = dict.fromkeys(("suspected", "near_copies", "duplicates", "held_out"), 0)
        return {"verdict": held, "errors": {}, "mix_ups": [], "lit_title": ""} | tables | counts
    names = list(called.values())
    errors = shown_errors(trust, texts) if len(texts) else {}
    shown = sure_examples(trust, texts) if len(texts) else []
    return {
        "verdict": in_plain_words(trust, names),
        "lit_title": f"{COUNTED[len(shown)]} it had not seen",
        "lit": [example(*pair, called) for pair in shown],
        "errors": {name: [example(*pair, called) for pair in pairs] for name, pairs in errors.items()},
        "suspected": len(trust.held.doubted_labels()),
        "near_copies": len(trust.held.copies),
        "duplicates": trust.duplicates,
        "held_out": len(trust.held.truths),
        "confusion": confusion(trust, names),
        "mix_ups": mix_ups(trust, names),
        "by_class": class_rows(trust, names),
        "calibration": calibration_rows(trust),
        "compared": compared_rows(trust),
    }


def example(one: Explanation, truth: Any, called: Mapping[str, str]) -> dict[str, Any]:
    """A text with its words coloured by what they say, and how it was decided; `called` names the classes.

    Tags and character references, which are blanks to the model, are shown as a browser would.
    """
    largest = max((abs(word.shown_contribution) for word in one.words), default=0.0) or 1.0
    parts: list[dict[str, Any]] = []
    words, place, end = _part_that_says_most(one)
    if place:
        parts.append({"text": "\u2026 ", "style": ""})
    for word in words:
        if word.start > place:
            parts.append({"text": _as_shown(one.text[place : word.start]), "style": ""})
        colour = "plus" if word.shown_contribution > 0 else "minus"
        parts.append({
            "text": one.text[word.start : word.end],
            "style": f"rgba(var(--{colour}), {0.7 * abs(word.shown_contribution) / largest:.3f})",
            "note": f"contribution {word.contribution:+.3f}, deleting it takes {word.effect:+.3f}",
            "chosen": bool(one.span and one.span[0] <= word.start < one.span[1]),
        })  # fmt: skip
        place = word.end
    parts.append({"text": _as_shown(one.text[place:end]) + (" \u2026" if end < len(one.text) else ""), "style": ""})
    return {
        "label": called.get(str(one.label), str(one.label)),
        "truth": None if truth is None else called.get(str(truth), str(truth)),
        "wrong": truth is not None and str(truth) != str(one.label),
        "sure": _probability_text(one.probability),
        "selected": one.selected or "nothing",
        "competitor": one.competitor or "nothing",
        "margin": f"{one.margin:.2f}",
        "parts": parts,
    }


def _part_that_says_most(one: Explanation) -> tuple[Sequence[WordPart], int, int]:
    """The words to show and where they begin and end: all, or the run of a long text that says most."""
    words = one.words
    if len(words) <= MOST_WORDS:
        return words, 0, len(one.text)
    said = np.concatenate([[0.0], np.cumsum([abs(word.shown_contribution) for word in words])])
    first = int((said[MOST_WORDS:] - said[:-MOST_WORDS]).argmax())
    shown = words[first : first + MOST_WORDS]
    last = first + MOST_WORDS == len(words)
    return shown, shown[0].start if first else 0, len(one.text) if last else shown[-1].end


def _as_shown(between: str) -> str:
    return unescape(TAG.sub(" ", between))


def _probability_text(probability: float) -> str:
    """A probability for people, with more digits near 1 and never 100%."""
    return (
        f"{probability:.0%}" if probability < 0.995 else f"{probability:.1%}" if probability < 0.9995 else "over 99.9%"
    )


def trust_rows(trust: TrustTests | None) -> list[tuple[str, str]]:
    """What the tests of its explanations found."""
    if trust is None:
        return []
    at, agreement = list(trust.deletion.k).index(5), trust.importance_agreement
    told = f"rank correlation {agreement:.3f}" if np.isfinite(agreement) else "too few words of different importance"
    return [
        ("agreement of the leading words between splits", told),
        (
            "five words deleted",
            f"{trust.deletion.top[at]:.1%} of the decisions stay when the strongest go, "
            f"{trust.deletion.random[at]:.1%} when any go",
        ),
    ]
