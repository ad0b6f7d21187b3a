"""Find words that decide in one part of the texts only: there they may be a shortcut, elsewhere they mislead.

In each part (a source, a year, short texts) the texts with and without a token, of a class and of the others, make a
table of four counts, in which copies of a text count once. It has a log odds ratio and a variance (1/2 is added to each
count). A token is reported if it is of one of three kinds, at a level of 5% over all tokens and parts:

- `confined`: nearly all texts that hold it are of one part, and there it tells the classes apart;
- `one-sided`: it tells the classes apart in one part, while in the others it says nothing or the opposite;
- `gives away`: it tells the classes apart over all texts but not within the parts, so it only tells the parts apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.stats import norm

from tokenmargin.classifier.classifier import TokenSelectionClassifier
from tokenmargin.classifier.fitting import document_numbers
from tokenmargin.classifier.tokenizers import read_tokens

LEAST_TEXTS, MOST_TOKENS = 10, 2000  # tokens in fewer texts are left out; of the others the most influential are tested
SMALLEST, MOST_SLICES = 30, 12  # texts that a part must have; parts at most, the other texts form one more
NEARLY_ALL = 0.95  # the share of a token's texts from which on it is confined to a part
NOTHING = 1.96  # a log odds ratio within so many standard deviations of zero says nothing
LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class TextParts:
    """A division of texts by `what` (a column, say): `of` is the number of each text's part among `names`."""

    what: str
    names: tuple[str, ...]
    of: Int[Array, " n"]


@dataclass(frozen=True)
class TokenShares:
    """How many texts hold a token, and the share of the class among them and among the other texts (NaN of none)."""

    texts: int
    share: float
    without: float


@dataclass(frozen=True)
class ConfinedToken:
    """A token that decides in one part only.

    **Attributes**
    - `kind`: one of the three kinds above. `part`: the part where it decides, or that it gives away.
    - `label`: the class that the shares are about.
    - `here`, `elsewhere`: its shares among the texts of that part, and among all others.
    - `influence`: how far it moves the model's decisions.
    """

    token: str
    kind: str
    part: str
    label: Any
    here: TokenShares
    elsewhere: TokenShares
    influence: float


def parts_by_value(what: str, values: Sequence[Any]) -> TextParts:
    """Divide texts by the values of a column; texts with rare values form one part.

    >>> parts_by_value("shop", ["a"] * 40 + ["b"] * 40 + [None]).names
    ('a', 'b', 'others')
    """
    written = np.array(["" if value is None or value != value else str(value).strip() for value in values], object)
    names, number, counts = np.unique(written.astype(str), return_inverse=True, return_counts=True)
    kept = [row for row in np.argsort(-counts, kind="stable")[:MOST_SLICES] if counts[row] >= SMALLEST and names[row]]
    rank = np.full(len(names), len(kept))
    rank[kept] = np.arange(len(kept))
    rest = ("others",) if len(kept) < len(names) else ()
    return TextParts(what, (*(str(names[row]) for row in kept), *rest), rank[number])


def parts_by_length(documents: Sequence[Any]) -> TextParts:
    """Divide texts by their number of words into three parts of about equal size."""
    lengths = np.diff(read_tokens(documents, "words").offsets)
    low, high = np.quantile(lengths, [1 / 3, 2 / 3], method="lower")
    number = (lengths > low).astype(int) + (lengths > high)
    names = (f"up to {low:.0f} words", f"up to {high:.0f} words", f"over {high:.0f} words")
    used = np.unique(number)
    return TextParts("length", tuple(names[k] for k in used), np.searchsorted(used, number))


def confined_tokens(
    model: TokenSelectionClassifier, documents: Sequence[Any], codes: Int[Array, " n"], division: TextParts
) -> list[ConfinedToken]:
    """The tokens that decide in one part only, the most influential first.

    **Arguments**
    - `codes`: the class of each document, as a number into `model.classes_`.
    """
    table, parts = model.token_importance_, len(division.names)
    often = np.flatnonzero(table["count"] >= LEAST_TEXTS)[:MOST_TOKENS]
    if parts < 2 or not len(often):
        return []
    row_of = {name: row for row, name in enumerate(model.vocabulary_.names)}
    columns = np.array([row_of[name] for name in table["token"][often]])
    two = len(model.classes_) == 2
    own = np.ones(len(often), int) if two else np.searchsorted(model.classes_, table["class"][often])
    kinds = np.stack([document_numbers(documents), codes, division.of])
    once = np.sort(np.unique(kinds, axis=1, return_index=True)[1])
    presence = model.transform([documents[row] for row in once.tolist()])[:, columns]
    counts = _counts(presence, codes[once], division.of[once], parts, own, len(model.classes_))
    bound = float(norm.isf(LEVEL / (2 * len(often) * parts)))
    found = []
    for at, (kind, part) in _name_tokens(counts, bound).items():
        token, influence = str(table["token"][often[at]]), float(table["influence"][often[at]])
        here = counts[part, :, :, at]
        sides = _side(here), _side(counts[..., at].sum(0) - here)
        found.append(ConfinedToken(token, kind, division.names[part], model.classes_[own[at]], *sides, influence))
    return sorted(found, key=lambda one: -one.influence)


