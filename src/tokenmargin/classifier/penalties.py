"""Ridge, start of the attention, exponent and loss, chosen on folds of the training texts; then a calibration.

While they are chosen the attention stays at its start, which makes every fit convex and a good start for the next: all
candidates together cost about as much as two or three fits. A candidate is judged by the log loss on texts held out,
after the best calibration `temperature f + offset prior`: one that decides well but too surely is not thrown away, and
the calibration of the winner is what makes its f a log odds. So the squared hinge, whose f is none, can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.optimize import minimize
from scipy.special import log_softmax

from tokenmargin.classifier.solver import (
    Labelled,
    Penalty,
    Start,
    TokenObjective,
    fit_token_model,
    log_loss,
    start_model,
)
from tokenmargin.classifier.token_model import TokenModel

STEP = 10**0.5  # from one ridge to the next
LEAST, MOST = 0.009, 100.0
WORTH = 0.005  # part of the loss that a weaker ridge must save: below it fits differ more by where they stopped
OTHERS: dict[str, tuple[tuple[float | str, ...], ...]] = {  # ways to go from the first candidate while that helps
    "loss": (("hinge",),),
    "start_power": ((0.25, 0.0), (1.0,)),
    "exponent": ((1.0,), (0.0,)),
}
HINGE_RIDGE = 10.0  # times the ridge beside the log loss is about the ridge beside the squared hinge: it is steeper
HOTTEST = {"log": 5.0, "hinge": 20.0}  # a fit that has to be stretched more has hardly begun
ITERATIONS = 40  # of a candidate's fit, from the one before
COARSE = 10.0  # times the tolerance of training: candidates need not be fitted so well to be told apart
FEW_TOKENS = 50_000


@dataclass(frozen=True)
class Chosen:
    """The ridge on the values, the start of the attention, the exponent and the loss that training uses.

    **Attributes**
    - `temperature`, `offset`: f becomes `temperature f + offset prior` after training, to calibrate the probabilities.
    - `log_loss`: on the texts held out, after that; NaN where nothing was chosen.
    - `tried`: how many candidates were fitted. `folds`: on how many parts of the texts.
    """

    value_penalty: float = 10**-0.5
    start_power: float | None = 0.5
    exponent: float = 0.5
    loss: str = "log"
    temperature: float = 1.0
    offset: float = 0.0
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
class _Fold:
    """Texts to learn from and texts to judge by, and the last fit, from which the next starts."""

    train: Labelled
    test: Labelled
    last: TokenModel | None = None
    starts: dict[Start, tuple[TokenModel, Array]] = field(default_factory=dict)

    def outputs(self, candidate: Chosen, tolerance: float) -> Float[Array, "n k"]:
        """Decisions on the texts held out."""
        start = candidate.start
        if start not in self.starts:
            self.starts[start] = start_model(self.train, start)
        origin, units = self.starts[start]
        penalty = Penalty(np.inf, candidate.value_penalty)
        objective = TokenObjective(self.train, origin=origin, units=units, penalty=penalty, loss=candidate.loss)
        first = origin if self.last is None else _translated(self.last, origin, self.train)
        self.last, _ = fit_token_model(objective, first, iterations=ITERATIONS, tolerance=tolerance)
        return self.last.decide(self.test.presence)

    def near(self, start: Start) -> TokenModel | None:
        """What the last fit changed, in the terms of another start."""
        if self.last is None:
            return None
        origin, _ = self.starts[start]
        return _translated(self.last, origin, self.train).change_since(origin)


def _translated(model: TokenModel, origin: TokenModel, data: Labelled) -> TokenModel:
    """Values that make another attention decide a typical text alike."""
    typical = []
    for one in (model, origin):
        Z = np.exp(one.sink_logit) + data.products.sums(np.exp(one.logits))
        typical.append(one.exponent * float(np.median(np.log(np.maximum(Z, 1e-300)))))
    factor = np.exp(model.logits - origin.logits + typical[1] - typical[0])
    return replace(origin, values=model.values * factor[:, None], intercept=model.intercept)


class _Judge:
    """Judges candidates on all folds, each once, and keeps the best."""

    def __init__(self, folds: list[_Fold], tolerance: float) -> None:
        self.folds, self.tolerance = folds, tolerance
        self.seen: dict[tuple[float, float | None, float, str], Chosen] = {}
        self._codes = np.concatenate([fold.test.codes for fold in folds])
        self._share = np.concatenate([fold.test.weight for fold in folds])
        self._share = self._share / self._share.sum()

    def __call__(self, candidate: Chosen) -> Chosen:
        key = (candidate.value_penalty, candidate.start_power, candidate.exponent, candidate.loss)
        if key not in self.seen:
            outputs, priors = [], []
            for fold in self.folds:
                found = fold.outputs(candidate, self.tolerance)
                outputs.append(found)
                priors.append(np.broadcast_to(fold.starts[candidate.start][0].prior, found.shape))
            f, prior = np.concatenate(outputs), np.concatenate(priors)
            scale, offset, loss = _calibrated(f, prior, self._codes, self._share, HOTTEST[candidate.loss])
            self.seen[key] = replace(candidate, temperature=scale, offset=offset, log_loss=loss)
        return self.seen[key]

    def along(self, best: Chosen) -> Chosen:
        """Stronger and stronger ridges while that helps; if it does not, weaker ones."""
        for factor in (STEP, 1 / STEP):  # a strong ridge is quickly fitted
            first = best
            while LEAST < best.value_penalty * factor < MOST:
                found = self(replace(best, value_penalty=best.value_penalty * factor))
                if found.log_loss >= best.log_loss * (1 - WORTH * (factor < 1)):
                    break
                best = found
            if best is not first:
                break
        return best


def _calibrated(f: Array, prior: Array, codes: Array, share: Array, hottest: float) -> tuple[float, float, float]:
    """Temperature and offset with the smallest log loss, a convex problem, and that loss.

    One text more is imagined, spread evenly over texts and classes: where all were decided rightly, none would be too
    sure. It does not count in the loss that is returned.
    """

    def lost(x: Array, imagined: float) -> tuple[float, Array]:
        at = x[0] * f + x[1] * prior
        (loss, slope), (more, slope_more) = log_loss(at, codes, share), _of_no_class(at, share)
        slope = slope + imagined * slope_more
        return loss + imagined * more, np.array([(slope * f).sum(), (slope * prior).sum()])

    bounds, start = [(1 / hottest, hottest), (-hottest, hottest)], np.array([1.0, 0.0])
    found = minimize(lost, start, args=(1 / len(codes),), jac=True, method="L-BFGS-B", bounds=bounds).x
    return float(found[0]), float(found[1]), lost(found, 0.0)[0]


def _of_no_class(f: Array, share: Array) -> tuple[float, Array]:
    """The log loss if every text were of all classes alike, and its gradient in f."""
    whole = np.concatenate([np.zeros_like(f), f], axis=1) if f.shape[1] == 1 else f
    logs = log_softmax(whole, axis=1)
    slope = (np.exp(logs) - 1 / whole.shape[1]) * share[:, None]
    return -float(share @ logs.mean(1)), slope[:, -f.shape[1] :]


def _other(best: Chosen, name: str, value: object, free: set[str]) -> Chosen:
    """The same with one thing changed; another loss with the ridge that is about as strong beside it."""
    changed = replace(best, **{name: value})  # type: ignore[arg-type]
    if name == "loss" and "value_penalty" in free:
        factor = HINGE_RIDGE if value == "hinge" else 1 / HINGE_RIDGE
        changed = replace(changed, value_penalty=best.value_penalty * factor)
    return changed


def choose_penalties(
    data: Labelled, fold_of: Int[Array, " n"], turns: int, *, first: Chosen, free: set[str], tolerance: float
) -> tuple[Chosen, TokenModel | None]:
    """The best candidate reached from `first`, and values near its own to start training from.

    **Arguments**
    - `fold_of`, `turns`: the fold of each text, and how many of the folds are held out in turn.
    - `free`: what may be changed: `value_penalty`, `start_power`, `exponent`, `loss`.
    """
    folds = list(_folds(data, fold_of, turns))
    if not folds or not free:
        return first, None
    judge = _Judge(folds, COARSE * tolerance)
    best = judge(first)
    for name, ways in OTHERS.items():
        for way in ways if name in free else ():
            before = best
            for value in way:
                found = judge(_other(best, name, value, free))
                if found.log_loss >= best.log_loss:
                    break
                best = found
            if best is not before:
                break
    best = judge.along(best) if "value_penalty" in free else best
    return replace(best, tried=len(judge.seen), folds=len(folds)), folds[0].near(best.start)


def _folds(data: Labelled, fold_of: Array, turns: int) -> Iterator[_Fold]:
    """The folds in which every class is left to learn from."""
    for turn in range(turns):
        held = fold_of == turn
        train = data.part(~held)
        if held.any() and len(np.unique(train.codes)) == data.k:
            yield _Fold(train, data.part(held))
