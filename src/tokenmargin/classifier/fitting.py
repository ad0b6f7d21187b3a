"""From labelled texts to a trained model: join copies, hold some texts out, choose what is "auto", train, validate.

Copies of a text are held out together. Which texts are held out does not depend on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt64
from numpy import ndarray as Array
from scipy.stats import binomtest

from tokenmargin._statistics import wilson_interval
from tokenmargin.classifier.model_choice import FitChoice, Partner, choose_settings, number_of_folds
from tokenmargin.classifier.solver import (
    LabelledTexts,
    Penalty,
    TokenObjective,
    fit_token_model,
    join_labelled,
    start_model,
)
from tokenmargin.classifier.token_model import TokenModel, decided_classes

CHOSEN = ("value_penalty", "start_power", "exponent", "loss", "repeats")  # the settings that may be "auto"
FEW_REPEATS = 0.05  # where a smaller share of the tokens occurs twice in a text, counting occurrences changes little
FEWEST_TO_CHOOSE = 50  # distinct texts: with fewer, the first candidate is taken
ITERATIONS_AFTER_CHECK = 6  # on all texts, starting from the fit to those not held out
FEWEST_HELD_OUT = 20  # with fewer texts held out, nothing is validated
UNBALANCED = 0.8  # share of the most frequent class from which on the accuracy alone says little


def document_numbers(documents: Sequence[Any]) -> Int[Array, " n"]:
    """The number of each document, equal for equal ones, in the order of their first row.

    >>> document_numbers(["b", "a", "b"]).tolist()
    [0, 1, 0]
    """
    numbers: dict[Any, int] = {}
    keys = (document if isinstance(document, str) else tuple(document) for document in documents)
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def draw_numbers(documents: Sequence[Any], seed: int) -> Array:
    """A random number for each document, which depends on the seed and on what the document says, not on its row."""
    key = int(seed).to_bytes(8, "little")
    written = (document if isinstance(document, str) else " ".join(document) for document in documents)
    digests = b"".join(blake2b(t.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest() for t in written)
    return np.frombuffer(digests, np.uint64)


def _ranks(codes: Int[Array, " n"], chance: Array) -> tuple[Int[Array, " n"], Int[Array, " n"]]:
    """For each row the rank of its text by chance among those of its class, counted from 0, and how many those are.

    Rows of equal chance have the same text, and so the same rank: no split comes between them.
    """
    order = np.lexsort((chance, codes))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(codes[order]) != 0) | (chance[order][1:] != chance[order][:-1])
    sizes = np.bincount(codes[order][new])
    rank = np.empty(len(codes), np.int64)
    rank[order] = np.cumsum(new) - 1
    return rank - (np.cumsum(sizes) - sizes)[codes], sizes[codes]


def held_out_mask(codes: Int[Array, " n"], chance: Array, fraction: float) -> Bool[Array, " n"]:
    """A mask of the rows whose texts have the smallest chance, the same share of every class's texts."""
    rank, sizes = _ranks(codes, chance)
    return rank < np.round(fraction * sizes)


def fold_numbers(codes: Int[Array, " n"], chance: Array, folds: int) -> Int[Array, " n"]:
    """For each row the number of its fold; every fold gets about the same number of rows of each class.

    >>> fold_numbers(np.array([0, 0, 1, 1]), np.array([3, 1, 4, 2]), 2).tolist()
    [1, 0, 1, 0]
    """
    return _ranks(codes, chance)[0] % folds


@dataclass(frozen=True)
class FitSettings:
    """The settings that decide a fit. `given` holds those settings of `CHOSEN` that are not "auto"."""

    given: Mapping[str, Any]
    attention: str
    logit_penalty: float
    max_iter: int
    tolerance: float
    validation_fraction: float
    min_count: int
    progress: Callable[[int, float], None] | None


class Fit(NamedTuple):
    """A trained model, the changes of its fit and of each partner's since their starts, and the loss by iteration."""

    model: TokenModel
    changes: tuple[TokenModel, ...]
    losses: list[float]


class DistinctTexts(NamedTuple):
    """Every text once for each of its labels; the weights of copies are added up.

    - `chance`: a random number for each text. `strata`: one class for each text, also if it has two labels.
    """

    data: LabelledTexts
    chance: Array
    strata: Int[Array, " n"]


def distinct_texts(documents: Sequence[Any], data: LabelledTexts, seed: int) -> tuple[DistinctTexts, int]:
    """The distinct texts, and how many were copies of others."""
    group = document_numbers(documents)
    _, first, row = np.unique(group * data.k + data.codes, return_index=True, return_inverse=True)
    chance = draw_numbers([documents[at] for at in first], seed)
    # A text with two labels has two rows, which must stay together: both are ranked in the class of the smaller label.
    smallest = np.full(int(group.max()) + 1, data.k)
    np.minimum.at(smallest, group, data.codes)
    joined = replace(data.part(first), weight=np.bincount(row, data.weight))
    return DistinctTexts(joined, chance, smallest[group[first]]), len(group) - int(group.max()) - 1