def _side(counts: Float[Array, "2 2"]) -> TokenShares:
    held, others = counts.sum(1)
    share, without = (
        float(hits / total) if total else float("nan") for hits, total in zip(counts[:, 0], (held, others), strict=True)
    )
    return TokenShares(int(held), share, without)


def _counts(
    presence: Any, codes: Array, part_of: Array, parts: int, own: Array, classes: int
) -> Float[Array, "parts 2 2 tokens"]:
    """For each part and token, how many texts hold it or not, and are of its class or not."""
    held = presence.copy()
    held.data = np.ones_like(held.data)
    found = np.empty((parts, 2, 2, len(own)))
    each = np.arange(len(own))
    for part in range(parts):
        inside = [(part_of == part) & (codes == code) for code in range(classes)]
        by_class = np.stack([np.asarray(held[mask].sum(0)).ravel() for mask in inside])
        sizes = np.array([mask.sum() for mask in inside])
        hits, all_held = by_class[own, each], by_class.sum(0)
        found[part, 0] = hits, all_held - hits
        found[part, 1] = sizes[own] - hits, sizes.sum() - sizes[own] - (all_held - hits)
    return found


def _log_odds(counts: Array) -> tuple[Array, Array]:
    """The log odds ratio of tables of four counts, and its variance."""
    raised = counts + 0.5
    (a, b), (c, d) = np.moveaxis(raised, (-3, -2), (0, 1))
    return np.log(a * d / (b * c)), (1 / raised).sum((-3, -2))


def _pool_over_parts(ratio: Array, variance: Array) -> tuple[Array, Array]:
    """The mean over parts, weighted by the inverse variances, and the variance of that mean."""
    weight = (1 / variance).sum(0)
    return (ratio / variance).sum(0) / weight, 1 / weight


def _name_tokens(counts: Float[Array, "parts 2 2 tokens"], bound: float) -> dict[int, tuple[str, int]]:
    """Kind and part of every token that is reported, by its column in `counts`."""
    ratio, variance = _log_odds(counts)
    holds = counts[:, 0].sum(1)
    most = holds.argmax(0)
    only = holds.max(0) >= NEARLY_ALL * np.maximum(holds.sum(0), 1)
    tells = np.abs(ratio) > bound * np.sqrt(variance)
    overall, overall_variance = _log_odds(counts.sum(0))
    within, within_variance = _pool_over_parts(ratio, variance)
    silent = np.abs(within) < NOTHING * np.sqrt(within_variance)
    moved = np.abs(overall - within) > NOTHING * np.sqrt(within_variance)
    found: dict[int, tuple[str, int]] = {}
    sizes = counts.sum((1, 2))
    crowd = (holds / np.maximum(sizes, 1)).argmax(0)  # the part it gives away: where most texts hold it
    for at in np.flatnonzero((np.abs(overall) > bound * np.sqrt(overall_variance)) & silent & moved).tolist():
        found[at] = "gives away", int(crowd[at])
    for part in range(len(counts)):
        others = np.arange(len(counts)) != part
        rest, rest_variance = _pool_over_parts(ratio[others], variance[others])
        quiet = rest * np.sign(ratio[part]) < NOTHING * np.sqrt(rest_variance)
        apart = np.abs(ratio[part] - rest) > bound * np.sqrt(variance[part] + rest_variance)
        for at in np.flatnonzero(tells[part] & quiet & apart & ~only).tolist():
            found[at] = "one-sided", part
    # A part that holds nearly all texts holds nearly all of every token.
    common = sizes[most, np.arange(len(most))] >= NEARLY_ALL * sizes.sum(0)
    for at in np.flatnonzero(only & ~common & tells[most, np.arange(len(most))]).tolist():
        found[at] = "confined", int(most[at])
    return found
