"""Ridge, start of the attention, exponent, loss and counting, chosen on folds of the training texts; then calibrated.

While they are chosen the attention stays at its start, which makes every fit convex and a good start for the next: all
candidates together cost about as much as two or three fits. A candidate is judged by the log loss on texts held out,
after the best calibration `temperature f + offset prior`: one that decides well but too surely is not thrown away, and
the calibration of the winner is what makes its f a log odds. So the squared hinge, whose f is none, can be compared.

Candidates that differ in loss, power and ridge alone share the attention, and then f is linear in the values: a sum of
such fits is a model of the same family. So the winner is blended with those that add to it on the texts held out.
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
    Labelled,
    Penalty,
    Start,
    TokenObjective,
    class_prior,
    fit_token_model,
    log_loss,
    start_model,
)
from tokenmargin.classifier.token_model import TokenModel, decided_classes

STEP = 10**0.5  # from one ridge to the next
LEAST, MOST = 0.009, 100.0
WORTH = 0.005  # part of the loss that a weaker ridge must save: below it fits differ more by where they stopped
OTHERS: dict[
    str, tuple[tuple[float | str | bool, ...], ...]
] = {  # ways to go from the first candidate while that helps
    "loss": (("hinge",),),
    "start_power": ((0.25, 0.0), (1.0,)),
    "exponent": ((1.0,), (0.0,)),
    "repeats": ((True,),),
}
HINGE_RIDGE = 10.0  # times the ridge beside the log loss is about the ridge beside the squared hinge: it is steeper
HOTTEST = {"log": 5.0, "hinge": 20.0}  # a fit that has to be stretched more has hardly begun
ITERATIONS = 40  # of a candidate's fit, from the one before
COARSE = 10.0  # times the tolerance of training: candidates need not be fitted so well to be told apart
FEW_TOKENS = 50_000
MOST_PARTNERS = 2
LEAST_WEIGHT = 0.1  # of a blend whose weights are about 1 together: less is not worth a fit


@dataclass(frozen=True)
class Partner:
    """A fit with the same attention that is added to the chosen one, `weight` times."""

    value_penalty: float
    start_power: float | None
    loss: str
    weight: float


@dataclass(frozen=True)
class Chosen:
    """The ridge on the values, the start of the attention, the exponent, the loss, and whether occurrences count.

    **Attributes**
    - `temperature`, `offset`: f becomes `temperature f + offset prior` after training, to calibrate the probabilities.
    - `partners`: fits of other ridges, powers and losses that are added to it.
    - `log_loss`: on the texts held out, after that; NaN where nothing was chosen.
    - `tried`: how many candidates were fitted. `folds`: on how many parts of the texts.
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

    @property
    def start(self) -> Start:
        """Where the attention starts."""
        return Start(self.start_power, self.exponent)


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
    """Texts to learn from and texts to judge by, of the tokens `kept`, and the last fit, from which the next starts."""

    train: Labelled
    test: Labelled
    kept: Int[Array, " kept"]
    last: TokenModel | None = None
    starts: dict[tuple[Start, bool], tuple[TokenModel, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._train = {repeats: self.train.counted(repeats) for repeats in (False, True)}

    def outputs(self, candidate: Chosen, tolerance: float) -> Float[Array, "n k"]:
        """Decisions on the texts held out."""
        train, key = self._train[candidate.repeats], (candidate.start, candidate.repeats)
        if key not in self.starts:
            self.starts[key] = start_model(train, candidate.start)
        origin, units = self.starts[key]
        penalty = Penalty(np.inf, candidate.value_penalty)
        objective = TokenObjective(train, origin=origin, units=units, penalty=penalty, loss=candidate.loss)
        first = origin if self.last is None else _translated(self.last, origin, self.train)
        self.last, _ = fit_token_model(objective, first, iterations=ITERATIONS, tolerance=tolerance)
        return self.last.decide(self.test.counted(candidate.repeats).matrix)

    def near(self, chosen: Chosen, tokens: int) -> TokenModel | None:
        """What the last fit changed, in the terms of another start and for all tokens."""
        if self.last is None:
            return None
        origin, _ = self.starts[chosen.start, chosen.repeats]
        found = _translated(self.last, origin, self.train).change_since(origin)
        logits, values = np.zeros(tokens), np.zeros((tokens, found.values.shape[1]))
        logits[self.kept], values[self.kept] = found.logits, found.values
        return replace(found, logits=logits, values=values)


def _translated(model: TokenModel, origin: TokenModel, data: Labelled) -> TokenModel:
    """Values that make another attention decide a typical text alike."""
    typical = []
    for one in (model, origin):
        Z = np.exp(one.sink_logit) + data.counted(one.repeats).matrix @ np.exp(one.logits)
        typical.append(one.exponent * float(np.median(np.log(np.maximum(Z, 1e-300)))))
    factor = np.exp(model.logits - origin.logits + typical[1] - typical[0])
    return replace(origin, values=model.values * factor[:, None], intercept=model.intercept)


class _Judge:
    """Judges candidates on all folds, each once, and keeps the best."""

    def __init__(self, folds: list[Fold], tolerance: float) -> None:
        self.folds, self.tolerance = folds, tolerance
        self.seen: dict[tuple[object, ...], Chosen] = {}
        self._decided: dict[tuple[object, ...], Array] = {}  # f of the texts held out
        self._lost: dict[tuple[object, ...], float] = {}  # what candidates are judged by
        self._codes = np.concatenate([fold.test.codes for fold in folds])
        self._share = np.concatenate([fold.test.weight for fold in folds])
        self._share = self._share / self._share.sum()
        priors = [np.tile(class_prior(fold.train.shares), (len(fold.test.codes), 1)) for fold in folds]
        self._prior = np.concatenate(priors)

    def __call__(self, candidate: Chosen) -> Chosen:
        key = _key(candidate)
        if key not in self.seen:
            f = np.concatenate([fold.outputs(candidate, self.tolerance) for fold in self.folds])
            hottest = HOTTEST[candidate.loss]
            (scale, offset), loss = self._calibrated([f], [(1 / hottest, hottest), (-hottest, hottest)])
            self.seen[key] = found = replace(candidate, temperature=scale, offset=offset, log_loss=loss)
            self._decided[key], self._lost[key] = f, loss
            if f.shape[1] > 1:
                wrong = decided_classes(self._of(found)) != self._codes
                self._lost[key] *= (self._share @ wrong + 1 / len(wrong)) ** 0.5
        return self.seen[key]

    def lost(self, candidate: Chosen) -> float:
        """What a candidate that was fitted is judged by.

        With more than two classes it is the log loss times the root of the error: one temperature cannot calibrate
        hinges of classes against the rest well, though what they decide may be better.
        """
        return self._lost[_key(candidate)]

    def _calibrated(self, parts: Sequence[Array], bounds: Sequence[tuple[float, float]]) -> tuple[list[float], float]:
        """Weights of the parts of f, and of the prior, with the smallest log loss, a convex problem, and that loss.

        One text more is imagined, spread evenly over texts and classes: where all were decided rightly, none would be
        too sure. It does not count in the loss that is returned.
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

    def blended(self, best: Chosen) -> Chosen:
        """The sum of the best candidate and others of the same attention that loses least, of few enough of them."""
        alike = [one for one in self.seen.values() if (one.exponent, one.repeats) == (best.exponent, best.repeats)]
        while True:
            weights, loss = self._calibrated(
                [self._of(one) for one in alike], [(0.0, 2.0)] * len(alike) + [(-2.0, 2.0)]
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

    def _of(self, candidate: Chosen) -> Array:
        """What a candidate decided on the texts held out, calibrated."""
        return candidate.temperature * self._decided[_key(candidate)] + candidate.offset * self._prior

    def along(self, best: Chosen) -> Chosen:
        """Stronger and stronger ridges while that helps; if it does not, weaker ones."""
        for factor in (STEP, 1 / STEP):  # a strong ridge is quickly fitted
            first = best
            while LEAST < best.value_penalty * factor < MOST:
                found = self(replace(best, value_penalty=best.value_penalty * factor))
                if self.lost(found) >= self.lost(best) * (1 - WORTH * (factor < 1)):
                    break
                best = found
            if best is not first:
                break
        return best


def _key(candidate: Chosen) -> tuple[object, ...]:
    return tuple(getattr(candidate, name) for name in ("value_penalty", *OTHERS))


def _other(best: Chosen, name: str, value: object, free: set[str]) -> Chosen:
    """The same with one thing changed; another loss with the ridge that is about as strong beside it."""
    changed = replace(best, **{name: value})  # type: ignore[arg-type]
    if name == "loss" and "value_penalty" in free:
        factor = HINGE_RIDGE if value == "hinge" else 1 / HINGE_RIDGE
        changed = replace(changed, value_penalty=best.value_penalty * factor)
    return changed


def choose_penalties(
    data: Labelled,
    fold_of: Int[Array, " n"],
    turns: int,
    *,
    first: Chosen,
    free: set[str],
    tolerance: float,
    least: int,
    blend: bool,
) -> tuple[Chosen, TokenModel | None]:
    """The best candidate reached from `first`, and values near its own to start training from.

    **Arguments**
    - `fold_of`, `turns`: the fold of each text, and how many of the folds are held out in turn.
    - `free`: what may be changed: `value_penalty`, `start_power`, `exponent`, `loss`, `repeats`.
    - `least`: in how many of the texts to learn from a token stands if it is to be known.
    - `blend`: whether fits may be added up; not where each learns an attention of its own.
    """
    folds = list(folds_of(data, fold_of, turns, least))
    if not folds or not free:
        return first, None
    judge = _Judge(folds, COARSE * tolerance)
    best = judge(first)
    for name, ways in OTHERS.items():
        for way in ways if name in free else ():
            before = best
            for value in way:
                found = judge(_other(best, name, value, free))
                if judge.lost(found) >= judge.lost(best):
                    break
                best = found
            if best is not before:
                break
    best = judge.along(best) if "value_penalty" in free else best
    near = folds[0].near(best, data.presence.shape[1])
    best = judge.blended(best) if blend else best
    return replace(best, tried=len(judge.seen), folds=len(folds)), near


def folds_of(data: Labelled, fold_of: Array, turns: int, least: int) -> Iterator[Fold]:
    """The folds in which every class is left to learn from.

    The vocabulary was learned with the texts held out. A token that without them would not be known is left out: it has
    no value yet, but would take attention from others, which no text to come will see.
    """
    counts = data.presence.getnnz(axis=0)
    for turn in range(turns):
        held = fold_of == turn
        train = data.part(~held)
        if held.any() and len(np.unique(train.codes)) == data.k:
            often = train.presence.getnnz(axis=0) >= np.minimum(least, counts)
            kept = np.flatnonzero(often & (counts > 0))
            yield Fold(train.of_tokens(kept), data.part(held).of_tokens(kept), kept)
