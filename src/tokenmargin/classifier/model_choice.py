"""Choose ridge, start of the attention, exponent, loss and counting on folds of the training texts, and calibrate.

While they are chosen, the attention stays at its start. So every fit is convex and a good start for the next, and all
candidates together cost about as much as two or three fits. A candidate is judged by its log loss on texts held out,
after the best calibration `temperature f + offset prior`. So a candidate that decides well but too confidently is not
lost, and one with the squared hinge, whose f is no log odds, can be compared; calibrated, the winner's f is one.

Candidates that differ in loss, power and ridge alone share the attention, and then f is linear in the values: a sum of
such fits is a model of the same kind. So the winner is added up with those that improve it on the texts held out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.optimize import minimize
from scipy.special import logsumexp

from tokenmargin.classifier.solver import (
    LabelledTexts,
    Penalty,
    TokenObjective,
    class_prior,
    fit_token_model,
    log_loss,
    start_model,
)
from tokenmargin.classifier.token_model import TokenModel, decided_classes

RIDGE_STEP = 10**0.5  # the factor from one ridge to the next
SMALLEST_RIDGE, LARGEST_RIDGE = 0.009, 100.0
WEAKER_MUST_SAVE = 0.005  # of the loss: below it, fits differ more by where they stopped than by their ridge
ALTERNATIVES: dict[str, tuple[tuple[float | str | bool, ...], ...]] = {
    "loss": (("hinge",),),
    "start_power": ((0.25, 0.0), (1.0,)),
    "exponent": ((1.0,), (0.0,)),
    "repeats": ((True,),),
}
"""Other values of each setting, as ways to go from the first candidate as long as that helps."""
HINGE_RIDGE = 10.0  # the squared hinge is steeper than the log loss: with a ridge so many times larger it fits alike
LARGEST_TEMPERATURE = {"log": 5.0, "hinge": 20.0}  # a fit that needs a larger one has hardly begun
ITERATIONS = 40  # at most, of a candidate's fit, which starts from the fit before
TOLERANCE_FACTOR = 10.0  # a candidate's fit stops at so many times the tolerance of training, which is fine enough
FEW_TOKENS = 50_000
MOST_PARTNERS = 2
LEAST_WEIGHT = 0.1  # of a partner in the sum, whose weights add up to about 1; with less it is not worth a fit


@dataclass(frozen=True)
class Partner:
    """Another fit with the same attention, which is added to the chosen one `weight` times."""

    value_penalty: float
    start_power: float | None
    loss: str
    weight: float


@dataclass(frozen=True)
class FitChoice:
    """The settings of a fit that may be chosen, and what the choice found.

    **Attributes**
    - `value_penalty`, `start_power`, `exponent`, `loss`, `repeats`: as in `TokenSelectionClassifier`.
    - `temperature`, `offset`: after training f becomes `temperature f + offset prior`, so that probabilities are
        calibrated.
    - `partners`: fits with other ridges, powers and losses that are added.
    - `log_loss`: of all that on the texts held out; NaN where nothing was chosen.
    - `tried`: how many candidates were fitted. `folds`: on how many folds.
    """

    value_penalty: float = 10**-0.5
    start_power: float | None = 0.5
    exponent: float = 0.5
    loss: str = "log"
    repeats: bool = False
    temperature: float = 1.0
    offset: float = 0.0
    partners: tuple[Partner, ...] = ()
    log_loss: float = float("nan")
    tried: int = 0
    folds: int = 0


def number_of_folds(texts: int, tokens: int) -> tuple[int, int]:
    """Into how many parts texts are cut, and how many are held out in turn: fewer where a fit costs more.

    **Arguments**
    - `tokens`: distinct ones of each text, over all texts.

    >>> number_of_folds(500, 10**4), number_of_folds(2000, 10**5), number_of_folds(5000, 10**6)
    ((5, 5), (5, 3), (5, 2))
    >>> number_of_folds(25_000, 10**7)
    (10, 1)
    """
    if texts >= 10_000:
        return 10, 1
    return 5, 5 if texts < 1_000 or tokens < FEW_TOKENS else 3 if texts < 5_000 else 2


@dataclass(eq=False)
class Fold:
    """Texts to train on and texts held out, with the tokens `kept`, and the last fit, from which the next starts."""

    train: LabelledTexts
    test: LabelledTexts
    kept: Int[Array, " kept"]
    last: TokenModel | None = None
    starts: dict[tuple[float | None, float, bool], tuple[TokenModel, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._train = {repeats: self.train.with_counts(repeats) for repeats in (False, True)}

    def outputs(self, candidate: FitChoice, tolerance: float) -> Float[Array, "n k"]:
        """Fit a candidate; returns its f on the texts held out."""
        train, key = self._train[candidate.repeats], (candidate.start_power, candidate.exponent, candidate.repeats)
        if key not in self.starts:
            self.starts[key] = start_model(train, candidate.start_power, candidate.exponent)
        origin, units = self.starts[key]
        penalty = Penalty(np.inf, candidate.value_penalty)
        objective = TokenObjective(train, origin=origin, units=units, penalty=penalty, loss=candidate.loss)
        first = origin if self.last is None else _same_decisions(self.last, origin, self.train)
        self.last, _ = fit_token_model(objective, first, iterations=ITERATIONS, tolerance=tolerance)
        return self.last.decide(self.test.with_counts(candidate.repeats).matrix)

    def start_from_last(self, chosen: FitChoice, tokens: int) -> TokenModel | None:
        """The last fit as a start for training with the settings `chosen` on all tokens."""
        if self.last is None:
            return None
        origin, _ = self.starts[chosen.start_power, chosen.exponent, chosen.repeats]
        found = _same_decisions(self.last, origin, self.train).change_since(origin)
        logits, values = np.zeros(tokens), np.zeros((tokens, found.values.shape[1]))
        logits[self.kept], values[self.kept] = found.logits, found.values
        return replace(found, logits=logits, values=values)


def _same_decisions(model: TokenModel, origin: TokenModel, data: LabelledTexts) -> TokenModel:
    """A model with the attention of `origin` that decides a typical text as `model` does."""
    typical = []
    for one in (model, origin):
        Z = np.exp(one.sink_logit) + data.with_counts(one.repeats).matrix @ np.exp(one.logits)
        typical.append(one.exponent * float(np.median(np.log(np.maximum(Z, 1e-300)))))
    factor = np.exp(model.logits - origin.logits + typical[1] - typical[0])
    return replace(origin, values=model.values * factor[:, None], intercept=model.intercept)


class _FoldScores:
    """Fits candidates on all folds, each candidate once, and remembers how they did on the texts held out."""

    def __init__(self, folds: list[Fold], tolerance: float) -> None:
        self.folds, self.tolerance = folds, tolerance
        self.seen: dict[tuple[object, ...], FitChoice] = {}
        self._decided: dict[tuple[object, ...], Array] = {}  # f of the texts held out
        self._lost: dict[tuple[object, ...], float] = {}  # what candidates are judged by
        self._codes = np.concatenate([fold.test.codes for fold in folds])
        self._share = np.concatenate([fold.test.weight for fold in folds])
        self._share = self._share / self._share.sum()
        priors = [np.tile(class_prior(fold.train.shares), (len(fold.test.codes), 1)) for fold in folds]
        self._prior = np.concatenate(priors)

    def __call__(self, candidate: FitChoice) -> FitChoice:
        key = _identity(candidate)
        if key not in self.seen:
            f = np.concatenate([fold.outputs(candidate, self.tolerance) for fold in self.folds])
            hottest = LARGEST_TEMPERATURE[candidate.loss]
            (scale, offset), loss = self._calibrate([f], [(1 / hottest, hottest), (-hottest, hottest)])
            self.seen[key] = found = replace(candidate, temperature=scale, offset=offset, log_loss=loss)
            self._decided[key], self._lost[key] = f, loss
            if f.shape[1] > 1:
                wrong = decided_classes(self._decisions_of(found)) != self._codes
                self._lost[key] *= (self._share @ wrong + 1 / len(wrong)) ** 0.5
        return self.seen[key]

    def loss_of(self, candidate: FitChoice) -> float:
        """The number by which a fitted candidate is judged.

        With two classes it is the log loss, with more the log loss times the root of the error rate: one temperature
        cannot calibrate hinges of each class against the rest well, though their decisions may be better.
        """
        return self._lost[_identity(candidate)]

    def _calibrate(self, parts: Sequence[Array], bounds: Sequence[tuple[float, float]]) -> tuple[list[float], float]:
        """The weights of the parts of f and of the prior with the smallest log loss, and that loss.

        The problem is convex. One more text, spread evenly over texts and classes, is added: without it the weights
        would grow to their bounds where all texts are decided rightly. It does not count in the loss returned.
        """
        whole = np.stack([*parts, self._prior])
        flat, imagined = whole.reshape(len(whole), -1), 1 / len(self._codes)

        def lost(x: Array) -> tuple[float, Array]:
            at = (x @ flat).reshape(whole.shape[1:])
            # The loss of a text is log sum e^f less f of its class; with one column the other class has f = 0.
            if at.shape[1] == 1:
                total = np.logaddexp(0.0, at)
                wanted = (self._codes == 1)[:, None] + imagined / 2
            else:
                total = logsumexp(at, axis=1, keepdims=True)
                wanted = np.full_like(at, imagined / at.shape[1])
                wanted[np.arange(len(at)), self._codes] += 1
            slope = self._share[:, None] * ((1 + imagined) * np.exp(at - total) - wanted)
            loss = self._share @ ((1 + imagined) * total[:, 0] - (wanted * at).sum(1))
            return float(loss), flat @ slope.ravel()

        start = np.append(np.full(len(parts), 1 / len(parts)), 0.0)
        found = minimize(lost, start, jac=True, method="L-BFGS-B", bounds=bounds).x
        return found.tolist(), log_loss((found @ flat).reshape(whole.shape[1:]), self._codes, self._share)[0]

    def blend(self, best: FitChoice) -> FitChoice:
        """The best weighted sum of candidates that share the attention of `best`, of three at most."""
        alike = [one for one in self.seen.values() if (one.exponent, one.repeats) == (best.exponent, best.repeats)]
        while True:
            weights, loss = self._calibrate(
                [self._decisions_of(one) for one in alike], [(0.0, 2.0)] * len(alike) + [(-2.0, 2.0)]
            )
            order = np.argsort(-np.array(weights[:-1]), kind="stable").tolist()
            kept = [at for at in order[: MOST_PARTNERS + 1] if weights[at] >= LEAST_WEIGHT]
            if len(kept) < 2:
                return best
            everyone, alike = len(kept) == len(alike), [alike[at] for at in kept]
            if everyone:
                break
        weighed = [(weights[at], one) for at, one in zip(kept, alike, strict=True)]
        offset = weights[-1] + sum(w * one.offset for w, one in weighed)
        partners = [Partner(one.value_penalty, one.start_power, one.loss, w * one.temperature) for w, one in weighed]
        scale = partners.pop(0).weight
        return replace(alike[0], temperature=scale, offset=offset, partners=tuple(partners), log_loss=loss)

    def _decisions_of(self, candidate: FitChoice) -> Array:
        """The calibrated f of a candidate on the texts held out."""
        return candidate.temperature * self._decided[_identity(candidate)] + candidate.offset * self._prior

    def search_ridge(self, best: FitChoice) -> FitChoice:
        """Try stronger ridges as long as they help; if none does, weaker ones."""
        for factor in (RIDGE_STEP, 1 / RIDGE_STEP):  # stronger ones first: their fits take fewer iterations
            first = best
            while SMALLEST_RIDGE < best.value_penalty * factor < LARGEST_RIDGE:
                found = self(replace(best, value_penalty=best.value_penalty * factor))
                if self.loss_of(found) >= self.loss_of(best) * (1 - WEAKER_MUST_SAVE * (factor < 1)):
                    break
                best = found
            if best is not first:
                break
        return best


def _identity(candidate: FitChoice) -> tuple[object, ...]:
    return tuple(getattr(candidate, name) for name in ("value_penalty", *ALTERNATIVES))


def _with_changed(best: FitChoice, name: str, value: object, free: set[str]) -> FitChoice:
    """A candidate with one setting changed; with another loss comes the ridge that fits about alike."""
    changed = replace(best, **{name: value})  # type: ignore[arg-type]
    if name == "loss" and "value_penalty" in free:
        factor = HINGE_RIDGE if value == "hinge" else 1 / HINGE_RIDGE
        changed = replace(changed, value_penalty=best.value_penalty * factor)
    return changed


def choose_settings(
    data: LabelledTexts,
    fold_of: Int[Array, " n"],
    turns: int,
    *,
    first: FitChoice,
    free: set[str],
    tolerance: float,
    least: int,
    blend: bool,
) -> tuple[FitChoice, TokenModel | None]:
    """The best candidate that is reached from `first`, and a model near its own fit to start training from.

    **Arguments**
    - `fold_of`, `turns`: the fold of each text, and how many of the folds are held out in turn.
    - `free`: the settings that may be changed: `value_penalty`, `start_power`, `exponent`, `loss`, `repeats`.
    - `least`: a token is known in a fold if so many of the texts to train on hold it.
    - `blend`: whether fits may be added up. They may not where each trains an attention of its own.
    """
    folds = list(make_folds(data, fold_of, turns, least))
    if not folds or not free:
        return first, None
    judge = _FoldScores(folds, TOLERANCE_FACTOR * tolerance)
    best = judge(first)
    for name, ways in ALTERNATIVES.items():
        for way in ways if name in free else ():
            before = best
            for value in way:
                found = judge(_with_changed(best, name, value, free))
                if judge.loss_of(found) >= judge.loss_of(best):
                    break
                best = found
            if best is not before:
                break
    best = judge.search_ridge(best) if "value_penalty" in free else best
    near = folds[0].start_from_last(best, data.matrix.shape[1])
    best = judge.blend(best) if blend else best
    return replace(best, tried=len(judge.seen), folds=len(folds)), near


def make_folds(data: LabelledTexts, fold_of: Array, turns: int, least: int) -> Iterator[Fold]:
    """The folds in which there are texts of every class to train on.

    The vocabulary comes from all texts, also those held out. A token that would be unknown without them is left out: it
    would have no value and take attention from others, which does not happen in texts to come.
    """
    counts = data.matrix.getnnz(axis=0)
    for turn in range(turns):
        held = fold_of == turn
        train = data.part(~held)
        if held.any() and len(np.unique(train.codes)) == data.k:
            often = train.matrix.getnnz(axis=0) >= np.minimum(least, counts)
            kept = np.flatnonzero(often & (counts > 0))
            yield Fold(train.of_tokens(kept), data.part(held).of_tokens(kept), kept)
