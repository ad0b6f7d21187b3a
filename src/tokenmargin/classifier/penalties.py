"""Ridge, start of the attention and exponent, chosen on folds of the training texts; then a temperature.

While they are chosen the attention stays at its start, which makes every fit convex and a good start for the next: all
candidates together cost about as much as two or three fits. A candidate is judged by the log loss on texts held out,
after the best temperature: one that decides well but too surely is not thrown away, and the temperature of the winner
is what calibrates the probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.optimize import minimize_scalar

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

__all__ = ["Chosen", "choose_penalties", "number_of_folds"]

STEP = 10**0.5  # from one ridge to the next
LEAST, MOST = 0.009, 100.0
WORTH = 0.005  # part of the loss that a weaker ridge must save: below it fits differ more by where they stopped
OTHERS = {"start_power": (0.0, 1.0), "exponent": (1.0,)}  # tried beside the first candidate's, until one is better
ITERATIONS = 40  # of a candidate's fit, from the one before


@dataclass(frozen=True)
class Chosen:
    """The ridge on the values, the start of the attention and the exponent that training uses.

    **Attributes**
    - `temperature`: what `f - prior` is multiplied with after training, to calibrate the probabilities.
    - `loss`: the log loss on the texts held out, after that; NaN where nothing was chosen.
    - `tried`: how many candidates were fitted. `folds`: on how many parts of the texts.
    """

    value_penalty: float = 10**-0.5
    start_power: float | None = 0.5
    exponent: float = 0.5
    temperature: float = 1.0
    loss: float = float("nan")
    tried: int = 0
    folds: int = 0

    @property
    def start(self) -> Start:
        """Where the attention starts."""
        return Start(self.start_power, self.exponent)


def number_of_folds(texts: int) -> tuple[int, int]:
    """Into how many parts texts are cut, and how many of these are held out in turn: some 2,000 texts if there are.

    >>> number_of_folds(500), number_of_folds(2000), number_of_folds(5000), number_of_folds(25_000)
    ((5, 5), (5, 3), (5, 2), (10, 1))
    """
    if texts >= 10_000:
        return 10, 1
    return 5, 5 if texts < 1_000 else 3 if texts < 5_000 else 2


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
        objective = TokenObjective(
            self.train, origin=origin, units=units, penalty=Penalty(np.inf, candidate.value_penalty)
        )
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
        self.seen: dict[tuple[float, float | None, float], Chosen] = {}
        self._codes = np.concatenate([fold.test.codes for fold in folds])
        self._share = np.concatenate([fold.test.weight for fold in folds])
        self._share = self._share / self._share.sum()

    def __call__(self, candidate: Chosen) -> Chosen:
        key = (candidate.value_penalty, candidate.start_power, candidate.exponent)
        if key not in self.seen:
            moved, priors = [], []
            for fold in self.folds:
                found = fold.outputs(candidate, self.tolerance)
                prior = fold.last.prior if fold.last is not None else 0.0
                moved.append(found - prior)
                priors.append(np.broadcast_to(prior, found.shape))
            temperature, loss = _temperature(np.concatenate(moved), np.concatenate(priors), self._codes, self._share)
            self.seen[key] = replace(candidate, temperature=temperature, loss=loss)
        return self.seen[key]

    def along(self, best: Chosen) -> Chosen:
        """Stronger and stronger ridges while that helps; if it does not, weaker ones."""
        for factor in (STEP, 1 / STEP):  # a strong ridge is quickly fitted
            first = best
            while LEAST < best.value_penalty * factor < MOST:
                found = self(replace(best, value_penalty=best.value_penalty * factor))
                if found.loss >= best.loss * (1 - WORTH * (factor < 1)):
                    break
                best = found
            if best is not first:
                break
        return best


def _temperature(moved: Array, prior: Array, codes: Array, share: Array) -> tuple[float, float]:
    """The factor on `f - prior` with the smallest log loss, and that loss."""
    found = minimize_scalar(
        lambda t: log_loss(prior + np.exp(t) * moved, codes, share)[0],
        bounds=(-1.6, 1.6), method="bounded", options={"xatol": 1e-3},
    )  # fmt: skip
    return float(np.exp(found.x)), float(found.fun)


def choose_penalties(
    data: Labelled, fold_of: Int[Array, " n"], turns: int, *, first: Chosen, free: set[str], tolerance: float
) -> tuple[Chosen, TokenModel | None]:
    """The best candidate reached from `first`, and values near its own to start training from.

    **Arguments**
    - `fold_of`, `turns`: the fold of each text, and how many of the folds are held out in turn.
    - `free`: what may be changed: `value_penalty`, `start_power`, `exponent`.
    """
    folds = list(_folds(data, fold_of, turns))
    if not folds or not free:
        return first, None
    judge = _Judge(folds, tolerance)
    best = judge(first)
    best = judge.along(best) if "value_penalty" in free else best
    shape = best.start
    for name, values in OTHERS.items():
        for value in values if name in free else ():
            found = judge(replace(best, **{name: value}))  # type: ignore[arg-type]
            if found.loss < best.loss:
                best = found
                break
    if best.start != shape and "value_penalty" in free:
        best = judge.along(best)
    return replace(best, tried=len(judge.seen), folds=len(folds)), folds[0].near(best.start)


def _folds(data: Labelled, fold_of: Array, turns: int) -> Iterator[_Fold]:
    """The folds in which every class is left to learn from."""
    for turn in range(turns):
        held = fold_of == turn
        train = data.part(~held)
        if held.any() and len(np.unique(train.codes)) == data.k:
            yield _Fold(train, data.part(held))