def fit_and_validate(
    texts: DistinctTexts, settings: FitSettings, *, before: Fit | None
) -> tuple[Fit, FitChoice, Validation | None]:
    """Choose the settings, train on the texts not held out, validate on the others, and train on all.

    **Arguments**
    - `before`: an earlier fit with the same vocabulary and classes, from which training starts.
    """
    data, held = texts.data, held_out_mask(texts.strata, texts.chance, settings.validation_fraction)
    judged = enough_held_out(data.codes, held)
    part, rows = (data.part(~held), ~held) if judged else (data, np.ones(len(held), bool))
    chosen, near = _choose_settings(part, texts.strata[rows], texts.chance[rows], settings)
    changes = before.changes if before is not None else () if near is None else (near,)
    validation, iterations, losses = None, settings.max_iter, list[float]()
    if judged:
        found, changes, losses = fit_from(part, chosen, settings, changes, iterations)
        test = data.with_counts(chosen.repeats).matrix[held]
        validation = validate(found.decide(test), data.codes[held], data.codes)
        iterations = min(ITERATIONS_AFTER_CHECK, iterations)
    found, changes, more = fit_from(data, chosen, settings, changes, iterations)
    return Fit(found, changes, losses + more), chosen, validation


def _choose_settings(
    data: LabelledTexts, strata: Array, chance: Array, settings: FitSettings
) -> tuple[FitChoice, TokenModel | None]:
    """The settings with a value for each that is "auto", and a model to start training from."""
    first, free = FitChoice(**settings.given), {*CHOSEN} - {*settings.given}
    if settings.attention == "uniform":
        first, free = replace(first, start_power=None), free - {"start_power"}
    if not data.counted or (data.matrix.data > 1).sum() <= FEW_REPEATS * data.matrix.nnz:
        free -= {"repeats"}
    if not free or not data.matrix.shape[1] or len(strata) < FEWEST_TO_CHOOSE:
        return first, None
    parts, turns = number_of_folds(len(strata), data.matrix.nnz)
    fold_of = fold_numbers(strata, chance, parts)
    return choose_settings(
        data, fold_of, turns, first=first, free=free, tolerance=settings.tolerance, least=settings.min_count,
        blend=settings.attention != "learned",
    )  # fmt: skip


def fit_from(
    data: LabelledTexts, chosen: FitChoice, settings: FitSettings, changes: Sequence[TokenModel], iterations: int
) -> Fit:
    """Train with the chosen settings, and train and add the partners.

    **Arguments**
    - `changes`: what earlier fits changed since their starts: training goes on from there.
    - `iterations`: at most so many for each fit.
    """
    data, fixed = data.with_counts(chosen.repeats), settings.attention != "learned"
    fits, curves, after = list[TokenModel](), list[list[float]](), list[TokenModel]()
    members: list[FitChoice | Partner] = [chosen, *chosen.partners]
    for number, member in enumerate(members):
        origin, units = start_model(data, member.start_power, chosen.exponent)
        penalty = Penalty(np.inf if fixed else settings.logit_penalty, member.value_penalty)
        objective = TokenObjective(data, origin=origin, units=units, penalty=penalty, loss=member.loss)
        known = changes[number] if number < len(changes) else after[-1] if after else None
        fit, spent = fit_token_model(
            objective, origin.with_change(known), iterations=iterations, tolerance=settings.tolerance,
            progress=None if number else settings.progress,
        )  # fmt: skip
        fits.append(fit)
        curves.append(spent)
        after.append(fit.change_since(origin))
    found = fits[0].with_temperature(chosen.temperature, chosen.offset)
    for partner, fit in zip(chosen.partners, fits[1:], strict=True):
        found = found.plus(fit, partner.weight)
    return Fit(found, tuple(after), curves[0])


@dataclass(frozen=True, eq=False)
class KeptTexts:
    """The texts that `partial_fit` has met, each once for each of its labels: all, or a random sample of bounded size.

    The random number of a text (`chance`) depends on what it says alone. If there are too many texts, those with the
    smallest numbers are kept: a sample in which every distinct text has the same chance, whatever the order of the
    parts. A text that is dropped never comes back, since the largest number kept can only fall; so the weight of a text
    that is kept counts all its copies, and `times` says how many there were of it. `met` says how many texts there were
    in all.
    """

    data: LabelledTexts
    chance: UInt64[Array, " n"]
    times: Int[Array, " n"]
    met: int

    @staticmethod
    def of(documents: Sequence[Any], data: LabelledTexts, most: int | None) -> KeptTexts:
        """The texts of one part."""
        once = (data.weight > 0).astype(np.int64)  # a text of weight zero is none
        return KeptTexts(data, draw_numbers(documents, 0), once, int(once.sum()))._without_copies(most)

    def plus(self, other: KeptTexts, most: int | None) -> KeptTexts:
        """The texts of both parts, at most so many."""
        chance, times = (np.concatenate(pair) for pair in ((self.chance, other.chance), (self.times, other.times)))
        data = join_labelled([self.data, other.data])
        return KeptTexts(data, chance, times, self.met + other.met)._without_copies(most)

    @property
    def copies(self) -> int:
        """How many of the texts, of which one of each is kept, were copies of others."""
        return int(self.times.sum()) - len(np.unique(self.chance[self.times > 0]))

    def _without_copies(self, most: int | None) -> KeptTexts:
        """Add up copies and their weights, and keep the `most` texts with the smallest numbers, in their order."""
        order = np.lexsort((self.data.codes, self.chance))
        chance, codes = self.chance[order], self.data.codes[order]
        new = np.ones(len(order), bool)
        new[1:] = (chance[1:] != chance[:-1]) | (codes[1:] != codes[:-1])
        # In `order` the copies of a text follow each other: `number` counts distinct texts, `first` has a row of each.
        first, number = order[new], np.cumsum(new) - 1
        weight, times = (np.bincount(number, x[order], len(first)) for x in (self.data.weight, self.times))
        rows = np.sort(first[:most])  # in the order in which they came
        place = np.empty(len(self.chance), np.int64)
        place[first] = np.arange(len(first))
        at = place[rows]
        data = replace(self.data.part(rows), weight=weight[at])
        return replace(self, data=data, chance=self.chance[rows], times=times[at].astype(np.int64))


@dataclass(frozen=True)
class Validation:
    """How a model that was trained on the other texts decided the texts held out.

    **Attributes**
    - `accuracy`, `low`, `high`: the share decided rightly, with a 95% Wilson interval.
    - `majority`: the accuracy of always naming the most frequent class.
    - `balanced_accuracy`: the mean over classes of the share of their texts decided rightly.
    - `rarest`, `rarest_found`: how many held-out texts the rarest class has, and the share of them decided rightly.
    - `p_value`: the smaller of two, doubled: of an accuracy at least as high by always naming the most frequent class,
        and of outputs that separate the classes as well by chance (a rank test).
    """

    texts: int
    accuracy: float
    low: float
    high: float
    majority: float
    balanced_accuracy: float
    rarest: int
    rarest_found: float
    p_value: float

    @property
    def signal(self) -> bool:
        """Whether the texts say anything about the labels (p below 0.01)."""
        return self.p_value < 0.01

    def __str__(self) -> str:
        text = f"{self.accuracy:.1%} of {self.texts} held-out texts (95%: {self.low:.1%} to {self.high:.1%})"
        if self.signal:
            text += f", against {self.majority:.1%} for the most frequent class"
        else:
            guessing = f"{self.majority:.1%}, p = {self.p_value:.2f}"
            text += f"; NO SIGNAL: not distinguishable from guessing ({guessing})"
        if self.majority >= UNBALANCED:
            low, high = wilson_interval(self.rarest_found * self.rarest, self.rarest)
            found = f"{self.rarest_found:.0%} of its {self.rarest} held-out texts (95%: {low:.0%} to {high:.0%})"
            text += (
                f"; what counts is the rarest class: {found}" if self.rarest else "; none of the rarest class held out"
            )
        return text


def enough_held_out(codes: Array, held: Array) -> bool:
    """Whether enough texts are held out, and texts of every class remain to train on."""
    return bool(held.sum() >= FEWEST_HELD_OUT and len(np.unique(codes[~held])) == len(np.unique(codes)))


def validate(outputs: Array, codes: Array, all_codes: Array) -> Validation:
    """Compare f on held-out texts with their classes; the most frequent class is that of `all_codes`."""
    right = decided_classes(outputs) == codes
    n, hits = len(codes), int(right.sum())
    most = int(np.bincount(all_codes).argmax())
    majority = float((codes == most).mean())
    guess = binomtest(hits, n, min(max(majority, 1e-9), 1 - 1e-9), alternative="greater").pvalue
    recall = [right[codes == code].mean() for code in np.unique(codes)]
    p = min(1.0, 2 * min(float(guess), _rank_test(outputs, codes)))
    rare = codes == int(np.bincount(all_codes).argmin())
    found = float(right[rare].mean()) if rare.any() else 0.0
    return Validation(
        n, hits / n, *wilson_interval(hits, n), majority, float(np.mean(recall)), int(rare.sum()), found, p
    )


def _rank_test(outputs: Array, codes: Array) -> float:
    """The p-value that no class has larger outputs than the rest (Mann-Whitney), corrected for their number."""
    from scipy.stats import mannwhitneyu

    columns = [(outputs[:, 0], 1)] if outputs.shape[1] == 1 else [(outputs[:, c], c) for c in range(outputs.shape[1])]
    found = []
    for column, code in columns:
        inside = codes == code
        if inside.any() and not inside.all():
            found.append(float(mannwhitneyu(column[inside], column[~inside], alternative="greater").pvalue))
    return min(1.0, len(found) * min(found)) if found else 1.0
